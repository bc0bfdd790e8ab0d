"""Sums of products of bf16 with f32 sums, for machines that multiply pairs (`machine.PairProduct`).

As `contraction`: a tile of accumulators in registers, operands streamed past it. The reduction runs in pairs: in
memory the two elements of a pair must be neighbours. The operand that moves along the rows of the tile has them so (its
last dimension is the reduction); a constant operand is packed so, [k / 2][n][2]; another one is interleaved as it is
read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....tensor.expr import Const, Load, Op, Var, variables, walk
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine, PairProduct
from ...primitives.dots import product_of_halves
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, store_stride
from ..elementwise.elementwise import schedule_border
from .tile_choice import tile_candidates
from .tiles import Tile, around, join_readers, only_sum, pieces, prefetch_panels, registers

NAME = "bf16-contraction"
PRIORITY = 17


@dataclass(frozen=True)
class Loops:
    """What the loops of a contraction are: lanes, rows of the tile (innermost first), pairs of the reduction."""

    lanes: str
    rows: tuple[str, ...]
    pairs: str


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if machine.pairs is None:
        return "the machine has no instruction for pairs of bf16"
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    before, after, borders = around(kernel, anchor)
    s = Schedule(kernel, decisions=decisions)
    try:
        for p in before:
            s.inline(p.name)
        if product_of_halves(s.store(anchor.name).targets[0]) is None:
            return "not a sum of products of bf16"
        last = join_readers(s, anchor, after)
    except ScheduleError as e:
        return e.message
    loops = find_loops(s, anchor)
    if isinstance(loops, str):
        return loops
    _tile(s, anchor, last, loops, machine.pairs, machine)
    for b in borders:
        schedule_border(s, b.name, machine)
    return s


def find_loops(s: Schedule, anchor: Stage) -> Loops | str:
    """The loops that become lanes, rows and pairs, or why there are none."""
    store, parallel = s.store(anchor.name), [v for v, _ in anchor.parallel]
    if 0 in anchor.extents.values():
        return "a loop without iterations"
    factors = product_of_halves(store.targets[0])
    assert factors is not None
    reason = "no loop is contiguous in the result"
    for n in reversed(parallel):
        if store_stride(s, store, n) != 1:
            continue
        strides = {str(x): c for x, c in load_strides(s, store, n)}
        moving = [x for x in factors if strides[str(x)] == 0]
        columns = [x for x in factors if strides[str(x)] != 0]
        if len(moving) != 1 or len(columns) != 1:
            reason = "both operands move along the result"
            continue
        (row,), (column,) = moving, columns
        constant = isinstance(column, Load) and column.buffer in s.kernel.constants
        if not constant and strides[str(column)] != 1:
            reason = "its operand is not contiguous along the result"
            continue
        pairs = [
            k for k in anchor.reduction if anchor.extents[k] % 2 == 0 and dict(_strides(s, store, k)).get(str(row)) == 1
        ]
        if not pairs:
            return "no loop of the reduction has pairs of neighbours in the operand along the rows"
        along_m = lambda v: dict(_strides(s, store, v))  # noqa: E731
        rows = [v for v in reversed(parallel) if v != n and along_m(v)[str(column)] == 0 and along_m(v)[str(row)]]
        return Loops(n, tuple(rows), pairs[-1])
    return reason


def _strides(s: Schedule, store, var: str) -> list[tuple[str, int | None]]:
    return [(str(x), c) for x, c in load_strides(s, store, var)]


def _tile(s: Schedule, anchor: Stage, last: str, loops: Loops, pairs: PairProduct, machine: Machine) -> None:
    block, extents, n = anchor.name, anchor.extents, loops.lanes
    parallel = [v for v, _ in anchor.parallel]
    width = pairs.lanes
    depth = prod(extents[k] for k in anchor.reduction) // 2
    guarded = any(isinstance(x, Op) and x.op == "guard" for x in walk(s.store(block).targets[0].value))
    rows = () if guarded else loops.rows[:2]  # every guarded load is a branch: rows would multiply them
    row_extents = [extents[m] for m in rows]
    best = choose_tile(row_extents, extents[n], pairs, depth, machine)
    sizes = pair_tiles(row_extents, extents[n], pairs, machine)
    default = rows_inside(s, anchor, loops, machine)
    tile = Tile(*s.sample_choice("tile", sizes, (best.rows, best.outer_rows, best.vectors)))
    n_o, n_i = s.split(n, tile.vectors * width)
    m_o: list[str] = []
    m_i: list[str] = []
    used: list[str] = []
    for m, size in zip(rows, (tile.rows, tile.outer_rows), strict=False):
        if size > 1:
            o, i = s.split(m, size)
            m_o, m_i, used = [o, *m_o], [i, *m_i], [*used, m]
    others = [v for v in parallel if v != n and v not in used]
    k_o, k_i = s.split(loops.pairs, 2)
    reductions = [k_o if k == loops.pairs else k for k in anchor.reduction]
    batch = [v for v in others if all(c != 0 for _, c in load_strides(s, s.store(block), v))]
    rest = [v for v in others if v not in batch]
    inside = s.sample_choice("rows_inside", (True, False), default)
    outer = [*batch, *([n_o, *rest, *m_o] if inside else [*rest, *m_o, n_o])]
    s.reorder(*outer, *reductions, k_i, *m_i, n_i)
    _pack(s, anchor, loops, tile.vectors * width)
    s.dot(block, k_i)
    trips = {v: s.extent(v) for v in outer}
    at = fuse_outer(s, outer)
    assert at is not None
    new = s.reverse_compute_at(last, at)
    s.set_scope(anchor.buffer if anchor.buffer in s.temporaries else f"{anchor.buffer}_c", "register")
    for group in ([*m_i, n_i], [v for v in new if v in s.loops()]):
        registers(s, group, width)
    _unroll_reduction(s, [k for k in reductions if k in s.loops()])
    passes = prod(trips[v] for v in outer[1:]) if inside and not batch else 0
    prefetch_panels(s, anchor, loops.lanes, tile.vectors * width, at, passes, 2, machine)
    s.parallel(at)


def _unroll_reduction(s: Schedule, reductions: list[str]) -> None:
    """Lay out short inner reduction loops; of a long one, some steps at a time."""
    for k in reversed(reductions):
        if s.extent(k) > 2:
            break
        s.unroll(k)
    else:
        return
    factors = [f for f in (1, 2, 3, 4) if s.extent(k) % f == 0]
    factor = s.sample_choice("unroll", factors, max(f for f in factors if f <= 4))
    if factor > 1:
        s.unroll(s.split(k, factor)[1])


# ---- the tile ------------------------------------------------------------------------------------------------------


def choose_tile(rows: list[int], columns: int, pairs: PairProduct, depth: int, machine: Machine) -> Tile:
    """The register tile with the fewest estimated cycles for the whole result; `depth` is the number of pairs.

    A tile of r rows and v vectors issues r*v multiply-adds, v vector loads and r broadcasts, and cannot be faster than
    the latency of its sums. Vector loads cost more if the panel they walk is larger than the
    first-level cache.
    """
    best: tuple[float, Tile] | None = None
    for r, q, v in pair_tiles(rows, columns, pairs, machine):
        load = 0.1 if depth * v * 4 * pairs.lanes <= machine.l1_bytes else 0.3
        write = (2 if v * pairs.lanes >= columns else 4) / depth  # results leave in whole rows, or in pieces of rows
        cost = 0.0
        for tv, tn in pieces(-(-columns // pairs.lanes), v):
            for tr, rn in pieces(rows[0] if rows else 1, r):
                for tq, qn in pieces(rows[1] if len(rows) > 1 else 1, q):
                    t = tr * tq
                    step = max(pairs.rate.cycles(t * tv), (t + tv) * machine.access.load)
                    cost += tn * rn * qn * (step + 0.15 + 0.05 * t + load * tv + write * t * tv)
        if best is None or cost < best[0] - 1e-9:
            best = (cost, Tile(r, q, v))
    assert best is not None
    return best[1]


def pair_tiles(rows: list[int], columns: int, pairs: PairProduct, machine: Machine) -> list[tuple[int, int, int]]:
    """Register tiles of f32 sums that fit: (rows, outer rows, vectors)."""
    return tile_candidates(rows, columns, pairs.lanes, machine.vector_registers, most=28, short=5)


# ---- memory --------------------------------------------------------------------------------------------------------


def rows_inside(s: Schedule, anchor: Stage, loops: Loops, machine: Machine) -> bool:
    """Whether the row loop goes inside the column loop: if all rows' data stays in the second-level cache between
    columns, or is smaller than the other operand."""
    along = load_strides(s, s.store(anchor.name), loops.lanes)
    data = sum(s.buffer(x.buffer).size * 2 for x, c in along if c == 0)
    weights = sum(s.buffer(x.buffer).size * 2 for x, c in along if c != 0)
    return data <= machine.l2_bytes * 3 // 4 or weights > data


def _pack(s: Schedule, anchor: Stage, loops: Loops, block: int) -> None:
    """Pack a constant operand that depends on the lanes: tiles of `block` columns first, then the reduction in order,
    columns in pairs last.
    """
    for x in {str(y): y for y in walk(anchor.targets[0].value) if isinstance(y, Load)}.values():
        if x.buffer not in s.kernel.constants or x.buffer in s.packs:
            continue
        place = {next(iter(variables(i)), None): d for d, i in enumerate(x.indices)}
        if loops.lanes not in place or not all(isinstance(i, (Var, Const)) for i in x.indices):
            continue
        d, p = place[loops.lanes], place[loops.pairs]
        splits: list[tuple[int, ...]] = [()] * len(x.indices)
        splits[d], splits[p] = (block,), (2,)
        position = {i: i + (d < i) + (p < i) for i in range(len(x.indices))}
        reduced = [i for i in range(len(x.indices)) if i != d and variables(x.indices[i]) & set(anchor.reduction)]
        reduced.sort(key=lambda i: anchor.reduction.index(next(iter(variables(x.indices[i])))))
        kept = [i for i in range(len(x.indices)) if i != d and i not in reduced]
        first = [*kept, d, *reduced]
        s.pack(x.buffer, tuple(splits), (*[position[i] for i in first], position[d] + 1, position[p] + 1))
