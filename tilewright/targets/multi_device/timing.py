"""Run times on several devices: each segment by its device's clock, merged on one time line in nanoseconds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from ...program.timeline import CALL, JOB_BEGIN, JOB_END, PER_CALL, RUN_BEGIN, RUN_END, Stamps
from ..gpu.device import StepTimes
from .segments import Segment

if TYPE_CHECKING:
    from ..base import ProgramRunner


class RunClock:
    """Merges the clocks of the devices into the time stamps of one run; a stamp of 0 would mean that there is none."""

    def __init__(self, stamps: Stamps, threads: int, calls: int) -> None:
        stamps.check(threads, calls)
        self.rows = stamps.ticks
        self.start = perf_counter_ns() - 1
        self.rows[0, [RUN_BEGIN, JOB_BEGIN]] = 1
        self.rows[1:, [JOB_BEGIN, JOB_END]] = 1

    def now(self) -> int:
        return perf_counter_ns() - self.start

    def stamp(self, thread: int, number: int, begin: float, end: float) -> None:
        """When a call ran; the end of its last part counts where it has several."""
        at = CALL + PER_CALL * number
        self.rows[thread, at + 1] = self.rows[thread, at + 1] or max(round(begin), 1)
        self.rows[thread, at + 2] = max(round(end), 1)

    @contextlib.contextmanager
    def call(self, number: int) -> Iterator[None]:
        """What is done within is a call."""
        begin = self.now()
        yield
        self.stamp(0, number, begin, self.now())

    def device(self, segment: Segment, run: Callable[[], StepTimes]) -> None:
        """The calls of a segment, by the device's clock from where it began."""
        begin = self.now()
        for (number, _), (first, last) in zip(segment.calls, run().steps, strict=True):
            self.stamp(0, number, begin + first, begin + last)

    def host(self, runner: ProgramRunner, segment: Segment, run: Callable[[Stamps], None]) -> None:
        """The calls of one of the host's segments, by the stamps that its own code writes."""
        begin, own = self.now(), Stamps(runner.threads, len(segment.calls))
        run(own)
        found = own.ticks[:, CALL : CALL + PER_CALL * own.calls].reshape(own.threads, own.calls, PER_CALL)
        passed = (found - own.ticks[0, RUN_BEGIN]) * (runner.seconds_per_tick * 1e9)
        times = np.where(found == 0, 0, np.maximum(np.rint(passed + begin), 1)).astype(np.int64)
        for i, (number, _) in enumerate(segment.calls):
            at = CALL + PER_CALL * number
            self.rows[: own.threads, at : at + PER_CALL] = times[:, i]

    def end(self) -> None:
        """The run is over."""
        self.rows[0, [RUN_END, JOB_END]] = self.now()


__all__ = ["RunClock"]
