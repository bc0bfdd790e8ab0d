"""Barrier placement: between which kernel calls the worker threads of a program must synchronize."""

from __future__ import annotations

from collections.abc import Sequence

from .program import COPY, BufferRef, Call

#: copies of fewer bytes are not worth dividing
_PARALLEL_COPY = 64 << 10


def is_parallel(call: Call) -> bool:
    """Whether all threads run a call; small copies are left to thread 0."""
    if call.symbol == COPY:
        return call.parallel and call.args[0].nbytes >= _PARALLEL_COPY
    return call.parallel


def barriers(calls: Sequence[Call]) -> list[bool]:
    """For every call, whether all threads must have finished the calls before it.

    They must if it reads what was written since the last barrier, or writes what was read or written since; not among
    calls that thread 0 runs alone, which are in order anyway.
    """
    needed = []
    since: list[tuple[BufferRef, bool, bool]] = []  # buffer, written, by all threads
    for call in calls:
        parallel = is_parallel(call)
        accesses = [(ref, written) for ref, written in call.accesses() if not ref.empty]
        conflict = any(
            (written or before_written) and (parallel or before_parallel) and ref.overlaps(before)
            for ref, written in accesses
            for before, before_written, before_parallel in since
        )
        needed.append(conflict)
        if conflict:
            since.clear()
        since.extend((ref, written, parallel) for ref, written in accesses)
    return needed
