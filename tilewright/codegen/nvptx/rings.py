"""Rings of ``mbarrier``: which barrier a group of bulk copies completes on, and the parity of the phase to wait for.

The groups of a token are numbered in the order in which they begin. Group n uses barrier ``n % size`` of the token's
ring, whose phase ``n // size`` ends when its bytes are there. A thread that waits asks for the parity of a phase, so a
barrier must not go on by two phases while somebody still waits for the first: before group n begins, all threads have
waited for group n - size, and met at a barrier since. `Rings` numbers groups and waits by expressions of the loops
around them, and finds how large rings have to be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...schedule.nest import AsyncCopy, Barrier, For, Stmt, Wait, children, walk_stmts
from ...schedule.producers import PRODUCER, begins_copies, parts
from ...support.errors import CompileError
from ...tensor.expr import Const, Expr, Var

#: the barrier that all threads of a block have
_SCOPE = "block"
#: barriers of a ring, at most, and iterations of a loop after which nothing new comes
_MOST, _ITERATIONS = 32, 64


@dataclass
class Rings:
    """`size`: barriers of each token; `number`: the number of the group that a copy begins, and of the first group that
    a wait waits for, by the identity of the statement; `count`: for how many groups it waits. For the loop of a
    producer's steps (`steps`), `number` is that of its first iteration among all that such loops have."""

    kernel: str
    size: dict[str, int] = field(default_factory=dict)
    number: dict[int, Expr] = field(default_factory=dict)
    count: dict[int, int] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    # while the nest is followed: groups begun and waited for, and of these the ones before the last barrier
    begun: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)
    met: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(body: Stmt, kernel: str) -> Rings:
        """Those of a nest; CompileError where waits do not find the same number of groups each time, or no barrier
        keeps a ring small."""
        rings = Rings(kernel)
        tokens = {s.token for s in walk_stmts(body) if isinstance(s, AsyncCopy) and s.bulk}
        if tokens:
            rings.size, rings.begun = dict.fromkeys(tokens, 1), dict.fromkeys(tokens, 0)
            rings.waited, rings.met = dict(rings.begun), dict(rings.begun)
            rings.steps = {id(_steps(s)) for s in walk_stmts(body) if isinstance(s, For) and s.note(PRODUCER)}
            rings.follow(body)
            zero: Expr = Const(0, "index")
            rings.numbered(body, dict.fromkeys(tokens, zero), zero)
        return rings

    def refuse(self, why: str, hint: str) -> CompileError:
        return CompileError(why, stage="emit", operator=self.kernel, hint=hint)

    # ---- in the order in which statements run

    def follow(self, s: Stmt) -> None:
        if isinstance(s, AsyncCopy) and s.bulk:
            t = s.token
            self.size[t] = max(self.size[t], self.begun[t] - self.met[t] + 1)
            if self.size[t] > _MOST:
                raise self.refuse(
                    f"bulk copies of {t} begin again and again, and no barrier shows that all have waited",
                    "a barrier in the loop: s.barrier(block of the copy, 'block')",
                )
            self.begun[t] += 1
        elif isinstance(s, Wait) and s.token in self.size:
            last = max(self.begun[s.token] - s.pending, self.waited[s.token])
            new = last - self.waited[s.token]
            if self.count.setdefault(id(s), new) != new:
                raise self.refuse(
                    f"wait({s.token}) ends {self.count[id(s)]} groups of copies at one time and {new} at another",
                    "begin as many copies before the loop as the wait leaves pending",
                )
            self.waited[s.token] = last
        elif isinstance(s, Barrier) and s.scope == _SCOPE:
            self.met = dict(self.waited)
        elif isinstance(s, For) and not s.bound:
            self.loop(s)
        else:
            for c in children(s):
                self.follow(c)

    def loop(self, s: For) -> None:
        """The iterations of a loop until each leaves behind what the one before it did."""
        if not any(isinstance(x, (AsyncCopy, Wait, Barrier)) for x in walk_stmts(s.body)):
            return
        if s.trip is None:
            raise self.refuse(f"loop {s.var} has bulk copies and no constant extent", "copy element by element")
        before = None
        for _ in range(min(s.trip, _ITERATIONS)):
            self.follow(s.body)
            after = [(self.begun[t] - self.waited[t], self.waited[t] - self.met[t]) for t in sorted(self.size)]
            if after == before:
                break
            before = after

    # ---- by loops

    def numbered(self, s: Stmt, at: dict[str, Expr], turn: Expr) -> tuple[dict[str, int], int]:
        """Number what stands in a statement, from `at` on; how many groups of each token it begins, and how many
        steps of producers it has."""
        made, turns = dict.fromkeys(self.size, 0), 0
        if isinstance(s, AsyncCopy) and s.bulk:
            self.number[id(s)] = at[s.token]
            return {**made, s.token: 1}, 0
        if isinstance(s, Wait) and s.token in self.size:
            self.number[id(s)] = at[s.token] - (s.pending + self.count[id(s)])
            return made, 0
        if isinstance(s, For) and not s.bound:
            each, inner = self.numbered(s.body, dict.fromkeys(self.size, Const(0, "index")), Const(0, "index"))
            if not any(each.values()) and not any(isinstance(x, Wait) for x in walk_stmts(s.body)):
                return made, 0
            if id(s) in self.steps:
                inner = 1
                self.number[id(s)] = turn
            var = Var(s.var)
            self.numbered(s.body, {t: at[t] + var * n for t, n in each.items()}, turn + var * inner)
            return {t: n * (s.trip or 0) for t, n in each.items()}, inner * (s.trip or 0)
        for c in children(s):
            more, further = self.numbered(c, {t: at[t] + n for t, n in made.items()}, turn + turns)
            made, turns = {t: n + more[t] for t, n in made.items()}, turns + further
        return made, turns


def _steps(s: Stmt) -> Stmt:
    """The loop within one with a producer that begins the copies."""
    while isinstance(s, For) and not any(isinstance(x, AsyncCopy) for x in parts(s.body)):
        s = next((x for x in parts(s.body) if begins_copies(x)), Wait(""))
    return s


__all__ = ["Rings"]
