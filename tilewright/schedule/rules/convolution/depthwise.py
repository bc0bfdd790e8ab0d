"""Depthwise convolutions: sums of products in which each channel has its own image and its own window.

No operand is shared by the lanes, so what counts is how often each vector of the image is loaded. A tile takes several
rows of the result, one after another, and several columns of each: what neighbouring windows share is loaded once, as
long as it stays in registers. There are two forms:

    for tiles of rows, tiles of columns, panels of channels:     # "pixels"; panels may be outside
      for row in unroll(2):
        for ry, rx, column in unroll: acc[column] += x[row + ry, column + rx, channels] * w[ry, rx, channels]
        y[row, columns, channels] = acc

    for tiles of rows, vectors of a row of the result:           # "merged": the columns and channels of a row are one
      for rx, row, ry in unroll: acc[row] += x[row + ry, i + rx * C] * w[ry, rx, i % C ...]
      y[rows, i] = acc

Merged vectors are full whatever the number of channels is, for they do not end with a pixel: 33 channels fill 69% of
three vectors. Each begins with another channel, so weights are laid out with the first channels once more behind the
last one (`Schedule.repeat`). It takes windows that move by one column a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, prod

from ....support.sizes import typical
from ....tensor.analysis import is_contraction
from ....tensor.expr import Load, Op, Var, loads, variables, walk
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...planner.candidates import best_tile
from ...planner.cycles import pieces
from ...planner.instructions import vectors
from ...planner.product import sized
from ...planner.prologue import only_sum, open_sum
from ...planner.steps import registers
from ...schedule import Schedule
from ..common import coefficient, fuse_outer, load_strides, reads, store_stride
from ..elementwise.elementwise import schedule_border

NAME = "depthwise"
PRIORITY = 18

#: reduction loops of up to so many steps are laid out in any case
SHORT_LOOP = 4
#: windows of more columns are for other rules
MAX_WINDOW = 8
#: (the part of the vectors of pixels that merged ones may need, the part of the first-level cache that the image rows
#: between the first and the last column of their windows may take). Measured: 1.02 to 1.5 times as fast, 0.6 to 0.97
#: where neither holds
FULLER = ((0.95, 0.25), (0.88, 0.67))
#: pixels that begin anywhere in a cache line are read whole and in order where what a tile reads stays in this part of
#: the first-level cache, or windows are up to SMALL_WINDOW and all does not stay in this part of the second-level cache
#: (measured: 1.05 to 1.4 times as fast, else 0.6 to 0.95)
NEAR_L1_PART, SMALL_WINDOW, FAR_L2_PART = 0.5, 3, 0.75
#: rows stay in a first-level cache if they take less than this part of the sets that they can take
STAY_L1_PART = 0.6
#: rows and columns of a tile at most where rows do not stay there
SMALL_TILE = 4
#: sums of so many rows and columns in a tile at most, and rows of a merged one; products that are laid out at most:
#: code grows with them, and the time to compile it. What registers hold is asked of the machine
MAX_TILE_SUMS, MAX_MERGED_ROWS, MAX_UNROLLED_PRODUCTS = 28, 10, 800
#: the part of the registers that a row may take where others wait in memory
CROWDED_REGISTER_PART = 0.8


@dataclass(frozen=True)
class Axis:
    """A loop over the result along which windows move: by `step` elements of the image, `size` windowed elements wide,
    with the loop `reduction` over them."""

    loop: str
    reduction: str
    step: int
    size: int
    extent: int


@dataclass(frozen=True)
class Form:
    """The lanes `n` of `width`, the loops over columns and rows of the result (innermost and next; the latter may be
    missing), and the other loops; the operands; whether pixels begin anywhere in a cache line; how many products a sum
    has."""

    n: str
    channels: int
    width: int
    column: Axis
    row: Axis | None
    others: tuple[str, ...]
    image: str
    weights: str
    unaligned: bool
    taps: int


@dataclass(frozen=True)
class Tile:
    """Rows of the result, columns, and vectors of channels (merged: of a row)."""

    rows: int
    columns: int
    vectors: int


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    if not _own_channels(anchor):
        return "no depthwise convolution"
    if lanes(machine, kernel.buffer(anchor.buffer).dtype) == 1:
        return "the machine has no vectors"
    s, last, borders = open_sum(kernel, anchor, decisions)
    form = _form(s, anchor, machine)
    if isinstance(form, str):
        return form
    ways = ("pixels", "merged") if _mergeable(s, anchor, last, form) else ("pixels",)
    usual = "merged" if len(ways) > 1 and _fuller(form, machine) else "pixels"
    if (ways[0] if len(ways) == 1 else s.sample_choice("form", ways, usual)) == "merged":
        _merged(s, anchor, last, form, machine)
    else:
        _pixels(s, anchor, last, form, machine)
    for b in borders:
        schedule_border(s, b.name, machine)
    return s


# ---- what it is ----------------------------------------------------------------------------------------------------


def _factors(stage: Stage) -> list[Load]:
    """What is multiplied, each once."""
    own = stage.targets[0].buffer
    return [x for x in loads(stage.targets[0].value) if x.buffer != own]


def _own_channels(anchor: Stage) -> bool:
    """Whether both factors of a sum of products depend on the last loop of the result."""
    last = next((i for i in reversed(anchor.targets[0].indices) if isinstance(i, Var)), None)
    factors = _factors(anchor)
    return (
        is_contraction(anchor)
        and len(factors) == 2
        and last is not None
        and all(last.name in {v for i in x.indices for v in variables(i)} for x in factors)
    )


def _form(s: Schedule, anchor: Stage, machine: Machine) -> Form | str:
    store, extents = s.store(anchor.name), anchor.extents
    if any(isinstance(x, Op) and x.op == "guard" for x in walk(store.targets[0].value)):
        return "its image is read under a condition"
    parallel = [v for v, _ in anchor.parallel]
    n = next((v for v in reversed(parallel) if store_stride(s, store, v) == 1), None)
    if n is None or any(c != 1 for _, c in load_strides(s, store, n)):
        return "its operands are not contiguous along the channels"
    found = {x.buffer: x for x, _ in load_strides(s, store, n)}
    still = {b: all(_still(s, anchor, x, v) for v in parallel if v != n) for b, x in found.items()}
    if len(found) != 2 or sum(still.values()) != 1:
        return "none of its operands is a window"
    weights, image = sorted(found, key=lambda b: not still[b])
    axes = list(_axes(anchor, found[image], n))
    if not axes:
        return "its windows do not move along the result"
    if max(extents[v] for v in anchor.reduction) > MAX_WINDOW:
        return "its windows are large"
    *_, row, column = [None, *axes]
    assert column is not None
    others = tuple(v for v in parallel if v not in (n, column.loop, row.loop if row else ""))
    widest = lanes(machine, s.buffer(anchor.buffer).dtype)
    width = min(widest, 1 << max(extents[n] - 1, 0).bit_length())
    across = extents[n] * 4 % machine.line_bytes != 0
    taps = prod(extents[v] for v in anchor.reduction)
    return Form(n, extents[n], width, column, row, others, image, weights, across, taps)


def _still(s: Schedule, anchor: Stage, x: Load, v: str) -> bool:
    return dict(load_strides(s, s.store(anchor.name), v))[x] == 0


def _axes(anchor: Stage, image: Load, n: str) -> Iterator[Axis]:
    """The dimensions of an image in which a window moves, outermost first."""
    extents, reductions = anchor.extents, set(anchor.reduction)
    for index in image.indices:
        names = variables(index)
        inner = [v for v in names & reductions if extents[v] > 1]
        outer = [v for v in names - reductions if v != n]
        if len(inner) != 1 or len(outer) != 1:
            continue
        step, apart = coefficient(index, outer[0]), coefficient(index, inner[0])
        if step and apart and step % apart == 0:
            yield Axis(outer[0], inner[0], step // apart, extents[inner[0]], typical(extents[outer[0]]))


# ---- tiles of pixels -----------------------------------------------------------------------------------------------


def _pixels(s: Schedule, anchor: Stage, last: str, form: Form, machine: Machine) -> None:
    sizes = _tiles(form, machine.vector_registers)
    usual = _choose(form, sizes, machine)
    chosen = s.sample_choice("tile", sizes, (usual.rows, usual.columns, usual.vectors))
    tile = Tile(*chosen)
    in_order = s.sample_choice("order", ("pixels", "panels"), _order(s, anchor, form, tile, machine)) == "pixels"
    n_o, n_i = s.split(form.n, tile.vectors * form.width)
    column_o, column_i = s.split(form.column.loop, tile.columns)
    rows_o: list[str] = []
    rows_i: list[str] = []
    if form.row is not None:
        outer, inner = s.split(form.row.loop, tile.rows)
        rows_o, rows_i = [outer], [inner]
    places = [*rows_o, column_o, n_o] if in_order else [n_o, *rows_o, column_o]
    order, reductions = [*form.others, *places], list(anchor.reduction)
    s.reorder(*order, *rows_i, *reductions, column_i, n_i)
    _pack(s, form, tile.vectors * form.width)
    at = fuse_outer(s, order)
    assert at is not None
    new = s.reverse_compute_at(last, rows_i[0] if rows_i else at)
    s.set_scope(s.store(anchor.name).targets[0].buffer, "register")
    registers(s, [column_i, n_i], form.width)
    registers(s, new, form.width)
    for m in rows_i:
        s.unroll(m)
    for k in reversed(reductions):
        if tile.rows == 1 and k != form.column.reduction and s.extent(k) > SHORT_LOOP:
            break  # sums of a single row share no row of the image
        s.unroll(k)
    s.parallel(at)


def _tiles(form: Form, room: int) -> list[tuple[int, int, int]]:
    rows = form.row.extent if form.row is not None else 1
    found = []
    for v in range(1, 4):
        if v > 1 and (v - 1) * form.width >= form.channels:
            break
        for r in (1, 2, 3, 4, 6, 8):
            for p in range(1, min(form.column.extent, 24) + 1):
                if (
                    r <= rows
                    and p * v + v + 1 <= room
                    and (r == 1 or (r * p * v <= MAX_TILE_SUMS and r * p * v * form.taps <= MAX_UNROLLED_PRODUCTS))
                ):
                    found.append((r, p, v))
    return found


def _choose(form: Form, sizes: list[tuple[int, int, int]], machine: Machine) -> Tile:
    """The tile with the fewest estimated cycles.

    Where pixels begin with a cache line and windows move by one, one row and the columns that keep both arithmetic
    units busy are as fast as any (measured: within 3% of the best of 16 tiles), unless the rows of a window do not stay
    in the first-level cache until the next row of the result is its turn. Several small ones are then up to 1.4 times
    as fast, and up to 2.4 times where pixels share the sets of the cache, which tiles of one column find room in."""
    column, long = form.column, not form.unaligned and _long_rows(form, machine)
    if (
        long
        and (size := (min(SMALL_TILE, form.row.extent if form.row else 1), 1, 2)) in sizes
        and _sets(form, machine) < 1
    ):
        return Tile(*size)
    if long:
        sizes = [x for x in sizes if x[0] > 1 and max(x) <= SMALL_TILE and x[2] == 1] or sizes
    elif not form.unaligned and column.step == 1:
        window, instruction = (column.step, column.size), vectors(machine, form.width)
        columns, _, panels = best_tile(sized([column.extent], form.channels, 1, instruction, window=window), machine)
        return Tile(1, columns, panels)
    return min((Tile(*x) for x in sizes), key=lambda t: (_cost(form, t, machine), t.rows))


def _sets(form: Form, machine: Machine) -> float:
    """The part of the sets of the first-level cache that a panel of two vectors of every pixel can be in."""
    apart = gcd(form.channels * 4, machine.same_set_bytes)
    return min(min(2 * form.width, form.channels) * 4 / apart, 1.0)


def _long_rows(form: Form, machine: Machine) -> bool:
    """Whether the rows of the image under a row of the result, in a panel of two vectors, do not stay in the
    first-level cache. For small windows only: larger ones use a row often enough."""
    row, wide = form.row, (form.column.extent - 1) * form.column.step + form.column.size
    high = row.size if row is not None and row.size <= SMALL_WINDOW else 0
    panel = min(2 * form.width, form.channels) * 4
    return high * wide * panel > STAY_L1_PART * machine.l1_bytes * _sets(form, machine)


def _cost(form: Form, tile: Tile, machine: Machine) -> float:
    """The estimated cycles of one image with a tile."""
    total = 0.0
    rows = form.row.extent if form.row is not None else 1
    for v, vn in pieces(-(-form.channels // form.width), tile.vectors):
        for r, rn in pieces(rows, tile.rows):
            for p, pn in pieces(form.column.extent, tile.columns):
                total += vn * rn * pn * _tile_cost(form, Tile(r, p, v), machine)
    return total


def _tile_cost(form: Form, t: Tile, machine: Machine) -> float:
    """Cycles of one tile: arithmetic, loads and stores. Image rows that several rows of the tile read are
    loaded once; what the next row needs of them waits in memory if registers do not hold it with sums and weights."""
    access, fma, room, costs = machine.access, machine.fma, machine.vector_registers, machine.windows
    load, store = (access.split_load, access.split_store) if form.unaligned else (access.load, access.store)
    size, step = (form.row.size, form.row.step) if form.row is not None else (form.taps // form.column.size, 1)
    wide: float = ((t.columns - 1) * form.column.step + form.column.size) * t.vectors
    taps, sums = form.taps * t.vectors, t.columns * t.vectors
    if wide + sums > room:  # not even what the windows of one row share
        wide = costs.next_column * sums * form.column.size
    kept = max(size - step, 0) * wide if t.rows > 1 else 0.0
    held = kept + sums + taps <= room
    high = (t.rows - 1) * step + size
    again = 0.0 if held else (t.rows - 1) * (kept * costs.next_row[step > 1] + taps * access.load)
    arithmetic = t.rows * sums * form.taps / fma.per_cycle
    memory = high * wide * load + taps * access.load + again + t.rows * sums * store
    if t.rows > 1 and not held and wide + sums > CROWDED_REGISTER_PART * room:
        memory *= 2
    latency = fma.latency * form.taps / t.rows  # sums that follow each other: those of the rows overlap
    return max(arithmetic, memory, latency) + costs.exposed * min(arithmetic, memory) + costs.around


def _order(s: Schedule, anchor: Stage, form: Form, tile: Tile, machine: Machine) -> str:
    """Whether all channels of a few pixels come before the next pixels, or the other way round."""
    size = form.row.size if form.row is not None else 1
    high = (tile.rows - 1) * (form.row.step if form.row is not None else 1) + size
    wide = (tile.columns - 1) * form.column.step + form.column.size
    near = high * wide * form.channels * 4 <= NEAR_L1_PART * machine.l1_bytes
    all_bytes = 4 * (s.buffer(form.image).size + s.buffer(anchor.buffer).size)
    far = max(form.column.size, size) <= SMALL_WINDOW and all_bytes > FAR_L2_PART * machine.l2_bytes
    return "pixels" if _long_rows(form, machine) or (form.unaligned and (near or far)) else "panels"


def _pack(s: Schedule, form: Form, block: int) -> None:
    """Lay constant weights out in panels of channels, each front to back."""
    b = s.buffer(form.weights)
    if form.weights not in s.kernel.constants or form.weights in s.packs or reads(s, form.weights) != 1:
        return
    rank = len(b.shape)
    lane = next(d for d in reversed(range(rank)) if b.shape[d] > 1 or d == 0)
    splits = tuple((block,) if d == lane else () for d in range(rank))
    s.pack(form.weights, splits, (lane, *(d for d in range(rank + 1) if d not in (lane, lane + 1)), lane + 1))


# ---- merged --------------------------------------------------------------------------------------------------------


def _mergeable(s: Schedule, anchor: Stage, last: str, form: Form) -> bool:
    """Whether the columns and channels of a row follow each other in all that is read and written, but for constants
    that depend on the channel alone."""
    n, column = form.n, form.column
    at = s.store(anchor.name).targets[0].indices
    if column.step != 1 or form.channels % form.width == 0 or 4 * form.taps > MAX_UNROLLED_PRODUCTS:
        return False
    if at[-2:] != (Var(column.loop), Var(n)):
        return False
    store, outer = s.store(last), s.loops(last)
    if len(outer) < 2 or store_stride(s, store, outer[-1]) != 1:
        return False
    for block, c, z in ((anchor.name, n, column.loop), (last, outer[-1], outer[-2])):
        along, past = (dict(load_strides(s, s.store(block), v)) for v in (c, z))
        written = (store_stride(s, s.store(block), v) for v in (c, z))
        steps = [tuple(written), *((along[k], past[k]) for k in along if not _of_channel(s, k, c, z))]
        if any(a != 1 or b != form.channels for a, b in steps):
            return False
    return prod(s.extent_or_zero(v) for v in outer[-2:]) == column.extent * form.channels


def _of_channel(s: Schedule, x: Load, c: str, z: str) -> bool:
    """Whether a constant is read at the channel, and at nothing else that moves along a row."""
    own = [d for d, i in enumerate(x.indices) if c in variables(i)]
    named = {v for i in x.indices for v in variables(i)}
    return (
        x.buffer in s.kernel.constants
        and x.buffer not in s.packs
        and reads(s, x.buffer) == 1
        and len(own) == 1
        and x.indices[own[0]] == Var(c)
        and z not in named
    )


def _fuller(form: Form, machine: Machine) -> bool:
    """Whether merged vectors are so much fuller, and what their windows share stays so close, that merging pays."""
    vectors = -(-form.channels // form.width) * form.column.extent
    part = -(-form.channels * form.column.extent // form.width) / vectors
    rows = MAX_MERGED_ROWS + form.taps // form.column.size - 1
    close = rows * (form.column.size - 1) * form.channels * 4 / machine.l1_bytes
    return any(part <= most and close <= near for most, near in FULLER)


def _merged(s: Schedule, anchor: Stage, last: str, form: Form, machine: Machine) -> None:
    row = form.row
    width = lanes(machine, s.buffer(anchor.buffer).dtype)
    room = machine.vector_registers - 2 * (row.size if row is not None else 1) - 1
    most = row.extent if row is not None else 1
    sizes = [
        (r, 1, v)
        for v in (1, 2)
        for r in range(1, min(most, 16) + 1)
        if r * v <= room and (r == 1 or r * v * form.taps <= MAX_UNROLLED_PRODUCTS)
    ]
    best = min(
        (r for r, _, v in sizes if v == 1 and r <= MAX_MERGED_ROWS), key=lambda r: (_rows_cost(form, r, machine), r)
    )
    rows, _, vectors = s.sample_choice("tile", sizes, (best, 1, 1))
    total = s.store(anchor.name).targets[0].buffer
    merged = s.fuse(form.column.loop, form.n)
    s.fuse(*s.loops(last)[-2:])
    s.flatten(total, len(s.buffer(total).shape) - 2)
    o, i = s.split(merged, vectors * width)
    rows_o, rows_i = s.split(row.loop, rows) if row is not None else ("", "")
    high = [row.reduction] if row is not None else []
    more = [v for v in anchor.reduction if v not in (form.column.reduction, *high)]
    outer = [*form.others, *([rows_o] if row is not None else []), o]
    small = [*more, form.column.reduction, *([rows_i] if row is not None else []), *high]
    s.reorder(*outer, *small, i)
    at = fuse_outer(s, outer)
    assert at is not None
    new = s.reverse_compute_at(last, at)
    _repeat(s, anchor.name, i)
    _repeat(s, last, new[-1])
    s.set_scope(total, "register")
    registers(s, [i], width)
    registers(s, new, width)
    for v in small:
        s.unroll(v)
    s.parallel(at)


def _rows_cost(form: Form, rows: int, machine: Machine) -> float:
    """Estimated cycles of a column of vectors, in tiles of so many rows."""
    assert form.row is not None or rows == 1
    extent, size, step = (form.row.extent, form.row.size, form.row.step) if form.row is not None else (1, 1, 1)
    access, fma, costs, total = machine.access, machine.fma, machine.windows, 0.0
    for r, n in pieces(extent, rows):
        taps = form.taps
        image = ((r - 1) * step + size) * taps // size
        arithmetic = r * taps / fma.per_cycle
        memory = (image + taps) * access.split_load + r * access.split_store
        latency = fma.latency * taps / 2
        total += n * (max(arithmetic, memory, latency) + costs.exposed * min(arithmetic, memory) + costs.around)
    return total


def _repeat(s: Schedule, block: str, var: str) -> None:
    """Lay out the constants of a block that begin again with every pixel."""
    own = {t.buffer for t in s.store(block).targets}
    for t in s.store(block).targets:
        for x in [x for x in loads(t.value) if x.buffer in s.kernel.constants]:
            round_ = [
                d for d, e in enumerate(x.indices) if isinstance(e, Op) and e.op == "remsi" and var in variables(e)
            ]
            if x.buffer not in own and x.buffer not in s.packs and len(round_) == 1:
                s.repeat(x.buffer, round_[0], var)


__all__ = ["apply"]
