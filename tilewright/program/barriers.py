"""Where the threads of a program have to wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

from .program import COPY, BufferRef, Call
from .small_calls import own_arguments

#: copies of fewer bytes are not worth dividing
_PARALLEL_COPY = 64 << 10


def is_parallel(call: Call) -> bool:
    """Whether all threads run a call; small copies are left to thread 0."""
    if call.symbol == COPY:
        return call.parallel and call.args[0].nbytes >= _PARALLEL_COPY
    return call.parallel


def by_all(call: Call, small: bool) -> bool:
    """The same where sizes are `small`, or are not (`small_calls`)."""
    return call.small == "each" if small and call.small else is_parallel(call)


def barriers(calls: Sequence[Call], small: bool = False) -> list[bool]:
    """For every call, whether all threads must have finished the calls before it; where sizes are `small`, or are not.

    They must if it reads what was written since the last barrier, or writes what was read or written since; not among
    calls that thread 0 runs alone, which are in order anyway. What a thread has for itself is nobody else's.
    """
    own = own_arguments(calls) if small else {}
    needed = []
    since: list[tuple[BufferRef, bool, bool]] = []  # buffer, written, by all threads
    for number, call in enumerate(calls):
        parallel = by_all(call, small)
        accesses = [(r, w) for p, (r, w) in enumerate(call.accesses()) if not r.empty and (number, p) not in own]
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
