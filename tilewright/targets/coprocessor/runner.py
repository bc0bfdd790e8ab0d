"""Runs programs of a host and a coprocessor, which take turns on the same memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...program.program import Call
from ...support.aligned import aligned_empty
from ...support.errors import UsageError
from ..base import Context, ProgramRunner, Target, not_at_once
from .parts import parts

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.timeline import Stamps


class Other(Protocol):
    """The coprocessor, for one run at a time."""

    def run_call(self, number: int, call: Call, memory: Sequence[np.ndarray]) -> None:
        """Run call `number` of the program on the bytes of its arguments, those that it writes change."""


class PartsRunner:
    """A program loaded into this process (`targets.base.ProgramRunner`); `taken` are the symbols that the other
    processor runs; those that time themselves say in `no_clock` how."""

    seconds_per_tick = 1e-9
    no_clock = "its time is not measured"

    def __init__(self, package: Package, threads: int, taken: Set[str], host: Target | None) -> None:
        self.package, self.threads = package, threads
        self.program = package.program
        self.parts = list(parts(self.program, taken))
        self.runners: dict[int, ProgramRunner] = {}
        for n, part in enumerate(self.parts):
            if part.program is not None:
                if host is None:
                    raise UsageError(f"{package.target} alone cannot run {part.calls[0].symbol}", stage="load")
                head = f"part{n}/"
                own = {k.removeprefix(head): v for k, v in package.objects.items() if k.startswith(head)}
                its = replace(package, target=host.name, program=part.program, objects=own)
                self.runners[n] = host.load(its, threads)

    def other(self) -> Other:
        """The coprocessor, for one more context."""
        raise NotImplementedError

    def context(self) -> PartsContext:
        return PartsContext(self)

    def timed(self) -> PartsRunner:
        raise UsageError(
            f"there is no clock for kernels beside {self.package.target.partition('+')[0]}",
            stage="run",
            hint=self.no_clock,
        )


class PartsContext:
    """Memory for one run at a time: the arena, the coprocessor, the host's contexts."""

    enter = staticmethod(not_at_once)

    def __init__(self, runner: PartsRunner) -> None:
        self.runner = runner
        self.arena = aligned_empty(max(runner.program.arena_size, 1))
        self.other = runner.other()
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
            (call,) = part.calls
            memory = [spaces[r.space][r.index][r.offset : r.offset + r.nbytes] for r in call.args]
            self.other.run_call(part.first, call, memory)

    def judge(self) -> None:
        """Runs do not differ."""

    def close(self) -> None:
        for c in self.contexts.values():
            c.close()


def _bytes(address: int, size: int) -> np.ndarray:
    if not size:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))
