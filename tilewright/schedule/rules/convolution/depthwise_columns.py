"""Depthwise convolutions of images with their channels first: lanes run along the columns of an image.

    for images, channels, tiles of rows, vectors of columns:     # divided among threads
      for rx, row, ry in unroll: acc[row] += x[channel, row + ry, columns + rx] * w[channel, ry, rx]
      y[channel, rows, columns] = acc

A tile takes several rows of the result: a row of the image is loaded once for all rows of windows that it is in. All
loads of a step `rx` lie one below the other, so few of them are kept. The weights of a channel are single numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....support.sizes import typical
from ....tensor.analysis import is_contraction
from ....tensor.expr import Op, loads, variables, walk
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...planner.cycles import pieces
from ...planner.prologue import only_sum, open_sum
from ...planner.steps import registers
from ...schedule import Schedule
from ..common import fuse_outer, load_strides, store_stride
from ..elementwise.elementwise import schedule_border
from .depthwise import MAX_UNROLLED_PRODUCTS, MAX_WINDOW

NAME = "depthwise-columns"
PRIORITY = 19
#: rows of tiles that are tried, and vectors of columns, at most; registers say which of them are possible
MAX_ROWS, MAX_VECTORS = 12, 4
#: windows move along a row by so many columns at most: then vectors are picked from whole ones
MAX_STEP = 4


@dataclass(frozen=True)
class Form:
    """The loops over columns and rows of the result (the latter may be missing), and over the columns of a window; how
    far a window moves by, in rows and columns; its rows; how many products a sum has; lanes."""

    column: str
    row: str | None
    across: str | None
    step: tuple[int, int]
    high: int
    taps: int
    width: int


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    if not is_contraction(anchor):
        return "no sum of products"
    if lanes(machine, kernel.buffer(anchor.buffer).dtype) == 1:
        return "the machine has no vectors"
    read = [x.indices for x in loads(anchor.targets[0].value) if x.buffer != anchor.buffer]
    moved = [{v for i in indices for v in variables(i)} for indices in read]
    if not any(names.issuperset(v for v, _ in anchor.parallel) for names in moved):  # as the image is, see `_form`
        return "no depthwise convolution"
    s, last, borders = open_sum(kernel, anchor, decisions)
    form = _form(s, anchor, machine)
    if isinstance(form, str):
        return form
    _tile(s, anchor, last, form, machine)
    for b in borders:
        schedule_border(s, b.name, machine)
    return s


def _form(s: Schedule, anchor: Stage, machine: Machine) -> Form | str:
    store, extents = s.store(anchor.name), anchor.extents
    if any(isinstance(x, Op) and x.op == "guard" for x in walk(store.targets[0].value)):
        return "its image is read under a condition"
    parallel, reductions = [v for v, _ in anchor.parallel], [v for v in anchor.reduction if v in s.loops()]
    column = next((v for v in reversed(parallel) if store_stride(s, store, v) == 1), None)
    steps = {v: {x.buffer: c for x, c in load_strides(s, store, v)} for v in (*parallel, *reductions)}
    if column is None or len(load_strides(s, store, column)) != 2 or len(steps[column]) != 2:
        return "no two operands, each read at one place"
    weights, image = sorted(steps[column], key=lambda b: steps[column][b] != 0)
    pace = steps[column][image]
    if steps[column][weights] != 0 or pace is None or not 1 <= pace <= MAX_STEP:
        return "its lanes are no columns of one operand"
    moves = [v for v in parallel if steps[v][weights] == 0]  # what moves the window alone: positions, images
    if any(steps[v][image] == 0 for v in parallel) or not any(steps[v][weights] for v in parallel):
        return "no depthwise convolution"
    if not reductions or max(extents[v] for v in reductions) > MAX_WINDOW or len(reductions) > 3:
        return "its windows are large"
    across = next((v for v in reversed(reductions) if extents[v] > 1 and steps[v][image] in _near(pace)), None)
    row = next((v for v in reversed(moves) if v != column), None)
    down, up = next(((v, steps[v][image]) for v in reversed(reductions) if v != across), (None, None))
    move = steps[row][image] if row is not None else None
    if row is None or not up or not move or move % up:
        row, down, up, move = None, None, 1, 1
    high = extents[down] if down is not None else 1
    width = min(lanes(machine, s.buffer(anchor.buffer).dtype), 1 << max(typical(extents[column]) - 1, 0).bit_length())
    taps = prod(extents[v] for v in reductions)
    assert move is not None and up is not None
    return Form(column, row, across, (move // up, pace), high, taps, width)


def _near(pace: int) -> range:
    """How far apart the columns of a window may be."""
    return range(1, 4 * pace + 1)


def _tile(s: Schedule, anchor: Stage, last: str, form: Form, machine: Machine) -> None:
    extents = anchor.extents
    rows = typical(extents[form.row]) if form.row is not None else 1
    columns = typical(extents[form.column])
    sizes = _sizes(form, rows, columns, machine.vector_registers)
    best = min(sizes, key=lambda t: (_cost(form, rows, columns, t, machine), t))
    r, v = s.sample_choice("tile", sizes, best)
    column_o, column_i = s.split(form.column, v * form.width)
    rows_o, rows_i = s.split(form.row, r) if form.row is not None else ("", "")
    others = [x for x, _ in anchor.parallel if x not in (form.column, form.row)]
    reductions = [x for x in anchor.reduction if x in s.loops()]
    outer = [*others, *([rows_o] if rows_o else []), column_o]
    inner = [x for x in reductions if x != form.across]
    first = [form.across] if form.across else []
    small = [*inner[:-1], *first, *([rows_i] if rows_i else []), *inner[-1:]]
    s.reorder(*outer, *small, column_i)
    at = fuse_outer(s, outer)
    assert at is not None
    new = s.reverse_compute_at(last, at)
    s.set_scope(s.store(anchor.name).targets[0].buffer, "register")
    registers(s, [column_i], form.width)
    registers(s, new, form.width)
    for x in small:
        s.unroll(x)
    s.parallel(at)


def _sizes(form: Form, rows: int, columns: int, room: int) -> list[tuple[int, int]]:
    """(rows, vectors) of tiles whose sums stay in registers beside a column of the image."""
    vectors = -(-columns // form.width)
    return [
        (r, v)
        for v in range(1, min(vectors, MAX_VECTORS) + 1)
        for r in range(1, min(rows, MAX_ROWS) + 1)
        if r == v == 1 or (r * v + form.high * (v + 1) <= room and r * v * form.taps <= MAX_UNROLLED_PRODUCTS)
    ]


def _cost(form: Form, rows: int, columns: int, tile: tuple[int, int], machine: Machine) -> float:
    """Estimated cycles of an image, see `depthwise`: arithmetic, loads and stores."""
    access, fma, costs, total = machine.access, machine.fma, machine.windows, 0.0
    load = access.split_load if form.step[1] == 1 else access.picked
    for r, rn in pieces(rows, tile[0]):
        for v, vn in pieces(-(-columns // form.width), tile[1]):
            image = ((r - 1) * form.step[0] + form.high) * form.taps // form.high * v
            memory = image * load + form.taps * access.load + r * v * access.split_store
            arithmetic = r * v * form.taps / fma.per_cycle
            latency = fma.latency * form.taps / 2
            hidden = max(arithmetic, memory, latency)
            total += rn * vn * (hidden + costs.exposed * min(arithmetic, memory) + costs.around)
    return total


__all__ = ["apply"]
