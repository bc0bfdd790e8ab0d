"""A kernel as a module of its own, without its model: @main calls it once."""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir


def alone(function: ir.OpView, constant: Callable[[int, ir.Type], str]) -> str:
    """The text of the module, without names of the model. `constant` gives the attribute of the ``tw.constant`` that
    stands for a parameter (its position and its type) of those that are constant."""
    symbol = ir.StringAttr(function.attributes["sym_name"]).value
    arguments = list(function.regions[0].blocks[0].arguments)
    marks = function.attributes.get("arg_attrs", [])
    fixed = {i for i, mark in enumerate(marks) if "tw.constant" in mark}
    made = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    results = ", ".join(map(str, made))
    names = [f"%c{i}" if i in fixed else f"%x{i}" for i in range(len(arguments))]
    given = ", ".join(f"{n}: {a.type}" for n, a in zip(names, arguments, strict=True) if n[1] == "x")
    lines = [f"  func.func @main({given}) -> ({results}) {{"]
    for i in sorted(fixed):
        t = arguments[i].type
        lines.append(f'    {names[i]} = "tw.constant"() {{{constant(i, t)}}} : () -> {t}')
    types = ", ".join(str(a.type) for a in arguments)
    lines.append(f"    %y:{len(made)} = func.call @{symbol}({', '.join(names)}) : ({types}) -> ({results})")
    returned = ", ".join(f"%y#{i}" for i in range(len(made)))
    lines += [f"    func.return {returned} : {results}", "  }"]
    body = function.operation.get_asm(use_local_scope=True)
    return "module {\n" + body + "\n" + "\n".join(lines) + "\n}\n"


__all__ = ["alone"]
