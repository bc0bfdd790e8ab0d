"""Runs a program on a device: weights are uploaded once, a run is recorded once for each context and then replayed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...program.program import COPY, BufferRef, Call
from ...program.states import StateBuffers
from ...program.timeline import CALL, JOB_BEGIN, JOB_END, PER_CALL, RUN_BEGIN, RUN_END
from ..base import Context, ProgramRunner
from .constants import Uploaded, uploaded
from .device import BufferSlice, Device, DeviceKernel, Dispatch, Move, Run, Step, StepTimes
from .kernels import GpuKernel
from .states import DeviceState

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.program import StateInfo, TensorInfo
    from ...program.timeline import Stamps


class GpuRunner(ProgramRunner):
    """A package's kernels and constants on a device (`tilewright.targets.base.ProgramRunner`).

    The device is asked for when the program first runs: code can be made where there is none. `unpack` makes a kernel
    of an object of the package; `states` are the buffers of its states.
    """

    threads = 1

    def __init__(
        self,
        package: Package,
        find: Callable[[], Device],
        unpack: Callable[[bytes], DeviceKernel] = GpuKernel.unpack,
        states: StateBuffers | None = None,
    ) -> None:
        self.package, self.program, self.find = package, package.program, find
        self.states = StateBuffers(package.program.states) if states is None else states
        self.kernels = {s: unpack(package.objects[s]) for s in package.program.symbols}
        self.constants: list[Uploaded] = []
        self.device: Device | None = None
        self.beginning = threading.Lock()

    def open_device(self) -> Device:
        """The device, with the constants in its memory."""
        with self.beginning:
            if self.device is None:
                device = self.find()
                self.constants = [uploaded(device, c) for c in self.package.constants]
                self.device = device
        return self.device

    def context(self) -> GpuContext:
        return GpuContext(self, self.open_device())

    def timed(self) -> GpuRunner:
        """Itself: the device's clock is asked in those runs that are given memory for time stamps."""
        self.open_device().check_clock()
        return self


class DeviceMemory:
    """What one run at a time of a program has on a device. `kernels` are the device's by symbol, `states` those that
    lie there, by their numbers in the program; `spaces` has the buffers of each space by number. Where a state has two
    buffers there is a recording for each of them that has the value."""

    def __init__(self, device: Device, kernels: Mapping[str, DeviceKernel], states: Mapping[int, DeviceState]) -> None:
        self.device, self.kernels, self.states = device, kernels, states
        self.spaces: dict[str, Any] = {}
        self.scratch: Any = None
        self.recordings: dict[Any, Any] = {}

    def begin(self, spaces: Mapping[str, Any]) -> None:
        """With these buffers, and scratch memory for all kernels."""
        self.spaces = dict(spaces)
        scratch = max((k.scratch_bytes for k in self.kernels.values()), default=0)
        self.scratch = self.device.allocate(scratch) if scratch else None

    def part(self, ref: BufferRef) -> BufferSlice:
        """A buffer of the program that lies here."""
        if ref.space in ("state", "next"):
            state = self.states[ref.index]
            return BufferSlice(state.buffers[state.front ^ (ref.space == "next")], ref.offset, ref.nbytes)
        return BufferSlice(self.spaces[ref.space][ref.index], ref.offset, ref.nbytes)

    def steps_of(self, calls: Iterable[Call]) -> tuple[Step, ...]:
        """One for each call."""
        made: list[Step] = []
        for call in calls:
            parts = tuple(map(self.part, call.args))
            if call.symbol == COPY:
                made.append(Move(*parts))
                continue
            kernel, parts = self.kernels[call.symbol].placed(parts)
            made.append(Dispatch(kernel, parts, self.scratch if kernel.scratch_bytes else None))
        return tuple(made)

    def record_once(self, run: Callable[[], Run], *key: Any) -> Any:
        """A recording of that key, made once for each place of the states."""
        known, key = self.recordings, (*key, *(s.front for s in self.states.values()))
        if key not in known:
            made = self.device.record(run())
            known[key] = made
        return known[key]


class GpuContext(Context, DeviceMemory):
    """Memory on the device for one run at a time, and the run, recorded."""

    def __init__(self, runner: GpuRunner, device: Device) -> None:
        self.runner, self.program = runner, runner.program
        states = {n: DeviceState.of(device, b) for n, b in enumerate(runner.states.buffers)}
        super().__init__(device, runner.kernels, states)
        for state, info in self.with_infos():
            if info.swapped:
                state.double()
        self.prepare()

    def with_infos(self) -> Iterable[tuple[DeviceState, StateInfo]]:
        """The states, and what the program says of each."""
        return zip(self.states.values(), self.program.states, strict=True)

    def prepare(self) -> None:
        """Allocates memory, and records the run."""
        program, device = self.program, self.device
        spaces = {
            "input": [device.allocate(t.nbytes) for t in program.inputs],
            "output": [device.allocate(t.nbytes) for t in program.outputs],
            "constant": [c.buffer for c in self.runner.constants],
            "arena": [device.allocate(program.arena_size)],
        }
        self.begin(spaces)
        self.recorded()

    # ---- what is run ----

    def recorded(self) -> object:
        """The run with the values of the states where they are now."""
        return self.record_once(lambda: Run(self.steps(), self.whole("input"), self.whole("output")))

    def whole(self, space: str) -> tuple[BufferSlice, ...]:
        """All bytes of the inputs or the outputs that have any."""
        pairs = zip(self.spaces[space], self.tensors(space), strict=True)
        return tuple(BufferSlice(buffer, 0, t.nbytes) for buffer, t in pairs if t.nbytes)

    def tensors(self, space: str) -> Sequence[TensorInfo]:
        """The inputs or the outputs."""
        return self.program.inputs if space == "input" else self.program.outputs

    def steps(self) -> tuple[Step, ...]:
        """One for each call of the program."""
        return self.steps_of(self.program.calls)

    # ---- running ----

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """See `tilewright.targets.base.Context`."""
        given, wanted = _arrays(self.tensors("input"), inputs), _arrays(self.tensors("output"), outputs)
        for state in self.states.values():
            state.bring()
        recorded = self.recorded()
        try:
            if stamps is None:
                self.device.run(recorded, given, wanted)
            else:
                fill(stamps, self.device.run_timed(recorded, given, wanted))
        except BaseException:
            for state, info in self.with_infos():
                state.failed(in_place=bool(info.output) and not info.swapped)
            raise
        for state, info in self.with_infos():
            state.done(info.swapped)

    def close(self) -> None:
        """Buffers go with the context."""
        self.spaces, self.recordings, self.scratch = {}, {}, None


def fill(stamps: Stamps, times: StepTimes) -> None:
    """Write a run's times as stamps of one thread; a stamp of 0 would mean that there is none."""
    stamps.check(1, len(times.steps))
    row, steps = stamps.ticks[0], np.rint(times.steps).astype(np.int64) + 1
    row[RUN_BEGIN], row[RUN_END] = 1, round(times.total) + 1
    row[JOB_BEGIN], row[JOB_END] = (steps.min(), steps.max()) if len(steps) else (1, 1)
    table = row[CALL : CALL + PER_CALL * len(steps)].reshape(-1, PER_CALL)
    table[:, 1:] = steps


def _arrays(tensors: Sequence[TensorInfo], addresses: Sequence[int]) -> list[np.ndarray]:
    """The bytes of those that have any."""
    return [_bytes(at, t.nbytes) for t, at in zip(tensors, addresses, strict=True) if t.nbytes]


def _bytes(at: int, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(at))
