"""OpenCL: kernels in OpenCL C, compiled by the driver of whatever device is there (GPUs, and CPUs through PoCL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import Check, TargetStage
from ..gpu.describe import GpuDescription

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.program import Program
    from ..gpu.runner import GpuRunner


class OpenClTarget:
    """See `tilewright.targets.base.Target`."""

    name = "opencl"
    doc = "OpenCL C for any device with an OpenCL driver (pip install 'tilewright[opencl]')"

    def describe(self) -> GpuDescription:
        return GpuDescription()

    def stages(self) -> Sequence[TargetStage]:
        from ...codegen.clike.opencl import OPENCL
        from ..gpu.stages import stages

        return stages(OPENCL)

    def link(self, program: Program, objects: dict[str, bytes], description: Any) -> dict[str, bytes]:
        return {s: objects[s] for s in program.symbols}

    def check(self, description: dict[str, Any]) -> None:
        """The driver compiles the texts; what a device lacks is said when they are loaded."""

    def load(self, package: Package, threads: int) -> GpuRunner:
        from ..gpu.runner import GpuRunner
        from .device import device

        return GpuRunner(package, device())

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """See `tilewright.targets.base.Examinable`."""
        from .device import found

        return {"OpenCL": found}


TARGET = OpenClTarget()
