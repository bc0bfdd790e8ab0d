"""Target ``c``: a model as portable C99 source, for any machine that has a C compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..base import TargetStage
from ..target_bases import UnlinkedKernels

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.states import StateBuffers
    from .describe import CDescription
    from .run_here import CRunner


class CTarget(UnlinkedKernels):
    """See `tilewright.targets.base.Target`."""

    name = "c"
    doc = "portable C99 source, without allocation and without dependencies; -o out/ writes the files"
    #: name of a setting -> (choices, what it does); the first choice is the default
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {
        "weights": (("arrays", "blob"), "weights as constant arrays in C, or as a binary file with linker symbols"),
    }

    def describe(self) -> CDescription:
        from .describe import CDescription

        return CDescription()

    def stages(self) -> Sequence[TargetStage]:
        from . import stages

        return (TargetStage("emit", 5, "loop nests to C functions", stages.emit_kernels, stages.emitted_text),)

    def load(self, package: Package, threads: int) -> CRunner:
        from .run_here import CRunner

        return CRunner(package)

    def load_with_sizes(self, package: Package, threads: int, states: StateBuffers) -> CRunner:
        """See `tilewright.targets.base.SizeTaker`; there are no states, which this target does not have."""
        return self.load(package, threads)

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        """The files of the library by name."""
        from .library import files

        return files(package, settings)


TARGET = CTarget()
