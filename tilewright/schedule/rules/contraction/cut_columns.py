"""Sums of products with a few more columns than whole vectors: the loop over columns is cut. Lanes run along columns
that fill vectors, and along the sum for those that are left.

    for batches, runs of rows:                            # divided among threads
      wt[column, k] = w[k, column]                        # of the columns that are left
      for tiles of rows:
        tile = the sum of x[row, k] * w[k, columns]       # whole vectors
        y[rows, columns] = relu(tile + bias)
        part[row, column, lanes] += x[row, lanes] * wt[column, lanes]
        y[row, column] = relu(the sum of the lanes of part[row, column] + bias)

18 columns fill 56% of two vectors. Here 16 fill one, and two sums of 100 products are 7 vectors each, of rows that the
first part has brought into the first-level cache. The price is adding up the lanes of every result that is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ....tensor.analysis import is_contraction
from ....tensor.expr import Load, Op, Var, variables, walk
from ....tensor.kernel import Stage
from ...machine import Machine, lanes
from ...schedule import Schedule
from ..common import fuse_outer, load_strides
from .row_lanes import TURN_IN
from .sum_lanes import ADD_UP, choose_results, find_sums, longest_last, results_cost
from .tile_choice import tile_cost
from .tiles import SHORT, Tile, pack_columns, registers, unroll_reduction
from .turned import lying_across, turn

#: whole vectors of columns at most, and columns that are left
VECTORS, LEFT = 4, 6
#: cycles for a number of the columns that are left, which are turned round once for every run of rows
TURN = 1.0
#: the estimated gain from which a cut may be tried, and from which it is the default
LITTLE, MUCH = 0.9, 1.1


@dataclass(frozen=True)
class Cut:
    """The loops of a sum whose columns `n` are cut after `whole`: `rows`, innermost first, and `batch`, which is all
    else. `k` is the loop of the reduction along which lanes run for the columns that are left; their operand `w` is
    turned round for that, unless None. A tile has so many `tile` rows, in which the columns that are left are summed
    for `part` rows at a time."""

    n: str
    whole: int
    rows: list[str]
    batch: list[str]
    k: str
    w: Load | None
    tile: int = 1
    part: int = 1

    def schedule(self, s: Schedule, anchor: Stage, last: str, machine: Machine) -> Schedule:
        """Cut tiles of rows, and the columns in each."""
        block, width = anchor.name, lanes(machine)
        run, rows, m = self._rows(s, machine)
        panel, column = s.split(self.n, self.whole)
        s.reorder(*self.batch, run, *rows, panel, m, column, *anchor.reduction)
        copied = s.reverse_compute_at(last, panel)
        _, *_, left, last_left = s.cut(panel, 1)
        at = fuse_outer(s, [*self.batch, run])
        assert at is not None
        across = lying_across(s, anchor, column, 1)
        s.reorder(*anchor.reduction, m, column)
        s.set_scope(s.store(block).targets[0].buffer, "register")
        registers(s, [m, column], width)
        registers(s, [v for v in copied if v in s.loops()], width)
        unroll_reduction(s, list(anchor.reduction), SHORT, 4)
        self._sum_left(s, anchor, left, at, machine)
        for v in s.loops(last_left)[s.loops(last_left).index(s.loops(left)[len(rows) + 1]) + 1 :]:
            s.unroll(v)
        turn(s, anchor, across, at, machine)
        pack_columns(s, anchor, self.n, self.whole)
        s.parallel(at)
        return s

    def _rows(self, s: Schedule, machine: Machine) -> tuple[str, list[str], str]:
        """Split the rows: the loop over runs, those over tiles in a run, and the rows of a tile."""
        tiles, row = s.split(self.rows[0], self.tile)
        outer, *others = [*reversed(self.rows[1:]), tiles]
        run, inside = s.split(outer, -(-s.extent(outer) // _runs(s, self, machine)))
        return run, [inside, *others], row

    def _sum_left(self, s: Schedule, anchor: Stage, left: str, at: str, machine: Machine) -> None:
        """Let lanes run along the sum for the columns that are left."""
        m, column, *reduction = s.loops(left)[-2 - len(anchor.reduction) :]
        if self.w is not None:
            run = next(d for d, i in enumerate(self.w.indices) if self.k in variables(i))
            s.cache_read(left, self.w.buffer, at, order=(*(d for d in range(len(self.w.indices)) if d != run), run))
        k = reduction.pop(anchor.reduction.index(self.k))
        k_o, k_i = s.split(k, lanes(machine))
        parts = []
        if self.part < self.tile:
            part, m = s.split(m, self.part)
            parts = [part]
        s.reorder(*parts, *reduction, k_o, m, column, k_i)
        combine = s.rfactor(left, k_i)
        s.set_scope(s.store(left).targets[0].buffer, "register")
        longest_last(s, combine, 2)
        for block in (left, combine):
            *rows, lane = s.loops(block)[-3:]
            for v in rows:
                s.unroll(v)
            s.vectorize(lane)


def cut_columns(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> Cut | None:
    """Where the columns (the loop `n`) of a sum are cut, None if nowhere; asked only where it may pay."""
    cut = find_cut(s, anchor, n, rows, machine)
    if cut is None:
        return None
    sizes = cut_sizes(s, anchor, cut, machine)
    if not sizes:
        return None
    best = min(sizes, key=lambda x: sizes[x])
    other = results_cost(s, anchor, n, rows, machine)
    if sums := find_sums(s, anchor, machine):
        other = min(other, choose_results(s, anchor, sums, machine)[0])
    gain = other / sizes[best]
    if gain < LITTLE or not s.sample_choice("cut", (True, False), gain > MUCH):
        return None
    tile, part = s.sample_choice("cut_tile", list(sizes), best)
    return replace(cut, tile=tile, part=part)


def find_cut(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> Cut | None:
    """The loops of a sum of two operands, of which that of the rows lies along the sum; None if the columns fill their
    vectors, nearly do or are many, or the operands are not so."""
    width, store, value = lanes(machine), s.store(anchor.name), anchor.targets[0].value
    left = anchor.extents[n] % width
    whole = anchor.extents[n] - left
    if not is_contraction(anchor) or not rows or not 0 < left <= LEFT or not 0 < whole <= VECTORS * width:
        return None
    loads = load_strides(s, store, n)
    moved, still = [x for x, c in loads if c != 0], [x for x, c in loads if c == 0]
    guarded = any(isinstance(x, Op) and x.op == "guard" for x in walk(value))
    if guarded or len(moved) != 1 or len(still) != 1 or any(s.buffer(x.buffer).dtype != "f32" for x, _ in loads):
        return None
    (w,), (x,) = moved, still
    if s.buffer(anchor.buffer).dtype != "f32" or not all(isinstance(i, Var) or not variables(i) for i in w.indices):
        return None
    for k in reversed(anchor.reduction):
        step = {str(y): c for y, c in load_strides(s, store, k)}
        if anchor.extents[k] >= width and step[str(x)] == 1 and step[str(w)] is not None and Var(k) in w.indices:
            batch = [v for v, _ in anchor.parallel if v not in (n, *rows)]
            return Cut(n, whole, rows, batch, k, None if step[str(w)] == 1 else w)
    return None


def cut_sizes(s: Schedule, anchor: Stage, cut: Cut, machine: Machine) -> dict[tuple[int, int], float]:
    """The estimated cycles of all tiles that fit."""
    return {size: cut_cost(s, anchor, cut, *size, machine) for size in _sizes(s, anchor, cut, machine)}


def _sizes(s: Schedule, anchor: Stage, cut: Cut, machine: Machine) -> list[tuple[int, int]]:
    """(rows of a tile, rows for which the columns that are left are summed together) that fit the registers."""
    width, room = lanes(machine), machine.vector_registers
    vectors, left = cut.whole // width, anchor.extents[cut.n] - cut.whole
    most = min(anchor.extents[cut.rows[0]], width)
    rows = [r for r in range(1, most + 1) if r * vectors + vectors + 1 <= room]
    return [(r, t) for r in rows for t in range(1, r + 1) if r % t == 0 and t * left + min(t, left) + 1 < room]


def cut_cost(s: Schedule, anchor: Stage, cut: Cut, tile: int, part: int, machine: Machine) -> float:
    """The estimated cycles of the whole with tiles of so many rows; see `tile_cost` and `choose_results`."""
    width, extents = lanes(machine), anchor.extents
    left, depth, rows = extents[cut.n] - cut.whole, prod(extents[k] for k in anchor.reduction), extents[cut.rows[0]]
    others = prod(extents[v] for v, _ in anchor.parallel if v not in (cut.n, cut.rows[0]))
    first = tile_cost([rows], cut.whole, width, Tile(tile, 1, cut.whole // width), depth, machine) * depth
    vectors = depth // extents[cut.k] * -(-extents[cut.k] // width)
    access = machine.access
    load = access.load if extents[cut.k] * 4 % machine.line_bytes == 0 else access.split_load
    step = max(machine.fma.cycles(part * left), (part + left) * load) + 0.15
    second = -(-rows // part) * (step * vectors + ADD_UP * part * left)
    turned = TURN * left * depth if cut.w is not None else TURN_IN * depth * cut.whole / width
    times = _runs(s, cut, machine) * prod(s.extent(v) for v in cut.batch)
    return (first + second) * others + turned * times


def _runs(s: Schedule, cut: Cut, machine: Machine) -> int:
    """How many runs the rows are taken in, for every step of the batch: so many that all cores have some."""
    return -(-machine.cores // prod(s.extent(v) for v in cut.batch))


__all__ = ["Cut", "cut_columns", "cut_sizes", "find_cut"]
