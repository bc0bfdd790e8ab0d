"""Sums (means, extremes, variances) over contiguous rows of a few columns, as of the colours of an image: lanes run
across all rows and columns.

    for runs of 32 rows:                      # 3 columns: lanes are rows, turned round in registers
      sums[3, 32] += x[32, 3]
    y[3] = the lanes of sums added up

    for runs of 8 rows:                       # 7 columns: lanes are columns, rows have sums of their own
      sums[8, 7] += x[8, 7]
    y[7] = the rows of sums added up

Row after row would wait for the addition before it, with vectors that are as empty as there are few columns; and three
of them are no vector at all.
"""

from __future__ import annotations

from math import prod

from ....tensor.expr import walk
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...nest import Store
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, merge_loops, store_stride
from .rows import exists, inline_cheap

NAME = "few_columns"
PRIORITY = 20
#: up to so many columns lanes are rows (measured: of 6, they need too many shuffles), and up to so many there is
#: something to win
MAX_TURNED_COLUMNS, MAX_COLUMNS = 5, 16
#: rows that are worth it
MIN_ROWS = 64


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if kernel.opaque:
        return "an operator with a loop nest of its own"
    if not any(x.targets[0].init is not None for x in kernel.stages):
        return "it has no reduction"
    if lanes(machine) < MAX_TURNED_COLUMNS:
        return "vectors are short"
    s = Schedule(kernel, decisions=decisions)
    for x in kernel.stages:
        if x.targets[0].init is not None and not _many_rows(s, s.store(x.name)):  # before others are inlined
            return f"{x.name} does not sum up many rows of columns"
    root = s.store(kernel.stages[-1].name)
    own = [v for v in s.loops(root.block) if v not in root.reduction]
    column = next((v for v in own if store_stride(s, root, v) == 1), None)
    if column is None or not 2 <= s.extent_or_zero(column) <= MAX_COLUMNS:
        return "its results are no few columns"
    inline_cheap(s, kernel)
    alive = [x.name for x in kernel.stages if exists(s, x.name)]
    try:
        return _schedule(s, alive, [v for v in own if v != column], machine)
    except ScheduleError as e:
        return e.message


def _schedule(s: Schedule, alive: list[str], outer: list[str], machine: Machine) -> Schedule:
    root = alive[-1]
    rows = [_sums(s, b, len(outer)) for b in alive]
    if outer:
        rest = [v for v in s.loops(root) if v not in outer]
        s.reorder(*outer, *rest)
        at = fuse_outer(s, outer)
        assert at is not None
        for b in reversed(alive[:-1]):
            s.compute_at(b, at)
        s.parallel(at)
    for b, is_sum in zip(alive, rows, strict=True):
        if is_sum:
            _sum(s, b, outer=1 if outer else 0, machine=machine)
        else:
            s.vectorize(s.loops(b)[-1])
    return s


def _column(s: Schedule, block: str) -> str | None:
    """The loop of a stage over columns."""
    store = s.store(block)
    return next((v for v in s.loops(block) if v not in store.reduction and store_stride(s, store, v) == 1), None)


def _sums(s: Schedule, block: str, outer: int) -> bool:
    """Whether a stage sums up rows; False if it makes a number a column of others. ScheduleError for any other."""
    store, n = s.store(block), _column(s, block)
    own = [v for v in s.loops(block) if v not in store.reduction]
    if n is None or len(own) != outer + 1 or len(store.targets) != 1:
        raise ScheduleError(f"{block} does not make a number a column", stage="schedule")
    if not store.reduction:
        return False
    if not _many_rows(s, store) or not _walks(s, store, n):
        raise ScheduleError(f"{block} does not sum up many rows of columns", stage="schedule")
    return True


def _many_rows(s: Schedule, store: Store) -> bool:
    return prod(map(s.extent_or_zero, store.reduction)) >= MIN_ROWS


def _walks(s: Schedule, store: Store, n: str) -> bool:
    """Whether what a sum reads are rows of columns, or the same for all rows; and there are some of the first."""
    along = dict(load_strides(s, store, n))
    steps = [dict(load_strides(s, store, k)) for k in store.reduction]
    rows = {x for x in along if any(step[x] != 0 for step in steps)}
    whole = all(step[x] is not None for step in steps for x in along)
    plain = not any(getattr(x, "op", "") == "guard" for t in store.targets for x in walk(t.value))
    return bool(rows) and whole and plain and all(along[x] == 1 for x in rows)


def _sum(s: Schedule, block: str, outer: int, machine: Machine) -> None:
    """Sum up rows: in steps of some, each of which has sums of its own, and these at the end."""
    n = _column(s, block)
    assert n is not None
    columns, width = s.extent(n), lanes(machine, s.buffer(s.store(block).targets[0].buffer).dtype)
    rows = [v for v in s.loops(block)[outer:] if v != n]
    s.reorder(*rows, n)
    k = merge_loops(s, block, rows)[-1]
    near = all(c is not None and c <= MAX_TURNED_COLUMNS for _, c in load_strides(s, s.store(block), k))
    turned = columns <= MAX_TURNED_COLUMNS and near and s.extent(k) >= width
    turned = s.sample_choice(f"lanes_{block}", ("rows", "columns"), "rows" if turned else "columns") == "rows"
    vectors, each = (columns, width) if turned else (-(-columns // width), 1)  # of sums, for so many rows
    counts = [c for c in (1, 2, 4, 8) if c * each <= s.extent(k)]
    usual = max((c for c in counts if c * vectors <= machine.fma.in_flight), default=1)
    step = s.sample_choice(f"sums_{block}", counts or [1], usual) * each
    _, part = s.split(k, step)
    s.reorder(*((n, part) if turned else (part, n)))
    total = s.rfactor(block, part)
    parts = s.store(block).targets[0].buffer
    s.set_scope(parts, "register")
    if turned:
        for b in (block, total):
            column, row = s.loops(b)[-2:]
            vector, lane = s.split(row, width)
            if b == block:
                s.reorder(vector, column, lane)
            _lay_out(s, [vector, column], lane)
    else:
        s.set_order(parts, (1, 0))
        for b in (block, total):
            column, row = (n, part) if b == block else s.loops(b)[-2:]
            vector, lane = s.split(column, min(width, columns))
            s.reorder(vector, row, lane)
            _lay_out(s, [vector, row], lane)


def _lay_out(s: Schedule, loops: list[str], lane: str) -> None:
    for v in loops:
        s.unroll(v)
    s.vectorize(lane)


__all__ = ["apply"]
