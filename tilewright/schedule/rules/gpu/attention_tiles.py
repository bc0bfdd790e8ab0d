"""Fused attention without tensor cores: a block takes a tile of queries and iterates over tiles of the keys.

    each thread begins sums of the values, the largest score so far (top), and the sum of exponentials (total), by rows
    for each tile of keys:
        for each piece of the depth:
            threads load a piece of the queries (once, if they all have room) and of the keys into shared memory
            each thread multiplies its rows with its keys, in registers
        threads of a row exchange their largest scores
        top grows, and what was summed before shrinks with it; exponentials go to shared memory
        for each piece of the values:
            threads load it into shared memory, and each adds its rows' weighted values, in registers
    threads of a row add up their totals, and each writes its results

A thread has some rows, and every `across`-th key and column, so that neighbouring threads use neighbouring banks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

from ....support.sizes import typical
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ...machine import Machine
from ...nest import Barrier, For, Stmt, seq, store
from ..custom.attention import Shape
from .attention_operands import (  # fmt: skip
    LOWEST,
    Operands,
    add,
    exp_of,
    folded,
    inverse,
    larger,
    mul,
    own,
    unrolled,
    within_buffers,
)
from .thread_binding import BLOCK, all_of, axis, guarded, on, only_if, shared, within

F32 = "f32"
#: rows and keys of a block, rows of a thread, threads of a row, and how much of the depth or of the keys' values at a
#: time
ROWS, KEYS, UNIT_ROWS, ACROSS, PIECES = (64, 32, 16, 8), (64, 32, 16), (8, 4, 2, 1), (32, 16, 8), (64, 32, 16, 8)
#: sums that any thread has registers for; of more than these a record's registers hold twice as many
FEW_SUMS = 16


@dataclass(frozen=True)
class AttentionTile:
    """Rows and keys of a block, rows of a thread, threads of a row, steps of a product of a query and a key and keys of
    the values that are in shared memory at a time, and columns of the result that a thread has."""

    rows: int
    keys: int
    thread_rows: int
    across: int
    depth: int
    values: int
    thread_columns: int

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * self.across

    @property
    def thread_keys(self) -> int:
        return self.keys // self.across

    @property
    def columns(self) -> int:
        return self.thread_columns * self.across

    @property
    def numbers(self) -> int:
        """In shared memory, without the queries: the piece of keys or values, exponentials, what threads exchange."""
        piece = max(self.depth * (self.keys + 1), self.values * self.columns)
        return piece + self.rows * (self.keys + 1) + self.rows * self.across

    def query_depth(self, depth: int, room: int) -> int:
        """Of the queries as much as is used in a step is in shared memory, or all of their depth if that has room."""
        whole = -(-depth // self.depth) * self.depth
        return whole if 4 * (self.numbers + whole * (self.rows + 1)) <= room else self.depth

    def fits(self, machine: Machine) -> bool:
        block, memory = axis(machine, BLOCK), shared(machine)
        assert block is not None and memory is not None
        sums = self.thread_rows * (self.thread_keys + self.thread_columns)
        return (
            self.across <= self.threads <= (block.limit or 1)
            and self.thread_keys * self.across == self.keys
            and sums <= max(FEW_SUMS, machine.vector_registers // 2)
            and 4 * (self.numbers + self.depth * (self.rows + 1)) <= memory.bytes
        )

    def __str__(self) -> str:
        return (
            f"tiles of {self.rows} queries by {self.keys} keys on {self.threads} threads, "
            f"{self.thread_rows} x {self.thread_keys} scores and {self.thread_rows} x {self.thread_columns} results "
            f"each, {self.depth} steps of the depth and values of {self.values} keys in shared memory"
        )


def tiles(s: Shape, rows: int, machine: Machine) -> list[AttentionTile]:
    """Those that fit the machine and are not much larger than what there is."""
    sums = max(FEW_SUMS, machine.vector_registers // 2)
    made = []
    for m in [r for r in ROWS if r < 2 * rows] or [ROWS[-1]]:
        for n in [k for k in KEYS if k < 2 * s.keys] or [KEYS[-1]]:
            for a in UNIT_ROWS:
                for across in ACROSS:
                    columns = min(-(-s.width // across), max(sums // a - n // across, 1))
                    depths = [p for p in PIECES if p < 2 * s.depth] or [PIECES[-1]]
                    pieces = [p for p in PIECES if p <= n]
                    made += [AttentionTile(m, n, a, across, d, v, columns) for d in depths for v in pieces]
    return [t for t in made if t.fits(machine)]


def cost(t: AttentionTile, o: Operands, machine: Machine) -> float:
    """Multiply-adds of all threads together that take as long: what a thread loads from shared and global memory
    counts, what it waits at barriers, and threads that have nothing to do."""
    s, memory, costs = o.s, shared(machine), machine.thread_costs
    assert memory is not None
    parts = -(-s.width // t.columns)
    blocks = -(-typical(o.rows) // t.rows) * parts * o.heads * typical(s.batch)
    steps, depth = -(-typical(s.keys) // t.keys), -(-s.depth // t.depth) * t.depth
    r, c, e = t.thread_rows, t.thread_keys, t.thread_columns
    brought = t.keys * (s.depth + t.columns)
    brought += t.rows * s.depth if t.query_depth(s.depth, memory.bytes) < depth else 0
    each = depth * (r * c + r + c) + t.keys * (r * e + r + e) + costs.far_in_tile * brought / t.threads
    each += r * (t.across + costs.exponential * (c + 1) + e)
    each += costs.barrier_of_tile * (2 * (depth // t.depth) + 2 * (t.keys // t.values))
    return max(blocks * t.threads, machine.cores, costs.least_threads) * steps * each * max(32 / t.threads, 1.0)


def numbers(t: AttentionTile) -> tuple[int, ...]:
    return astuple(t)


class Tiled:
    """Writes the nest of an attention with a tile."""

    def __init__(self, o: Operands, t: AttentionTile, machine: Machine) -> None:
        memory = shared(machine)
        assert memory is not None
        self.o, self.s, self.t, self.memory = o, o.s, t, memory.name
        self.parts = -(-o.s.width // t.columns)
        self.block, self.step = Var("tile"), Var("step")
        self.first = (self.block // self.parts if self.parts > 1 else self.block) * t.rows
        self.first_column = self.block % self.parts * t.columns if self.parts > 1 else Const(0, "index")
        self.chunks = -(-o.s.depth // t.depth)
        self.query_depth = t.query_depth(o.s.depth, memory.bytes)
        self.once = self.query_depth >= o.s.depth
        self.reached = o.reached(self.step * t.keys, self.first, t.rows)

    def nest(self) -> Stmt:
        t, u = self.t, self.t.threads
        piece = max(t.depth * (t.keys + 1), t.values * t.columns)
        buffers = [
            Buffer("queries", (self.query_depth, t.rows + 1), F32, self.memory),
            Buffer("piece", (piece,), F32, self.memory),
            Buffer("weights", (t.rows, t.keys + 1), F32, self.memory),
            Buffer("told", (t.rows, t.across), F32, self.memory),
            own("sums", F32, u, t.thread_rows, t.thread_columns),
            own("scores", F32, u, t.thread_rows, t.thread_keys),
            *(own(n, F32, u, t.thread_rows) for n in ("top", "total", "best", "shrink")),
        ]
        steps = on("serial", "step", -(-self.s.keys // t.keys), *self.scores(), *self.grown(), *self.weighted())
        queries = self.bring_queries(Const(0, "index"), self.query_depth) if self.once else None
        body = seq(self.begin(), queries, steps, *self.finish())
        blocks = -(-self.o.rows // t.rows) * self.parts
        return self.o.grid("tile", blocks, within_buffers(buffers, body))

    # ---- places

    def thread(self, name: str, body: Callable[[Expr], Stmt], *, skipped: bool = False) -> For:
        """What each thread does; nothing if it may be `skipped` and no query of the tile sees these keys."""
        u = Var(f"u_{name}")
        return on("block.x", u.name, self.t.threads, only_if(self.reached if skipped else None, body(u)))

    def row(self, u: Expr) -> Expr:
        """Of a thread's row r, within the tile."""
        return u // self.t.across * self.t.thread_rows + Var("r")

    def key(self, u: Expr) -> Expr:
        return u % self.t.across + Var("c") * self.t.across

    def mine(self, name: str, u: Expr, *at: str) -> Load:
        return Load(name, (u, *(Var(x) for x in at)), F32)

    def rows(self, *body: Stmt) -> Stmt:
        return unrolled([("r", self.t.thread_rows)], *body)

    def row_keys(self, *body: Stmt) -> Stmt:
        return unrolled([("c", self.t.thread_keys)], *body)

    def columns(self, *body: Stmt) -> Stmt:
        return unrolled([("e", self.t.thread_columns)], *body)

    # ---- steps

    def begin(self) -> Stmt:
        def body(u: Expr) -> Stmt:
            zero = Const(0.0, F32)
            r = (u, Var("r"))
            return self.rows(
                store("top", r, Const(LOWEST, F32), "begin_top"),
                store("total", r, zero, "begin_total"),
                self.columns(store("sums", (*r, Var("e")), zero, "begin")),
            )

        return self.thread("begin", body)

    def spread(
        self, name: str, count: int, at: Callable[[Expr], tuple[str, tuple[Expr, ...], Expr]], *, skipped: bool = False
    ) -> Stmt:
        """Divide `count` places of shared memory among the threads."""

        def body(u: Expr) -> Stmt:
            place = Var(f"n_{name}") * self.t.threads + u
            buffer, index, value = at(place)
            put = only_if(within(place, count, self.t.threads), store(buffer, index, value, f"bring_{name}"))
            return on("serial", f"n_{name}", -(-count // self.t.threads), put)

        return self.thread(name, body, skipped=skipped)

    def bring_queries(self, chunk: Expr, depth: int) -> Stmt:
        """A piece of the queries from `chunk` steps of the depth on, times the scale."""
        t, s = self.t, self.s

        def at(place: Expr) -> tuple[str, tuple[Expr, ...], Expr]:
            d, row = place % depth, self.first + place // depth
            inside = all_of([within(row, self.o.rows, t.rows), within(chunk + d, s.depth, t.depth)])
            value = mul(self.o.query(row, chunk + d), s.number(s.scale))
            return "queries", (d, place // depth), guarded(inside, value, s.number(0.0))

        return self.spread("q", depth * t.rows, at, skipped=not self.once)

    def scores(self) -> list[Stmt]:
        t, s = self.t, self.s
        chunk = Var("chunk") * t.depth if self.chunks > 1 else Const(0, "index")

        def at(place: Expr) -> tuple[str, tuple[Expr, ...], Expr]:
            d, key = place % t.depth, self.step * t.keys + place // t.depth
            inside = all_of([within(key, s.keys, t.keys), within(chunk + d, s.depth, t.depth)])
            where = d * (t.keys + 1) + place // t.depth
            return "piece", (where,), guarded(inside, self.o.key(key, chunk + d), s.number(0.0))

        def clear(u: Expr) -> Stmt:
            return self.rows(self.row_keys(store("scores", (u, Var("r"), Var("c")), s.number(0.0), "clear")))

        def multiply(u: Expr) -> Stmt:
            q = Load("queries", (Var("d") + (chunk if self.once else 0), self.row(u)), F32)
            k = Load("piece", (Var("d") * (t.keys + 1) + self.key(u),), F32)
            put = folded("scores", (u, Var("r"), Var("c")), add, mul(q, k), "multiply")
            return on("serial", "d", t.depth, self.rows(self.row_keys(put)))

        brought = [] if self.once else [self.bring_queries(chunk, t.depth)]
        brought.append(self.spread("k", t.depth * t.keys, at, skipped=True))
        steps = [*brought, Barrier(BLOCK), self.thread("multiply", multiply, skipped=True)]
        cleared = self.thread("clear", clear)
        if self.chunks == 1:
            return [cleared, *steps]
        return [cleared, on("serial", "chunk", self.chunks, *steps, Barrier(BLOCK))]

    def grown(self) -> list[Stmt]:
        """The largest scores, and the weights that follow from them."""
        t, o = self.t, self.o

        def tell(u: Expr) -> Stmt:
            at = (u, Var("r"), Var("c"))
            row, key = self.first + self.row(u), self.step * t.keys + self.key(u)
            score = o.score(self.mine("scores", u, "r", "c"), row, key, (t.rows, t.keys))
            return self.rows(
                store("best", at[:2], self.mine("top", u, "r"), "best"),
                self.row_keys(
                    store("scores", at, score, "score"),
                    folded("best", at[:2], larger, self.mine("scores", u, "r", "c"), "larger"),
                ),
                store("told", (self.row(u), u % t.across), self.mine("best", u, "r"), "tell"),
            )

        def weigh(u: Expr) -> Stmt:
            r, best = (u, Var("r")), self.mine("best", u, "r")
            told = Load("told", (self.row(u), Var("other")), F32)
            total, shrink = self.mine("total", u, "r"), self.mine("shrink", u, "r")
            weight = exp_of(self.mine("scores", u, "r", "c"), best)
            return self.rows(
                on("serial", "other", t.across, folded("best", r, larger, told, "largest")),
                store("shrink", r, exp_of(self.mine("top", u, "r"), best), "shrink"),
                store("top", r, best, "grow"),
                store("total", r, mul(total, shrink), "shrink_total"),
                self.columns(folded("sums", (*r, Var("e")), mul, shrink, "shrink_sums")),
                self.row_keys(
                    store("scores", (*r, Var("c")), weight, "weight"),
                    folded("total", r, add, self.mine("scores", u, "r", "c"), "add"),
                    store("weights", (self.row(u), self.key(u)), self.mine("scores", u, "r", "c"), "show"),
                ),
            )

        return [self.thread("tell", tell, skipped=True), Barrier(BLOCK), self.thread("weigh", weigh, skipped=True)]

    def weighted(self) -> list[Stmt]:
        """The sums of the values with their weights."""
        t, s = self.t, self.s
        pieces = t.keys // t.values
        part = Var("part") * t.values if pieces > 1 else Const(0, "index")

        def at(place: Expr) -> tuple[str, tuple[Expr, ...], Expr]:
            key, column = self.step * t.keys + part + place // t.columns, self.first_column + place % t.columns
            inside = all_of([within(key, s.keys, t.keys), within(column, s.width, t.columns)])
            return "piece", (place,), guarded(inside, self.o.value(key, column), s.number(0.0))

        def weigh(u: Expr) -> Stmt:
            w = Load("weights", (self.row(u), part + Var("j")), F32)
            v = Load("piece", (Var("j") * t.columns + u % t.across + Var("e") * t.across,), F32)
            put = folded("sums", (u, Var("r"), Var("e")), add, mul(w, v), "sum")
            return on("serial", "j", t.values, self.rows(self.columns(put)))

        brought = self.spread("v", t.values * t.columns, at, skipped=True)
        steps = [brought, Barrier(BLOCK), self.thread("sum", weigh, skipped=True), Barrier(BLOCK)]
        return steps if pieces == 1 else [on("serial", "part", pieces, *steps)]

    def finish(self) -> list[Stmt]:
        t, o = self.t, self.o

        def tell(u: Expr) -> Stmt:
            return self.rows(store("told", (self.row(u), u % t.across), self.mine("total", u, "r"), "tell_total"))

        def write(u: Expr) -> Stmt:
            r = (u, Var("r"))
            row = self.first + self.row(u)
            column = self.first_column + u % t.across + Var("e") * t.across
            inside = all_of([within(row, o.rows, t.rows), within(column, self.s.width, t.columns)])
            value: Expr = self.mine("sums", u, "r", "e")
            end: Stmt = store("shrink", r, inverse(self.mine("total", u, "r")), "inverse")
            if self.s.partials:
                first = Op("cmpi.eq", (self.first_column + u % t.across, Const(0, "index")), "i1")
                mine = all_of([within(row, o.rows, t.rows), first])
                end = only_if(mine, o.tell(row, self.mine("top", u, "r"), self.mine("total", u, "r")))
            else:
                value = mul(value, self.mine("shrink", u, "r"))
            told = Load("told", (self.row(u), Var("another")), F32)
            return self.rows(
                store("total", r, self.s.number(0.0), "clear_total"),
                on("serial", "another", t.across, folded("total", r, add, told, "add_total")),
                end,
                self.columns(only_if(inside, o.write(row, column, value))),
            )

        return [self.thread("told", tell), Barrier(BLOCK), self.thread("write", write)]


__all__ = ["Op", "AttentionTile", "Tiled", "cost", "numbers", "tiles"]
