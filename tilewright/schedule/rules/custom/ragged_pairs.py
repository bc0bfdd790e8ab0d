"""Ragged attention (`ragged_attention`) of few rows where all operands are bf16 and the machine multiplies pairs of
these: keys are read where they lie, values as pairs of keys.

    s[r, j]   = scale * sum_d q[r, 2 d] * k[j, 2 d] + q[r, 2 d + 1] * k[j, 2 d + 1]
    p[r, j]   = exp(s[r, j] - top[r]), rounded to bf16; total is of what was not rounded
    o[r, e]   = o[r, e] * shrink[r] + sum_j p[r, 2 j] * v[2 j, e] + p[r, 2 j + 1] * v[2 j + 1, e]

Sums and the softmax are f32. A vector has as many keys as lie in one page at least, so that what is behind the last key
of a sequence is memory of the page, which the softmax does not see.
"""

from __future__ import annotations

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, ceildiv, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import For, If, Stmt, Store, loop, seq, store
from .nests import index, less, mul
from .ragged_attention import Ragged, let, now

BF16 = "bf16"


class RaggedPairs(Ragged):
    """The nest of a block of tokens, with the names of `Ragged`."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        super().__init__(kernel, machine)
        whole = self.depth % (2 * self.lanes) == 0 and self.width % self.lanes == 0
        #: whether it can be: rows are whole vectors, and so are the keys of a page
        self.serves = self.multiplies_pairs() and whole and self.run == self.lanes

    def scratch(self) -> list[Buffer]:
        halves = {
            "qs": (self.rows, self.depth), "p": (self.rows, self.keys), "vp": (self.keys // 2, self.width, 2),
        }  # fmt: skip
        rest = [b for b in super().scratch() if b.name not in ("qs", "ks", "vs")]
        return [*rest, *(Buffer(name, shape, BF16, "local") for name, shape in halves.items())]

    def query(self, x: Expr) -> Expr:
        return x

    def begin_rows(self) -> Stmt:
        """Also ask for what the first block reads."""
        n, at = Var("n"), now("begin") + Var("run") * self.run
        hints = [h for p in {self.k: 0, self.v or self.k: 0} for h in self.hints(p, now("page"), now("slot") + n)]
        none = store("p", (index(0), n), Const(0.0, BF16), "ahead")
        ahead = For("n", index(self.run), none, prefetch=tuple(hints))
        runs = let("page", self.page(at), let("slot", at % self.length, ahead))
        return seq(loop("run", self.keys // self.run, runs, "serial"), super().begin_rows())

    # ---- a block of keys ----

    def bring_keys(self) -> Stmt:
        """They stay where they are."""
        return seq()

    def block_of_keys(self) -> Stmt:
        there = minimum(self.keys, now("end") - now("key"))
        at = now("key") + Var("kt") * self.lanes
        scores = let("page", self.page(at), let("slot", at % self.length, self.over_rows(self.scores())))
        body = seq(
            For("kt", ceildiv(self.keys_there, self.lanes), scores),
            self.over_rows(self.softmax()),
            self.bring_values(),
            self.weighted(),
        )
        return let("keys", there, body)

    def products_of_key(self, d: Expr, j: Expr) -> tuple[Expr, int]:
        at = now("page"), now("slot") + j, now("head")
        queries = [Load("qs", (self.row, d * 2 + n), BF16) for n in (0, 1)]
        keys = [Load(self.k, (*at, d * 2 + n), BF16) for n in (0, 1)]
        return Op("dot2", (queries[0], keys[0], queries[1], keys[1]), self.dtype), self.depth // (2 * self.lanes)

    def seen(self, score: Expr, j: Expr) -> Expr:
        return super().seen(mul(score, self.number(self.scale)), j)

    def keep_weight(self, j: Expr, e: Expr, total: Target) -> Stmt:
        return Store((Target("p", (self.row, j), Op("truncf", (e,), BF16)), total), "weight")

    # ---- values ----

    def bring_values(self) -> Stmt:
        """Pairs of keys; the last has zeros where there is no second one. What the next block will read is asked for
        meanwhile."""
        pages, pair = self.v or self.k, Var("vj_n")
        slot, e = now("slot") + pair * 2, Var("e_o") * self.lanes + Var("e_l")
        at = now("key") + Var("vj") * self.run
        left = self.keys_there - Var("vj") * self.run

        def value(n: int) -> Expr:
            return Load(pages, (now("page"), slot + n, now("head"), e), BF16)

        def both(second: Expr) -> Stmt:
            place = Var("vj") * (self.run // 2) + pair, e
            stored = Store(
                (Target("vp", (*place, index(0)), value(0)), Target("vp", (*place, index(1)), second)), "pair"
            )
            lanes = For("e_l", index(self.lanes), stored, "vector", self.lanes)
            return loop("e_o", self.width // self.lanes, lanes, "unroll")

        hints = [
            h for n in (0, 1) for p in {self.k: 0, pages: 0} for h in self.hints(p, now("later"), slot + n)
        ]  # fmt: skip
        odd = If(less(pair * 2 + 1, left), both(value(1)), both(Const(0.0, BF16)))
        pairs = For("vj_n", ceildiv(minimum(self.run, left), 2), odd, prefetch=tuple(hints))
        rows = let("page", self.page(at), let("later", self.page(at + self.keys), let("slot", at % self.length, pairs)))
        return loop("vj", ceildiv(self.keys_there, self.run), rows)

    def products_of_value(self, j: Expr, row: Expr, e: Expr) -> tuple[Expr, Expr]:
        weights = [Load("p", (row, j * 2 + n), BF16) for n in (0, 1)]
        values = [Load("vp", (j, e, index(n)), BF16) for n in (0, 1)]
        pairs = Op("dot2", (weights[0], values[0], weights[1], values[1]), self.dtype)
        return pairs, ceildiv(self.keys_there, 2)


__all__ = ["RaggedPairs"]
