"""Target ``vulkan``: compute shaders in WGSL or SPIR-V, run through wgpu."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...support.dtypes import NUMPY
from ...support.errors import UnsupportedError, UsageError
from ..base import Check, TargetStage
from ..gpu.describe import GpuDescription
from ..gpu.on_device import PlacedText, device_parameter

if TYPE_CHECKING:
    import wgpu

    from ...codegen.clike.dialect import Dialect
    from ...schedule.nest import Nest
    from ..gpu.device_registry import Devices
    from ..gpu.kernels import GpuKernel
    from .device import WgpuDevice

TEXTS = ("wgsl", "spirv")


class VulkanTarget(PlacedText):
    """See `tilewright.targets.base.Target`. `form`: what kernels are handed to the driver as."""

    name = plain = "vulkan"
    form = TEXTS[0]
    doc = "any device with a Vulkan driver (pip install 'tilewright[vulkan]'), by WGSL; vulkan:text=spirv by SPIR-V"

    def configured(self, parameters: Mapping[str, str]) -> VulkanTarget:
        made = VulkanTarget()
        made.device = device_parameter(self.plain, parameters, ("text",))
        made.form = parameters.get("text", TEXTS[0])
        if made.form not in TEXTS:
            raise UsageError(f"target vulkan has no text {made.form!r}", hint=f"text is one of {', '.join(TEXTS)}")
        told = {"text": made.form if made.form != TEXTS[0] else "", "device": made.device}
        named = ",".join(f"{n}={v}" for n, v in told.items() if v)
        made.name = f"{self.plain}:{named}" if named else self.plain
        return made

    def describe(self) -> GpuDescription:
        """WGSL has products of bytes; wgpu reads none of SPIR-V."""
        return GpuDescription(byte_products=self.form == TEXTS[0])

    def dialect(self) -> Dialect:
        from ...codegen.clike.wgsl import WGSL_64

        return WGSL_64

    def stages(self) -> Sequence[TargetStage]:
        if self.form == TEXTS[0]:
            return super().stages()
        from .spirv import stages

        return stages()

    def built(self, nest: Nest) -> GpuKernel:
        if self.form == TEXTS[0]:
            return super().built(nest)
        from .spirv import built

        return built(nest, self.describe())

    def thread_count(self, nest: Nest, constants: frozenset[str]) -> int:
        self.check_bindings(nest)
        if self.form == TEXTS[0]:
            return super().thread_count(nest, constants)
        from ...codegen.spirv.emitter import emit

        return emit(nest, self.describe())[1].threads

    def check_bindings(self, nest: Nest) -> None:
        """UnsupportedError for a value of more bytes than every device binds; what is read only is bound in pieces."""
        pieces = self.dialect().pieces
        for p in nest.params:
            nbytes = p.size * NUMPY[p.dtype].itemsize
            if pieces is not None and p.name in nest.outputs and nbytes > pieces.bytes:
                raise UnsupportedError(
                    f"a result of {nbytes:,} bytes: not every device binds more than {pieces.bytes:,} at once",
                    stage="emit",
                    operator=nest.name,
                )

    def forms(self) -> Mapping[str, Callable[[Nest, Any], str]]:
        if self.form == TEXTS[0]:
            return super().forms()
        from .spirv import text

        return {self.form: text}

    def known_devices(self) -> Devices[wgpu.GPUAdapter, WgpuDevice]:
        from .device import DEVICES

        return DEVICES

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        return {"Vulkan": lambda: self.known_devices().check("Vulkan")}


TARGET = VulkanTarget()
