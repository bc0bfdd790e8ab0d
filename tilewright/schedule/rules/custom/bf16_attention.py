"""Attention on bf16 with products of pairs (`machine.PairProduct`): both products sum in f32, the softmax is in f32.

As `attention` for a block of queries in the lanes `i`, with the summed dimension in pairs that lie side by side:

    qt[d/2, i, 2]  = q[i, d]                                      # transposed in pairs, once
    s[j, i]        = scale * sum_d k[j, d] * qt[d, i]  (+ mask)
    p[j/2, i, 2]   = exp(s[j, i] - m[i]);  l[i] = sum_j exp(...)  # rounded to bf16 for the second product only
    v[j/2, e, 2]   = v[j, e]
    o[i, e]        = (sum_j p[j, i] * v[j, e]) / l[i]
"""

from __future__ import annotations

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, ceildiv, minimum
from ...machine import Machine, lanes
from ...nest import Alloc, For, Stmt, Store, loop, seq, store, substitute_vars
from ...planner.candidates import best_tile
from ...planner.instructions import pairs as pair_sums
from ...planner.product import sized
from .. import Choose
from .attention import Reader, Shape, i_loops, mask_by_query, mask_of, turned_mask
from .nests import add, index, mul

F32 = "f32"


def applies(s: Shape, read: Reader, machine: Machine) -> bool:
    """Whether the machine multiplies pairs, and the head dimension has them."""
    halves = all(read.kernel.buffer(b).dtype == "bf16" for b in (s.q, s.k, s.v))
    whole = machine.pairs is not None and machine.vector_bytes == 4 * machine.pairs.lanes
    return halves and whole and s.depth % 2 == 0


def build(s: Shape, read: Reader, machine: Machine, choose: Choose, kind: type[Block] | None = None) -> Stmt:
    """The loop nest; `kind` makes the statements of a block of queries (see `tile_attention`)."""
    width = lanes(machine)
    vectors = choose(
        "query_vectors", [v for v in (1, 2, 3, 4) if (v - 1) * width < s.queries], 2 if s.queries > width else 1
    )
    block = vectors * width
    blocks = -(-s.queries // block)
    task = Var("task")
    head = task // blocks
    qb = task % blocks if blocks > 1 else index(0)
    at = (kind or Block)(s, read, machine, choose, head // s.heads, head % s.heads, qb * block, vectors)
    qt = Buffer("qt", (s.depth // 2, block, 2), "bf16", "local")
    sc = Buffer("sc", (s.keys, block), F32, "local")
    p = Buffer("p", (-(-s.keys // 2), block, 2), "bf16", "local")
    vp = Buffer("vp", (-(-s.keys // 2), -(-s.width // width) * width, 2), "bf16", "local")
    body: Stmt = seq(at.pack(), *at.mask(), at.scores(), at.softmax(), at.pack_values(), at.weighted())
    mask = [Buffer(at.mask_in, sc.shape, F32, "local")] if at.mask_in != "sc" and mask_by_query(s) else []
    for b in (Buffer("inv", (block,), F32, "local"), vp, p, *mask, sc, qt):
        body = Alloc(b, body)
    return loop("task", s.batch * s.heads * blocks, body, "thread")


class Block:
    """The statements for one block of queries of one head."""

    #: where the rows of the mask are, as columns
    mask_in = "sc"

    def __init__(
        self, s: Shape, read: Reader, machine: Machine, choose: Choose, b: Expr, h: Expr, first: Expr, vectors: int
    ) -> None:
        self.s, self.read, self.machine, self.choose = s, read, machine, choose
        self.b, self.h, self.first, self.vectors = b, h, first, vectors
        assert machine.pairs is not None
        self.pairs, self.wide = machine.pairs, machine.pairs.lanes
        self.block = vectors * self.wide
        self.keys: Expr = index(s.keys)
        if s.causal and s.offset + self.block > 0:
            self.keys = minimum(self.keys, first + (self.block + s.offset))
        #: whether the number of keys may be odd, so that the last pair has only one
        self.odd = bool(s.keys % 2 or (s.causal and s.offset % 2))

    def lanes(self, body: Stmt) -> Stmt:
        return i_loops(self.wide, self.vectors, "i", body)

    @property
    def i(self) -> Expr:
        return Var("i_v") * self.wide + Var("i_l")

    def pack(self) -> Stmt:
        """The queries, transposed, pair by pair; what lies behind the last one is zero."""
        s, d, row, part = self.s, Var("d0"), Var("row"), Var("part")
        x = Load(s.q, (self.b, self.h, self.first + row, d * 2 + part), "bf16")
        pair = For("part", index(2), store("qt", (d, row, part), x, "pack"), "vector", 2)
        steps = next(n for n in (8, 4, 2, 1) if s.depth // 2 % n == 0)
        inner = loop("d_i", steps, substitute_vars(pair, {"d0": Var("d_o") * steps + Var("d_i")}), "unroll")
        copy = loop("d_o", s.depth // 2 // steps, inner)
        if s.queries % self.block == 0:
            return loop("row", self.block, copy)
        zero = Const(0.0, "bf16")
        behind = Store(tuple(Target("qt", (d, self.i, index(n)), zero) for n in (0, 1)), "behind")
        rows = minimum(self.block, index(s.queries) - self.first)
        return seq(loop("d0", s.depth // 2, self.lanes(behind)), For("row", rows, copy))

    # ---- scores ----

    def mask(self) -> list[Stmt]:
        s, to = self.s, self.mask_in
        return (
            [turned_mask(to, s, self.read, self.b, self.h, self.first, self.wide, self.block)]
            if mask_by_query(s)
            else []
        )

    def scores(self) -> Stmt:
        s, v = self.s, self.vectors
        most = (self.machine.vector_registers - 1 - v) // v
        best = best_tile(sized([s.keys], self.block, s.depth // 2, pair_sums(self.pairs, self.machine)), self.machine)
        rows = self.choose("score_rows", range(1, min(most, s.keys) + 1), min(best[0], most))
        j = Var("jt") * rows + Var("jr")
        acc, at = Buffer("acc", (rows, self.block), F32, "register"), (Var("jr"), self.i)
        extent = index(rows) if s.keys % rows == 0 else minimum(rows, index(s.keys) - Var("jt") * rows)

        def tile(body: Stmt) -> Stmt:
            return For("jr", extent, self.lanes(body), "unroll")

        pairs = []
        for part in (0, 1):
            pairs.append(Load(s.k, (self.b, self.h // s.group, j, Var("d1") * 2 + part), "bf16"))
            pairs.append(Load("qt", (Var("d1"), self.i, index(part)), "bf16"))
        total = add(Load("acc", at, F32), Op("dot2", tuple(pairs), F32))
        body = seq(
            tile(store("acc", at, Const(0.0, F32), "qk.init")),
            loop("d1", s.depth // 2, tile(store("acc", at, total, "qk"))),
            tile(store("sc", (j, self.i), self.masked(mul(Load("acc", at, F32), Const(s.scale, F32)), j), "score")),
        )
        return For("jt", ceildiv(self.keys, rows), Alloc(acc, body))

    def masked(self, value: Expr, j: Expr) -> Expr:
        s = self.s
        if mask_by_query(s):
            value = add(value, Load(self.mask_in, (j, self.i), F32))
        elif s.mask is not None:
            query = minimum(self.first + self.i, s.queries - 1)
            value = add(value, mask_of(s, self.read, self.b, self.h, query, j))
        if s.causal:
            seen = Op("cmpi.sle", (j, self.first + self.i + s.offset), "i1")
            value = Op("select", (seen, value, Const(float("-inf"), F32)), F32)
        return value

    # ---- softmax ----

    def softmax(self) -> Stmt:
        """Maximum, exponentials in pairs, and their sum over the keys, for every query lane."""
        top, total = (Buffer(n, (self.block,), F32, "register") for n in ("top", "total"))
        m, sum_ = Load("top", (self.i,), F32), Load("total", (self.i,), F32)
        infinity, zero = Const(float("-inf"), F32), Const(0.0, F32)
        finite = Op("select", (Op("cmpf.oeq", (m, infinity), "i1"), zero, m), F32)
        nonzero = Op("select", (Op("cmpf.oeq", (sum_, zero), "i1"), Const(1.0, F32), sum_), F32)
        score = Load("sc", (Var("j"), self.i), F32)  # not a number: the exponential will be none either
        highest = Op("select", (Op("cmpf.ogt", (score, m), "i1"), score, m), F32)
        jp = Var("jp")
        even, odd = self.exponential(jp * 2, m), self.exponential(jp * 2 + 1, m)
        if self.odd:
            there = Op("cmpi.slt", (jp * 2 + 1, self.keys), "i1")
            odd = Op("select", (there, self.exponential(minimum(jp * 2 + 1, self.keys - 1), m), zero), F32)
        rounded = [Target("p", (jp, self.i, index(n)), Op("truncf", (e,), "bf16")) for n, e in ((0, even), (1, odd))]
        pair = seq(Store(tuple(rounded), "exp"), store("total", (self.i,), add(sum_, add(even, odd)), "sum"))
        return Alloc(top, Alloc(total, seq(
            self.lanes(store("top", (self.i,), infinity, "max.init")),
            For("j", self.keys, self.lanes(store("top", (self.i,), highest, "max"))),
            self.lanes(store("top", (self.i,), finite, "max.finite")),
            self.lanes(store("total", (self.i,), zero, "sum.init")),
            For("jp", ceildiv(self.keys, 2), self.lanes(pair)),
            self.lanes(store("inv", (self.i,), Op("divf", (Const(1.0, F32), nonzero), F32), "inverse")),
        )))  # fmt: skip

    def exponential(self, j: Expr, m: Expr) -> Expr:
        return Op("exp", (Op("subf", (Load("sc", (j, self.i), F32), m), F32),), F32)

    # ---- the weighted sum of values ----

    def pack_values(self) -> Stmt:
        """The values in pairs of keys, up to whole vectors; zeros where there is none."""
        s, jp, e = self.s, Var("jp0"), Var("w_v") * self.wide + Var("w_l")
        targets = []
        for part in (0, 1):
            j = jp * 2 + part
            value: Expr = Load(s.v, (self.b, self.h // s.group, j, e), "bf16")
            tests = [Op("cmpi.slt", (j, index(s.keys)), "i1")] if part and s.keys % 2 else []
            tests += [Op("cmpi.slt", (e, index(s.width)), "i1")] if s.width % self.wide else []
            for test in tests:
                value = Op("guard", (test, value, Const(0.0, "bf16")), "bf16")
            targets.append(Target("vp", (jp, e, index(part)), value))
        body = i_loops(self.wide, -(-s.width // self.wide), "w", Store(tuple(targets), "values"))
        return For("jp0", ceildiv(self.keys, 2), body)

    def weighted(self) -> Stmt:
        """Queries are rows of the tile, the value dimension its lanes."""
        s, block = self.s, self.block
        product = sized([min(block, s.queries)], s.width, -(-s.keys // 2), pair_sums(self.pairs, self.machine))
        tiles = product.instruction.tiles(product.spans, s.width)
        height, _, vectors = self.choose("value_tile", tiles, best_tile(product, self.machine))
        columns = vectors * self.wide
        lane = Var("e_v") * self.wide + Var("e_l")
        e, i = Var("et") * columns + lane, Var("it") * height + Var("ir")
        acc, at = Buffer("oacc", (height, columns), F32, "register"), (Var("ir"), lane)
        rest: Expr = minimum(block, s.queries - self.first) if s.queries % block else index(block)
        ragged = block % height or s.queries % block
        row_extent = minimum(height, rest - Var("it") * height) if ragged else index(height)
        left: Expr = s.width - Var("et") * columns
        width = minimum(columns, left) if s.width % columns else index(columns)

        def over(body: Stmt, whole: bool = True) -> Stmt:
            extent = (
                index(self.wide)
                if whole or s.width % self.wide == 0
                else minimum(self.wide, width - Var("e_v") * self.wide)
            )
            lanes = For("e_l", extent, body, "vector", self.wide)
            return For("ir", row_extent, For("e_v", ceildiv(width, self.wide), lanes, "unroll"), "unroll")

        jp = Var("jp1")
        pairs = [
            x for n in (0, 1) for x in (Load("p", (jp, i, index(n)), "bf16"), Load("vp", (jp, e, index(n)), "bf16"))
        ]
        total = add(Load("oacc", at, F32), Op("dot2", tuple(pairs), F32))
        result = mul(Load("oacc", at, F32), Load("inv", (i,), F32))
        body = seq(
            over(store("oacc", at, Const(0.0, F32), "pv.init")),
            For("jp1", ceildiv(self.keys, 2), over(store("oacc", at, total, "pv"))),
            over(self.read.write(s.out, (self.b, self.h, self.first + i, e), result, "out"), whole=False),
        )
        return loop("et", -(-s.width // columns), For("it", ceildiv(rest, height), Alloc(acc, body)))
