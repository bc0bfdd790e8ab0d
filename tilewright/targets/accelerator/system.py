"""Programs of a host and a chip: who runs which calls, and running them.

Calls of the host between two of the chip become one native function: a program of their own, whose last output is the
arena. The chip's kernels run in the simulator, on the same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...program.program import COPY, BufferRef, Call, Program, TensorInfo
from ...support.aligned import aligned_empty
from ...support.errors import UsageError
from ..base import Context, Target, not_at_once
from .binary import MAGIC, ChipProgram, Formats
from .functional import Functional
from .timing import Timing, simulate

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.timeline import Stamps


class ChipMachine(Protocol):
    """What can run programs of a chip."""

    def run(self, program: ChipProgram, arguments: Sequence[np.ndarray]) -> object:
        """Run a program on the bytes of its arguments, which change."""


@dataclass(frozen=True)
class Part:
    """Consecutive calls of the host, as a program of their own, or one call of the chip."""

    calls: tuple[Call, ...]
    program: Program | None


def parts(program: Program, on_chip: set[str]) -> Iterator[Part]:
    """The calls of a program in order, cut where the chip begins and ends."""
    for chip, run in groupby(program.calls, key=lambda c: c.symbol in on_chip):
        calls = tuple(run)
        if chip:
            yield from (Part((c,), None) for c in calls)
        else:
            yield Part(calls, of_host(program, calls))


def of_host(program: Program, calls: Sequence[Call]) -> Program:
    """A program of some of the calls: the arena comes as one more output."""
    arena = TensorInfo("arena", (program.arena_size,), "ui8")
    last = len(program.outputs)

    def ref(r: BufferRef) -> BufferRef:
        return replace(r, space="output", index=last) if r.space == "arena" else r

    moved = tuple(
        replace(c, args=tuple(map(ref, c.args)), scratch=None if c.scratch is None else ref(c.scratch)) for c in calls
    )
    return replace(program, outputs=(*program.outputs, arena), calls=moved, arena_size=0, arena_bound=0)


def link(program: Program, objects: dict[str, bytes], host: Target, description: Any) -> dict[str, bytes]:
    """The chip's programs, and the host's objects of each part."""
    chip = {s for s, data in objects.items() if data.startswith(MAGIC)}
    linked = {s: objects[s] for s in program.symbols if s in chip}
    for n, part in enumerate(parts(program, chip)):
        if part.program is not None:
            own = {c.symbol: objects[c.symbol] for c in part.calls if c.symbol != COPY}
            made = host.link(part.program, own, description)
            linked |= {f"part{n}/{name}": data for name, data in made.items()}
    return linked


class SystemRunner:
    """A program loaded into this process (`tilewright.targets.base.Runner`)."""

    seconds_per_tick = 1e-9

    def __init__(self, package: Package, threads: int, formats: Formats, host: Target | None) -> None:
        self.package, self.formats, self.threads = package, formats, threads
        self.program = package.program
        #: what runs the chip's programs: the simulator, or a machine that takes its place
        self.machine: Callable[[Formats], ChipMachine] = Functional
        data = {s: d for s, d in package.objects.items() if d.startswith(MAGIC)}
        self.programs: dict[str, ChipProgram] = {s: formats.disassemble(d) for s, d in data.items()}
        self.parts = list(parts(self.program, set(self.programs)))
        self.runners: dict[int, Any] = {}
        for n, part in enumerate(self.parts):
            if part.program is not None:
                if host is None:
                    raise UsageError(f"the chip alone cannot run {part.calls[0].symbol}", stage="load")
                head = f"part{n}/"
                own = {k.removeprefix(head): v for k, v in package.objects.items() if k.startswith(head)}
                its = replace(package, target=host.name, program=part.program, objects=own)
                self.runners[n] = host.load(its, threads)

    def context(self) -> SystemContext:
        return SystemContext(self)

    def timed(self) -> SystemRunner:
        raise UsageError("a simulated chip has no clock", stage="run", hint="its cycles are in `explain`")

    def timings(self) -> dict[str, Timing]:
        """The time of each kernel of the chip, by symbol."""
        return {s: simulate(self.formats, p) for s, p in self.programs.items()}


class SystemContext:
    """Memory for one run at a time: the arena, the chip's memories, the host's contexts."""

    enter = staticmethod(not_at_once)

    def __init__(self, runner: SystemRunner) -> None:
        self.runner = runner
        self.arena = aligned_empty(max(runner.program.arena_size, 1))
        self.chip = runner.machine(runner.formats)
        self.contexts: dict[int, Context] = {n: r.context() for n, r in runner.runners.items()}

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        program = self.runner.program
        spaces = {
            "input": [_bytes(a, t.nbytes) for a, t in zip(inputs, program.inputs, strict=True)],
            "output": [_bytes(a, t.nbytes) for a, t in zip(outputs, program.outputs, strict=True)],
            "constant": [c.reshape(-1).view(np.uint8) for c in self.runner.package.constants],
            "arena": [self.arena],
        }
        for n, part in enumerate(self.runner.parts):
            if part.program is not None:
                self.contexts[n].run(inputs, [*outputs, self.arena.ctypes.data])
                continue
            for call in part.calls:
                memory = [spaces[r.space][r.index][r.offset : r.offset + r.nbytes] for r in call.args]
                self.chip.run(self.runner.programs[call.symbol], memory)

    def judge(self) -> None:
        """Runs do not differ."""

    def close(self) -> None:
        for c in self.contexts.values():
            c.close()


def _bytes(address: int, size: int) -> np.ndarray:
    if not size:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))
