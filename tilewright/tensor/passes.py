"""The steps between level 2 and fused kernels as passes, for ``tilewright opt --pass lower,share-padding,fuse`` and
for tests.

The pipeline calls the same functions; a pass is only their form for the command line (see `graph.passes`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.passes import PassReport, register
from ..ir.graph import Graph
from ..support import providers
from .fold_constants import fold_constants
from .fuse import fuse
from .lower import lower
from .share_padding import share_padding


@register("lower")
@dataclass(frozen=True)
class Lower:
    """Lower every operator to linalg on tensors; operators with a loop nest of their own stay, unless `decompose`.

    "tw.relu"(%x)  ->  linalg.generic { arith.maximumf }
    """

    decompose: bool = False

    def run(self, graph: Graph) -> PassReport | None:
        native = frozenset() if self.decompose else providers.ask("direct_operators")()
        graph.module = lower(graph, native).module
        return None


@register("fold-constants")
@dataclass(frozen=True)
class FoldConstants:
    """Do data movement of constants at compile time (level 3); see fold_constants.py."""

    def run(self, graph: Graph) -> PassReport | None:
        return {"folded": fold_constants(graph)}


@register("share-padding")
@dataclass(frozen=True)
class SharePadding:
    """Keep a tensor that is padded for one reader only in its padded form (level 3); see share_padding.py."""

    def run(self, graph: Graph) -> PassReport | None:
        return {"redirected": share_padding(graph)}


@register("fuse")
@dataclass(frozen=True)
class Fuse:
    """Group level-3 operations into kernels, one private function each; see fuse.py.

    linalg.generic {mulf, addf}; linalg.generic {maximumf}  ->  call @matmul_relu_...
    """

    piece: int = 1

    def run(self, graph: Graph) -> PassReport | None:
        writes_once, reuses = (providers.ask(name)() for name in ("writes_once", "reuses"))
        fused, report = fuse(graph, writes_once, reuses=reuses, piece=self.piece)
        graph.module = fused.module
        return {"operations": report.operations, "kernels": report.kernels}
