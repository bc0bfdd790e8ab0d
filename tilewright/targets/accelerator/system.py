"""Runs programs of a host and a simulated accelerator on one memory: native code for the host's kernels, the simulator
for the chip's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...program.program import Call
from ...support.errors import UsageError
from ..base import Target
from ..multi_device.runner import MultiDeviceRunner
from .binary import MAGIC, ChipProgram, Formats
from .functional import Functional

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.states import StateBuffers


class ChipMachine(Protocol):
    """What can run programs of a chip."""

    def run(self, program: ChipProgram, arguments: Sequence[np.ndarray]) -> object:
        """Run a program on the bytes of its arguments, which change."""


def on_chip(objects: Mapping[str, bytes]) -> Set[str]:
    """The symbols that are programs of a chip."""
    return {s for s, data in objects.items() if data.startswith(MAGIC)}


@dataclass(frozen=True)
class ChipCalls:
    """A chip that runs calls of a program (`multi_device.runner.Other`)."""

    machine: ChipMachine | None
    programs: Mapping[str, ChipProgram]

    def run_call(self, number: int, call: Call, memory: Sequence[np.ndarray]) -> None:
        assert self.machine is not None
        self.machine.run(self.programs[call.symbol], memory)


class SystemRunner(MultiDeviceRunner):
    """The `targets.base.ProgramRunner` of a host and a chip; the simulator is loaded only if the chip runs a part.
    `formats` gives the chip's; one that this process was not given raises an error then."""

    def __init__(
        self,
        package: Package,
        threads: int,
        formats: Callable[[], Formats],
        host: Target | None,
        states: StateBuffers | None,
    ) -> None:
        #: what runs the chip's programs: the simulator, or a machine that takes its place
        self.machine: Callable[[Formats], ChipMachine] = Functional
        chip = on_chip(package.objects)
        self.formats = formats
        self.programs = {s: formats().disassemble(package.objects[s]) for s in chip}
        super().__init__(package, threads, [host], package.description, states, chip)

    def other(self) -> ChipCalls:
        return ChipCalls(self.machine(self.formats()) if self.programs else None, self.programs)

    def timed(self) -> SystemRunner:
        raise UsageError(
            f"there is no clock for kernels beside {self.package.target.partition('+')[0]}",
            stage="run",
            hint="a chip's cycles are in `explain`",
        )
