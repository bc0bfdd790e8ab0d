"""Stages of LLVM targets: `assemble` (MLIR to object code), and level 5 as one module, printed and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_mlir import ir

from ...ir.constants import ConstantTable
from ...ir.context import parse, use
from ...ir.graph import Graph, read_text
from ...schedule.nest import Pack
from ...support.errors import ModelError
from ..kernel_info import KernelInfo, call_names
from .cache import KernelCache
from .machine import LlvmMachine
from .pool import Job, compile_many


def assemble_kernels(state: Any, machine: LlvmMachine) -> None:
    """MLIR text -> object code, from the cache or compiled in worker processes."""
    names = call_names(state.module)
    jobs = [Job(k, text, names.get(k, ())) for k, text in state.emitted.items()]
    cache = KernelCache() if state.options.cache else None
    workers = state.options.job_count
    for done in compile_many(jobs, machine, workers=workers, cache=cache, progress=state.kernel_done):
        state.objects[done.symbol] = done.data
        state.stats[done.symbol] = {k: v for k, v in done.stats.items() if k.endswith("seconds")}


def sizes_text(state: Any) -> str:
    return "\n".join(f"{len(data):8} bytes  {name}" for name, data in state.objects.items()) + "\n"


# ---- level 5 as one module -----------------------------------------------------------------------------------------


def emitted_text(state: Any) -> str:
    """One module: ``@program`` is the fused level-3 module, then one module a kernel, with its facts as attributes."""
    program = state.module.module.operation.get_asm(enable_debug_info=True, use_local_scope=True)
    parts = [f"module @program {{\n{_inside(program)}\n}}"]
    for name, text in state.emitted.items():
        parts.append(f"module @{name} attributes {_info_attributes(state.infos[name])} {{\n{_inside(text)}\n}}")
    return "module {\n" + "\n".join(parts) + "\n}\n"


def _inside(text: str) -> str:
    """The operations of a printed module."""
    start, end = text.index("module {") + len("module {"), text.rindex("}")
    return text[start:end].strip("\n")


def _info_attributes(info: KernelInfo) -> str:
    packs = ", ".join(
        f'{{param = {i} : i64, source = "{p.source}", '
        f"splits = [{', '.join(f'array<i64{_list(s)}>' for s in p.splits)}], order = array<i64{_list(p.order)}>, "
        f"repeats = array<i64{_list(p.repeats)}>}}"
        for i, p in info.packs.items()
    )
    pairs = ", ".join(f"array<i64: {o}, {i}>" for o, i in info.inplace)
    parallel, pieces = ("true" if x else "false" for x in (info.parallel, info.pieces))
    return (
        f"{{tw.scratch = {info.scratch} : i64, tw.parallel = {parallel}, tw.pieces = {pieces}, "
        f"tw.packs = [{packs}], tw.inplace = [{pairs}]}}"
    )


def _list(numbers: tuple[int, ...]) -> str:
    return ": " + ", ".join(map(str, numbers)) if numbers else ""


def enter(state: Any, path: Path) -> None:
    """Read what `emitted_text` wrote."""
    module = parse(read_text(path), str(path))
    with use():
        for op in module.body.operations:
            if op.operation.name != "builtin.module" or "sym_name" not in op.attributes:
                raise ModelError(f"{path} is not what was dumped after emit", stage="parse")
            name = ir.StringAttr(op.attributes["sym_name"]).value
            text = (
                "module {\n"
                + _inside_named(op.operation.get_asm(enable_debug_info=True, use_local_scope=True))
                + "\n}\n"
            )
            if name == "program":
                side = path.with_suffix(".constants")
                state.graph = Graph(
                    ir.Module.parse(text), ConstantTable.load(side) if side.exists() else ConstantTable()
                )
                state.graph.check_symbols(str(path))
            else:
                state.emitted[name] = text
                state.infos[name] = _read_info(op.attributes)


def _inside_named(text: str) -> str:
    return text[text.index("\n") + 1 : text.rindex("}")]


def _read_info(attributes: ir.OpAttributeMap) -> KernelInfo:
    packs = {}
    for p in ir.ArrayAttr(attributes["tw.packs"]):
        splits = tuple(tuple(ir.DenseI64ArrayAttr(s)) for s in ir.ArrayAttr(p["splits"]))
        order, repeats = (tuple(ir.DenseI64ArrayAttr(p[name])) for name in ("order", "repeats"))
        packs[ir.IntegerAttr(p["param"]).value] = Pack(ir.StringAttr(p["source"]).value, splits, order, repeats)
    pairs = tuple(tuple(ir.DenseI64ArrayAttr(a)) for a in ir.ArrayAttr(attributes["tw.inplace"]))
    scratch = ir.IntegerAttr(attributes["tw.scratch"]).value
    parallel, divided = (ir.BoolAttr(attributes[f"tw.{name}"]).value for name in ("parallel", "pieces"))
    return KernelInfo(scratch, packs, parallel, pairs, divided)
