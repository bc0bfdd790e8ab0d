"""Run-time memory on one of several devices: its arena, and its recorded program segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...program.program import Program
from ..gpu.constants import Uploaded
from ..gpu.device import Device, Run
from ..gpu.runner import DeviceMemory
from ..gpu.states import DeviceState
from .segments import Segment, Transfer


class SegmentMemory(DeviceMemory):
    """Buffers of one device for one run of a program at a time. `kernels` are the device's by symbol, `constants` and
    `states` those that lie there, by their numbers in the program."""

    def __init__(
        self,
        device: Device,
        number: int,
        program: Program,
        kernels: Mapping[str, Any],
        constants: Mapping[int, Uploaded],
        states: Mapping[int, DeviceState],
    ) -> None:
        super().__init__(device, kernels, states)
        arena = {number: device.allocate(program.devices[number].arena_size)}
        self.begin({"arena": arena, "constant": {n: c.buffer for n, c in constants.items()}})

    def whole(self, number: int, segment: Segment) -> Any:
        """A segment with its copies from and to the host, recorded."""
        return self.record_once(
            lambda: Run(
                self.steps_of(c for _, c in segment.calls),
                tuple(self.part(t.device) for t in segment.uploads),
                tuple(self.part(t.device) for t in segment.downloads),
            ),
            number,
        )

    def calls(self, number: int, segment: Segment) -> Any:
        """The calls of a segment alone."""
        return self.record_once(lambda: Run(self.steps_of(c for _, c in segment.calls)), number, "calls")

    def copy(self, t: Transfer, to_device: bool) -> Any:
        """One copy alone."""
        part = (self.part(t.device),)
        run = Run((), inputs=part) if to_device else Run((), outputs=part)
        return self.record_once(lambda: run, t.number, to_device)


__all__ = ["SegmentMemory"]
