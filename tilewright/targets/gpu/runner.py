"""Running a program on a device: constants are uploaded once, the calls of a run are recorded once for each context."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...program.program import COPY, BufferRef
from ...support.errors import UsageError
from ..base import not_at_once
from .device import Device, Dispatch, Move, Part, Step
from .kernels import GpuKernel

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.timeline import Stamps


class GpuRunner:
    """A package's kernels and constants on a device (`tilewright.targets.base.Runner`)."""

    seconds_per_tick = 1e-9
    threads = 1

    def __init__(self, package: Package, device: Device) -> None:
        self.program, self.device = package.program, device
        self.kernels = {s: GpuKernel.unpack(package.objects[s]) for s in package.program.symbols}
        self.constants = [device.allocate(c.nbytes) for c in package.constants]
        for buffer, c in zip(self.constants, package.constants, strict=True):
            if c.nbytes:
                device.write(buffer, _bytes(c.ctypes.data, c.nbytes))

    def context(self) -> GpuContext:
        return GpuContext(self)

    def timed(self) -> GpuRunner:
        raise UsageError(
            f"kernels on {self.device.name} are not timed", stage="run", hint="use the profiler of the driver"
        )


class GpuContext:
    """Memory on the device for one run at a time, and the run, recorded."""

    enter = staticmethod(not_at_once)

    def __init__(self, runner: GpuRunner) -> None:
        self.device, program = runner.device, runner.program
        self.program = program
        self.spaces = {
            "input": [self.device.allocate(t.nbytes) for t in program.inputs],
            "output": [self.device.allocate(t.nbytes) for t in program.outputs],
            "constant": runner.constants,
            "arena": [self.device.allocate(program.arena_size)],
        }
        scratch = max((k.scratch_bytes for k in runner.kernels.values()), default=0)
        self.scratch = self.device.allocate(scratch) if scratch else None
        self.recorded = self.device.record(list(self.steps(runner)))

    def steps(self, runner: GpuRunner) -> Sequence[Step]:
        made: list[Step] = []
        for call in self.program.calls:
            parts = tuple(map(self.part, call.args))
            if call.symbol == COPY:
                made.append(Move(*parts))
                continue
            kernel = runner.kernels[call.symbol]
            made.append(Dispatch(kernel, parts, self.scratch if kernel.scratch else None))
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
