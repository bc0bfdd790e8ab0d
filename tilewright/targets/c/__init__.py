"""Target ``c``: a model as portable C99 source, for any machine that has a C compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..base import Target, TargetStage

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.states import StateBuffers
    from .describe import CDescription
    from .run_here import CRunner


class CTarget(Target):
    """See `tilewright.targets.base.Target`."""

    name = "c"
    doc = "portable C99 source, without allocation and without dependencies; -o out/ writes the files"
    takes_sizes = True
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {
        "weights": (("arrays", "blob"), "weights as constant arrays in C, or as a binary file with linker symbols"),
    }

    def describe(self) -> CDescription:
        from .describe import CDescription

        return CDescription()

    def stages(self) -> Sequence[TargetStage]:
        from . import stages

        return (TargetStage("emit", 5, "loop nests to C functions", stages.emit_kernels, stages.emitted_text),)

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> CRunner:
        from .run_here import CRunner

        return CRunner(package)

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        from .library import files

        return files(package, settings)


TARGET = CTarget()
