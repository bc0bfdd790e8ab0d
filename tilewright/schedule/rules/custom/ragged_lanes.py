"""Ragged attention (`ragged_attention`) of blocks with many rows: rows lie in the lanes, and no sum runs across lanes.

    qt[d, i]     = scale * q[i, d]                              # transposed once
    s[j, i]      = sum_d ks[j, d] * qt[d, i]                    # a key's number is the same in all lanes
    top, shrink, total of the lanes i; s[j, i] = exp(s[j, i] - top[i])
    o[i, e]      = o[i, e] * shrink[i] + sum_j s[j, i] * vs[j, e]

Where queries, keys and values are bf16 and the machine multiplies pairs of these, so do both products; the weights are
rounded to bf16 for the second one only. Sums and the softmax are f32.
"""

from __future__ import annotations

from collections.abc import Callable

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, ceildiv, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import Alloc, For, Stmt, Store, loop, seq, store
from .nests import add, both, index, less, mul, select
from .ragged_attention import SUMS, Ragged, let, now


class RaggedLanes(Ragged):
    """The nest of a block of tokens, with the names of `Ragged`."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        super().__init__(kernel, machine)
        self.columns = -(-self.rows // self.lanes)  # vectors of rows
        #: whether products are of pairs of bf16
        self.paired = self.multiplies_pairs() and self.depth % 2 == 0
        self.kept = "bf16" if self.paired else self.dtype

    def scratch(self) -> list[Buffer]:
        width = self.columns * self.lanes
        deep, wide = self.depths * self.lanes, self.widths * self.lanes
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "qs": ((width, deep), self.dtype), "o": ((width, wide), self.dtype),
            "ks": ((self.lanes, deep), self.kept), "vs": ((self.keys, wide), self.kept),
            "qt": ((deep // 2, width, 2) if self.paired else (deep, width), self.kept),
            "s": ((self.keys, width), self.dtype), "places": ((width,), "i32"),
            **dict.fromkeys(("top", "total", "shrink"), ((width,), self.dtype)),
        }  # fmt: skip
        if self.paired:
            shapes["p"] = (self.keys // 2, width, 2), "bf16"
            shapes["vp"] = (self.keys // 2, wide, 2), "bf16"
        return [Buffer(n, shape, dtype, "local") for n, (shape, dtype) in shapes.items()]

    def over_lanes(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """`body` for all rows, those that there are not too."""
        lane = For("r_l", index(self.lanes), body(Var("r_v") * self.lanes + Var("r_l")), "vector", self.lanes)
        return loop("r_v", self.columns, lane, "unroll")

    # ---- before the keys ----

    def queries(self) -> Stmt:
        """The queries as columns, and the position of each."""
        i, d = Var("r_v") * self.lanes + Var("r_l"), Var("d_o") * self.lanes + Var("d_r")
        if self.paired:
            part = Var("part")
            value = Op("truncf", (self.f("qs", Var("row"), Var("d2") * 2 + part),), "bf16")
            pair = For("part", index(2), store("qt", (Var("d2"), Var("row"), part), value, "turn"), "vector", 2)
            turn: Stmt = For("row", self.all_rows, loop("d2", self.depths * self.lanes // 2, pair))
        else:
            lane = For("r_l", index(self.lanes), store("qt", (d, i), self.f("qs", i, d), "turn"), "vector", self.lanes)
            tile = loop("d_o", self.depths, loop("d_r", self.lanes, lane, "unroll"))
            turn = loop("r_v", self.columns, tile)
        position = Op("index_cast", (now("position") + Var("i"),), "i32")
        return seq(super().queries(), turn, self.over_rows(store("places", (self.row,), position, "place")))

    @property
    def all_rows(self) -> Expr:
        return minimum(self.rows, self.rows_there)

    # ---- a block of keys ----

    def block_of_keys(self) -> Stmt:
        there = minimum(self.keys, now("end") - now("key"))
        tile = seq(self.bring_keys(), self.scores())
        body = seq(For("kt", ceildiv(self.keys_there, self.lanes), tile), self.softmax(), self.bring_values())
        return let("keys", there, seq(body, self.weighted()))

    def scores(self) -> Stmt:
        """Of all rows with a part of the keys that were brought, at a time."""
        room = (self.machine.vector_registers - self.columns - 2) // self.columns
        height = next(n for n in (8, 4, 2, 1) if n <= max(room, 1) and self.lanes % n == 0)
        j, i = Var("jt") * height + Var("jr"), Var("r_v") * self.lanes + Var("r_l")
        sums, at = self.f("sums", Var("jr"), i), (Var("jr"), i)

        def tile(body: Stmt) -> Stmt:
            return loop("jr", height, self.over_lanes(lambda _: body), "unroll")

        if self.paired:
            pairs = [x for n in (0, 1) for x in (
                Load("ks", (j, Var("dd") * 2 + n), "bf16"), Load("qt", (Var("dd"), i, index(n)), "bf16"),
            )]  # fmt: skip
            product, steps = Op("dot2", tuple(pairs), self.dtype), self.depth // 2
        else:
            product, steps = mul(self.f("ks", j, Var("dd")), self.f("qt", Var("dd"), i)), self.depth  # type: ignore[assignment]
        body = seq(
            tile(store("sums", at, self.number(0.0), "qk.begin")),
            loop("dd", steps, tile(store("sums", at, add(sums, product), "qk"))),
            tile(store("s", (Var("kt") * self.lanes + j, i), sums, "score")),
        )
        buffer = Buffer("sums", (height, self.columns * self.lanes), self.dtype, "register")
        return loop("jt", self.lanes // height, Alloc(buffer, body))

    def seen_by_lanes(self, score: Expr, j: Expr, i: Expr) -> Expr:
        if self.softcap:
            score = mul(Op("tanh", (score,), self.dtype), self.number(self.softcap))
        at = Op("index_cast", (now("key") + j,), "i32")
        place = Load("places", (i,), "i32")
        sees: Expr = Op("cmpi.sle", (at, place), "i1")
        if self.window:
            first = Op("index_cast", (now("key") + j + self.window,), "i32")
            sees = both(sees, Op("cmpi.slt", (place, first), "i1"))
        if self.splits > 1:
            sees = both(sees, less(now("key") + j, now("end")))
        return select(sees, score, self.number(float("-inf")))

    def softmax(self) -> Stmt:
        infinity, zero = self.number(float("-inf")), self.number(0.0)

        def best(i: Expr) -> Expr:
            return self.f("best", i)

        def last(i: Expr) -> Expr:
            return self.f("last", i)

        def sums(i: Expr) -> Expr:
            return self.f("sum", i)

        def finite(i: Expr) -> Expr:
            return select(Op("cmpf.oeq", (best(i), infinity), "i1"), zero, best(i))

        def total(i: Expr) -> Expr:
            return add(mul(self.f("total", i), self.f("shrink", i)), sums(i))

        def shifted(x: Expr, i: Expr) -> Expr:
            return Op("exp", (Op("subf", (x, best(i)), self.dtype),), self.dtype)

        def score(i: Expr) -> Stmt:
            x = self.seen_by_lanes(self.f("s", Var("j"), i), Var("j"), i)
            most = select(Op("cmpf.ogt", (x, best(i)), "i1"), x, best(i))
            return Store((Target("s", (Var("j"), i), x), Target("best", (i,), most)), "seen")

        def weight(i: Expr) -> Stmt:
            if not self.paired:
                e = shifted(self.f("s", Var("j"), i), i)
                return Store((Target("s", (Var("j"), i), e), Target("sum", (i,), add(sums(i), e))), "weight")
            e, odd = (shifted(self.f("s", Var("j") * 2 + n, i), i) for n in (0, 1))
            halves = [Target("p", (Var("j"), i, index(n)), Op("truncf", (x,), "bf16")) for n, x in ((0, e), (1, odd))]
            return seq(Store(tuple(halves), "weight"), store("sum", (i,), add(sums(i), add(e, odd)), "sum"))

        count = ceildiv(self.keys_there, 2) * 2 if self.paired else self.keys_there
        body = seq(
            self.over_lanes(lambda i: store("last", (i,), self.f("top", i), "last")),
            self.over_lanes(lambda i: store("best", (i,), last(i), "best")),
            For("j", count, self.over_lanes(score)),
            self.over_lanes(lambda i: store("top", (i,), best(i), "top")),
            self.over_lanes(lambda i: store("best", (i,), finite(i), "finite")),
            self.over_lanes(lambda i: store("shrink", (i,), shifted(last(i), i), "shrink")),
            self.over_lanes(lambda i: store("sum", (i,), zero, "sum.begin")),
            For("j", ceildiv(self.keys_there, 2) if self.paired else self.keys_there, self.over_lanes(weight)),
            self.over_lanes(lambda i: store("total", (i,), total(i), "total")),
        )
        for name in ("best", "last", "sum"):
            body = Alloc(Buffer(name, (self.columns * self.lanes,), self.dtype, "register"), body)
        return body

    def weighted(self) -> Stmt:
        """Rows of a tile share what is read of the values."""
        columns = next(n for n in range(min(self.widths, SUMS // 4), 0, -1) if self.widths % n == 0)
        height = max(SUMS // columns, 1)
        height = next(n for n in range(height, 0, -1) if self.columns * self.lanes % n == 0)
        w, row, j = self.lanes, Var("rt") * height + Var("r"), Var("j")
        lane = Var("c") * w + Var("l")
        e, at = Var("ct") * (columns * w) + lane, (Var("r"), lane)

        def tile(body: Stmt) -> Stmt:
            return loop("r", height, loop("c", columns, self.lane(lambda _: body), "unroll"), "unroll")

        acc, before = self.f("acc", *at), None
        kept = mul(self.f("o", row, e), self.f("shrink", row))
        if self.paired:
            before = self.pairs_of_values()
            pairs = [
                x for n in (0, 1) for x in (Load("p", (j, row, index(n)), "bf16"), Load("vp", (j, e, index(n)), "bf16"))
            ]
            product, count = Op("dot2", tuple(pairs), self.dtype), ceildiv(self.keys_there, 2)
        else:
            product, count = mul(self.f("s", j, row), self.f("vs", j, e)), self.keys_there  # type: ignore[assignment]
        body = seq(
            tile(store("acc", at, kept, "o.shrink")),
            For("j", count, tile(store("acc", at, add(acc, product), "o"))),
            tile(store("o", (row, e), acc, "o.keep")),
        )
        body = Alloc(Buffer("acc", (height, columns * w), self.dtype, "register"), body)
        return seq(before, For("rt", ceildiv(self.all_rows, height), loop("ct", self.widths // columns, body)))

    def pairs_of_values(self) -> Stmt:
        """The values in pairs of keys; of the last one zeros, if there is none."""
        at = self.keys_there
        behind = For(
            "odd", at % 2, self.vectors("z", self.widths, lambda e: store("vs", (at, e), Const(0.0, "bf16"), "none"))
        )
        values = [Load("vs", (Var("jp") * 2 + n, Var("w_o") * self.lanes + Var("w_l")), "bf16") for n in (0, 1)]
        place = Var("jp"), Var("w_o") * self.lanes + Var("w_l")
        pair = Store(tuple(Target("vp", (*place, index(n)), x) for n, x in enumerate(values)), "pair")
        lane = For("w_l", index(self.lanes), pair, "vector", self.lanes)
        return seq(behind, For("jp", ceildiv(at, 2), loop("w_o", self.widths, lane, "unroll")))


__all__ = ["RaggedLanes"]
