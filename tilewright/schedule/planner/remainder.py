"""Forms of plans with loops of their own: lanes along the reduction, and columns beyond whole vectors that are peeled
or share vectors."""

from __future__ import annotations

from ...tensor.expr import Var, variables
from ..primitives.loops import simplify_bound
from ..rules.common import fuse_outer
from ..schedule import Schedule, ScheduleError
from .cycles import peeled_runs
from .product import Peeled
from .steps import Sum, registers
from .transpose import transpose_operands


def along_k(x: Sum) -> None:
    """Few results for what they read (a matrix times a vector, a layer of few filters): lanes run along the sum itself,
    and are added up at its end.

        for tiles of rows and columns:                       # divided among threads
          for blocks of the reduction:
            tile[row, column, lanes] += x[row, lanes] * w[column, lanes]
          y[row, column] = the sum of the lanes of tile[row, column]

    One column fills one lane of a vector of columns; along the sum all lanes are full. Both operands must lie along it,
    constants are packed so. The price is adding up the lanes of every result, which a long sum hides."""
    s, found = x.s, x.product.along_k
    assert found is not None
    outer = [v for v in x.product.parallel if v not in found.loops]
    sizes: dict[str, int] = {}
    for v, size in zip(found.loops, x.plan.tile, strict=True):
        o, i = s.split(v, size)
        outer, sizes[i] = [*outer, o], size
    inner = sorted(sizes, key=lambda v: -sizes[v])  # what the innermost reads stays in registers
    for y in found.packed:
        d, n = y.load.indices.index(Var(found.k)), len(y.shape)
        s.pack(y.load.buffer, ((),) * n, (*(i for i in range(n) if i != d), d))
    k_o, k_i = s.split(found.k, x.product.width)
    s.reorder(*outer, *[v for v in x.product.reduction if v != found.k], k_o, *inner, k_i)
    at = fuse_outer(s, outer)
    if at is None:
        raise ScheduleError("a single result", stage="schedule")
    _lanes_of_sums(s, x.block, k_i, len(inner))
    for v in [v for v in s.reverse_compute_at(x.last, at) if v in s.loops()]:
        s.unroll(v)
    s.parallel(at)


def _lanes_of_sums(s: Schedule, block: str, lane: str, tile: int) -> None:
    """Let each lane of the loop `lane` sum up by itself, for the `tile` loops around it, and add the lanes up."""
    combine = s.rfactor(block, lane)
    s.set_scope(s.store(block).targets[0].buffer, "register")
    _longest_last(s, combine, tile)
    for b in (block, combine):
        *rows, vector = s.loops(b)[-tile - 1 :]
        for v in rows:
            s.unroll(v)
        s.vectorize(vector)


def _longest_last(s: Schedule, combine: str, count: int) -> None:
    """Let results along the longest of a tile's `count` loops lie side by side: their lanes are added up together."""
    *tile, lane = s.loops(combine)[-count - 1 :]
    target = s.store(combine).targets[0]
    if len(tile) < 2 or target.buffer not in s.temporaries:
        return
    tile.sort(key=lambda v: simplify_bound(s.loop(v)))
    s.reorder(*tile, lane)
    last = next(d for d, i in enumerate(target.indices) if tile[-1] in variables(i))
    s.set_order(target.buffer, (*(d for d in range(len(target.indices)) if d != last), last))


# ---- peeled columns ------------------------------------------------------------------------------------------------


def peel(x: Sum) -> None:
    """A few more columns than whole vectors: lanes run along columns that fill vectors, and along the sum for those
    beyond.

        for batches, runs of rows:                            # divided among threads
          wt[column, k] = w[k, column]                        # of the columns beyond
          for tiles of rows:
            tile = the sum of x[row, k] * w[k, columns]       # whole vectors
            y[rows, columns] = relu(tile + bias)
            part[row, column, lanes] += x[row, lanes] * wt[column, lanes]
            y[row, column] = relu(the sum of the lanes of part[row, column] + bias)

    18 columns fill 56% of two vectors. Here 16 fill one, and two sums of 100 products are 7 vectors each, of rows that
    the first part has brought into the first-level cache. The price is adding up the lanes of every result beyond."""
    s, product, plan, found = x.s, x.product, x.plan, x.product.peeled
    assert found is not None
    across = product.across(product.columns, 1)
    tiles, m = s.split(product.rows[0], plan.tile[0])
    first, *others = [*reversed(product.rows[1:]), tiles]
    run, inside = s.split(first, -(-s.extent(first) // peeled_runs(product, x.machine)))
    rows = [inside, *others]
    panel, column = s.split(product.columns, found.whole)
    s.reorder(*product.outer, run, *rows, panel, m, column, *product.reduction)
    copied = s.reverse_compute_at(x.last, panel)
    _, *_, left, last_left = s.cut(panel, 1)
    at = fuse_outer(s, [*product.outer, run])
    assert at is not None
    s.reorder(*product.reduction, m, column)
    s.set_scope(x.sums, "register")
    registers(s, [m, column], product.width)
    registers(s, [v for v in copied if v in s.loops()], product.width)
    x.unroll(list(product.reduction))
    _sum_beyond(x, found, left, at)
    for v in s.loops(last_left)[s.loops(last_left).index(s.loops(left)[len(rows) + 1]) + 1 :]:
        s.unroll(v)
    transpose_operands(s, x.anchor, across, at, x.machine)
    x.pack(product.columns, found.whole)
    s.parallel(at)


def _sum_beyond(x: Sum, found: Peeled, left: str, at: str) -> None:
    """Let lanes run along the sum for the columns beyond whole vectors."""
    s, reduced = x.s, x.product.reduction
    m, column, *reduction = s.loops(left)[-2 - len(reduced) :]
    if found.w is not None:
        indices = found.w.indices
        run = next(d for d, i in enumerate(indices) if found.k in variables(i))
        s.cache_read(left, found.w.buffer, at, order=(*(d for d in range(len(indices)) if d != run), run))
    k = reduction.pop(reduced.index(found.k))
    k_o, k_i = s.split(k, x.product.width)
    parts = []
    if x.plan.share < x.plan.tile[0]:
        part, m = s.split(m, x.plan.share)
        parts = [part]
    s.reorder(*parts, *reduction, k_o, m, column, k_i)
    _lanes_of_sums(s, left, k_i, 2)


# ---- columns that share vectors ------------------------------------------------------------------------------------


def share(x: Sum) -> None:
    """Columns that are a few whole vectors and half a vector, or less: two rows share the vector of those beyond (or
    four rows, a quarter each).

        for tiles of rows:                                  # 24 columns; divided among threads
          for k:
            for pairs of rows:
              tile[pair] += x[row, k] * w[k, 0 .. 15]       # for each of the two
              half[pair] += (x[row, k], x[row + 1, k]) * (w[k, 16 .. 23], w[k, 16 .. 23])
          y[rows, 0 .. 15] = relu(tile + bias)
          y[rows, 16 .. 23] = relu(half + bias)             # half a vector each

    24 columns fill 75% of two vectors, for which every row takes two multiply-adds. Like this two rows take three.
    Where columns fill more vectors than a tile has, all but the last panel are as in any other sum of products."""
    s, product, width = x.s, x.product, x.product.width
    reduction, left = list(product.reduction), product.n % width
    rows, _, vectors = x.plan.tile
    tiles, m = s.split(product.rows[0], rows)
    outer = [*product.outer, *reversed(product.rows[1:]), tiles]
    panels, column = [], product.columns
    if product.n > vectors * width:
        panel, column = s.split(column, vectors * width)
        panels = [panel]
    s.reorder(*outer, *panels, m, column, *reduction)
    copied = [v for v in s.reverse_compute_at(x.last, [*outer, *panels][-1]) if v in s.loops()]
    s.set_scope(x.sums, "register")
    tile = [m, column]
    if panels:
        loops = [*s.loops(x.block)[s.loops(x.block).index(panels[0]) :], *copied]
        second = dict(zip(loops, s.cut(panels[0], s.extent(panels[0]) - 1), strict=False))
        s.reorder(*reduction, *tile)
        registers(s, tile, width)
        registers(s, copied, width)
        x.unroll(reduction)
        tile, copied, reduction = ([second[v] for v in part] for part in (tile, copied, reduction))
    whole = s.extent(tile[1]) - left
    _share(x, reduction, tile, whole)
    _share(x, [], copied, whole)
    x.unroll(reduction)
    at = fuse_outer(s, outer)
    assert at is not None
    x.pack(product.columns, vectors * width)
    s.parallel(at)


def _share(x: Sum, outer: list[str], tile: list[str], whole: int) -> None:
    """Lay out a tile in vectors, inside the loops `outer`: for rows that share a vector first what they have of their
    own."""
    s = x.s
    together, row = s.split(tile[0], x.plan.share)
    column = tile[1]
    s.reorder(*outer, together, column, row)
    beyond, row_beyond, *_ = s.cut(column, whole)
    s.reorder(row, column)
    registers(s, [row, column], x.product.width)
    s.reorder(row_beyond, beyond)
    s.vectorize(s.fuse(row_beyond, beyond))
    s.unroll(together)


__all__ = ["along_k", "peel", "share"]
