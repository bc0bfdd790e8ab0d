"""Writes the nest of a matrix product on tensor cores (`tensor_cores`): a software pipeline through shared memory.

    threads begin to copy the first pieces of both factors to shared memory
    for each step of the sum:
        wait for its pieces, and for all warps: nobody uses those of the step before any more
        begin to copy later ones in their place
        each warp loads its rows and columns into fragments and multiplies them
    each warp writes its tile, with the elementwise epilogue

Pieces lie in rows along the contiguous dimension, the 16-byte runs of each row swizzled, so that the rows which a warp
reads at once are in different banks. Rows and columns beyond the result are those at its edge once more, which nobody
writes; steps beyond the sum are zeros. What cannot be copied as it lies is loaded and used one piece after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ....support.dtypes import LOOP_TYPES
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, substitute
from ...machine import WarpLoad, WarpProduct
from ...nest import Alloc, AsyncCopy, Barrier, For, If, Stmt, Store, Wait, seq, store, substitute_vars
from ...schedule import Schedule
from ...warp import NOTE
from .contraction import TILE_LOOPS, Contraction, ContractionTile, ContractionWriter, grid
from .thread_binding import BLOCK, LANE, WARP, all_of, digits, on, only_if, within
from .thread_per_element import applied

#: bytes that a thread copies at once
COPY_BYTES = 16
#: bytes that a memory in banks gives at once
_BANKS_BYTES = 128
#: loops of so many iterations are written out
_UNROLL = 16


@dataclass(frozen=True)
class Side:
    """A factor: what is brought of it, and its loops beside those of the sum. `deep`: neighbours in memory are
    neighbours in the sum. So many elements as `run` says lie side by side, at a multiple of their bytes; zeros may fill
    the last run. `plain`: they are brought as they lie."""

    value: Expr
    group: tuple[tuple[str, int], ...]
    deep: bool
    run: int
    plain: bool


def innermost(group: tuple[tuple[str, int], ...]) -> tuple[str, int]:
    """The last loop of a group that has more than one iteration."""
    return next((d for d in reversed(group) if d[1] != 1), group[-1])


@dataclass(frozen=True)
class WarpTile(ContractionTile):
    """A tile of which warps have parts: `thread_rows` and `thread_columns` are those of a warp. `stages`: pieces of
    each factor in shared memory, all but one of them on their way."""

    stages: int
    lanes: int

    @property
    def warps(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    @property
    def threads(self) -> int:
        return self.lanes * self.warps

    def tiles(self, p: Contraction) -> int:
        """How many a result has."""
        return prod(n for _, n in grid(p, self))

    def bytes(self, size: int) -> int:
        """Of shared memory, for elements of so many bytes."""
        return self.stages * self.depth * (self.rows + self.columns) * size

    def __str__(self) -> str:
        return (
            f"tiles of {self.rows} x {self.columns} on {self.warps} warps, {self.thread_rows} x {self.thread_columns} "
            f"each, {self.depth} steps of the sum in shared memory, {self.stages} at once"
        )


class WarpWriter(ContractionWriter):
    """Writes the nest of a product with a tile of warps."""

    t: WarpTile
    #: the axes of those that run an instruction together, and of each of these
    team_axis, thread_axis = WARP, LANE

    def __init__(
        self, s: Schedule, p: Contraction, t: WarpTile, w: WarpProduct, sides: tuple[Side, Side], load: WarpLoad
    ) -> None:
        super().__init__(s, p, t)
        self.w, self.sides, self.load = w, sides, load
        self.sums = Buffer(s.fresh("sums"), (t.warps, t.thread_rows, t.thread_columns), w.sums, w.memory)
        self.vector = COPY_BYTES // LOOP_TYPES[w.dtype].nbytes
        a, b = (Buffer(s.fresh(f"piece_{x}"), self.shape(i), w.dtype, "shared") for i, x in enumerate("ab"))
        self.pieces = a, b
        self.across = t.columns // t.thread_columns

    def shape(self, which: int) -> tuple[int, ...]:
        """Of the pieces of a factor that are in shared memory at once."""
        t, n = self.t, (self.t.rows, self.t.columns)[which]
        return (t.stages, n, t.depth) if self.sides[which].deep else (t.stages, t.depth, n)

    def nest(self) -> Stmt:
        p, t = self.p, self.t
        a, b = self.pieces
        steps = self.ahead() if t.stages > 1 else self.in_turn()
        inner = seq(self.begin(), *steps, self.write(), *(self.border(b, i) for i, b in enumerate(p.borders)))
        body: Stmt = Alloc(a, Alloc(b, Alloc(self.sums, inner)))
        for (axis_name, n), var in zip(grid(p, t), TILE_LOOPS, strict=True):
            body = on(axis_name, var, n, body)
        return body

    def in_turn(self) -> Sequence[Stmt]:
        """Each piece is brought, and then used."""
        steps, slot = -(-self.p.size("depth") // self.t.depth), Const(0, "index")
        bring = [self.copy(i, self.step, slot) for i in (0, 1)]
        return (on("serial", "step", steps, *bring, Barrier(BLOCK), self.products(slot), Barrier(BLOCK)),)

    def ahead(self) -> Sequence[Stmt]:
        """Pieces are on their way while those before them are used."""
        stages, steps = self.t.stages, self.p.size("depth") // self.t.depth
        token, first = self.s.fresh("copies"), Var("first")
        begin = AsyncCopy(token, seq(*(self.copy(i, first, first, "_first") for i in (0, 1))))
        later = self.step + (stages - 1)
        bring = seq(*(self.copy(i, later, later % stages) for i in (0, 1)))
        more = only_if(within(later, steps, 1) or Op("cmpi.slt", (later, Const(steps, "index")), "i1"), bring)
        turn = (Wait(token, stages - 2), Barrier(BLOCK), AsyncCopy(token, more), self.products(self.step % stages))
        return on("serial", "first", stages - 1, begin), on("serial", "step", steps, *turn)

    def thread(self, name: str, *body: Stmt) -> For:
        """All threads: the lanes of the warps."""
        team, lane = f"{name}_warp", f"{name}_lane"
        number = Var(team) * self.t.lanes + Var(lane)
        inner = on(self.thread_axis, lane, self.t.lanes, substitute_vars(seq(*body), {name: number}))
        return on(self.team_axis, team, self.t.warps, inner)

    # ---- bringing

    def copy(self, which: int, step: Expr, slot: Expr, suffix: str = "") -> Stmt:
        """Threads load a piece of a factor into its place among those that are there at once, a run at a time."""
        t, side, piece = self.t, self.sides[which], self.pieces[which]
        name = f"{'ab'[which]}{suffix}"
        u, e, v = Var(f"u_{name}"), Var(f"e_{name}"), Var(f"v_{name}")
        length, run = piece.shape[-1], min(side.run, piece.shape[-1])
        place = e * t.threads + u
        chunk, row = place % (length // run), place // (length // run)
        value = self.element(which, step, row, chunk, run, v)
        where = self.place(which, slot, row, chunk // (self.vector // run), chunk % (self.vector // run) * run + v)
        block = self.s.fresh(f"bring_{name}")
        put: Stmt = on("vector", v.name, run, store(piece.name, where, value, block))
        depth = step * t.depth + (chunk * run if side.deep else row)
        if (inside := within(depth, self.p.size("depth"), t.depth)) is not None:
            zero = Const(0.0 if self.w.sums == "f32" else 0, self.w.dtype)
            cleared = on("vector", f"{v.name}_0", run, store(piece.name, _moved(where, v), zero, f"{block}_0"))
            put = If(inside, put, cleared)
        count = piece.shape[-2] * length // run
        turns = -(-count // t.threads)
        body = only_if(within(place, count, t.threads), put)
        return self.thread(u.name, on("unroll" if turns <= _UNROLL else "serial", e.name, turns, body))

    def element(self, which: int, step: Expr, row: Expr, chunk: Expr, run: int, v: Expr) -> Expr:
        """The factor at a row of its piece and at `v` in a run of it."""
        t, p, side = self.t, self.p, self.sides[which]
        tile, base = (t.rows, self.row) if which == 0 else (t.columns, self.column)
        values = dict(digits(self.batch, p.batch))
        if side.deep:
            values |= digits(_within(base * tile + row, side.group, tile), side.group)
            values |= self.runs(step * (t.depth // run) + chunk, p.depth, run, v)
        else:
            edge = _within(base * (tile // run) + chunk, side.group, tile // run, run)
            values |= self.runs(edge, side.group, run, v)
            values |= digits(step * t.depth + row, p.depth)
        return substitute(side.value, values)

    def runs(self, number: Expr, dims: Sequence[tuple[str, int]], run: int, v: Expr) -> dict[str, Expr]:
        """The loop variables at element `v` of a run; the innermost loop has whole runs, or is the only one."""
        if run == 1:
            return digits(number, dims)
        inner = innermost(tuple(dims))[0]
        found = digits(number, [(d, -(-n // run) if d == inner else n) for d, n in dims])
        return {**found, inner: found[inner] * run + v}

    def place(self, which: int, slot: Expr, row: Expr, piece: Expr, rest: Expr) -> tuple[Expr, ...]:
        """Where an element of a row lies that is `rest` in a run of 16 bytes."""
        length = self.pieces[which].shape[-1]
        count = length // self.vector
        every = max(_BANKS_BYTES // (COPY_BYTES * count), 1)
        turned = Op("xori", (piece, row // every % count), "index") if count > 1 else Const(0, "index")
        return slot, row, turned * self.vector + rest

    # ---- multiplying

    def begin(self) -> Stmt:
        put = store(self.sums.name, (Var("w0"), Var("r0"), Var("c0")), self.zero, self.s.fresh("begin"))
        rows = on("serial", "r0", self.t.thread_rows, on("serial", "c0", self.t.thread_columns, put))
        return on(self.team_axis, "w0", self.t.warps, rows)

    def products(self, slot: Expr) -> Stmt:
        """What warps do with a piece of both factors."""
        t, w, s = self.t, self.w, self.s
        x = Buffer(s.fresh("fragment_a"), (t.thread_rows, w.depth), w.dtype, w.memory)
        y = Buffer(s.fresh("fragment_b"), (w.depth, t.thread_columns), w.dtype, w.memory)
        team, part = Var("w"), Var("part")
        loads = [self.fragment(i, f, slot, team, part) for i, f in enumerate((x, y))]
        multiply = on(
            "unroll",
            "mt",
            t.thread_rows // w.rows,
            on("unroll", "nt", t.thread_columns // w.columns, self.product(team, x, y)),
        )
        return on(WARP, "w", t.warps, Alloc(x, Alloc(y, on("unroll", "part", t.depth // w.depth, *loads, multiply))))

    def fragment(self, which: int, into: Buffer, slot: Expr, team: Expr, part: Expr) -> Stmt:
        """A warp's rows or columns of a piece, for one instruction's steps of the sum."""
        t, side = self.t, self.sides[which]
        i, q = Var(f"i_{into.name}"), Var(f"q_{into.name}")
        deep = part * self.w.depth + q
        flat = (team // self.across * t.thread_rows if which == 0 else team % self.across * t.thread_columns) + i
        row, along = (flat, deep) if side.deep else (deep, flat)
        value = Load(
            self.pieces[which].name,
            self.place(which, slot, row, along // self.vector, along % self.vector),
            self.w.dtype,
        )
        order = (i, q) if which == 0 else (q, i)
        put = store(into.name, order, value, self.s.fresh(f"load_{into.name}"))
        inner = replace(on("serial", order[1].name, into.shape[1], put), notes=((NOTE, self.load.name),))
        return on("serial", order[0].name, into.shape[0], inner)

    def product(self, team: Expr, x: Buffer, y: Buffer) -> Stmt:
        """One instruction."""
        w = self.w
        m, n, k = Var("mi"), Var("ni"), Var("ki")
        row, column = Var("mt") * w.rows + m, Var("nt") * w.columns + n
        factors = [Op(w.extends, (Load(b.name, i, w.dtype),), w.sums) for b, i in ((x, (row, k)), (y, (k, column)))]
        add, multiply = ("addf", "mulf") if w.sums == "f32" else ("addi", "muli")
        at = (team, row, column)
        old = Load(self.sums.name, at, w.sums)
        value = Op(add, (old, Op(multiply, tuple(factors), w.sums)), w.sums)
        put = store(self.sums.name, at, value, self.s.fresh("multiply"))
        inner = replace(on("serial", "ki", w.depth, put), notes=((NOTE, w.name),))
        return on("serial", "mi", w.rows, on("serial", "ni", w.columns, inner))

    # ---- writing

    def holds(self) -> Expr | None:
        """The condition under which a tile is written."""
        return None

    def write(self) -> Stmt:
        """A warp's sums with what is computed of them. Columns are counted in pairs, of which a lane has both."""
        t, p = self.t, self.p
        team, r, c = Var("w1"), Var("r1"), Var("c1")
        row = self.row * t.rows + team // self.across * t.thread_rows + r
        first = self.column * (t.columns // 2) + team % self.across * (t.thread_columns // 2)
        pair = 2 if innermost(p.columns)[1] % 2 == 0 else 1
        column = first + c // 2 if pair == 2 else first * 2 + c
        values = digits(self.batch, p.batch) | digits(row, p.rows) | self.runs(column, p.columns, pair, c % 2)
        edges = within(row, p.size("rows"), t.rows), within(column, p.size("columns") // pair, t.columns // pair)
        target = p.sum.targets[0]
        made = Load(self.sums.name, (team, r, c), self.w.sums)
        known: dict[str, Expr] = {target.buffer: made}
        at = {target.buffer: tuple(substitute(i, values) for i in target.indices)}
        writes: list[Store] = []
        if target.buffer in self.s.kernel.outputs:
            writes.append(store(target.buffer, at[target.buffer], made, p.sum.block))
        writes += applied(self.s, p.after, known, at)
        body = only_if(all_of((self.holds(), *edges)), seq(*writes))
        return on(
            self.team_axis, "w1", t.warps, on("serial", "r1", t.thread_rows, on("serial", "c1", t.thread_columns, body))
        )


def _within(position: Expr, group: Sequence[tuple[str, int]], tile: int, run: int = 1) -> Expr:
    """A position among those that a group of loops has, counted in runs; those beyond are the last one."""
    size = -(-prod(n for _, n in group) // run)
    return position if size % tile == 0 else Op("minsi", (position, Const(size - 1, "index")), "index")


def _moved(where: tuple[Expr, ...], v: Var) -> tuple[Expr, ...]:
    """A place with another loop in a run's."""
    return tuple(substitute(i, {v.name: Var(f"{v.name}_0")}) for i in where)


__all__ = ["COPY_BYTES", "Side", "WarpTile", "WarpWriter", "innermost"]
