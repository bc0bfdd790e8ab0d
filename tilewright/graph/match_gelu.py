"""GELU as exporters decompose it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch_mlir import ir

from ..ir.graph import Graph
from .matching import affine, near, product
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, defined_by, either_order, pattern, rewrite


@register("match-gelu")
@dataclass(frozen=True)
class MatchGelu:
    """Find GELU, exact (erf) or approximate (tanh), however its products are ordered.

        %0 = "tw.div"(%x, %sqrt2) : ...
        %1 = "tw.erf"(%0) : (tensor<4xf32>) -> tensor<4xf32>
        %2 = "tw.add"(%1, %one) : ...
        %3 = "tw.mul"(%half, %2) : ...
        %4 = "tw.mul"(%x, %3) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    ->  %0 = "tw.gelu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    """

    def run(self, graph: Graph) -> PassReport:
        return rewrite(graph, [gelu])


@pattern("mul")
def gelu(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x * 0.5 * (1 + erf(x / sqrt(2))), or 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))"""
    c, factors = product(rw, op.results[0])
    if len(factors) != 2:
        return None
    for x, s in (factors, factors[::-1]):
        if x.type != op.results[0].type:
            continue
        a, f, b = affine(rw, s)
        if not near(a * c, 0.5, x) or not near(b * c, 0.5, x):
            continue
        function = defined_by(f, "erf", "tanh")
        if function is None:
            continue
        rw.names_of(function, op)
        if function.name == "tw.erf" and _is_erf_argument(rw, function.operands[0], x):
            return rw.create("gelu", x)
        if function.name == "tw.tanh" and _is_tanh_argument(rw, function.operands[0], x):
            return rw.create("gelu", x, approximate="tanh")
    return None


def _is_erf_argument(rw: Rewriter, value: ir.Value, x: ir.Value) -> bool:
    a, base, b = affine(rw, value, stop=x)
    return base == x and b == 0 and near(a, math.sqrt(0.5), x)


def _is_tanh_argument(rw: Rewriter, value: ir.Value, x: ir.Value) -> bool:
    k = math.sqrt(2 / math.pi)
    a, base, b = affine(rw, value, stop=x)
    total = defined_by(base, "add")
    if total is not None and b == 0 and near(a, k, x):  # k * (x + 0.044715 * x * x * x)
        for y, cube in either_order(total):
            c, factors = product(rw, cube, stop=x)
            if y == x and near(c, 0.044715, x) and len(factors) == 3 and all(f == x for f in factors):
                return True
    c, factors = product(rw, value, stop=x)
    if len(factors) == 2 and x in factors:  # x * (k + k * 0.044715 * x * x)
        other = factors[1] if factors[0] == x else factors[0]
        a, square, b = affine(rw, other)
        d, pair = product(rw, square, stop=x)
        return near(b * c, k, x) and near(a * d * c, k * 0.044715, x) and len(pair) == 2 and all(p == x for p in pair)
    return False
