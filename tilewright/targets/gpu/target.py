"""Base of GPU targets whose kernels are source in a C-like language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import TargetStage
from ..kernels_alone import KernelsAlone
from .describe import GpuDescription

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ...schedule.nest import Nest
    from .kernels import GpuKernel


class TextTarget(KernelsAlone):
    """See `tilewright.targets.base.Target`; `dialect` and how packages are loaded are left to each."""

    #: what the text of a kernel is called (`Schedule.source`)
    form: str

    def dialect(self) -> Dialect:
        """What kernels are printed in."""
        raise NotImplementedError

    def describe(self) -> GpuDescription:
        return GpuDescription()

    def stages(self) -> Sequence[TargetStage]:
        from .stages import stages

        return stages(self.dialect())

    def built(self, nest: Nest) -> GpuKernel:
        """A kernel as devices take it, of a finished nest."""
        from ...codegen.clike.printer import emit
        from .kernels import kernel

        return kernel(emit(nest, self.dialect(), frozenset()), self.dialect())

    def forms(self) -> Mapping[str, Callable[[Nest, Any], str]]:
        """See `tilewright.targets.base.Showing`."""
        return {self.form: lambda nest, description: self.built(nest).text}
