"""Sums of products of bf16 or of bytes on registers that hold matrices (`machine.TileProduct`).

As `contraction`, but a register is a tile of 16 x 16 sums, and an instruction multiplies one of 16 rows by up to 64
bytes of the reduction with one of as many by 16 columns. Blocks of 2 x 2 such tiles make four products of four loads; a
narrow or a flat result takes 3 x 1 or 1 x 3. The sums of a block go through a piece of memory that stays in the
first-level cache, from which what follows them (bias, activation, residual, requantization) reads them in vectors.
Constant weights are packed to match, [columns][reduction][columns of the block][numbers of a group].

    for blocks of columns, blocks of rows:
      for k in K / 32:                                      # notes={'tiles': 'amx_bf16'}
        for m in 32: for n in 32: for q in 32: acc[m, n] += x[m, k, q] * w[k, q // 2, n, q % 2]
      for m in 32: for n in 32: y[m, n] = relu(acc[m, n] + bias[n])

The last block of rows or columns has tiles with fewer; the reduction advances by the largest step that divides it, for
a row that is cut off cannot be read to the end of the register.

A long reduction is cut into pieces for which 32 columns of weights and 32 rows fit the first-level cache together (256
long in bf16, 48 KiB); several blocks of rows pass over one piece, with their sums put aside in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....tensor.expr import Const, Load, Var
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine, TileProduct, VectorAccess
from ...primitives.dots import product_of_halves
from ...schedule import Schedule, ScheduleError
from ..common import fuse_outer, load_strides, store_stride
from ..elementwise.elementwise import schedule_border
from .integer_contraction import factors as factors_of_bytes
from .tiles import around, join_readers, only_sum, pack_weights, pieces, prefetch_panels

NAME = "tile-contraction"
PRIORITY = 15
#: fewer rows, or a smaller share of a register's row, are no faster than vectors
LEAST_ROWS, LEAST_SHARE = 4, 4
#: tiles of rows and of columns whose sums and factors fit eight registers
MOST_TILES = 3
#: steps of the reduction between which sums are worth being put aside
LEAST_STEPS = 4


@dataclass(frozen=True)
class Loops:
    """What the loops are: columns (contiguous in the result), rows (innermost first), the loop of the reduction along
    which numbers are neighbours, and how many of them are one step."""

    columns: str
    rows: tuple[str, ...]
    run: str
    step: int
    again: frozenset[str]


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    products = machine.tiles
    if not products:
        return "the machine has no registers that hold matrices"
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    before, after, borders = around(kernel, anchor)
    s = Schedule(kernel, decisions=decisions)
    try:
        for p in before:
            s.inline(p.name)
        found = _product(s, anchor, products)
        if isinstance(found, str):
            return found
        product, x, w = found
        loops = find_loops(s, anchor, product, x, w)
        if isinstance(loops, str):
            return loops
        last = join_readers(s, anchor, after)
        _tile(s, anchor, last, loops, product, w, machine)
    except ScheduleError as e:
        if "pieces" in s.decisions and s.decisions["pieces"].chosen:  # rows of an odd form: one block at a time
            return apply(kernel, machine, {**(decisions or {}), "pieces": False})
        return e.message
    for b in borders:
        schedule_border(s, b.name, machine)
    return s


def _product(s: Schedule, anchor: Stage, products: tuple[TileProduct, ...]) -> tuple[TileProduct, Load, Load] | str:
    """The instruction for a sum, and its factors: of the rows, and the constant one; or why there is none."""
    halves = product_of_halves(s.store(anchor.name).targets[0])
    if halves is not None:
        a, b = halves
        assert isinstance(a, Load) and isinstance(b, Load)
        signs, (x, w) = ("f", "f"), (b, a) if a.buffer in s.kernel.constants else (a, b)
    else:
        found = factors_of_bytes(s, anchor)
        if found is None:
            return "not a sum of products of bf16 or of bytes"
        (first, x), (second, w) = found
        signs = (first, second)
    product = next((p for p in products if (p.dtype, p.signs) == (x.dtype, signs)), None)
    if product is None:
        return f"the machine has no product of tiles of {x.dtype}"
    if w.buffer not in s.kernel.constants or x.buffer in s.kernel.constants:
        return "its weights are not constant"
    if not all(isinstance(i, (Var, Const)) for i in w.indices):
        return "its weights are not read in whole rows"
    return product, x, w


def find_loops(s: Schedule, anchor: Stage, product: TileProduct, x: Load, w: Load) -> Loops | str:
    """The loops that become columns, rows and steps of the reduction, or why there are none."""
    store, parallel, extents = s.store(anchor.name), [v for v, _ in anchor.parallel], anchor.extents

    def stride(load: Load, v: str) -> int | None:
        return {str(y): c for y, c in load_strides(s, store, v)}[str(load)]

    columns = [v for v in parallel if store_stride(s, store, v) == 1 and stride(x, v) == 0 and stride(w, v)]
    if not columns:
        return "its operand moves along the contiguous loop of the result"
    n = columns[-1]
    runs = [k for k in anchor.reduction if stride(x, k) == 1 and stride(w, k)]
    if not runs:
        return "no loop of the reduction has neighbours in the operand along the rows"
    run = runs[-1]
    steps = [k for k in range(product.group, product.depth + 1, product.group) if extents[run] % k == 0]
    if not steps or max(steps) * LEAST_SHARE < product.depth:
        return f"its runs of neighbours, {extents[run]}, do not divide into long steps"
    rows = tuple(v for v in reversed(parallel) if v != n and stride(w, v) == 0 and stride(x, v))
    if prod(extents[v] for v in rows[:2]) < LEAST_ROWS:
        return "it has too few rows"
    row = stride(x, rows[0])
    again = [
        k for k in anchor.reduction if row and (c := stride(x, k)) and c % row == 0 and c // row < extents[rows[0]]
    ]
    return Loops(n, rows, run, max(steps), frozenset(again))


def _tile(s: Schedule, anchor: Stage, last: str, loops: Loops, product: TileProduct, w: Load, machine: Machine) -> None:
    extents, n = anchor.extents, loops.columns
    parallel = [v for v, _ in anchor.parallel]
    spans = [extents[m] for m in loops.rows[:2]]
    steps = prod(extents[k] for k in anchor.reduction) // loops.step
    sizes = tile_candidates(spans, extents[n], product)
    best = choose_tile(spans, extents[n], steps, product, machine.access)
    rows, outer_rows, columns = s.sample_choice("tile", sizes, best)
    default = _rows_inside(s, anchor, loops, product, machine)
    n_o, n_i = s.split(n, columns * product.columns)
    m_o: list[str] = []
    m_i: list[str] = []
    used: list[str] = []
    for m, size in zip(loops.rows[:2], (rows, outer_rows), strict=False):
        if size > 1:
            o, i = s.split(m, size)
            m_o, m_i, used = [o, *m_o], [i, *m_i], [*used, m]
    k_o, k_i = s.split(loops.run, loops.step)
    reductions = [k_o if k == loops.run else k for k in anchor.reduction]
    others = [v for v in parallel if v != n and v not in used]
    batch = [v for v in others if all(c != 0 for _, c in load_strides(s, s.store(anchor.name), v))]
    moved = [*[v for v in others if v not in batch], *m_o]
    inside = s.sample_choice("rows_inside", (True, False), default)
    cached = None
    if inside:
        size = loops.step * product.size
        needs = Needs(rows * outer_rows * size, columns * product.columns * size, loops.again)
        sums = rows * outer_rows * columns * product.columns * 4
        panels = prod(s.extent(v) for v in (*batch, n_o))
        cached = _cached(s, moved, reductions, needs, sums, panels, machine)
    cached = cached or Cached(moved, [], [], reductions)
    outer = [*batch, *([n_o, *cached.outside] if inside else [*cached.outside, n_o])]
    s.reorder(*outer, *cached.pieces, *cached.rows, *cached.reductions, *m_i, n_i, k_i)
    pack_weights(s, anchor, w, n, loops.run, columns * product.columns, product.group)
    passes = prod(s.extent(v) for v in outer[1:]) if inside and not batch else 0
    at = fuse_outer(s, outer)
    assert at is not None
    s.reverse_compute_at(last, at)
    begin = s.decompose_reduction(anchor.name) if cached.pieces else None
    s.annotate(cached.reductions[0], "tiles", product.name)
    for v in (*m_i, n_i, k_i):
        s.unroll(v)
    for block in (last, begin) if begin else (last,):
        vector, lane = s.split(s.loops(block)[-1], machine.vector_bytes // 4)
        s.unroll(vector)
        s.vectorize(lane)
    panel = columns * product.columns
    prefetch_panels(s, anchor, n, panel, at, passes, product.size, machine, cached.pieces, cached.rows)
    s.parallel(at)


# ---- the first-level cache -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cached:
    """Loops around a block of sums: rows `outside` of a piece of the reduction and `rows` that pass over it, the
    `pieces` of the reduction, and the `reductions` of one."""

    outside: list[str]
    pieces: list[str]
    rows: list[str]
    reductions: list[str]


@dataclass(frozen=True)
class Needs:
    """Bytes of a block's rows and of its columns in one step of the reduction; `again` as in `Loops`."""

    rows: int
    columns: int
    again: frozenset[str]

    def bytes(self, steps: dict[str, int]) -> int:
        """Of so many steps of the loops of the reduction."""
        return self.columns * prod(steps.values()) + self.rows * prod(
            n for v, n in steps.items() if v not in self.again
        )


def _cached(
    s: Schedule,
    rows: list[str],
    reductions: list[str],
    needs: Needs,
    sums: int,
    panels: int,
    machine: Machine,
) -> Cached | None:
    """Let several blocks of rows pass over a piece of the panel of weights that stays in the first-level cache; None if
    that is not possible or brings nothing.

    Four products take as long as the second-level cache needs for about half of what they read; the weights then come
    from the first level. The price is that sums (`sums` bytes a block) are put aside between pieces, and that there is
    less to divide among threads: at least so much that they share it evenly.
    """
    room = machine.l1_bytes * 3 // 4
    single, rows = [v for v in rows if s.extent(v) == 1], [v for v in rows if s.extent(v) > 1]
    extents = {k: s.extent(k) for k in reductions}
    if needs.bytes(extents) <= room or not rows:
        return None
    extent = s.extent(rows[-1])
    others = panels * prod(s.extent(v) for v in rows[:-1])

    def shared(parts: int) -> bool:
        return parts % machine.cores == 0 or parts >= 4 * machine.cores

    most = min(machine.l1_bytes // 3 // sums, extent)  # blocks whose sums stay in the cache too
    counts = [d for d in range(2, most + 1) if extent % d == 0 and shared(others * (extent // d))]
    together = max(counts, default=0)
    piece: dict[str, int] = {}
    for k in reversed(reductions):
        parts = [d for d in range(1, extents[k] + 1) if extents[k] % d == 0]
        piece[k] = max((d for d in parts if needs.bytes({**piece, k: d}) <= room), default=1)
        if piece[k] < extents[k]:
            break
    if not together or prod(piece.values()) < LEAST_STEPS or not s.sample_choice("pieces", (True, False), True):
        return None
    pieces, inner = [k for k in reductions if k not in piece], []
    for k in (k for k in reductions if k in piece):
        if piece[k] == extents[k]:
            inner.append(k)
        elif piece[k] == 1:
            pieces.append(k)
        else:
            o, i = s.split(k, piece[k])
            pieces.append(o)
            inner.append(i)
    outside, inside = [*single, *rows[:-1]], rows[-1]
    if together < s.extent(inside):
        o, inside = s.split(inside, together)
        outside = [*outside, o]
    return Cached(outside, pieces, [inside], inner)


# ---- the tile ------------------------------------------------------------------------------------------------------


def tile_candidates(rows: list[int], columns: int, product: TileProduct) -> list[tuple[int, int, int]]:
    """Blocks whose sums and factors fit the registers: (rows, outer rows, tiles of columns)."""
    inner, outer = (*rows, 1, 1)[:2]
    found = []
    for c in range(1, min(MOST_TILES, -(-columns // product.columns)) + 1):
        for q in range(1, min(outer, MOST_TILES) + 1):
            for r in _row_sizes(inner, product.rows):
                tiles = q * -(-r // product.rows)
                if (q == 1 or r == inner) and tiles * c + tiles + c <= product.registers:
                    found.append((r, q, c))
    return found


def _row_sizes(rows: int, most: int) -> list[int]:
    """Whole registers, and what divides the rows evenly."""
    whole = {most * i for i in range(1, MOST_TILES + 1)} | {rows}
    even = {-(-rows // i) for i in range(1, rows + 1) if rows % i == 0}
    return sorted(r for r in whole | even if r <= min(rows, MOST_TILES * most))


def choose_tile(
    rows: list[int], columns: int, steps: int, product: TileProduct, access: VectorAccess
) -> tuple[int, int, int]:
    """The block with the fewest estimated cycles for the whole result; `steps` is the number of steps of the reduction.

    A product takes cycles for every row of its tiles, as their loads do; start and end of a block pass each row of its
    sums through memory. Nothing of this was measured.
    """
    inner, outer = (*rows, 1, 1)[:2]

    def cost(block: tuple[int, int, int]) -> float:
        r, q, c = block
        total = 0.0
        for tc, cn in pieces(-(-columns // product.columns), c):
            for tr, rn in pieces(inner, r):
                for tq, qn in pieces(outer, q):
                    lines = tq * tr
                    tiles = tq * -(-tr // product.rows)
                    # short tiles are not as fast as they look
                    multiply = tc * product.row_cycles * (0.5 * lines + 0.5 * product.rows * tiles)
                    load = lines + tc * product.rows
                    total += (
                        cn
                        * rn
                        * qn
                        * (steps * max(multiply, load * access.load) + 60 + 4 * tc * lines + 0.25 * steps * load)
                    )
        return total

    return min(tile_candidates(rows, columns, product), key=lambda t: (cost(t), t))


def _rows_inside(s: Schedule, anchor: Stage, loops: Loops, product: TileProduct, machine: Machine) -> bool:
    """Whether the rows pass inside the columns: if all rows' data stays in the second-level cache meanwhile, or is
    smaller than the weights."""
    along = load_strides(s, s.store(anchor.name), loops.columns)
    data = sum(s.buffer(x.buffer).size * product.size for x, c in along if c == 0)
    weights = sum(s.buffer(x.buffer).size * product.size for x, c in along if c != 0)
    return data <= machine.l2_bytes * 3 // 4 or weights > data
