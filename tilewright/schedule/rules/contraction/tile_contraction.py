"""Sums of products of bf16 or of bytes on registers that hold matrices (`machine.TileProduct`).

As `contraction`, but a register is a tile of 16 x 16 sums, and an instruction multiplies one of 16 rows by up to 64
bytes of the reduction with one of as many by 16 columns. Blocks of 2 x 2 such tiles make four products of four loads; a
narrow or a flat result takes 3 x 1 or 1 x 3. The sums of a block go through a piece of memory that stays in the
first-level cache, from which what follows them (bias, activation, residual, requantization) reads them in vectors.
Constant weights are packed to match, [columns][reduction][columns of the block][numbers of a group].

    for blocks of columns, blocks of rows:
      for k in K / 32:                                      # notes={'tiles': 'amx_bf16'}
        for m in 32: for n in 32: for q in 32: acc[m, n] += x[m, k, q] * w[k, q // 2, n, q % 2]
      for m in 32: for n in 32: y[m, n] = relu(acc[m, n] + bias[n])

The last block of rows or columns has tiles with fewer; the reduction advances by the largest step that divides it, for
a row that is cut off cannot be read to the end of the register.

A long reduction is cut into pieces for which 32 columns of weights and 32 rows fit the first-level cache together (256
long in bf16, 48 KiB); several blocks of rows pass over one piece, with their sums put aside in between.
"""

from __future__ import annotations

from math import prod

from ....tensor.expr import Load
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine, TileProduct
from ...planner.choose import choose_grouped
from ...planner.grouped import byte_factors, find_grouped
from ...planner.instructions import matrices
from ...planner.plan import Plan
from ...planner.product import Product
from ...planner.prologue import schedule_sum
from ...primitives.dots import product_of_halves
from ...schedule import Schedule

NAME = "tile-contraction"
PRIORITY = 15
#: fewer rows, or a smaller share of a register's row, are no faster than vectors
LEAST_ROWS, LEAST_SHARE = 4, 4


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not machine.tiles:
        return "the machine has no registers that hold matrices"

    def plan(s: Schedule, anchor: Stage) -> tuple[Plan, Product] | str:
        factors = _factors(s, anchor, machine.tiles)
        if isinstance(factors, str):
            return factors
        tile, x, w = factors
        found = find_grouped(s, anchor, (x, w), constant=True)
        if isinstance(found, str):
            return found
        run = found.runs[-1]
        steps = [k for k in range(tile.group, tile.depth + 1, tile.group) if anchor.extents[run] % k == 0]
        if not steps or max(steps) * LEAST_SHARE < tile.depth:
            return f"its runs of neighbours, {anchor.extents[run]}, do not divide into long steps"
        product = found.product(s, anchor, run, matrices(tile, max(steps), machine))
        if prod(product.spans) < LEAST_ROWS:
            return "it has too few rows"
        return choose_grouped(product, machine, s.sample_choice), product

    return schedule_sum(kernel, machine, decisions, plan, "pieces")


def _factors(s: Schedule, anchor: Stage, tiles: tuple[TileProduct, ...]) -> tuple[TileProduct, Load, Load] | str:
    """The instruction for a sum, and its factors; or why there is none."""
    halves = product_of_halves(s.store(anchor.name).targets[0])
    if halves is not None:
        x, w = halves
        assert isinstance(x, Load) and isinstance(w, Load)
        signs = ("f", "f")
    else:
        found = byte_factors(s, anchor)
        if found is None:
            return "not a sum of products of bf16 or of bytes"
        (first, x), (second, w) = found
        signs = (first, second)
    tile = next((t for t in tiles if (t.dtype, t.signs) == (x.dtype, signs)), None)
    return (tile, x, w) if tile is not None else f"the machine has no product of tiles of {x.dtype}"
