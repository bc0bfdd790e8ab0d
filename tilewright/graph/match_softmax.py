"""Softmax as exporters decompose it."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..ir.graph import Graph
from .matching import reduced
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, defined_by, either_order, pattern, rewrite, shape


@register("match-softmax")
@dataclass(frozen=True)
class MatchSoftmax:
    """Find softmax written as exp and sum; with `fast_math` without the subtraction of the maximum, too.

        %0 = "tw.reduce_max"(%x) {axes = array<i64: 1>, keepdims = true} : ...
        %1 = "tw.sub"(%x, %0) : ...
        %2 = "tw.exp"(%1) : ...
        %3 = "tw.reduce_sum"(%2) {axes = array<i64: 1>, keepdims = true} : ...
        %4 = "tw.div"(%2, %3) : (tensor<2x8xf32>, tensor<2x1xf32>) -> tensor<2x8xf32>
    ->  %0 = "tw.softmax"(%x) {axis = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
    """

    fast_math: bool = False

    def run(self, graph: Graph) -> PassReport:
        return rewrite(graph, [softmax, softmax_of_any] if self.fast_math else [softmax])


@pattern("div", "mul")
def softmax(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """exp(x - max(x)) / sum(exp(x - max(x))), the quotient also as a product with the reciprocal"""
    return _softmax(rw, op, False)


@pattern("div", "mul")
def softmax_of_any(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """exp(x) / sum(exp(x)), which overflows where softmax does not"""
    return _softmax(rw, op, True)


def _softmax(rw: Rewriter, op: ir.Operation, of_any: bool) -> Rewritten:
    for e, s in either_order(op) if op.name == "tw.mul" else [tuple(op.operands)]:
        if op.name == "tw.mul":
            inverse = defined_by(s, "reciprocal")
            if inverse is None:
                continue
            s = inverse.operands[0]
        exp, total = defined_by(e, "exp"), defined_by(s, "reduce_sum")
        if exp is None or total is None:
            continue
        summed, axes, keepdims = reduced(total)
        if summed != e or len(axes) != 1 or not keepdims:
            continue
        x = _without_max(exp.operands[0], axes[0])
        if x == exp.operands[0] and not of_any:
            continue
        rw.names_of(exp, total, op)
        return rw.create("softmax", x, axis=axes[0])
    return None


def _without_max(x: ir.Value, axis: int) -> ir.Value:
    """y where x is y - max(y) along `axis`, which softmax does itself; else x."""
    difference = defined_by(x, "sub")
    if difference is None:
        return x
    y, top = difference.operands
    largest = defined_by(top, "reduce_max")
    if largest is None or shape(y) != shape(x):
        return x
    source, axes, keepdims = reduced(largest)
    return y if source == y and axes == (axis,) and keepdims else x
