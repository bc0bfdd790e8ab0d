"""Vulkan: kernels in WGSL or in SPIR-V through wgpu, on any device with a Vulkan driver (Mesa's runs on processors
too)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...support.errors import UsageError
from ..base import Check, TargetStage
from ..gpu.target import TextTarget

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ...program.package import Package
    from ..gpu.runner import GpuRunner


TEXTS = ("wgsl", "spirv")


class VulkanTarget(TextTarget):
    """See `tilewright.targets.base.Target`. `text`: what kernels are handed to the driver as."""

    doc = "any device with a Vulkan driver (pip install 'tilewright[vulkan]'), by WGSL; vulkan:text=spirv by SPIR-V"

    def __init__(self, text: str = TEXTS[0]) -> None:
        self.form = text
        self.name = "vulkan" if text == TEXTS[0] else f"vulkan:text={text}"

    def configured(self, parameters: Mapping[str, str]) -> VulkanTarget:
        """See `tilewright.targets.base.Configurable`."""
        for name, value in parameters.items():
            if name != "text" or value not in TEXTS:
                hint = f"text is one of {', '.join(TEXTS)}"
                raise UsageError(f"target vulkan has no parameter {name}={value}", hint=hint)
        return VulkanTarget(parameters.get("text", TEXTS[0]))

    def dialect(self) -> Dialect:
        from ...codegen.clike.wgsl import WGSL_64

        return WGSL_64

    def stages(self) -> Sequence[TargetStage]:
        if self.form == TEXTS[0]:
            return super().stages()
        from .spirv import stages

        return stages()

    def forms(self) -> Mapping[str, Callable[[Any, Any], str]]:
        if self.form == TEXTS[0]:
            return super().forms()
        from .spirv import text

        return {self.form: text}

    def load(self, package: Package, threads: int) -> GpuRunner:
        from ..gpu.runner import GpuRunner
        from .device import device

        return GpuRunner(package, device)

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """See `tilewright.targets.base.Examinable`."""
        from .device import found

        return {"Vulkan": found}


TARGET = VulkanTarget()
