"""Run-time memory on one of several devices: its arena, and its recorded program segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...program.program import COPY, BufferRef, Call, Program
from ..gpu.constants import Uploaded
from ..gpu.device import BufferSlice, Device, Dispatch, Move, Run, Step
from ..gpu.states import DeviceState
from .segments import Segment, Transfer

if TYPE_CHECKING:
    from ..gpu.device import DeviceKernel


class DeviceMemory:
    """Buffers of one device for one run of a program at a time. `kernels` are the device's by symbol, `constants` and
    `states` those that lie there, by their numbers in the program."""

    def __init__(
        self,
        device: Device,
        number: int,
        program: Program,
        kernels: Mapping[str, DeviceKernel],
        constants: Mapping[int, Uploaded],
        states: Mapping[int, DeviceState],
    ) -> None:
        self.device, self.kernels, self.constants, self.states = device, kernels, constants, states
        self.arena = device.allocate(program.devices[number].arena_size)
        scratch = max((k.scratch_bytes for k in kernels.values()), default=0)
        self.scratch = device.allocate(scratch) if scratch else None
        self.recordings: dict[tuple[object, ...], object] = {}

    def part(self, ref: BufferRef) -> BufferSlice:
        """A buffer of the program that lies here."""
        if ref.space in ("state", "next"):
            state = self.states[ref.index]
            buffer = state.buffers[state.front ^ (ref.space == "next")]
        else:
            buffer = self.constants[ref.index].buffer if ref.space == "constant" else self.arena
        return BufferSlice(buffer, ref.offset, ref.nbytes)

    def recorded(self, key: object, run: Callable[[], Run]) -> object:
        """A recording, made once for each place of the states."""
        key = (key, *(s.front for s in self.states.values()))
        if key not in self.recordings:
            self.recordings[key] = self.device.record(run())
        return self.recordings[key]

    def whole(self, number: int, segment: Segment) -> object:
        """A segment with its copies from and to the host, recorded."""
        return self.recorded(
            number,
            lambda: Run(
                self.steps(segment.calls),
                tuple(self.part(t.device) for t in segment.uploads),
                tuple(self.part(t.device) for t in segment.downloads),
            ),
        )

    def calls(self, number: int, segment: Segment) -> object:
        """The calls of a segment alone."""
        return self.recorded((number, "calls"), lambda: Run(self.steps(segment.calls)))

    def copy(self, t: Transfer, to_device: bool) -> object:
        """One copy alone."""
        part = (self.part(t.device),)
        run = Run((), inputs=part) if to_device else Run((), outputs=part)
        return self.recorded((t.number, to_device), lambda: run)

    def steps(self, calls: Sequence[tuple[int, Call]]) -> tuple[Step, ...]:
        """One for each call."""
        made: list[Step] = []
        for _, call in calls:
            parts = tuple(map(self.part, call.args))
            if call.symbol == COPY:
                made.append(Move(*parts))
                continue
            kernel, parts = self.kernels[call.symbol].placed(parts)
            made.append(Dispatch(kernel, parts, self.scratch if kernel.scratch_bytes else None))
        return tuple(made)


__all__ = ["DeviceMemory"]
