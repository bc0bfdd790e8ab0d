"""Dead code: operations and constants that no output needs."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.context import use
from ..ir.graph import Graph
from .passes import PassReport, register
from .rewrite import drop_unused_constants, erase_dead


@register("dce")
@dataclass(frozen=True)
class Dce:
    """Erase pure operations whose results nobody uses, and constants nobody refers to.

        %0 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %1 = "tw.tanh"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        return %1 : tensor<4xf32>
    ->  %0 = "tw.tanh"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>
    """

    def run(self, graph: Graph) -> PassReport:
        with use():
            return {"operations": erase_dead(graph), "constants": drop_unused_constants(graph)}
