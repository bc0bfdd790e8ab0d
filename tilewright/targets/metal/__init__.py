"""Target ``metal``: kernels as Metal source, for Apple's GPUs; nothing is compiled or run here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..gpu.source import SourceTarget

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect


class MetalTarget(SourceTarget):
    """See `tilewright.targets.base.Target`."""

    name, form = "metal", "metal"
    doc = "Metal: kernels as source for Apple's compiler, which do not run here; -o folder/ writes them"

    def dialect(self) -> Dialect:
        from ...codegen.clike.metal import METAL

        return METAL


TARGET = MetalTarget()
