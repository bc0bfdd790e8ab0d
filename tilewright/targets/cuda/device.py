"""NVIDIA's GPU as a device (`targets.gpu.device.Device`): launches through the driver, one a call of a kernel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...program.package import Package
from ...support.errors import PackageError
from ..gpu.device import Dispatch, Part, Step
from ..gpu.runner import GpuRunner
from .driver import Driver
from .stages import Launched
from .tensor_maps import TensorMaps


def runner(package: Package, driver: Callable[[], Driver] = Driver) -> GpuRunner:
    """A package; the driver is asked for when it first runs, so that code can be made where there is no GPU."""

    def device() -> CudaDevice:
        found = driver()
        check(str(package.description["sm"]), *found.capability())
        return CudaDevice(found)

    return GpuRunner(package, device, Launched.from_bytes)


def check(wanted: str, major: int, minor: int) -> None:
    """PackageError if a GPU of this generation cannot run the code."""
    number = int("".join(c for c in wanted if c.isdigit()))
    own = 10 * major + minor
    if number != own if wanted.endswith("a") else number > own:
        raise PackageError(
            f"the code is for {wanted}, the GPU is sm_{major}{minor}", stage="load", hint="compile it for this GPU"
        )


class Memory:
    """Bytes of the GPU, which go when nobody has them any more."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.address = driver.allocate(nbytes)
        weakref.finalize(self, _free, driver, self.address).atexit = False  # the driver goes first


def _free(driver: Driver, address: int) -> None:
    driver.enter()
    driver.free(address)


class CudaDevice:
    """See the file. The driver's context is made that of whichever thread calls."""

    name = "NVIDIA's GPU"

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.functions: dict[str, Any] = {}
        self.maps = TensorMaps(driver)

    def allocate(self, nbytes: int) -> Memory:
        self.driver.enter()
        return Memory(self.driver, nbytes)

    def write(self, buffer: Memory, data: np.ndarray) -> None:
        self.driver.enter()
        self.driver.to_device(buffer.address, data.ctypes.data, data.nbytes)

    def read(self, buffer: Memory, out: np.ndarray) -> None:
        self.driver.enter()
        self.driver.wait()
        self.driver.to_host(out.ctypes.data, buffer.address, out.nbytes)

    def record(self, steps: Sequence[Step]) -> list[tuple[Step, Any]]:
        self.driver.enter()
        return [(s, self.function(s.kernel) if isinstance(s, Dispatch) else None) for s in steps]

    def function(self, kernel: Launched) -> Any:
        """The driver's code of a kernel."""
        if kernel.ptx not in self.functions:
            self.functions[kernel.ptx] = self.driver.load(kernel.ptx, kernel.name, kernel.shared)
        return self.functions[kernel.ptx]

    def run(self, recorded: list[tuple[Step, Any]]) -> None:
        self.driver.enter()
        for step, function in recorded:
            if isinstance(step, Dispatch):
                k = step.kernel
                arguments = [_place(p) for p in step.arguments]
                maps = self.maps.of(k, arguments)
                self.driver.launch(function, k.grid, k.block, k.shared, [*arguments, *maps])
            else:
                self.driver.copy(_place(step.target), _place(step.source), step.source.nbytes)


def _place(part: Part) -> int:
    return int(part.buffer.address) + part.offset
