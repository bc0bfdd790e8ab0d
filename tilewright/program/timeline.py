"""The time stamps that an instrumented program writes, decoded into seconds by kernel and thread.

Every thread has a row of int64 clock ticks, a multiple of 128 bytes so that threads do not share cache lines. Slots
of a row: RUN_BEGIN and RUN_END (written by thread 0 around everything, with the wake-up of the other threads and the
last wait for them), JOB_BEGIN and JOB_END of the thread's own share, then PER_CALL for each call: arrival at the
barrier before it (0 if there is none), begin and end of the kernel (0 if this thread does not run it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..support.aligned import address, aligned_empty

RUN_BEGIN, RUN_END, JOB_BEGIN, JOB_END, CALL = range(5)
PER_CALL = 3
#: rows of threads lie so far apart that they share no cache line on any machine; the code that writes them knows it
ROW_ALIGN_BYTES = 128


def row_bytes(calls: int) -> int:
    """Bytes of one thread's row.

    >>> row_bytes(1), row_bytes(5)
    (128, 256)
    """
    return -(-8 * (CALL + PER_CALL * calls) // ROW_ALIGN_BYTES) * ROW_ALIGN_BYTES


class Stamps:
    """Memory for the stamps of one run."""

    def __init__(self, threads: int, calls: int) -> None:
        self.threads, self.calls = threads, calls
        self._memory = aligned_empty(threads * row_bytes(calls), ROW_ALIGN_BYTES)
        self.ticks = self._memory.view(np.int64).reshape(threads, -1)
        self.address = address(self._memory)
        self.clear()

    def clear(self) -> None:
        """Before each run: what a thread does not run must read 0."""
        self.ticks[:] = 0

    def check(self, threads: int, calls: int) -> None:
        """ValueError if a program would write outside of this memory."""
        if (threads, calls) != (self.threads, self.calls):
            raise ValueError(f"stamps for {self.threads} threads and {self.calls} calls, not {threads} and {calls}")


@dataclass(frozen=True)
class Timeline:
    """Seconds since the beginning of a run. `arrive`, `begin`, `end` are [threads, calls], NaN where a thread does not
    run a call (`arrive`: where it does not wait before it); `job_begin`, `job_end` are [threads]; `total` is the
    whole run."""

    arrive: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    job_begin: np.ndarray
    job_end: np.ndarray
    total: float

    @staticmethod
    def of(stamps: Stamps, seconds_per_tick: float) -> Timeline:
        ticks = stamps.ticks
        zero = ticks[0, RUN_BEGIN]

        def seconds(values: np.ndarray) -> np.ndarray:
            # clocks of two cores may differ by a few ticks
            return np.where(values == 0, np.nan, np.maximum(values - zero, 0) * seconds_per_tick)

        table = seconds(ticks[:, CALL : CALL + PER_CALL * stamps.calls]).reshape(stamps.threads, stamps.calls, PER_CALL)
        return Timeline(
            table[:, :, 0],
            table[:, :, 1],
            table[:, :, 2],
            seconds(ticks[:, JOB_BEGIN]),
            seconds(ticks[:, JOB_END]),
            float(ticks[0, RUN_END] - zero) * seconds_per_tick,
        )

    @property
    def threads(self) -> int:
        return len(self.begin)

    def seconds(self) -> np.ndarray:
        """Wall time of every call: from where all earlier calls have ended and the first thread begins to where the
        last thread ends. Where calls overlap (no barrier stands between them), the earlier one has the time, so that
        all calls together never take more than the run."""
        first, last = _least(self.begin), _most(self.end)
        done = np.maximum.accumulate(np.nan_to_num(last))
        before = np.concatenate([[0.0], done[:-1]]) if len(done) else done
        return np.asarray(np.maximum(np.nan_to_num(last) - np.maximum(before, np.nan_to_num(first)), 0.0))

    def busy(self) -> np.ndarray:
        """[threads, calls]: seconds that each thread works on each call."""
        return np.asarray(np.nan_to_num(self.end - self.begin))

    def waiting(self) -> np.ndarray:
        """[threads, calls]: seconds that each thread stands at the barrier before each call.

        A thread that does not run the call leaves the barrier unseen: its wait ends where the call begins elsewhere.
        """
        leave = np.where(np.isnan(self.begin), _least(self.begin)[None, :], self.begin)
        return np.asarray(np.maximum(np.nan_to_num(leave - self.arrive), 0.0))


def _least(table: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(table).all(axis=0), np.nan, np.where(np.isnan(table), np.inf, table).min(axis=0))


def _most(table: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(table).all(axis=0), np.nan, np.where(np.isnan(table), -np.inf, table).max(axis=0))


__all__ = ["CALL", "JOB_BEGIN", "JOB_END", "PER_CALL", "RUN_BEGIN", "RUN_END", "Stamps", "Timeline", "row_bytes"]
