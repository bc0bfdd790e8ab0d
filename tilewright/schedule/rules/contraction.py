"""Sums of products (matmul, convolution, depthwise) and other reductions whose results are contiguous (pooling, sums
over outer dimensions): a tile of accumulators in registers, operands streamed past it.

The loop with stride 1 in the result becomes vector lanes (`n`); loops that move only the other operand become rows of
the tile (`m`). A constant operand that depends on `n` is packed so that each tile reads it front to back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from ...tensor.analysis import is_contraction
from ...tensor.expr import Const, Expr, Load, Op, Var, variables, walk
from ...tensor.kernel import Kernel, Stage
from ..decisions import Decisions
from ..machine import Machine, lanes
from ..schedule import Schedule, ScheduleError
from .common import fuse_outer, load_strides, store_stride
from .elementwise import schedule_border
from .tiles import Tile, around, join_readers, only_sum, pieces, registers

NAME = "contraction"
PRIORITY = 20


#: reduction loops of up to so many steps are laid out; where all of them are, tiles that need more than LAID_OUT
#: registers are slower (measured: by 10 to 30%), for LLVM then keeps more alive than the accumulators
SHORT, LAID_OUT = 4, 18
#: sides of windows up to this one are laid out: what neighbouring windows share is then loaded once (measured: twice as
#: fast for a window of 5)
WINDOW = 8
#: rows that lie a multiple of this many bytes apart share the sets of a first-level cache
PAGE = 4096
#: how far ahead packed weights may be asked for: the next panel while rows pass over this one, or so many floats;
#: STREAM where a panel is read once (a matrix times a vector)
NEXT_PANEL, AHEAD, STREAM = 1, (1024, 2048, 4096, 8192, 16384), 4096


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    before, after, borders = around(kernel, anchor)
    s = Schedule(kernel, decisions=decisions)
    try:
        for p in before:
            s.inline(p.name)
        last = join_readers(s, anchor, after)
    except ScheduleError as e:
        return e.message
    result = _tile(s, anchor, last, machine)
    if not isinstance(result, str):
        for b in borders:
            schedule_border(s, b.name, machine)
    return result


def _tile(s: Schedule, anchor: Stage, last: str, machine: Machine) -> Schedule | str:
    block = anchor.name
    extents = anchor.extents
    parallel = [v for v, _ in anchor.parallel]
    n = _lane_loop(s, block, last, parallel)
    if n is None:
        return "no loop is contiguous in the result"
    irregular = any(c not in (0, 1) for _, c in load_strides(s, s.store(block), n))
    if not is_contraction(anchor) and (irregular or extents[n] < 4):
        return "its operand is not contiguous along the result"
    dtype = s.buffer(anchor.buffer).dtype
    width = min(lanes(machine, dtype), _power_of_two(extents[n]))
    rows = _row_loops(s, block, parallel, n)
    if any(isinstance(x, Op) and x.op == "guard" for x in walk(s.store(block).targets[0].value)):
        rows = []  # every guarded load is a branch: a tile of rows would multiply them
    depth = prod(extents[k] for k in anchor.reduction)
    spans = [extents[m] for m in rows[:2]]
    window = _window(s, anchor, rows, n)
    if window is None:
        most = _rows_apart(s, block, rows, n, machine)
        caches = machine.l1_bytes, machine.l2_bytes
        short = is_contraction(anchor) and all(extents[k] <= SHORT for k in anchor.reduction)
        room = min(LAID_OUT, machine.vector_registers) if short and width > 1 else machine.vector_registers
        best = choose_tile(spans, extents[n], width, room, depth, caches, most)
    else:
        best = choose_window_tile(spans[0], extents[n], width, machine.vector_registers, *window)
    sizes = tile_candidates(spans, extents[n], width, machine.vector_registers)
    tile = Tile(*s.sample_choice("tile", sizes, (best.rows, best.outer_rows, best.vectors)))
    inner = [*s.split(n, tile.vectors * width)]
    n_o, n_i = inner
    m_o: list[str] = []
    m_i: list[str] = []
    used: list[str] = []
    for m, size in zip(rows[:2], (tile.rows, tile.outer_rows), strict=False):
        if size > 1:
            o, i = s.split(m, size)
            m_o, m_i, used = [o, *m_o], [i, *m_i], [*used, m]
    others = [v for v in parallel if v != n and v not in used]
    reductions = [v for v in anchor.reduction if v in s.loops()]
    batch = [v for v in others if all(c != 0 for _, c in load_strides(s, s.store(block), v))]
    rest = [v for v in others if v not in batch]
    order = _order(s, batch, n_o, [*rest, *m_o])
    outer = order.loops
    s.reorder(*outer, *reductions, *m_i, n_i)
    _pack(s, anchor, n, tile.vectors * width)
    at = fuse_outer(s, outer)
    assert at is not None
    new = s.reverse_compute_at(last, at)
    s.set_scope(anchor.buffer if anchor.buffer in s.temporaries else f"{anchor.buffer}_c", "register")
    for loops in ([*m_i, n_i], [v for v in new if v in s.loops()]):
        registers(s, loops, width)
    _unroll_reduction(s, reductions, SHORT if window is None else WINDOW)
    _prefetch(s, anchor, at, order, machine)
    s.parallel(at)
    return s


@dataclass(frozen=True)
class Order:
    """The loops over tiles from the outside in. `passes` is how often rows walk over a panel of weights before the next
    one's turn, `panels` how many there are (0: other loops decide too), and `repeated` whether they all come again."""

    loops: list[str]
    rows_inside: bool
    passes: int
    panels: int
    repeated: bool


def _order(s: Schedule, batch: list[str], n_o: str, rows: list[str]) -> Order:
    """Panels of columns outside and rows inside, or the other way round, or blocks of rows outside of both: threads
    take runs of the outermost, and what the innermost walks over should stay in the cache."""
    panels = 0 if batch else s.extent(n_o)
    rows_inside = s.sample_choice("rows_inside", (True, False), True)
    if not rows_inside:
        return Order([*batch, *rows, n_o], False, 1, panels, bool(rows))
    extent = s.extent(rows[0]) if rows else 1
    blocks = [b for b in range(1, 17) if b == 1 or (extent % b == 0 and s.extent(n_o) > 1)]
    count = s.sample_choice("row_blocks", blocks, 1)
    if count == 1:
        passes = prod(s.extent(v) for v in rows)
        return Order([*batch, n_o, *rows], True, passes, panels, False)
    run, inside = s.split(rows[0], extent // count)
    passes = prod(s.extent(v) for v in [inside, *rows[1:]])
    return Order([*batch, run, n_o, inside, *rows[1:]], True, passes, panels, True)


def _unroll_reduction(s: Schedule, reductions: list[str], short: int) -> None:
    """Lay out inner reduction loops of up to `short` steps; of a long one, `unroll` steps at a time."""
    for k in reversed(reductions):
        if s.extent(k) > short:
            break
        s.unroll(k)
        short = SHORT
    else:
        return
    extent = s.extent(k)
    # factors that leave a tail were measured and bring nothing
    factors = [f for f in (1, 2, 3, 4, 5, 6, 8) if extent % f == 0]
    factor = s.sample_choice("unroll", factors, max(f for f in factors if f <= 4))
    if factor > 1:
        s.unroll(s.split(k, factor)[1])


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
    lines = -(-panel * 4 // 64)
    walks = passes if ahead == NEXT_PANEL else 1  # of the panel, over which its lines are shared out
    share = -(-lines // (steps * walks))  # cache lines a step
    step: Expr = Const(0, "index")
    for v in loops:
        step = step * s.extent(v) + Var(v)
    position = (Var(at) % passes) * steps + step if walks > 1 else step
    number = Var(at) // passes if passes > 1 else Var(at)
    number = number % order.panels if order.repeated else number
    first = number * panel + (panel if ahead == NEXT_PANEL else ahead) + position * (share * 16)
    s.prefetch(loops[-1], buffer.name, [first + line * 16 for line in range(share)])


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
    """Loops along which an operand that depends on `n` stays the same, innermost first."""
    store = s.store(block)
    rows = []
    for v in reversed(parallel):
        if v == n:
            continue
        strides = load_strides(s, store, v)
        along_n = {str(x): c for x, c in load_strides(s, store, n)}
        if any(c == 0 and along_n[str(x)] != 0 for x, c in strides) and any(c for _, c in strides):
            rows.append(v)
    return rows


def _rows_apart(s: Schedule, block: str, rows: list[str], n: str, machine: Machine) -> int | None:
    """How many rows of the other operand the first-level cache holds side by side, if few because of their distance.

    Rows that are a page apart fall into one set of the cache, which has as many places as the cache has pages, those
    half a page apart into two (measured: 14 rows in 12 places take up to a third longer once other data pass)."""
    if not rows:
        return None
    along_n = {str(x): c for x, c in load_strides(s, s.store(block), n)}
    steps = [(x, c) for x, c in load_strides(s, s.store(block), rows[0]) if c and not along_n[str(x)]]
    apart = [gcd(c * 4, PAGE) for x, c in steps if c is not None and s.buffer(x.buffer).dtype == "f32"]
    return (machine.l1_bytes // PAGE - 2) * (PAGE // max(apart)) if apart else None


def choose_tile(
    rows: list[int],
    columns: int,
    width: int,
    registers: int,
    depth: int = 1,
    caches: tuple[int, int] = (32 << 10, 512 << 10),
    most: int | None = None,
) -> Tile:
    """The register tile with the fewest estimated cycles for the whole result; `depth` is the length of the reduction.
    Tiles of more than `most` rows are avoided.

    A tile of r rows and v vectors issues r*v multiply-adds (two a cycle), v vector loads and r broadcasts (two a
    cycle), and cannot be faster than the latency of its accumulators (about 4 cycles). The small terms are measured:
    loop overhead, broadcasts, and vector loads, which cost more if the panel they walk (depth * v vectors) is larger
    than the first-level cache, and more again if it does not stay in the second.
    """
    best: tuple[float, Tile] | None = None
    for size in tile_candidates(rows, columns, width, registers):
        cost = tile_cost(rows, columns, width, Tile(*size), depth, caches)
        if most is not None and size[0] * size[1] > most:
            cost *= 1.25
        if best is None or cost < best[0] - 1e-9:
            best = (cost, Tile(*size))
    assert best is not None
    return best[1]


def tile_cost(rows: list[int], columns: int, width: int, tile: Tile, depth: int, caches: tuple[int, int]) -> float:
    """The estimated cycles of one step of the reduction with a register tile; see `choose_tile`."""
    v = tile.vectors
    panel, (l1, l2) = depth * v * width * 4, caches
    load = 0.1 if panel <= l1 else 0.5 if panel <= l2 // 2 else 1.0
    write = (2 if v * width >= columns else 4) / depth  # results leave in whole rows, or in pieces of rows
    cost = 0.0
    for tv, tn in pieces(-(-columns // width), v):
        for tr, rn in pieces(rows[0] if rows else 1, tile.rows):
            for tq, qn in pieces(rows[1] if len(rows) > 1 else 1, tile.outer_rows):
                t = tr * tq
                steps = max(t * tv / 2, (t + tv) / 2, 4.0) + 0.15 + 0.05 * t + load * tv + write * t * tv
                cost += tn * rn * qn * steps
    return cost if tile.outer_rows == 1 else 1.05 * cost  # two rows of windows: more addresses to keep


def choose_window_tile(rows: int, columns: int, width: int, registers: int, step: int, size: int) -> Tile:
    """The register tile of a depthwise convolution: windows of `size` positions, `step` apart, along the rows.

    No operand is shared by the lanes. What neighbouring windows share is loaded once, if the positions that a tile
    touches stay in registers beside its accumulators: measured, spilling them makes the kernel twice as slow. More than
    two vectors, or two where windows do not overlap by much, are slower too, and so are partial tiles.
    """
    best: tuple[float, Tile] | None = None
    for r, q, v in tile_candidates([rows], columns, width, registers):
        span = (r - 1) * step + size
        if q > 1 or v > (2 if step == 1 else 1) or (r > 1 and (r + span) * v > registers):
            continue
        cost = 0.0
        for tv, tn in pieces(-(-columns // width), v):
            for tr, rn in pieces(rows, r):
                loads = ((tr - 1) * step + size) * tv / size + tv
                partial = 0.0 if tr == r else 4.0
                cost += tn * rn * (max(tr * tv / 2, loads / 2, 4.0) + 0.3 + 0.05 * tr + partial)
        if best is None or cost < best[0] - 1e-9:
            best = (cost, Tile(r, q, v))
    assert best is not None
    return best[1]


def tile_candidates(rows: list[int], columns: int, width: int, registers: int) -> list[tuple[int, int, int]]:
    """Register tiles that fit: (rows, outer rows, vectors)."""
    inner = rows[0] if rows else 1
    outer = rows[1] if len(rows) > 1 else 1
    found = []
    for v in range(1, 9):
        if v > 1 and (v - 1) * width >= columns:
            break
        for r in range(1, min(inner, 24) + 1):
            for q in range(1, min(outer, 4) + 1) if r == inner and inner <= 8 else (1,):
                # one for the broadcast: a tile that takes all registers is spilled where windows overlap (measured)
                if r * q * v + v + 1 <= registers:
                    found.append((r, q, v))
    return found


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


def _pack(s: Schedule, anchor: Stage, n: str, block: int) -> None:
    """Pack constant operands that depend on `n`: tiles of `block` columns first, the reduction dimensions in order,
    columns last.
    """
    original = anchor.targets[0]
    for x in {str(y): y for y in walk(original.value) if isinstance(y, Load)}.values():
        if x.buffer not in s.kernel.constants or x.buffer in s.packs:
            continue
        where = [d for d, i in enumerate(x.indices) if n in variables(i)]
        if len(where) != 1 or not isinstance(x.indices[where[0]], Var) or _reads(s, x.buffer) != 1:
            continue
        d = where[0]
        if not all(len(variables(i)) <= 1 for i in x.indices):
            continue
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


def _reads(s: Schedule, buffer: str) -> int:
    """In how many places a buffer is read."""
    return len(
        {
            str(x)
            for b in s.stages.values()
            for t in b.targets
            for x in walk(t.value)
            if isinstance(x, Load) and x.buffer == buffer
        }
    )
