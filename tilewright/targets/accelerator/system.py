"""Runs programs of a host and a simulated accelerator on one memory: native code for the host's kernels, the simulator
for the chip's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...program.program import Call
from ..base import Target
from ..coprocessor.runner import PartsRunner
from .binary import MAGIC, ChipProgram, Formats
from .functional import Functional
from .timing import ProgramTiming, simulate

if TYPE_CHECKING:
    from ...program.package import Package
    from .target import ChipTarget


class ChipMachine(Protocol):
    """What can run programs of a chip."""

    def run(self, program: ChipProgram, arguments: Sequence[np.ndarray]) -> object:
        """Run a program on the bytes of its arguments, which change."""


def on_chip(objects: Mapping[str, bytes]) -> Set[str]:
    """The symbols that are programs of a chip."""
    return {s for s, data in objects.items() if data.startswith(MAGIC)}


@dataclass(frozen=True)
class ChipCalls:
    """A chip that runs calls of a program (`beside.runner.Other`)."""

    machine: ChipMachine | None
    programs: Mapping[str, ChipProgram]

    def run_call(self, number: int, call: Call, memory: Sequence[np.ndarray]) -> None:
        assert self.machine is not None
        self.machine.run(self.programs[call.symbol], memory)


class SystemRunner(PartsRunner):
    """The `targets.base.ProgramRunner` of a host and a chip; the simulator is loaded only if the chip runs a part."""

    no_clock = "a chip's cycles are in `explain`"

    def __init__(self, package: Package, threads: int, target: ChipTarget, host: Target | None) -> None:
        self.target = target
        #: what runs the chip's programs: the simulator, or a machine that takes its place
        self.machine: Callable[[Formats], ChipMachine] = Functional
        chip = on_chip(package.objects)
        self.programs = {s: self.formats.disassemble(d) for s, d in package.objects.items() if s in chip}
        super().__init__(package, threads, chip, host)

    @property
    def formats(self) -> Formats:
        return self.target.formats

    def other(self) -> ChipCalls:
        return ChipCalls(self.machine(self.formats) if self.programs else None, self.programs)

    def timings(self) -> dict[str, ProgramTiming]:
        """The time of each kernel of the chip, by symbol."""
        return {s: simulate(self.formats, p) for s, p in self.programs.items()}
