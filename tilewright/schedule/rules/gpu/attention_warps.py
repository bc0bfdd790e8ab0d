"""Fused attention (FlashAttention) by tensor core instructions of warps (`machine.WarpProduct`).

A warp has 16 rows (queries), and iterates over the keys with all others of its block:

    copies of the keys and values of the first tile begin
    for each tile of keys:
        copies of the next tile begin, into the other half of shared memory; those of this one are waited for
        scores = queries x keys, both in fragments of 16 x 16
        the largest score of each row grows, and what was summed before shrinks with it
        weights = 2^((scores - largest) * log2(e)), in the type of the factors, in the lanes' layout of accumulators
        results = results * shrink + weights x values
    results / totals

`Brought` is the layout of keys and values in shared memory, and how they are copied there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....support.dtypes import LOOP_TYPES
from ....tensor.analysis import flat
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, linear, minimum, simplify
from ...bulk import no_boxes
from ...machine import Machine, WarpLoad, WarpProduct, find_axis
from ...nest import Alloc, AsyncCopy, Barrier, For, Stmt, Store, Wait, seq, store, walk_stmts
from ...region import all_ranges
from ...warp import NOTE
from .attention_operands import LOWEST, Operands, add, folded, inverse, mul, unrolled, within_buffers
from .thread_binding import BLOCK, all_of, guarded, on, only_if, shared, within

F32 = "f32"
#: what is tried: warps of a block, and keys of a tile
WARPS, KEYS = (4, 8, 2, 1), (64, 32, 128)
#: rows beside each other in banks of a memory: a row's pieces change places with the row
_BANK_BYTES = 128
#: weights are powers of two, which machines have instructions for
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Instructions:
    """Those of a machine for factors of a dtype: the products for scores and for results, and what loads factors and
    folds rows by name. The axes of teams and of their threads, with the threads of a team."""

    scores: WarpProduct
    results: WarpProduct
    load: str
    fold: str
    team: str
    thread: str
    lanes: int


def together(scores: WarpProduct, results: WarpProduct, load: WarpLoad | None, machine: Machine) -> Instructions | None:
    """The instructions with the axes of their memory; None if rows of that are not folded."""
    fold = next((x for x in machine.warp_folds if x.memory == scores.memory), None)
    memory = next((m for m in machine.memories if m.name == scores.memory), None)
    thread = find_axis(machine, memory.shared_by[0]) if memory is not None and memory.shared_by else None
    if fold is None or thread is None or not thread.inside or not thread.limit:
        return None
    return Instructions(scores, results, load.name if load else "", fold.name, thread.inside, thread.name, thread.limit)


def factors_dtype(o: Operands) -> str | None:
    """The one of queries, keys and values."""
    found = {o.read.kernel.buffer(b).dtype for b in (o.s.q, o.s.k, o.s.v)}
    return found.pop() if len(found) == 1 else None


def instructions(o: Operands, machine: Machine) -> Instructions | None:
    """What there is for products whose operands all are held in parts."""
    for p in machine.warp_products:
        load = next((x for x in machine.warp_loads if x.memory == p.memory), None)
        if p.dtype == factors_dtype(o) and p.operands == p.memory and not p.first and load is not None:
            return together(p, p, load, machine)
    return None


@dataclass(frozen=True)
class WarpAttentionPlan:
    """Teams of a block (warps, or groups of them) and keys of a tile."""

    teams: int
    keys: int


def plans(o: Operands, machine: Machine) -> list[WarpAttentionPlan]:
    """Those that fit the machine, the best first; none if sizes or numbers are not those of its instructions."""
    s, found = o.s, instructions(o, machine)
    if found is None or s.depth % found.scores.depth or s.width % found.scores.depth:
        return []
    tried = [WarpAttentionPlan(w, k) for w in WARPS for k in KEYS]
    return [p for p in tried if fits(p, o, found, s.depth, machine, found.scores.rows)]


def fits(
    plan: WarpAttentionPlan, o: Operands, own: Instructions, held_depth: int, machine: Machine, least: int = 0
) -> bool:
    """Whether tiles are shared out evenly and have room, in registers with `held_depth` of the queries. A lane has of
    every row an element in 32 columns, of two beside each other in one register where they have 16 bits. Half of the
    rows of a tile are queries, unless it has no more than `least`."""
    s, memory, p = o.s, shared(machine), own.scores
    assert memory is not None
    held = (held_depth // 2 + plan.keys + plan.keys // 2 + s.width) // 2
    rows = plan.teams * p.rows
    room = LOOP_TYPES[p.dtype].nbytes * (rows * s.depth + 2 * plan.keys * (s.depth + s.width))
    places = (plan.keys * s.depth, plan.keys * s.width, rows * s.depth)
    whole = all(n % (_LANES * plan.teams * own.lanes) == 0 for n in places)
    useful = (rows <= least or rows < 2 * o.rows) and plan.keys < 2 * s.keys
    return held * 4 <= machine.vector_registers * 3 and room <= memory.bytes and whole and useful


#: numbers of 16 bits in what a lane copies at once
_LANES = 8


class Brought:
    """Tiles of `rows` rows of a matrix with `columns`, in `stages` parts of shared memory, whose pieces of 16 bytes are
    swizzled so that rows beside each other lie in different banks. The rows are divided among all lanes."""

    def __init__(
        self, name: str, dtype: str, memory: str, rows: int, columns: int, stages: int, w: WarpAttentionWriter
    ) -> None:
        self.name, self.rows, self.columns, self.w = name, rows, columns, w
        self.buffer = Buffer(name, (stages, rows, columns), dtype, memory)
        pieces = columns // _LANES
        bank = _BANK_BYTES // LOOP_TYPES[dtype].nbytes // _LANES
        self.turns = min(pieces & -pieces, bank)
        self.every = bank // self.turns

    def place(self, stage: Expr, row: Expr, piece: Expr, x: Expr) -> tuple[Expr, ...]:
        """Of number x in a piece of a row."""
        if self.turns == 1:
            return stage, row, piece * _LANES + x
        turn = row // self.every % self.turns if self.every > 1 else row % self.turns
        return stage, row, Op("xori", (piece, turn), "index") * _LANES + x

    def at(self, stage: Expr, row: Expr, column: Expr) -> Load:
        return Load(self.name, self.place(stage, row, column // _LANES, column % _LANES), self.buffer.dtype)

    def copy(self, stage: Expr, source: Callable[[Expr, Expr], Expr]) -> Stmt:
        """Loops of all lanes over a tile."""
        w, of = self.w, f"_{self.name}"
        threads, pieces = w.plan.teams * w.own.lanes, self.columns // _LANES
        place = Var(f"n{of}") * threads + w.team * w.own.lanes + Var(f"u{of}")
        row, piece, x = place // pieces, place % pieces, Var(f"x{of}")
        put = store(self.name, self.place(stage, row, piece, x), source(row, piece * _LANES + x), f"bring{of}")
        body = on(
            "serial", f"n{of}", self.rows * self.columns // (threads * _LANES), on("vector", f"x{of}", _LANES, put)
        )
        return w.teams(on(w.own.thread, f"u{of}", w.own.lanes, body))

    def boxes(self, stage: Expr, source: Callable[[Expr, Expr], Expr]) -> Stmt:
        """The same as boxes that an engine of the machine copies."""
        raise NotImplementedError

    def begin(self, stage: Expr, source: Callable[[Expr, Expr], Expr], condition: Expr | None = None) -> Stmt:
        """Begin to copy a tile, if a condition holds; `ready` waits."""
        boxes = self.w.way == "bulk"
        copied = only_if(condition, self.boxes(stage, source) if boxes else self.copy(stage, source))
        return copied if self.w.way == "plain" else AsyncCopy(f"{self.name}_come", copied, bulk=boxes)

    def ready(self, later: int) -> Stmt | None:
        """Wait for all tiles but those that were begun `later`."""
        return None if self.w.way == "plain" else Wait(f"{self.name}_come", later)


class WarpAttentionWriter:
    """Writes the nest. The `way` of copies: by an engine of the machine ("bulk"), by threads and asynchronous
    ("async"), or ordinary ones ("plain")."""

    tile = Brought

    def __init__(self, o: Operands, plan: WarpAttentionPlan, own: Instructions, machine: Machine, way: str) -> None:
        memory = shared(machine)
        assert memory is not None
        self.o, self.s, self.plan, self.own, self.way = o, o.s, plan, own, way
        self.p, self.dtype = own.scores, own.scores.dtype
        self.rows = plan.teams * self.p.rows
        self.tiles = -(-o.rows // self.rows)
        # blocks begin in the order of their numbers: those with the most keys to see come first
        tile = Const(self.tiles - 1, "index") - Var("tile") if o.s.causal else Var("tile")
        self.team, self.first, self.step = Var("w"), tile * self.rows, Var("step")
        self.steps = -(-o.s.keys // plan.keys)
        self.queries = self.tile("queries", self.dtype, memory.name, self.rows, o.s.depth, 1, self)
        self.keys = self.tile("keys", self.dtype, memory.name, plan.keys, o.s.depth, 2, self)
        self.values = self.tile("values", self.dtype, memory.name, plan.keys, o.s.width, 2, self)
        self.reached = o.reached(self.step * plan.keys, self.first, self.rows)

    def nest(self) -> Stmt:
        s, p, zero = self.s, self.p, Const(0, "index")
        held = [
            *self.held_queries(),
            Buffer("scores", (self.rows, self.plan.keys), F32, p.memory),
            Buffer("weights", (self.rows, self.plan.keys), self.dtype, p.memory),
            Buffer("results", (self.rows, s.width), F32, p.memory),
            *(Buffer(n, (self.rows,), F32, p.memory) for n in ("top", "total", "best", "shrink")),
        ]
        along = self.teams(only_if(self.reached, seq(*self.scores(), *self.grown(), *self.weighted())))
        follows = all_of(
            [
                Op("cmpi.slt", (self.step, Const(self.steps - 1, "index")), "i1"),
                self.o.reached((self.step + 1) * self.plan.keys, self.first, self.rows),
            ]
        )
        came = Barrier(BLOCK) if self.way != "bulk" else None  # all threads wait for bulk copies themselves
        arrived = seq(self.keys.ready(1), self.values.ready(1), came)
        following = self.bring(self.step + 1, follows)
        step = on("serial", "step", self.steps, Barrier(BLOCK), following, arrived, along)
        body = seq(
            self.queries.begin(zero, self.query),
            self.bring(zero, None),
            self.queries.ready(0),
            came,
            self.computed(self.teams(self.begin()), step, self.teams(seq(*self.finish()))),
        )
        brought = [x.buffer for x in (self.queries, self.keys, self.values)]
        return self.o.grid("tile", self.tiles, within_buffers([*brought, *held], body))

    def computed(self, *parts: Stmt) -> Stmt:
        """What the teams do with what is copied."""
        return seq(*parts)

    def teams(self, body: Stmt) -> Stmt:
        """What each team does."""
        return on(self.own.team, "w", self.plan.teams, body)

    def mine(self, i: Expr) -> Expr:
        """A team's i-th row among those of all teams."""
        return self.team * self.p.rows + i

    # ---- bringing

    def query(self, row: Expr, d: Expr) -> Expr:
        return self.there(self.o.query, self.first + row, d, self.o.rows, self.rows)

    def bring(self, step: Expr, condition: Expr | None) -> Stmt:
        """Begin to copy a tile of keys and values."""
        stage = step % 2

        def row(of: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
            def read(j: Expr, d: Expr) -> Expr:
                return self.there(of, step * self.plan.keys + j, d, self.s.keys, self.plan.keys)

            return read

        return seq(
            self.keys.begin(stage, row(self.o.key), condition), self.values.begin(stage, row(self.o.value), condition)
        )

    def there(self, of: Callable[[Expr, Expr], Expr], row: Expr, d: Expr, rows: int, tile: int) -> Expr:
        """What is read of a row, before it is made an f32; beyond the last one zero in boxes, else that one again."""
        inside = within(row, rows, tile)
        clamped = inside is not None and self.way != "bulk"
        x = of(minimum(row, rows - 1) if clamped else row, d)
        assert isinstance(x, Op) and x.op == "extf"
        zero = Const(0.0, self.dtype)
        return x.args[0] if inside is None or clamped else guarded(inside, x.args[0], zero)

    # ---- loops

    def each(self, columns: int, target: str, value: Callable[[Expr, Expr], Expr], block: str) -> Stmt:
        """A statement on all of the warp's rows and so many columns."""
        i, j = Var("i"), Var("j")
        return on(
            "serial", "i", self.p.rows, on("serial", "j", columns, store(target, (self.mine(i), j), value(i, j), block))
        )

    def each_row(self, target: str, value: Callable[[Expr], Expr], block: str) -> Stmt:
        return on("serial", "i", self.p.rows, store(target, (self.mine(Var("i")),), value(Var("i")), block))

    def fold(self, target: str, source: str, operation: str, block: str) -> Stmt:
        i, j = self.mine(Var("i")), Var("j")
        value = Op(operation, (Load(target, (i,), F32), Load(source, (i, j), F32)), F32)
        inner = self.noted("j", self.plan.keys, store(target, (i,), value, block), self.own.fold)
        return on("serial", "i", self.p.rows, inner)

    def noted(self, var: str, extent: int, body: Stmt, name: str) -> For:
        return For(var, Const(extent, "index"), body, notes=((NOTE, name),))

    def loaded(self, name: str, value: Callable[[Expr, Expr], Expr], rows: int, columns: int) -> Stmt:
        """Load a matrix from shared memory to the parts of the lanes."""
        a, b = Var("a"), Var("b")
        put = store(name, (a, b), value(a, b), f"load_{name}")
        return on("serial", "a", rows, self.noted("b", columns, put, self.own.load))

    def multiply(
        self, p: WarpProduct, target: str, x: Load, w: Callable[[Expr, Expr], Load], column: Expr, block: str
    ) -> Stmt:
        """``target[m, column + n] += x[m, k] * w[k, n]``, one instruction; `x` is read at row m and depth k."""
        m, n, k = Var("m"), Var("n"), Var("k")
        factors = [Op(p.extends, (f,), p.sums) for f in (x, w(k, n))]
        put = folded(target, (self.mine(m), column + n), add, mul(*factors), block)
        return on("serial", "m", p.rows, on("serial", "n", p.columns, self.noted("k", p.depth, put, p.name)))

    # ---- steps

    def held_queries(self) -> list[Buffer]:
        """What a team keeps of the queries."""
        return [Buffer("q", (self.rows, self.s.depth), self.dtype, self.p.memory)]

    def load_queries(self) -> Stmt | None:
        parts, a, b = Var("d") * self.p.depth, Var("a"), Var("b")
        value = self.queries.at(Const(0, "index"), self.mine(a), parts + b)
        put = store("q", (self.mine(a), parts + b), value, "load_q")
        load = on("serial", "a", self.p.rows, self.noted("b", self.p.depth, put, self.own.load))
        return unrolled([("d", self.s.depth // self.p.depth)], load)

    def begin(self) -> Stmt:
        zero = Const(0.0, F32)
        return seq(
            self.load_queries(),
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
        x = Load("q", (self.mine(Var("m")), d + Var("k")), self.dtype)
        one = Var("e") * p.columns
        product = self.multiply(
            p, "scores", x, lambda k, n: Load("key_part", (one + n, k), self.dtype), c + one, "multiply"
        )
        inner = Alloc(part, seq(load, unrolled([("e", wide // p.columns)], product)))
        return [self.clear(), unrolled([("d", self.s.depth // p.depth), ("c", self.plan.keys // wide)], inner)]

    def clear(self) -> Stmt:
        return self.each(self.plan.keys, "scores", lambda i, j: Const(0.0, F32), "clear")

    def wide(self, columns: int) -> int:
        """Columns of a second factor that come at once: two blocks where there are two."""
        return 2 * self.p.columns if columns % (2 * self.p.columns) == 0 else self.p.columns

    @property
    def scaled(self) -> bool:
        """Whether scores are scaled before the largest one is looked for."""
        return self.s.mask is not None or not self.s.scale > 0

    def grown(self) -> list[Stmt]:
        """Scores are left as the product has them where nothing is added: the scale is a part of the exponent."""
        o, s, scaled = self.o, self.s, self.scaled

        def score(i: Expr, j: Expr) -> Expr:
            return o.score(
                mul(scores(i, j), s.number(s.scale)) if scaled else scores(i, j),
                self.first + self.mine(i),
                self.step * self.plan.keys + j,
                (self.rows, self.plan.keys),
            )

        def of(name: str, i: Expr) -> Load:
            return Load(name, (self.mine(i),), F32)

        def scores(i: Expr, j: Expr) -> Load:
            return Load("scores", (self.mine(i), j), F32)

        def results(i: Expr, j: Expr) -> Load:
            return Load("results", (self.mine(i), j), F32)

        def weight(x: Expr, best: Expr) -> Expr:
            exponent = _LOG2_E * (1.0 if scaled else s.scale)
            return Op("exp2", (mul(Op("subf", (x, best), F32), s.number(exponent)),), F32)

        return [
            self.each(self.plan.keys, "scores", score, "score"),
            self.each_row("best", lambda i: of("top", i), "best"),
            self.fold("best", "scores", "maxnumf", "largest"),
            self.each_row("shrink", lambda i: weight(of("top", i), of("best", i)), "shrink"),
            self.each_row("top", lambda i: of("best", i), "grow"),
            self.each(self.plan.keys, "scores", lambda i, j: weight(scores(i, j), of("best", i)), "weight"),
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
        x = Load("weights", (self.mine(Var("m")), d + Var("k")), self.dtype)
        one = Var("e") * p.columns
        product = self.multiply(
            p, "results", x, lambda k, n: Load("value_part", (k, one + n), self.dtype), c + one, "sum"
        )
        inner = Alloc(part, seq(load, unrolled([("e", wide // p.columns)], product)))
        return [unrolled([("d", self.plan.keys // p.depth), ("c", self.s.width // wide)], inner)]

    def finish(self) -> list[Stmt]:
        i, j = Var("i"), Var("j")
        row = self.first + self.mine(i)
        inside = within(row, self.o.rows, self.rows)
        result: Expr = Load("results", (self.mine(i), j), F32)
        top, total = (Load(n, (self.mine(i),), F32) for n in ("top", "total"))
        last: Stmt
        if self.s.partials:
            score = top if self.scaled else mul(top, self.s.number(self.s.scale))
            last = on("serial", "i", self.p.rows, only_if(inside, self.o.tell(row, score, total)))
        else:
            last, result = self.each_row("total", lambda i: inverse(total), "inverse"), mul(result, total)
        put = only_if(inside, self.o.write(row, j, result))
        return [last, on("serial", "i", self.p.rows, on("serial", "j", self.s.width, put))]


def can_copy(body: Stmt, buffers: dict[str, Buffer], machine: Machine) -> bool:
    """Whether an engine can copy all that it should, and all else that is copied asynchronously lies side by side, in
    pieces at multiples of their size."""
    ranges = all_ranges(body)
    buffers = {**buffers, **{x.buffer.name: x.buffer for x in walk_stmts(body) if isinstance(x, Alloc)}}
    for copy in (x for x in walk_stmts(body) if isinstance(x, AsyncCopy)):
        if copy.bulk and no_boxes(copy, body, buffers, machine):
            return False
        for f in (x for x in walk_stmts(copy) if isinstance(x, For) and x.kind == "vector"):
            assert isinstance(f.body, Store)
            value = f.body.targets[0].value
            if not isinstance(value, Load):
                return False
            terms, constant = linear(simplify(flat(buffers[value.buffer], value.indices), ranges))
            if terms.pop(Var(f.var), 0) != 1 or any(c % _LANES for c in (*terms.values(), constant)):
                return False
    return True


__all__ = ["Brought", "Instructions", "WarpAttentionPlan", "WarpAttentionWriter", "can_copy", "plans"]
