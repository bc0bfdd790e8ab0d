"""Matrix-vector products (GEMV), or with a few vectors, as LLM decoding has them: bound by memory, so each thread has
many long loads of the matrix in flight.

    for each tile of columns, on a block:
        each thread takes some neighbouring columns and every so many steps of the sum; for each few of these:
            it loads all of its part of the matrix, and that of the vectors
            it multiplies and adds, in registers
        the partial sums of a column's threads (split-K in a block) are combined in shared memory by a tree
        each column is written by one thread, with the elementwise epilogue

Where the matrix is contiguous along the sum, a thread has neighbouring steps of some columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from ....support.dtypes import LOOP_TYPES
from ....support.sizes import is_open, less, typical
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, loads, minimum, substitute
from ...machine import Machine
from ...nest import Alloc, Barrier, For, Stmt, Store, seq, store
from ...schedule import Schedule
from .contraction import SMALL, Contraction, read
from .tactics import loops_rule, not_whole
from .tensor_cores import lies_along_batch, lies_along_sum
from .thread_binding import BLOCK, all_of, axis, digits, fits_axis, on, only_if, processors, shared, within
from .thread_per_element import applied
from .warp_tiles import innermost

NAME = "vector_product"
PRIORITY = 4
#: what is tried: threads of a block, neighbouring threads along its columns, columns of a thread (where neighbours in
#: memory are neighbours in the sum), accesses of a thread that are on their way at once
UNITS, ACROSS, COLUMNS, AT_ONCE = (64, 128, 256, 512, 1024), (1, 2, 4, 8, 16, 32), (1, 2, 4), (4, 8, 16)
#: vectors that are multiplied at once
FEW = 10
#: parts of a sum that one thread adds up, at the end and in a step before it
LAST, FAN = 8, 4
#: runs of fewer bytes waste a part of what memory gives at once: by how much, for each halving, and how many bytes at
#: least are brought
SHORT_RUN_BYTES, SHORT_RUN, LEAST_BYTES = 128, 1.12, 32
#: what may be computed beyond the matrix, in times of all of it
MOST_BEYOND = 1.4
#: what a step of the tree is worth in bytes from memory
STEP_BYTES = 1 << 10
#: numbers of a thread that any machine keeps
MOST_NUMBERS = 80


def write(s: Schedule, machine: Machine) -> Stmt | str:
    p = read(s)
    if isinstance(p, str):
        return p
    sizes = p.size("rows"), p.size("columns")
    if min(sizes) > FEW or max(sizes) < 2:
        return "it is no product of a few vectors with a matrix"
    if p.borders or max(sizes) * p.size("depth") < SMALL:
        return "it is small, or has a border"
    which = 0 if sizes[0] > sizes[1] else 1
    if lies_along_batch(s, p.factors[which], p.batch):
        return "neighbours of its matrix in memory belong to different products"
    if is_open(sizes[1 - which]):
        return "how many vectors there are is known at run time only"
    if not less(0, sizes[which]) or not less(0, p.size("depth")):
        return "the matrix may be empty"
    if filled(s, p, which, machine):
        p = read(s)
        assert isinstance(p, Contraction)
    matrix = Matrix.of(s, p, which, machine)
    share = choose(s, matrix, p.size("batch"), machine)
    if isinstance(share, str):
        return share
    s.plan = str(share)
    return GemvWriter(s, p, matrix, share).nest()


apply = loops_rule(NAME, write, not_whole)


def filled(s: Schedule, p: Contraction, which: int, machine: Machine) -> bool:
    """Whether rows of a constant matrix are padded, so that accesses of all of them can have the full width."""
    (x, *more), group = loads(p.factors[which]), p.rows if which == 0 else p.columns
    if more or x.buffer not in s.kernel.constants or x.buffer in s.packs:
        return False
    run = max(machine.vector_bytes // LOOP_TYPES[x.dtype].nbytes, 1)
    alone = sum(n > 1 for _, n in group) == 1 and x.indices[-1] == Var(innermost(group)[0])
    if not alone or s.buffer(x.buffer).shape[-1] % run == 0:
        return False
    dims = len(x.indices)
    s.pack(x.buffer, (*((),) * (dims - 1), (run,)), tuple(range(dims + 1)))
    return True


@dataclass(frozen=True)
class Matrix:
    """The factor of a number that is a matrix: its columns and steps of the sum, whether neighbours in memory are
    neighbours in the sum (`deep`), how many of them a thread reads at once, and the bytes of each. `others`: the loops
    over the vectors, and `beside` the bytes that all of these have for a step."""

    which: int
    group: tuple[tuple[str, int], ...]
    others: tuple[tuple[str, int], ...]
    depth: tuple[tuple[str, int], ...]
    deep: bool
    run: int
    nbytes: int
    beside: int

    @staticmethod
    def of(s: Schedule, p: Contraction, which: int, machine: Machine) -> Matrix:
        group, others = (p.rows, p.columns)[:: 1 if which == 0 else -1]
        value = p.factors[which]
        deep = lies_along_sum(s, value, group, p.depth)
        nbytes = max((LOOP_TYPES[x.dtype].nbytes for x in loads(value)), default=4)
        run = max(machine.vector_bytes // nbytes, 1)
        extent = innermost(p.depth if deep else group)[1]
        whole = not deep and any(x.buffer in s.packs for x in loads(value))  # rows have been filled up
        while extent % run and not whole:
            run //= 2
        own = max((LOOP_TYPES[x.dtype].nbytes for x in loads(p.factors[1 - which])), default=4)
        return Matrix(which, group, others, p.depth, deep, run, nbytes, own * prod(n for _, n in others))

    @property
    def columns(self) -> int:
        return prod(n for _, n in self.group)

    @property
    def steps(self) -> int:
        return prod(n for _, n in self.depth)

    @property
    def vectors(self) -> int:
        return prod(n for _, n in self.others)

    def registers(self, each: int, steps: int) -> int:
        """Registers of a thread for so many columns and steps: sums, vectors, and the loaded matrix, in 4 bytes
        each."""
        return self.vectors * (each + steps) + each * steps * self.nbytes // 4


@dataclass(frozen=True)
class GemvShare:
    """Threads of a block along its columns and along the sum, columns of a thread, and steps that it takes at once."""

    across: int
    shares: int
    each: int
    steps: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.across, self.shares, self.each, self.steps

    @property
    def threads(self) -> int:
        return self.across * self.shares

    @property
    def columns(self) -> int:
        """Of a block."""
        return self.across * self.each

    def blocks(self, m: Matrix) -> int:
        return -(-m.columns // self.columns)

    def taken(self, m: Matrix) -> int:
        """Steps that are computed: the sum's length, rounded up to whole turns of all threads."""
        turn = self.shares * self.steps
        return -(-m.steps // turn) * turn

    def beyond(self, m: Matrix) -> float:
        """The padding overhead: what is computed of the matrix, with what lies beyond it, over what is needed."""
        return typical(self.blocks(m)) * self.columns * typical(self.taken(m)) / typical(m.columns * m.steps)

    def __str__(self) -> str:
        return (
            f"{self.columns} columns on {self.threads} threads, {self.shares} of them along the sum, "
            f"{self.each} columns by {self.steps} steps at once"
        )


def choose(s: Schedule, m: Matrix, batch: int, machine: Machine) -> GemvShare | str:
    """How a block divides its work; what a tuner may change is a decision of the schedule."""
    block, memory, held = axis(machine, BLOCK), shared(machine), machine.occupancy
    assert block is not None and memory is not None
    fits = [
        t
        for t in _shares(m)
        if t.threads <= (block.limit or 1)
        and 4 * (t.shares + m.deep) * t.columns * m.vectors <= memory.bytes
        and t.each * m.vectors <= machine.vector_registers
        and m.registers(t.each, t.steps) <= max(machine.vector_registers - 2 * held.beside, MOST_NUMBERS)
        and t.threads * (m.registers(t.each, t.steps) + held.addresses) <= (block.limit or 1) * held.registers
        and fits_axis(machine, "grid.x", t.blocks(m))
        and fits_axis(machine, "grid.z", batch)
    ]
    if not fits:
        return "no block fits the machine"
    fits = [t for t in fits if t.beyond(m) <= MOST_BEYOND] or fits
    best = min(fits, key=lambda t: (cost(t, m, batch, machine), t.threads))
    chosen = s.sample_choice("share", [t.numbers for t in fits], best.numbers)
    return GemvShare(*chosen)


def _shares(m: Matrix) -> list[GemvShare]:
    found = []
    for threads in UNITS:
        for across in (a for a in ACROSS if a <= threads):
            for n in AT_ONCE:
                for each, steps in [(c, m.run * n // c) for c in COLUMNS if c <= n] if m.deep else [(m.run, n)]:
                    t = GemvShare(across, threads // across, each, steps)
                    if (t.columns < 2 * m.columns or across * each == m.run) and (
                        t.shares * t.steps < 2 * m.steps or (t.shares, n) == (1, AT_ONCE[0])
                    ):
                        found.append(t)
    return found


def cost(t: GemvShare, m: Matrix, batch: int, machine: Machine) -> float:
    """The time of the busiest multiprocessor, in bytes that it reads at full speed.

    It reads at full speed if enough is on its way; alone it can have more than its part of the memory's speed. Short
    runs waste some of what memory gives, columns and steps beyond the matrix all of it.
    """
    block, held = axis(machine, BLOCK), machine.occupancy
    assert block is not None and block.limit is not None
    blocks, count = typical(t.blocks(m) * batch), processors(machine)
    busiest, taken = -(-blocks // count), typical(t.taken(m))
    of_block = t.columns * taken * m.nbytes
    registers = m.registers(t.each, t.steps) + held.addresses
    resident = min(held.blocks * block.limit // t.threads, block.limit * held.registers // (t.threads * registers)) or 1
    on_way = min(busiest, resident) * t.threads * min(t.each * t.steps // m.run, held.in_flight) * m.run * m.nbytes
    speed = min(on_way / machine.flight_bytes, held.alone)
    beside = (t.shares if m.deep else t.across) * m.run * m.nbytes
    waste = 1.0
    while beside < SHORT_RUN_BYTES:
        beside, waste = beside * 2, waste * (SHORT_RUN if beside >= LEAST_BYTES else 2)
    tree, left = STEP_BYTES * 2, t.shares
    while left > LAST:
        left, tree = left // FAN, tree + STEP_BYTES
    read = max(blocks * of_block / count, busiest * of_block / speed) * waste
    again = busiest * t.across * taken * m.beside / held.cached
    return max(read, again) + min(read, again) / 4 + tree * busiest


class GemvWriter:
    """Writes the nest."""

    def __init__(self, s: Schedule, p: Contraction, m: Matrix, t: GemvShare) -> None:
        self.s, self.p, self.m, self.t = s, p, m, t
        self.tile, self.step = Var("tile"), Var("step")
        dtype = s.buffer(p.sum.targets[0].buffer).dtype
        self.zero = Const(0.0 if dtype.startswith("f") else 0, dtype)
        value = p.sum.targets[0].value
        assert isinstance(value, Op)
        self.add, self.multiply = value.op, "mulf" if value.op == "addf" else "muli"
        u = t.threads
        self.sums = Buffer(s.fresh("sums"), (u, m.vectors, t.each), dtype, "register")
        self.piece = Buffer(s.fresh("piece"), (u, t.each, t.steps), dtype, "register")
        self.vector = Buffer(s.fresh("vector"), (u, m.vectors, t.steps), dtype, "register")
        self.part = Buffer(s.fresh("part"), self.part_shape(), dtype, "shared")

    def nest(self) -> Stmt:
        t, m = self.t, self.m
        whole, rest = divmod(m.steps, t.shares * t.steps)
        steps: list[Stmt] = []
        if whole:
            steps.append(on("serial", "step", whole, self.products("u", self.step, inside=True)))
        if rest:
            steps.append(self.products("u_rest", Const(whole, "index"), inside=False))
        return self.grid(
            seq(self.thread("u0", self.begin), *steps, *self.combined(), self.thread("u_out", self.written))
        )

    def grid(self, body: Stmt) -> Stmt:
        for b in (self.vector, self.piece, self.sums, self.part):
            body = Alloc(b, body)
        body = on("grid.x", "tile", self.t.blocks(self.m), body)
        return on("grid.z", "batch", self.p.size("batch"), body)

    # ---- places

    def thread(self, name: str, body: object) -> For:
        assert callable(body)
        return on("block.x", name, self.t.threads, body(Var(name)))

    def along(self, u: Expr) -> tuple[Expr, Expr]:
        """A thread's place along the columns of the block, and along the sum: neighbours are neighbours in memory."""
        t = self.t
        if t.across == 1:
            return Const(0, "index"), u
        if t.shares == 1:
            return u, Const(0, "index")
        return (u // t.shares, u % t.shares) if self.m.deep else (u % t.across, u // t.across)

    def factor(self, which: int, columns: dict[str, Expr], depth: dict[str, Expr]) -> Expr:
        p = self.p
        return substitute(p.factors[which], digits(Var("batch"), p.batch) | columns | depth)

    def each_vector(self, name: str, body: Stmt) -> Stmt:
        return on("unroll", name, self.m.vectors, body)

    # ---- the sum

    def begin(self, u: Expr) -> Stmt:
        put = store(self.sums.name, (u, Var("r0"), Var("c0")), self.zero, self.s.fresh("begin"))
        return self.each_vector("r0", on("unroll", "c0", self.t.each, put))

    def products(self, name: str, step: Expr, *, inside: bool) -> Stmt:
        """A step: all that is read, and then what is multiplied. Beyond the sum's end zeros are read."""

        def body(u: Expr) -> Stmt:
            t, dtype = self.t, self.zero.dtype
            x, y = self.along(u)
            brought = self.deep(u, x, y, step, inside) if self.m.deep else self.flat(u, x, y, step, inside)
            r, c, i = Var("r"), Var("c"), Var("i")
            old = Load(self.sums.name, (u, r, c), dtype)
            factors = Load(self.vector.name, (u, r, i), dtype), Load(self.piece.name, (u, c, i), dtype)
            added = Op(self.add, (old, Op(self.multiply, factors, dtype)), dtype)
            put = store(self.sums.name, (u, r, c), added, self.s.fresh("multiply"))
            each = self.each_vector("r", on("unroll", "c", t.each, put))
            return seq(*brought, on("unroll", "i", t.steps, each))

        return self.thread(name, body)

    def flat(self, u: Expr, x: Expr, y: Expr, step: Expr, inside: bool) -> list[Stmt]:
        """The matrix is contiguous along columns: a thread has a run of them, and neighbouring steps of the sum."""
        t, m = self.t, self.m
        column = self.tile * t.across + x
        column = minimum(column, -(-m.columns // m.run) - 1) if m.columns % t.columns else column
        columns = _runs(column, m.group, m.run, Var("l"))
        turn = step * t.shares + y
        at, within_sum = self.clamped(turn * t.steps + Var("i"), m.steps, inside)
        value = self.zero_beyond(within_sum, self.factor(m.which, columns, digits(at, m.depth)))
        put: Stmt = store(self.piece.name, (u, Var("l"), Var("i")), value, self.s.fresh("bring"))
        brought = on("unroll", "i", t.steps, on("vector", "l", m.run, put))
        run = self.vector_run() if inside else 1
        number, within_sum = self.clamped(turn * (t.steps // run) + Var("j"), m.steps // run, inside)
        put = self.of_vector(u, Var("j") * run + Var("v"), within_sum, _runs(number, m.depth, run, Var("v")))
        return [brought, self.each_vector("r", on("unroll", "j", t.steps // run, on("vector", "v", run, put)))]

    def of_vector(self, u: Expr, place: Expr, within_sum: Expr | None, depth: dict[str, Expr]) -> Stmt:
        """An element of a vector, by its step."""
        m, r = self.m, Var("r")
        value = self.zero_beyond(within_sum, self.factor(1 - m.which, digits(r, m.others), depth))
        return store(self.vector.name, (u, r, place), value, self.s.fresh("bring_vector"))

    def vector_run(self) -> int:
        """The vector width of the loads of the vector."""
        run, inner = self.t.steps, innermost(self.m.depth)[1]
        while inner % run or run * 4 > 16:
            run //= 2
        return run

    def deep(self, u: Expr, x: Expr, y: Expr, step: Expr, inside: bool) -> list[Stmt]:
        """The matrix is contiguous along the sum: a thread has runs of steps, of some columns."""
        t, m = self.t, self.m
        count = t.steps // m.run
        turn = step * count + Var("h")
        run, within_sum = self.clamped(turn * t.shares + y, m.steps // m.run, inside)
        depth = _runs(run, m.depth, m.run, Var("l"))
        column = (self.tile * t.across + x) * t.each + Var("c")
        column = minimum(column, m.columns - 1) if m.columns % t.columns else column
        value = self.zero_beyond(within_sum, self.factor(m.which, digits(column, m.group), depth))
        place = Var("h") * m.run + Var("l")
        put: Stmt = store(self.piece.name, (u, Var("c"), place), value, self.s.fresh("bring"))
        brought = on("unroll", "h", count, on("unroll", "c", t.each, on("vector", "l", m.run, put)))
        put = self.of_vector(u, place, within_sum, depth)
        return [brought, self.each_vector("r", on("unroll", "h", count, on("vector", "l", m.run, put)))]

    def clamped(self, position: Expr, size: int, inside: bool) -> tuple[Expr, Expr | None]:
        """A position clamped to the last one, and the condition that it was in range."""
        if inside:
            return position, None
        return minimum(position, size - 1), Op("cmpi.slt", (position, Const(size, "index")), "i1")

    def zero_beyond(self, condition: Expr | None, value: Expr) -> Expr:
        return value if condition is None else Op("select", (condition, value, self.zero), self.zero.dtype)

    # ---- all threads of a column together

    def combined(self) -> list[Stmt]:
        """Tree reduction of the partial sums in shared memory, until one thread can add what is left."""
        t, dtype = self.t, self.zero.dtype

        def put(u: Expr) -> Stmt:
            x, y = self.along(u)
            mine = Load(self.sums.name, (u, Var("r"), Var("c")), dtype)
            place = Var("r") * t.columns + x * t.each + Var("c")
            told = store(self.part.name, self.of_share(y, place), mine, self.s.fresh("tell"))
            return self.each_vector("r", on("unroll" if self.m.deep else "vector", "c", t.each, told))

        steps: list[Stmt] = [self.thread("u_tell", put), Barrier(BLOCK)]
        left = t.shares
        while left > LAST:
            left //= FAN
            steps += [self.level(left), Barrier(BLOCK)]
        self.left = left
        return steps

    def level(self, left: int) -> Stmt:
        """Of `FAN` parts one, `left` parts of each column."""
        t = self.t
        across = self.m.vectors * t.columns
        count = left * across
        u, n = Var(f"u_{left}"), Var(f"n_{left}")
        place = n * t.threads + u
        y, c = place // across, place % across
        total = self.total([self.loaded(y + i * left, c) for i in range(FAN)])
        put = store(self.part.name, self.of_share(y, c), total, self.s.fresh(f"tree_{left}"))
        body = only_if(within(place, count, t.threads), put)
        return on("block.x", u.name, t.threads, on("serial", n.name, -(-count // t.threads), body))

    def part_shape(self) -> tuple[int, int]:
        """Of the sums of all shares in shared memory, see `of_share`."""
        t, count = self.t, self.m.vectors * self.t.columns
        return (count, t.shares + 1) if self.m.deep else (t.shares, count)

    def of_share(self, share: Expr, place: Expr) -> tuple[Expr, Expr]:
        """Where in shared memory a share's sum is: those of neighbouring threads are neighbours, and where these have
        shares of one place, the others lie a number apart that is odd."""
        return (place, share) if self.m.deep else (share, place)

    def loaded(self, share: Expr, place: Expr) -> Load:
        return Load(self.part.name, self.of_share(share, place), self.zero.dtype)

    def total(self, parts: Sequence[Expr]) -> Expr:
        return reduce(lambda a, b: Op(self.add, (a, b), self.zero.dtype), parts)

    def written(self, u: Expr) -> Stmt:
        t, p, m = self.t, self.p, self.m
        across = m.vectors * t.columns
        c = Var("n_out") * t.threads + u
        column = self.tile * t.columns + (c % t.columns if m.vectors > 1 else c)
        other = digits(c // t.columns, m.others)
        values: dict[str, Expr] = digits(Var("batch"), p.batch) | other | digits(column, m.group)
        made = self.total([self.loaded(Const(i, "index"), c) for i in range(self.left)])
        target = p.sum.targets[0]
        known: dict[str, Expr] = {target.buffer: made}
        at = {target.buffer: tuple(substitute(i, values) for i in target.indices)}
        writes: list[Store] = []
        if target.buffer in self.s.kernel.outputs:
            writes.append(store(target.buffer, at[target.buffer], made, p.sum.block))
        writes += applied(self.s, p.after, known, at)
        inside = all_of([within(c, across, t.threads), within(column, m.columns, t.columns)])
        return on("serial", "n_out", -(-across // t.threads), only_if(inside, seq(*writes)))


def _runs(number: Expr, dims: Sequence[tuple[str, int]], run: int, v: Expr) -> dict[str, Expr]:
    """The loop variables at element `v` of a run; the innermost loop has whole runs, or is the only one."""
    if run == 1:
        return digits(number, dims)
    inner = innermost(tuple(dims))[0]
    found = digits(number, [(d, -(-n // run) if d == inner else n) for d, n in dims])
    return {**found, inner: found[inner] * run + v}


__all__ = ["NAME", "PRIORITY", "Matrix", "GemvShare", "GemvWriter", "apply", "choose", "cost"]
