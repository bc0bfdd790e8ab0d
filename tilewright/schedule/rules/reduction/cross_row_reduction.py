"""Reductions over rows that lie side by side in memory (softmax and argmax over the channels of an image): lanes run
across rows, each lane has its own sum.

The rule `rows` takes rows that are contiguous themselves; here an element's neighbour belongs to the next row.
"""

from __future__ import annotations

from math import prod

from ....tensor.analysis import looked_up
from ....tensor.expr import Const, Var, loads
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...nest import exprs
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, places_in_one_pass, seeks_place, store_stride
from .rows import exists, inline_cheap, row_loops

NAME = "columns"
PRIORITY = 28
#: places that are found in one pass take longer a step than sums: so many times as many vectors of rows side by side
TIMES_PLACES = 2


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if kernel.opaque:
        return "an operator with a loop nest of its own"
    if not any(x.targets[0].init is not None for x in kernel.stages):
        return "it has no reduction"
    s = Schedule(kernel, decisions=decisions)
    inline_cheap(s, kernel)
    alive = [x.name for x in kernel.stages if exists(s, x.name)]
    rows = row_loops(s, kernel, alive[-1])
    if not rows:
        return "the last stage does not work row by row"
    lane = next((v for v in rows if store_stride(s, s.store(alive[-1]), v) == 1), None)
    width = lanes(machine)
    short = lane is None or s.extent_or_zero(lane) < (2 if any(seeks_place(s, b) for b in alive) else width / 2)
    if lane is None or width == 1 or short:
        return "its rows do not lie side by side"
    if not all(_across(s, b) for b in alive):
        return "an operand is not contiguous across rows"
    try:
        return _schedule(s, alive, [*[v for v in rows if v != lane], lane], machine)
    except ScheduleError as e:
        return e.message


def _across(s: Schedule, block: str) -> bool:
    """Whether neighbouring lanes of a stage read neighbours, or the same, or what they look up."""
    store = s.store(block)
    along = [v for v in s.loops(block) if v not in store.reduction and store_stride(s, store, v) == 1]
    return len(along) == 1 and all(
        c in (0, 1) or (c is None and looked_up(x)) for x, c in load_strides(s, store, along[0])
    )


def _schedule(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> Schedule:
    root = alive[-1]
    if s.store(root).targets[0].init is not None:  # the sums of a tile stay in registers until they are complete
        made = s.cache_write(root)
        rows = [_same(s, root, v, made) for v in rows]
        alive, root = [*alive, made], made
    order = [*rows, *(v for v in s.loops(root) if v not in rows)]
    if order != s.loops(root):
        s.reorder(*order)
    width, size = lanes(machine), s.extent(rows[-1])
    counts = [v for v in (1, 2, 3, 4, 6, 8) if (v - 1) * width < size]
    one_pass = any(seeks_place(s, b) for b in alive) and s.sample_choice("one_pass", (True, False), True)
    most = machine.chains * (TIMES_PLACES if one_pass else 1)
    count = s.sample_choice("vectors", counts, min(most, counts[-1], -(-size // width)))
    beside = _beside(s, alive, rows, most // -(-size // width), machine)
    inner_rows = []
    if beside > 1:
        rows[-2], row = s.split(rows[-2], beside)
        inner_rows = [row]
    outer, inner = s.split(rows[-1], count * width)
    if inner_rows:
        s.reorder(outer, *inner_rows)
    at = fuse_outer(s, [*rows[:-1], outer])
    assert at is not None
    for b in reversed(alive[:-1]):
        s.compute_at(b, at)
    if one_pass:
        alive = places_in_one_pass(s, alive)
    for b in alive:
        _lanes_last(s, b, inner if b == root else None, width)
        if beside > 1:
            _rows_beside(s, b, at)
    for b in alive[:-1]:
        store = s.store(b)
        laid_out = all(s.loop(v).kind in ("unroll", "vector") for v in s.loops(b) if v not in (at, *store.reduction))
        for t in store.targets:
            if t.init is not None and t.buffer in s.temporaries and laid_out:
                s.set_scope(t.buffer, "register")
    s.parallel(at)
    return s


def _beside(s: Schedule, alive: list[str], rows: list[str], most: int, machine: Machine) -> int:
    """How many rows of short vectors are taken beside each other: what one waits for, the others have time for. All
    stages must work on the same rows, each at its own loop variables."""
    numbers = all(len(s.loops(b)) - len(s.store(b).reduction) == len(rows) for b in alive)
    found = [x for b in alive for e in exprs(s.store(b)) for x in loads(e)]
    plain = all(isinstance(i, (Var, Const)) for x in found if x.buffer in s.temporaries for i in x.indices)
    if len(rows) < 2 or not numbers or not plain:
        return 1
    fits = [n for n in (1, 2, 4, 8) if n <= most and 4 * n * machine.cores <= prod(map(s.extent, rows[:-1]))]
    fits = [n for n in fits if n <= s.extent(rows[-2])] or [1]
    return s.sample_choice("beside", fits, fits[-1])


def _rows_beside(s: Schedule, block: str, at: str) -> None:
    """Lay out the rows of a task inside the loops over what is reduced."""
    loops, reduction = s.loops(block)[s.loops(block).index(at) + 1 :], s.store(block).reduction
    serial = [v for v in loops if s.loop(v).kind == "serial"]
    own = [v for v in serial if v not in reduction]
    if own:
        s.reorder(*[v for v in serial if v in reduction], *own)
        for v in own:
            s.unroll(v)


def _same(s: Schedule, block: str, var: str, copy: str) -> str:
    """The loop of a copy of a block's result that runs over the dimension that `var` runs over."""
    return s.loops(copy)[[v for v in s.loops(block) if v not in s.store(block).reduction].index(var)]


def _lanes_last(s: Schedule, block: str, lane: str | None, width: int) -> None:
    """Let lanes run across rows, innermost."""
    store = s.store(block)
    own = [v for v in s.loops(block) if v not in store.reduction]
    lane = lane or next((v for v in reversed(own) if store_stride(s, store, v) == 1), None)
    if lane is None:
        raise ScheduleError(f"no loop of {block} walks along a row of its result", stage="schedule")
    inside = s.loops(block)[s.loops(block).index(lane) + 1 :]
    if inside:
        s.reorder(*inside, lane)
    unrolled, vector = s.split(lane, width)
    s.unroll(unrolled)
    s.vectorize(vector)


__all__ = ["apply"]
