"""Elementwise operations and data movement: loops that run together in memory are fused, the innermost runs in
vectors."""

from __future__ import annotations

import contextlib

from ....support.sizes import gcd, highest, typical
from ....tensor.analysis import flat
from ....tensor.expr import linear
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...nest import For, Store, walk_stmts
from ...schedule import Schedule, ScheduleError
from .. import Choose
from ..common import inline_producers, load_strides, merge_loops, store_stride
from ..reduction.memory_hints import has_function, item

NAME = "elementwise"
PRIORITY = 40
#: vectors from which a tile is worth transposing in registers, and the fewest rows that are
MIN_TRANSPOSED_VECTORS, MIN_TRANSPOSED_ROWS = 4, 2
#: up to so many columns of a result are written as one run, in which rows take turns (measured: more are transposed in
#: registers faster) or elements come several times
MAX_TURNS, MAX_TIMES = 7, 8
#: so many tensors may be stacked in one loop
MAX_STACKED = 4
#: a matrix of so many rows and of so few columns is transposed row by row (measured: by 20 to 70% faster)
MIN_TALL_ROWS, MAX_NARROW_COLUMNS = 192, 256
#: lines of which only each of so many has a place of its own among the sets of a first-level cache
#: (`Machine.same_set_bytes`) push each other out of it
FEW_PLACES = 4


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if kernel.opaque:
        return "an operator with a loop nest of its own"
    if any(t.init is not None for s in kernel.stages for t in s.targets):
        return "it contains a reduction"
    s = Schedule(kernel, decisions=decisions)
    inline_producers(s)
    if s.temporaries:
        return f"{', '.join(s.temporaries)} cannot be computed where it is read"
    blocks = [x.block for x in walk_stmts(s.body) if isinstance(x, Store)]
    while blocks:
        together = _interleaved(s, blocks) if lanes(machine) >= MIN_TRANSPOSED_VECTORS else 1
        if together > 1 and s.sample_choice(f"stack_{blocks[0]}", (True, False), True):
            try:
                _merge(s, blocks[:together])
            except ScheduleError:  # they read what another one writes
                return apply(kernel, machine, {**(decisions or {}), f"stack_{blocks[0]}": False})
        else:
            together = 1
        schedule_block(s, blocks[0], machine)
        blocks = blocks[together:]
    return s


def _merge(s: Schedule, blocks: list[str]) -> None:
    """Let blocks run in the loops of the first."""
    for b in blocks[1:]:
        for v, w in zip(s.loops(blocks[0]), s.loops(b), strict=True):
            s.merge(v, w)


def _interleaved(s: Schedule, blocks: list[str]) -> int:
    """How many of the first blocks write elements between each other's in one buffer (tensors that are stacked along
    their last dimension), in loops of the same extents: in one loop, whole vectors are written."""

    def form(b: str) -> tuple[str, list[tuple[int, int | None]], int]:
        store = s.store(b)
        place = linear(flat(s.buffer(store.targets[0].buffer), store.targets[0].indices))[1]
        loops = [(s.extent_or_zero(v), store_stride(s, store, v)) for v in s.loops(b)]
        return store.targets[0].buffer, loops, place

    buffer, loops, first = form(blocks[0])
    count = min((c or 0 for _, c in loops), default=0)
    written = s.buffer(buffer).name in s.kernel.outputs
    if not 2 <= count <= min(MAX_STACKED, len(blocks)) or not written or any(n == 0 for n, _ in loops):
        return 1
    return count if all(form(b) == (buffer, loops, first + i) for i, b in enumerate(blocks[:count])) else 1


def schedule_block(s: Schedule, block: str, machine: Machine) -> None:
    """Fuse, vectorize and parallelize the loops of one elementwise block that stands alone."""
    _schedule_block(s, block, machine, s.sample_choice)


def schedule_border(s: Schedule, block: str, machine: Machine) -> None:
    """The same for the borders of a padded result, which are not worth a search: no decision is left open."""
    _schedule_block(s, block, machine, lambda name, candidates, default: default)


def _schedule_block(s: Schedule, block: str, machine: Machine, choose: Choose) -> None:
    order = _order(s, block, choose)
    if not order:
        return
    if order != s.loops(block):
        s.reorder(*order)
    width = lanes(machine)
    order, period = _take_turns(s, block, merge_loops(s, block, order), width)
    n = order[-1]
    size = s.extent(n)
    across = _across(s, block, order)
    if size >= width or highest(size) > width:  # an open size that is typically small may be large
        counts = [v for v in sorted({1, 2, 4, 8, period}) if v == 1 or v * width <= size]  # functions are long chains
        beside = machine.chains if has_function(s, block) and machine.many_registers else 1
        beside = beside if 4 * beside * width * machine.cores <= size else 1
        default = period if period in counts and period > 1 else beside
        vectors = choose(f"vectors_{block}", counts, default)
        outer, lane = s.split(n, vectors * width)
        if vectors > 1:
            unrolled, lane = s.split(lane, width)
            s.unroll(unrolled)
        s.vectorize(lane)
        order = [*order[:-1], outer]
    else:
        s.vectorize(n)
        order = order[:-1]
    if across is not None and across in order and size >= MIN_TRANSPOSED_VECTORS:
        side = width if highest(size) > width else 1 << (size - 1).bit_length()
        order = _tile_across(s, block, order, across, side, machine, choose)
    if len(order) > 1 and s.extent(order[0]) < 4 * machine.cores:
        with contextlib.suppress(ScheduleError):
            order = _enough_tasks(s, order, machine)
    if order:
        s.parallel(order[0])


def _take_turns(s: Schedule, block: str, order: list[str], width: int) -> tuple[list[str], int]:
    """Fuse a loop of a few elements with the one around it where what is written goes on, and what is read too but for
    coming from several rows in turns, or several times (an image made twice as large; a number for each of its
    colours), or across (a transposition).
    Returns the loops, and after how many vectors the turns come again."""
    few = s.extent(order[-1])
    if len(order) < 2 or not 2 <= few <= MAX_TIMES or few >= width:
        return order, 1
    store, (outer, inner) = s.store(block), order[-2:]
    on = store_stride(s, store, inner) == 1 and store_stride(s, store, outer) == few
    contiguous = {x for v in order[:-2] for x, c in load_strides(s, store, v) if c == 1}
    along = dict(load_strides(s, store, outer))
    near = dict(load_strides(s, store, inner))
    rows = any(c not in (0, 1) and along[x] == 1 for x, c in near.items())
    goes_on = {x for x, c in along.items() if c in (0, 1) or x in contiguous or (c == few and near[x] == 1)}
    if not on or (rows and few > MAX_TURNS) or along.keys() != goes_on:
        return order, 1
    return [*order[:-2], s.fuse(outer, inner)], few if rows else few // gcd(few, width)


def _enough_tasks(s: Schedule, order: list[str], machine: Machine) -> list[str]:
    """Fuse outer loops until there are tasks for all threads; what stays inside needs no division of indices."""
    first, *rest = order
    while rest and s.extent(first) < 4 * machine.cores:
        first = s.fuse(first, rest.pop(0))
    return [first, *rest]


def _order(s: Schedule, block: str, choose: Choose) -> list[str]:
    """The loop to vectorize goes last: contiguous in the result if there is one, else in most operands."""
    loops = s.loops(block)
    if len(loops) < 2:
        return loops
    store = s.store(block)

    def score(v: str) -> tuple[bool, int]:
        irregular = sum(c not in (0, 1) for _, c in load_strides(s, store, v))
        return store_stride(s, store, v) == 1, -irregular

    best = max(reversed(loops), key=score)
    # by number from the inside, so that the choice means the same for other sizes
    near = [i for i, v in enumerate(reversed(loops)) if store_stride(s, store, v) == 1 or _reads_along(s, store, v)]
    default = list(reversed(loops)).index(best)
    last = list(reversed(loops))[choose(f"lanes_{block}", near, default)]
    return [v for v in loops if v != last] + [last]


def _reads_along(s: Schedule, store: Store, v: str) -> bool:
    """Whether some operand is contiguous along a loop."""
    return any(c == 1 for _, c in load_strides(s, store, v))


def _across(s: Schedule, block: str, order: list[str]) -> str | None:
    """The loop along which an operand that jumps along the vectorized loop is contiguous (a transposition)."""
    store = s.store(block)
    jumps = {x for x, c in load_strides(s, store, order[-1]) if c not in (0, 1)}
    for v in order[:-1]:
        if any(c == 1 and x in jumps for x, c in load_strides(s, store, v)):
            return v
    return None


def _tile_across(
    s: Schedule, block: str, order: list[str], across: str, side: int, machine: Machine, choose: Choose
) -> list[str]:
    """Run a few steps of the transposed loop inside the vectorized one's blocks, so that the lines it jumps over are
    used up; as many as there are lanes, unrolled, are transposed in registers by targets that can."""
    extent = s.extent(across)
    whole = [extent] if MIN_TRANSPOSED_ROWS <= extent < side else []  # a single partial tile
    sizes = sorted({*[t for t in (1, 2, 4, 8, 16, 32, 64) if t <= extent], *whole})
    size = choose(f"across_{block}", sizes, side if side in sizes else max(whole, default=1))
    if size == 1:
        return order
    outer, inner = s.split(across, size)
    if choose(f"unroll_{block}", (False, True), size in (side, *whole)) and size <= 16:
        s.unroll(inner)
    order = [outer if v == across else v for v in order]
    if order[-1] != outer:
        order = _walk(s, block, order, outer, inner, extent, machine, choose)
    s.reorder(*order, inner)
    return order


def _walk(
    s: Schedule, block: str, order: list[str], outer: str, inner: str, columns: int, machine: Machine, choose: Choose
) -> list[str]:
    """The order of the loops over tiles: along rows of the result, along rows of the operand, or along rows of the
    result with the loops that belong to neither outermost (slice by slice)."""
    last = order[-1]
    slices = [v for v in order if v not in (outer, last)]
    sliced = [*slices, outer, last]
    default = "result"
    if _tall(s, block, columns, last, inner, machine):
        default = "operand"
    elif sliced != order and _slices_pay(s, block, columns, last, inner, machine):
        default = "slices"
    walks = ("result", "operand") if sliced == order else ("result", "slices", "operand")
    walk = choose(f"walk_{block}", walks, default)
    return {"result": order, "slices": sliced, "operand": [*slices, last, outer]}[walk]


def _slices_pay(s: Schedule, block: str, columns: int, over: str, column: str, machine: Machine) -> bool:
    """Whether to transpose one slice after the other: a line of the operand that two tiles share is then read once, but
    one that two slices share is twice, unless a slice fits the nearest cache (measured: 10 to 40% faster). Not where
    the rows of a slice have the same few places in that cache (half as fast)."""
    store = s.store(block)
    step, apart = store_stride(s, store, over), store_stride(s, store, column)
    if not step or not apart:
        return False
    rows, size = step * s.extent_or_zero(over), item(s.buffer(store.targets[0].buffer).dtype)
    lines = 2 * machine.line_bytes // size * (rows + columns)
    if 2 * rows * columns * size > machine.l1_bytes and lines > rows * columns:
        return False
    jumps = [c for _, c in load_strides(s, store, over) if c not in (0, 1, None)]
    return _spread(columns, apart * size, machine) and all(_spread(rows, c // step * size, machine) for c in jumps)


def _spread(rows: int, apart: int, machine: Machine) -> bool:
    """Whether rows so many bytes apart begin at many different places in a first-level cache."""
    rows, apart = typical(rows), typical(apart)
    sets = machine.same_set_bytes // machine.line_bytes
    different = machine.same_set_bytes // gcd(machine.same_set_bytes, apart)  # from there on places come again
    places = {row * apart // machine.line_bytes % sets for row in range(min(rows, different))}
    return 4 * len(places) >= min(rows, sets)


def _tall(s: Schedule, block: str, columns: int, over: str, column: str, machine: Machine) -> bool:
    """Whether the rows that loop `over` takes vectors of are many and have few elements: then whole rows are read one
    after the other, and the lines that are written meanwhile wait in the nearest cache. They cannot if all have the
    same few places in it."""
    store = s.store(block)
    step, apart = store_stride(s, store, over), store_stride(s, store, column)
    if not step or not apart:
        return False
    size = item(s.buffer(store.targets[0].buffer).dtype)
    return (
        step * s.extent_or_zero(over) >= MIN_TALL_ROWS
        and columns <= MAX_NARROW_COLUMNS
        and FEW_PLACES * apart * size % machine.same_set_bytes != 0
    )


__all__ = ["For", "apply", "schedule_block", "schedule_border"]
