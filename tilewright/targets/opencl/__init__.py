"""Target ``opencl``: kernels in OpenCL C, compiled by the driver of whatever device is there (GPUs, and CPUs through
PoCL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...support.errors import UsageError
from ..base import Check
from ..gpu.describe import GpuDescription
from ..gpu.on_device import PlacedText, device_parameter

if TYPE_CHECKING:
    import pyopencl as cl

    from ...codegen.clike.dialect import Dialect
    from ..gpu.device_registry import Devices
    from .device import ClDevice

#: what code is made for
KINDS = ("gpu", "processor")


class OpenClTarget(PlacedText):
    """See `tilewright.targets.base.Target`."""

    name = plain = form = "opencl"
    doc = "OpenCL C for any device with an OpenCL driver (pip install 'tilewright[opencl]')"
    kind = ""

    def configured(self, parameters: Mapping[str, str]) -> OpenClTarget:
        made = OpenClTarget()
        made.device, made.kind = device_parameter(self.plain, parameters, ("kind",)), parameters.get("kind", "")
        if "kind" in parameters and made.kind not in KINDS:
            raise UsageError(f"target opencl has no kind {made.kind!r}", hint=f"kind is one of {', '.join(KINDS)}")
        told = {"kind": made.kind, "device": made.device}
        made.name = f"{self.plain}:{','.join(f'{n}={v}' for n, v in told.items() if v)}"
        return made

    def describe(self) -> GpuDescription:
        """Drivers of processors make vectors of neighbouring threads, which longer accesses of a thread keep apart."""
        kind = self.kind or self.kind_here()
        if kind == "processor":
            return GpuDescription(vector_bytes=4, threads_in_turn=True)
        return GpuDescription(byte_products=True)

    def kind_here(self) -> str:
        """That of the device that would run here; a GPU where there is none."""
        from .device import kind_of

        return kind_of(self.device)

    def dialect(self) -> Dialect:
        from ...codegen.clike.opencl import OPENCL

        return OPENCL

    def known_devices(self) -> Devices[cl.Device, ClDevice]:
        from .device import DEVICES

        return DEVICES

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        return {"OpenCL": lambda: self.known_devices().check("OpenCL")}


TARGET = OpenClTarget()
