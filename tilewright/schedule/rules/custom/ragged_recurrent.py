"""Recurrent layers of language models (`ops/ragged_recurrent.py`): channels, or columns of a head's state, are divided
among threads; each task goes through the tokens of one sequence after the other.

    for a head's columns: for sequence:                                                      # columns are lanes
      state[D, columns] = pool[initial]
      for token:  had = k @ state; ...; state = decay * state + outer(k, new), y = q @ state; pool[keep] = state

A task has its own part of every snapshot, so that nothing waits. A pool that is updated in place is not copied
(`COPIES`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from ....support.dtypes import wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, minimum
from ....tensor.kernel import Kernel
from ...inplace import COPIES
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Stmt, Store, loop, seq, store, transform
from .. import direct
from .nests import Access, add, at_least, divide, index, mul

#: vectors of columns that a task has of a state: as many sums at once
VECTORS = 4

Place = Callable[[Expr], tuple[Expr, ...]]


class RaggedRecurrence(Access):
    """What these operators share: tokens of sequences, a pool of snapshots, columns in lanes.

    `first`: where the pool is among the operands; `width` columns are divided into tasks of `vectors` at most, of each
    of `parts` things.
    """

    def __init__(self, kernel: Kernel, machine: Machine, first: int, parts: int, width: int, vectors: int) -> None:
        super().__init__(kernel)
        self.machine, self.width = machine, width
        self.pool, self.starts, self.initial, self.keep = (self.operand(first + i) for i in range(4))
        self.extra = self.opaque.operands[first + 4] if len(self.opaque.operands) > first + 4 else None
        self.y, self.new = self.opaque.results
        self.key = wide(self.dtype(self.pool))
        self.tokens = self.shape(self.keep)[0]
        self.lanes = min(lanes(machine, self.key), 1 << max(width - 1, 0).bit_length())
        self.vectors = min(vectors, -(-width // self.lanes))
        self.blocks = -(-width // (self.vectors * self.lanes))
        work = self.tokens * prod(self.shape(self.pool)[1:])
        self.tasks = divide(parts * self.blocks, work, machine)
        #: which of the parts, and which of its columns
        unit = self.tasks.first + Var("unit")
        self.part, self.block = unit // self.blocks, unit % self.blocks
        self.column = Var("v") * self.lanes + Var("l")
        self.c = self.block * (self.vectors * self.lanes) + self.column

    def number(self, x: float) -> Const:
        return Const(x, self.key)

    def op(self, name: str, *args: Expr) -> Expr:
        return Op(name, args, self.key)

    def buffer(self, name: str, *rows: int, scope: str = "register") -> Buffer:
        """Memory of a task with so many rows of its columns."""
        return Buffer(name, (*rows, self.vectors * self.lanes), self.key, scope)

    def over(self, body: Stmt) -> Stmt:
        """`body` for all columns of a task."""
        left = self.width - (self.block * self.vectors + Var("v")) * self.lanes
        lane = index(self.lanes) if self.width % self.lanes == 0 else minimum(self.lanes, left)
        whole = -(-self.width // self.lanes) % self.vectors == 0
        count = -(-self.width // self.lanes) - self.block * self.vectors
        vectors = index(self.vectors) if whole else minimum(self.vectors, count)
        return For("v", vectors, For("l", lane, body, "vector", self.lanes), "unroll")

    def token(self, b: Expr) -> Expr:
        """Where sequence b starts, among the tokens that there are."""
        at = Op("index_cast", (Load(self.starts, (b,), "i32"),), "index")
        return minimum(Op("maxsi", (at, index(0)), "index"), self.tokens)

    def snapshot(self, of: str, i: Expr) -> Expr:
        """A number of ``initial`` or ``keep``, not beyond the last snapshot."""
        return minimum(Op("index_cast", (Load(of, (i,), "i32"),), "index"), self.shape(self.pool)[0] - 1)

    def nest(self, rows: int, kind: str, state: str, at: Place, step: Callable[[Expr], Stmt]) -> Stmt:
        """All tasks. The buffer `state` has `rows` of columns, in a snapshot those at ``at(row)``; ``step(token)`` is
        what changes it and writes y. `kind`: of the loops over rows."""
        b, s, j = Var("b"), Var("s"), Var("j")
        own = (j, self.column)
        now = Load(state, own, self.key)

        def each(body: Stmt) -> Stmt:
            return loop("j", rows, self.over(body), kind)

        first, begin = self.token(b), self.snapshot(self.initial, b)
        token = first + Var("t")
        to = self.snapshot(self.keep, token)
        copy = loop("s", self.shape(self.pool)[0], each(self.copy((s, *at(j)))))
        old = self.read(self.new, (begin, *at(j)))
        start = If(
            at_least(begin, 0),
            each(store(state, own, old, "begin")),
            each(store(state, own, self.number(0.0), "zeros")),
        )
        keep = If(at_least(to, 0), each(self.write(self.new, (to, *at(j)), now, "keep")))
        count = Op("maxsi", (self.token(b + 1) - first, index(0)), "index")
        sequence = seq(start, loop("t", count, seq(step(token), keep)))
        body = Alloc(
            self.buffer(state, rows, scope="register" if kind == "unroll" else "local"),
            loop("b", self.shape(self.initial)[0], sequence),
        )
        return self.tasks.parallel(loop("unit", self.tasks.extent, seq(self.unless_in_place(copy), body)))

    def copy(self, place: tuple[Expr, ...]) -> Store:
        return store(self.new, place, Load(self.pool, place, self.dtype(self.pool)), "copy")

    def unless_in_place(self, copy: Stmt) -> Stmt:
        """The loops that copy the pool, marked as such unless this kernel makes it."""
        if all(p.name != self.pool for p in self.kernel.params):
            return copy

        def mark(s: Stmt) -> Stmt:
            return replace(s, notes=(*s.notes, (COPIES, self.pool))) if isinstance(s, For) else s

        marked = transform(copy, mark)
        assert marked is not None
        return marked


@direct("ragged_conv")
def ragged_conv(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.ragged_conv``: the window of a vector of channels is in registers."""
    assert kernel.opaque is not None
    _, before, channels = Access(kernel).shape(Access(kernel).operand(2))
    r = RaggedRecurrence(kernel, machine, 2, 1, channels, 1)
    x, weights = r.operand(0), r.operand(1)

    def step(t: Expr) -> Stmt:
        window = [Load("window", (index(j), r.column), r.key) for j in range(before)]
        taps = [*window, r.read(x, (t, r.c))]
        total: Expr = r.number(0.0) if r.extra is None else r.read(r.extra, (r.c,))
        for j, value in enumerate(taps):
            total = add(total, mul(r.read(weights, (index(j), r.c)), value))
        if r.opaque.attributes["silu"]:
            total = r.op("divf", total, add(r.number(1.0), r.op("exp", r.op("negf", total))))
        moved = [Target("window", (index(j), r.column), taps[j + 1]) for j in range(before)]
        return r.over(Store((Target(r.y, (t, r.c), r.narrow(r.y, total)), *moved), "conv"))

    return r.nest(before, "unroll", "window", lambda j: (j, r.c), step)


@direct("gated_linear_attention")
def gated_linear_attention(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.gated_linear_attention``: a task goes through its part of the state twice for a token, to
    see what it has for k, and to change it and read it."""
    assert kernel.opaque is not None
    _, heads, depth, width = Access(kernel).shape(Access(kernel).operand(4))
    r = RaggedRecurrence(kernel, machine, 4, heads, width, VECTORS)
    q, k, v, gate = (r.operand(i) for i in range(4))
    group, i = heads // r.shape(q)[1], Var("i")
    shared = r.part // group
    state, old, out = (Load(n, at, r.key) for n, at in
                       (("state", (i, r.column)), ("had", (r.column,)), ("out", (r.column,))))  # fmt: skip
    decay, new = Load("decay", (), r.key), Load("new", (r.column,), r.key)

    def step(t: Expr) -> Stmt:
        value: Expr = r.read(v, (t, r.part, r.c))
        had: Stmt | None = None
        if r.extra is not None:
            seen = add(old, mul(r.read(k, (t, shared, i)), state))
            had = seq(
                r.over(store("had", (r.column,), r.number(0.0), "clear")),
                loop("i", depth, r.over(store("had", (r.column,), seen, "had"))),
            )
            value = mul(r.op("subf", value, mul(decay, old)), r.read(r.extra, (t, r.part)))
        changed = add(mul(decay, state), mul(r.read(k, (t, shared, i)), new))
        both = Store(
            (
                Target("state", (i, r.column), changed),
                Target("out", (r.column,), add(out, mul(r.read(q, (t, shared, i)), changed))),
            ),
            "change",
        )
        body = seq(
            store("decay", (), r.op("exp", r.read(gate, (t, r.part))), "decay"),
            had,
            r.over(store("new", (r.column,), value, "new")),
            r.over(store("out", (r.column,), r.number(0.0), "clear")),
            loop("i", depth, r.over(both)),
            r.over(r.write(r.y, (t, r.part, r.c), out, "out")),
        )
        for b in (Buffer("decay", (), r.key, "register"), *map(r.buffer, ("new", "out"))):
            body = Alloc(b, body)
        return body if r.extra is None else Alloc(r.buffer("had"), body)

    return r.nest(depth, "serial", "state", lambda j: (r.part, j, r.c), step)


__all__ = ["gated_linear_attention", "ragged_conv"]
