"""Common subexpressions, through MLIR's own pass (every pure `tw` operator has the trait it looks for)."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.context import run_passes
from ..ir.graph import Graph
from .passes import PassReport, register


@register("cse")
@dataclass(frozen=True)
class Cse:
    """Compute equal expressions once (MLIR's ``cse``).

        %0 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %1 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %2 = "tw.add"(%0, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    ->  %0 = "tw.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %1 = "tw.add"(%0, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    """

    def run(self, graph: Graph) -> PassReport:
        before = sum(1 for _ in graph.operations())
        run_passes(graph.module, "builtin.module(cse)", stage="cse")
        return {"removed": before - sum(1 for _ in graph.operations())}
