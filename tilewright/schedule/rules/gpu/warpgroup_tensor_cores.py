"""Contractions and convolutions by warpgroup matrix instructions (``wgmma``), on factors in shared memory.

What `tensor_cores` does with warps and fragments, with the larger instructions of warpgroups: both factors stay in
shared memory, swizzled as the instruction wants them. Where the machine has a copy engine (TMA) that can load them, it
does, driven by a warpgroup that does nothing else (`warpgroup_pipelines`). Elsewhere threads load them, in rows along
the sum: windows of a convolution, for instance. A constant factor with another layout is repacked along the sum when
the model is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....support.dtypes import LOOP_TYPES
from ....support.sizes import at_most, is_open, larger, typical
from ....tensor.expr import Const, Load, Op, Var
from ....tensor.kernel import Kernel
from ...machine import Machine, WarpProduct
from ...nest import Stmt
from ...schedule import Schedule
from .contraction import Contraction, grid, read
from .tactics import loops_rule, not_loops
from .tensor_cores import share, side
from .thread_binding import CLUSTER, GROUP, MEMBER, axis, fits_axis, processors
from .tile_order import TileOrder, far, orders
from .warp_tiles import COPY_BYTES, WarpTile, innermost
from .warpgroup_pipelines import ROW, PipelineWriter, not_copied
from .warpgroup_tiles import WarpgroupWriter

NAME = "warpgroup_tensor_cores"
PRIORITY = 2
#: bytes of a row of a piece: what the instruction takes
ROW_BYTES = 128
#: what is tried: groups of a block along rows and columns, blocks of rows of a group, pieces at once
GROUPS, BLOCKS, STAGES = ((1, 1), (2, 1), (1, 2), (2, 2)), (1, 2), (2, 3, 4)
#: the same where an engine copies
BULK_STAGES = (2, 3, 4, 5, 6)


def write(s: Schedule, machine: Machine) -> Stmt | str:
    found = read(s)
    if isinstance(found, str):
        return found
    products = instructions(s, found, machine)
    if not products:
        return "no instruction of a group of warps multiplies its factors"
    if min(found.size(g) for g in ("rows", "columns", "depth")) < 2:
        return "one of its factors is a vector"
    if turned(s, found):
        found = read(s)
        assert isinstance(found, Contraction)
    return planned(s, found, products, machine)


def unfit(kernel: Kernel, machine: Machine) -> str:
    has = axis(machine, GROUP) is not None and axis(machine, MEMBER) is not None
    return not_loops(kernel, machine) if has else "the machine has no groups of warps"


apply = loops_rule(NAME, write, unfit)


def planned(s: Schedule, p: Contraction, products: list[WarpProduct], machine: Machine) -> Stmt | str:
    """The nest, or why there is none: one whose factors the copy engine loads, or else one whose threads do."""
    made = pipelined(s, p, products, machine)
    if not isinstance(made, str):
        return made
    why = made
    sides = side(s, p, products[0], 0), side(s, p, products[0], 1)
    size = LOOP_TYPES[products[0].dtype].nbytes
    if not all(x.deep and x.plain and x.run * size == COPY_BYTES for x in sides):
        return f"its factors do not lie along the sum, and {why}"
    tile = choose(s, p, products, machine, engine=False)
    if isinstance(tile, str):
        return tile if tile == why else f"{tile}, and {why}"
    s.plan = f"{_words(tile)}, loaded by its threads: {why}"
    return WarpgroupWriter(s, p, tile, _of(products, tile), sides, machine.warp_loads[0]).nest()


def pipelined(s: Schedule, p: Contraction, products: list[WarpProduct], machine: Machine) -> Stmt | str:
    """The nest whose factors the copy engine (TMA) loads, or why there is none."""
    if machine.bulk is None:
        return "the machine has no copy engine"
    if is_open(*(p.size(g) for g in ("batch", "rows", "columns", "depth"))):
        return "its sizes are open"
    if not all(side(s, p, products[0], i).plain for i in (0, 1)):
        return "a factor is computed on the way"
    if not s.sample_choice("engine", (True, False), True):
        return "as was decided"
    why, before, found = "", dict(s.decisions), list(views(p))
    for i in [s.fixed_decisions["view"]] if s.fixed_decisions.get("view") in range(len(found)) else range(len(found)):
        own = found[i]
        tile = choose(s, own, products, machine, engine=True)
        if isinstance(tile, str):
            why = why or tile
            break
        order = ordered(s, own, tile, machine, LOOP_TYPES[products[0].dtype].nbytes)
        sides = side(s, own, products[0], 0), side(s, own, products[0], 1)
        writer = PipelineWriter(s, own, tile, _of(products, tile), sides, machine.warp_loads[0], order)
        body = writer.nest(machine.bulk.side)
        if not (why := not_copied(body, s, machine)):
            if len(found) > 1:
                s.sample_choice("view", range(len(found)), i)
            s.plan = f"{_words(tile)}, copied by the engine{f', {order}' if order is not None else ''}"
            return body
        s.decisions = dict(before)
    s.sample_choice("engine", (False,), False)
    return why


def views(p: Contraction) -> Iterator[Contraction]:
    """A product with all rows and columns that it has; and if these are of several loops, with those of the innermost
    one, each time for the others: boxes run along one dimension. Not if less than half of a tile had such rows."""
    yield p
    for a, b in ((True, False), (False, True), (True, True)):
        rows, columns = innermost(p.rows) if a else None, innermost(p.columns) if b else None
        moved = [*(d for d in p.rows if rows and d != rows), *(d for d in p.columns if columns and d != columns)]
        whole = all(d is None or 2 * d[1] > ROW for d in (rows, columns))
        if moved and whole and (not a or len(p.rows) > 1) and (not b or len(p.columns) > 1):
            yield replace(
                p,
                batch=(*p.batch, *moved),
                rows=tuple(d for d in p.rows if d not in moved),
                columns=tuple(d for d in p.columns if d not in moved),
            )


def ordered(s: Schedule, p: Contraction, t: WarpTile, machine: Machine, size: int) -> TileOrder | None:
    """Which block makes which tile when; None where most of the machine has none. Otherwise what all blocks load keeps
    the cache busy: clusters load less of it, and blocks of several tiles wait less."""
    most = processors(machine) * max(int(1 / part(t, machine, size, engine=True)), 1)
    (_, across), (_, down), (_, batch) = grid(p, t)
    if across * down * batch * 2 <= most:
        return None
    cluster = axis(machine, CLUSTER)
    largest = cluster.limit or 1 if cluster is not None else 1
    found = [
        o for o in orders(down, across, batch, most, largest) if fits_axis(machine, "grid.x", o.blocks * o.cluster)
    ]
    if not found:
        return None

    def worth(o: TileOrder) -> tuple[int, int, int, int]:
        return -o.cluster, -o.turns, far(o, most, t.rows, t.columns), o.together

    numbers = [(o.turns, o.together, o.cluster) for o in found]
    best = numbers[found.index(min(found, key=worth))]
    return found[numbers.index(s.sample_choice("order", numbers, best))]


def _of(products: list[WarpProduct], tile: WarpTile) -> WarpProduct:
    return next(w for w in products if w.columns == tile.thread_columns)


def _words(tile: WarpTile) -> str:
    return str(tile).replace("warps", "groups of warps")


def instructions(s: Schedule, p: Contraction, machine: Machine) -> list[WarpProduct]:
    """Those on factors in shared memory that multiply the factors of a product."""
    total = s.buffer(p.sum.targets[0].buffer).dtype
    found = [w for w in machine.warp_products if w.operands != w.memory and not w.first and w.sums == total]
    return [
        w
        for w in found
        if all(isinstance(f, Op) and f.op == w.extends and f.args[0].dtype == w.dtype for f in p.factors)
    ]


def turned(s: Schedule, p: Contraction) -> bool:
    """Whether constant factors have been laid out along the sum: where rows along it then begin at multiples of what is
    copied at once."""
    deep, done = [v for v, _ in p.depth], False
    if innermost(p.depth)[1] % (COPY_BYTES // LOOP_TYPES["bf16"].nbytes):
        return False
    for f in p.factors:
        assert isinstance(f, Op)
        x = f.args[0]
        if not isinstance(x, Load) or x.buffer not in s.kernel.constants or x.buffer in s.packs:
            continue
        names = [i.name if isinstance(i, Var) else "" for i in x.indices]
        plain = all(isinstance(i, (Var, Const)) for i in x.indices)
        order = tuple(sorted(range(len(names)), key=lambda d: deep.index(names[d]) if names[d] in deep else -1))
        if plain and order != tuple(range(len(names))):
            s.pack(x.buffer, ((),) * len(names), order)
            done = True
    return done


def choose(s: Schedule, p: Contraction, products: list[WarpProduct], machine: Machine, engine: bool) -> WarpTile | str:
    """The tile; what a tuner may change is a decision of the schedule. With an `engine` that copies one more group
    begins copies, and zeros are beyond the sum."""
    size = LOOP_TYPES[products[0].dtype].nbytes
    group, member = axis(machine, GROUP), axis(machine, MEMBER)
    assert group is not None and member is not None and member.limit is not None
    depth = ROW_BYTES // size
    if p.size("depth") % depth and not engine:
        return f"its sum has {p.size('depth')} steps, which are no multiple of {depth}"
    fits = []
    for w in products:
        for a, b in GROUPS:
            for n in BLOCKS:
                for stages in BULK_STAGES if engine else STAGES:
                    t = WarpTile(a * n * w.rows, b * w.columns, n * w.rows, w.columns, depth, stages, member.limit)
                    beyond = ROW if engine else w.columns  # no panel of zeros alone
                    few = (t.rows < p.size("rows") + w.rows) and t.columns < p.size("columns") + beyond
                    enough = at_most(stages, larger(-(-p.size("depth") // depth), 2))
                    if few and a * b + engine <= (group.limit or 1) and enough:
                        fits.append(t)
    fits = [
        t
        for t in fits
        if part(t, machine, size, engine) <= 1
        and _registers(t) + 2 * machine.occupancy.beside <= machine.vector_registers
        and all(fits_axis(machine, a, n) for a, n in grid(p, t))
    ]
    if not fits:
        return "no tile fits the machine"
    best = min(fits, key=lambda t: (cost(t, p, products[0].rows, machine, size, engine), -t.stages, -t.warps))
    if best.tiles(p) * 2 < processors(machine):
        return "its tiles are too few for groups of warps"
    numbers = [(t.rows, t.columns, t.thread_rows, t.thread_columns, t.depth, t.stages) for t in fits]
    m, n, a, b, d, k = s.sample_choice("tile", numbers, numbers[fits.index(best)])
    return WarpTile(m, n, a, b, d, k, best.lanes)


def _registers(t: WarpTile) -> int:
    """Of a thread: sums."""
    return t.thread_rows * t.thread_columns // t.lanes


def part(t: WarpTile, machine: Machine, size: int, engine: bool) -> float:
    """The part of a multiprocessor that a tile takes."""
    return share(t, _registers(t), size, machine, t.lanes if engine else 0)


def cost(t: WarpTile, p: Contraction, rows: int, machine: Machine, size: int, engine: bool) -> float:
    """As `tensor_cores.cost`; an instruction has so many rows."""
    costs = machine.matrix_costs
    near, far = costs.near * costs.group_speed, costs.far * costs.group_speed
    turns = -(-typical(t.tiles(p)) // processors(machine))
    steps = -(-typical(p.size("depth")) // t.depth)
    at_once = min(turns, max(int(1 / part(t, machine, size, engine)), 1))
    least = t.rows * t.columns * t.depth
    work = least * (1 + near * (1 / t.thread_columns + 1 / rows) + far * (1 / t.rows + 1 / t.columns))
    wait = max(costs.latency / at_once - (t.stages - 1) * least, 0.0) + costs.barrier / at_once
    return turns * (steps * (work + wait) + costs.latency / at_once)


__all__ = ["NAME", "PRIORITY", "apply", "choose", "cost", "instructions", "turned"]
