"""Attention of ragged batches to keys in pages: each task takes a block of tokens of one sequence with the query heads
that share a key head, and goes along its keys in blocks with an online softmax.

    for each block of keys, of those that its tokens see:
      ks, vs = keys and values of the pages, as floats of scratch memory   # read once for all heads of the group
      s[r, j] = scale * sum_d q[r, d] * ks[j, d]                           # -inf where row r does not see key j
      m = max(top[r], max_j s[r, j]);  shrink[r] = exp(top[r] - m);  top[r] = m
      s[r, j] = exp(s[r, j] - m);  total[r] = total[r] * shrink[r] + sum_j s[r, j]
      o[r, e] = o[r, e] * shrink[r] + sum_j s[r, j] * vs[j, e]
    out[r, e] = o[r, e] / total[r]

Blocks of sequence b have the numbers from ``starts[b] // block + b`` on, so that a block's number says where it lies
without a table; some numbers have no tokens. Scratch memory does not grow with the length of a sequence. Threads that
are done early take blocks of others (the last blocks of a prompt see the most keys).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import gcd

from ....ops.ragged_attention import part_length
from ....ops.write_quantized_pages import rotation
from ....support.dtypes import TYPES, wide
from ....support.sizes import highest, smaller
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, ceildiv, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Stmt, Store, loop, rename_loads, seq, store, transform, walk_stmts
from .. import direct
from .nests import Access, add, both, index, less, mul, select
from .rotation import rotate

#: rows of a block (a row is one query of one head), keys of a block, and heads of a group that a task has at most
ROWS, KEYS, GROUP = 32, 64, 16
#: vectors of a row that are laid out
UNROLLED = 16
#: vectors of sums that a tile of the second product has at most
SUMS = 16


def let(name: str, value: Expr, body: Stmt) -> Stmt:
    """`body` with a number in a register."""
    return Alloc(Buffer(name, (), value.dtype, "register"), seq(store(name, (), value, name), body))


def now(name: str, dtype: str = "index") -> Expr:
    """A number that `let` has put into a register."""
    return Load(name, (), dtype)


def larger(a: Expr, b: Expr | int) -> Expr:
    return Op("maxsi", (a, index(b) if isinstance(b, int) else b), "index")


def renamed(s: Stmt, suffix: str) -> Stmt:
    """A nest with other names for the buffers that live in it."""
    own = {x.buffer.name for x in walk_stmts(s) if isinstance(x, Alloc)}

    def name(x: str) -> str:
        return x + suffix if x in own else x

    def changed(x: Stmt) -> Stmt:
        if isinstance(x, Alloc):
            return replace(x, buffer=replace(x.buffer, name=name(x.buffer.name)))
        if isinstance(x, Store):
            return replace(x, targets=tuple(replace(t, buffer=name(t.buffer)) for t in x.targets))
        return x

    made = transform(rename_loads(s, lambda x: Load(name(x.buffer), x.indices, x.dtype)), changed)
    assert made is not None
    return made


class Ragged:
    """The nest of ``tw.ragged_attention``: what is where, and its parts in order."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.read, self.machine = Access(kernel), machine
        a = self.read
        names = [n or "" for n in (*a.opaque.operands, *[None] * 9)[:9]]
        self.q, self.k, self.v, self.table, self.starts, self.lengths, self.sinks, *self.scales = names
        self.out, *self.partial = a.opaque.results
        attributes = a.opaque.attributes
        self.window, self.softcap = int(attributes["window"]), float(attributes["softcap"])
        self.tokens, self.heads, self.depth = a.shape(self.q)
        self.pages, self.length, self.shared, _ = a.shape(self.k)
        self.count, self.most_pages = a.shape(self.table)
        self.width = a.shape(self.out)[-1]
        #: parts of the keys, each with results of its own
        self.splits = int(attributes.get("parts", 1))
        self.dtype = wide(a.dtype(self.q))
        #: the type of keys and values in scratch memory
        self.kept = self.dtype
        self.lanes = lanes(machine, self.dtype)
        group = self.heads // self.shared
        #: heads of a task, and tasks that have those of one key head
        self.group = next(g for g in range(min(group, GROUP), 0, -1) if group % g == 0)
        self.parts = group // self.group
        #: keys whose page is looked up together
        self.run = gcd(self.length, self.lanes)
        #: bits of a number in pages with scales; 0: they are floats
        self.bits = 8 * a.shape(self.k)[3] // self.depth if self.scales[0] else 0
        #: what queries and results are multiplied by; `rotate` makes rows longer
        self.scale, self.shorter = float(attributes["scale"]) / (self.softcap or 1.0), 1.0
        if self.bits:
            self.scale, self.shorter = self.scale / rotation(self.depth) ** 0.5, rotation(self.width) ** -0.5
        #: tokens of a block, its rows at most, and its keys
        self.block = smaller(max(ROWS // self.group, 1), highest(self.tokens))
        self.rows, self.keys = self.block * self.group, -(-KEYS // self.lanes) * self.lanes
        self.depths, self.widths = (-(-n // self.lanes) for n in (self.depth, self.width))  # in vectors

    def multiplies_pairs(self) -> bool:
        """Whether all operands are bf16, and the machine multiplies pairs of them in vectors as wide as its others."""
        pairs = self.machine.pairs
        whole = pairs is not None and self.machine.vector_bytes == 4 * pairs.lanes and self.lanes == pairs.lanes
        return whole and {self.read.dtype(x) for x in (self.q, self.k, self.v or self.k)} == {"bf16"}

    # ---- small things ----

    def number(self, x: float) -> Const:
        return Const(x, self.dtype)

    def f(self, name: str, *at: Expr) -> Expr:
        return Load(name, at, self.dtype)

    def integer(self, name: str, *at: Expr) -> Expr:
        return Op("index_cast", (Load(name, at, self.read.dtype(name)),), "index")

    def start(self, b: Expr) -> Expr:
        """The first token of a sequence; whatever the operand says, it is one of those there are."""
        return larger(minimum(self.integer(self.starts, b), self.tokens), 0)

    def as_float(self, x: Expr) -> Expr:
        """An element of an operand in the type that is computed in."""
        if x.dtype == self.dtype:
            return x
        return Op("extf" if self.dtype == "f64" or x.dtype != "f64" else "truncf", (x,), self.dtype)

    def vectors(self, name: str, count: int, body: Callable[[Expr], Stmt]) -> Stmt:
        """``body`` for all lanes of so many vectors, laid out one after the other if they are few."""
        lane = Var(f"{name}_l")
        inner = For(lane.name, index(self.lanes), body(Var(f"{name}_o") * self.lanes + lane), "vector", self.lanes)
        return loop(f"{name}_o", count, inner, "unroll" if count <= UNROLLED else "serial")

    def lane(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return For("l", index(self.lanes), body(Var("l")), "vector", self.lanes)

    def within(self, name: str, size: int, value: Callable[[Expr], Expr], to: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """``to(i, value(i))`` for i below `size`, in vectors."""
        whole, rest = divmod(size, self.lanes)
        nest = self.vectors(name, whole, lambda i: to(i, value(i))) if whole else None
        lane = Var(f"{name}_r")
        i = lane + whole * self.lanes
        return seq(nest, For(lane.name, index(rest), to(i, value(i)), "vector", self.lanes) if rest else None)

    def padded(self, size: int, to: Callable[[Expr, Expr], Stmt], dtype: str) -> Stmt:
        """Zeros in the last vector of `size` numbers, if these do not fill it."""
        last = size // self.lanes * self.lanes
        return self.lane(lambda i: to(i + last, Const(0.0, dtype))) if size % self.lanes else seq()

    @property
    def rows_there(self) -> Expr:
        return self.tokens_there * self.group

    # ---- the task ----

    def build(self) -> Stmt:
        blocks = self.tokens // self.block + self.count
        task, number = Var("task"), Var("task") % blocks
        split = task // blocks % self.splits if self.splits > 1 else index(0)
        found = If(
            Op("cmpi.sle", (self.start(Var("b")) // self.block + Var("b"), number), "i1"),
            store("sequence", (), Var("b"), "sequence"),
        )
        b = now("sequence")
        part = task // (blocks * self.splits)
        first = self.start(b) + (number - self.start(b) // self.block - b) * self.block
        there = minimum(self.block, self.start(b + 1) - now("first"))
        position = self.integer(self.lengths, b) - self.start(b + 1) + now("first")
        end = minimum(now("position") + now("there"), self.most_pages * self.length)
        seen: Expr = index(0)
        if self.window:  # from the beginning of a run on
            seen = larger(now("position") - (self.window - 1), 0) // self.run * self.run
        if self.splits > 1:
            run = part_length(self.integer(self.lengths, b), self.splits)
            end, seen = minimum(end, (now("split") + 1) * run), larger(now("split") * run, seen)
        body = let("position", position, let("end", end, let("begin", seen, self.block_of_tokens())))
        body = let("first", first, let("there", there, If(less(index(0), now("there")), body)))
        body = let("head", part // self.parts, let("query_head", part * self.group, let("split", split, body)))
        body = let("sequence", index(0), seq(loop("b", self.count, found), body))
        return loop("task", self.shared * self.parts * self.splits * blocks, body, "thread")

    def block_of_tokens(self) -> Stmt:
        """Many rows lie in the lanes of vectors, few have lanes along their numbers."""
        from .ragged_lanes import RaggedLanes
        from .ragged_pairs import RaggedPairs

        few = RaggedPairs(self.read.kernel, self.machine)
        rows = few.rows_of_block() if few.serves else self.rows_of_block()
        if self.rows <= self.lanes:
            return rows
        many = renamed(RaggedLanes(self.read.kernel, self.machine).rows_of_block(), "_of_many")
        return If(less(index(self.lanes), self.rows_there), many, rows)

    def rows_of_block(self) -> Stmt:
        most = ceildiv(index(self.most_pages * self.length), self.keys)
        blocks = minimum(most, ceildiv(now("end") - now("begin"), self.keys))
        body = seq(
            self.queries(),
            self.begin_rows(),
            For("block", blocks, let("key", now("begin") + Var("block") * self.keys, self.block_of_keys())),
            self.results(),
        )
        for buffer in self.scratch():
            body = Alloc(buffer, body)
        return body

    def scratch(self) -> list[Buffer]:
        shapes = {
            "qs": (self.rows, self.depths * self.lanes), "ks": (self.lanes, self.depths * self.lanes),
            "vs": (self.keys, self.widths * self.lanes), "s": (self.rows, self.keys),
            "o": (self.rows, self.widths * self.lanes), "top": (self.rows,), "total": (self.rows,),
            "shrink": (self.rows,),
        }  # fmt: skip
        return [Buffer(name, shape, self.dtype, "local") for name, shape in shapes.items()]

    def over_rows(self, body: Stmt) -> Stmt:
        """For each token `i` of the block and each head `h` of the task; the row is `row`."""
        return For("i", self.tokens_there, loop("h", self.group, body))

    @property
    def tokens_there(self) -> Expr:
        return minimum(self.block, now("there"))

    @property
    def keys_there(self) -> Expr:
        return minimum(self.keys, now("keys"))

    @property
    def row(self) -> Expr:
        return Var("i") * self.group + Var("h")

    def queries(self) -> Stmt:
        """The queries, scaled."""
        at = now("first") + Var("i"), now("query_head") + Var("h")

        def value(d: Expr) -> Expr:
            return self.query(Load(self.q, (*at, d), self.read.dtype(self.q)))

        def to(d: Expr, x: Expr) -> Stmt:
            return store("qs", (self.row, d), x, "query")

        row = seq(self.padded(self.depth, to, self.dtype), self.within("d", self.depth, value, to))
        return self.over_rows(seq(row, self.rotated("qs", self.depth)))

    def query(self, x: Expr) -> Expr:
        """A number of a query as scores are made of it."""
        return mul(self.as_float(x), self.number(self.scale))

    def rotated(self, buffer: str, size: int) -> Stmt:
        """A row of scratch memory, rotated as pages with scales are."""
        return (
            rotate(f"{buffer}_turned", lambda i: (buffer, (self.row, i)), size, self.dtype, self.lanes)
            if self.bits
            else seq()
        )

    def begin_rows(self) -> Stmt:
        """Sums of nothing; a sink is a score that is there already."""
        top, total = self.number(float("-inf")), self.number(0.0)
        if self.sinks:
            sink = self.as_float(Load(self.sinks, (now("query_head") + Var("h"),), self.read.dtype(self.sinks)))
            first = Op("cmpi.eq", (now("split"), index(0)), "i1")
            top, total = select(first, sink, top), select(first, self.number(1.0), total)  # type: ignore[assignment]
        zero = self.vectors("e", self.widths, lambda e: store("o", (self.row, e), self.number(0.0), "o.begin"))
        return self.over_rows(
            seq(store("top", (self.row,), top, "top.begin"), store("total", (self.row,), total, "total.begin"), zero)
        )

    # ---- a block of keys ----

    def block_of_keys(self) -> Stmt:
        there = minimum(self.keys, now("end") - now("key"))
        tile = seq(self.bring_keys(), self.over_rows(self.scores()))
        body = seq(
            For("kt", ceildiv(self.keys_there, self.lanes), tile),
            self.over_rows(self.softmax()),
            self.bring_values(),
            self.weighted(),
        )
        return let("keys", there, body)

    def brought(
        self, name: str, first: Expr, count: Expr, most: int, body: Callable[[Expr], Stmt], ahead: bool = False
    ) -> Stmt:
        """``body(j)`` for j below `count`, keys of the block from `first` on, whose page and row in it are known there:
        they are looked up once for a run of keys that are in one page. `ahead`: the values of these keys and the keys
        of the next block are asked for, so that memory is read while there is computed."""
        run, n = self.run, f"{name}_n"
        at = now("key") + first + Var(name) * run
        ahead = ahead and self.keys % self.length == 0
        slot = now("slot") + Var(n)
        hints: tuple[tuple[str, Expr], ...] = ()
        if ahead:
            hints = self.hints(self.k, now("later"), slot)
            hints += self.hints(self.v, now("page"), slot) if self.v else ()
        rows: Stmt = For(n, minimum(run, count - Var(name) * run), body(Var(name) * run + Var(n)), prefetch=hints)
        if ahead:
            rows = let("later", self.page(at + self.keys), rows)
        rows = let("page", self.page(at), let("slot", at % self.length, rows))
        return loop(name, ceildiv(minimum(most, count), run), rows)

    def page(self, at: Expr) -> Expr:
        """The page of a position of the sequence."""
        place = minimum(at // self.length, self.most_pages - 1)
        return larger(minimum(self.integer(self.table, now("sequence"), place), self.pages - 1), 0)

    def hints(self, pages: str, page: Expr, slot: Expr) -> tuple[tuple[str, Expr], ...]:
        """The lines of a row of pages."""
        width = self.read.shape(pages)[3]
        line = self.machine.line_bytes // TYPES[self.read.dtype(pages)].nbytes
        row = ((page * self.length + slot) * self.shared + now("head")) * width
        return tuple((pages, row + i) for i in range(0, width, line))

    def row_of_pages(self, name: str, pages: str, scales: str, size: int, to: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """``to(d, x)`` for the first `size` numbers of a key or value, as floats."""
        at = (now("page"), now("slot") + Var(f"{name}_n"), now("head"))

        def element(d: Expr) -> Expr:
            x = Load(pages, (*at, d), self.read.dtype(pages))
            return x if x.dtype == self.kept else self.as_float(x)

        def whole(d: Expr, number: Callable[[Expr], Expr]) -> Expr:
            byte = Op("extsi" if self.bits == 8 else "extui", (Load(pages, (*at, d), "i8"),), "i32")
            return mul(Op("sitofp", (number(byte),), self.dtype), now("scale", self.dtype))

        def half(byte: Expr, high: bool) -> Expr:
            part = Op("shrui", (byte, Const(4, "i32")), "i32") if high else Op("andi", (byte, Const(15, "i32")), "i32")
            return Op("subi", (part, Const(8, "i32")), "i32")

        zeros = self.padded(size, to, self.kept)
        if not self.bits:
            return seq(zeros, self.within(f"{name}_d", size, element, to))
        scale = self.as_float(Load(scales, at, self.read.dtype(scales)))
        if self.bits == 8:
            return let("scale", scale, seq(zeros, self.within(f"{name}_d", size, lambda d: whole(d, lambda x: x), to)))
        packed = self.read.shape(pages)[3]
        halves = [self.within(f"{name}_d", min(size, packed), lambda d: whole(d, lambda x: half(x, False)), to)]
        if size > packed:
            more = self.within(
                f"{name}_d", size - packed, lambda d: whole(d, lambda x: half(x, True)), lambda d, x: to(d + packed, x)
            )
            halves.append(more)
        return let("scale", scale, seq(zeros, *halves))

    def bring_keys(self) -> Stmt:
        """As many keys as a vector has lanes."""

        def copy(j: Expr) -> Stmt:
            to = lambda d, x: store("ks", (j, d), x, "key")  # noqa: E731
            return self.row_of_pages("kj", self.k, self.scales[0], self.depth, to)

        first = Var("kt") * self.lanes
        count = minimum(self.lanes, self.keys_there - first)
        return self.brought("kj", first, count, self.lanes, copy, ahead=True)

    def bring_values(self) -> Stmt:
        pages, scales = (self.v, self.scales[1]) if self.v else (self.k, self.scales[0])

        def copy(j: Expr) -> Stmt:
            to = lambda e, x: store("vs", (j, e), x, "value")  # noqa: E731
            return self.row_of_pages("vj", pages, scales, self.width, to)

        return self.brought("vj", index(0), self.keys_there, self.keys, copy)

    def scores(self) -> Stmt:
        """Of a row with the keys that were brought, whose sums lie in lanes; they are added up in one tree."""
        w, kj, lane = self.lanes, Var("kj"), Var("l")
        dot, d = (kj, lane), Var("dt") * w + lane
        zero = loop("kj", w, self.lane(lambda _: store("dot", dot, self.number(0.0), "dot.begin")), "unroll")
        product, steps = self.products_of_key(d, kj)
        each = loop("kj", w, self.lane(lambda _: store("dot", dot, add(self.f("dot", *dot), product), "dot")), "unroll")
        at = (self.row, Var("kt") * w + kj)
        whole = seq(
            store("s", at, self.number(0.0), "score.begin"),
            self.lane(lambda _: store("s", at, add(self.f("s", *at), self.f("dot", *dot)), "score")),
        )
        body = seq(zero, loop("dt", steps, each), loop("kj", w, whole, "unroll"))
        return Alloc(Buffer("dot", (w, w), self.dtype, "register"), body)

    def products_of_key(self, d: Expr, j: Expr) -> tuple[Expr, int]:
        """The products of a lane of a row with key j of those that were brought, and how many vectors of them."""
        return mul(self.f("qs", self.row, d), self.f("ks", j, d)), self.depths

    def seen(self, score: Expr, j: Expr) -> Expr:
        """The score of a row with key j of the block; -inf where it does not see it."""
        if self.softcap:
            score = mul(Op("tanh", (score,), self.dtype), self.number(self.softcap))
        position, at = now("position") + Var("i"), now("key") + j
        sees: Expr = Op("cmpi.sle", (at, position), "i1")
        if self.window:
            sees = both(sees, Op("cmpi.slt", (position, at + self.window), "i1"))
        if self.splits > 1:  # a vector may reach beyond the last key of a part
            sees = both(sees, less(at, now("end")))
        return select(sees, score, self.number(float("-inf")))

    def softmax(self) -> Stmt:
        """Exponentials of a row's scores, its largest score and their sum so far."""
        row, lane, infinity = (self.row,), (Var("l"),), self.number(float("-inf"))
        vectors, m = ceildiv(self.keys_there, self.lanes), now("most", self.dtype)

        def maximum(a: Expr, b: Expr) -> Expr:
            return select(Op("cmpf.ogt", (a, b), "i1"), a, b)

        def shifted(x: Expr) -> Expr:
            return Op("exp", (Op("subf", (x, m), self.dtype),), self.dtype)

        def over(body: Callable[[Expr], Stmt]) -> Stmt:
            return For("jv", vectors, self.lane(lambda lane: body(Var("jv") * self.lanes + lane)))

        def score(j: Expr) -> Stmt:
            x = self.seen(self.f("s", *row, j), j)
            best = maximum(x, self.f("best", *lane))
            return Store((Target("s", (*row, j), x), Target("best", lane, best)), "seen")

        def weight(j: Expr) -> Stmt:
            e = shifted(self.f("s", *row, j))
            return self.keep_weight(j, e, Target("sum", lane, add(self.f("sum", *lane), e)))

        both_tops = maximum(self.f("top", *row), m)
        finite = select(Op("cmpf.oeq", (m, infinity), "i1"), self.number(0.0), m)
        total = add(mul(self.f("total", *row), self.f("shrink", *row)), now("most", self.dtype))
        body = seq(
            self.lane(lambda x: store("best", (x,), infinity, "best.begin")),
            over(score),
            store("most", (), infinity, "most.begin"),
            self.lane(lambda x: store("most", (), Op("maxnumf", (m, self.f("best", x)), self.dtype), "most")),
            store("most", (), both_tops, "most.before"),
            store("last", (), self.f("top", *row), "last"),
            store("top", row, m, "top"),
            store("most", (), finite, "most.finite"),
            store("shrink", row, shifted(now("last", self.dtype)), "shrink"),
            self.lane(lambda x: store("sum", (x,), self.number(0.0), "sum.begin")),
            over(weight),
            store("most", (), self.number(0.0), "total.begin"),
            self.lane(lambda x: store("most", (), add(m, self.f("sum", x)), "total.lanes")),
            store("total", row, total, "total"),
        )
        for name, shape in (("best", (self.lanes,)), ("sum", (self.lanes,)), ("most", ()), ("last", ())):
            body = Alloc(Buffer(name, shape, self.dtype, "register"), body)
        return body

    def keep_weight(self, j: Expr, e: Expr, total: Target) -> Stmt:
        """Store the weight of key j of the block for a row, and the sum of all weights."""
        return Store((Target("s", (self.row, j), e), total), "weight")

    # ---- the weighted sum of values ----

    def weighted(self) -> Stmt:
        """Rows of a tile share what is read of the values."""
        columns = next(n for n in range(min(self.widths, SUMS // 2), 0, -1) if self.widths % n == 0)
        height = next(n for n in range(min(self.rows, max(SUMS // columns, 1)), 0, -1) if self.group % n == 0)
        w, row, j = self.lanes, Var("rt") * height + Var("r"), Var("j")
        lane = Var("c") * w + Var("l")
        e, at = Var("ct") * (columns * w) + lane, (Var("r"), lane)

        def tile(body: Stmt) -> Stmt:
            return loop("r", height, loop("c", columns, self.lane(lambda _: body), "unroll"), "unroll")

        acc, (product, count) = self.f("acc", *at), self.products_of_value(j, row, e)
        kept = mul(self.f("o", row, e), self.f("shrink", row))
        body = seq(
            tile(store("acc", at, kept, "o.shrink")),
            For("j", count, tile(store("acc", at, add(acc, product), "o"))),
            tile(store("o", (row, e), acc, "o.keep")),
        )
        body = Alloc(Buffer("acc", (height, columns * w), self.dtype, "register"), body)
        return For("rt", ceildiv(self.rows_there, height), loop("ct", self.widths // columns, body))

    def products_of_value(self, j: Expr, row: Expr, e: Expr) -> tuple[Expr, Expr]:
        """The j-th product of a row's weights with values, and how many there are."""
        return mul(self.f("s", row, j), self.f("vs", j, e)), self.keys_there

    def results(self) -> Stmt:
        total = self.f("total", self.row)
        safe = select(Op("cmpf.oeq", (total, self.number(0.0)), "i1"), self.number(1.0), total)
        at: tuple[Expr, ...] = (now("first") + Var("i"), now("query_head") + Var("h"))

        if self.partial:
            at, safe = (*at, now("split"), index(0)), self.number(1.0)

        def written(e: Expr) -> Stmt:
            value = mul(self.f("o", self.row, e), now("inverse", self.dtype))
            return self.read.write(self.out, (*at, e), value, "out")

        whole, rest = divmod(self.width, self.lanes)
        lane = Var("e_r")
        more = For("e_r", index(rest), written(lane + whole * self.lanes), "vector", self.lanes) if rest else None
        told = [store(to, at, self.f(x, self.row), x) for to, x in zip(self.partial, ("top", "total"), strict=False)]
        body = seq(self.vectors("e", whole, written) if whole else None, more, *told)
        inverse = Op("divf", (self.number(self.shorter), safe), self.dtype)
        return self.over_rows(seq(self.rotated("o", self.width), let("inverse", inverse, body)))


@direct("ragged_attention", writes_once=True, typical_sizes=True)
@direct("ragged_attention_parts", typical_sizes=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.ragged_attention``, or of parts of it."""
    made = Ragged(kernel, machine)
    return seq() if 0 in kernel.buffer(made.out).shape else made.build()


__all__ = ["Ragged", "build"]
