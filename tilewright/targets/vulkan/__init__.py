"""Vulkan: kernels in WGSL through wgpu, on any device with a Vulkan driver (Mesa's runs on processors too)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..base import Check
from ..gpu.target import TextTarget

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ...program.package import Package
    from ..gpu.runner import GpuRunner


class VulkanTarget(TextTarget):
    """See `tilewright.targets.base.Target`."""

    name = "vulkan"
    doc = "WGSL for any device with a Vulkan driver (pip install 'tilewright[vulkan]')"

    def dialect(self) -> Dialect:
        from ...codegen.clike.wgsl import WGSL_64

        return WGSL_64

    def load(self, package: Package, threads: int) -> GpuRunner:
        from ..gpu.runner import GpuRunner
        from .device import device

        return GpuRunner(package, device)

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """See `tilewright.targets.base.Examinable`."""
        from .device import found

        return {"Vulkan": found}


TARGET = VulkanTarget()
