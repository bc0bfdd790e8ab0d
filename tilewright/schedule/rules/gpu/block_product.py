"""Matrix-vector products with block-quantized weights of a few bits (`ops/block_quantized.py`), as LLM decoding has
them: words are read once, in long accesses, and dequantized in registers.

A thread has some rows of weights and contiguous words of each (`vector_product`, where contiguous elements are those
along the sum). A number q of b bits becomes the float 2**b + q by putting its bits into the mantissa, and the excess is
subtracted once for all numbers that a thread multiplies at once:

    sum += scale * (sum of x * (2**b + q) - (2**b + zero) * sum of x)
"""

from __future__ import annotations

from ....ops.block_quantized import centre
from ....support.sizes import is_open
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum, substitute
from ...machine import Machine
from ...nest import Stmt, seq, store
from ...schedule import Schedule
from ..custom.nests import Access, add, index, mul
from .attention_operands import unrolled, within_buffers
from .tactics import operator_rule
from .thread_binding import all_of, on, only_if, within
from .vector_product import GemvShare, GemvWriter, Matrix, choose

NAME = "block_product"
PRIORITY = 7
F32, I32 = "f32", "i32"
#: rows of x that share what is unpacked
FEW = 4
#: numbers of x that are read at once
RUN = 4


def write(s: Schedule, machine: Machine) -> Stmt | str:
    read = Access(s.kernel)
    sizes = (*read.shape(read.operand(0)), *read.shape(read.operand(1)))
    if any(map(is_open, sizes)) or 0 in sizes:
        return "its sizes are open, or it has no elements"
    if sizes[0] > FEW:
        return "it has many rows"
    attributes = read.opaque.attributes
    if any(read.opaque.operands[4:]) or attributes["table"] or attributes["bits"] not in (2, 4, 8):
        return "its weights are no integers with one scale a block"
    words = Words(read, machine)
    share = choose(s, words.matrix, 1, machine)
    if isinstance(share, str):
        return share
    s.plan = f"{share}, in words of {words.each} numbers"
    return BlockWriter(s, words, share).nest()


apply = operator_rule(NAME, write, ("block_matmul",), "it is no product with weights in blocks")


class WordMatrix(Matrix):
    """A matrix of words."""

    def registers(self, each: int, steps: int) -> int:
        numbers = self.beside // (4 * self.vectors)
        return self.vectors * (2 * each + numbers + 1) + each * self.run


class Words:
    """The weights as a matrix of words: a row for each column of the result."""

    def __init__(self, read: Access, machine: Machine) -> None:
        self.read = read
        self.x, self.w, self.scale = (read.operand(i) for i in range(3))
        operands = read.opaque.operands
        self.zero = operands[3] if len(operands) > 3 else None
        self.out = read.opaque.results[0]
        self.rows = read.shape(self.x)[0]
        self.columns, self.blocks, self.words = read.shape(self.w)
        self.bits = int(read.opaque.attributes["bits"])
        run = max(min(machine.vector_bytes // 4, self.words), 1)
        rows, columns, depth = (("m", self.rows),), (("n", self.columns),), (("k", self.blocks * self.words),)
        self.matrix = WordMatrix(1, columns, rows, depth, True, run, 4, 4 * self.each * self.rows)

    @property
    def each(self) -> int:
        """Numbers of a word."""
        return 32 // self.bits


class BlockWriter(GemvWriter):
    """Writes the nest."""

    def __init__(self, s: Schedule, w: Words, t: GemvShare) -> None:
        self.s, self.w, self.m, self.t = s, w, w.matrix, t
        self.tile, self.step = Var("tile"), Var("step")
        self.zero, self.add = Const(0.0, F32), "addf"
        u, rows = t.threads, w.rows

        def own(name: str, dtype: str, *shape: int) -> Buffer:
            return Buffer(name, (u, *shape), dtype, "register")

        self.sums = own("sums", F32, rows, t.each)
        self.piece = own("words", I32, t.each, w.matrix.run)
        self.vector = own("numbers", F32, rows, w.each)
        self.products_of = own("products", F32, rows, t.each)
        self.whole = own("whole", F32, rows)
        self.part = Buffer("part", self.part_shape(), F32, "shared")

    def buffers(self) -> list[Buffer]:
        return [self.part, self.sums, self.piece, self.vector, self.products_of, self.whole]

    def grid(self, body: Stmt) -> Stmt:
        return on("grid.x", "tile", self.t.blocks(self.m), within_buffers(self.buffers(), body))

    # ---- the sum

    def products(self, name: str, step: Expr, *, inside: bool) -> Stmt:
        """A step: runs of words of some rows, each with the numbers of x that they meet."""

        def body(u: Expr) -> Stmt:
            t, m = self.t, self.m
            x, y = self.along(u)
            count = t.steps // m.run
            run = (step * count + Var("h")) * t.shares + y
            run, there = self.clamped(run, m.steps // m.run, inside)
            return on("unroll", "h", count, self.of_run(u, x, run, there))

        return self.thread(name, body)

    def of_run(self, u: Expr, x: Expr, run: Expr, there: Expr | None) -> Stmt:
        w, t, m = self.w, self.t, self.m
        i, c, r, q = Var("i"), Var("c"), Var("r"), Var("q")
        column = (self.tile * t.across + x) * t.each + c
        column = minimum(column, m.columns - 1) if m.columns % t.columns else column
        block, first = run // (w.words // m.run), run % (w.words // m.run) * m.run
        bring = store("words", (u, c, i), Load(w.w, (column, block, first + i), I32), "bring")
        numbers = Load(w.x, (r, (run * m.run + i) * w.each + q), F32)
        mine = Load("numbers", (u, r, q), F32)
        at, whole = (u, r, c), Load("whole", (u, r), F32)
        products = Load("products", at, F32)
        steps = [
            store("numbers", (u, r, Var("j") * RUN + Var("l")), _at(numbers, q, Var("j") * RUN + Var("l")), "bring_x")
        ]
        brought = unrolled([("r", w.rows), ("j", max(w.each // RUN, 1))], on("vector", "l", min(RUN, w.each), *steps))
        summed = unrolled([("r", w.rows), ("q", w.each)], store("whole", (u, r), add(whole, mine), "whole"))
        multiplied = [
            unrolled(
                [("c", t.each), ("r", w.rows)],
                store("products", at, add(products, mul(_at(mine, q, index(n)), self.number(u, n))), "multiply"),
            )
            for n in range(w.each)
        ]
        scale, zero = w.read.read(w.scale, (column, block)), self.offset(column, block)
        new = mul(scale, Op("subf", (products, mul(zero, whole)), F32))
        if there is not None:
            new = Op("select", (there, new, self.zero), F32)
        old = Load("sums", at, F32)
        return seq(
            unrolled([("c", t.each)], on("vector", "i", m.run, bring)),
            unrolled([("r", w.rows)], store("whole", (u, r), self.zero, "clear_whole")),
            unrolled([("r", w.rows), ("c", t.each)], store("products", at, self.zero, "clear")),
            unrolled([("i", m.run)], brought, summed, *multiplied),
            unrolled([("c", t.each), ("r", w.rows)], store("sums", at, add(old, new), "scale")),
        )

    def number(self, u: Expr, n: int) -> Expr:
        """Number n of the word at hand with 2**bits added."""
        bits = self.w.bits
        word: Expr = Load("words", (u, Var("c"), Var("i")), I32)
        shift = 23 - bits - 8 * (n % 4) - bits * (n // 4)
        if shift:
            word = Op("shli" if shift > 0 else "shrui", (word, Const(abs(shift), I32)), I32)
        fraction = Op("andi", (word, Const(((1 << bits) - 1) << 23 - bits, I32)), I32)
        return Op("bitcast", (Op("ori", (fraction, Const(127 + bits << 23, I32)), I32),), F32)

    def offset(self, column: Expr, block: Expr) -> Expr:
        """What is too much in each of a block's numbers."""
        w, bits = self.w, self.w.bits
        if w.zero is None:
            return Const(float((1 << bits) + centre(int(w.read.opaque.attributes["offset"]), bits)), F32)
        found: Expr
        if w.read.dtype(w.zero) == "i8":
            found = Op("sitofp", (Op("extui", (Load(w.zero, (column, block), "i8"),), I32),), F32)
        else:
            found = w.read.read(w.zero, (column, block))
        return add(found, Const(float(1 << bits), F32))

    # ---- results

    def written(self, u: Expr) -> Stmt:
        t, m, w = self.t, self.m, self.w
        across = w.rows * t.columns
        c = Var("n_out") * t.threads + u
        column = self.tile * t.columns + (c % t.columns if w.rows > 1 else c)
        row = c // t.columns if w.rows > 1 else index(0)
        made = self.total([self.loaded(index(i), c) for i in range(self.left)])
        put = w.read.write(w.out, (row, column), made, "out")
        inside = all_of([within(c, across, t.threads), within(column, m.columns, t.columns)])
        return on("serial", "n_out", -(-across // t.threads), only_if(inside, put))


def _at(x: Load, v: Var, place: Expr) -> Load:
    """A load with another value of a variable in its indices."""
    return Load(x.buffer, tuple(substitute(i, {v.name: place}) for i in x.indices), x.dtype)


__all__ = ["NAME", "PRIORITY", "apply"]
