"""What the rules with a register tile share: its form, the stages around a sum of products, its loops, its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ....tensor.expr import Const, Expr, Load, Var, variables, walk
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine
from ...schedule import Schedule
from ..common import reads

#: bytes that memory is asked for ahead of time where every panel is read once
STREAM = 16384
#: reduction loops of up to so many steps are laid out
SHORT = 4


@dataclass(frozen=True)
class Tile:
    """Rows of the register tile along the innermost and the next row loop, and vectors along `n`."""

    rows: int
    outer_rows: int
    vectors: int


def pieces(total: int, size: int) -> list[tuple[int, int]]:
    """(tile size, how many of them): the full tiles and the partial one.

    >>> pieces(10, 4)
    [(4, 2), (2, 1)]
    """
    found = [(size, total // size)]
    if total % size:
        found.append((total % size, 1))
    return found


def only_sum(kernel: Kernel) -> Stage | str:
    """The stage of a kernel that sums, if it is the only one and has iterations; else why it is not for these rules."""
    anchors = [s for s in kernel.stages if s.targets[0].init is not None]
    if len(anchors) != 1 or len(anchors[0].targets) != 1 or kernel.opaque:
        return "not a single reduction"
    return "a loop without iterations" if 0 in anchors[0].extents.values() else anchors[0]


def around(kernel: Kernel, anchor: Stage) -> tuple[Sequence[Stage], Sequence[Stage], Sequence[Stage]]:
    """The stages before a sum, those after it that read something, and the borders of a padded result."""
    at = kernel.stages.index(anchor)
    later = kernel.stages[at + 1 :]
    return kernel.stages[:at], [x for x in later if x.reads], [x for x in later if not x.reads]


def open_sum(kernel: Kernel, anchor: Stage, decisions: Decisions) -> tuple[Schedule, str, Sequence[Stage]]:
    """The schedule of a kernel around a sum with all that comes before computed where it is read, the block of what
    follows (see `join_readers`), and the borders of a padded result. ScheduleError if it cannot be."""
    before, after, borders = around(kernel, anchor)
    s = Schedule(kernel, decisions=decisions)
    for p in before:
        s.inline(p.name)
    return s, join_readers(s, anchor, after), borders


def join_readers(s: Schedule, anchor: Stage, after: Sequence[Stage]) -> str:
    """Make one block of what follows a sum, with the sum's own loops; returns its name. ScheduleError if it cannot be.

    Without readers, or if the sum is itself a result, the block copies the sum out of its accumulators.
    """
    for e in after[:-1]:
        s.inline(e.name)
    if after and after[-1].buffer in s.kernel.outputs and anchor.buffer not in s.kernel.outputs:
        s.reindex(after[-1].name, anchor.name)
        return after[-1].name
    return s.cache_write(anchor.name)


def pack_weights(s: Schedule, anchor: Stage, x: Load, columns: str, run: str, block: int, depth: int) -> None:
    """Lay a constant operand out in tiles of `block` columns: the reduction in order, columns of the tile, `depth`
    numbers of the reduction's loop `run`."""
    place = {v: d for d, i in enumerate(x.indices) for v in variables(i)}
    d, p = place[columns], place[run]
    splits: list[tuple[int, ...]] = [()] * len(x.indices)
    splits[d], splits[p] = (block,), (depth,)
    position = {i: i + (d < i) + (p < i) for i in range(len(x.indices))}
    reduced = [place[k] for k in anchor.reduction if k in place]
    kept = [i for i in range(len(x.indices)) if i != d and i not in reduced]
    first = [*kept, d, *reduced]
    s.pack(x.buffer, tuple(splits), (*[position[i] for i in first], position[d] + 1, position[p] + 1))


def to_pack(s: Schedule, anchor: Stage, n: str) -> list[tuple[Load, int]]:
    """Constant operands that depend on `n` in one dimension, and that dimension."""
    found = []
    for x in {str(y): y for y in walk(anchor.targets[0].value) if isinstance(y, Load)}.values():
        where = [d for d, i in enumerate(x.indices) if n in variables(i)]
        if x.buffer not in s.kernel.constants or x.buffer in s.packs or len(where) != 1 or reads(s, x.buffer) != 1:
            continue
        if isinstance(x.indices[where[0]], Var) and all(len(variables(i)) <= 1 for i in x.indices):
            found.append((x, where[0]))
    return found


def pack_columns(s: Schedule, anchor: Stage, n: str, block: int) -> None:
    """Pack constant operands that depend on `n`: tiles of `block` columns first, the reduction dimensions in order,
    columns last.
    """
    for x, d in to_pack(s, anchor, n):
        splits = tuple((block,) if i == d else () for i in range(len(x.indices)))
        reduced = [i for i in range(len(x.indices)) if i != d and variables(x.indices[i]) <= set(anchor.reduction)]
        kept = [i for i in range(len(x.indices)) if i != d and i not in reduced]
        # positions after splitting: dimensions behind d move up by one, d itself is followed by its lanes
        position = {i: i + (1 if i > d else 0) for i in range(len(x.indices))}
        order = sorted(reduced, key=lambda i: _reduction_rank(anchor, x, i))
        s.pack(x.buffer, splits, (*[position[i] for i in kept], position[d], *[position[i] for i in order], d + 1))


def _reduction_rank(anchor: Stage, x: Load, dimension: int) -> int:
    names = variables(x.indices[dimension])
    return next((anchor.reduction.index(v) for v in anchor.reduction if v in names), -1)


def registers(s: Schedule, loops: list[str], width: int) -> None:
    """The loops over the tile: rows unrolled, the last one in vectors."""
    *rows, n = loops
    for m in rows:
        s.unroll(m)
    vector, lane = s.split(n, width)
    s.unroll(vector)
    s.vectorize(lane)


def unroll_reduction(s: Schedule, reductions: list[str], short: int, usual: int) -> None:
    """Lay out inner reduction loops of up to `short` steps; of a long one, `unroll` (untuned: up to `usual`) steps at a
    time."""
    for k in reversed(reductions):
        if s.extent(k) > short:
            break
        s.unroll(k)
        short = SHORT
    else:
        return
    extent = s.extent(k)
    # factors that leave a tail were measured and bring nothing; 3, 5 and 6 make tiles of four vectors 40% slower
    factors = [f for f in (1, 2, 3, 4, 5, 6, 8) if extent % f == 0]
    factor = s.sample_choice("unroll", factors, max(f for f in (1, 2, 4) if f in factors and f <= usual))
    if factor > 1:
        s.unroll(s.split(k, factor)[1])


def prefetch_panels(
    s: Schedule,
    anchor: Stage,
    lanes: str,
    columns: int,
    at: str,
    passes: int,
    size: int,
    machine: Machine,
    pieces: Sequence[str] = (),
    rows: Sequence[str] = (),
) -> None:
    """While the rows pass over one packed panel, ask for the next: a share of it in every step of the reduction. Where
    there is one pass only, ask for what comes a little later.

    A panel is `columns` of the loop `lanes`, `passes` is how often each is walked, `size` the bytes of a number. With
    `pieces`, the outermost loops of the reduction, the loops `rows` pass over one piece of the panel after another, and
    the next piece is asked for. Worth it for operands that do not fit the second-level cache; hardware prefetching
    stops at every page.
    """
    serial = [v for v in s.loops(anchor.name) if v != at and s.loop(v).kind == "serial"]
    steps_of = [v for v in serial if v not in (*pieces, *rows)]
    packed = [s.params[b] for b in s.packs if s.params[b].size * size > machine.l2_bytes // 2]
    if not passes or not steps_of or len(packed) != 1:
        return
    buffer = packed[0]
    panels = -(-anchor.extents[lanes] // columns)
    if buffer.size % panels or prod(buffer.shape[: buffer.shape.index(panels)]) != 1:
        return  # panels of groups
    panel = buffer.size // panels
    piece, steps = panel // prod(s.extent(v) for v in pieces), prod(s.extent(v) for v in steps_of)
    turns = prod(s.extent(v) for v in rows) if rows else passes
    lines, each = -(-piece * size // machine.line_bytes), machine.line_bytes // size
    share = -(-lines // (steps * turns))  # cache lines a step
    position = iterations(s, [*rows, *steps_of])
    if not rows and passes > 1:
        position = (Var(at) % passes) * steps + position
    ahead = piece if turns > 1 else min(panel, STREAM // size)
    first = (Var(at) // passes) * panel + ahead + position * (share * each)
    if pieces:
        first = first + iterations(s, pieces) * piece
    if s.sample_choice("prefetch", (True, False), True):
        s.prefetch(steps_of[-1], buffer.name, [first + line * each for line in range(share)])


def iterations(s: Schedule, loops: Sequence[str]) -> Expr:
    """The number of iterations of nested loops that are over."""
    step: Expr = Const(0, "index")
    for v in loops:
        step = step * s.extent(v) + Var(v)
    return step
