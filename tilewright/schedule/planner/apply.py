"""`apply`: a plan becomes a schedule, one step an aspect: the tile, the parts of the reduction, the order of loops, the
operands, what follows the sums, unrolled steps, prefetches, threads.

    for batches, panels of columns, runs and tiles of rows:      # divided among threads
      tile = the sum of x[rows, k] * w[k, columns]               # in registers, steps of k unrolled
      y[rows, columns] = relu(tile + bias)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...tensor.kernel import Stage
from ..machine import Machine
from ..rules.common import fuse_outer
from ..schedule import Schedule
from .choose import pieces_of
from .instructions import Bytes, Matrices, Pairs
from .plan import Plan
from .prefetch import prefetch_blocks, prefetch_panels
from .product import Product
from .remainder import along_k, peel, share
from .steps import Sum, registers
from .transpose import stage_sums, transpose_operands, write_rows


def apply(plan: Plan, product: Product, s: Schedule, anchor: Stage, last: str, machine: Machine) -> None:
    """Carry a plan out on the schedule of a kernel: `anchor` is its sum, `last` the block that reads it. ScheduleError
    where a step is not legal."""
    s.plan = str(plan)
    made = Sum(s, anchor, last, plan, product, machine)
    if plan.vector == "K":
        along_k(made)
    elif plan.remainder == "peel":
        peel(made)
    elif plan.remainder == "share":
        share(made)
    else:
        _tiles(made)


@dataclass(frozen=True)
class Loops:
    """The loops after a tile was cut out: `outer` ones, of which threads take parts, with those over `panels` of
    columns; the blocks of the reduction between which sums wait in memory, the `rows` that pass over one, the reduction
    in it, the tile (lanes last), and the neighbours that the instruction takes. `passes`: how often rows walk over a
    panel before the next one's turn; `repeated`: all panels come again."""

    outer: list[str]
    panels: str
    blocks: list[str]
    rows: list[str]
    inner: list[str]
    tile: list[str]
    group: list[str]
    passes: int
    repeated: bool


def _tiles(x: Sum) -> None:
    s, plan, product = x.s, x.plan, x.product
    columns = product.rows[0] if product.swapped else product.columns
    staged = stage_sums(s, x.anchor, columns) if product.swapped else None
    words = _words(x)
    loops = _cut(x)
    panels = s.extent(loops.panels)
    tile = [*loops.group, *loops.tile] if isinstance(product.instruction, Pairs) else [*loops.tile, *loops.group]
    s.reorder(*loops.outer, *loops.blocks, *loops.rows, *loops.inner, *tile)
    x.pack(columns, plan.tile[0] if staged else plan.tile[2] * product.width)
    if isinstance(product.instruction, Pairs):
        s.dot(x.block, loops.group[0])
    elif isinstance(product.instruction, Bytes):
        s.unroll(loops.group[0])
        s.annotate(loops.group[0], "dot", product.instruction.name)
    at = fuse_outer(s, loops.outer)
    assert at is not None
    if isinstance(product.instruction, Matrices):
        _finish_matrices(x, loops, at)
    else:
        _finish_vectors(x, loops, at, staged, words)
        x.unroll([k for k in loops.inner if k in s.loops()])
    if plan.prefetch and plan.k_blocks > 1:
        prefetch_blocks(x, at, panels, loops.blocks)
    elif plan.prefetch:
        prefetch_panels(x, at, panels, loops.passes, loops.repeated, loops.blocks, loops.rows)
    s.parallel(at)


def _cut(x: Sum) -> Loops:
    """The tile, and the order of the loops around it."""
    s, plan, product = x.s, x.plan, x.product
    panels, n = s.split(product.columns, plan.tile[2] * product.width)
    tiles, tile, used = list[str](), [n], list[str]()
    for m, size in zip(product.rows[: product.tile_rows], plan.tile, strict=False):
        if size > 1:
            o, i = s.split(m, size)
            tiles, tile, used = [o, *tiles], [i, *tile], [*used, m]
    batch = product.batch
    rows = [v for v in product.parallel if v not in (product.columns, *used, *batch)] + tiles
    if plan.interleaved > 1:
        o, i = s.split(batch[-1], plan.interleaved)
        batch, tile = [*batch[:-1], o], [i, *tile]
    inner, group = list(product.reduction), list[str]()
    if product.run:
        o, i = s.split(product.run, product.instruction.group)
        inner, group = [o if k == product.run else k for k in inner], [i]
    inner = [k for k in inner if k in s.loops()]
    runs, blocks, passing = list[str](), list[str](), list[str]()
    if plan.row_runs > 1:
        run, inside = s.split(rows[0], s.extent(rows[0]) // plan.row_runs)
        runs, rows = [run], [inside, *rows[1:]]
    if plan.k_pieces:
        rows, passing, blocks, inner = _pieces(x, rows, inner)
    elif plan.k_blocks > 1:
        blocks, inner = _blocks(s, plan.k_blocks, inner)
    passes = prod(s.extent(v) for v in rows) if plan.rows_inside else 1
    repeated = bool(runs or (rows and not plan.rows_inside))
    if plan.k_blocks > 1 or plan.operands == "transposed":
        rows, passing = [], rows
    outer = [*batch, *runs, panels, *rows] if plan.rows_inside else [*batch, *rows, panels]
    return Loops(outer, panels, blocks, passing, inner, tile, group, passes, repeated)


def _blocks(s: Schedule, count: int, reductions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the loops of a reduction into `count` blocks: the loops over blocks, and those in one."""
    blocks: list[str] = []
    inner = list(reductions)
    while count > 1:
        n = s.extent(inner[0])
        if count % n:
            o, inner[0] = s.split(inner[0], n // count)
            return [*blocks, o], inner
        blocks.append(inner.pop(0))
        count //= n
    return blocks, inner


def _pieces(x: Sum, rows: list[str], reductions: list[str]) -> tuple[list[str], list[str], list[str], list[str]]:
    """Loops over rows outside of a piece of the reduction, those that pass over one, over pieces, and in one."""
    s, found = x.s, pieces_of(x.product, x.plan, x.machine)
    assert found is not None
    names = dict(zip(x.product.reduction, reductions, strict=True))
    piece = {names[k]: n for k, n in found.extents.items()}
    outer, inner = [k for k in reductions if k not in piece], []
    for k in (k for k in reductions if k in piece):
        if piece[k] == s.extent(k):
            inner.append(k)
        elif piece[k] == 1:
            outer.append(k)
        else:
            o, i = s.split(k, piece[k])
            outer.append(o)
            inner.append(i)
    single, rows = [v for v in rows if s.extent(v) == 1], [v for v in rows if s.extent(v) > 1]
    outside, inside = [*single, *rows[:-1]], rows[-1]
    if found.together < s.extent(inside):
        o, inside = s.split(inside, found.together)
        outside = [*outside, o]
    return outside, [inside], outer, inner


# ---- what follows the sums -----------------------------------------------------------------------------------------


def _words(x: Sum) -> str | None:
    """Where sums are in scalar registers and vectors read them: the block that brings them into memory."""
    i = x.product.instruction
    scalar = isinstance(i, Bytes) and i.dot.lanes == 0 and x.machine.vector_bytes >= 16
    if not scalar or x.s.store(x.last).targets[0].buffer == x.anchor.buffer:
        return None
    return x.s.cache_write(x.block)


def _finish_vectors(x: Sum, loops: Loops, at: str, staged: str | None, words: str | None) -> None:
    """Sums in registers, and what reads them."""
    s, scalar = x.s, isinstance(x.product.instruction, Bytes) and not x.product.instruction.dot.lanes
    width = 0 if scalar else x.product.width
    transposed = x.product.transposed if x.plan.operands == "transposed" else []
    transpose_operands(s, x.anchor, transposed, at, x.machine)
    where = loops.rows[-1] if transposed and loops.rows else at
    between = [v for v in (s.reverse_compute_at(words, where) if words else []) if v in s.loops()]
    new = [v for v in s.reverse_compute_at(staged or x.last, where) if v in s.loops()]
    if staged:
        write_rows(s, x.last, at, x.machine)
    if loops.blocks:
        total = s.partial_sums(x.block, loops.rows[-1], scope="register")
        around = s.loops(total)
        registers(s, loops.tile, width)
        registers(s, around[around.index(loops.rows[-1]) + 1 :], width)
        registers(s, new[-1:], width)
        return
    s.set_scope(x.sums, "register")
    registers(s, loops.tile, width)
    registers(s, [v for v in between if v in s.loops()], 0)
    registers(s, new, x.machine.vector_bytes // 4 if words else width)


def _finish_matrices(x: Sum, loops: Loops, at: str) -> None:
    """Sums pass through memory that stays in the first-level cache, from which vectors read them."""
    s = x.s
    s.reverse_compute_at(x.last, at)
    blocks = [x.last, *([s.decompose_reduction(x.block)] if loops.blocks else [])]
    s.annotate(loops.inner[0], "tiles", x.product.instruction.name)
    for v in (*loops.tile, *loops.group):
        s.unroll(v)
    for block in blocks:
        vector, lane = s.split(s.loops(block)[-1], x.machine.vector_bytes // 4)
        s.unroll(vector)
        s.vectorize(lane)


__all__ = ["apply"]
