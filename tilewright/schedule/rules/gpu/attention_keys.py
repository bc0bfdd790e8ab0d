"""Attention of few queries (a decode step): the threads of a block divide the keys among them (split-KV in a block).

Threads come in teams. The threads of a team have parts of one row of the depth and of the values, contiguous in memory,
so that a team's reads of keys and values coalesce. Every team iterates over its own keys with an online softmax:

    for each step:
        each thread multiplies its part of the queries with that of the team's next keys, and shares the products
        each thread adds up the products of its team: the scores, of which the largest so far (top) is kept
        each thread adds its part of the values, weighted; what was summed before shrinks as top grows
    teams exchange their tops; what each summed is weighted by that and added up, one query after the other

Where a team is a part of a warp, warps iterate over the keys each for itself, without block barriers: memory is busy
for the one while another computes. Of a part of the keys (`attention_parts`) the partial sums are written, and with
them what is needed to combine them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ....support.dtypes import LOOP_TYPES
from ....support.sizes import typical
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ...machine import Machine
from ...nest import Barrier, For, Stmt, seq, store
from .attention_operands import (
    LOWEST,
    Operands,
    add,
    exp_of,
    folded,
    index,
    inverse,
    larger,
    mul,
    own,
    unrolled,
    within_buffers,  # fmt: skip
)
from .attention_tiles import FEW_SUMS
from .thread_binding import BLOCK, WarpAxes, all_of, axis, on, only_if, processors, shared, warps_of, within

F32 = "f32"
#: threads of a block and of a team, queries of a block, keys of a team in a step
UNITS, TEAMS, ROWS, KEYS = (256, 128, 64), (4, 8, 16, 32, 64), (8, 4, 2, 1), (8, 4, 2, 1)


@dataclass(frozen=True)
class KeySplit:
    """Threads of a block and of a team, queries of a block, keys of a team in a step; then neighbours that a thread
    reads at once, and how often to have all of a key and all of a value. `warps`: those that teams are parts of, if
    they go along the keys each for itself."""

    threads: int
    team: int
    rows: int
    keys: int
    lanes: int
    depth: int
    width: int
    warps: WarpAxes | None = field(default=None, kw_only=True)

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.threads, self.team, self.rows, self.keys, self.lanes, self.depth, self.width

    @property
    def teams(self) -> int:
        return self.threads // self.team

    @property
    def columns(self) -> int:
        """Those of a result that a team has, some of them beyond its last one."""
        return self.width * self.team * self.lanes

    @property
    def room(self) -> int:
        """Numbers that threads exchange at one time."""
        return max(self.rows * self.keys * self.threads, self.teams * self.columns)

    def sums(self) -> int:
        """Numbers that a thread keeps."""
        return self.rows * (self.depth + self.width) * self.lanes + self.rows * self.keys

    def __str__(self) -> str:
        each = f"whose {self.teams} teams have {self.keys} keys each at a time"
        return f"{self.rows} queries on {self.threads} threads, {each}"


def shares(o: Operands, machine: Machine) -> list[KeySplit]:
    """Those that fit the machine; of those that have too many sums for its registers the fewest, if there are no
    others."""
    s, block, memory = o.s, axis(machine, BLOCK), shared(machine)
    assert block is not None and memory is not None
    lanes = max(machine.vector_bytes // LOOP_TYPES[o.read.kernel.buffer(s.k).dtype].nbytes, 1)
    while s.depth % lanes or s.width % lanes:
        lanes //= 2
    made = []
    for threads in [u for u in UNITS if u <= (block.limit or 1)]:
        for team in TEAMS:
            once = team * lanes
            depth, width = -(-s.depth // once), -(-s.width // once)
            for rows in [r for r in ROWS if r < 2 * o.rows]:
                made += [KeySplit(threads, team, rows, keys, lanes, depth, width) for keys in KEYS]
    room = [x for x in made if 4 * (x.room + x.threads) <= memory.bytes]
    most = max(FEW_SUMS, machine.vector_registers // 2)
    return [x for x in room if x.sums() <= most] or sorted(room, key=KeySplit.sums)[:1]


def with_warps(t: KeySplit, machine: Machine) -> KeySplit:
    """The same by warps, where that can be."""
    w = warps_of(machine)
    return t if w is None or w.lanes % t.team or t.threads % w.lanes else replace(t, warps=w)


def cost(t: KeySplit, o: Operands, machine: Machine) -> float:
    """The time of the busiest multiprocessor, in bytes that it reads at full speed (`vector_product.cost`): what it
    reads, or what it computes, whichever takes longer, and some of the other."""
    s, block, costs, held = o.s, axis(machine, BLOCK), machine.thread_costs, machine.occupancy
    assert block is not None and block.limit is not None
    nbytes = LOOP_TYPES[o.read.kernel.buffer(s.k).dtype].nbytes
    blocks, count = -(-typical(o.rows) // t.rows) * typical(o.blocks), processors(machine)
    busiest = -(-blocks // count)
    steps = -(-typical(s.keys) // (t.teams * t.keys))
    parts = (t.depth + t.width) * t.lanes
    of_block = steps * t.keys * t.threads * parts * nbytes
    registers = t.threads * (t.sums() + held.beside)
    resident = min(held.blocks * block.limit // t.threads, block.limit * held.registers // registers) or 1
    on_way = min(busiest, resident) * t.threads * min(t.keys * t.depth, held.in_flight) * t.lanes * nbytes
    read = max(blocks * of_block / count, busiest * of_block / min(on_way / machine.flight_bytes, held.alone))
    each = t.keys * parts * (t.rows + 1) + t.rows * t.keys * (t.team + costs.exponential) + t.rows * t.width * t.lanes
    each += 2 * costs.barrier_of_tile if t.warps is None else costs.barrier_of_tile // 4
    last = t.rows * (t.teams + t.width * t.lanes + -(-s.width // t.threads) * t.teams + 3 * costs.barrier_of_tile)
    computed = busiest * t.threads * (steps * each + last) / costs.per_byte
    return max(read, computed) + min(read, computed) / 4


class Shared:
    """Writes the nest."""

    def __init__(self, o: Operands, t: KeySplit, machine: Machine) -> None:
        memory = shared(machine)
        assert memory is not None
        self.o, self.s, self.t, self.memory = o, o.s, t, memory.name
        self.first, self.step = Var("tile") * t.rows, Var("step")
        self.each = t.teams * t.keys
        self.reached = o.reached(self.step * self.each, self.first, t.rows)

    def nest(self) -> Stmt:
        t = self.t
        u = t.threads
        buffers = [
            Buffer("told", (t.room,), F32, self.memory),
            Buffer("told_total", (t.threads,), F32, self.memory),
            own("query", F32, u, t.rows, t.depth, t.lanes),
            own("sums", F32, u, t.rows, t.width, t.lanes),
            own("piece", F32, u, t.lanes),
            own("scores", F32, u, t.rows, t.keys),
            *(own(n, F32, u, t.rows) for n in ("top", "total", "best", "shrink", "dot")),
        ]
        meet = Barrier(t.warps.barrier if t.warps else BLOCK)
        steps = [self.thread("dot", self.dots, skipped=True), meet]
        steps += [self.thread("step", self.grown, skipped=True), meet]
        along = seq(
            self.thread("begin", self.begin),
            on("serial", "step", -(-self.s.keys // self.each), *steps),
        )
        body = seq(self.of_warps(along), Barrier(BLOCK) if t.warps else None, *self.finish())
        return self.o.grid("tile", -(-self.o.rows // t.rows), within_buffers(buffers, body))

    # ---- places

    def thread(self, name: str, body: Callable[[Expr], Stmt], *, skipped: bool = False) -> For:
        """What each thread does, or each of a warp."""
        w, u = self.t.warps, Var(f"u_{name}")
        number = u if w is None else Var("w") * w.lanes + u
        made = only_if(self.reached if skipped else None, body(number))
        return on("block.x", u.name, self.t.threads, made) if w is None else on(w.inner, u.name, w.lanes, made)

    def of_warps(self, body: Stmt) -> Stmt:
        w = self.t.warps
        return body if w is None else on(w.outer, "w", self.t.threads // w.lanes, body)

    def all_threads(self, name: str, body: Callable[[Expr], Stmt]) -> Stmt:
        return self.of_warps(self.thread(name, body))

    def key(self, u: Expr) -> Expr:
        """The i-th of a team's keys in this step: keys beside each other are different teams'."""
        return self.step * self.each + Var("i") * self.t.teams + u // self.t.team

    def part(self, u: Expr, name: str, size: int) -> tuple[Expr, Expr | None]:
        """The first of a thread's neighbours in a row of `size` numbers, and whether there are such."""
        t = self.t
        at = Var(name) * t.team + u % t.team
        count = size // t.lanes
        inside = within(at, count, t.team)
        return (minimum(at, count - 1) if inside is not None else at) * t.lanes, inside

    def load(self, u: Expr, name: str, size: int, read: Callable[[Expr, Expr], Expr], keys: bool = True) -> Stmt:
        """Load a thread's part of a key's row, with zeros for what there is not."""
        t, s = self.t, self.s
        start, inside = self.part(u, name, size)
        key = self.key(u)
        if keys:
            seen = within(key, s.keys, self.each)
            inside, key = all_of([seen, inside]), minimum(key, s.keys - 1) if seen is not None else key
        value = read(key, start + Var("l"))
        if inside is not None:
            value = Op("select", (inside, value, s.number(0.0)), F32)
        return on("vector", "l", t.lanes, store("piece", (u, Var("l")), value, f"bring_{name}"))

    def mine(self, name: str, u: Expr, *at: str) -> Load:
        return Load(name, (u, *(Var(x) for x in at)), F32)

    def rows(self, *body: Stmt) -> Stmt:
        return unrolled([("r", self.t.rows)], *body)

    # ---- steps

    def begin(self, u: Expr) -> Stmt:
        t, o, zero = self.t, self.o, self.s.number(0.0)
        row = self.first + Var("r")
        row = minimum(row, o.rows - 1) if o.rows % t.rows else row
        brought = self.load(u, "a", self.s.depth, lambda _, d: mul(o.query(row, d), self.s.number(self.s.scale)), False)
        kept = store("query", (u, Var("r"), Var("a"), Var("m")), self.mine("piece", u, "m"), "keep")
        clear = store("sums", (u, Var("r"), Var("e"), Var("m")), zero, "begin")
        return self.rows(
            store("top", (u, Var("r")), Const(LOWEST, F32), "begin_top"),
            store("total", (u, Var("r")), zero, "begin_total"),
            unrolled([("a", t.depth)], brought, unrolled([("m", t.lanes)], kept)),
            unrolled([("e", t.width), ("m", t.lanes)], clear),
        )

    def dots(self, u: Expr) -> Stmt:
        """Products of a thread's parts of the queries and the team's keys."""
        t = self.t
        product = mul(self.mine("query", u, "r", "a", "m"), self.mine("piece", u, "m"))
        put = folded("dot", (u, Var("r")), add, product, "multiply")
        told = ((Var("i") * t.rows + Var("r")) * t.threads + u,)
        return unrolled(
            [("i", t.keys)],
            self.rows(store("dot", (u, Var("r")), self.s.number(0.0), "clear")),
            unrolled(
                [("a", t.depth)],
                self.load(u, "a", self.s.depth, self.o.key),
                unrolled([("r", t.rows), ("m", t.lanes)], put),
            ),
            self.rows(store("told", told, self.mine("dot", u, "r"), "tell")),
        )

    def grown(self, u: Expr) -> Stmt:
        """Scores, the weights that follow, and the values with them."""
        t, zero = self.t, self.s.number(0.0)
        r, at = (u, Var("r")), (u, Var("r"), Var("i"))
        parts = Load("told", ((Var("i") * t.rows + Var("r")) * t.threads + u // t.team * t.team + Var("other"),), F32)
        score = self.o.score(self.mine("scores", u, "r", "i"), self.first + Var("r"), self.key(u), (t.rows, self.each))
        best, shrink = self.mine("best", u, "r"), self.mine("shrink", u, "r")
        scores = self.rows(
            store("best", r, self.mine("top", u, "r"), "best"),
            unrolled(
                [("i", t.keys)],
                store("scores", at, zero, "clear_score"),
                on("serial", "other", t.team, folded("scores", at, add, parts, "add_score")),
                store("scores", at, score, "score"),
                folded("best", r, larger, self.mine("scores", u, "r", "i"), "larger"),
            ),
            store("shrink", r, exp_of(self.mine("top", u, "r"), best), "shrink"),
            store("top", r, best, "grow"),
            store("total", r, mul(self.mine("total", u, "r"), shrink), "shrink_total"),
            unrolled([("e", t.width), ("m", t.lanes)], folded("sums", (*r, Var("e"), Var("m")), mul, shrink, "shrunk")),
            unrolled(
                [("i", t.keys)],
                store("scores", at, exp_of(self.mine("scores", u, "r", "i"), best), "weight"),
                folded("total", r, add, self.mine("scores", u, "r", "i"), "add"),
            ),
        )
        weighted = mul(self.mine("scores", u, "r", "i"), self.mine("piece", u, "m"))
        values = unrolled(
            [("i", t.keys), ("e", t.width)],
            self.load(u, "e", self.s.width, self.o.value),
            unrolled([("r", t.rows), ("m", t.lanes)], folded("sums", (*r, Var("e"), Var("m")), add, weighted, "sum")),
        )
        return seq(scores, values)

    # ---- all teams together

    def finish(self) -> list[Stmt]:
        t = self.t

        def tell(u: Expr) -> Stmt:
            return self.rows(store("told", (Var("r") * t.threads + u,), self.mine("top", u, "r"), "tell_top"))

        def weigh(u: Expr) -> Stmt:
            told = Load("told", (Var("r") * t.threads + Var("g") * t.team,), F32)
            r, best = (u, Var("r")), self.mine("best", u, "r")
            return self.rows(
                store("best", r, self.mine("top", u, "r"), "best_of_all"),
                on("serial", "g", t.teams, folded("best", r, larger, told, "largest")),
                store("shrink", r, exp_of(self.mine("top", u, "r"), best), "share"),
            )

        one = [
            self.all_threads("tell", self.told),
            Barrier(BLOCK),
            self.all_threads("write", self.written),
            Barrier(BLOCK),
        ]
        return [
            self.all_threads("top", tell),
            Barrier(BLOCK),
            self.all_threads("weigh", weigh),
            Barrier(BLOCK),
            on("unroll", "r", t.rows, *one),
        ]

    def told(self, u: Expr) -> Stmt:
        """A thread's partial sums of a query."""
        t, shrink = self.t, self.mine("shrink", u, "r")
        place = u // t.team * t.columns + (Var("e") * t.team + u % t.team) * t.lanes + Var("m")
        put = store("told", (place,), mul(self.mine("sums", u, "r", "e", "m"), shrink), "tell")
        return seq(
            unrolled([("e", t.width), ("m", t.lanes)], put),
            store("told_total", (u,), mul(self.mine("total", u, "r"), shrink), "tell_total"),
        )

    def written(self, u: Expr) -> Stmt:
        """The results of a query."""
        t, s, zero = self.t, self.s, self.s.number(0.0)
        column, row, r = Var("n") * t.threads + u, self.first + Var("r"), (u, Var("r"))
        total = on(
            "serial", "g", t.teams, folded("total", r, add, Load("told_total", (Var("g") * t.team,), F32), "add_total")
        )
        value = Load("told", (Var("g") * t.columns + column,), F32)
        inside = all_of([within(column, s.width, t.threads), within(row, self.o.rows, t.rows)])
        result: Expr = self.mine("dot", u, "r")
        beside = None
        if s.partials:
            first = all_of([Op("cmpi.eq", (u, index(0)), "i1"), within(row, self.o.rows, t.rows)])
            beside = only_if(first, self.o.tell(row, self.mine("best", u, "r"), self.mine("total", u, "r")))
        else:
            result = mul(result, inverse(self.mine("total", u, "r")))
        each = seq(
            store("dot", r, zero, "clear_result"),
            on("serial", "g", t.teams, folded("dot", r, add, value, "add_result")),
            self.o.write(row, column, result),
        )
        return seq(
            store("total", r, zero, "clear_total"),
            total,
            on("serial", "n", -(-s.width // t.threads), only_if(inside, each)),
            beside,
        )
