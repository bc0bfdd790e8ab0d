"""Vulkan: kernels in WGSL through wgpu, on any device with a Vulkan driver (Mesa's runs on processors too)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import Check, TargetStage
from ..gpu.describe import GpuDescription

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.program import Program
    from ..gpu.runner import GpuRunner


class VulkanTarget:
    """See `tilewright.targets.base.Target`."""

    name = "vulkan"
    doc = "WGSL for any device with a Vulkan driver (pip install 'tilewright[vulkan]')"

    def describe(self) -> GpuDescription:
        return GpuDescription()

    def stages(self) -> Sequence[TargetStage]:
        from ...codegen.clike.wgsl import WGSL_64
        from ..gpu.stages import stages

        return stages(WGSL_64)

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

        return {"Vulkan": found}


TARGET = VulkanTarget()
