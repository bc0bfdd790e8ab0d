"""OpenCL: kernels in OpenCL C, compiled by the driver of whatever device is there (GPUs, and CPUs through PoCL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..base import Check
from ..gpu.on_device import PlacedText

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ..gpu.opened import Devices


class OpenClTarget(PlacedText):
    """See `tilewright.targets.base.Target`."""

    name = plain = form = "opencl"
    doc = "OpenCL C for any device with an OpenCL driver (pip install 'tilewright[opencl]')"

    def dialect(self) -> Dialect:
        from ...codegen.clike.opencl import OPENCL

        return OPENCL

    def known_devices(self) -> Devices[Any, Any]:
        from .device import DEVICES

        return DEVICES

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """See `tilewright.targets.base.Examinable`."""
        return {"OpenCL": lambda: self.known_devices().check("OpenCL")}


TARGET = OpenClTarget()
