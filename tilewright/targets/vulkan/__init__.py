"""Vulkan: kernels in WGSL through wgpu, on any device with a Vulkan driver (Mesa's runs on processors too)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..base import Check
from ..gpu.on_device import PlacedText

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ..gpu.opened import Devices


class VulkanTarget(PlacedText):
    """See `tilewright.targets.base.Target`."""

    name = plain = "vulkan"
    doc = "WGSL for any device with a Vulkan driver (pip install 'tilewright[vulkan]')"

    def dialect(self) -> Dialect:
        from ...codegen.clike.wgsl import WGSL_64

        return WGSL_64

    def known_devices(self) -> Devices[Any, Any]:
        from .device import DEVICES

        return DEVICES

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """See `tilewright.targets.base.Examinable`."""
        return {"Vulkan": lambda: self.known_devices().check("Vulkan")}


TARGET = VulkanTarget()
