"""Algebraic simplification and strength reduction."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Graph
from . import simplify_math, simplify_shape
from .passes import PassReport, register
from .rewrite import rewrite


@register("simplify")
@dataclass(frozen=True)
class Simplify:
    """Remove and cheapen operators, by the patterns of simplify_math.py and simplify_shape.py, until none applies.

    What floats give stays the same, to the sign of a zero; only the payload of a NaN may change. So ``x / 8`` becomes
    ``x * 0.125`` but ``x / 3`` stays, and so do ``(x * 3) * 5`` and ``x + 0``, which is 0 where x is -0. With
    `fast_math` constants are joined, and signs of zeros do not matter.

        %0 = "tw.pow"(%x, %two) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
        %1 = "tw.div"(%0, %eight) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    ->  %0 = "tw.mul"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        %1 = "tw.mul"(%0, %eighth) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    """

    fast_math: bool = False

    def run(self, graph: Graph) -> PassReport:
        fast = simplify_math.FAST if self.fast_math else []
        return rewrite(graph, [*simplify_math.PATTERNS, *fast, *simplify_shape.PATTERNS])
