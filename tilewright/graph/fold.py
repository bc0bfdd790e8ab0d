"""Constant folding, and merging of equal constants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import Type, type_of
from ..support.budget import check_time
from ..support.lazy_array import LazyArray, Stored
from ..support.sizes import is_open
from .interpret import evaluate
from .passes import PassReport, register
from .rewrite import defined_by, drop_unused_constants, erase_dead, names, replace


@register("fold")
@dataclass(frozen=True)
class Fold:
    """Evaluate operators whose operands are all constant; merge equal constants; drop unused ones.

    A result is kept only if it is at most ``max_elements`` elements, or not much larger than the operands (``growth``
    times their bytes, each once): folding an `expand` must not blow memory up. What all results take beyond the
    constants that they replace is at most what the model's own constants take, and ``most_bytes``; the rest is left to
    run time. Operators that draw random numbers are never folded.

        %a = "tw.constant"() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
        %b = "tw.sqrt"(%a) : (tensor<f32>) -> tensor<f32>
    ->  %b = "tw.constant"() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
    """

    max_elements: int = 1 << 18
    growth: float = 1.1
    most_bytes: int = 64 << 20

    def run(self, graph: Graph) -> PassReport:
        with use():
            uses = Counter(s for op in graph.operations() if (s := _symbol(op)))
            folded = sum(self._fold(graph, op, uses) for op in list(graph.operations())[:-1])
            erase_dead(graph)
            merged = merge_equal(graph)
            dropped = drop_unused_constants(graph)
        return {"folded": folded, "merged": merged, "dropped": dropped}

    def _fold(self, graph: Graph, op: ir.Operation, uses: Counter[str]) -> bool:
        name = dialect.mnemonic(op)
        if name is None or name == "constant" or not dialect.OPERATORS[name].pure or dialect.has_regions(op):
            return False
        operands = list(op.operands)
        if any(defined_by(v, "constant") is None for v in operands):
            return False
        results = [type_of(r) for r in op.results]
        if not all(t.static for t in results) or _open(op, results):
            return False
        sources = list(dict.fromkeys(operands))
        made = sum(t.nbytes for t in results)
        if made > self.growth * sum(type_of(v).nbytes for v in sources) and any(
            t.size > self.max_elements for t in results
        ):
            return False
        last = [v for v in sources if all(use.owner == op for use in v.uses)]
        if not graph.constants.may_grow(made - sum(type_of(v).nbytes for v in last), self.most_bytes):
            return False
        check_time("fold", str(op.location))
        arrays = _lazily(graph, name, operands, results) or evaluate(graph, op, [*map(graph.constant_value, operands)])
        hint = (names(op) or [name])[0]
        gone = [_symbol(v.owner.operation) for v in last]
        with ir.InsertionPoint(op):
            new = [graph.constant(_contiguous(a), hint, op.location) for a in arrays]
        uses.update(s for v in new if (s := _symbol(v.owner.operation)))
        replace(op, new, by="fold")
        for symbol in filter(None, gone):  # at once: the arrays of a long chain must not be there together
            uses[symbol] -= 1
            if not uses[symbol]:
                graph.constants.discard(symbol)
        return True


def _lazily(graph: Graph, name: str, operands: list[ir.Value], results: list[Type]) -> list[Stored] | None:
    """What an operator makes of a constant that is computed when it is read, without computing it; None where that is
    not possible."""
    stored = graph.stored_constant(operands[0]) if name == "reshape" else None
    return [stored.reshape(results[0].dims)] if isinstance(stored, LazyArray) else None


def _contiguous(array: Stored) -> Stored:
    return array if isinstance(array, LazyArray) else np.asarray(array, order="C")


def _symbol(op: ir.Operation) -> str:
    """The array that a constant refers to; "" for other operations, and for constants that stand in the IR."""
    refers = op.name == "tw.constant" and "symbol" in op.attributes
    return ir.StringAttr(op.attributes["symbol"]).value if refers else ""


def _open(op: ir.Operation, results: list[Type]) -> bool:
    """Whether what an operator gives hangs on sizes that are not known yet."""
    attributes = dialect.attributes(op).values()
    numbers = [x for a in attributes for x in (a if isinstance(a, tuple) else (a,))]
    return is_open(*numbers, *(d for t in results for d in t.dims))


def merge_equal(graph: Graph) -> int:
    """Let `tw.constant` operations whose arrays are equal refer to one symbol; returns how many were redirected."""
    first: dict[tuple[object, ...], str] = {}
    merged = 0
    for op in graph.operations():
        if op.name != "tw.constant" or "symbol" not in op.attributes:
            continue
        symbol = ir.StringAttr(op.attributes["symbol"]).value
        array = graph.constants.stored(symbol)
        # A sample first, so that only likely candidates are read whole.
        key = (array.shape, array.dtype.str, graph.constants.sample(symbol))
        other = first.setdefault(key, symbol)
        if other != symbol and graph.constants.equal(other, symbol):
            op.attributes["symbol"] = ir.StringAttr.get(other)
            merged += 1
    return merged
