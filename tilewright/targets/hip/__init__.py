"""Target ``hip``: kernels as HIP C++ source, for AMD's GPUs; nothing is compiled or run here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..gpu.source import SourceTarget

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect


class HipTarget(SourceTarget):
    """See `tilewright.targets.base.Target`."""

    name, form = "hip", "hip"
    doc = "HIP C++: kernels as source for AMD's compiler, which do not run here; -o folder/ writes them"

    def dialect(self) -> Dialect:
        from ...codegen.clike.hip import HIP

        return HIP


TARGET = HipTarget()
