"""Sums of products of 8-bit numbers, for machines with an instruction for them (`machine.DotProduct`).

As `contraction`: a tile of sums in registers, operands streamed past it. The reduction advances by the `depth` of the
instruction, along numbers that are neighbours in the operand of the rows (the channels of a channels-last image, or a
row of a window); constant weights are packed to match, [columns][reduction][columns of the tile][depth], so that the
loop reads them front to back.

    for rows, columns of tiles:
      for k in K / 4:
        for r in 13: for v in 2: for l in vector(16): for q in unroll(4, notes={'dot': ...}):
          acc[r, v, l] += x[r, k, q] * w[k, v, l, q]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....tensor.expr import Const, Load, Op, Var
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...legality import is_update
from ...machine import DotProduct, Machine
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, store_stride
from ..elementwise.elementwise import schedule_border
from .tiles import around, join_readers, only_sum, pack_weights, pieces

NAME = "integer-contraction"
PRIORITY = 16


@dataclass(frozen=True)
class Loops:
    """What the loops are: columns (contiguous in the result), rows of the tile (innermost first), the run of numbers
    that the instruction takes `depth` of, and the weights."""

    columns: str
    rows: tuple[str, ...]
    run: str
    weights: Load


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    dots = machine.dot_products
    if not dots:
        return "the machine has no instruction for sums of products of bytes"
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    before, after, borders = around(kernel, anchor)
    s = Schedule(kernel, decisions=decisions)
    try:
        for p in before:
            s.inline(p.name)
        found = factors(s, anchor)
        if found is None:
            return "not a sum of products of bytes"
        dot = next((d for d in dots if d.signs == tuple(sign for sign, _ in found)), None)
        if dot is None:
            return "the machine's instructions multiply bytes of other signedness"
        loops = _find_loops(s, anchor, found[0][1], found[1][1], dot)
        if isinstance(loops, str):
            return loops
        last = join_readers(s, anchor, after)
        _tile(s, anchor, last, loops, dot, machine)
    except ScheduleError as e:
        return e.message
    for b in borders:
        schedule_border(s, b.name, machine)
    return s


def factors(s: Schedule, anchor: Stage) -> tuple[tuple[str, Load], tuple[str, Load]] | None:
    """(signedness, bytes) of both factors of ``acc + ext(x) * ext(w)``, the constant one last."""
    t = s.store(anchor.name).targets[0]
    v = t.value
    if not (is_update(t) and isinstance(v, Op) and v.op == "addi"):
        return None
    product = next(a for a in v.args if not (isinstance(a, Load) and a.buffer == t.buffer))
    if not (isinstance(product, Op) and product.op == "muli" and len(product.args) == 2):
        return None
    found = []
    for a in product.args:
        if not (isinstance(a, Op) and a.op in ("extsi", "extui") and isinstance(a.args[0], Load)):
            return None
        if a.args[0].dtype != "i8":
            return None
        found.append((a.op[3], a.args[0]))
    x, w = found
    return (w, x) if x[1].buffer in s.kernel.constants else (x, w)


def _find_loops(s: Schedule, anchor: Stage, x: Load, w: Load, dot: DotProduct) -> Loops | str:
    if w.buffer not in s.kernel.constants or x.buffer in s.kernel.constants:
        return "its weights are not constant"
    if not all(isinstance(i, (Var, Const)) for i in w.indices):
        return "its weights are not read in whole rows"
    store, parallel = s.store(anchor.name), [v for v, _ in anchor.parallel]

    def stride(load: Load, v: str) -> int | None:
        return {str(y): c for y, c in load_strides(s, store, v)}[str(load)]

    columns = [v for v in parallel if store_stride(s, store, v) == 1 and stride(x, v) == 0 and stride(w, v)]
    if not columns:
        return "its operand moves along the contiguous loop of the result"
    runs = [k for k in anchor.reduction if stride(x, k) == 1 and stride(w, k)]
    if not runs:
        return "no loop of the reduction has neighbours in the operand along the rows"
    n = columns[-1]
    rows = tuple(v for v in reversed(parallel) if v != n and stride(w, v) == 0 and stride(x, v))
    if dot.lanes and anchor.extents[runs[-1]] < 3:
        return "its runs of neighbours are too short"
    return Loops(n, rows, runs[-1], w)


def _tile(s: Schedule, anchor: Stage, last: str, loops: Loops, dot: DotProduct, machine: Machine) -> None:
    block, extents, n = anchor.name, anchor.extents, loops.columns
    parallel = [v for v, _ in anchor.parallel]
    width, copied = max(dot.lanes, 1), None
    if dot.lanes == 0 and machine.vector_bytes >= 16 and s.store(last).targets[0].buffer != anchor.buffer:
        copied = s.cache_write(block)  # sums go from scalar registers into memory, where vectors can read them
    steps = prod(extents[k] for k in anchor.reduction if k != loops.run) * -(-extents[loops.run] // dot.depth)
    sizes = tile_candidates([extents[m] for m in loops.rows[:2]], extents[n], dot)
    best = choose_tile([extents[m] for m in loops.rows[:2]], extents[n], dot, steps, machine)
    rows, outer_rows, vectors = s.sample_choice("tile", sizes, best)
    default = _rows_inside(s, anchor, loops, machine)
    n_o, n_i = s.split(n, vectors * width)
    m_o: list[str] = []
    m_i: list[str] = []
    used: list[str] = []
    for m, size in zip(loops.rows[:2], (rows, outer_rows), strict=False):
        if size > 1:
            o, i = s.split(m, size)
            m_o, m_i, used = [o, *m_o], [i, *m_i], [*used, m]
    k_o, k_i = s.split(loops.run, dot.depth)
    reductions = [k_o if k == loops.run else k for k in anchor.reduction]
    others = [v for v in parallel if v != n and v not in used]
    batch = [v for v in others if all(c != 0 for _, c in load_strides(s, s.store(block), v))]
    rest = [v for v in others if v not in batch]
    inside = s.sample_choice("rows_inside", (True, False), default)
    outer = [*batch, *([n_o, *rest, *m_o] if inside else [*rest, *m_o, n_o])]
    s.reorder(*outer, *reductions, *m_i, n_i, k_i)
    pack_weights(s, anchor, loops.weights, n, loops.run, vectors * width, dot.depth)
    s.unroll(k_i)
    s.annotate(k_i, "dot", dot.name)
    at = fuse_outer(s, outer)
    assert at is not None
    sums = anchor.buffer if anchor.buffer in s.temporaries and copied is None else f"{anchor.buffer}_c"
    if copied is not None:
        around = s.reverse_compute_at(copied, at)
    new = s.reverse_compute_at(last, at)
    s.set_scope(sums, "register")
    _registers(s, [*m_i, n_i], width if dot.lanes else 1)
    if copied is not None:
        _registers(s, [v for v in around if v in s.loops()], 1)
        _registers(s, [v for v in new if v in s.loops()], machine.vector_bytes // 4)
    else:
        _registers(s, [v for v in new if v in s.loops()], width if dot.lanes else 1)
    _unroll_reduction(s, [k for k in reductions if k in s.loops()], rows * outer_rows * vectors, dot)
    s.parallel(at)


def _registers(s: Schedule, loops: list[str], width: int) -> None:
    """The loops over the tile: rows laid out, the last one in vectors."""
    if not loops:
        return
    *rows, n = loops
    for m in rows:
        s.unroll(m)
    if width == 1:
        s.unroll(n)
        return
    vector, lane = s.split(n, width)
    s.unroll(vector)
    s.vectorize(lane)


def _unroll_reduction(s: Schedule, reductions: list[str], sums: int, dot: DotProduct) -> None:
    """Lay out a few steps of the innermost reduction loop: code stays small where there are no vectors."""
    most = 4 if dot.lanes else max(1, 8 // sums)
    for k in reversed(reductions):
        extent = s.extent(k)
        if 1 < extent <= most:
            s.unroll(k)
            most //= extent
            continue
        factor = max(f for f in (1, 2, 3, 4) if extent % f == 0 and f <= most)
        factor = s.sample_choice("unroll", [f for f in (1, 2, 3, 4) if extent % f == 0], factor)
        if factor > 1:
            s.unroll(s.split(k, factor)[1])
        return


# ---- the tile ------------------------------------------------------------------------------------------------------


def tile_candidates(rows: list[int], columns: int, dot: DotProduct) -> list[tuple[int, int, int]]:
    """Tiles that fit the registers: (rows, outer rows, vectors or columns)."""
    inner, outer = (*rows, 1, 1)[:2]
    width = max(dot.lanes, 1)
    room = dot.rows * dot.columns
    found = []
    for v in range(1, max(dot.columns, 4) + 1):
        if v > 1 and (v - 1) * width >= columns:
            break
        for r in range(1, min(inner, room) + 1):
            for q in range(1, min(outer, 4) + 1) if r == inner else (1,):
                if r * q * v <= room:
                    found.append((r, q, v))
    return found


def choose_tile(rows: list[int], columns: int, dot: DotProduct, steps: int, machine: Machine) -> tuple[int, int, int]:
    """The tile with the least work for the whole result: multiply-adds, loads, and for each
    tile its start and end; `steps` is the number of steps of the reduction."""
    width = max(dot.lanes, 1)
    inner, outer = (*rows, 1, 1)[:2]

    def cost(tile: tuple[int, int, int]) -> float:
        r, q, v = tile
        total = 0.0
        for tv, tn in pieces(-(-columns // width), v):
            for tr, rn in pieces(inner, r):
                for tq, qn in pieces(outer, q):
                    t = tr * tq
                    if dot.lanes:
                        step = max(dot.rate.cycles(t * tv), (t + tv) * machine.access.load) + 0.2
                    else:  # one instruction at a time: unpacking and loading of t + tv words, t * tv products
                        step = 3 * (t + tv) + 2 * t * tv + 2 if dot.depth == 4 else (t + tv) + t * tv + 1
                    end = 4 * t * tv if dot.lanes else 12 * t * (tv if dot.depth == 4 else 0.2 * tv + -(-tv // 4))
                    total += tn * rn * qn * (steps * step + 8 + end)
        return total

    return min(tile_candidates(rows, columns, dot), key=lambda t: (cost(t), t))


def _rows_inside(s: Schedule, anchor: Stage, loops: Loops, machine: Machine) -> bool:
    """Whether the rows pass inside the columns: if all rows' data stays in the second-level cache meanwhile, or is
    smaller than the weights."""
    along = load_strides(s, s.store(anchor.name), loops.columns)
    data = sum(s.buffer(x.buffer).size for x, c in along if c == 0)
    weights = sum(s.buffer(x.buffer).size for x, c in along if c != 0)
    return data <= machine.l2_bytes * 3 // 4 or weights > data
