"""Profiles: seconds of every kernel and thread with the roofline bound of each; what `Executable.profile` returns.

    profile = run.profile([x])
    print(profile)                          # a table
    profile.kernels[0].efficiency           # of the roofline
    Path("profile.html").write_text(profile.html())

See docs/profiling.md for what every number means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import __version__
from ..program.program import COPY, Call, Program
from ..program.timeline import Timeline
from ..schedule.ceilings import Ceilings, ceilings
from ..support import providers
from ..support.errors import UsageError
from ..targets import base

if TYPE_CHECKING:
    from ..program.package import Package

#: raised when the form of `Profile.to_json` changes
FORMAT = 1


#: facts of a kernel that depend on the sizes it is called with
COUNTED = ("flops", "integer_ops", "touched")


@dataclass(frozen=True)
class ProfileEntry:
    """A kernel call, or all calls of one kernel together.

    `seconds` is the median over the runs, `low` and `high` are the quartiles. `operations` is None where the compiler
    did not count. `read` and `written` are bytes that must move at least once. `balance` is the mean work of a thread
    over that of the busiest. `ideal` is the least time by the ceilings, `limit` the ceiling that decides it.
    """

    symbol: str
    names: tuple[str, ...]
    rule: str
    does: str
    seconds: float
    low: float
    high: float
    share: float
    calls: int = 1
    operations: int | None = None
    precision: str = "f32"
    read: int = 0
    written: int = 0
    balance: float = 1.0
    ideal: float | None = None
    limit: str = ""
    #: of several devices: the one that ran it; of a copy both
    device: str = ""

    @property
    def bytes(self) -> int:
        return self.read + self.written

    @property
    def gflops(self) -> float | None:
        """10^9 operations a second."""
        return None if self.operations is None or not self.seconds else self.operations / self.seconds / 1e9

    @property
    def gbytes(self) -> float | None:
        """10^9 bytes a second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else None

    @property
    def intensity(self) -> float | None:
        """Operations a byte."""
        return None if self.operations is None or not self.bytes else self.operations / self.bytes

    @property
    def efficiency(self) -> float | None:
        """Part of the roofline that is reached: the least time by the ceilings over the real one."""
        return None if self.ideal is None or not self.seconds else self.ideal / self.seconds

    def to_json(self) -> dict[str, object]:
        values = {n: getattr(self, n) for n in self.__dataclass_fields__}
        derived = {n: getattr(self, n) for n in ("gflops", "gbytes", "intensity", "efficiency")}
        return {**values, "names": list(self.names), **derived}


@dataclass(frozen=True)
class Thread:
    """Medians of one thread, in seconds: working in kernels, and standing at barriers before them. What is left of the
    run is the way into it and out of it, and calls that other threads run alone."""

    busy: float
    waiting: float


@dataclass(frozen=True)
class Profile:
    """What a run of a model takes. `seconds`, `low`, `high` are of the whole run, seen from its caller without Python;
    `calls` are in the order of the program; `between` are the seconds in which no kernel runs (barriers, waking the
    other threads, waiting for them); `timeline` is the run in the middle; `facts` what the compiler says of the kernels
    (see `schedule.facts`)."""

    model: str
    target: str
    threads: int
    repeats: int
    seconds: float
    low: float
    high: float
    calls: tuple[ProfileEntry, ...]
    per_thread: tuple[Thread, ...]
    between: float = 0.0
    timeline: Timeline | None = None
    ceilings: Ceilings | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def kernels(self) -> tuple[ProfileEntry, ...]:
        """The calls of each kernel together, the most expensive first; copies by where they go."""
        groups: dict[tuple[str, str], list[ProfileEntry]] = {}
        for call in self.calls:
            groups.setdefault((call.symbol, call.device), []).append(call)
        return tuple(sorted((together(g) for g in groups.values()), key=lambda e: -e.seconds))

    @property
    def total(self) -> ProfileEntry:
        """All calls together."""
        return replace(together(self.calls), symbol="total", names=(), rule="", does="", limit="", device="")

    def to_json(self) -> dict[str, object]:
        """Everything as JSON data: the form is in docs/profiling.md."""
        return {
            "format": FORMAT,
            "tilewright": __version__,
            "model": self.model,
            "target": self.target,
            "threads": self.threads,
            "repeats": self.repeats,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "between": self.between,
            "per_thread": [{"busy": t.busy, "waiting": t.waiting} for t in self.per_thread],
            "kernels": [e.to_json() for e in self.kernels],
            "calls": [e.to_json() for e in self.calls],
            "total": self.total.to_json(),
            "facts": {k: dict(v) for k, v in self.facts.items()},
            "ceilings": self.ceilings.to_json() if self.ceilings else None,
            "timeline": _timeline_json(self.timeline),
        }

    def trace(self) -> dict[str, object]:
        """The run in the middle as JSON data that Perfetto and chrome://tracing open; UsageError without a timeline."""
        trace: dict[str, object] = providers.ask("profile_trace")(self)
        return trace

    def html(self) -> str:
        """One page that needs nothing else: roofline, timeline of every thread, kernels with their schedules."""
        text: str = providers.ask("profile_page")(self)
        return text

    def __str__(self) -> str:
        text: str = providers.ask("profile_text")(self)
        return text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the table; `html` makes a page with drawings."""
        text: str = providers.ask("profile_table")(self)
        return text


def check_repeats(repeats: int) -> None:
    """UsageError for anything but a positive integer."""
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise UsageError(f"repeats must be an integer of at least 1, not {repeats!r}")


def joined(
    parts: Sequence[Profile | tuple[str, str, float]], model: str, target: str, threads: int, repeats: int
) -> Profile:
    """The profile of programs that run one after the other, with operators on the host (kind, name, seconds) between
    them. It has no timeline."""
    calls: list[ProfileEntry] = []
    totals, per_thread, between = np.zeros(3), np.zeros((threads, 2)), 0.0
    facts: dict[str, Mapping[str, Any]] = {}
    limits = None
    for part in parts:
        if isinstance(part, tuple):
            kind, name, taken = part
            calls.append(ProfileEntry(f"host.{kind}", (name,), "host", kind, taken, taken, taken, 0.0))
            totals += taken
            continue
        calls += part.calls
        totals += (part.seconds, part.low, part.high)
        per_thread[: part.threads] += [(t.busy, t.waiting) for t in part.per_thread]
        between += part.between
        facts.update(part.facts)
        limits = part.ceilings if part.threads == threads or limits is None else limits
    whole = float(totals[0])
    shared = tuple(replace(c, share=c.seconds / whole if whole else 0.0) for c in calls)
    threads_ = tuple(Thread(float(b), float(w)) for b, w in per_thread)
    low, high = float(totals[1]), float(totals[2])
    return Profile(model, target, threads, repeats, whole, low, high, shared, threads_, between, None, limits, facts)


class Timed(Protocol):
    """What is profiled: an `Executable`."""

    @property
    def threads(self) -> int: ...
    @property
    def package(self) -> Package: ...

    def timelines(
        self, inputs: Mapping[str, object] | Sequence[object], runs: int, warm: int = 2
    ) -> list[Timeline]: ...


# ---- measuring -----------------------------------------------------------------------------------------------------


def make_profile(
    executable: Timed,
    inputs: Mapping[str, object] | Sequence[object],
    repeats: int,
    *,
    counted: bool = True,
) -> Profile:
    """Run an executable `repeats` times with time stamps; see `Executable.profile`. `counted`: what the compiler
    counted is true of these inputs. UsageError if its target has no clock."""
    check_repeats(repeats)
    target, package = base.recorded(executable.package.target), executable.package
    lines = executable.timelines(inputs, repeats)
    limits = ceilings(target, executable.threads) if target.machine_name() else None
    facts = {k["symbol"]: k for k in package.report.get("kernels", ()) if "symbol" in k}
    if not counted:
        facts = {s: {k: v for k, v in about.items() if k not in COUNTED} for s, about in facts.items()}
    totals = np.array([line.total for line in lines])
    low, middle, high = np.quantile(totals, (0.25, 0.5, 0.75))
    threads = tuple(
        Thread(*(float(np.median([part[t] for part in parts])) for parts in zip(*map(_parts, lines), strict=True)))
        for t in range(executable.threads)
    )
    return Profile(
        str(package.report.get("model", "model")),
        package.target,
        executable.threads,
        repeats,
        float(middle),
        float(low),
        float(high),
        tuple(_entries(package.program, lines, facts, float(middle), limits, counted)),
        threads,
        float(np.median([line.total - line.seconds().sum() for line in lines])),
        lines[int(np.argsort(totals)[len(totals) // 2])],
        limits,
        {s: facts[s] for s in package.program.symbols if s in facts},
    )


def _parts(line: Timeline) -> tuple[np.ndarray, np.ndarray]:
    return line.busy().sum(axis=1), line.waiting().sum(axis=1)


def _entries(
    program: Program,
    lines: Sequence[Timeline],
    facts: Mapping[str, Mapping[str, Any]],
    whole: float,
    limits: Ceilings | None,
    counted: bool,
) -> Iterable[ProfileEntry]:
    seconds = np.array([line.seconds() for line in lines])
    quartiles = np.quantile(seconds, (0.25, 0.5, 0.75), axis=0)
    busy = np.median([line.busy() for line in lines], axis=0)
    footprint = _footprint(program)
    for number, call in enumerate(program.calls):
        about = facts.get(call.symbol, {})
        low, middle, high = (float(q) for q in quartiles[:, number])
        operations = 0 if call.symbol == COPY else None
        if "flops" in about:
            operations = int(about["flops"]) + int(about.get("integer_ops", 0))
        precision = str(about.get("precision", "f32"))
        traffic = Traffic.of(call, about.get("touched") if counted else [0] * len(call.args))
        ideal, limit = None, ""
        if limits and counted:
            ideal, limit = least_time(traffic, operations or 0, precision, footprint, limits)
        yield ProfileEntry(
            call.symbol,
            call.names,
            "copy" if call.symbol == COPY else str(about.get("kind", "")),
            "copy" if call.symbol == COPY else str(about.get("does", "")),
            middle,
            low,
            high,
            middle / whole if whole else 0.0,
            1,
            operations,
            precision,
            traffic.read,
            traffic.written,
            _balance(busy[:, number]),
            ideal,
            limit,
            _device(program, call),
        )


def _device(program: Program, call: Call) -> str:
    """The name of a call's device, where there are several; of a copy from where to where."""
    if not program.devices:
        return ""
    there = program.devices[call.device].name
    source = program.device_of(call.args[0]) if call.symbol == COPY else call.device
    return there if source == call.device else f"{program.devices[source].name} -> {there}"


def _balance(busy: np.ndarray) -> float:
    return float(busy.mean() / busy.max()) if busy.max() > 0 else 1.0


def _footprint(program: Program) -> int:
    """Bytes that one run goes over: what lies further back than that is not in a cache any more."""
    states = [s.tensor for s in program.states]
    tensors = (*program.inputs, *program.outputs, *program.constants, *states)
    return program.arena_size + sum(t.nbytes for t in tensors)


@dataclass(frozen=True)
class Traffic:
    """Bytes a call must move at least once: of the arena, which a call before has written, and of other memory, which
    was last touched a whole run ago."""

    near_read: int = 0
    near_written: int = 0
    far_read: int = 0
    far_written: int = 0

    @property
    def read(self) -> int:
        return self.near_read + self.far_read

    @property
    def written(self) -> int:
        return self.near_written + self.far_written

    @staticmethod
    def of(call: Call, touched: Sequence[int] | None) -> Traffic:
        """`touched`: bytes of each argument, if the compiler counted; else all of them."""
        amounts = touched if touched is not None and len(touched) == len(call.args) else [a.nbytes for a in call.args]
        sums: dict[tuple[bool, bool], dict[object, int]] = {}
        for (ref, written), amount in zip(call.accesses(), amounts, strict=True):
            group = sums.setdefault((ref.space == "arena", written), {})
            place = (ref.space, ref.index, ref.offset)  # an argument that stands twice is read once
            group[place] = max(group.get(place, 0), int(amount))
        order = ((True, False), (True, True), (False, False), (False, True))
        return Traffic(*(sum(sums.get(key, {}).values()) for key in order))


def least_time(
    traffic: Traffic, operations: int, precision: str, footprint: int, limits: Ceilings
) -> tuple[float, str]:
    """Seconds below which no kernel with this work can be on this machine, and what holds it up: the arithmetic, or the
    memory its bytes come from.

    What the call before has written comes from the memory that holds the kernel's own bytes, all else from the memory
    that holds the whole program's.
    """
    arithmetic = operations / limits.peak(precision)
    near, far = limits.level(traffic.read + traffic.written), limits.level(footprint)
    close = near.seconds(traffic.near_read, traffic.near_written)
    distant = far.seconds(traffic.far_read, traffic.far_written)
    if arithmetic >= close + distant:
        return arithmetic, f"{precision} arithmetic" if arithmetic else ""
    return close + distant, near.name if close > distant else far.name


def together(calls: Sequence[ProfileEntry]) -> ProfileEntry:
    """Calls as one entry: times and work add up; the limit is what decides most of the least time."""
    if not calls:
        return ProfileEntry("", (), "", "", 0.0, 0.0, 0.0, 0.0, 0, 0)
    longest = max(calls, key=lambda c: c.seconds)
    decides: dict[str, float] = {}
    for c in calls:
        decides[c.limit] = decides.get(c.limit, 0.0) + (c.ideal or 0.0)
    seconds = sum(c.seconds for c in calls)
    return replace(
        longest,
        names=tuple(dict.fromkeys(n for c in calls for n in c.names)),
        seconds=seconds,
        low=sum(c.low for c in calls),
        high=sum(c.high for c in calls),
        share=sum(c.share for c in calls),
        calls=sum(c.calls for c in calls),
        operations=None if any(c.operations is None for c in calls) else sum(c.operations or 0 for c in calls),
        read=sum(c.read for c in calls),
        written=sum(c.written for c in calls),
        limit=max(decides, key=lambda name: decides[name]),
        balance=sum(c.balance * c.seconds for c in calls) / seconds if seconds else 1.0,
        ideal=None if any(c.ideal is None for c in calls) else sum(c.ideal or 0.0 for c in calls),
    )


def _timeline_json(line: Timeline | None) -> dict[str, object] | None:
    if line is None:
        return None

    def rows(table: np.ndarray) -> list[list[float | None]]:
        return [[None if np.isnan(x) else float(x) for x in row] for row in table]

    return {"total": line.total, "arrive": rows(line.arrive), "begin": rows(line.begin), "end": rows(line.end)}


__all__ = ["ProfileEntry", "Profile", "Thread", "Traffic", "check_repeats", "joined", "least_time", "make_profile"]
