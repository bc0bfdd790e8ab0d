"""Legality of nests with thread axes: which loops, barriers and copies a machine allows (`verify`), and a check for
data races (`races`).

Both are asked for nests that use more than threads with memories of their own; those are `legality`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ..support.dtypes import LOOP_TYPES
from ..support.errors import CompileError
from ..tensor.analysis import flat
from ..tensor.evaluate import evaluate
from ..tensor.expr import Buffer, Const, Expr, Load, Var, bounds, simplify, substitute, variables, walk
from .bulk import no_boxes, not_by_all
from .finish import simplify_value
from .legality import PRIVATE, distinct, numbered, one_owner, own_part
from .machine import Axis, Machine, Memory, axis_names, barriers, find_axis
from .nest import (
    THREAD,
    AsyncCopy,
    Barrier,
    For,
    If,
    Nest,
    Seq,
    Stmt,
    Store,
    Wait,
    children,
    exprs,
    stores,
    walk_stmts,
    writes,
)  # fmt: skip
from .producers import PRODUCER, not_produced
from .shuffles import no_exchange

#: combinations of loop variables that are tried one by one
_ENUMERATE = 1 << 20
Buffers = dict[str, Buffer]
Ranges = dict[str, tuple[int, int]]


def illegal(body: Stmt, buffers: Buffers, machine: Callable[[], Machine]) -> str | None:
    """Why threads cannot run a nest, in words; None if they can. The machine is asked for only if it matters: threads
    with memories of their own are `legality`'s."""
    if is_plain(body, THREAD) and all(b.scope in ("param", *PRIVATE) for b in buffers.values()):
        return None
    found = machine()
    placed = {n: b for n, b in buffers.items() if b.scope not in PRIVATE or b.scope in (m.name for m in found.memories)}
    return verify(body, placed, found) or races(body, buffers, found)


def only_threads(nest: Nest, who: str) -> None:
    """CompileError unless a nest has nothing that a processor with threads and memory of their own has not."""
    if reason := verify(nest.body, {n: b for n, b in nest.buffers().items() if b.scope != "param"}, Machine()):
        raise CompileError(f"{who} cannot run this nest: {reason}", stage="emit", operator=nest.name)


def is_plain(s: Stmt, *but: str) -> bool:
    """Whether there is no barrier, copy or loop of threads in a statement, `but` of these axes."""
    return s.facts.axes.issubset(but)


@dataclass
class NestAxes:
    """The axes that a nest uses on a machine, outer ones first, and who shares which memory."""

    machine: Machine
    kinds: list[str]  # names of axes whose loops run on given threads
    axes: dict[str, Axis]
    shared: dict[str, Memory]  # by the name of a scope

    @staticmethod
    def of(body: Stmt, machine: Machine) -> NestAxes:
        used = {s.kind for s in body.loops if s.bound}
        kinds = [n for n in axis_names(machine) if n in used]
        axes = {n: a for n in kinds if (a := find_axis(machine, n)) is not None}
        return NestAxes(machine, kinds, axes, {m.name: m for m in machine.memories})

    def shares(self, kind: str, b: Buffer) -> bool:
        """Whether the threads of an axis see the same memory."""
        if b.scope in PRIVATE and b.scope not in self.shared:  # not placed yet: a thread's own
            return False
        return b.scope == "param" or self.axes[kind].name in self.shared[b.scope].shared_by

    def first(self, kind: str, s: Stmt, buffers: Buffers) -> bool:
        """Whether the first thread of an axis runs a statement that stands outside of its loops; else all do."""
        return any(self.shares(kind, buffers[n]) for n in writes(s) if n in buffers)


# ---- what a nest may have ------------------------------------------------------------------------------------------


def verify(body: Stmt, buffers: Buffers, machine: Machine) -> str | None:
    """The first thing in a nest that the machine has not or cannot do, in words; None if there is none. `buffers` are
    its temporaries, and its parameters too where it has bulk copies."""
    nest_axes = NestAxes.of(body, machine)
    if unknown := {s.kind for s in body.loops if s.bound} - set(nest_axes.kinds):
        return f"there is no axis {', '.join(sorted(unknown))}; the machine has {', '.join(axis_names(machine))}"
    reason = (
        _memories(buffers, nest_axes) or _chain(body, nest_axes) or _Rules(body, nest_axes, buffers).visit(body, ())
    )
    return reason or no_exchange(body, buffers, machine)


def _memories(buffers: Buffers, nest_axes: NestAxes) -> str | None:
    sizes: dict[str, int] = {}
    for b in buffers.values():
        if b.scope != "param":
            if b.scope not in nest_axes.shared:
                return f"{b.name} is in {b.scope}; the machine has memories {', '.join(nest_axes.shared)}"
            sizes[b.scope] = sizes.get(b.scope, 0) + b.size * LOOP_TYPES[b.dtype].nbytes
    for name, size in sizes.items():
        if size > nest_axes.shared[name].bytes:
            return f"buffers in {name} need {size} bytes; the machine has {nest_axes.shared[name].bytes}"
    return None


def _around(machine: Machine, a: Axis) -> list[str]:
    """The axes whose threads each have threads of `a`."""
    outer = next((b for b in machine.axes if b.name == a.inside), None)
    return [] if outer is None else [outer.name, *_around(machine, outer)]


def _chain(body: Stmt, nest_axes: NestAxes) -> str | None:
    """Axes must lie within each other, and have as many threads as the loops iterations."""
    most: dict[str, int] = {}
    for s in body.loops:
        if s.bound and s.kind != THREAD:
            if s.trip is None:
                return f"loop {s.var} on {s.kind} must have a constant extent"
            most[s.kind] = max(most.get(s.kind, 0), s.trip)
    for i, n in enumerate(nest_axes.kinds):
        a = nest_axes.axes[n]
        for b in (nest_axes.axes[m] for m in nest_axes.kinds[:i]):
            if a != b and b.name not in _around(nest_axes.machine, a):
                return f"{n} and {b.name} are no axes within each other: a nest can use one of them"
        total = prod(most.get(m, 1) for m in a.names)
        if a.limit is not None and total > a.limit:
            return f"{a.name} has {a.limit} threads, the loops on it have {total} iterations"
        if (side := a.side(n)) is not None and most.get(n, 1) > side:
            return f"{n} has {side} threads, a loop on it has {most[n]} iterations"
    return None


@dataclass
class _Rules:
    """Where loops, barriers and copies may stand."""

    body: Stmt
    nest_axes: NestAxes
    buffers: Buffers

    def __post_init__(self) -> None:
        everything = list(walk_stmts(self.body))
        self.begun = {s.token for s in everything if isinstance(s, AsyncCopy)}
        self.bulk = {s.token for s in everything if isinstance(s, AsyncCopy) and s.bulk}
        self.awaited = {s.token for s in everything if isinstance(s, Wait)}
        self.trips: dict[str, set[int | None]] = {}
        for s in everything:
            if isinstance(s, For) and s.bound:
                self.trips.setdefault(s.kind, set()).add(s.trip)

    def visit(self, s: Stmt, around: tuple[Stmt, ...]) -> str | None:
        if is_plain(s):
            return None
        reason = None
        if isinstance(s, For) and s.bound:
            reason = self.bound(s, around)
        elif isinstance(s, For) and s.note(PRODUCER):
            reason = not_produced(s, self.buffers, self.nest_axes.machine)
        elif isinstance(s, Barrier):
            reason = self.barrier(s, around)
        elif isinstance(s, (AsyncCopy, Wait)):
            reason = self.copy(s, around)
        return reason or next((r for c in children(s) if (r := self.visit(c, (*around, s)))), None)

    def bound(self, f: For, around: tuple[Stmt, ...]) -> str | None:
        if f.kind == THREAD and any(isinstance(g, (For, If, AsyncCopy)) for g in around):
            return f"loop {f.var} of threads is not outermost"
        for g in around:
            if isinstance(g, For) and g.kind == "vector":
                return f"loop {f.var} on {f.kind} is in vectorized loop {g.var}"
            if isinstance(g, For) and g.bound:
                order = [self.nest_axes.kinds.index(x.kind) for x in (g, f)]
                if f.kind == g.kind or (
                    order[0] > order[1] and self.nest_axes.axes[f.kind] != self.nest_axes.axes[g.kind]
                ):
                    return f"loop {f.var} on {f.kind} is inside loop {g.var} on {g.kind}"
        return None

    def barrier(self, s: Barrier, around: tuple[Stmt, ...]) -> str | None:
        if s.scope not in barriers(self.nest_axes.machine):
            known = ", ".join(barriers(self.nest_axes.machine)) or "none"
            return f"there is no barrier {s.scope}; the machine has {known}"
        own: set[str] = set()
        for g in around:
            if isinstance(g, For) and g.bound:
                if s.scope in self.nest_axes.axes[g.kind].barriers:
                    own.add(g.var)
                    if len(self.trips[g.kind]) > 1:
                        return (
                            f"barrier({s.scope}) in loop {g.var}: other loops on {g.kind} have more or less iterations"
                        )
            elif isinstance(g, AsyncCopy) or (isinstance(g, For) and g.kind == "vector"):
                return (
                    f"barrier({s.scope}) is in {'a copy' if isinstance(g, AsyncCopy) else f'vectorized loop {g.var}'}"
                )
            elif any(variables(e) & own or any(isinstance(x, Load) for x in walk(e)) for e in exprs(g)):
                return f"barrier({s.scope}) may be reached by some threads only: a loop or condition around it varies"
        return None

    def copy(self, s: AsyncCopy | Wait, around: tuple[Stmt, ...]) -> str | None:
        name = f"async_copy({s.token})" if isinstance(s, AsyncCopy) else f"wait({s.token})"
        if s.token in self.bulk and (why := not_by_all(s, around, self.nest_axes.machine)):
            return why
        if any(isinstance(g, (If, AsyncCopy)) or (isinstance(g, For) and g.kind == "vector") for g in around):
            return f"{name} is in a condition, a vectorized loop or another copy"
        if isinstance(s, Wait):
            known = s.token in self.begun and s.pending >= 0
            return None if known else f"no async_copy begins what {name} waits for"
        if s.token not in self.awaited:
            return f"nothing waits for {name}"
        if s.bulk:
            return no_boxes(s, self.body, self.buffers, self.nest_axes.machine)
        for x in stores(s.body):
            for t in x.targets:
                if not isinstance(t.value, Load) or t.init is not None or t.value.buffer in writes(s):
                    return f"block {x.block} in {name} is no plain copy"
        return None


# ---- races ---------------------------------------------------------------------------------------------------------


def races(body: Stmt, buffers: Buffers, machine: Machine) -> str | None:
    """Why threads may race, in words: it cannot be shown that what one writes no other touches before a barrier, or
    that nobody touches what is being copied. None if it is shown. The nest must have passed `verify`."""
    nest_axes = NestAxes.of(body, machine)
    for kind in [k for k in nest_axes.kinds if k != THREAD] or [""]:
        own = {n for n, b in buffers.items() if kind and not nest_axes.shares(kind, b)}
        reason = _Phases(kind, nest_axes, body, buffers, own).private() if kind else None
        reason = reason or _Phases(kind, nest_axes, body, buffers, set(buffers) - own).shared()
        if reason:
            return reason
    return None


@dataclass(frozen=True)
class _Place:
    """Where a walk is: what loop variables are, the ranges of those that stay variables, which of them all threads have
    in common there, who runs it (a number of the thread; None: all threads do), in which loop of the axis, and whether
    under a condition; `known` are the conditions that indices alone decide."""

    values: dict[str, Expr] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    common: frozenset[str] = frozenset()
    owner: Expr | None = None
    loop: str = ""
    plain: bool = False
    branch: bool = False
    known: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class _Access:
    buffer: str
    index: tuple[Expr, ...]
    write: bool
    block: str
    at: _Place


@dataclass
class _Phases:
    """The accesses of an axis's threads between two barriers, one such phase after the other. Of a loop with barriers
    or copies inside, the first iterations, some in the middle and the last ones stand for all."""

    kind: str  # "" for one thread alone
    nest_axes: NestAxes
    body: Stmt
    buffers: Buffers
    names: set[str]  # the buffers that are looked at
    phases: bool = True
    now: list[_Access] = field(default_factory=list)
    pending: dict[str, list[list[_Access]]] = field(default_factory=dict)
    reason: str | None = None

    def __post_init__(self) -> None:
        everything = list(walk_stmts(self.body))
        self.scopes = self.nest_axes.axes[self.kind].barriers if self.kind else ()
        self.for_all = {s.token for s in everything if isinstance(s, AsyncCopy) and s.bulk}
        trips = [s.trip or 0 for s in everything if isinstance(s, For) and s.kind == self.kind]
        self.count = max(2, *trips) if trips else 2  # one thread is not all of them, also where there is no other
        self.depth = 2 + max([s.pending for s in everything if isinstance(s, Wait)], default=0)

    def shared(self) -> str | None:
        """Why threads may touch what others write, or somebody what is being copied."""
        self.walk(self.body, _Place())
        self.end()
        return self.reason

    def private(self) -> str | None:
        """What a thread writes into memory of its own, no other sees."""
        self.phases = False  # no barrier makes a difference
        self.walk(self.body, _Place())
        for name in sorted(self.names):
            own = [a for a in self.now if a.buffer == name]
            inside, outside = [a for a in own if a.at.loop], [a for a in own if not a.at.loop]
            alone = [a for a in outside if a.at.owner is not None]
            why = f"{name} is memory of each thread of {self.kind}"
            if any(a.write for a in alone) and len(alone) < len(own):
                return f"{why}, and only the first one runs block {alone[0].block}"
            if any(a.write for a in inside):
                if unseen := [a.block for a in outside if not a.write]:
                    return f"{why}: what loop {inside[0].at.loop} writes there block {unseen[0]} outside does not see"
                if len({a.at.loop for a in inside}) > 1 and not self.apart(inside):
                    return (
                        f"{why}: loops {', '.join({a.at.loop: 0 for a in inside})} use what other threads have written"
                    )
        return self.reason

    # ---- one statement after the other

    def walk(self, s: Stmt, at: _Place) -> None:
        if self.reason:
            return
        if is_plain(s) and not at.plain:
            first = not at.loop and (not self.kind or self.nest_axes.first(self.kind, s, self.buffers))
            at = replace(at, plain=True, owner=Const(0, "index") if first else at.owner)
        if isinstance(s, Store):
            self.store(s, at)
        elif isinstance(s, For):
            self.loop(s, at)
        elif isinstance(s, Barrier):
            if s.scope in self.scopes and not at.branch:
                self.end()
        elif isinstance(s, Wait):
            groups = self.pending.get(s.token, [])
            self.pending[s.token] = groups[max(len(groups) - s.pending, 0) :]
        elif isinstance(s, If):
            holds = simplify_value(substitute(s.cond, at.values), at.ranges)
            mine = () if isinstance(holds, Const) or any(isinstance(x, Load) for x in walk(holds)) else (holds,)
            for c, taken in zip(children(s), (True, False), strict=False):
                if not isinstance(holds, Const) or bool(holds.value) == taken:
                    known = at.known + mine if taken else at.known
                    self.walk(c, replace(at, branch=at.branch or not isinstance(holds, Const), known=known))
        else:
            begun = len(self.now)
            for c in children(s):
                self.walk(c, at)
            if isinstance(s, AsyncCopy):
                self.pending.setdefault(s.token, []).append(self.now[begun:])
                if s.bulk and self.phases:
                    self.bulk(s, begun)

    def bulk(self, s: AsyncCopy, begun: int) -> None:
        """A copy that all threads wait for: when it begins, none of them may still use where it goes. Afterwards it is
        no thread's."""
        group, self.now = self.now[begun:], self.now[:begun]
        others = [b for b in self.now if b.write or b.at.owner != Const(0, "index")]  # the engine is no thread
        for a in (a for a in group if a.write):
            if b := next((b for b in others if b.buffer == a.buffer and self.meet(a, b)), None):
                self.reason = (
                    f"bulk_copy({s.token}) may overwrite elements of {a.buffer} that block {b.block} uses, without a "
                    "barrier between"
                )

    def loop(self, s: For, at: _Place) -> None:
        if s.kind == THREAD:
            self.walk(s.body, replace(at, ranges={**at.ranges, s.var: (0, (s.trip or 1) - 1)}))
            if any(self.pending.values()):
                self.reason = f"each iteration of {s.var} must wait for the copies that it begins"
            return None
        if s.bound:
            var, order = f"%{s.kind}", self.nest_axes.kinds.index
            at = replace(at, values={**at.values, s.var: Var(var)}, ranges={**at.ranges, var: (0, (s.trip or 1) - 1)})
            if s.kind == self.kind:
                at = replace(at, owner=Var(var), loop=s.var)
            elif self.kind and order(s.kind) < order(self.kind):
                at = replace(at, common=at.common | {var})
            return self.walk(s.body, at)
        if is_plain(s) or not any(isinstance(x, (Barrier, AsyncCopy, Wait)) for x in walk_stmts(s.body)):
            limit = bounds(substitute(s.extent, at.values), at.ranges)
            if limit is None:
                self.reason = f"the extent of {s.var} cannot be bounded"
                return None
            return self.walk(s.body, replace(at, ranges={**at.ranges, s.var: (0, max(limit[1] - 1, 0))}))
        if s.trip is None:
            self.reason = f"loop {s.var} around barriers or copies must have a constant extent"
            return None
        n, d = s.trip, self.depth
        if n <= 4 * d:
            return self.iterations(s, at, [Const(i, "index") for i in range(n)])
        self.iterations(s, at, [Const(i, "index") for i in range(d)])
        self.leave()
        middle = replace(at, ranges={**at.ranges, s.var: (0, n - 2 * d)}, common=at.common | {s.var})
        self.iterations(s, middle, [Var(s.var) + i for i in range(d)])
        self.leave()
        self.iterations(s, at, [Const(i, "index") for i in range(n - 2 * d, n)])
        return None

    def leave(self) -> None:
        """What follows is not what runs next."""
        self.pending = {}
        self.end()

    def iterations(self, s: For, at: _Place, values: list[Expr]) -> None:
        for v in values:
            self.walk(s.body, replace(at, values={**at.values, s.var: v}))

    def store(self, s: Store, at: _Place) -> None:
        places = [(t.buffer, t.indices, True) for t in s.targets] + [(x.buffer, x.indices, False) for x in s.loads]
        for name, index, write in places:
            if name not in self.names:
                continue
            moved = tuple(simplify(substitute(i, at.values), at.ranges) for i in index)
            a = _Access(name, moved, write, s.block, at)
            for token, groups in self.pending.items():
                others = [b for g in groups for b in g if b.buffer == name and (write or b.write)]
                if b := next((b for b in others if self.meet(a, b)), None):
                    self.reason = f"block {s.block} may touch {name} while copy {token} (block {b.block}) uses it"
            self.now.append(a)

    # ---- one phase

    def end(self) -> None:
        """All threads have come to a barrier: check what they did since the last one."""
        if not self.phases:
            return
        for name in {a.buffer: 0 for a in self.now if a.write}:
            mine = [a for a in self.now if a.buffer == name]
            if not self.reason and self.kind and not self.apart(mine):
                blocks = ", ".join({a.block: 0 for a in mine})
                self.reason = (
                    f"threads of {self.kind} may touch elements of {name} that others write, "
                    f"without a barrier between: blocks {blocks}"
                )
        self.now = [a for t, groups in self.pending.items() if t not in self.for_all for g in groups for a in g]

    def apart(self, accesses: list[_Access]) -> bool:
        """Whether every element that is written is touched by one thread only."""
        if all(a.at.loop for a in accesses):
            var, buffer = f"%{self.kind}", self.buffers[accesses[0].buffer]
            parts = {own_part(simplify(flat(buffer, a.index), a.at.ranges), var, a.at.ranges) for a in accesses}
            unit = For(var, Const(self.count, "index"), Seq(()))
            apart = len(parts) == 1 and None not in parts
            if apart and all(distinct(a.index, unit, a.at.ranges) for a in accesses if a.write):
                return True
        found = self.numbers(accesses)
        if found is None:
            return False
        places, owners, which = found
        used = np.isin(places, places[np.array([a.write for a in accesses])[which]])
        return one_owner(places[None, used], owners[used])

    def meet(self, a: _Access, b: _Access) -> bool:
        """Whether two accesses may be of the same element."""
        found = self.numbers([a, b])
        return found is None or bool(np.isin(found[0][found[2] == 0], found[0][found[2] == 1]).any())

    def numbers(self, accesses: list[_Access]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """For all values of the loop variables: the number of the element that is touched (together with the values
        that all threads have in common), the thread, and which access it is. None for too many, and for indices from
        memory."""
        used = {v for a in accesses for i in a.index for v in variables(i)}
        common = sorted(used.intersection(*(a.at.common for a in accesses)))
        rows: list[np.ndarray] = []
        owners: list[np.ndarray] = []
        which: list[np.ndarray] = []
        for n, a in enumerate(accesses):
            owner = Var("%all") if a.at.owner is None else a.at.owner
            ranges = {**a.at.ranges, "%all": (0, self.count - 1)}
            names = sorted({v for e in (*a.index, owner, *a.at.known) for v in variables(e)} | set(common))
            total = prod(ranges[v][1] + 1 for v in names)
            if sum(o.size for o in owners) + total > _ENUMERATE or any(
                isinstance(x, Load) for i in a.index for x in walk(i)
            ):
                return None
            grid = np.meshgrid(*[np.arange(ranges[v][1] + 1) for v in names], indexing="ij")
            env = {v: g.reshape(-1) for v, g in zip(names, grid, strict=True)}
            *own, by = (np.broadcast_to(evaluate(e, env), total) for e in (*map(Var, common), *a.index, owner))
            runs = np.broadcast_to(np.all([evaluate(c, env) for c in a.at.known], axis=0), total)
            rows.append((np.stack(own) if own else np.zeros((1, total), np.int64))[:, runs])
            owners.append(by[runs])
            which.append(np.full(int(runs.sum()), n))
        return numbered(np.concatenate(rows, axis=1)), np.concatenate(owners), np.concatenate(which)


__all__ = ["NestAxes", "illegal", "is_plain", "races", "verify"]
