"""Full reductions of rows (sum, mean, argmax), as many rows together as a vector has lanes: their vectors are added in
a tree, from which the sum of row r comes out in lane r.

    for some of the rows:                       # 16 at a time
      for r in unroll(16): for l in vector(14): sum[r] += x[r, l]      # the target emits the tree
      for r in vector(16): y[r] = sum[r] / 14                          # what follows runs in full vectors

Rows of several vectors are added up in one vector each before. The rule `rows`, which asks whether to do so, adds up
the lanes of every row by themselves instead, one number that waits for the next; that is as good for long rows, where
the vectors of a row are most of the work.
"""

from __future__ import annotations

from math import prod

from ....support.sizes import is_open
from ....tensor.expr import COMBINERS, Const, Op, Var, substitute
from ...machine import Machine, lanes
from ...nest import Store
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, merge_loops, seeks_place, store_stride
from . import transposed_rows as turned_rows
from .memory_hints import ROW, FarRows, item

#: vectors of a row up to which this is faster (it takes shuffles where sums along a row take a step each, so the number
#: hardly depends on the machine): of sums, and of what takes several instructions a step
MAX_SUM_VECTORS, MAX_OTHER_VECTORS = 4, 16
#: the same with a loop over the vectors of each row inside: fewer rows are read at a time
MIN_INSIDE_VECTORS = 3
#: steps that are laid out, at most: code stays small
MAX_UNROLLED = 4


def possible(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> bool:
    """Whether the last stage writes a number a row, side by side, and all others add up or take such numbers."""
    stores = [s.store(b) for b in alive]
    if not rows or any(len(x.targets) != 1 for x in stores) or _lanes(stores, machine) < 4:
        return False
    if set(s.loops(alive[-1])) - set(rows) - set(stores[-1].reduction):
        return False
    if s.extent_or_zero(rows[-1]) < 4 or store_stride(s, stores[-1], rows[-1]) != 1:
        return False
    return all(_of_a_row(s, x, len(rows)) for x in stores)


def _of_a_row(s: Schedule, store: Store, rows: int) -> bool:
    """Whether a stage makes a number a row: from others, or as a sum along contiguous elements."""
    t, loops = store.targets[0], s.loops(store.block)
    if len(loops) - len(store.reduction) > rows:
        return False
    if t.init is None:
        return True
    known = isinstance(t.value, Op) and t.value.op in COMBINERS and t.value.dtype != "i1"
    strides = [c for _, c in load_strides(s, store, store.reduction[-1])] if store.reduction else []
    return known and 1 in strides and all(c in (0, 1) for c in strides)


def worthwhile(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> bool:
    """Whether to do so, untuned."""
    stores = [s.store(b) for b in alive]
    width = _lanes(stores, machine)
    sums = [x for x in stores if x.targets[0].init is not None]
    long = max(prod(map(s.extent_or_zero, x.reduction)) for x in sums)
    if any(seeks_place(s, b) for b in alive) and turned_rows.worthwhile(s, alive, rows, machine):
        return False
    most = MAX_SUM_VECTORS if all(_plain(x) for x in sums) else MAX_OTHER_VECTORS
    return 8 <= width <= s.extent_or_zero(rows[-1]) and long <= most * width


def _plain(store: Store) -> bool:
    value = store.targets[0].value
    return isinstance(value, Op) and value.op in ("addf", "addi", "mulf")


def _lanes(stores: list[Store], machine: Machine) -> int:
    return min((lanes(machine, x.targets[0].value.dtype) for x in stores if x.targets[0].init is not None), default=1)


def schedule(s: Schedule, alive: list[str], rows: list[str], machine: Machine) -> Schedule:
    """The schedule of a kernel with these stages and rows; ScheduleError where an access is of another form."""
    root, width = alive[-1], _lanes([s.store(b) for b in alive], machine)
    order = [*rows, *(v for v in s.loops(root) if v not in rows)]
    if order != s.loops(root):
        s.reorder(*order)
    outer, _ = s.split(rows[-1], min(width, s.extent(rows[-1])))
    at = fuse_outer(s, [*rows[:-1], outer])
    assert at is not None
    for b in reversed(alive[:-1]):
        s.compute_at(b, at)
    _prefetch(s, alive, at, machine)
    for b in alive:
        inside = _inside(s, b, at)
        if s.store(b).targets[0].init is not None:
            _sum(s, b, inside, width)
        elif len(inside) == 1:
            s.vectorize(inside[0])
        else:
            raise ScheduleError(f"{b} does not make a number a row", stage="schedule")
    s.parallel(at)
    return s


def _inside(s: Schedule, block: str, at: str) -> list[str]:
    return s.loops(block)[s.loops(block).index(at) + 1 :]


def _prefetch(s: Schedule, alive: list[str], at: str, machine: Machine) -> None:
    """Ask for the rows of a later task: the processor's own prefetching is of little help where every row is read with
    a mask, and rows of a few vectors in memory come faster too."""
    far = FarRows.of(s, alive, at)
    size = sum(b.size * item(b.dtype) for b in s.params.values())
    if size <= machine.l2_bytes or not far.starts:
        return
    inside = _inside(s, alive[0], at)
    rows = (s.extent_or_zero(inside[0]) if inside else 0) or lanes(machine)
    if is_open(rows, far.length):
        return  # how many lines a task reads is not known
    width, n, most = lanes(machine), far.length, machine.prefetch.row_bytes
    if size > machine.l3_bytes:
        default = most if n <= MAX_SUM_VECTORS * width else 0
    else:
        default = most if n < width and n & (n - 1) else 0  # rows that are read with a mask
    distance = s.sample_choice("prefetch", (0, most // 4, most), default)
    for buffer, start in far.starts.items() if distance else ():
        elements = machine.line_bytes // item(s.buffer(buffer).dtype)
        ahead = -(-distance // (rows * far.length * item(s.buffer(buffer).dtype)))
        first = substitute(start, {at: Var(at) + ahead, ROW: Const(0, "index")})
        s.prefetch(at, buffer, [first + i for i in range(0, rows * far.length, elements)])


def _sum(s: Schedule, block: str, inside: list[str], width: int) -> None:
    """Add up the rows of a task."""
    reduction = set(s.store(block).reduction)
    row = [v for v in inside if v not in reduction]
    along = merge_loops(s, block, [v for v in inside if v in reduction])
    if len(row) != 1 or len(along) != 1 or s.loops(block)[-2:] != [*row, *along]:
        raise ScheduleError(f"the sums of {block} do not run along rows", stage="schedule")
    target = s.store(block).targets[0]
    n, extent = along[0], s.extent(along[0])
    if extent <= width:
        s.unroll(row[0])
        s.vectorize(n)
        return
    step, lane = s.split(n, width)
    s.reorder(step, row[0], lane)
    total = s.rfactor(block, lane)
    parts = next(b for b in s.temporaries if b.startswith(f"{target.buffer}_r"))
    s.set_scope(parts, "register")
    default = "steps" if extent < MIN_INSIDE_VECTORS * width else "rows"
    if s.sample_choice(f"order_{block}", ("rows", "steps"), default) == "rows":
        s.reorder(row[0], step)
    if s.extent(step) <= MAX_UNROLLED:
        s.unroll(step)
    s.unroll(row[0])
    s.vectorize(lane)
    row_of_total, lane_of_total = s.loops(total)[-2:]
    s.unroll(row_of_total)
    s.vectorize(lane_of_total)


__all__ = ["possible", "schedule", "worthwhile"]
