"""OpenCL: kernels in OpenCL C, compiled by the driver of whatever device is there (GPUs, and CPUs through PoCL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..base import Check
from ..gpu.target import TextTarget

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ...program.package import Package
    from ..gpu.runner import GpuRunner


class OpenClTarget(TextTarget):
    """See `tilewright.targets.base.Target`."""

    name, form = "opencl", "opencl"
    doc = "OpenCL C for any device with an OpenCL driver (pip install 'tilewright[opencl]')"

    def dialect(self) -> Dialect:
        from ...codegen.clike.opencl import OPENCL

        return OPENCL

    def load(self, package: Package, threads: int) -> GpuRunner:
        from ..gpu.runner import GpuRunner
        from .device import device

        return GpuRunner(package, device)

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """See `tilewright.targets.base.Examinable`."""
        from .device import found

        return {"OpenCL": found}


TARGET = OpenClTarget()
