"""Constant folding, and merging of equal constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import Type, type_of
from ..support.huge_pages import release_pages
from ..support.sizes import is_open
from .interpret import evaluate
from .passes import PassReport, register
from .rewrite import defined_by, drop_unused_constants, erase_dead, names, replace


@register("fold")
@dataclass(frozen=True)
class Fold:
    """Evaluate operators whose operands are all constant; merge equal constants; drop unused ones.

    A result is kept only if it is at most ``max_elements`` elements, or not much larger than the operands (``growth``
    times their bytes): folding an `expand` must not blow memory up. Operators that draw random numbers are never
    folded.

        %a = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
        %b = "tw.sqrt"(%a) : (tensor<f32>) -> tensor<f32>
    ->  %b = "tw.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
    """

    max_elements: int = 1 << 18
    growth: float = 1.1

    def run(self, graph: Graph) -> PassReport:
        with use():
            folded = sum(self._fold(graph, op) for op in list(graph.operations())[:-1])
            erase_dead(graph)
            merged = merge_equal(graph)
            dropped = drop_unused_constants(graph)
        return {"folded": folded, "merged": merged, "dropped": dropped}

    def _fold(self, graph: Graph, op: ir.Operation) -> bool:
        name = dialect.mnemonic(op)
        if name is None or name == "constant" or not dialect.OPERATORS[name].pure:
            return False
        operands = list(op.operands)
        if any(defined_by(v, "constant") is None for v in operands):
            return False
        results = [type_of(r) for r in op.results]
        if not all(t.static for t in results) or _open(op, results):
            return False
        allowed = self.growth * sum(type_of(v).nbytes for v in operands)
        if sum(t.nbytes for t in results) > allowed and any(t.size > self.max_elements for t in results):
            return False
        arrays = evaluate(graph, op, [graph.constant_value(v) for v in operands])
        hint = (names(op) or [name])[0]
        with ir.InsertionPoint(op):
            replace(op, [graph.constant(np.asarray(a, order="C"), hint, op.location) for a in arrays], by="fold")
        return True


def _open(op: ir.Operation, results: list[Type]) -> bool:
    """Whether what an operator gives hangs on sizes that are not known yet."""
    attributes = dialect.attributes(op).values()
    numbers = [x for a in attributes for x in (a if isinstance(a, tuple) else (a,))]
    return is_open(*numbers, *(d for t in results for d in t.dims))


def merge_equal(graph: Graph) -> int:
    """Let `tw.constant` operations whose arrays are equal refer to one symbol; returns how many were redirected."""
    first: dict[tuple, str] = {}
    merged = 0
    for op in graph.operations():
        if op.name != "tw.constant" or "symbol" not in op.attributes:
            continue
        symbol = ir.StringAttr(op.attributes["symbol"]).value
        array = graph.constants[symbol]
        # A sample first, so that only likely candidates are read whole.
        flat = array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)
        sample = flat[:: max(1, flat.size // 64)].tobytes()
        release_pages(array)
        key = (array.shape, array.dtype.str, sample)
        other = first.setdefault(key, symbol)
        if other != symbol and graph.constants.digest(other) == graph.constants.digest(symbol):
            op.attributes["symbol"] = ir.StringAttr.get(other)
            merged += 1
    return merged
