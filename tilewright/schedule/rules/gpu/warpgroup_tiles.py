"""The part that all nests of warpgroup matrix products share, however their factors are loaded: the matrix
instructions."""

from __future__ import annotations

from dataclasses import replace

from ....tensor.expr import Expr, Load, Op, Var
from ...nest import Stmt, store
from ...warp import NOTE
from .thread_binding import GROUP, MEMBER, on
from .warp_tiles import WarpWriter


class WarpgroupWriter(WarpWriter):
    """Writes the nest of a product with a tile of warpgroups."""

    team_axis, thread_axis = GROUP, MEMBER

    def located(self, which: int, slot: Expr, line: Expr, deep: Expr) -> tuple[Expr, ...]:
        """Where an element of a piece lies."""
        return self.place(which, slot, line, deep // self.vector, deep % self.vector)

    def products(self, slot: Expr) -> Stmt:
        t, w = self.t, self.w
        team, part = Var("w"), Var("part")
        m, n, k = Var("mi"), Var("ni"), Var("ki")
        row = Var("mt") * w.rows + m
        deep = part * w.depth + k
        lines = team // self.across * t.thread_rows + row, team % self.across * t.thread_columns + n
        factors: list[Expr] = []
        for which, line in enumerate(lines):
            place = self.located(which, slot, line, deep)
            factors.append(Op(w.extends, (Load(self.pieces[which].name, place, w.dtype),), w.sums))
        at = (team, row, n)
        old = Load(self.sums.name, at, w.sums)
        value = Op("addf", (old, Op("mulf", tuple(factors), w.sums)), w.sums)
        put = store(self.sums.name, at, value, self.s.fresh("multiply"))
        inner = replace(on("serial", "ki", w.depth, put), notes=((NOTE, w.name),))
        one = on("serial", "mi", w.rows, on("serial", "ni", w.columns, inner))
        every = on("unroll", "part", t.depth // w.depth, on("unroll", "mt", t.thread_rows // w.rows, one))
        return on(self.team_axis, "w", t.warps, every)


__all__ = ["WarpgroupWriter"]
