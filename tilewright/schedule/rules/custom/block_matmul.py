"""Products with weights in blocks of a few bits (`ops/block_quantized.py`): weights are read once for a tile of rows
and unpacked in registers.

Weights are laid out so that neighbouring lanes have neighbouring columns and a tile's words lie one after the other:
``w[tile of columns][block][word][vector][lane]``. For each tile of columns (shared among threads), tile of rows, block:

    for word: for number in word: u[n] = unpacked(w[n]);  for m: acc[m, n] += x[m, k] * u[n]       # f32, or bytes: i32
    for m: total[m, n] += acc[m, n] * scale[n]                                     # bytes: * scale of x, zero corrected

A number of b bits becomes a float without a conversion: its bits are put behind the point of 2**b, which is subtracted
with the zero point.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....support.errors import CompileError
from ....support.sizes import is_open, surely, typical
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, Pack, Stmt, loop, seq, store
from .. import Choose, Direct, direct
from .nests import Access, add, index, mul

F32, I32 = "f32", "i32"
#: operations of the code that is emitted, in multiply-adds: to unpack a number (or word), and for one of x that several
#: vectors share
UNPACK_OPERATIONS, SPREAD_OPERATIONS = 1.0, 0.25
#: the widest tiles that are tried, in vectors
MAX_VECTORS = 4


@dataclass(frozen=True)
class Sizes:
    """Rows, columns, blocks, words of a block, and bits of a number; lanes of a vector."""

    rows: int
    columns: int
    blocks: int
    words: int
    bits: int
    width: int

    @property
    def block(self) -> int:
        return self.words * 32 // self.bits

    @property
    def vectors(self) -> int:
        return -(-self.columns // self.width)


class Product:
    """One product as a loop nest: the parts that f32 and bytes share.

    `total` is a row's sum for each column, `acc` that within a block.
    """

    kind = F32
    #: registers that a vector of columns takes beside its sums, and others that the tile takes
    beside, others = 3, 3

    def __init__(self, kernel: Kernel, machine: Machine, choose: Choose, operands: tuple[int, int, int]) -> None:
        self.read = Access(kernel)
        self.kernel, self.machine = kernel, machine
        weights, scale, zero = operands
        self.w, self.scale = self.read.operand(weights), self.read.operand(scale)
        self.zero = self.read.opaque.operands[zero] if len(self.read.opaque.operands) > zero else None
        self.out = self.read.opaque.results[0]
        (rows, columns), (_, blocks, words) = self.read.shape(self.out), self.read.shape(self.w)
        bits = int(self.read.opaque.attributes["bits"])
        if any(self.read.opaque.operands[zero + 1 :]) or bits in (5, 6):
            raise CompileError("weights of two levels or 5 and 6 bits have no kernel yet", stage="schedule")
        width = min(lanes(machine), 1 << max(columns - 1, 0).bit_length())
        self.s = Sizes(rows, columns, blocks, words, bits, width)
        fitting = self.tiles()
        best = min(fitting, key=lambda t: (self.cost(*t), t))
        self.height, self.vectors = choose("tile", fitting, best)

    # ---- the tile ----

    def tiles(self) -> list[tuple[int, int]]:
        """(rows, vectors) of the tiles that fit the registers, rows in equal parts where it is known how many."""
        found, rows = set(), typical(self.s.rows)
        for v in range(1, min(MAX_VECTORS, self.s.vectors) + 1):
            room = (self.machine.vector_registers - self.others) // v - self.beside
            for most in range(1, max(min(room, rows, self.machine.aligned_rows), 1) + 1):
                if not is_open(self.s.rows):
                    found.add((-(-rows // -(-rows // most)), v))
                elif self.s.vectors % v == 0 and (self.fits(most, v) or most == 1):
                    found.add((most, v))  # the last rows are computed apart: that takes whole tiles in registers
        return sorted(found)

    def cost(self, height: int, vectors: int) -> float:
        """What one number of every column takes for all rows and columns, in multiply-adds."""
        tiles = -(-typical(self.s.rows) // height)
        each = (
            max(height * vectors, self.machine.fma.in_flight)
            + UNPACK_OPERATIONS * vectors
            + (SPREAD_OPERATIONS * height if vectors > 1 else 0)
        )
        return tiles * -(-self.s.vectors // vectors) * each

    # ---- places ----

    @property
    def lane(self) -> Expr:
        """The column within a tile."""
        return Var("c") * self.s.width + Var("l")

    @property
    def n(self) -> Expr:
        at: Expr = Var("nt") * (self.vectors * self.s.width) + self.lane
        return at

    @property
    def m(self) -> Expr:
        at: Expr = Var("mt") * self.height + Var("r")
        return at

    def over_columns(self, body: Stmt, *, whole: bool = True) -> Stmt:
        """`body` for the columns of a tile; all lanes, or (not `whole`) only those that there are."""
        s, v = self.s, self.vectors
        left = index(s.vectors) - Var("nt") * v
        count = index(v) if s.vectors % v == 0 else minimum(v, left)
        lane: Expr = index(s.width)
        if not whole and s.columns % s.width:
            lane = minimum(s.width, index(s.columns) - (Var("nt") * v + Var("c")) * s.width)
        return For("c", count, For("l", lane, body, "vector", s.width), "unroll")

    def over_tile(self, body: Stmt, *, whole: bool = True) -> Stmt:
        left = index(self.s.rows) - Var("mt") * self.height
        whole_tiles = surely(lambda: self.s.rows % self.height == 0)
        count = index(self.height) if whole_tiles else minimum(self.height, left)
        return For("r", count, self.over_columns(body, whole=whole), "unroll")

    # ---- the nest ----

    def build(self) -> Direct:
        total, at = self.tile("total", F32), (Var("r"), self.lane)
        now = Load("total", at, F32)
        body = seq(
            self.over_tile(store("total", at, Const(0.0, F32), "start")),
            loop("b", self.s.blocks, self.block_sum(now, at)),
            self.over_tile(self.read.write(self.out, (self.m, self.n), now, "out"), whole=False),
        )
        rows = loop("mt", -(-self.s.rows // self.height), Alloc(total, body))
        nest = loop("nt", -(-self.s.vectors // self.vectors), rows, "thread")
        return Direct(nest, self.packs())

    def tile(self, name: str, dtype: str) -> Buffer:
        """Sums of a tile: in registers where those of the block leave room."""
        scope = "register" if name != "total" or self.fits(self.height, self.vectors) else "local"
        return Buffer(name, (self.height, self.vectors * self.s.width), dtype, scope)

    def fits(self, height: int, vectors: int) -> bool:
        """Whether both sums of a tile are in registers."""
        needed = 2 * height * vectors + (self.beside - 1) * vectors + self.others
        return needed <= self.machine.vector_registers

    def packs(self) -> tuple[Pack, ...]:
        factors, blocks = (self.vectors, self.s.width), []
        for name, rank in ((self.w, 3), (self.scale, 2), (self.zero, 2)):
            if name is not None and name in self.kernel.constants:
                splits = (factors, *[()] * (rank - 1))
                blocks.append(Pack(name, splits, (0, *range(3, 2 + rank), 1, 2)))
        return tuple(blocks)

    def column(self, name: str) -> Expr:
        """A parameter of the block for each column, as f32."""
        buffer = self.kernel.buffer(name)
        at = (self.n, Var("b"))
        if buffer.dtype == "i8":
            return Op("sitofp", (Op("extui", (Load(name, at, "i8"),), I32),), F32)
        return self.read.read(name, at)

    def word(self) -> Expr:
        return Load(self.w, (self.n, Var("b"), Var("i")), I32)

    def block_sum(self, now: Expr, at: tuple[Expr, ...]) -> Stmt:
        """The sums within a block, added to the totals with their scales."""
        raise NotImplementedError


class FloatProduct(Product):
    """Of f32 with the numbers of the words as f32."""

    def __init__(self, kernel: Kernel, machine: Machine, choose: Choose) -> None:
        super().__init__(kernel, machine, choose, (1, 2, 3))
        self.x = self.read.operand(0)

    def block_sum(self, now: Expr, at: tuple[Expr, ...]) -> Stmt:
        s = self.s
        acc = Load("acc", at, F32)
        each = 32 // s.bits
        steps: list[Stmt] = []
        for part in range(each):
            x = Load(self.x, (self.m, Var("b") * s.block + Var("i") * each + part), F32)
            numbers = self.over_columns(store("numbers", (self.lane,), self.number(part), "unpack"))
            product = mul(x, Load("numbers", (self.lane,), F32))
            steps += [numbers, self.over_tile(store("acc", at, add(acc, product), "sum"))]
        body = seq(
            self.over_tile(store("acc", at, Const(0.0, F32), "clear")),
            loop("i", s.words, Alloc(Buffer("numbers", (self.vectors * s.width,), F32, "register"), seq(*steps))),
            self.over_tile(store("total", at, add(now, mul(acc, Load("scales", (self.lane,), F32))), "scale")),
        )
        scales = store("scales", (self.lane,), self.column(self.scale), "scales")
        width = self.vectors * s.width
        if self.zero is not None:
            zero = add(self.column(self.zero), Const(float(1 << s.bits), F32))
            body = Alloc(
                Buffer("zeros", (width,), F32, "register"),
                seq(self.over_columns(store("zeros", (self.lane,), zero, "zeros")), body),
            )
        return Alloc(
            Buffer("scales", (width,), F32, "register"),
            Alloc(self.tile("acc", F32), seq(self.over_columns(scales), body)),
        )

    def number(self, part: int) -> Expr:
        """A number of the word less its zero point. Bits q behind the point of 2**bits are the float 2**bits + q."""
        bits = self.s.bits
        shift = 23 - bits - 8 * (part % 4) - bits * (part // 4)
        word = self.word()
        if shift:
            word = Op("shli" if shift > 0 else "shrui", (word, Const(abs(shift), I32)), I32)
        fraction = Op("andi", (word, Const(((1 << bits) - 1) << 23 - bits, I32)), I32)
        raised = Op("bitcast", (Op("ori", (fraction, Const(127 + bits << 23, I32)), I32),), F32)
        half = Const(float((1 << bits) + (1 << bits - 1)), F32)
        zero: Expr = half if self.zero is None else Load("zeros", (self.lane,), F32)
        return Op("subf", (raised, zero), F32)


class ByteProduct(Product):
    """Of rows quantized by block: four bytes of a word at once, summed in i32."""

    def __init__(self, kernel: Kernel, machine: Machine, choose: Choose) -> None:
        super().__init__(kernel, machine, choose, (3, 4, 5))
        self.x, self.xscale, self.sums = (self.read.operand(i) for i in range(3))

    def block_sum(self, now: Expr, at: tuple[Expr, ...]) -> Stmt:
        s, b, zero = self.s, Var("b"), None
        width = self.vectors * s.width
        acc = Load("acc", at, I32)
        total = Load(self.sums, (self.m, b), I32)
        if self.zero is None:
            start: Expr = Op("muli", (total, Const(-(1 << s.bits - 1), I32)), I32)
        else:
            less = Op("subi", (Const(0, I32), Op("extui", (Load(self.zero, (self.n, b), "i8"),), I32)), I32)
            zero = self.over_columns(store("zeros", (self.lane,), less, "zeros"))
            start = Op("muli", (Load("zeros", (self.lane,), I32), total), I32)
        scale = mul(Load("scales", (self.lane,), F32), Load(self.xscale, (self.m, b), F32))
        words = loop("i", s.words, seq(*[self.products(part, acc, at) for part in range(8 // s.bits)]))
        body = seq(
            self.over_columns(store("scales", (self.lane,), self.column(self.scale), "scales")),
            zero,
            self.over_tile(store("acc", at, start, "clear")),
            words,
            self.over_tile(store("total", at, add(now, mul(Op("sitofp", (acc,), F32), scale)), "scale")),
        )
        body = Alloc(Buffer("scales", (width,), F32, "register"), Alloc(self.tile("acc", I32), body))
        return body if zero is None else Alloc(Buffer("zeros", (width,), I32, "register"), body)

    def products(self, part: int, acc: Expr, at: tuple[Expr, ...]) -> Stmt:
        """Those of the numbers in one part of every byte of a word."""
        bits = self.s.bits
        word = self.word()
        if part:
            word = Op("shrui", (word, Const(bits * part, I32)), I32)
        if bits < 8:
            word = Op("andi", (word, Const(((1 << bits) - 1) * 0x01010101, I32)), I32)
        k = Var("b") * self.s.block + Var("i") * (32 // bits) + part * 4
        x = [Load(self.x, (self.m, k + j), "i8") for j in range(4)]
        return self.over_tile(store("acc", at, Op("addi", (acc, Op("dot4", (word, *x), I32)), I32), "sum"))


@direct("block_matmul", writes_once=True, reuses=True)
def block_matmul(kernel: Kernel, machine: Machine, choose: Choose) -> Direct:
    """The loop nest of ``tw.block_matmul``."""
    return FloatProduct(kernel, machine, choose).build()


@direct("integer_block_matmul", writes_once=True, reuses=True)
def integer_block_matmul(kernel: Kernel, machine: Machine, choose: Choose) -> Direct:
    """The loop nest of ``tw.integer_block_matmul``."""
    return ByteProduct(kernel, machine, choose).build()
