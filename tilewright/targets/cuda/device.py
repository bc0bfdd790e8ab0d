"""Running a package on a GPU: its constants and its arena in the GPU's memory, one launch a call of a kernel.

Inputs are copied there and outputs back in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...program.package import Package
from ...program.program import COPY, BufferRef
from ...support.errors import PackageError, UsageError
from ..base import not_at_once
from .driver import Driver
from .stages import Launched


class CudaRunner:
    """A package; the driver is asked for when it first runs, so that code can be made where there is no GPU."""

    seconds_per_tick = 1e-9
    threads = 1

    def __init__(self, package: Package, driver: Driver | None = None) -> None:
        self.package, self.driver = package, driver

    def context(self) -> CudaContext:
        if self.driver is None:
            self.driver = Driver()
        wanted = str(self.package.description["sm"])
        major, minor = self.driver.capability()
        number = int("".join(c for c in wanted if c.isdigit()))
        exact = wanted.endswith("a")
        if (number != 10 * major + minor) if exact else (number > 10 * major + minor):
            raise PackageError(
                f"the code is for {wanted}, the GPU is sm_{major}{minor}", stage="load", hint="compile it for this GPU"
            )
        return CudaContext(self.package, self.driver)

    def timed(self) -> CudaRunner:
        raise UsageError("kernels on a GPU have no time stamps", stage="run", hint="use NVIDIA's profiler")


class CudaContext:
    """Memory for one run at a time."""

    enter = staticmethod(not_at_once)

    def __init__(self, package: Package, driver: Driver) -> None:
        self.program, self.driver = package.program, driver
        self.kernels = {}
        for name, data in package.objects.items():
            kernel = Launched.from_bytes(data)
            self.kernels[name] = kernel, driver.load(kernel.ptx, name, kernel.shared)
        p = self.program
        self.spaces: dict[str, list[int]] = {
            "input": [driver.allocate(t.nbytes) for t in p.inputs],
            "output": [driver.allocate(t.nbytes) for t in p.outputs],
            "constant": [driver.allocate(t.nbytes) for t in p.constants],
            "arena": [driver.allocate(p.arena_size)],
        }
        for address, array in zip(self.spaces["constant"], package.constants, strict=True):
            driver.to_device(address, array.ctypes.data, array.nbytes)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Any = None) -> None:
        driver, p = self.driver, self.program
        driver.enter()
        for to, source, t in zip(self.spaces["input"], inputs, p.inputs, strict=True):
            driver.to_device(to, source, t.nbytes)
        for call in p.calls:
            args = [self.place(ref) for ref in call.args]
            if call.symbol == COPY:
                driver.copy(args[1], args[0], call.args[0].nbytes)
            else:
                kernel, function = self.kernels[call.symbol]
                driver.launch(function, kernel.grid, kernel.block, kernel.shared, args)
        driver.wait()
        for to, source, t in zip(outputs, self.spaces["output"], p.outputs, strict=True):
            driver.to_host(to, source, t.nbytes)

    def place(self, ref: BufferRef) -> int:
        return self.spaces[ref.space][ref.index] + ref.offset

    def judge(self) -> None:
        pass

    def close(self) -> None:
        """Give the memory back; the context cannot be used any more."""
        self.driver.enter()
        for addresses in self.spaces.values():
            for address in addresses:
                self.driver.free(address)
        self.spaces = {}
