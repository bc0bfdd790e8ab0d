"""The scores of attention on registers that hold matrices (`machine.TileProduct`); the rest is
`bf16_attention`.

The keys are the rows as they lie in memory, the transposed queries the columns: their pairs are what the instruction
takes. The sums of a block go to memory, where scale and mask are applied to them in vectors:

    for blocks of 32 keys:
      for d in depth / 32:  s[j, i] += k[j, d, q] * qt[d, q // 2, i, q % 2]       # notes={'tiles': 'amx_bf16'}
      s[j, i] = scale * s[j, i]  (+ mask)
"""

from __future__ import annotations

from ....tensor.expr import Const, Expr, Load, Op, Var, ceildiv, minimum
from ...machine import Machine, TileProduct
from ...nest import For, Stmt, loop, seq, store
from ..contraction.tile_contraction import LEAST_ROWS, LEAST_SHARE
from . import bf16_attention
from .attention import Reader, Shape
from .nests import add, index, mul

F32 = "f32"


def applies(s: Shape, read: Reader, machine: Machine) -> bool:
    """Whether `bf16_attention` does, the machine multiplies tiles of bf16, and the head dimension fills them."""
    product = _product(machine)
    if product is None or not bf16_attention.applies(s, read, machine) or s.keys < LEAST_ROWS:
        return False
    return _step(s, product) * LEAST_SHARE >= product.depth


def _product(machine: Machine) -> TileProduct | None:
    return next((t for t in machine.tiles if t.dtype == "bf16"), None)


def _step(s: Shape, product: TileProduct) -> int:
    """How much of the head dimension is one step."""
    return max((k for k in range(product.group, product.depth + 1, product.group) if s.depth % k == 0), default=0)


class Block(bf16_attention.Block):
    """The statements for one block of queries of one head."""

    #: products add up in the scores
    mask_in = "mt"

    def scores(self) -> Stmt:
        s, product = self.s, _product(self.machine)
        assert product is not None
        tiles = {1: 3, 2: 2, 3: 1}.get(self.vectors)  # of keys: sums and factors fill the registers
        if tiles is None:
            return super().scores()
        rows, step = tiles * product.rows, _step(s, product)
        j, q = Var("jt") * rows + Var("jr"), Var("d1") * step + Var("q")
        at: tuple[Expr, ...] = (j, Var("i"))
        extent = index(rows) if s.keys % rows == 0 else minimum(rows, index(s.keys) - Var("jt") * rows)
        key = Load(s.k, (self.b, self.h // s.group, j, q), "bf16")
        query = Load("qt", (q // product.group, Var("i"), q % product.group), "bf16")
        wide = [Op("extf", (x,), F32) for x in (key, query)]
        total = add(Load("sc", at, F32), mul(*wide))

        def tile(body: Stmt) -> Stmt:
            return For("jr", extent, loop("i", self.vectors * self.wide, body, "unroll"), "unroll")

        products = loop("d1", s.depth // step, tile(loop("q", step, store("sc", at, total, "qk"), "unroll")))
        score = self.masked(mul(Load("sc", (j, self.i), F32), Const(s.scale, F32)), j)
        body = seq(
            tile(store("sc", at, Const(0.0, F32), "qk.init")),
            For(products.var, products.extent, products.body, notes=(("tiles", product.name),)),
            For("jr", extent, self.lanes(store("sc", (j, self.i), score, "score"))),
        )
        return For("jt", ceildiv(self.keys, rows), body)
