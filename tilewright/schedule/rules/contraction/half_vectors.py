"""Sums of products whose columns are a few whole vectors and half a vector, or less: two rows share the vector of
those (or four rows, a quarter each).

    for tiles of rows:                                  # 24 columns; divided among threads
      for k:
        for pairs of rows:
          tile[pair] += x[row, k] * w[k, 0 .. 15]       # for each of the two
          half[pair] += (x[row, k], x[row + 1, k]) * (w[k, 16 .. 23], w[k, 16 .. 23])
      y[rows, 0 .. 15] = relu(tile + bias)
      y[rows, 16 .. 23] = relu(half + bias)             # half a vector each

24 columns fill 75% of two vectors, for which every row takes two multiply-adds. Like this two rows take three. Where
columns fill more vectors than a tile has, all but the last panel of columns are as in any other sum of products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from ....tensor.analysis import is_contraction
from ....tensor.expr import Op, walk
from ....tensor.kernel import Stage
from ...machine import Machine, lanes
from ...schedule import Schedule
from ..common import fuse_outer, load_strides
from .cut_columns import cut_sizes, find_cut
from .sum_lanes import choose_results, find_sums, results_cost
from .tile_choice import MANY, STREAMS
from .tiles import SHORT, pack_columns, pieces, registers, to_pack, unroll_reduction

#: whole vectors of columns at most: of more, what is left is too little to gain by
VECTORS = 8
#: sums of so many products at least (measured: 2 to 5 are 0.8 to 1.3 times as fast as in tiles laid out whole), of
#: rows that lie so many numbers apart
LEAST = 6
#: vectors of so many lanes at least (of shorter ones nothing was measured)
LANES = 8
#: the estimated gain from which rows may share vectors, and from which they do
LITTLE, MUCH = 0.9, 1.02


@dataclass(frozen=True)
class Halves:
    """A sum of columns `n`, of which `left` are left over by whole vectors; so many rows `share` a vector of those.
    `rows` are its loops, innermost first, and `batch` is all else. A tile has `tile` rows and up to `vectors` whole
    vectors."""

    n: str
    left: int
    share: int
    rows: list[str]
    batch: list[str]
    tile: int = 2
    vectors: int = 1

    def of(self, tile: int, vectors: int) -> Halves:
        return replace(self, tile=tile, vectors=vectors)

    def schedule(self, s: Schedule, anchor: Stage, last: str, machine: Machine) -> Schedule:
        """Cut tiles of rows and panels of columns, and let rows share the vectors of the last one."""
        width, block, reduction = lanes(machine), anchor.name, list(anchor.reduction)
        tiles, m = s.split(self.rows[0], self.tile)
        outer = [*self.batch, *reversed(self.rows[1:]), tiles]
        panels, column = [], self.n
        if s.extent(self.n) > self.vectors * width:
            panel, column = s.split(self.n, self.vectors * width)
            panels = [panel]
        s.reorder(*outer, *panels, m, column, *reduction)
        copied = [v for v in s.reverse_compute_at(last, [*outer, *panels][-1]) if v in s.loops()]
        s.set_scope(s.store(block).targets[0].buffer, "register")
        tile = [m, column]
        if panels:
            loops = [*s.loops(block)[s.loops(block).index(panels[0]) :], *copied]
            second = dict(zip(loops, s.cut(panels[0], s.extent(panels[0]) - 1), strict=False))
            s.reorder(*reduction, *tile)
            registers(s, tile, width)
            registers(s, copied, width)
            unroll_reduction(s, reduction, SHORT, 4)
            tile, copied, reduction = ([second[v] for v in part] for part in (tile, copied, reduction))
        whole = s.extent(tile[1]) - self.left
        self._share(s, reduction, tile, whole, width)
        self._share(s, [], copied, whole, width)
        unroll_reduction(s, reduction, SHORT, 4)
        at = fuse_outer(s, outer)
        assert at is not None
        pack_columns(s, anchor, self.n, self.vectors * width)
        s.parallel(at)
        return s

    def _share(self, s: Schedule, outer: list[str], tile: list[str], whole: int, width: int) -> None:
        """Lay out a tile in vectors, inside the loops `outer`: for rows that share a vector first what they have of
        their own."""
        together, row = s.split(tile[0], self.share)
        column = tile[1]
        s.reorder(*outer, together, column, row)
        left, row_left, *_ = s.cut(column, whole)
        s.reorder(row, column)
        registers(s, [row, column], width)
        s.reorder(row_left, left)
        s.vectorize(s.fuse(row_left, left))
        s.unroll(together)


def half_vectors(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> Halves | None:
    """How rows of a sum share vectors for columns (the loop `n`) that are left over by whole ones, None if they do not;
    asked only where it may pay."""
    found = find_halves(s, anchor, n, rows, machine)
    if found is None:
        return None
    costs = {size: halves_cost(anchor, found.of(*size), machine) for size in _sizes(anchor, found, machine)}
    if not costs:
        return None
    best = min(costs, key=lambda x: costs[x] * _uneven(anchor, found.of(*x), machine))
    gain = _others_cost(s, anchor, n, rows, machine) / costs[best]
    if gain < LITTLE or not s.sample_choice("halves", (True, False), gain > MUCH):
        return None
    return found.of(*s.sample_choice("halves_tile", list(costs), best))


def _others_cost(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> float:
    """The estimated cycles of the best other way."""
    cost = results_cost(s, anchor, n, rows, machine)
    if sums := find_sums(s, anchor, machine):
        cost = min(cost, choose_results(s, anchor, sums, machine)[0])
    if cut := find_cut(s, anchor, n, rows, machine):
        cost = min([cost, *cut_sizes(s, anchor, cut, machine).values()])
    return cost


def find_halves(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> Halves | None:
    """The loops of a sum of two operands that is of this form; None if its columns leave over nothing or more than half
    a vector, have no whole one or many, or the operands are not so."""
    width, store, extents = lanes(machine), s.store(anchor.name), anchor.extents
    left = extents[n] % width
    if width < LANES or prod(extents[k] for k in anchor.reduction) < LEAST:
        return None
    if not is_contraction(anchor) or not rows or extents[rows[0]] < 2:
        return None
    if not 0 < left <= width // 2 or not width < extents[n] <= (VECTORS + 1) * width:
        return None
    loads = load_strides(s, store, n)
    moved, still = [(x, c) for x, c in loads if c != 0], [x for x, c in loads if c == 0]
    guarded = any(isinstance(x, Op) and x.op == "guard" for x in walk(anchor.targets[0].value))
    dtypes = {s.buffer(x.buffer).dtype for x, _ in loads} | {s.buffer(anchor.buffer).dtype}
    if guarded or len(moved) != 1 or len(still) != 1 or dtypes != {"f32"}:
        return None
    ((_, step),) = moved
    apart = next(c for x, c in load_strides(s, store, rows[0]) if x == still[0])
    if (step != 1 and not to_pack(s, anchor, n)) or apart is None or apart < LEAST:
        return None
    batch = [v for v, _ in anchor.parallel if v not in (n, *rows)]
    return Halves(n, left, 4 if left * 4 <= width else 2, rows, batch)


def _sizes(anchor: Stage, x: Halves, machine: Machine) -> list[tuple[int, int]]:
    """(rows of a tile, vectors of a panel) that fit the registers."""
    whole, rows = anchor.extents[x.n] // lanes(machine), anchor.extents[x.rows[0]]
    room = (
        machine.vector_registers * 27 // 32
    )  # of more LLVM keeps sums in memory where it lays out two steps (measured)
    sizes = []
    for v in range(2, min(whole, 5) + 2):
        last = whole % v if v <= whole else whole
        for t in range(2, min(rows, 24) + 1):
            fits = t * last + -(-t // x.share) + last + 1 + x.share <= room and (v > whole or t * v + v + 1 <= room)
            if last and fits and (t % x.share == 0 or t == rows):
                sizes.append((t, v))
    return sizes


def halves_cost(anchor: Stage, x: Halves, machine: Machine) -> float:
    """The estimated cycles of the whole; see `tile_cost`."""
    width, extents = lanes(machine), anchor.extents
    depth = prod(extents[k] for k in anchor.reduction)
    others = prod(extents[v] for v, _ in anchor.parallel if v not in (x.n, x.rows[0]))
    whole = extents[x.n] // width
    panels, last = (whole // x.vectors, whole % x.vectors) if x.vectors <= whole else (0, whole)
    write = (4 if panels else 2) / depth  # results leave in pieces of rows, or in whole rows

    def panel(vectors: int, shares: bool) -> float:
        """The cycles of a step of the reduction, for all tiles of rows."""
        size, cost = depth * (vectors + shares) * width * 4, 0.0
        load = 0.1 if size <= machine.l1_bytes else 0.25 if size <= machine.l2_bytes // 2 else 1.0
        for t, count in pieces(extents[x.rows[0]], x.tile):
            shared = -(-t // x.share) if shares else 0
            loads = (t + vectors + shares) * machine.access.load
            step = max(machine.fma.cycles(t * vectors + shared), loads) + 0.15 + 0.05 * t
            cost += count * (step + load * (vectors + shares) + write * (t * vectors + x.share * shared))
        return cost

    cost = (panels * panel(x.vectors, False) + panel(last, True)) * depth * others
    return cost * MANY if x.tile > STREAMS else cost


def _uneven(anchor: Stage, x: Halves, machine: Machine) -> float:
    """The rows of the thread that has most, over the mean."""
    rows = anchor.extents[x.rows[0]]
    tiles, others = -(-rows // x.tile), prod(n for v, n in anchor.parallel if v not in (x.n, x.rows[0]))

    def before(task: int) -> int:
        return task // tiles * rows + min(task % tiles * x.tile, rows)

    ends = [before(tiles * others * i // machine.cores) for i in range(machine.cores + 1)]
    return max(b - a for a, b in pairwise(ends)) * machine.cores / (rows * others)


__all__ = ["Halves", "find_halves", "half_vectors", "halves_cost"]
