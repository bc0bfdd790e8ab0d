"""Products with weights in blocks of a few bits (`ops/block_quantized.py`) of any format, for rows of f32 or of bytes,
however many these are: what the steps of language models have.

A block of threads takes some columns and a few rows. Its threads share the sum: each dequantizes a unit of numbers of
one column at a time (`PackedWeights`), neighbours read neighbouring words, and multiplies it with all of the rows. What
threads have summed is added up in shared memory. More rows than a block takes read the weights again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ....support.sizes import highest, is_open, lowest
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ...machine import Machine
from ...nest import Barrier, Stmt, loop, seq, store
from ...schedule import Schedule
from ..custom.block_weights import PackedWeights
from ..custom.nests import Access, add, index, mul
from .attention_operands import folded, own, unrolled, within_buffers
from .tactics import in_turn, operator_rule
from .thread_binding import BLOCK, all_of, fits_axis, on, only_if, shared, within

NAME = "block_rows_product"
PRIORITY = 8
F32 = "f32"
#: threads of a block, those of them that share a sum at most, rows of a block, numbers of x that are read at once
THREADS, SHARES, ROWS, RUN = 128, 32, 8, 4


class RowsProduct:
    """Writes the nest."""

    def __init__(self, read: Access, machine: Machine, rows: int, shares: int) -> None:
        self.read, self.bytes = read, read.opaque.mnemonic == "integer_block_matmul"
        self.w = PackedWeights(read, 3 if self.bytes else 1)
        self.x, self.out = read.operand(0), read.opaque.results[0]
        self.count, self.columns = read.shape(self.out)
        self.rows, self.shares, self.across = rows, shares, THREADS // shares
        #: units of a block of weights, and of a row of them
        self.each = self.w.block // self.w.unit
        self.units = self.w.blocks * self.each
        memory = shared(machine)
        assert memory is not None
        self.part = Buffer("part", (rows * self.across, shares + 1), F32, memory.name)
        self.run = min(RUN, max(machine.vector_bytes // 4, 1), self.w.unit)

    def nest(self) -> Stmt:
        unit, u = self.w.unit, THREADS
        buffers = [
            self.part, own("sums", F32, u, self.rows), own("weights", F32, u, unit), own("numbers", F32, u, unit),
            *(own(n, F32, u) for n in ("scale", "least", "dot")),
        ]  # fmt: skip
        body = seq(
            self.thread("begin", lambda u: self.over_rows(store("sums", (u, Var("r")), Const(0.0, F32), "begin"))),
            on("serial", "step", -(-self.units // self.shares), self.thread("u", self.products)),
            self.thread("tell", self.told),
            Barrier(BLOCK),
            self.thread("write", self.written),
        )
        blocks = on("grid.x", "tile", -(-self.columns // self.across), within_buffers(buffers, body))
        return on("grid.y", "group", -(-self.count // self.rows), blocks)

    # ---- places

    def thread(self, name: str, body: Callable[[Expr], Stmt]) -> Stmt:
        return on("block.x", f"u_{name}", THREADS, body(Var(f"u_{name}")))

    def over_rows(self, *body: Stmt) -> Stmt:
        return unrolled([("r", self.rows)], *body)

    def row(self, r: Expr) -> tuple[Expr, Expr | None]:
        """A row of the block among all, and whether it is there."""
        row = Var("group") * self.rows + r
        return row, within(row, self.count, self.rows)

    # ---- the sum

    def products(self, u: Expr) -> Stmt:
        """A unit of one column, with all rows."""
        w, unit, share = self.w, Var("step") * self.shares + u % self.shares, Var("t")
        column = minimum(Var("tile") * self.across + u // self.shares, self.columns - 1)
        there = within(unit, self.units, self.shares)
        at = unit if there is None else minimum(unit, self.units - 1)
        b, i = at // self.each, at % self.each
        shift: Expr = Const(float((1 << w.byte_bits) + w.centre), F32)
        if w.zero is not None:
            shift = add(w.zeros(column, b), Const(float(1 << w.byte_bits), F32))
        scale = Load("scale", (u,), F32)
        least: Expr = Op("negf", (mul(shift, scale),), F32)
        if w.minimum is not None:
            least = Op("subf", (least, w.minima(column, b)), F32)
        zero = partial(self.where, there)
        number = [Op("fma", (w.raised(column, b, i, t), scale, Load("least", (u,), F32)), F32) for t in range(w.unit)]
        row, inside = self.row(Var("r"))
        place = Var("j") * self.run + Var("l")
        x: Expr = Load(self.x, (row, at * w.unit + place), self.read.dtype(self.x))
        if self.bytes:
            x = Op("sitofp", (x,), F32)
        dot: Expr = Load("dot", (u,), F32)
        multiplied = mul(Load("numbers", (u, share), F32), Load("weights", (u, share), F32))
        brought = on("vector", "l", self.run, store("numbers", (u, place), x, "bring"))
        if self.bytes:
            name = self.read.operand(1)
            dot = mul(dot, Load(name, (row, b // (w.blocks // self.read.shape(name)[1])), F32))
        one = seq(
            unrolled([("j", w.unit // self.run)], brought),
            store("dot", (u,), Const(0.0, F32), "clear"),
            on("unroll", "t", w.unit, folded("dot", (u,), add, multiplied, "multiply")),
            folded("sums", (u, Var("r")), add, dot, "add"),
        )
        return seq(
            store("scale", (u,), zero(w.scales(column, b)), "scale"),
            store("least", (u,), zero(least), "least"),
            *(store("weights", (u, index(t)), n, "unpack") for t, n in enumerate(number)),
            self.over_rows(only_if(inside, one)),
        )

    def where(self, there: Expr | None, x: Expr) -> Expr:
        """Beyond the sum's end weights are zeros."""
        return x if there is None else Op("select", (there, x, Const(0.0, F32)), F32)

    # ---- results

    def told(self, u: Expr) -> Stmt:
        place = (Var("r") * self.across + u // self.shares, u % self.shares)
        return self.over_rows(store("part", place, Load("sums", (u, Var("r")), F32), "tell"))

    def written(self, u: Expr) -> Stmt:
        count = self.rows * self.across
        place = Var("n") * THREADS + u
        row, inside = self.row(place // self.across)
        column = Var("tile") * self.across + place % self.across
        there = all_of([within(place, count, THREADS), inside, within(column, self.columns, self.across)])
        body = seq(
            store("dot", (u,), Const(0.0, F32), "clear"),
            loop("g", self.shares, folded("dot", (u,), add, Load("part", (place, Var("g")), F32), "total")),
            self.read.write(self.out, (row, column), Load("dot", (u,), F32), "out"),
        )
        return on("serial", "n", -(-count // THREADS), only_if(there, body))


def write(s: Schedule, machine: Machine) -> Stmt | str:
    read = Access(s.kernel)
    count, columns = read.shape(read.opaque.results[0])
    if why := in_turn(machine):
        return why
    if is_open(columns) or not (columns and lowest(count)):
        return "how many columns it has is known at run time only, or it has no elements"
    if not is_open(count) and read.opaque.mnemonic == "block_matmul":
        return "how many rows it has is known"
    rows = min(ROWS, highest(count))
    made = RowsProduct(read, machine, rows, SHARES)
    while made.shares > made.units:
        made = RowsProduct(read, machine, rows, made.shares // 2)
    memory = shared(machine)
    if memory is None or 4 * made.part.size > memory.bytes or not fits_axis(machine, "grid.y", -(-count // rows)):
        return "no block fits the machine"
    s.plan = f"{rows} rows by {made.across} columns on {THREADS} threads, {made.shares} of them along the sum"
    return made.nest()


apply = operator_rule(NAME, write, ("block_matmul", "integer_block_matmul"), "it is no product with weights in blocks")

__all__ = ["NAME", "PRIORITY", "apply"]
