"""Sums of products with few results for what they read (a matrix times a vector, a layer of few filters): lanes run
along the sum itself, and are added up at its end.

    for tiles of rows and columns:                       # divided among threads
      for blocks of the reduction:
        tile[row, column, lanes] += x[row, lanes] * w[column, lanes]
      y[row, column] = the sum of the lanes of tile[row, column]

One column fills one lane of a vector of columns; along the sum all lanes are full. Both operands must lie along it,
constants are packed so. The price is adding up the lanes of every result, which a long sum hides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import log2, prod

from ....tensor.analysis import is_contraction
from ....tensor.expr import Load, Op, Var, variables, walk
from ....tensor.kernel import Stage
from ...machine import Machine, lanes
from ...nest import Store
from ...primitives.loops import simplify_bound
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides
from .row_lanes import TURN_IN, best_gain
from .tile_choice import choose_tile, tile_cost
from .tiles import pieces
from .turned import ROWS as TURNED
from .turned import lying_across

#: cycles that adding up the lanes of one result takes (measured)
ADD_UP = 2.5
#: cycles for a vector of lanes that lie apart in memory (measured: 16, and 64 where each lies in a page of its own)
APART = 16.0
#: cycles for a vector that comes from the second-level cache, where two rows are read at a time, or from further, with
#: four rows; STREAM of it more for every doubling of them, if rows are STREAMS lines long (measured: 2 to 4 rows are up
#: to 1.4 times as fast as 15)
FROM_L2, FROM_L3, STREAM, STREAMS = 1.4, 2.3, 0.1, 6
#: the estimated gain from which lanes along the sum may be tried, and from which they are the default
LITTLE, MUCH = 0.7, 1.1


@dataclass(frozen=True)
class Sums:
    """`k`: the loop of the reduction along which the lanes run. `loops`: the two loops of a tile of results, each of
    which moves one operand alone; there may be one, or none. `tile`: its extents."""

    k: str
    loops: list[str]
    tile: tuple[int, ...] = ()

    def schedule(self, s: Schedule, anchor: Stage, last: str, machine: Machine) -> Schedule:
        """Cut tiles of results, and let lanes run along the sum."""
        outer = [v for v, _ in anchor.parallel if v not in self.loops]
        sizes: dict[str, int] = {}
        for v, size in zip(self.loops, self.tile, strict=True):
            o, i = s.split(v, size)
            outer, sizes[i] = [*outer, o], size
        inner = sorted(sizes, key=lambda v: -sizes[v])  # what the innermost reads stays in registers
        _pack(s, anchor, self.k)
        k_o, k_i = s.split(self.k, lanes(machine))
        s.reorder(*outer, *[v for v in anchor.reduction if v != self.k], k_o, *inner, k_i)
        at = fuse_outer(s, outer)
        if at is None:
            raise ScheduleError("a single result", stage="schedule")
        combine = s.rfactor(anchor.name, k_i)
        s.set_scope(s.store(anchor.name).targets[0].buffer, "register")
        longest_last(s, combine, len(inner))
        for block in (anchor.name, combine):
            *rows, lane = s.loops(block)[-len(inner) - 1 :]
            for v in rows:
                s.unroll(v)
            s.vectorize(lane)
        for v in [v for v in s.reverse_compute_at(last, at) if v in s.loops()]:
            s.unroll(v)
        s.parallel(at)
        return s


def results_cost(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> float:
    """The estimated cycles with lanes along the results: along the columns (the loop `n`), or along rows."""
    extents, widest = anchor.extents, lanes(machine)
    depth = prod(extents[k] for k in anchor.reduction)
    others = prod(e for v, e in anchor.parallel if v not in (n, *rows[:1]))
    spans = [extents[m] for m in rows[:1]]
    tile = choose_tile(spans, extents[n], widest, machine.vector_registers, depth, machine)
    cost = tile_cost(spans, extents[n], widest, tile, depth, machine) * depth * others
    across = lying_across(s, anchor, n, 1)
    if across:  # turned round, or gathered
        many = prod(spans) >= TURNED
        return cost + (TURN_IN if many else APART) * depth * -(-extents[n] // widest) * others
    return cost / best_gain(s, anchor, n, rows, machine)


def find_sums(s: Schedule, anchor: Stage, machine: Machine) -> Sums | None:
    """How lanes may run along a sum of products, None if not: every operand must lie along it, or be packed so."""
    store, value = s.store(anchor.name), anchor.targets[0].value
    if not is_contraction(anchor) or not anchor.reduction:
        return None
    loads = {str(x): x for x, _ in load_strides(s, store, anchor.reduction[0])}
    if s.buffer(anchor.buffer).dtype != "f32" or any(isinstance(x, Op) and x.op == "guard" for x in walk(value)):
        return None
    if len(loads) != 2 or any(x.dtype != "f32" for x in loads.values()):
        return None
    for k in reversed(anchor.reduction):
        if anchor.extents[k] >= lanes(machine) > 1 and all(
            step == 1 or _packable(s, loads[name], k) for name, step in _steps(s, store, k).items()
        ):
            return Sums(k, _tile_loops(s, anchor, list(loads)))
    return None


def _steps(s: Schedule, store: Store, v: str) -> dict[str, int | None]:
    return {str(x): step for x, step in load_strides(s, store, v)}


def _packable(s: Schedule, x: Load, k: str) -> bool:
    """Whether a constant can be laid out with the loop `k` last."""
    plain = all(isinstance(i, Var) or not variables(i) for i in x.indices)
    return x.buffer in s.kernel.constants and plain and Var(k) in x.indices and x.buffer not in s.packs


def _tile_loops(s: Schedule, anchor: Stage, loads: list[str]) -> list[str]:
    """For each operand the longest loop over results that moves it alone."""
    found = []
    for x, y in (loads, loads[::-1]):
        steps = {v: _steps(s, s.store(anchor.name), v) for v, _ in anchor.parallel}
        alone = [v for v, step in steps.items() if step[x] != 0 and step[y] == 0]
        found += sorted(alone, key=lambda v: anchor.extents[v])[-1:]
    return found


def sum_lanes(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> Sums | None:
    """How lanes run along the sum, None if along columns (the loop `n`) or rows of the result; asked only where it may
    pay."""
    sums = find_sums(s, anchor, machine)
    if sums is None:
        return None
    cost, best = choose_results(s, anchor, sums, machine)
    other = results_cost(s, anchor, n, rows, machine)
    if other < LITTLE * cost or not s.sample_choice("sum_lanes", (True, False), other > MUCH * cost):
        return None
    return replace(sums, tile=tuple(s.sample_choice("results", tile_sizes(s, anchor, sums, machine), best)))


def choose_results(s: Schedule, anchor: Stage, sums: Sums, machine: Machine) -> tuple[float, tuple[int, ...]]:
    """The estimated cycles of the whole, and the tile of results (extents of `sums.loops`) to take.

    The cycles are those beside other orders of the lanes, for which operands come as fast. Tiles are compared by how
    their operands arrive: one that passes once in many rows at a time comes slower than in few."""
    spans = [anchor.extents[v] for v in sums.loops]
    width = lanes(machine)
    depth = prod(anchor.extents[v] for v in anchor.reduction)
    vectors = depth // anchor.extents[sums.k] * -(-anchor.extents[sums.k] // width)
    others = prod(n for v, n in anchor.parallel if v not in sums.loops)
    moved = [_moves(s, anchor, v) for v in sums.loops]
    fma, access, line = machine.fma, machine.access, machine.line_bytes
    load = access.load if depth * 4 % line == 0 else access.split_load

    def far(results: int) -> float:
        """Cycles for a load of what so many rows or columns of an operand hold, like those of `tile_cost`."""
        size = results * depth * 4
        return 0.0 if size <= machine.l1_bytes // 2 else 0.5 if size <= machine.l2_bytes // 2 else 1.0

    def arrives(tile: tuple[int, ...]) -> float:
        """Cycles until a tile's rows or columns are there that come from far, as a mean over its steps."""
        found = 0.0
        for d, (size, rows) in enumerate(zip(moved, tile, strict=True)):
            passes = prod(-(-spans[i] // tile[i]) for i in range(len(tile)) if i != d)
            if size > machine.l1_bytes and depth * 4 >= STREAMS * line:
                each, few = (FROM_L2, 2) if size <= machine.l2_bytes else (FROM_L3, 4)
                first = min(size / (spans[d] * depth * others * 4 * passes), 1.0)
                found = max(found, rows * first * each * (1 + STREAM * max(log2(rows / few), 0.0)))
        return found

    def cost(tile: tuple[int, ...], arrival: float = 0.0) -> float:
        # the last loop is the innermost: all of its operand passes again and again, and a tile of the other's stays
        again = [0.0, *map(far, spans[-1:])][-len(spans) :] if spans else []
        if len(spans) == 2 and spans[1] > tile[1]:
            again[0] = far(tile[0])
        found = 0.0
        for sizes in product(*(pieces(n, t) for n, t in zip(spans, tile, strict=True))):
            results, count = prod(t for t, _ in sizes), prod(n for _, n in sizes)
            loads = sum(t for t, _ in sizes) * load
            # multiply-adds, loads, and the latency of sums, unless the next tile's hide it while this one's data come
            step = max(results / fma.per_cycle, loads, arrival or fma.latency) + 0.15
            step += sum(t * c for (t, _), c in zip(sizes, again, strict=True))
            found += count * (step * vectors + ADD_UP * results)
        return found * others

    tiles = tile_sizes(s, anchor, sums, machine)
    return min(map(cost, tiles)), min(tiles, key=lambda tile: cost(tile, arrives(tile)))


def tile_sizes(s: Schedule, anchor: Stage, sums: Sums, machine: Machine) -> list[tuple[int, ...]]:
    """Tiles whose sums stay in registers, beside a vector of each row or column, and of no more of either than a vector
    of their sums has lanes. The last vectors of a constant that is all in one tile stay there too where they are
    partial: every tile needs the same, and LLVM keeps them."""
    spans = [anchor.extents[v] for v in sums.loops]
    partial = anchor.extents[sums.k] % lanes(machine) > 0
    kept = [partial and _moves_constant(s, anchor, v) for v in sums.loops]

    def needs(tile: tuple[int, ...]) -> int:
        whole = sum(t for t, n, k in zip(tile, spans, kept, strict=True) if k and t == n)
        return prod(tile) + min(tile, default=0) + 1 + whole

    sizes = list(product(*(range(1, min(n, lanes(machine)) + 1) for n in spans)))
    return [t for t in sizes if needs(t) < machine.vector_registers]


def _moves_constant(s: Schedule, anchor: Stage, v: str) -> bool:
    """Whether a loop over results moves an operand that is a constant."""
    return any(step != 0 and x.buffer in s.kernel.constants for x, step in load_strides(s, s.store(anchor.name), v))


def _moves(s: Schedule, anchor: Stage, v: str) -> int:
    """The bytes of the operands that a loop over results moves, without constants."""
    loads = load_strides(s, s.store(anchor.name), v)
    moved = {x.buffer for x, step in loads if step != 0} - s.kernel.constants
    return sum(s.buffer(b).size * 4 for b in moved)


def longest_last(s: Schedule, combine: str, count: int) -> None:
    """Let results along the longest of a tile's `count` loops lie side by side: their lanes are added up together."""
    *tile, lane = s.loops(combine)[-count - 1 :]
    target = s.store(combine).targets[0]
    if len(tile) < 2 or target.buffer not in s.temporaries:
        return
    tile.sort(key=lambda v: simplify_bound(s.loop(v)))
    s.reorder(*tile, lane)
    last = next(d for d, i in enumerate(target.indices) if tile[-1] in variables(i))
    s.set_order(target.buffer, (*(d for d in range(len(target.indices)) if d != last), last))


def _pack(s: Schedule, anchor: Stage, k: str) -> None:
    """Lay constants out with the loop `k` last."""
    store = s.store(anchor.name)
    for x, step in load_strides(s, store, k):
        if step != 1:
            d = x.indices.index(Var(k))
            s.pack(x.buffer, ((),) * len(x.indices), (*(i for i in range(len(x.indices)) if i != d), d))


__all__ = ["ADD_UP", "choose_results", "find_sums", "longest_last", "results_cost", "sum_lanes"]
