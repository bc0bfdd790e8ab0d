"""The nest of a warpgroup matrix product (``wgmma``) whose factors are copied by TMA or the like
(`warpgroup_tensor_cores`).

    one thread begins to copy the first pieces of both factors
    for each tile of the block:
        for each step of the sum:
            wait for its pieces; a producer thread begins to copy those of a later step, perhaps of the next tile
            each warpgroup multiplies its rows and columns, while the products of the step before end
        each warpgroup writes its tile, with the elementwise epilogue

A factor that is contiguous along the sum lies in shared memory in rows of 128 bytes along the sum; one that is
contiguous along rows or columns of the result in rows of 128 bytes along these, in panels. Both are swizzled. The copy
engine writes zeros beyond the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....tensor.expr import Buffer, Const, Expr, Op, Var, substitute
from ...bulk import no_boxes
from ...machine import Machine, WarpLoad, WarpProduct
from ...nest import Alloc, AsyncCopy, Barrier, Stmt, Wait, seq, store, walk_stmts
from ...producers import PRODUCER
from ...schedule import Schedule
from .contraction import TILE_LOOPS, Contraction, grid
from .thread_binding import BLOCK, CLUSTER, all_of, digits, guarded, on, only_if, within
from .tile_order import TileOrder
from .warp_tiles import Side, WarpTile
from .warpgroup_tiles import WarpgroupWriter

#: numbers of 16 bits in a row of 128 bytes, and in a piece of it that changes places with the row
ROW, PIECE = 64, 8


class PipelineWriter(WarpgroupWriter):
    """Writes the nest. Without an order a block of the grid has a tile, and the grid is one of rows and columns."""

    def __init__(
        self, s: Schedule, p: Contraction, t: WarpTile, w: WarpProduct, sides: tuple[Side, Side], load: WarpLoad,
        order: TileOrder | None,
    ) -> None:  # fmt: skip
        super().__init__(s, p, t, w, sides, load)
        self.order, self.steps = order, -(-p.size("depth") // t.depth)
        self.turns = order.turns if order is not None else 1
        self.turn: Expr = Var("turn") if self.turns > 1 else Const(0, "index")
        self.move_to(self.turn)

    def move_to(self, turn: Expr) -> None:
        """What is written from here on is for the tile of a turn."""
        if self.order is not None:
            self.batch, self.row, self.column = self.order.place(self.order.number(Var("block"), turn))
            if self.order.cluster > 1:
                self.row = self.row * self.order.cluster + Var("rank")

    def own_number(self) -> tuple[Expr, int]:
        if self.order is None:
            return super().own_number()
        n = self.order.cluster
        return (Var("block") * n + Var("rank") if n > 1 else Var("block")), self.order.blocks * n

    def shape(self, which: int) -> tuple[int, ...]:
        t, lines = self.t, (self.t.rows, self.t.columns)[which]
        return (t.stages, lines, ROW) if self.sides[which].deep else (t.stages, lines // ROW, t.depth, ROW)

    def nest(self, most: int = ROW) -> Stmt:
        """Boxes have so many lines at most."""
        p, t, self.most = self.p, self.t, most
        a, b = self.pieces
        first, token = Var("first"), self.s.fresh("copies")
        begin = on("serial", "first", t.stages - 1, self.begin_copies(first, token, "_first"))
        borders = [self.border(b, i) for i, b in enumerate(p.borders)]
        body: Stmt = Alloc(a, Alloc(b, Alloc(self.sums, seq(*borders, begin, self.tiles(token)))))
        if self.order is not None:
            body = on(CLUSTER, "rank", self.order.cluster, body) if self.order.cluster > 1 else body
            return on("grid.x", "block", self.order.blocks, body)
        for (axis_name, n), var in zip(grid(p, t), TILE_LOOPS, strict=True):
            body = on(axis_name, var, n, body)
        return body

    def tiles(self, token: str) -> Stmt:
        """All of a block's tiles."""
        number = self.turn * self.steps + Var("step")
        later = self.begin_copies(number + (self.t.stages - 1), token, "")
        self.move_to(self.turn)
        products = self.products(number % self.t.stages)
        step = on("serial", "step", self.steps, Barrier(BLOCK), later, Wait(token, self.t.stages - 1), products)
        turns = on("serial", "turn", self.turns, self.begin(), step, self.write())
        return replace(turns, notes=((PRODUCER, True),))

    def holds(self) -> Expr | None:
        if self.order is None or not self.order.beyond:
            return None
        number = self.order.first(Var("block"), self.turn)
        return Op("cmpi.slt", (number, Const(self.order.tiles, "index")), "i1")

    # ---- bringing

    def begin_copies(self, number: Expr, token: str, suffix: str) -> Stmt:
        """Begin to copy both pieces of the step with a number, among those of all turns, if there is one."""
        self.move_to(number // self.steps if self.turns > 1 else self.turn)
        boxes = seq(*(self.boxes(which, number, suffix) for which in (0, 1)))
        all_steps = Const(self.turns * self.steps, "index")
        inside = Op("cmpi.slt", (number, all_steps), "i1")
        sure = suffix and self.t.stages - 1 <= self.turns * self.steps
        return AsyncCopy(token, boxes if sure else only_if(inside, boxes), bulk=True)

    def boxes(self, which: int, number: Expr, suffix: str) -> Stmt:
        t, side, name = self.t, self.sides[which], f"{'ab'[which]}{suffix}"
        lines, base = ((t.rows, self.row), (t.columns, self.column))[which]
        slot, step = number % t.stages, number % self.steps
        high = min(lines, self.most) if side.deep else ROW
        found = []
        for i, first in enumerate(range(0, lines, high)):
            line, deep = Var(f"line_{name}{i or ''}"), Var(f"deep_{name}{i or ''}")
            place = self.located(which, slot, line + first, deep)
            value = self.inside(which, base * lines + first + line, step * t.depth + deep, lines)
            put: Stmt = store(self.pieces[which].name, place, value, self.s.fresh(f"bring_{name}"))
            loops = [(line.name, high), (deep.name, t.depth)]
            for var, n in loops[:: -1 if side.deep else 1]:
                put = on("serial", var, n, put)
            found.append(put)
        return seq(*found)

    def inside(self, which: int, line: Expr, deep: Expr, lines: int) -> Expr:
        """A factor at a line and a place of the sum, zero beyond them."""
        side, p = self.sides[which], self.p
        values = digits(self.batch, p.batch) | _digits(line, side.group) | _digits(deep, p.depth)
        zero = Const(0.0, self.w.dtype)
        size = p.size("rows" if which == 0 else "columns")
        there = all_of([within(line, size, lines), within(deep, p.size("depth"), self.t.depth)])
        return guarded(there, substitute(side.value, values), zero)

    def located(self, which: int, slot: Expr, line: Expr, deep: Expr) -> tuple[Expr, ...]:
        rows, along = (line, deep) if self.sides[which].deep else (deep, line % ROW)
        turned = Op("xori", (along // PIECE, rows % PIECE), "index") * PIECE + along % PIECE
        return (slot, line, turned) if self.sides[which].deep else (slot, line // ROW, deep, turned)


def _digits(position: Expr, dims: Sequence[tuple[str, int]]) -> dict[str, Expr]:
    """As `digits`, also of positions beyond the last one: those lie beyond the first dimension that has several."""
    several = [d for d in dims if d[1] > 1]
    return {v: Const(0, "index") for v, _ in dims} | digits(position, several)


def not_copied(body: Stmt, s: Schedule, machine: Machine) -> str:
    """Why the engine of the machine cannot copy what it should in a nest; empty if it can."""
    buffers: dict[str, Buffer] = dict(s.params)
    buffers |= {x.buffer.name: x.buffer for x in walk_stmts(body) if isinstance(x, Alloc)}
    copies = [x for x in walk_stmts(body) if isinstance(x, AsyncCopy)]
    return next((why for c in copies if (why := no_boxes(c, body, buffers, machine))), "")


__all__ = ["PipelineWriter", "not_copied"]
