"""Attention of many queries by instructions on matrices that the lanes of a warp hold in parts (`machine.WarpProduct`).

A warp has 16 rows (queries), and goes along the keys with all others of its block:

    copies of the keys and values of the first tile begin
    for each tile of keys:
        copies of the next tile begin, into the other half of shared memory; those of this one are waited for
        scores = queries x keys, both in parts of 16 x 16
        the largest score of each row grows, and what was summed before shrinks with it
        weights = exp(scores - largest), in the type of the factors: lanes hold sums as they hold first factors
        results = results * shrink + weights x values
    results / totals

`Brought` says how keys and values come to shared memory, and is all that knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....support.dtypes import LOOP_TYPES
from ....tensor.analysis import flat
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, linear, minimum, simplify
from ...machine import Machine, WarpFold, WarpLoad, WarpProduct, find_axis
from ...nest import Alloc, AsyncCopy, Barrier, For, Stmt, Store, Wait, seq, store, walk_stmts
from ...region import all_ranges
from ...warp import NOTE
from ..custom.attention import Shape
from .attention_operands import LOWEST, Operands, add, exp_of, folded, inverse, mul, unrolled, within_buffers
from .units import BLOCK, on, only_if, shared, within

F32 = "f32"
#: what is tried: warps of a block, and keys of a tile
WARPS, KEYS = (4, 8, 2), (64, 32, 128)
#: rows beside each other in banks of a memory: a row's pieces change places with the row
_BANK_BYTES = 128


@dataclass(frozen=True)
class Instructions:
    """Those of a machine for factors of a dtype; the axes of teams and of their units, with the units of a team."""

    product: WarpProduct
    load: WarpLoad
    fold: WarpFold
    team: str
    unit: str
    lanes: int


def instructions(dtype: str, machine: Machine) -> Instructions | None:
    """What there is for products whose operands all are held in parts."""
    for p in machine.warp_products:
        load = next((x for x in machine.warp_loads if x.memory == p.memory), None)
        fold = next((x for x in machine.warp_folds if x.memory == p.memory), None)
        memory = next((m for m in machine.memories if m.name == p.memory), None)
        if p.dtype != dtype or p.operands != p.memory or None in (load, fold, memory):
            continue
        assert load is not None and fold is not None and memory is not None
        unit = find_axis(machine, memory.shared_by[0])
        if unit is not None and unit.inside and unit.limit:
            return Instructions(p, load, fold, unit.inside, unit.name, unit.limit)
    return None


@dataclass(frozen=True)
class Plan:
    """Warps of a block and keys of a tile."""

    warps: int
    keys: int

    def __str__(self) -> str:
        return f"{self.warps} warps of 16 queries each by {self.keys} keys, on matrices that their lanes hold in parts"


def plans(o: Operands, machine: Machine) -> list[Plan]:
    """Those that fit the machine, the best first; none if sizes or numbers are not those of its instructions."""
    s, memory = o.s, shared(machine)
    dtypes = {o.read.kernel.buffer(b).dtype for b in (s.q, s.k, s.v)}
    found = instructions(dtypes.pop(), machine) if len(dtypes) == 1 else None
    if found is None or memory is None:
        return []
    p, nbytes = found.product, LOOP_TYPES[found.product.dtype].nbytes
    if s.depth % p.depth or s.width % p.depth or o.rows <= p.rows // 2:
        return []
    made = []
    for warps in WARPS:
        for keys in KEYS:
            # of a row: queries, scores and weights, results; a lane's part of 16 rows is an element in two columns
            held = (s.depth // 2 + keys + keys // 2 + s.width) // 2
            room = nbytes * (warps * p.rows * s.depth + 2 * keys * (s.depth + s.width))
            whole = all(keys * n // _LANES % (warps * found.lanes) == 0 for n in (s.depth, s.width))
            if held * 4 <= machine.vector_registers * 3 and room <= memory.bytes and whole and keys < 2 * s.keys:
                made.append(Plan(warps, keys))
    return sorted(made, key=lambda x: (x.warps * p.rows >= 2 * o.rows, WARPS.index(x.warps), KEYS.index(x.keys)))


#: numbers of 16 bits in what a lane copies at once
_LANES = 8


class Brought:
    """Tiles of `rows` rows of a matrix with `columns`, in `stages` parts of shared memory, whose pieces of 16 bytes are
    swizzled so that rows beside each other lie in different banks. The rows are shared out among all lanes."""

    def __init__(self, name: str, dtype: str, memory: str, rows: int, columns: int, stages: int, w: Writer) -> None:
        self.name, self.rows, self.columns, self.w = name, rows, columns, w
        self.buffer = Buffer(name, (stages, rows, columns), dtype, memory)
        pieces = columns // _LANES
        bank = _BANK_BYTES // LOOP_TYPES[dtype].nbytes // _LANES
        self.turns = min(pieces & -pieces, bank)
        self.every = bank // self.turns

    def place(self, stage: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
        if self.turns == 1:
            return stage, row, column
        turn = row // self.every % self.turns if self.every > 1 else row % self.turns
        piece = Op("xori", (column // _LANES, turn), "index")
        return stage, row, piece * _LANES + column % _LANES

    def at(self, stage: Expr, row: Expr, column: Expr) -> Load:
        return Load(self.name, self.place(stage, row, column), self.buffer.dtype)

    def copy(self, stage: Expr, source: Callable[[Expr, Expr], Expr]) -> Stmt:
        """Loops of all lanes over a tile."""
        w, of = self.w, f"_{self.name}"
        units = w.plan.warps * w.own.lanes
        place = (Var(f"n{of}") * units + w.warp * w.own.lanes + Var(f"u{of}")) * _LANES
        row, column = place // self.columns, place % self.columns + Var(f"x{of}")
        put = store(self.name, self.place(stage, row, column), source(row, column), f"bring{of}")
        body = on("serial", f"n{of}", self.rows * self.columns // (units * _LANES), on("vector", f"x{of}", _LANES, put))
        return on(w.own.unit, f"u{of}", w.own.lanes, body)

    def begin(self, stage: Expr, source: Callable[[Expr, Expr], Expr], condition: Expr | None = None) -> Stmt:
        """Begin to bring a tile, if a condition holds; `ready` waits."""
        copied = only_if(condition, self.copy(stage, source))
        return AsyncCopy(f"{self.name}_come", copied) if self.w.asynchronous else copied

    def ready(self, later: int) -> Stmt | None:
        """Wait for all tiles but those that were begun `later`."""
        return Wait(f"{self.name}_come", later) if self.w.asynchronous else None


class Writer:
    """Writes the nest. If not `asynchronous`, copies are ordinary ones."""

    def __init__(self, o: Operands, plan: Plan, machine: Machine, *, asynchronous: bool = True) -> None:
        memory, dtype = shared(machine), o.read.kernel.buffer(o.s.q).dtype
        found = instructions(dtype, machine)
        assert memory is not None and found is not None
        self.o, self.s, self.plan, self.own, self.asynchronous = o, o.s, plan, found, asynchronous
        self.p, self.dtype = found.product, dtype
        self.rows = plan.warps * self.p.rows
        self.warp, self.first, self.step = Var("w"), Var("tile") * self.rows, Var("step")
        self.steps = -(-o.s.keys // plan.keys)
        self.queries = Brought("queries", dtype, memory.name, self.rows, o.s.depth, 1, self)
        self.keys = Brought("keys", dtype, memory.name, plan.keys, o.s.depth, 2, self)
        self.values = Brought("values", dtype, memory.name, plan.keys, o.s.width, 2, self)
        self.reached = o.reached(self.step * plan.keys, self.first, self.rows)

    def nest(self) -> Stmt:
        s, p, zero = self.s, self.p, Const(0, "index")
        held = [
            Buffer("q", (p.rows, s.depth), self.dtype, p.memory),
            Buffer("scores", (p.rows, self.plan.keys), F32, p.memory),
            Buffer("weights", (p.rows, self.plan.keys), self.dtype, p.memory),
            Buffer("results", (p.rows, s.width), F32, p.memory),
            *(Buffer(n, (p.rows,), F32, p.memory) for n in ("top", "total", "best", "shrink")),
        ]
        computed = seq(*self.scores(), *self.grown(), *self.weighted())
        follows = Op("cmpi.slt", (self.step, Const(self.steps - 1, "index")), "i1")
        step = on(
            "serial",
            "step",
            self.steps,
            self.bring(self.step + 1, follows),
            seq(self.keys.ready(1), self.values.ready(1)),
            Barrier(BLOCK),
            only_if(self.reached, computed),
            Barrier(BLOCK),
        )
        body = seq(
            self.queries.begin(zero, self.query),
            self.bring(zero, None),
            self.queries.ready(0),
            Barrier(BLOCK),
            self.begin(),
            step,
            *self.finish(),
        )
        inner = on(self.own.team, "w", self.plan.warps, within_buffers(held, body))
        brought = [x.buffer for x in (self.queries, self.keys, self.values)]
        return self.o.grid("tile", -(-self.o.rows // self.rows), within_buffers(brought, inner))

    # ---- bringing

    def query(self, row: Expr, d: Expr) -> Expr:
        row = self.first + row
        return self.raw(self.o.query(minimum(row, self.o.rows - 1) if self.o.rows % self.rows else row, d))

    def bring(self, step: Expr, condition: Expr | None) -> Stmt:
        """Begin to bring a tile of keys and values. Those beyond the last one are that one again."""
        stage = step % 2

        def row(of: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
            def read(j: Expr, d: Expr) -> Expr:
                key = step * self.plan.keys + j
                return self.raw(of(minimum(key, self.s.keys - 1) if self.s.keys % self.plan.keys else key, d))

            return read

        return seq(
            self.keys.begin(stage, row(self.o.key), condition), self.values.begin(stage, row(self.o.value), condition)
        )

    def raw(self, x: Expr) -> Expr:
        """What is read, before it is made an f32."""
        assert isinstance(x, Op) and x.op == "extf"
        return x.args[0]

    # ---- loops

    def each(self, columns: int, target: str, value: Callable[[Expr, Expr], Expr], block: str) -> Stmt:
        """A statement on all of the warp's rows and so many columns."""
        i, j = Var("i"), Var("j")
        return on("serial", "i", self.p.rows, on("serial", "j", columns, store(target, (i, j), value(i, j), block)))

    def each_row(self, target: str, value: Callable[[Expr], Expr], block: str) -> Stmt:
        return on("serial", "i", self.p.rows, store(target, (Var("i"),), value(Var("i")), block))

    def fold(self, target: str, source: str, operation: str, block: str) -> Stmt:
        i, j = Var("i"), Var("j")
        value = Op(operation, (Load(target, (i,), F32), Load(source, (i, j), F32)), F32)
        inner = self.noted("j", self.plan.keys, store(target, (i,), value, block), self.own.fold.name)
        return on("serial", "i", self.p.rows, inner)

    def noted(self, var: str, extent: int, body: Stmt, name: str) -> For:
        return For(var, Const(extent, "index"), body, notes=((NOTE, name),))

    def loaded(self, name: str, value: Callable[[Expr, Expr], Expr], rows: int, columns: int) -> Stmt:
        """Bring a matrix from shared memory to the parts of the lanes."""
        a, b = Var("a"), Var("b")
        put = store(name, (a, b), value(a, b), f"load_{name}")
        return on("serial", "a", rows, self.noted("b", columns, put, self.own.load.name))

    def multiply(self, target: str, x: Load, w: Callable[[Expr, Expr], Load], column: Expr, block: str) -> Stmt:
        """``target[m, column + n] += x[m, k] * w[k, n]``, one instruction; `x` is read at row m and depth k."""
        p = self.p
        m, n, k = Var("m"), Var("n"), Var("k")
        factors = [Op(p.extends, (f,), p.sums) for f in (x, w(k, n))]
        put = folded(target, (m, column + n), add, mul(*factors), block)
        return on("serial", "m", p.rows, on("serial", "n", p.columns, self.noted("k", p.depth, put, p.name)))

    # ---- steps

    def begin(self) -> Stmt:
        zero, nothing = Const(0.0, F32), Const(0, "index")
        rows = self.warp * self.p.rows
        parts = Var("d") * self.p.depth
        a, b = Var("a"), Var("b")
        put = store("q", (a, parts + b), self.queries.at(nothing, rows + a, parts + b), "load_q")
        load = on("serial", "a", self.p.rows, self.noted("b", self.p.depth, put, self.own.load.name))
        return seq(
            unrolled([("d", self.s.depth // self.p.depth)], load),
            self.each_row("top", lambda i: Const(LOWEST, F32), "begin_top"),
            self.each_row("total", lambda i: zero, "begin_total"),
            self.each(self.s.width, "results", lambda i, j: zero, "begin"),
        )

    def scores(self) -> list[Stmt]:
        p, stage = self.p, self.step % 2
        wide = self.wide(self.plan.keys)
        d, c = Var("d") * p.depth, Var("c") * wide
        part = Buffer("key_part", (wide, p.depth), self.dtype, p.memory)
        load = self.loaded("key_part", lambda a, b: self.keys.at(stage, c + a, d + b), wide, p.depth)
        x = Load("q", (Var("m"), d + Var("k")), self.dtype)
        one = Var("e") * p.columns
        product = self.multiply(
            "scores", x, lambda k, n: Load("key_part", (one + n, k), self.dtype), c + one, "multiply"
        )
        inner = Alloc(part, seq(load, unrolled([("e", wide // p.columns)], product)))
        clear = self.each(self.plan.keys, "scores", lambda i, j: Const(0.0, F32), "clear")
        return [clear, unrolled([("d", self.s.depth // p.depth), ("c", self.plan.keys // wide)], inner)]

    def wide(self, columns: int) -> int:
        """Columns of a second factor that come at once: two blocks where there are two."""
        return 2 * self.p.columns if columns % (2 * self.p.columns) == 0 else self.p.columns

    def grown(self) -> list[Stmt]:
        o, s, rows = self.o, self.s, self.first + self.warp * self.p.rows

        def score(i: Expr, j: Expr) -> Expr:
            scaled = mul(Load("scores", (i, j), F32), s.number(s.scale))
            return o.score(scaled, rows + i, self.step * self.plan.keys + j, (self.rows, self.plan.keys))

        def of(name: str, i: Expr) -> Load:
            return Load(name, (i,), F32)

        scores, results = (lambda i, j, n=n: Load(n, (i, j), F32) for n in ("scores", "results"))
        return [
            self.each(self.plan.keys, "scores", score, "score"),
            self.each_row("best", lambda i: of("top", i), "best"),
            self.fold("best", "scores", "maxnumf", "largest"),
            self.each_row("shrink", lambda i: exp_of(of("top", i), of("best", i)), "shrink"),
            self.each_row("top", lambda i: of("best", i), "grow"),
            self.each(self.plan.keys, "scores", lambda i, j: exp_of(scores(i, j), of("best", i)), "weight"),
            self.each_row("total", lambda i: mul(of("total", i), of("shrink", i)), "shrink_total"),
            self.fold("total", "scores", "addf", "add"),
            self.each(s.width, "results", lambda i, j: mul(results(i, j), of("shrink", i)), "shrink_results"),
            self.each(
                self.plan.keys, "weights", lambda i, j: Op("truncf", (scores(i, j),), self.dtype), "round_weight"
            ),
        ]

    def weighted(self) -> list[Stmt]:
        p, stage = self.p, self.step % 2
        wide = self.wide(self.s.width)
        d, c = Var("d") * p.depth, Var("c") * wide
        part = Buffer("value_part", (p.depth, wide), self.dtype, p.memory)
        load = self.loaded("value_part", lambda a, b: self.values.at(stage, d + a, c + b), p.depth, wide)
        x = Load("weights", (Var("m"), d + Var("k")), self.dtype)
        one = Var("e") * p.columns
        product = self.multiply("results", x, lambda k, n: Load("value_part", (k, one + n), self.dtype), c + one, "sum")
        inner = Alloc(part, seq(load, unrolled([("e", wide // p.columns)], product)))
        return [unrolled([("d", self.plan.keys // p.depth), ("c", self.s.width // wide)], inner)]

    def finish(self) -> list[Stmt]:
        i, j = Var("i"), Var("j")
        row = self.first + self.warp * self.p.rows + i
        value = mul(Load("results", (i, j), F32), Load("total", (i,), F32))
        put = only_if(within(row, self.o.rows, self.rows), self.o.write(row, j, value))
        return [
            self.each_row("total", lambda i: inverse(Load("total", (i,), F32)), "inverse"),
            on("serial", "i", self.p.rows, on("serial", "j", self.s.width, put)),
        ]


def plain_copies(body: Stmt, buffers: dict[str, Buffer]) -> bool:
    """Whether all that is copied asynchronously lies side by side, in pieces at multiples of their size."""
    ranges = all_ranges(body)
    for copy in (x for x in walk_stmts(body) if isinstance(x, AsyncCopy)):
        for f in (x for x in walk_stmts(copy) if isinstance(x, For) and x.kind == "vector"):
            assert isinstance(f.body, Store)
            value = f.body.targets[0].value
            if not isinstance(value, Load):
                return False
            terms, constant = linear(simplify(flat(buffers[value.buffer], value.indices), ranges))
            if terms.pop(Var(f.var), 0) != 1 or any(c % _LANES for c in (*terms.values(), constant)):
                return False
    return True


__all__ = ["Plan", "Shape", "Writer", "instructions", "plain_copies", "plans"]
