"""Sums of products (matmul, convolution, depthwise) and other reductions whose results are contiguous (pooling, sums
over outer dimensions): a tile of accumulators in registers, operands streamed past it.

The loop with stride 1 in the result becomes vector lanes (`n`); loops that move only the other operand become rows of
the tile (`m`). A constant operand that depends on `n` is packed so that each tile reads it front to back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from ....tensor.analysis import is_contraction
from ....tensor.expr import Op, Var, variables, walk
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, store_stride
from ..elementwise.elementwise import schedule_border
from .cut_columns import cut_columns
from .half_vectors import half_vectors
from .long_sums import (
    Sizes,
    block_counts,
    blocks_pay,
    choose_blocks,
    default_runs,
    last_panel,
    prefetch_blocks,
    row_bytes,
    run_counts,
    schedule_sums,
    split_blocks,
)
from .row_lanes import row_lanes, stage_sums, write_rows
from .sum_lanes import sum_lanes
from .tile_choice import choose_tile, choose_window_tile, tile_candidates, whole_rows
from .tiles import (
    SHORT,
    Tile,
    iterations,
    only_sum,
    open_sum,
    pack_columns,
    registers,
    to_pack,
    unroll_reduction,
)
from .turned import ROWS as TURNED
from .turned import Across, lying_across, turn

NAME = "contraction"
PRIORITY = 21


#: where all reduction loops are laid out, tiles that need more registers are slower (measured: by 10 to 30%), for LLVM
#: then keeps more alive than the accumulators
LAID_OUT = 18
#: sums of up to so many products are laid out whole, in tiles of fewer registers: what their columns need stays in the
#: others, if there are enough (measured: 1.05 to 1.35 times as fast, 5 to 12 products)
HELD, HELD_ROOM = 12, 15
#: where sums take this part of the registers, one step of a block of the reduction is laid out: of two, LLVM keeps
#: sums in memory at times (14 by 2 vectors in 32 registers: 10 of 29 convolutions took 1.3 to 1.6 times the time)
CROWDED = 7 / 8
#: sides of windows up to this one are laid out: what neighbouring windows share is then loaded once (measured: twice as
#: fast for a window of 5)
WINDOW = 8
#: loads that a vector takes of elements that do not follow each other
PICKED = 5.0
#: results of a sum of one operand from which they need no other rows beside them (measured with vectors of 16)
ENOUGH = 128
#: the latency of additions counts in sums of so many products
LONG_BESIDE = 128
#: lanes of operands may lie so many elements apart: targets load whole vectors, and pick
CLOSE = 4
#: how far ahead packed weights may be asked for: the next panel while rows pass over this one, or so many floats;
#: STREAM where a panel is read once (a matrix times a vector)
NEXT_PANEL, AHEAD, STREAM = 1, (1024, 2048, 4096, 8192, 16384), 4096


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    s, last, borders = open_sum(kernel, anchor, decisions)
    try:
        result = _tile(s, anchor, last, machine)
    except ScheduleError:
        if "halves" not in s.decisions or not s.decisions["halves"].chosen:
            raise
        # vectors of two rows cannot always be shown to stay clear of a border: then each row ends in a partial one
        return apply(kernel, machine, {**(decisions or {}), "halves": False})
    if not isinstance(result, str):
        for b in borders:
            schedule_border(s, b.name, machine)
    return result


def _tile(s: Schedule, anchor: Stage, last: str, machine: Machine) -> Schedule | str:
    block = anchor.name
    parallel = [v for v, _ in anchor.parallel]
    columns_loop = _lane_loop(s, block, last, parallel)
    if columns_loop is None:
        return "no loop is contiguous in the result"
    far = any(c is None or not 0 <= c <= CLOSE for _, c in load_strides(s, s.store(block), columns_loop))
    row_loops = _row_loops(s, block, parallel, columns_loop)
    if far and row_loops and lying_across(s, anchor, columns_loop, CLOSE):
        far = not _shared(s, block, columns_loop, row_loops[0])  # else what lies across is turned round once for all
    if not is_contraction(anchor) and (far or anchor.extents[columns_loop] < 4):
        return "its operand is not contiguous along the result"
    if halves := half_vectors(s, anchor, columns_loop, row_loops, machine):
        return halves.schedule(s, anchor, last, machine)
    if by_parts := cut_columns(s, anchor, columns_loop, row_loops, machine):
        return by_parts.schedule(s, anchor, last, machine)
    if sums := sum_lanes(s, anchor, columns_loop, row_loops, machine):
        return sums.schedule(s, anchor, last, machine)
    form, extents = _form(s, anchor, columns_loop, machine), anchor.extents
    n, rows, width = form.n, form.rows, form.width
    staged = stage_sums(s, anchor, columns_loop) if form.turned_rows else None
    laid_out = form.short and s.sample_choice("lay_out", (True, False), True)
    parts, best = _choose(s, anchor, form, laid_out, machine)
    sizes = tile_candidates([extents[m] for m in rows[:2]], extents[n], width, machine.vector_registers)
    if (whole := whole_rows(s, anchor, columns_loop, width, machine.vector_registers)) and whole not in sizes:
        sizes, best = [*sizes, whole], Tile(*whole)
    tile = Tile(*s.sample_choice("tile", sizes, (best.rows, best.outer_rows, best.vectors)))
    shares = Shares(last_panel(extents[n], tile.vectors * width), _rows_shared(s, anchor, form, machine))
    cut = _cut(s, anchor, form, tile, machine)
    columns = tile.vectors * width
    reductions = [v for v in anchor.reduction if v in s.loops()]
    moved = prod(extents[v] for v in cut.moved)
    inside = parts > 1 or bool(form.across)  # rows pass over a part of the other operand
    needs = row_bytes(moved, prod(s.extent(k) for k in reductions) // parts, columns) if inside else None
    order = _order(s, cut, needs, shares, machine)
    blocked = split_blocks(s, parts, reductions, order.inside)
    outer = [v for v in order.loops if not inside or v not in order.inside]
    within = [v for v in order.loops if v not in outer]
    s.reorder(*outer, *blocked.blocks, *within, *blocked.inner, *cut.tile)
    pack_columns(s, anchor, columns_loop, tile.rows if staged else columns)
    at = fuse_outer(s, outer)
    assert at is not None
    turn(s, anchor, form.across, at, machine)
    where = order.inside[-1] if form.across and order.inside else at
    new = [v for v in s.reverse_compute_at(staged or last, where) if v in s.loops()]
    if staged:
        write_rows(s, last, at, machine)
    if blocked.blocks:
        schedule_sums(s, anchor, blocked, cut.tile, new, width)
    else:
        s.set_scope(s.store(block).targets[0].buffer, "register")
        registers(s, cut.tile, width)
        registers(s, new, width)
    crowded = tile.rows * tile.outer_rows * tile.vectors >= CROWDED * machine.vector_registers
    _lay_out(s, blocked.inner, form, laid_out, (1 if crowded else 2) if blocked.blocks else 4)
    if blocked.blocks:
        prefetch_blocks(s, anchor, at, order.panels, blocked, machine)
    elif not form.across:
        _prefetch(s, anchor, at, order, machine)
    s.parallel(at)
    return s


@dataclass(frozen=True)
class Cut:
    """The loops after a register tile was cut out: those of the tile (lanes last), over panels of columns (`n_o`), over
    tiles of rows and what else moves no column (`rows`), and over a batch; `moved` are the loops that `rows` were."""

    tile: list[str]
    n_o: str
    rows: list[str]
    batch: list[str]
    moved: list[str]


def _cut(s: Schedule, anchor: Stage, form: Form, tile: Tile, machine: Machine) -> Cut:
    n_o, n_i = s.split(form.n, tile.vectors * form.width)
    m_o: list[str] = []
    m_i: list[str] = []
    used: list[str] = []
    for m, size in zip(form.rows[:2], (tile.rows, tile.outer_rows), strict=False):
        if size > 1:
            o, i = s.split(m, size)
            m_o, m_i, used = [o, *m_o], [i, *m_i], [*used, m]
    rest = [v for v, _ in anchor.parallel if v not in (form.n, *used, *form.batch)]
    batch = form.batch
    if form.window is None and not form.across and (together := _beside(s, anchor, form, tile, machine)) > 1:
        o, i = s.split(batch[-1], together)
        batch, m_i = [*batch[:-1], o], [i, *m_i]
    return Cut([*m_i, n_i], n_o, [*rest, *m_o], batch, [*rest, *used])


def _lay_out(s: Schedule, reductions: list[str], form: Form, whole: bool, usual: int) -> None:
    """Unroll loops of the reduction, or all of them."""
    if whole:
        for k in reductions:
            s.unroll(k)
    else:
        unroll_reduction(s, reductions, SHORT if form.window is None else WINDOW, usual)


def _beside(s: Schedule, anchor: Stage, form: Form, tile: Tile, machine: Machine) -> int:
    """How many products of a batch are summed beside each other: as many as hide the latency of their additions."""
    sums, steps = tile.rows * tile.outer_rows * tile.vectors, prod(anchor.extents[k] for k in anchor.reduction)
    if not form.batch or form.width == 1 or not is_contraction(anchor) or steps < LONG_BESIDE:
        return 1
    most = min(machine.fma.in_flight, machine.vector_registers // 2) // sums
    fits = [d for d in range(1, most + 1) if s.extent(form.batch[-1]) % d == 0] or [1]
    return s.sample_choice("beside", fits, fits[-1])


@dataclass(frozen=True)
class Form:
    """Which loops do what: lanes of `width` run along `n`, `rows` are those of a tile (innermost first), `batch` moves
    everything. `across` are the operands to turn round for that; with `turned_rows` the lanes run along rows of the
    result, not along its columns. `window` is that of a depthwise convolution that `depthwise` refuses; `short`:
    the whole reduction may be laid out."""

    n: str
    rows: list[str]
    batch: list[str]
    width: int
    across: list[Across]
    turned_rows: bool
    window: tuple[int, int] | None
    short: bool


def _form(s: Schedule, anchor: Stage, n: str, machine: Machine) -> Form:
    block, extents = anchor.name, anchor.extents
    parallel = [v for v, _ in anchor.parallel]
    widest = lanes(machine, s.buffer(anchor.buffer).dtype)
    width = min(widest, _power_of_two(extents[n]))
    rows = _row_loops(s, block, parallel, n)
    if any(isinstance(x, Op) and x.op == "guard" for x in walk(s.store(block).targets[0].value)):
        rows = []  # every guarded load is a branch: a tile of rows would multiply them
    window = _window(s, anchor, rows, n)
    short = is_contraction(anchor) and window is None and prod(extents[k] for k in anchor.reduction) <= HELD
    short = short and width > 1 and machine.vector_registers > 2 * HELD
    across: list[Across] = []
    turned_rows = False
    if rows and window is None and width > 1:
        across = lying_across(s, anchor, n, CLOSE)
        if across and not s.sample_choice("turn", (True, False), prod(extents[m] for m in rows) >= TURNED):
            across = []
        elif not across:
            other = lying_across(s, anchor, rows[0], 1)
            turned_rows = bool(other) and row_lanes(s, anchor, n, rows[0], other[0], machine)
            if turned_rows:
                n, rows, across, width = rows[0], [n], other, widest
    batch = [v for v in parallel if v not in (n, *rows) and all(c for _, c in load_strides(s, s.store(block), v))]
    if turned_rows:
        batch = [v for v in parallel if v not in (n, *rows)]
    return Form(n, rows, batch, width, across, turned_rows, window, short)


def _choose(s: Schedule, anchor: Stage, form: Form, laid_out: bool, machine: Machine) -> tuple[int, Tile]:
    """In how many blocks the reduction is taken, and the best register tile for that."""
    n, rows, width = form.n, form.rows, form.width
    extents, room = anchor.extents, machine.vector_registers
    spans = [extents[m] for m in rows[:2]]
    if form.window is not None:
        return 1, choose_window_tile(spans[0], extents[n], width, *form.window, machine)
    steps = [extents[k] for k in anchor.reduction]
    most = _rows_apart(s, anchor.name, rows, n, machine)
    if laid_out:
        room = min(HELD_ROOM, room)
    elif is_contraction(anchor) and all(k <= SHORT for k in steps) and width > 1:
        room = min(LAID_OUT, room)
    far = _rows_far(s, anchor.name, n, prod(steps) * 2 * width * 4, machine)
    slides = _slides(s, anchor, n, machine)
    shared = machine.cores > 1 and not form.batch and not slides and not _rows_shared(s, anchor, form, machine)
    plain = choose_tile(spans, extents[n], width, room, prod(steps), machine, most, far, shared, slides or 1.0)
    counts = block_counts(steps)
    if len(counts) == 1 or form.batch or form.across or not rows or not _one_weight(s, anchor, n):
        return 1, plain
    others = [extents[v] for v, _ in anchor.parallel if v not in (n, *rows[:2])]
    sizes = Sizes(tuple(spans), tuple(others), extents[n], tuple(steps), width, most)
    usual, tile = choose_blocks(sizes, counts[1:], machine)
    count = s.sample_choice("k_blocks", counts, usual if blocks_pay(sizes, plain, machine) else 1)
    if count not in (1, usual):
        tile = choose_blocks(sizes, [count], machine)[1]
    return (1, plain) if count == 1 else (count, tile)


@dataclass(frozen=True)
class Order:
    """The loops over tiles from the outside in. `passes` is how often rows walk over a panel of weights before the next
    one's turn, `panels` how many there are (0: other loops decide too), and `repeated` whether they all come again."""

    loops: list[str]
    rows_inside: bool
    passes: int
    panels: int
    repeated: bool
    inside: list[str]


@dataclass(frozen=True)
class Shares:
    """What threads take of a result: the `last` panel of columns is this part of a whole one; `rows` says that they
    should take rows each, not columns."""

    last: float
    rows: bool


def _rows_shared(s: Schedule, anchor: Stage, form: Form, machine: Machine) -> bool:
    """Whether threads should share the rows of a result and not its columns.

    With columns of its own a thread reads all rows and its part of the weights; with rows of its own all weights, and
    of the rows its part alone, much of which it has made itself and has at hand. So where the weights are less (and
    stay in the second-level cache); measured in models: 1 to 5% of 1x1 convolutions. Not where the result is far larger
    than the rows: then it matters more who reads it, and depthwise convolutions share columns."""
    if form.window is not None or form.batch or form.across:
        return False
    loads = load_strides(s, s.store(anchor.name), form.n)
    rows = sum(s.buffer(b).size * 4 for b in {x.buffer for x, c in loads if c == 0})
    weights = sum(s.buffer(b).size * 4 for b in {x.buffer for x, c in loads if c != 0})
    small = weights < rows and weights <= machine.l2_bytes // 2
    return _one_weight(s, anchor, form.n) and small and s.buffer(anchor.buffer).size <= rows


def _order(s: Schedule, cut: Cut, needs: int | None, shares: Shares, machine: Machine) -> Order:
    """Panels of columns outside and rows inside, or the other way round, or blocks of rows outside of both: threads
    take runs of the outermost, and what the innermost walks over should stay in the cache.

    Blocks of the reduction (`needs`: bytes of the rows' part of one) want the rows inside."""
    batch, n_o, rows = cut.batch, cut.n_o, cut.rows
    panels = 0 if batch else s.extent(n_o)
    rows_inside = needs is not None or s.sample_choice("rows_inside", (True, False), True)
    if not rows_inside:
        return Order([*batch, *rows, n_o], False, 1, panels, bool(rows), [])
    extent = s.extent(rows[0]) if rows else 1
    runs = run_counts(extent) if needs is not None or s.extent(n_o) > 1 else [1]
    tasks = prod(s.extent(v) for v in (*batch, n_o))
    usual = machine.cores if shares.rows and machine.cores in runs else 1
    usual = usual if needs is None else default_runs(runs, tasks, needs, machine, shares.last)
    count = s.sample_choice("row_blocks", runs, usual)
    if count == 1:
        passes = prod(s.extent(v) for v in rows)
        return Order([*batch, n_o, *rows], True, passes, panels, False, rows)
    run, inside = s.split(rows[0], extent // count)
    passes = prod(s.extent(v) for v in [inside, *rows[1:]])
    return Order([*batch, run, n_o, inside, *rows[1:]], True, passes, panels, True, [inside, *rows[1:]])


def _prefetch(s: Schedule, anchor: Stage, at: str, order: Order, machine: Machine) -> None:
    """Ask for packed weights before they are used: in a model they come from beyond the second-level cache, and
    hardware prefetching stops at every page.

    Either while the rows pass over one panel for the next one, a share of it in every step of the reduction
    (`NEXT_PANEL`), or a number of floats ahead of the present one.
    """
    loops = [v for v in s.loops(anchor.name) if v != at and s.loop(v).kind == "serial"]
    packed = [s.params[b] for b in s.packs if s.params[b].size * 4 > machine.l1_bytes]
    if not order.panels or not loops or len(packed) != 1:
        return
    buffer = packed[0]
    panel, passes = buffer.size // buffer.shape[0], order.passes
    roomy = panel * 4 <= machine.l2_bytes // 4  # two panels and the rows fit it
    far = [d for d in AHEAD if d < buffer.size]
    spread = [NEXT_PANEL] if passes > 1 and roomy else []
    default = 0
    if order.rows_inside:
        default = min(panel, STREAM) if passes == 1 else NEXT_PANEL if roomy else 0
    ahead = s.sample_choice("prefetch", [0, *spread, *far], default)
    if not ahead:
        return
    steps = prod(s.extent(v) for v in loops)
    lines, each = -(-panel * 4 // machine.line_bytes), machine.line_bytes // 4
    walks = passes if ahead == NEXT_PANEL else 1  # of the panel, over which its lines are shared out
    share = -(-lines // (steps * walks))  # cache lines a step
    step = iterations(s, loops)
    position = (Var(at) % passes) * steps + step if walks > 1 else step
    number = Var(at) // passes if passes > 1 else Var(at)
    number = number % order.panels if order.repeated else number
    first = number * panel + (panel if ahead == NEXT_PANEL else ahead) + position * (share * each)
    s.prefetch(loops[-1], buffer.name, [first + line * each for line in range(share)])


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _lane_loop(s: Schedule, block: str, last: str, parallel: list[str]) -> str | None:
    """The loop to vectorize: contiguous in the accumulators, and best also in the operands."""
    best: tuple[int, str] | None = None
    store = s.store(block)
    for v in parallel:
        if store_stride(s, store, v) != 1:
            continue
        irregular = sum(c not in (0, 1) for _, c in load_strides(s, store, v))
        if best is None or irregular < best[0]:
            best = (irregular, v)
    return best[1] if best else None


def _row_loops(s: Schedule, block: str, parallel: list[str], n: str) -> list[str]:
    """Loops along which an operand that depends on `n` stays the same, innermost first. Of a reduction of one operand
    the innermost loop, where `n` is short: more sums that need not wait for each other."""
    store = s.store(block)
    rows = []
    for v in reversed(parallel):
        if v == n:
            continue
        strides = load_strides(s, store, v)
        along_n = {str(x): c for x, c in load_strides(s, store, n)}
        if any(c == 0 and along_n[str(x)] != 0 for x, c in strides) and any(c for _, c in strides):
            rows.append(v)
    if rows or is_contraction(s.stages[block]):
        return rows
    return [v for v in reversed(parallel) if v != n][:1] if s.extent(n) < ENOUGH else []


def _rows_apart(s: Schedule, block: str, rows: list[str], n: str, machine: Machine) -> int | None:
    """How many rows of the other operand the first-level cache holds side by side, if few because of their distance.

    Rows that are `same_set_bytes` apart fall into one set of the cache, which has as many places as these fit into it,
    those half as far apart into two (measured: 14 rows in 12 places take up to a third longer once other data pass)."""
    if not rows:
        return None
    along_n = {str(x): c for x, c in load_strides(s, s.store(block), n)}
    steps = [(x, c) for x, c in load_strides(s, s.store(block), rows[0]) if c and not along_n[str(x)]]
    way = machine.same_set_bytes
    apart = [gcd(c * 4, way) for x, c in steps if c is not None and s.buffer(x.buffer).dtype == "f32"]
    return (machine.l1_bytes // way - 2) * (way // max(apart)) if apart else None


def _rows_far(s: Schedule, block: str, n: str, panel: int, machine: Machine) -> bool:
    """Whether the other operand does not stay in the second-level cache until the next panel (of two vectors: `panel`
    bytes) is its turn, and panels do not stay in the first-level cache in any case."""
    rows = sum(s.buffer(x.buffer).size * 4 for x, c in load_strides(s, s.store(block), n) if c == 0)
    return rows > machine.l2_bytes and panel > machine.l1_bytes


def _shared(s: Schedule, block: str, n: str, row: str) -> bool:
    """Whether all operands that depend on `n` are the same along a loop over rows."""
    along_row = {str(x): c for x, c in load_strides(s, s.store(block), row)}
    return all(c == 0 or along_row[str(x)] == 0 for x, c in load_strides(s, s.store(block), n))


def _slides(s: Schedule, anchor: Stage, n: str, machine: Machine) -> float:
    """How many loads a vector of an operand takes whose window slides along the lanes (a convolution with its channels
    first): its vectors begin anywhere in a cache line. 0 for other operands."""
    loads = load_strides(s, s.store(anchor.name), n)
    slide = [
        c for x, c in loads if c and any(n in (v := variables(i)) and v & set(anchor.reduction) for i in x.indices)
    ]
    split = machine.access.split_load / machine.access.load
    return 0.0 if not slide else split if slide == [1] else PICKED


def _window(s: Schedule, anchor: Stage, rows: list[str], n: str) -> tuple[int, int] | None:
    """(step, size) of the window that slides along the first row loop if no operand is shared by the lanes (a depthwise
    convolution); else None."""
    store = s.store(anchor.name)
    if not rows or not is_contraction(anchor):
        return None
    along_n = {str(x): c for x, c in load_strides(s, store, n)}
    moving = {str(x): c for x, c in load_strides(s, store, rows[0]) if c != 0}
    reductions = [v for v in anchor.reduction if v in s.loops()]
    if len(moving) != 1 or not reductions or any(along_n[x] == 0 for x in moving):
        return None
    ((x, step),) = moving.items()
    inner = next((c for y, c in load_strides(s, store, reductions[-1]) if str(y) == x), None)
    if not inner or step is None or step % inner:
        return None
    return step // inner, s.extent(reductions[-1])


def _one_weight(s: Schedule, anchor: Stage, n: str) -> bool:
    """Whether a kernel sums products in f32 with one operand to pack, which depends on the columns and the reduction
    alone."""
    packed = to_pack(s, anchor, n)
    if not is_contraction(anchor) or len(packed) != 1 or s.buffer(anchor.buffer).dtype != "f32":
        return False
    return {v for i in packed[0][0].indices for v in variables(i)} <= {n, *anchor.reduction}
