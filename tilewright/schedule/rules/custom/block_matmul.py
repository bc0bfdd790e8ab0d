"""Products with weights in blocks of a few bits (`ops/block_quantized.py`), from one layout for any number of rows.

Weights are laid out so that neighbouring lanes have neighbouring columns and a tile's words lie one after the other:
``w[tile of columns][block][word][vector][lane]``. The tile depends on the machine and on the columns, not on the rows.
For each tile of columns (shared among threads) a few rows take numbers as they are unpacked in registers:

    for block: for word: u = unpacked(w);  for m: acc[m] += x[m, k] * u

and more of them from memory of the first cache, in which a part of the depth is unpacked at once:

    for part: numbers = unpacked(w of the part);  for rows of m: for k: acc[m] += x[m, k] * numbers[k];  total[m] += acc

Where it is known at run time only how many rows there are, each number of a few rows has its code.
"""

from __future__ import annotations

from collections.abc import Callable

from ....support.sizes import highest, is_open, lowest
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Seq, Stmt, loop, seq, store
from .. import Choose, Direct, direct
from .block_weights import PackedWeights
from .nests import Access, add, index, mul, vector_loop

F32, I32 = "f32", "i32"
#: rows up to which bytes are unpacked again for each tile
BYTE_ROWS = 16
#: vectors of a tile of columns
VECTORS = 2
#: loops over the words of a block that are unrolled, as they do little else than count: those of two steps, and those
#: of so many steps of one group each
SHORT = 8
#: the part of the first cache that unpacked numbers may take
SHARE = 4


def tile(machine: Machine, columns: int) -> tuple[int, int]:
    """Vectors and lanes of a tile of columns."""
    width = min(lanes(machine), 1 << max(columns - 1, 0).bit_length())
    return min(VECTORS, -(-columns // width)), width


class Product:
    """One product as a loop nest: the parts that f32 and bytes share.

    `total` is a row's sum for each column. Names of loops and buffers end with a `tag` for each way of computing rows.
    """

    #: bytes of a number that is unpacked
    number_bytes = 4
    #: numbers of a lane that are unpacked together
    group = 1
    kind = F32

    def __init__(self, kernel: Kernel, machine: Machine, choose: Choose, first: int) -> None:
        self.read = Access(kernel)
        self.kernel, self.machine = kernel, machine
        self.weights = PackedWeights(self.read, first)
        self.x, self.out = self.read.operand(0), self.read.opaque.results[0]
        self.rows, self.columns = self.read.shape(self.out)
        self.vectors, self.lanes = tile(machine, self.columns)
        self.tiles = -(-self.columns // self.lanes)
        self.width = self.vectors * self.lanes
        #: the tile of columns among those of the weights
        self.place: Expr = Var("nt")
        self.height = choose("rows", tuple(range(1, 13)), self.high())

    def high(self) -> int:
        """Rows of a tile of many."""
        raise NotImplementedError

    def few_high(self) -> int:
        """Rows that share what is unpacked in registers."""
        return 4 if self.machine.many_registers else 3

    @property
    def few_rows(self) -> int:
        """Rows up to which numbers are used as they are unpacked, by tiles."""
        raise NotImplementedError

    @property
    def memory_rows(self) -> int:
        """Rows up to which the weights take longer to come from memory than to be multiplied."""
        return 2

    # ---- places ----

    @property
    def lane(self) -> Expr:
        """The column within a tile."""
        return Var("c") * self.lanes + Var("l")

    @property
    def n(self) -> Expr:
        at: Expr = Var("nt") * self.width + self.lane
        return at

    def over_columns(self, body: Stmt, *, whole: bool = True) -> Stmt:
        """`body` for the columns of a tile; all lanes, or (not `whole`) only those that there are."""
        count: Expr = index(self.vectors)
        lane: Expr = index(self.lanes)
        if not whole and self.columns % self.width:
            count = minimum(self.vectors, index(self.tiles) - Var("nt") * self.vectors)
            if self.columns % self.lanes:
                lane = minimum(self.lanes, index(self.columns) - (Var("nt") * self.vectors + Var("c")) * self.lanes)
        return For("c", count, For("l", lane, body, "vector", self.lanes), "unroll")

    def over_tile(self, height: int, tag: str, body: Stmt, *, whole: bool = True) -> Stmt:
        return For(f"r{tag}", index(height), self.over_columns(body, whole=whole), "unroll")

    def sums(self, name: str, height: int, tag: str, dtype: str) -> tuple[Buffer, Load]:
        """Sums of a tile in registers, and the one at hand."""
        buffer = Buffer(name + tag, (height, self.width), dtype, "register")
        return buffer, Load(buffer.name, (Var(f"r{tag}"), self.lane), dtype)

    def vector(self, name: str, tag: str, dtype: str = F32) -> tuple[Buffer, Load]:
        """What a column has in registers."""
        buffer = Buffer(name + tag, (self.width,), dtype, "register")
        return buffer, Load(buffer.name, (self.lane,), dtype)

    # ---- the nest ----

    def build(self) -> Direct:
        few = self.in_tiles(self.few_high(), "f", self.few)
        if lowest(self.rows) > self.few_rows:
            made = self.many()
        elif highest(self.rows) > self.few_rows:
            made = If(_below(self.rows, self.few_rows + 1), few, self.many())
        else:
            made = few
        nest = self.prepared(loop("nt", -(-self.tiles // self.vectors), made, "thread"))
        return Direct(nest, self.weights.packs((self.vectors, self.lanes)))

    def in_tiles(self, most: int, tag: str, tile: Callable[[int, str, Expr], Stmt]) -> Stmt:
        """All rows in tiles of at most `most`: each is made for a height, a tag and its first row. If it is known only
        at run time how many there are, the last rows have code for each number of them."""
        rows = self.rows
        height = most if is_open(rows) else -(-rows // max(-(-rows // most), 1)) or 1
        tiles, rest = rows // height, rows % height
        last: Stmt | None = None
        for n in reversed(range(1, height) if is_open(rest) else [rest] if rest else []):
            here = tile(n, f"_{tag}{n}", index(tiles * height))
            last = here if last is None else If(_below(rest, n + 1), here, last)
        if last is not None and is_open(rest):
            last = If(_below(rest, 1), Seq(()), last)
        return seq(loop(f"m{tag}", tiles, tile(height, f"_{tag}", Var(f"m{tag}") * height)), last)

    def prepared(self, nest: Stmt) -> Stmt:
        """The nest behind what every thread computes once."""
        return nest

    def ahead(self, b: Expr, blocks: int) -> tuple[tuple[str, Expr], ...]:
        """Hints that ask for the words of the block that is so many behind b."""
        w = self.weights
        assert w.w is not None
        if w.w not in self.kernel.constants:
            return ()
        size, line = self.width * w.block * w.bits // 32, self.machine.line_bytes // 4
        first = (self.place * w.blocks + (b + blocks)) * size
        return tuple((w.w, first + i) for i in range(0, size, line))

    def ahead_of_few(self, height: int, b: Expr) -> tuple[tuple[str, Expr], ...]:
        """The same for rows that take numbers as they are unpacked. One or two come to what is ahead soon enough, and
        where memory is what they wait for, hints for all of it slow it down."""
        size = self.width * self.weights.block * self.weights.bits // 8
        return self.ahead(b, max(self.machine.prefetch.weight_bytes // size, 1)) if height > self.memory_rows else ()

    def few(self, height: int, tag: str, first: Expr) -> Stmt:
        """Rows from `first` on, as many as `height`."""
        total, now = self.sums("total", height, tag, F32)
        out = self.read.write(self.out, (first + Var(f"r{tag}"), self.n), now, "out")
        return Alloc(total, seq(
            self.over_tile(height, tag, store(total.name, now.indices, Const(0.0, F32), "start")),
            self.unpacked_at_once(height, tag, first, now),
            self.over_tile(height, tag, out, whole=False),
        ))  # fmt: skip

    def many(self) -> Stmt:
        """All rows, however many: a part of the depth is unpacked, then used for all of them."""
        w = self.weights
        part = max(self.machine.l1_bytes // SHARE * self.group // (self.number_bytes * self.width * w.block), 1)
        part = min(-(-part // self.span) * self.span, w.blocks)
        total = Buffer("totals", (self.rows, self.width), F32, "local")
        numbers = Buffer("numbers", (part * w.block // self.group, self.width), self.kind, "local")
        now = Load(total.name, (Var("row"), self.lane), F32)
        count = index(part) if w.blocks % part == 0 else minimum(part, index(w.blocks) - Var("part") * part)
        sums = self.in_tiles(self.height, "m", lambda h, tag, m: self.of_part(h, tag, m, part, count))
        body = seq(self.unpack(part, count), sums)
        for buffer in (numbers, *self.parameters(part)):
            body = Alloc(buffer, body)
        return Alloc(total, seq(
            loop("row", self.rows, self.over_columns(store(total.name, now.indices, Const(0.0, F32), "start"))),
            loop("part", -(-w.blocks // part), body),
            loop("row", self.rows, self.over_columns(
                self.read.write(self.out, (Var("row"), self.n), now, "out"), whole=False)),
        ))  # fmt: skip

    @property
    def span(self) -> int:
        """Blocks of weights that a part of the depth has a multiple of."""
        return 1

    def over_units(self, tag: str, block: int, body: Callable[[Expr, int], Stmt]) -> Stmt:
        """Statements for the numbers of a block, laid out for those of a unit."""
        unit, i = self.weights.unit, f"i{tag}"
        steps, groups = block // unit, unit // self.group
        kind = "unroll" if steps <= 2 or (groups == 1 and steps <= SHORT) else "serial"
        return loop(i, steps, seq(*[body(Var(i), g) for g in range(groups)]), kind)

    def unpacked_at_once(self, height: int, tag: str, first: Expr, now: Load) -> Stmt:
        """Adds to `now` the products with numbers as they are unpacked."""
        raise NotImplementedError

    def parameters(self, part: int) -> list[Buffer]:
        """Buffers for what blocks of a part have beside numbers."""
        raise NotImplementedError

    def unpack(self, part: int, count: Expr) -> Stmt:
        """Fills the buffers of a part with `count` blocks."""
        raise NotImplementedError

    def of_part(self, height: int, tag: str, first: Expr, part: int, count: Expr) -> Stmt:
        """Adds to the totals of `height` rows the products with the numbers of a part."""
        raise NotImplementedError

    def with_totals(self, height: int, tag: str, first: Expr, body: Callable[[Load], Stmt]) -> Stmt:
        """`body` with the totals of some rows in registers."""
        total, now = self.sums("total", height, tag, F32)
        kept = Load("totals", (first + Var(f"r{tag}"), self.lane), F32)
        return Alloc(total, seq(
            self.over_tile(height, tag, store(total.name, now.indices, kept, "bring")),
            body(now),
            self.over_tile(height, tag, store(kept.buffer, kept.indices, now, "keep")),
        ))  # fmt: skip


class FloatProduct(Product):
    """Of f32, with dequantized weights."""

    def __init__(self, kernel: Kernel, machine: Machine, choose: Choose) -> None:
        super().__init__(kernel, machine, choose, 1)

    def high(self) -> int:
        room = (self.machine.vector_registers - 1) // self.vectors - 1
        return max(min(room, self.machine.aligned_rows), 1)

    def few_high(self) -> int:
        """Unpacking takes as long as the products of four rows. Each number of rows that may be there has its code."""
        return super().few_high() if is_open(self.rows) else 2 * super().few_high()

    @property
    def few_rows(self) -> int:
        return self.few_high()

    def scaled(self, tag: str, b: Expr, body: Callable[[Callable[[Expr, int], Expr]], Stmt]) -> Stmt:
        """`body` with a function that gives a number of block b as a weight: ``raised * scale + least``."""
        w = self.weights
        (scales, scale), (leasts, least) = self.vector("scale", tag), self.vector("least", tag)
        shift: Expr = Const(float((1 << w.byte_bits) + w.centre), F32)
        if w.zero is not None:
            shift = add(w.zeros(self.n, b), Const(float(1 << w.byte_bits), F32))
        below = Op("negf", (mul(shift, scale),), F32)
        if w.minimum is not None:
            below = Op("subf", (below, w.minima(self.n, b)), F32)
        made = seq(
            self.over_columns(store(scales.name, scale.indices, w.scales(self.n, b), "scales")),
            self.over_columns(store(leasts.name, least.indices, below, "leasts")),
            body(lambda i, t: Op("fma", (w.raised(self.n, b, i, t), scale, least), F32)),
        )
        return Alloc(scales, Alloc(leasts, made))

    def unpacked_at_once(self, height: int, tag: str, first: Expr, now: Load) -> Stmt:
        w, b = self.weights, Var(f"b{tag}")
        held, number = self.vector("number", tag)

        def block(weight: Callable[[Expr, int], Expr]) -> Stmt:
            def one(i: Expr, t: int) -> Stmt:
                x = Load(self.x, (first + Var(f"r{tag}"), b * w.block + i * w.unit + t), F32)
                return seq(
                    self.over_columns(store(held.name, number.indices, weight(i, t), "unpack")),
                    self.over_tile(height, tag, store(now.buffer, now.indices, add(now, mul(x, number)), "sum")),
                )

            return Alloc(held, self.over_units(tag, w.block, one))

        return For(b.name, index(w.blocks), self.scaled(tag, b, block), prefetch=self.ahead_of_few(height, b))

    def parameters(self, part: int) -> list[Buffer]:
        return []

    def unpack(self, part: int, count: Expr) -> Stmt:
        w, b = self.weights, Var("bu")

        def block(weight: Callable[[Expr, int], Expr]) -> Stmt:
            def one(i: Expr, t: int) -> Stmt:
                at = (b * w.block + i * w.unit + t, self.lane)
                return self.over_columns(store("numbers", at, weight(i, t), "unpack"))

            return self.over_units("u", w.block, one)

        here = Var("part") * part + b
        return For(b.name, count, self.scaled("_u", here, block), prefetch=self.ahead(here, part))

    def of_part(self, height: int, tag: str, first: Expr, part: int, count: Expr) -> Stmt:
        w, k = self.weights, Var(f"k{tag}")

        def body(now: Load) -> Stmt:
            x = Load(self.x, (first + Var(f"r{tag}"), Var("part") * (part * w.block) + k), F32)
            product = mul(x, Load("numbers", (k, self.lane), F32))
            one = self.over_tile(height, tag, store(now.buffer, now.indices, add(now, product), "sum"))
            return For(k.name, count * w.block, one)

        return self.with_totals(height, tag, first, body)


class ByteProduct(Product):
    """Of rows quantized by block: four bytes of a word at once, summed in i32."""

    group, kind = 4, I32

    def __init__(self, kernel: Kernel, machine: Machine, choose: Choose) -> None:
        super().__init__(kernel, machine, choose, 3)
        self.xscale, self.xsums = self.read.operand(1), self.read.operand(2)

    def high(self) -> int:
        return self.few_high()

    @property
    def few_rows(self) -> int:
        return BYTE_ROWS

    @property
    def memory_rows(self) -> int:
        """Bytes need no unpacking."""
        return 4 if self.weights.bits == 8 else 2

    @property
    def span(self) -> int:
        """Blocks of weights in a block of x."""
        return self.weights.blocks // self.read.shape(self.xscale)[1]

    def prepared(self, nest: Stmt) -> Stmt:
        """Sums of x times what all numbers of the weights are too large by, and times the scales of x."""
        w, m = self.weights, Var("row")
        made: dict[str, Callable[[Expr], Expr]] = {}
        if w.zero is None and w.centre:
            made["starts"] = lambda b: Op("muli", (Load(self.xsums, (m, b), I32), Const(-w.centre, I32)), I32)
        if w.minimum is not None:
            made["wholes"] = lambda b: self.whole(m, b)
        for name, value in made.items():
            buffer = Buffer(name, (self.rows, w.blocks), value(Var("b")).dtype, "local")
            nest = Alloc(buffer, seq(loop("row", self.rows, self.filled(name, m, value)), nest))
        return nest

    def filled(self, name: str, m: Expr, value: Callable[[Expr], Expr]) -> Stmt:
        """A row of what is computed once, for all blocks."""
        count = self.weights.blocks
        return vector_loop("b", count, count, lanes(self.machine), lambda b: store(name, (m, b), value(b), name))

    def whole(self, m: Expr, b: Expr) -> Expr:
        """The sum of a block of x, times its scale where that is a block of weights."""
        total = Op("sitofp", (Load(self.xsums, (m, b), I32),), F32)
        return mul(total, Load(self.xscale, (m, b), F32)) if self.span == 1 else total

    @property
    def takes_all_bytes(self) -> bool:
        """Whether an instruction takes bytes of 8 bits without a sign; elsewhere those of 7 bits need fewer."""
        return any(d.signs == ("u", "s") and d.lanes == self.lanes for d in self.machine.dot_products)

    def columns_of_block(self, b: Expr) -> dict[str, Expr]:
        """What a column has for a block, and its dtype: the scale, the minimum with the other sign, the zero
        point."""
        w = self.weights
        found = {"scale": w.scales(self.n, b)}
        if w.minimum is not None:
            found["least"] = Op("negf", (w.minima(self.n, b),), F32)
        if w.zero is not None:
            found["zero"] = w.whole_zeros(self.n, b)
        return found

    def block(
        self, height: int, tag: str, m: Expr, b: Expr, now: Load, given: dict[str, Load],
        products: Callable[[Load], Stmt],
    ) -> Stmt:  # fmt: skip
        """Adds block b to `now`: `products` sums those of bytes."""
        w = self.weights
        acc, own = self.sums("acc", height, tag, I32)
        start: Expr = Load("starts", (m, b), I32) if w.centre else Const(0, I32)
        if "zero" in given:
            less = Op("subi", (Const(0, I32), given["zero"]), I32)
            start = Op("muli", (less, Load(self.xsums, (m, b), I32)), I32)
        scale: Expr = given["scale"]
        if self.span == 1:
            scale = mul(scale, Load(self.xscale, (m, b), F32))
        new = Op("fma", (Op("sitofp", (own,), F32), scale, now), F32)
        if "least" in given:
            new = Op("fma", (given["least"], Load("wholes", (m, b), F32), new), F32)
        return Alloc(acc, seq(
            self.over_tile(height, tag, store(acc.name, own.indices, start, "clear")),
            products(own),
            self.over_tile(height, tag, store(now.buffer, now.indices, new, "scale")),
        ))  # fmt: skip

    def blocks(
        self, height: int, tag: str, m: Expr, first: Expr, count: Expr, now: Load, one: Callable[[Expr, Load], Stmt],
        ahead: tuple[tuple[str, Expr], ...] = (),
    ) -> Stmt:  # fmt: skip
        """`one` for `count` blocks from `first` on: what it adds to, with the scales of x where that has not been
        done."""
        b, inner = Var(f"b{tag}"), Var(f"s{tag}")
        if self.span == 1:
            return For(b.name, count, one(b, now), prefetch=ahead)
        part, own = self.sums("span", height, tag, F32)
        xscale = Load(self.xscale, (m, first // self.span + b), F32)
        return For(b.name, count // self.span, Alloc(part, seq(
            self.over_tile(height, tag, store(part.name, own.indices, Const(0.0, F32), "clear_span")),
            For(inner.name, index(self.span), one(b * self.span + inner, own), prefetch=ahead),
            self.over_tile(height, tag, store(now.buffer, now.indices, add(now, mul(own, xscale)), "scale_span")),
        )))  # fmt: skip

    def dot(self, height: int, tag: str, m: Expr, k: Expr, word: Expr, own: Load) -> Stmt:
        x = [Load(self.x, (m, k + j), "i8") for j in range(4)]
        product = Op("addi", (own, Op("dot4", (word, *x), I32)), I32)
        return self.over_tile(height, tag, store(own.buffer, own.indices, product, "sum"))

    def unpacked_at_once(self, height: int, tag: str, first: Expr, now: Load) -> Stmt:
        w, m = self.weights, first + Var(f"r{tag}")

        def one(b: Expr, into: Load) -> Stmt:
            values = self.columns_of_block(b)
            held = {name: self.vector(name, tag, x.dtype) for name, x in values.items()}

            def products(own: Load) -> Stmt:
                def four(i: Expr, g: int) -> Stmt:
                    k = b * w.block + i * w.unit + 4 * g
                    return self.dot(height, tag, m, k, w.four(self.n, b, i, g), own)

                return self.over_units(tag, w.block, four)

            body = seq(
                *[self.over_columns(store(held[n][0].name, (self.lane,), x, n)) for n, x in values.items()],
                self.block(height, tag, m, b, into, {n: x for n, (_, x) in held.items()}, products),
            )
            for buffer, _ in held.values():
                body = Alloc(buffer, body)
            return body

        inner = Var(f"b{tag}") if self.span == 1 else Var(f"b{tag}") * self.span + Var(f"s{tag}")
        return self.blocks(height, tag, m, index(0), index(w.blocks), now, one, self.ahead_of_few(height, inner))

    def parameters(self, part: int) -> list[Buffer]:
        values = self.columns_of_block(index(0))
        return [Buffer(f"{name}s", (part, self.width), x.dtype, "local") for name, x in values.items()]

    def unpack(self, part: int, count: Expr) -> Stmt:
        w, b = self.weights, Var("bu")
        here = Var("part") * part + b

        def four(i: Expr, g: int) -> Stmt:
            at = ((b * w.block + i * w.unit) // 4 + g, self.lane)
            return self.over_columns(store("numbers", at, w.four(self.n, here, i, g), "unpack"))

        values = self.columns_of_block(here)
        return For(b.name, count, seq(
            *[self.over_columns(store(f"{name}s", (b, self.lane), x, name)) for name, x in values.items()],
            self.over_units("u", w.block, four),
        ), prefetch=self.ahead(here, part))  # fmt: skip

    def of_part(self, height: int, tag: str, first: Expr, part: int, count: Expr) -> Stmt:
        w, m = self.weights, first + Var(f"r{tag}")
        start = Var("part") * part

        def one(b: Expr, into: Load) -> Stmt:
            given = {n: Load(f"{n}s", (b, self.lane), x.dtype) for n, x in self.columns_of_block(b).items()}

            def products(own: Load) -> Stmt:
                g = Var(f"i{tag}")
                word: Expr = Load("numbers", (b * (w.block // 4) + g, self.lane), I32)
                if w.byte_bits < 8 and not self.takes_all_bytes:
                    word = Op("andi", (word, Const(0x7F7F7F7F, I32)), I32)
                k = (start + b) * w.block + g * 4
                return loop(g.name, w.block // 4, self.dot(height, tag, m, k, word, own))

            return self.block(height, tag, m, start + b, into, given, products)

        def body(now: Load) -> Stmt:
            return self.blocks(height, tag, m, start, count, now, one)

        return self.with_totals(height, tag, first, body)


def _below(rows: int, count: int) -> Expr:
    return Op("cmpi.slt", (index(rows), index(count)), "i1")


@direct("block_matmul", writes_once=True, reuses=True)
def block_matmul(kernel: Kernel, machine: Machine, choose: Choose) -> Direct:
    """The loop nest of ``tw.block_matmul``."""
    return FloatProduct(kernel, machine, choose).build()


@direct("integer_block_matmul", writes_once=True, reuses=True)
def integer_block_matmul(kernel: Kernel, machine: Machine, choose: Choose) -> Direct:
    """The loop nest of ``tw.integer_block_matmul``."""
    return ByteProduct(kernel, machine, choose).build()
