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

    Rule on floats: a rewrite never rounds more often than what it replaces. So ``x / 8`` becomes ``x * 0.125`` but
    ``x / 3`` stays, and ``(x * c) * d`` becomes ``x * (c * d)`` unless that overflows. The sign of a zero, and powers
    of negative infinity, are not kept.

        %0 = "tw.pow"(%x, %two) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
        %1 = "tw.div"(%0, %eight) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    ->  %0 = "tw.mul"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        %1 = "tw.mul"(%0, %eighth) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    """

    def run(self, graph: Graph) -> PassReport:
        return rewrite(graph, [*simplify_math.PATTERNS, *simplify_shape.PATTERNS])
