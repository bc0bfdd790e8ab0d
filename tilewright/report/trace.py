"""A profile as a trace that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) show: one row a thread.

The form is the JSON object of Google's "Trace Event Format": complete events (``ph`` "X") with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..support.errors import UsageError

if TYPE_CHECKING:
    from ..runtime.profile import Profile, ProfileEntry

_PROCESS = 1


def trace(profile: Profile) -> dict[str, object]:
    """The run in the middle of a profile as JSON data: kernels and waits of every thread, with what is known of them.

    UsageError for a profile without a timeline: that of a model with open shapes, whose parts are programs of their
    own.
    """
    line = profile.timeline
    if line is None:
        raise UsageError(
            "this profile has no timeline to make a trace of",
            stage="profile",
            hint="models that run in several parts have none: profile one with fixed shapes (inputs={name: (1, 128)})",
        )
    names = [{"ph": "M", "name": "process_name", "pid": _PROCESS, "tid": 0, "args": {"name": profile.model}}]
    names += [
        {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": t, "args": {"name": f"thread {t}"}}
        for t in range(line.threads)
    ]
    waits = line.waiting()
    events: list[dict[str, object]] = list(names)
    for thread in range(line.threads):
        for number, call in enumerate(profile.calls):
            begin, end = float(line.begin[thread, number]), float(line.end[thread, number])
            arrive, wait = float(line.arrive[thread, number]), float(waits[thread, number])
            if wait > 0 and not np.isnan(arrive):
                events.append(_event("wait", "barrier", thread, arrive, wait, {}))
            if not np.isnan(begin):
                events.append(_event(call.symbol, call.rule, thread, begin, end - begin, dict(_arguments(call))))
    about = {"target": profile.target, "threads": profile.threads, "seconds": profile.seconds}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _event(
    name: str, category: str, thread: int, start: float, length: float, args: dict[str, object]
) -> dict[str, object]:
    times = {"ts": round(1e6 * start, 4), "dur": round(1e6 * length, 4)}
    return {"ph": "X", "name": name, "cat": category or "kernel", "pid": _PROCESS, "tid": thread, **times, "args": args}


def _arguments(call: ProfileEntry) -> Iterator[tuple[str, object]]:
    """What a click on a kernel shows: its layers, and its work over all threads."""
    yield "layers", ", ".join(call.names)
    yield "does", call.does
    if call.device:
        yield "device", call.device
    for name in ("operations", "read", "written", "gflops", "efficiency"):
        value = getattr(call, name)
        if value is not None:
            yield name, round(value, 4) if isinstance(value, float) else value
    if call.limit:
        yield "limit", call.limit


__all__ = ["trace"]
