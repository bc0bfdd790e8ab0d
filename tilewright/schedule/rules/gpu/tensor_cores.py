"""Contractions and convolutions on tensor cores by warp instructions (``mma``), from factors in shared memory.

What is taken, and the groups of loops, are those of `contraction`; the factors have to be numbers that an instruction
of a warp multiplies (`machine.WarpProduct`): products in f32 stay where they are. `warp_tiles` writes the nest.
"""

from __future__ import annotations

from ....support.dtypes import LOOP_TYPES
from ....support.sizes import at_most, typical
from ....tensor.analysis import flat
from ....tensor.expr import Expr, Load, Op, Var, from_linear, linear, loads, simplify
from ....tensor.kernel import Kernel
from ...machine import Machine, WarpProduct
from ...nest import Stmt
from ...region import all_ranges
from ...schedule import Schedule
from ..common import coefficient
from .contraction import SMALL, Contraction, grid, read
from .tactics import loops_rule, not_loops
from .thread_binding import BLOCK, LANE, WARP, axis, fits_axis, processors, shared
from .warp_tiles import COPY_BYTES, Side, WarpTile, WarpWriter, innermost

NAME = "tensor_cores"
PRIORITY = 3
#: what is tried: rows and columns of a warp, warps of a block along both, steps of the sum in instructions, tiles that
#: are in shared memory at once
ROWS, COLUMNS = (64, 32, 16), (64, 32, 16, 8)
WARPS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
DEPTHS, STAGES = (1, 2, 4), (1, 2, 3, 4)
#: the same where pieces of both factors are small: few rows of one, and all of the other comes from global memory
MORE_STAGES, SMALL_BYTES = (6, 8), 12 << 10
#: the fewest bytes that a thread may copy while it goes on
LEAST_BYTES = 4


def write(s: Schedule, machine: Machine) -> Stmt | str:
    found = read(s)
    if isinstance(found, str):
        return found
    product = instruction(s, found, machine)
    if isinstance(product, str):
        return product
    if padded(s, found, product):
        found = read(s)
        assert isinstance(found, Contraction)
    if min(found.size("rows"), found.size("columns")) < 2 or _multiplications(found) < SMALL:
        return "one of its factors is a vector, or it is small"
    sides = side(s, found, product, 0), side(s, found, product, 1)
    tile = choose(s, found, product, sides, machine)
    if isinstance(tile, str):
        return tile
    s.plan = str(tile)
    return WarpWriter(s, found, tile, product, sides, machine.warp_loads[0]).nest()


def unfit(kernel: Kernel, machine: Machine) -> str:
    has = machine.warp_products and machine.warp_loads
    return not_loops(kernel, machine) if has else "the machine has no instructions of warps"


apply = loops_rule(NAME, write, unfit)


# ---- what is multiplied ----------------------------------------------------------------------------------------------


def instruction(s: Schedule, p: Contraction, machine: Machine) -> WarpProduct | str:
    """The matrix instruction for the factors of a product, or why there is none."""
    total = s.buffer(p.sum.targets[0].buffer).dtype
    for w in machine.warp_products:
        own = w.operands == w.memory and w.sums == total
        if own and all(isinstance(f, Op) and f.op == w.extends and f.args[0].dtype == w.dtype for f in p.factors):
            return w
    return "no instruction of a warp multiplies its factors"


def padded(s: Schedule, p: Contraction, product: WarpProduct) -> bool:
    """Whether rows of a constant factor are padded, so that each begins where copies can."""
    most, done = COPY_BYTES // LOOP_TYPES[product.dtype].nbytes, False
    for f, group in zip(p.factors, (p.rows, p.columns), strict=True):
        assert isinstance(f, Op)
        x = f.args[0]
        if not isinstance(x, Load) or x.buffer not in s.kernel.constants or x.buffer in s.packs:
            continue
        alone = sum(n != 1 for _, n in group) == 1 and x.indices[-1] == Var(innermost(group)[0])
        if alone and s.buffer(x.buffer).shape[-1] % most:
            dims = len(x.indices)
            s.pack(x.buffer, (*((),) * (dims - 1), (most,)), tuple(range(dims + 1)))
            done = True
    return done


def side(s: Schedule, p: Contraction, product: WarpProduct, which: int) -> Side:
    f = p.factors[which]
    assert isinstance(f, Op)
    value, group = f.args[0], p.rows if which == 0 else p.columns
    size = LOOP_TYPES[product.dtype].nbytes
    deep = size == 1 or lies_along_sum(s, value, group, p.depth)  # single bytes cannot be turned on the way to a warp
    filled = isinstance(value, Load) and value.buffer in s.packs and not deep
    var, extent = innermost(p.depth if deep else group)
    run = COPY_BYTES // size
    for x in loads(value):
        run = min(run, _run(_place(s, x), var, 0 if filled else extent, run))
    return Side(value, group, deep, run, isinstance(value, Load))


def lies_along_sum(
    s: Schedule, value: Expr, group: tuple[tuple[str, int], ...], depth: tuple[tuple[str, int], ...]
) -> bool:
    for x in loads(value):
        where = _place(s, x)
        if coefficient(where, innermost(depth)[0]) == 1:
            return True
        if coefficient(where, innermost(group)[0]) == 1:
            return False
    return False


def lies_along_batch(s: Schedule, value: Expr, batch: tuple[tuple[str, int], ...]) -> bool:
    """Whether a factor is contiguous along the batch."""
    wide = [d for d in batch if d[1] != 1]
    return bool(wide) and any(coefficient(_place(s, x), v) == 1 for x in loads(value) for v, _ in wide)


def _place(s: Schedule, x: Load) -> Expr:
    """The flat index of a load; what a layout has split in it is joined."""
    ranges = all_ranges(s.body)
    terms, constant = linear(flat(s.buffer(x.buffer), [simplify(i, ranges) for i in x.indices]))
    return from_linear(terms, constant, ranges)


def _run(where: Expr, var: str, extent: int, most: int) -> int:
    """The length of the contiguous, aligned runs along a loop."""
    step = coefficient(where, var)
    if step == 0:
        return most
    if step != 1:
        return 1
    terms, constant = linear(where)
    others = [c for t, c in terms.items() if t != Var(var)]
    run = most
    while run > 1 and any(n % run for n in (extent, constant, *others)):
        run //= 2
    return run


# ---- tiles -----------------------------------------------------------------------------------------------------------


def choose(s: Schedule, p: Contraction, w: WarpProduct, sides: tuple[Side, Side], machine: Machine) -> WarpTile | str:
    """The tile; what a tuner may change is a decision of the schedule."""
    warps, lanes = axis(machine, WARP), axis(machine, LANE)
    assert warps is not None and lanes is not None and lanes.limit is not None
    size = LOOP_TYPES[w.dtype].nbytes
    fits = [
        t
        for t in _tiles(p, w, sides, lanes.limit)
        if t.warps <= (warps.limit or 1)
        and _registers(t, w) <= machine.vector_registers * 3 // 4
        and share(t, _registers(t, w), size, machine) <= 1
        and all(fits_axis(machine, a, n) for a, n in grid(p, t))
    ]
    if not fits:
        return "no tile fits the machine"
    best = min(fits, key=lambda t: (cost(t, p, w, machine), -t.stages))
    m, n, a, b, d, k = s.sample_choice("tile", [_numbers(t) for t in fits], _numbers(best))
    return WarpTile(m, n, a, b, d, k, best.lanes)


def _numbers(t: WarpTile) -> tuple[int, ...]:
    return (t.rows, t.columns, t.thread_rows, t.thread_columns, t.depth, t.stages)


def _registers(t: WarpTile, w: WarpProduct) -> int:
    """Registers of a lane: accumulators, and the fragments of a step of both factors."""
    return (
        t.thread_rows * t.thread_columns // t.lanes
        + (t.thread_rows // w.rows) * 4
        + (t.thread_columns // w.columns) * 2
    )


def _multiplications(p: Contraction) -> int:
    return p.size("rows") * p.size("columns") * p.size("depth")


def _tiles(p: Contraction, w: WarpProduct, sides: tuple[Side, Side], lanes: int) -> list[WarpTile]:
    size = LOOP_TYPES[w.dtype].nbytes
    rows, columns, depth = p.size("rows"), p.size("columns"), p.size("depth")
    copied = all(x.plain and x.run * size >= LEAST_BYTES for x in sides)
    found = []
    for a, b in WARPS:
        for m in ROWS:
            for n in COLUMNS:
                if (a * m >= 2 * rows and a * m > w.rows) or (b * n >= 2 * columns and b * n > w.columns):
                    continue
                # a row of a piece has to be one that is read at once
                if not sides[1].deep and b * n * size < COPY_BYTES:
                    continue
                for d in (k * w.depth for k in DEPTHS):
                    if d >= 2 * depth and d > w.depth:
                        continue
                    small = (a * m + b * n) * d * size <= SMALL_BYTES
                    several = (*STAGES[1:], *(MORE_STAGES if small else ())) if copied and depth % d == 0 else ()
                    ahead = [k for k in several if at_most(k, depth // d)] or STAGES[:1]
                    found += [WarpTile(a * m, b * n, m, n, d, k, lanes) for k in ahead]
    return found


def cost(t: WarpTile, p: Contraction, w: WarpProduct, machine: Machine) -> float:
    """What a tile is worth, in multiply-adds of a multiprocessor's tensor cores.

    Each number that a warp reads from shared memory is worth so many, one from global memory more; a step of the sum
    costs a barrier, and what its copies take longer than the steps that they are ahead: so many of them are on their
    way at once. A multiprocessor works on several tiles at once if these leave it the memory and the registers; with
    few warps it is idle.
    """
    costs, steps = machine.matrix_costs, -(-typical(p.size("depth")) // t.depth)
    turns = -(-typical(t.tiles(p)) // processors(machine))
    at_once = min(turns, max(int(1 / share(t, _registers(t, w), LOOP_TYPES[w.dtype].nbytes, machine)), 1))
    near = costs.near * (1 / t.thread_rows + 1 / t.thread_columns)
    far = costs.far * (1 / t.rows + 1 / t.columns)
    least = t.rows * t.columns * t.depth * max(costs.warps / (t.warps * at_once), 1.0)
    work = least * (1 + near + far)
    ahead = max(t.stages - 1, 1)
    wait = max(costs.latency / at_once / ahead - (least if t.stages > 1 else 0.0), 0.0) + costs.barrier / at_once
    return turns * (steps * (work + wait) + costs.latency / at_once)


def share(t: WarpTile, registers: int, size: int, machine: Machine, more: int = 0) -> float:
    """The part of a multiprocessor's shared memory or registers that a tile takes: a thread has so many for matrices,
    and some for all else; `more` threads have as many. The largest block has a quarter of the registers that a thread
    may have."""
    memory, block = shared(machine), axis(machine, BLOCK)
    assert memory is not None and block is not None and block.limit is not None
    all_of_it = block.limit * machine.vector_registers // 4
    return max(t.bytes(size) / memory.bytes, (t.threads + more) * (registers + machine.occupancy.beside) / all_of_it)


__all__ = ["NAME", "PRIORITY", "apply", "choose", "cost", "instruction", "padded", "share", "side"]
