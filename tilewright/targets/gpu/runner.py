"""Running a program on a device: constants are uploaded once, the calls of a run are recorded once for each context."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...program.program import COPY, BufferRef
from ...support.errors import UsageError
from ..base import not_at_once
from .device import Device, Dispatch, Kernel, Move, Part, Step
from .kernels import GpuKernel

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.timeline import Stamps


class GpuRunner:
    """A package's kernels and constants on a device (`tilewright.targets.base.Runner`).

    The device is asked for when the program first runs: code can be made where there is none. `unpack` makes a kernel
    of an object of the package.
    """

    seconds_per_tick = 1e-9
    threads = 1

    def __init__(
        self,
        package: Package,
        find: Callable[[], Device],
        unpack: Callable[[bytes], Kernel] = GpuKernel.unpack,
    ) -> None:
        self.package, self.program, self.find = package, package.program, find
        self.kernels = {s: unpack(package.objects[s]) for s in package.program.symbols}
        self.constants: list[Any] = []
        self.device: Device | None = None
        self.beginning = threading.Lock()

    def context(self) -> GpuContext:
        with self.beginning:
            if self.device is None:
                device = self.find()
                self.constants = [device.allocate(c.nbytes) for c in self.package.constants]
                for buffer, c in zip(self.constants, self.package.constants, strict=True):
                    if c.nbytes:
                        device.write(buffer, _bytes(c.ctypes.data, c.nbytes))
                self.device = device
        return GpuContext(self, self.device)

    def timed(self) -> GpuRunner:
        raise UsageError("kernels on a GPU are not timed", stage="run", hint="use the profiler of its driver")


class GpuContext:
    """Memory on the device for one run at a time, and the run, recorded."""

    enter = staticmethod(not_at_once)

    def __init__(self, runner: GpuRunner, device: Device) -> None:
        self.device, program = device, runner.program
        self.program = program
        self.spaces = {
            "input": [device.allocate(t.nbytes) for t in program.inputs],
            "output": [device.allocate(t.nbytes) for t in program.outputs],
            "constant": runner.constants,
            "arena": [device.allocate(program.arena_size)],
        }
        scratch = max((k.scratch_bytes for k in runner.kernels.values()), default=0)
        self.scratch = device.allocate(scratch) if scratch else None
        self.recorded = device.record(list(self.steps(runner)))

    def steps(self, runner: GpuRunner) -> Sequence[Step]:
        made: list[Step] = []
        for call in self.program.calls:
            parts = tuple(map(self.part, call.args))
            if call.symbol == COPY:
                made.append(Move(*parts))
                continue
            kernel = runner.kernels[call.symbol]
            made.append(Dispatch(kernel, parts, self.scratch if kernel.scratch_bytes else None))
        return made

    def part(self, ref: BufferRef) -> Part:
        return Part(self.spaces[ref.space][ref.index], ref.offset, ref.nbytes)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """See `tilewright.targets.base.Context`."""
        for t, buffer, at in zip(self.program.inputs, self.spaces["input"], inputs, strict=True):
            if t.nbytes:
                self.device.write(buffer, _bytes(at, t.nbytes))
        self.device.run(self.recorded)
        for t, buffer, at in zip(self.program.outputs, self.spaces["output"], outputs, strict=True):
            if t.nbytes:
                self.device.read(buffer, _bytes(at, t.nbytes))

    def judge(self) -> None:
        """Runs do not differ."""

    def close(self) -> None:
        """Buffers go with the context."""
        self.spaces, self.recorded, self.scratch = {}, None, None


def _bytes(at: int, nbytes: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(at))
