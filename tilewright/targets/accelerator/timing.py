"""Cycle-level timing simulator of an accelerator: when each instruction begins and ends, and what engines stall on.

An engine takes its instructions in order, each when

- every other engine has finished as many as the instruction waits for,
- the one before has left the first part of the engine's pipeline,
- at most `queue` are under way.

It stays in a part for the cycles that the description gives, and until the next part is free. It is finished `latency`
cycles after the last part, and not before the one before it. The RTL of systolic32 counts the same cycles.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod

from .binary import ChipProgram, Formats, Issue
from .dependences import accesses
from .describe import HOST, CopyEngine
from .functional import deadlock

#: the cause of a stall: too many instructions under way
QUEUE = "queue"


@dataclass
class EngineTime:
    """Of an engine: cycles in which it worked, cycles in which it waited, by engine (or ``queue``), instructions, and
    when each began, worked no more, and was finished."""

    busy: int = 0
    stalls: Counter[str] = field(default_factory=Counter)
    began: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    @property
    def instructions(self) -> int:
        return len(self.finished)


@dataclass(frozen=True)
class ProgramTiming:
    """What a run takes: cycles in all, each engine's time, bytes and picojoules by memory, picojoules of computations.

    `work` are the multiply-adds (or operations) done, by engine.
    """

    cycles: int
    engines: dict[str, EngineTime]
    moved: dict[str, int]
    energy: dict[str, float]

    def utilization(self, engine: str) -> float:
        """The part of all cycles in which an engine worked."""
        return self.engines[engine].busy / max(self.cycles, 1)


class _Engine:
    """An engine while time passes."""

    def __init__(self, name: str, stream: tuple[Issue, ...], queue: int) -> None:
        self.name, self.stream, self.queue = name, stream, queue
        self.time = EngineTime()
        self.next = 0
        self.parts_left: list[int] = [0]  # when the instruction before left each part

    def step(self, waits: list[tuple[int, str]], busy: tuple[int, ...], latency: int) -> None:
        """The next instruction, which may begin at the latest of `waits`."""
        t = self.time
        free = self.parts_left[0]
        if self.next >= self.queue and (earlier := t.finished[self.next - self.queue]) > free:
            waits = [*waits, (earlier, QUEUE)]
        begin, why = max(waits, default=(0, ""))
        begin = max(begin, free)
        if begin > free:
            t.stalls[why] += begin - free
        at, left = begin, []
        before = self.parts_left + [0] * (len(busy) - len(self.parts_left))
        for p, cycles in enumerate(busy):
            end = at + cycles
            if p + 1 < len(busy):
                end = max(end, before[p + 1])
            left.append(end)
            at = end
        t.busy += at - max(left[-2] if len(left) > 1 else begin, before[len(busy) - 1])
        self.parts_left = left
        t.began.append(begin)
        t.left.append(at)
        t.finished.append(max(at + latency, t.finished[-1] if t.finished else 0))
        self.next += 1


def simulate(formats: Formats, program: ChipProgram) -> ProgramTiming:
    """The times of a program's instructions; UsageError where engines wait for each other."""
    engines = {
        name: _Engine(name, program.streams.get(name, ()), e.queue) for name, e in formats.listing.engines.items()
    }
    costs = _Costs(formats)
    while any(e.next < len(e.stream) for e in engines.values()):
        moved = False
        for e in engines.values():
            while e.next < len(e.stream):
                issue = e.stream[e.next]
                if any(engines[o].next < n for o, n in issue.waits.items()):
                    break
                waits = [(engines[o].time.finished[n - 1], o) for o, n in issue.waits.items() if n]
                e.step(waits, *costs.of(issue))
                moved = True
        if not moved:
            raise deadlock(formats, program, {name: e.next for name, e in engines.items()})
    cycles = max((e.time.finished[-1] for e in engines.values() if e.time.finished), default=0)
    return ProgramTiming(cycles, {n: e.time for n, e in engines.items()}, *costs.totals())


class _Costs:
    """Cycles of instructions, and what they move; equal instructions share their numbers, and are looked at once."""

    def __init__(self, formats: Formats) -> None:
        self.formats = formats
        self.known: dict[int, tuple[tuple[int, ...], int]] = {}
        self.times: Counter[int] = Counter()
        self.first: dict[int, Issue] = {}

    def of(self, issue: Issue) -> tuple[tuple[int, ...], int]:
        """(cycles of the parts, latency)."""
        key = id(issue.values)
        self.times[key] += 1
        if key not in self.known:
            self.first[key] = issue
            self.known[key] = self.cycles(issue)
        return self.known[key]

    def cycles(self, issue: Issue) -> tuple[tuple[int, ...], int]:
        if issue.form.meaning is not None:
            return issue.form.meaning.busy(issue.counts), issue.form.meaning.delay(issue.counts)
        engine = self.formats.listing.engines[issue.form.engine]
        assert isinstance(engine, CopyEngine)
        return (engine.cycles(prod(issue.values["count"]), issue["run"]),), engine.latency

    def totals(self) -> tuple[dict[str, int], dict[str, float]]:
        """(bytes moved, picojoules) by memory, of all that was asked about."""
        memories = self.formats.listing.memories
        moved: dict[str, int] = dict.fromkeys((HOST, *memories), 0)
        energy: dict[str, float] = dict.fromkeys((HOST, *memories, "compute"), 0.0)
        for key, issue in self.first.items():
            times = self.times[key]
            for a in accesses(self.formats, issue):
                size = times * min((a.high - a.low) * memories[a.memory].word, self._size(issue))
                moved[a.memory] += size
                energy[a.memory] += size * memories[a.memory].energy
            if issue.form.meaning is not None:
                energy["compute"] += times * issue.form.meaning.joules(issue.counts)
                continue
            engine = self.formats.listing.engines[issue.form.engine]
            assert isinstance(engine, CopyEngine)
            source, target = self.formats.routes(engine.name)[issue["route"]]
            filled = "fill" in issue.values and issue["fill"]
            if target == HOST or (source == HOST and not filled):
                size = times * self._size(issue)
                moved[HOST] += size
                energy[HOST] += size * engine.energy
        return moved, energy

    @staticmethod
    def _size(issue: Issue) -> int:
        """Bytes of a copy; what computations touch, they touch once in a hull of words."""
        return 1 << 62 if issue.form.meaning is not None else prod(issue.values["count"]) * issue["run"]
