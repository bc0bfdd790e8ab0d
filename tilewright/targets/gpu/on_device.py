"""Base of GPU targets that run here: device selection, the roofline's measurement, and the loading of packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...support.errors import UsageError
from ..base import Target
from .target import TextTarget

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

    from ...program.package import Package
    from ...program.states import StateBuffers
    from ...schedule.ceilings import Ceilings
    from ...schedule.nest import Nest
    from .ceilings import CeilingBench
    from .device import Device, DeviceKernel
    from .device_registry import Devices
    from .runner import GpuRunner


class OnDevice(Target):
    """A part of a target: its device is the first, or the one that the parameter ``device`` names by its number or by a
    part of its name, as in ``opencl:device=1``."""

    device = ""
    keeps_states = takes_sizes = True
    shares = "device"

    def toolchain(self) -> str:
        """See `tilewright.targets.base.Target`: the driver, which compiles what we write, has no part in it."""
        from ...codegen.llvm.assemble import toolchain

        return toolchain()

    def built(self, nest: Nest) -> DeviceKernel:
        """A kernel as devices take it, of a finished nest."""
        raise NotImplementedError

    def unpack(self, data: bytes) -> DeviceKernel:
        """A kernel of a package."""
        from .kernels import GpuKernel

        return GpuKernel.unpack(data)

    def known_devices(self) -> Devices[Any, Any]:
        """All devices of the driver."""
        raise NotImplementedError

    def open_device(self) -> Device:
        """The device, for this process; UsageError if it is not there."""
        return self.known_devices().open(self.device)

    def device_list(self) -> Sequence[str]:
        return self.known_devices().names()

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> GpuRunner:
        from .open_runner import OpenGpuRunner
        from .runner import GpuRunner

        kind = GpuRunner if package.program.open is None else OpenGpuRunner
        return kind(package, self.open_device, self.unpack, states)

    def machine_name(self) -> str:
        device = self.open_device()
        return f"{device.name}, driver {device.version}"

    def measure_ceilings(self, threads: int) -> Ceilings:
        from .ceilings import measure

        return measure(self.bench(), self.machine_name())

    def bench(self) -> CeilingBench:
        """What the ceilings of the device are measured with."""
        from .ceilings import CeilingBench

        return CeilingBench(self.built, self.describe(), self.open_device())


def device_parameter(target: str, parameters: Mapping[str, str], others: Sequence[str] = ()) -> str:
    """The value of ``device``; UsageError for a parameter that is neither it nor one of the `others`."""
    known = (*others, "device")
    if unknown := sorted(set(parameters) - set(known)):
        raise UsageError(f"{target} has no parameter {unknown[0]!r}", hint=f"parameters: {', '.join(known)}")
    value = parameters.get("device", "")
    if "device" in parameters and not value:
        raise UsageError(
            "the device has no name", hint=f"{target}:device=0, or a part of its name: `tilewright targets`"
        )
    return value


class PlacedText(TextTarget, OnDevice):
    """A target with a dialect, whose only parameter is ``device``."""

    plain = ""
    name = ""

    def thread_count(self, nest: Nest, constants: frozenset[str]) -> int:
        """See `tilewright.targets.base.Target`: the text is printed to see that it can be."""
        from ...codegen.clike.printer import emit

        return emit(nest, self.dialect(), constants).launch.all_threads

    def configured(self, parameters: Mapping[str, str]) -> Self:
        made = type(self)()
        made.device = device_parameter(self.plain, parameters)
        made.name = f"{self.plain}:device={made.device}"
        return made


__all__ = ["OnDevice", "PlacedText", "device_parameter"]
