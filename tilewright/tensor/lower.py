"""Level 2 -> 3: every operator becomes linalg on tensors through its `lower`.

    %1 = "tw.relu"(%0) : (tensor<4xf32>) -> tensor<4xf32>
    ->  %1 = linalg.generic ... { arith.maximumf } ... -> tensor<4xf32>

Operators of kind "opaque" stay as they are if the target has a loop nest for them, and are decomposed otherwise. So do
operators that a processor beside the host computes whole, with its name as ``tw.processor``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from ..ir import dialect
from ..ir.builder import Builder, Tensor
from ..ir.context import use
from ..ir.graph import Graph, from_dense
from ..ir.types import Type, type_of
from ..support.budget import check_time
from ..support.errors import CompileError, OpError, TilewrightError, UnsupportedError
from ..support.sub_byte import NARROW
from .analysis import FREE, VIEWS

#: an operator of level 2 -> the processor that computes it whole, "" if it is lowered
Whole = Callable[[ir.Operation], str]


def lower(graph: Graph, direct: frozenset[str] = frozenset(), whole: Whole = lambda op: "") -> Graph:
    """A level-3 graph with the same constants; `direct` names the opaque operators that keep their form, `whole` says
    of any operator who computes it as it is.

    Raises UnsupportedError that lists every operator without a lowering.
    """
    with use():
        operators = (op for op in graph.operations() if dialect.mnemonic(op) not in (None, "constant"))
        processors = {op: name for op in operators if (name := whole(op))}
        _check(graph, direct, processors)
        module = ir.Module.create()
        inputs, outputs = graph.inputs(), graph.outputs()
        with ir.InsertionPoint(module.body):
            signature = ir.FunctionType.get(
                [t.mlir(signless_ints=True) for _, t in inputs], [t.mlir(signless_ints=True) for _, t in outputs]
            )
            main = func.FuncOp("main", signature)
            main.attributes["arg_attrs"] = _attributes(inputs)
            main.attributes["res_attrs"] = _attributes(outputs)
            entry = main.add_entry_block()
        result = Graph(module, graph.constants)
        values = {
            old: Tensor(new, t) for old, new, (_, t) in zip(graph.block.arguments, entry.arguments, inputs, strict=True)
        }
        with ir.InsertionPoint(entry):
            for op in graph.operations():
                check_time("lower")
                if op.name == "func.return":
                    func.ReturnOp([values[v].value for v in op.operands])
                elif op in processors:
                    values.update(zip(op.results, _whole(op, values, processors[op]), strict=True))
                else:
                    values.update(zip(op.results, _lower_op(graph, op, values, direct), strict=True))
    return result


def _attributes(signature: list[tuple[str, Type]]) -> ir.Attribute:
    return ir.ArrayAttr.get(
        [
            ir.DictAttr.get({"tw.name": ir.StringAttr.get(n), "tw.dtype": ir.StringAttr.get(t.dtype)})
            for n, t in signature
        ]
    )


def _check(graph: Graph, direct: frozenset[str], processors: dict[ir.Operation, str]) -> None:
    """All operators that cannot be lowered, at once."""
    missing: Counter[str] = Counter()
    for op in graph.operations():
        name = dialect.mnemonic(op)
        if name is None or name == "constant" or op in processors:
            continue
        cls = dialect.OPERATORS[name]
        if not hasattr(cls, "lower") and name not in direct and not hasattr(cls, "decompose"):
            missing[name] += 1
    if missing:
        names = ", ".join(f"{n} ({c}x)" for n, c in missing.items())
        raise UnsupportedError(f"no lowering for {names}", stage="lower")


def _lower_op(graph: Graph, op: ir.Operation, values: dict[ir.Value, Tensor], direct: frozenset[str]) -> list[Tensor]:
    name = dialect.mnemonic(op)
    if name is None:
        raise CompileError(f"{op.name} is not an operator of level 2", stage="lower", operator=str(op.location))
    if name == "constant":
        t = type_of(op.results[0])
        symbol = ir.StringAttr(op.attributes["symbol"]).value if "symbol" in op.attributes else None
        array = graph.constants.stored(symbol) if symbol else from_dense(op.attributes["value"], t)
        if t.dtype in NARROW and symbol:  # from here on its codes
            array = array.view(np.int8)
            symbol = graph.constants.add(array, symbol)
        return [Tensor(graph.constant_like(array, symbol, op.location, signless_ints=True), t)]
    cls, attrs = dialect.OPERATORS[name], dialect.attributes(op)
    operands = [None if v is None else values[v] for v in dialect.arguments(op)]
    result_types = [type_of(r) for r in op.results]
    with op.location:
        if cls.kind == "opaque" and name in direct:
            return _keep(cls, operands, attrs, result_types, op)
        build = cls.lower if hasattr(cls, "lower") else cls.decompose  # type: ignore[attr-defined]
        try:
            out = dialect.as_list(build(Builder(name), *operands, **attrs))
        except TilewrightError:
            raise
        except (OpError, ValueError, TypeError, KeyError, IndexError, ir.MLIRError) as e:
            raise CompileError(
                f"lowering failed: {type(e).__name__}: {e}", stage="lower", operator=f"tw.{name} {op.location}"
            ) from e
    for tensor, t in zip(out, result_types, strict=True):
        if tensor.type != t:
            raise CompileError(
                f"lowering gave {tensor.type}, expected {t}", stage="lower", operator=f"tw.{name} {op.location}"
            )
    return out


def _keep(
    cls: type[dialect.Operator],
    operands: list[Tensor | None],
    attrs: dict[str, Any],
    types: list[Type],
    op: ir.Operation,
) -> list[Tensor]:
    """The operator itself on signless values; the level-2 dtypes of its operands are kept in ``tw.dtypes``."""
    new = dialect.create_typed(
        cls, [None if x is None else x.value for x in operands], attrs, [_signless(t) for t in types], op.location
    )
    dtypes = [x.dtype for x in operands if x is not None]
    if any(d.startswith("ui") for d in dtypes):
        new[0].owner.attributes["tw.dtypes"] = ir.ArrayAttr.get([ir.StringAttr.get(d) for d in dtypes])
    return [Tensor(v, t) for v, t in zip(new, types, strict=True)]


def _whole(op: ir.Operation, values: dict[ir.Value, Tensor], processor: str) -> list[Tensor]:
    """The operator itself, for a processor that takes it as it is: its operands are buffers as a whole."""
    cls, attrs = dialect.OPERATORS[op.name[3:]], dialect.attributes(op)
    with op.location:
        operands = [None if v is None else _in_memory(values[v]) for v in dialect.arguments(op)]
    types = [type_of(r) for r in op.results]
    made = _keep(cls, operands, attrs, types, op)
    kept = made[0].value.owner.attributes
    kept[dialect.WHOLE] = ir.StringAttr.get(processor)
    if any(t.dtype.startswith("ui") for t in types):
        kept["tw.result_dtypes"] = ir.ArrayAttr.get([ir.StringAttr.get(t.dtype) for t in types])
    return made


def _in_memory(x: Tensor) -> Tensor:
    """A tensor, or a copy of what is only a part of another one, or a number everywhere."""
    v = x.value
    while not isinstance(v.owner, ir.Block) and v.owner.name in VIEWS:
        v = v.owner.operands[0]
    part = not isinstance(v.owner, ir.Block) and v.owner.name in {*FREE, "tensor.extract_slice"}
    return Builder("copy").elementwise(lambda e: e, x) if part else x


def _signless(t: Type) -> Type:
    from ..ir.types import signless

    return t.with_dtype(signless(t.dtype))
