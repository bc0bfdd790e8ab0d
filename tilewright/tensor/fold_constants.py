"""Level 3: folds data movement of constants at compile time.

Lowering transposes weights into the order that a kernel reads; here such a transpose of a `tw.constant` becomes another
constant:

    %w = "tw.constant"() {symbol = "w"} : () -> tensor<64x3x3x3xf32>
    %1 = linalg.generic {maps = [(a, b, c, d) -> (d, c, a, b), identity]} ins(%w) ...      // copies only
    ->  %1 = "tw.constant"() {symbol = "w.t"} : () -> tensor<3x3x3x64xf32>

No data is copied: the new constant is a transposed view until its reader packs it.
"""

from __future__ import annotations

from torch_mlir import ir

from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import type_of
from ..support.lazy_array import Stored
from .analysis import VIEWS


def fold_constants(graph: Graph) -> int:
    """Fold views and pure permutations of constants in place; returns how many were folded."""
    folded = 0
    with use():
        for op in graph.operations():
            array = _value(graph, op)
            if array is None:
                continue
            source = op.operands[0].owner.operation.attributes
            with ir.InsertionPoint(op):
                symbol = (
                    graph.constants.add(array, ir.StringAttr(source["symbol"]).value + ".t")
                    if "symbol" in source
                    else None
                )
                new = graph.constant_like(array, symbol, op.location, signless_ints=True)
            op.results[0].replace_all_uses_with(new)
            op.erase()
            folded += 1
        if folded:
            _drop_unused(graph)
    return folded


def _value(graph: Graph, op: ir.Operation) -> Stored | None:
    """The array an operation makes of a constant without arithmetic; None if it is something else."""
    if op.name in VIEWS:
        array = graph.stored_constant(op.operands[0])
        return None if array is None else array.reshape(type_of(op.results[0]).dims)
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return None
    array = graph.stored_constant(op.operands[0])
    if array is None or not _is_copy(op):
        return None
    source, target = (ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"]))
    dims = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in source.results]
    order = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in target.results]
    if None in dims or order != list(range(len(order))) or sorted(dims) != order:  # type: ignore[type-var]
        return None
    return array.transpose([dims.index(d) for d in order])


def _is_copy(op: ir.Operation) -> bool:
    block = op.regions[0].blocks[0]
    first = block.operations[0].operation
    return first.name == "linalg.yield" and first.operands[0] == block.arguments[0]


def _drop_unused(graph: Graph) -> None:
    """Erase constants that nothing reads any more, from the module and from the table."""
    used = set()
    for op in reversed(list(graph.operations())):
        if op.name in ("tw.constant", "tensor.empty") and not list(op.results[0].uses):
            op.erase()
        elif op.name == "tw.constant" and "symbol" in op.attributes:
            used.add(ir.StringAttr(op.attributes["symbol"]).value)
    graph.constants.keep_only(used)
