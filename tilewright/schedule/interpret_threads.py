"""The reference interpreter of nests with thread axes, which finds data races. Threads run one after the other from
barrier to barrier, and copies end as late as they may; a use of one element that another order could change is an
error. `interpret` has the statements of a single thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from ..tensor.expr import Target
from .concurrency import NestAxes, is_plain
from .interpret import EVERY, UNSET, Env, Interpreter, Memory, place
from .nest import THREAD, Alloc, AsyncCopy, Barrier, For, If, Seq, Stmt, Wait, in_parts

Memories = dict[str, Memory]
#: the number of a thread on each axis, None where a statement stands outside of the axis's loops
ThreadId = tuple[int | None, ...]


@dataclass
class _Group:
    """The copies that one `AsyncCopy` began: memory, elements, values and thread of each, and what it reads."""

    number: int
    token: str
    thread: ThreadId
    bulk: bool = False  # all threads wait for it, and see it then
    writes: list[tuple[Memory, np.ndarray, np.ndarray, int]] = field(default_factory=list)
    reads: list[tuple[Memory, np.ndarray, int]] = field(default_factory=list)


def _covers(a: ThreadId, b: ThreadId) -> bool:
    """Whether what thread `a` does, which may stand for many, `b` does too."""
    return all(x is None or x == y for x, y in zip(a, b, strict=True))


class ThreadInterpreter(Interpreter):
    """See the file."""

    def start(self) -> None:
        self.nest_axes = NestAxes.of(self.nest.body, self.machine)
        self.buffers, self.params = self.nest.buffers(), {p.name for p in self.nest.params}
        self.tracked = any(
            k != THREAD for k in self.nest_axes.kinds
        )  # else nobody can read what another has not written
        everyone: ThreadId = (None,) * len(self.nest_axes.kinds)
        self.numbers, self.names, self.labels = {everyone: EVERY}, [everyone], {EVERY: "all"}
        self.clock = self.threads = 0
        self.met: dict[tuple[str, ThreadId], int] = {}  # when the threads of a barrier last met
        self.left: Memories = {}  # memory that lived before, by name and thread
        self.copying: _Group | None = None
        self.groups: list[_Group] = []
        for _ in self.walk(self.nest.body, {}, everyone, self.memory):
            raise AssertionError("a barrier that nobody waits at")
        if unfinished := [g for g in self.groups if g.writes]:
            self.fail(f"copies of {unfinished[0].token} are never waited for", "")

    # ---- who runs

    def enter(self, thread: ThreadId, memory: Memories) -> None:
        """From here on a thread runs, and sees these memories."""
        self.memory = memory
        if thread not in self.numbers:
            self.numbers[thread] = len(self.names)
            self.names.append(thread)
            named = [(k, u) for k, u in zip(self.nest_axes.kinds, thread, strict=True) if u is not None]
            self.labels[self.numbers[thread]] = ", ".join(f"{k}={u}" for k, u in named)
        self.thread = self.numbers[thread]

    def walk(self, s: Stmt, env: Env, thread: ThreadId, memory: Memories) -> Iterator[Barrier]:
        """Run a statement; stops at the barriers at which threads around it have to meet."""
        if is_plain(s) and not isinstance(s, Seq) and not in_parts(s, self.params):
            first = [
                u is None and self.nest_axes.first(k, s, self.buffers)
                for k, u in zip(self.nest_axes.kinds, thread, strict=True)
            ]
            self.enter(tuple(0 if f else u for f, u in zip(first, thread, strict=True)), memory)
            self.stmt(s, env)
            return
        self.enter(thread, memory)
        if isinstance(s, Seq):
            for x in s.stmts:
                yield from self.walk(x, env, thread, memory)
        elif isinstance(s, For) and s.bound:
            yield from self.spread(s, env, thread, memory)
        elif isinstance(s, For):
            for i in range(self.scalar(s.extent, env)):
                yield from self.walk(s.body, {**env, s.var: np.asarray(i)}, thread, memory)
        elif isinstance(s, If):
            chosen = s.then if self.scalar(s.cond, env) else s.otherwise
            if chosen is not None:
                yield from self.walk(chosen, env, thread, memory)
        elif isinstance(s, Alloc):
            yield from self.walk(s.body, env, thread, {**memory, s.buffer.name: self.allocated(s, thread)})
        elif isinstance(s, AsyncCopy):
            self.copying = _Group(len(self.groups) + 1, s.token, thread, s.bulk)
            self.groups.append(self.copying)
            for _ in self.walk(s.body, env, thread, memory):
                raise AssertionError("a barrier in a copy")
            self.copying = None
        elif isinstance(s, Wait):
            self.wait(s, thread)
        elif isinstance(s, Barrier):
            if self.waits(s.scope, thread):
                yield s
            else:
                self.meet(s.scope, thread)

    def spread(self, s: For, env: Env, thread: ThreadId, memory: Memories) -> Iterator[Barrier]:
        """Run the iterations of a loop on threads of its axis, all of them up to the next barrier and then on."""
        at = self.nest_axes.kinds.index(s.kind)
        runs = []
        for i in range(self.scalar(s.extent, env)):
            inner = {**env, s.var: np.asarray(i)}
            self.threads += 1
            own = self.threads if s.kind == THREAD else i
            one = (*thread[:at], own, *thread[at + 1 :])
            if s.kind == THREAD:
                self.enter(one, memory)
                self.labels[self.thread] = f"{s.var}={i}"
                yield from self.walk(s.body, inner, one, memory)
            else:
                runs.append(self.walk(s.body, inner, one, memory))
        while runs:
            stops = [next(r, None) for r in runs]
            reached = stops[0]
            odd = next((i for i, x in enumerate(stops) if x is not reached), None)
            if odd is not None:
                self.fail(f"iterations 0 and {odd} of {s.var} on {s.kind} do not come to the same barrier", "")
            if reached is None:
                return
            if self.waits(reached.scope, thread):
                yield reached
            else:
                self.meet(reached.scope, thread)

    def waits(self, scope: str, thread: ThreadId) -> bool:
        """Whether loops around a place have threads that a barrier there makes wait."""
        kinds = zip(self.nest_axes.kinds, thread, strict=True)
        return any(u is not None and scope in self.nest_axes.axes[k].barriers for k, u in kinds)

    def meet(self, scope: str, thread: ThreadId) -> None:
        self.clock += 1
        self.met[scope, self.around(scope, thread)] = self.clock

    def around(self, scope: str, thread: ThreadId) -> ThreadId:
        kinds = zip(self.nest_axes.kinds, thread, strict=True)
        return tuple(u for k, u in kinds if scope not in self.nest_axes.axes[k].barriers)

    def before(self, other: int, times: np.ndarray) -> np.ndarray:
        """Whether what another thread did at some times is over for this one: all of them have met since."""
        a, b = self.names[other], self.names[self.thread]
        shared = [
            when
            for (x, at), when in self.met.items()
            if _covers(at, own := self.around(x, b)) and _covers(self.around(x, a), own)
        ]
        over: np.ndarray = times < max(shared, default=-1)
        return over

    # ---- memory

    def allocated(self, s: Alloc, thread: ThreadId) -> Memory:
        """Memory that threads share is the same each time: who used it before may still do so."""
        kinds = [k for k, u in zip(self.nest_axes.kinds, thread, strict=True) if u is None]
        own = [k != THREAD and k in kinds and not self.nest_axes.shares(k, s.buffer) for k in self.nest_axes.kinds]
        m = Memory.fresh(s.buffer, shared=any(self.nest_axes.shares(k, s.buffer) for k in self.nest_axes.kinds))
        m.own = tuple(own)
        old = self.left.get(key := f"{s.buffer.name} {thread}")
        if m.shared and old is not None:
            m.wrote, m.times, m.readers, m.busy, m.lent = old.wrote, old.times, old.readers, old.busy, old.lent
        self.left[key] = m
        return m

    def parts(self, m: Memory, making: bool) -> list[Memory]:
        """The memories of a buffer that the thread uses: one, and where it stands for many those of all."""
        if not any(m.own):
            return [m]
        key = tuple(u if o else None for u, o in zip(self.names[self.thread], m.own, strict=True))
        if None in (u for u, o in zip(key, m.own, strict=True) if o):
            return [m, *(p for k, p in m.parts.items() if _covers(key, k))]
        if making and key not in m.parts:
            m.parts[key] = Memory(m.buffer, m.data.copy(), m.writer.copy(), m.shared)
        return [m.parts.get(key, m)]

    def load(self, name: str, p: np.ndarray) -> np.ndarray:
        base = self.memory[name]
        m, *others = self.parts(base, making=False)
        writer = m.writer[p]
        for x in others:
            if (x.writer[p] != writer).any():
                self.fail(f"{name} is memory of each thread, and read outside of the loop that writes it")
        if self.groups and (bad := m.busy[p] != 0).any():
            self.race(m, p, bad, "read", f"though copy {self.token(m, p, bad)} may be writing it")
        if (bad := writer == UNSET).any():
            self.fail(f"{name}[{place(m, p[np.argmax(bad)])}] is read before it is written")
        for u, late in self.others(writer, m.times[p] if m.shared else None):
            self.race(m, p, late, "read", f"though {self.labels[u]} may be writing it")
        if self.copying is not None:
            np.add.at(m.lent, p, 1)
            self.copying.reads.append((m, p, self.thread))
        elif m.shared and self.tracked:
            if self.thread not in m.readers:
                m.readers[self.thread] = np.full(m.buffer.size, -1)
            m.readers[self.thread][p] = self.clock
        found: np.ndarray = m.data[p]
        return found

    def save(self, t: Target, p: np.ndarray, values: np.ndarray) -> None:
        for m in self.parts(self.memory[t.buffer], making=True):
            if m.shared:
                for u, late in self.others(m.wrote[p], m.times[p]):
                    self.race(m, p, late, "written", f"and by {self.labels[u]} without a barrier between")
                for u, times in m.readers.items():
                    late = (times[p] >= 0) & ~self.before(u, times[p])
                    if u != self.thread and late.any():
                        self.race(m, p, late, "written", f"though {self.labels[u]} may be reading it")
            if self.groups and (bad := (m.busy[p] != 0) | (m.lent[p] != 0)).any():
                self.race(m, p, bad, "written", f"though copy {self.token(m, p, bad)} may be using it")
            if self.copying is not None:
                m.busy[p] = self.copying.number
                self.copying.writes.append((m, p, values, self.thread))
            else:
                m.data[p], m.writer[p], m.wrote[p], m.times[p] = values, self.thread, self.thread, self.clock

    def others(self, threads: np.ndarray, times: np.ndarray | None) -> Iterator[tuple[int, np.ndarray]]:
        """Other threads that wrote elements, and which of them no barrier since then has made safe."""
        odd = (threads != EVERY) & (threads != UNSET) & (threads != self.thread)
        for u in np.unique(threads[odd]) if odd.any() else ():
            late = threads == u if times is None else (threads == u) & ~self.before(u, times)
            if late.any() and not _covers(self.names[u], self.names[self.thread]):
                yield int(u), late

    def race(self, m: Memory, p: np.ndarray, bad: np.ndarray, what: str, why: str) -> NoReturn:
        element = f"{m.buffer.name}[{place(m, p[int(np.argmax(bad))])}]"
        self.fail(f"{element} is {what} by {self.labels[self.thread]} {why}")

    def token(self, m: Memory, p: np.ndarray, bad: np.ndarray) -> str:
        number = int(m.busy[p[int(np.argmax(bad))]])
        return self.groups[number - 1].token if number else "(a source)"

    # ---- copies

    def wait(self, s: Wait, thread: ThreadId) -> None:
        """End the copies of a thread, all but those of its last groups."""
        by: dict[ThreadId, list[_Group]] = {}
        for g in self.groups:
            if g.token == s.token and (_covers(g.thread, thread) or _covers(thread, g.thread)):
                by.setdefault(g.thread, []).append(g)
        for groups in by.values():
            for g in groups[: max(len(groups) - s.pending, 0)]:
                self.end(g, thread)

    def end(self, g: _Group, thread: ThreadId) -> None:
        mine = {u for u in {w[3] for w in g.writes} if _covers(self.names[u], thread) or _covers(thread, self.names[u])}
        for m, p, values, u in g.writes:
            if u in mine:
                by = self.numbers[thread] if g.bulk else u
                m.data[p], m.writer[p], m.wrote[p], m.times[p], m.busy[p] = values, by, by, self.clock, 0
        for m, p, u in g.reads:
            if u in mine:
                np.subtract.at(m.lent, p, 1)
        g.writes = [w for w in g.writes if w[3] not in mine]
        g.reads = [r for r in g.reads if r[2] not in mine]


__all__ = ["ThreadInterpreter"]
