"""`block_contraction` with vector loads and stores: threads copy, read and write several contiguous elements at once.

The columns of a thread are then vectors, interleaved with those of its neighbouring threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....tensor.analysis import flat
from ....tensor.expr import Buffer, Expr, Load, Op, Var, loads, walk
from ...machine import lanes
from ...nest import Alloc, If, Stmt, seq, store
from ...schedule import Schedule
from ..common import coefficient
from .contraction import LANE, Contraction, ContractionTile, ContractionWriter
from .thread_binding import all_of, on, only_if, within


class VectorWriter(ContractionWriter):
    """Writes the nest of a product with a tile; `wide`: elements of an access."""

    def __init__(self, s: Schedule, p: Contraction, t: ContractionTile) -> None:
        super().__init__(s, p, t)
        self.wide = lanes(s.machine(), self.zero.dtype)
        self.rows_wide, self.columns_wide = (n % self.wide == 0 for n in (t.thread_rows, t.thread_columns))

    def lanes(self, body: Stmt) -> Stmt:
        return on("vector", LANE.name, self.wide, body)

    def border_lanes(self, dims: Sequence[tuple[str, int]]) -> int:
        return self.wide if dims and dims[-1][1] % self.wide == 0 else 1

    # ---- bringing pieces

    def together(self, which: int) -> bool:
        """Whether neighbours of a factor are read in any case, and lie in runs of whole accesses."""
        value, deep = self.p.factors[which], self.along_depth(which)
        group = self.p.depth if deep else self.p.rows if which == 0 else self.p.columns
        tile = self.t.depth if deep else self.t.rows if which == 0 else self.t.columns
        if not group or group[-1][1] % self.wide or tile % self.wide:
            return False
        if any(isinstance(e, Op) and e.op in ("guard", "seldom") for e in walk(value)):
            return False
        places = [flat(self.s.buffer(x.buffer), x.indices) for x in loads(value)]
        return any(coefficient(where, group[-1][0]) == 1 for where in places)

    def piece(self, which: int) -> Stmt:
        p, t, wide = self.p, self.t, self.wide
        group, tile, base = (p.rows, t.rows, self.row) if which == 0 else (p.columns, t.columns, self.column)
        count = t.depth * tile // wide
        if not self.together(which) or count < t.threads:
            return super().piece(which)
        name = "ab"[which]
        u, e = Var(f"u_{name}"), Var(f"e_{name}")
        place = e * t.threads + u
        deep, runs = self.along_depth(which), tile // wide
        first = self.deep_place(place, tile, wide) if deep else (place // runs, place % runs * wide)
        at = (base * tile + first[1], self.step * t.depth + first[0])
        inside = all_of([within(at[0], prod(n for _, n in group), tile), within(at[1], p.size("depth"), t.depth)])
        k, i = (first[0] + LANE, first[1]) if deep else (first[0], first[1] + LANE)
        value = self.factor(which, base * tile + i, self.step * t.depth + k)

        def put(x: Expr) -> Stmt:
            return self.lanes(store(self.pieces[which].name, (k, i), x, self.s.fresh(f"bring_{name}")))

        body = put(value) if inside is None else If(inside, put(value), put(self.zero))
        body = only_if(within(place, count, t.threads), body)
        return self.thread(u.name, on("serial", e.name, -(-count // t.threads), body))

    # ---- products

    def column_of(self, u: Expr, c: Expr) -> Expr:
        if not self.columns_wide:
            return super().column_of(u, c)
        wide, across = self.wide, self.t.columns // self.t.thread_columns
        return c // wide * (across * wide) + u % across * wide + c % wide

    def multiply(self) -> Stmt:
        """The numbers of a thread's rows and columns are loaded into registers before they are multiplied."""
        t, u, k = self.t, Var("u"), Var("k")
        if not self.columns_wide:
            return super().multiply()
        dtype, across = self.zero.dtype, t.columns // t.thread_columns
        held = [Buffer(self.s.fresh(f"held_{n}"), (size,), dtype, "register") for n, size in self.sides()]
        first = [u // across * t.thread_rows, Var("u")]
        steps = []
        for which, (b, part) in enumerate(zip(held, ("rv", "cv"), strict=True)):
            wide = self.wide if which or self.rows_wide else 1
            i = Var(part) * wide + (LANE if wide > 1 else 0)
            at = first[0] + i if which == 0 else self.column_of(u, i)
            read = store(b.name, (i,), Load(self.pieces[which].name, (k, at), dtype), self.s.fresh("read"))
            steps.append(on("unroll", part, b.size // wide, self.lanes(read) if wide > 1 else read))
        product = self.multiply_add(u, *(Load(b.name, (Var(v),), dtype) for b, v in zip(held, "rc", strict=True)))
        body: Stmt = on("serial", "k", t.depth, *steps, self.own(product, "r", "c"))
        for b in held:
            body = Alloc(b, body)
        return self.thread("u", body)

    def sides(self) -> tuple[tuple[str, int], ...]:
        return ("a", self.t.thread_rows), ("b", self.t.thread_columns)

    # ---- results

    def write(self) -> Stmt:
        t, wide, columns = self.t, self.wide, self.p.columns
        if not self.columns_wide or not columns or columns[-1][1] % wide:
            return super().write()
        u, r, v = Var("u1"), Var("r1"), Var("c1")
        inside, made = self.results(u, r, v * wide + LANE, v * wide)
        body = only_if(inside, seq(*map(self.lanes, made)))
        return self.thread("u1", on("unroll", "r1", t.thread_rows, on("unroll", "c1", t.thread_columns // wide, body)))


__all__ = ["VectorWriter"]
