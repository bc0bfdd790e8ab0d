"""Contractions and convolutions as matrix products (implicit GEMM): each block computes a tile of the result.

The loops of a sum of products fall into four groups: those that only the first factor uses (rows), only the second
(columns), both (batch), and those of the sum (depth). Each group is one index, whatever loops it is made of, so that a
convolution is a product of its windows, which are gathered on the way into shared memory, with its weights.

    for each tile, on a block:
        for each step of the depth:
            threads load a piece of both factors into shared memory
            each thread multiplies its rows with its columns, in registers
        each thread writes its tile, with the elementwise epilogue, and its part of a border around it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ....graph.machine_costs import MIDDLING
from ....support.sizes import typical
from ....tensor.analysis import flat
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, loads, substitute, variables
from ....tensor.kernel import Stage
from ...machine import Machine, lanes
from ...machine_instructions import CoalescedAccess
from ...nest import Alloc, Barrier, For, Stmt, Store, seq, store, stores
from ...schedule import Schedule
from ..common import coefficient
from .tactics import loops_rule, not_loops
from .thread_binding import BLOCK, all_of, axis, digits, fits_axis, guarded, on, only_if, shared, within
from .thread_per_element import after_stages, applied, shared_out

NAME = "block_contraction"
PRIORITY = 5
#: rows and columns that a thread computes, rows and columns of a block, and steps of the sum at a time: what is tried
UNIT_TILES = (8, 4, 2, 1)
BLOCK_TILES = (128, 64, 32, 16, 8)
DEPTHS = (32, 16, 8)
#: loops over tiles, along the axes of `grid`
TILE_LOOPS = ("column_tile", "row_tile", "batch")
#: neighbours in the sum that neighbouring threads load (a divisor of all of `DEPTHS`), and numbers between the rows
#: of a piece that is loaded so: their product is the number of banks
RUN, GAP = 8, 4
#: costs: of loads that neighbouring threads make together (coalesced), of those of each by itself, to bring an element
#: to shared memory; operations to find an element's places
TOGETHER, BRING, INDICES = 0.375, 1.25, 4
#: what may be computed beyond a result, in times of all of it; fewer results than these are sums of their own rather
MOST_BEYOND, FEW_RESULTS = 1.4, 256
#: how many times as long it takes to read columns one by one where the machine reads several at once
ONE_BY_ONE = 1.25
LANE = Var("lane")
#: a product of fewer multiply-adds is not worth shared memory
SMALL = 1 << 12
#: sums of products -> what adds, what multiplies
_SUMS = {"addf": "mulf", "addi": "muli"}


def write(s: Schedule, machine: Machine) -> Stmt | str:
    found = read(s)
    if isinstance(found, str):
        return found
    tile = choose(s, found, machine)
    if isinstance(tile, str):
        return tile
    s.plan = str(tile)
    return writer(s, found, tile, machine).nest()


apply = loops_rule(NAME, write, not_loops)


def writer(s: Schedule, p: Contraction, t: ContractionTile, machine: Machine) -> ContractionWriter:
    """Selects the class that writes the nest, by the instructions of the machine."""
    from .contraction_bytes import ByteWriter, instruction
    from .contraction_vectors import VectorWriter

    dot = instruction(p, machine)
    if dot is not None:
        return ByteWriter(s, p, t, dot)
    return VectorWriter(s, p, t) if lanes(machine) > 1 else ContractionWriter(s, p, t)


# ---- what is computed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contraction:
    """A sum of products: its store, the two factors, the groups of its loops, the stages after it, and what is written
    around a padded result."""

    sum: Store
    factors: tuple[Expr, Expr]
    batch: tuple[tuple[str, int], ...]
    rows: tuple[tuple[str, int], ...]
    columns: tuple[tuple[str, int], ...]
    depth: tuple[tuple[str, int], ...]
    after: tuple[Stage, ...]
    borders: tuple[Store, ...] = ()

    def size(self, group: str) -> int:
        return prod(n for _, n in getattr(self, group))


def read(s: Schedule) -> Contraction | str:
    """The sum of products of a kernel whose producers have been inlined, or why it has none."""
    blocks = stores(s.body)
    sums = [b for b in blocks if b.reduction]
    if len(sums) != 1 or blocks[0] is not sums[0]:
        return "it is not one sum with element-wise stages after it"
    total = sums[0]
    dims = tuple((v, s.extent_or_zero(v)) for v in s.loops(total.block))
    if len(total.targets) != 1 or any(n == 0 for _, n in dims):
        return "its sum has several results, or extents that vary"
    factors = _factors(total.targets[0])
    if factors is None:
        return "it is no sum of products"
    used = [variables(f) for f in factors]
    free = [d for d in dims if d[0] not in total.reduction]
    rows, columns = (tuple(d for d in free if d[0] in used[i] and d[0] not in used[1 - i]) for i in (0, 1))
    batch = tuple(d for d in free if d not in rows and d not in columns)
    borders = tuple(b for b in blocks[1:] if not b.loads and b.targets[0].buffer in s.kernel.outputs)
    after = after_stages(s, total, [b for b in blocks[1:] if b not in borders])
    if isinstance(after, str):
        return after
    depth = _neighbours_last(s, factors, tuple(d for d in dims if d[0] in total.reduction))
    return Contraction(total, factors, batch, rows, columns, depth, after, borders)


def _neighbours_last(
    s: Schedule, factors: tuple[Expr, Expr], depth: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    """The loops of a sum, the last of which walks through neighbours of a factor in memory if any of them does: its
    terms may be added in any order."""
    places = [flat(s.buffer(x.buffer), x.indices) for f in factors for x in loads(f)]
    along = [d for d in depth if d[1] != 1 and any(coefficient(where, d[0]) == 1 for where in places)]
    if not along or depth[-1] in along:
        return depth
    last = max(along, key=lambda d: typical(d[1]))
    return (*(d for d in depth if d != last), last)


def _factors(t: Target) -> tuple[Expr, Expr] | None:
    value = t.value
    if not isinstance(value, Op) or value.op not in _SUMS or not isinstance(t.init, Const) or t.init.value != 0:
        return None
    own = [isinstance(a, Load) and a.buffer == t.buffer for a in value.args]
    product = value.args[1] if own[0] else value.args[0]
    if sum(own) != 1 or not isinstance(product, Op) or product.op != _SUMS[value.op]:
        return None
    return product.args[0], product.args[1]


def along_depth(s: Schedule, p: Contraction, which: int) -> bool:
    """Whether a factor's neighbours in memory are neighbours in the sum, not among its rows or columns."""
    group = p.rows if which == 0 else p.columns
    for x in loads(p.factors[which]):
        where = flat(s.buffer(x.buffer), x.indices)
        if p.depth and coefficient(where, p.depth[-1][0]) == 1:
            return True
        if group and coefficient(where, group[-1][0]) == 1:
            return False
    return False


def gaps_of(s: Schedule, p: Contraction) -> tuple[int, int]:
    """Numbers between the rows of the pieces of both factors, so that what neighbouring threads write of them lies in
    different banks."""
    first, second = (GAP if along_depth(s, p, i) else 0 for i in (0, 1))
    return first, second


# ---- tiles ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContractionTile:
    """Rows and columns of a block and of a thread, and steps of the sum that are in shared memory at a time."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    def __str__(self) -> str:
        return (
            f"tiles of {self.rows} x {self.columns} on {self.threads} threads, "
            f"{self.thread_rows} x {self.thread_columns} each, {self.depth} steps of the sum in shared memory"
        )


def choose(s: Schedule, p: Contraction, machine: Machine) -> ContractionTile | str:
    """The tile; what a tuner may change is a decision of the schedule."""
    rows, columns, depth = p.size("rows"), p.size("columns"), p.size("depth")
    if rows < 2 or columns < 2 or rows * columns * depth < SMALL:
        return "one of its factors is a vector, or it is small"
    block, memory, between = axis(machine, BLOCK), shared(machine), sum(gaps_of(s, p))
    assert block is not None and memory is not None
    fits = [
        t
        for t in _tiles(rows, columns, depth)
        if t.threads <= (block.limit or 1)
        and t.thread_rows * t.thread_columns <= machine.vector_registers
        and 4 * t.depth * (t.rows + t.columns + between) <= memory.bytes
        and all(fits_axis(machine, a, n) for a, n in grid(p, t))
    ]
    if not fits:
        return "no tile fits the machine"
    filled = [t for t in fits if beyond(t, p) <= MOST_BEYOND]
    if not filled and typical(rows) * typical(columns) < FEW_RESULTS:
        return "its few results fill no tile"
    fits = filled or fits
    best = min(fits, key=lambda t: cost(t, p, machine))
    chosen = s.sample_choice("tile", [_numbers(t) for t in fits], _numbers(best))
    return ContractionTile(*chosen)


def grid(p: Contraction, t: ContractionTile) -> tuple[tuple[str, int], ...]:
    """The axes of the grid and the tiles along each: of columns, of rows, of the batch."""
    return (
        ("grid.x", -(-p.size("columns") // t.columns)),
        ("grid.y", -(-p.size("rows") // t.rows)),
        ("grid.z", p.size("batch")),
    )


def _numbers(t: ContractionTile) -> tuple[int, ...]:
    return (t.rows, t.columns, t.thread_rows, t.thread_columns, t.depth)


def _tiles(rows: int, columns: int, depth: int) -> list[ContractionTile]:
    def sizes(n: int) -> list[int]:
        return [b for b in BLOCK_TILES if b < 2 * n] or [BLOCK_TILES[-1]]

    return [
        ContractionTile(m, n, a, b, d)
        for m in sizes(rows)
        for n in sizes(columns)
        for a in UNIT_TILES
        for b in UNIT_TILES
        for d in DEPTHS
        if d < 2 * depth or d == DEPTHS[-1]
    ]


def cost(t: ContractionTile, p: Contraction, machine: Machine) -> float:
    """The cycles of the processor with most tiles.

    Those that it has at a time share its lanes, if they have threads for all of them; each waits for global memory at
    every step of its sum, while others compute. A thread's loads from shared memory go on beside its products, so far
    as they take no longer: where threads lie, they read their rows together, and columns each by itself.
    """
    costs, how = machine.grid_costs or MIDDLING, machine.coalesced_access or CoalescedAccess()
    speed, threads = costs.products[0], -(-t.threads // how.together) * how.together  # those of whole warps
    rows, columns, depth, batch = (typical(p.size(g)) for g in ("rows", "columns", "depth", "batch"))
    most = -(-(-(-rows // t.rows) * -(-columns // t.columns) * batch) // costs.processors)
    at_once = min(most, resident(t, machine))
    elements, products = t.depth * (t.rows + t.columns), t.depth * t.rows * t.columns * threads / t.threads
    loads_of_thread = t.thread_rows * TOGETHER + t.thread_columns
    loads_of_thread *= ONE_BY_ONE if lanes(machine) > 1 and t.thread_columns % lanes(machine) else 1.0
    near = (products / (t.thread_rows * t.thread_columns) * loads_of_thread + BRING * elements) / how.banks
    computed = (products + INDICES * elements) / speed
    work = max(near, computed) + min(near, computed) / 4
    alone = work * speed / min(speed, threads) + costs.begin / 2
    brought = at_once * 4 * elements / costs.near
    step = max(at_once * work * speed / min(speed, at_once * threads), alone, brought)
    return most / at_once * (-(-depth // t.depth) * step + costs.begin)


def beyond(t: ContractionTile, p: Contraction) -> float:
    """The padding overhead: products computed, with those beyond the result and the sum, over those needed."""
    sizes = [typical(p.size(g)) for g in ("rows", "columns", "depth")]
    return prod(-(-n // m) * m / n for n, m in zip(sizes, (t.rows, t.columns, t.depth), strict=True))


def resident(t: ContractionTile, machine: Machine) -> int:
    """Occupancy: tiles that a multiprocessor runs at the same time, by threads, registers and shared memory."""
    block, memory, held = axis(machine, BLOCK), shared(machine), machine.occupancy
    assert block is not None and memory is not None
    limit = block.limit or 1
    registers = t.thread_rows * t.thread_columns + t.thread_rows + t.thread_columns + held.addresses
    near = memory.bytes // (4 * t.depth * (t.rows + t.columns + 2 * GAP))
    return max(min(near, held.blocks * limit // t.threads, limit * held.registers // (t.threads * registers)), 1)


# ---- the nest ------------------------------------------------------------------------------------------------------


class ContractionWriter:
    """Writes the nest of a product with a tile."""

    def __init__(self, s: Schedule, p: Contraction, t: ContractionTile) -> None:
        self.s, self.p, self.t = s, p, t
        self.batch: Expr = Var("batch")
        self.row: Expr = Var("row_tile")
        self.column: Expr = Var("column_tile")
        self.step = Var("step")
        dtype = s.buffer(p.sum.targets[0].buffer).dtype
        self.zero = Const(0.0 if dtype.startswith("f") else 0, dtype)
        self.sums = Buffer(s.fresh("sums"), (t.threads, t.thread_rows, t.thread_columns), dtype, "register")
        gaps = gaps_of(s, p)
        self.pieces = (
            Buffer(s.fresh("piece_a"), (t.depth, t.rows + gaps[0]), dtype, "shared"),
            Buffer(s.fresh("piece_b"), (t.depth, t.columns + gaps[1]), dtype, "shared"),
        )

    def nest(self) -> Stmt:
        p, t = self.p, self.t
        steps = -(-p.size("depth") // t.depth)
        a, b = self.pieces
        step = on("serial", "step", steps, *self.bring(), Barrier(BLOCK), self.multiply(), Barrier(BLOCK))
        inner = seq(self.begin(), step, self.write(), *(self.border(b, i) for i, b in enumerate(p.borders)))
        body: Stmt = Alloc(a, Alloc(b, Alloc(self.sums, inner)))
        for (axis_name, n), var in zip(grid(p, t), TILE_LOOPS, strict=True):
            body = on(axis_name, var, n, body)
        return body

    def border(self, b: Store, number: int) -> Stmt:
        """Writes the border around a padded result, by the threads of all tiles."""
        dims = [(v, self.s.extent_or_zero(v)) for v in self.s.loops(b.block)]
        return shared_out(b, dims, number, self.border_lanes(dims), self.own_number(), self.t.threads, self.thread)

    def border_lanes(self, dims: Sequence[tuple[str, int]]) -> int:
        """The vector width of a thread's accesses to a border."""
        return 1

    def own_number(self) -> tuple[Expr, int]:
        """The index of a block, and the number of blocks."""
        (_, across), (_, down), (_, deep) = grid(self.p, self.t)
        return (self.batch * down + self.row) * across + self.column, across * down * deep

    def thread(self, name: str, *body: Stmt) -> For:
        return on("block.x", name, self.t.threads, *body)

    # ---- steps

    def begin(self) -> Stmt:
        at = (Var("u0"), Var("r0"), Var("c0"))
        body = store(self.sums.name, at, self.zero, self.s.fresh("begin"))
        return self.thread("u0", self.own(body, "r0", "c0"))

    def own(self, body: Stmt, row: str, column: str) -> Stmt:
        """A loop over the elements of a thread's tile."""
        return on("unroll", row, self.t.thread_rows, on("unroll", column, self.t.thread_columns, body))

    def bring(self) -> list[Stmt]:
        return [self.piece(i) for i in (0, 1)]

    def piece(self, which: int) -> Stmt:
        """Threads load a piece of a factor, with coalesced accesses where its layout allows them."""
        p, t = self.p, self.t
        group, tile, base = (p.rows, t.rows, self.row) if which == 0 else (p.columns, t.columns, self.column)
        name = "ab"[which]
        u, e = Var(f"u_{name}"), Var(f"e_{name}")
        place = e * t.threads + u
        k, i = self.deep_place(place, tile, 1) if self.along_depth(which) else (place // tile, place % tile)
        position, depth = base * tile + i, self.step * t.depth + k
        value = self.factor(which, position, depth)
        inside = all_of([within(position, prod(n for _, n in group), tile), within(depth, p.size("depth"), t.depth)])
        put = store(self.pieces[which].name, (k, i), guarded(inside, value, self.zero), self.s.fresh(f"bring_{name}"))
        count = t.depth * tile
        body = only_if(within(place, count, t.threads), put)
        return self.thread(u.name, on("serial", e.name, -(-count // t.threads), body))

    def along_depth(self, which: int) -> bool:
        """See `along_depth`."""
        return along_depth(self.s, self.p, which)

    def deep_place(self, place: Expr, tile: int, wide: int) -> tuple[Expr, Expr]:
        """The step of the sum, and the row or column, of so many neighbours in the sum by their number: a `RUN` of them
        lies in one row. With gaps a warp's are in different banks, and what it reads are whole sectors."""
        runs = RUN // wide
        return (place // (runs * tile) * runs + place % runs) * wide, place // runs % tile

    def factor(self, which: int, position: Expr, depth: Expr) -> Expr:
        p = self.p
        values = digits(self.batch, p.batch) | digits(depth, p.depth)
        values |= digits(position, p.rows if which == 0 else p.columns)
        return substitute(p.factors[which], values)

    def column_of(self, u: Expr, c: Expr) -> Expr:
        """The column within the tile of a thread's column: neighbours among the threads take neighbouring ones, so that
        they read other banks of the memory."""
        across = self.t.columns // self.t.thread_columns
        return u % across + c * across

    def multiply_add(self, u: Expr, a: Expr, b: Expr) -> Store:
        """Adds a product to a thread's accumulator."""
        value, at = self.p.sum.targets[0].value, (u, Var("r"), Var("c"))
        assert isinstance(value, Op)
        old = Load(self.sums.name, at, self.zero.dtype)
        product = Op(_SUMS[value.op], (a, b), self.zero.dtype)
        return store(self.sums.name, at, Op(value.op, (old, product), self.zero.dtype), self.s.fresh("multiply"))

    def multiply(self) -> Stmt:
        t, u, k = self.t, Var("u"), Var("k")
        row = u // (t.columns // t.thread_columns) * t.thread_rows + Var("r")
        a = Load(self.pieces[0].name, (k, row), self.zero.dtype)
        b = Load(self.pieces[1].name, (k, self.column_of(u, Var("c"))), self.zero.dtype)
        return self.thread("u", on("serial", "k", t.depth, self.own(self.multiply_add(u, a, b), "r", "c")))

    def results(self, u: Expr, r: Expr, c: Expr, first: Expr) -> tuple[Expr | None, list[Store]]:
        """The condition that a thread's element exists (that of column `first`, and others with it), and what is
        written of it."""
        t, p = self.t, self.p
        row = self.row * t.rows + u // (t.columns // t.thread_columns) * t.thread_rows + r
        base, column = self.column * t.columns, self.column * t.columns + self.column_of(u, c)
        values = digits(self.batch, p.batch) | digits(row, p.rows) | digits(column, p.columns)
        exists = within(base + self.column_of(u, first), p.size("columns"), t.columns)
        inside = all_of([within(row, p.size("rows"), t.rows), exists])
        target = p.sum.targets[0]
        made = Load(self.sums.name, (u, r, c), self.zero.dtype)
        known: dict[str, Expr] = {target.buffer: made}
        at = {target.buffer: tuple(substitute(i, values) for i in target.indices)}
        writes: list[Store] = []
        if target.buffer in self.s.kernel.outputs:
            writes.append(store(target.buffer, at[target.buffer], made, p.sum.block))
        return inside, writes + applied(self.s, p.after, known, at)

    def write(self) -> Stmt:
        u, r, c = (Var(n) for n in ("u1", "r1", "c1"))
        inside, writes = self.results(u, r, c, c)
        return self.thread("u1", self.own(only_if(inside, seq(*writes)), "r1", "c1"))
