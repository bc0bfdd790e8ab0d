"""Contractions and convolutions on tensor cores that groups of warps use together, on factors in shared memory.

What `tensor_cores` does with warps and fragments, with the larger instructions of groups: both factors stay in shared
memory, in rows along the sum that are swizzled as the instruction wants them. A constant factor that lies otherwise is
laid out so when the model is compiled.
"""

from __future__ import annotations

from dataclasses import replace

from ....support.dtypes import LOOP_TYPES
from ....tensor.expr import Const, Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine, WarpProduct
from ...nest import Stmt, store
from ...schedule import Schedule
from ...warp import NOTE
from ..common import inline_producers
from .contraction import Product, grid, read
from .tensor_cores import LATENCY, OTHER_REGISTERS, STEP, share, side
from .units import GROUP, MEMBER, axis, fits_axis, has_blocks, on
from .warp_tiles import COPY_BYTES, WarpTile, WarpWriter

NAME = "group_tensor_cores"
PRIORITY = 2
#: bytes of a row of a piece: what the instruction takes
ROW_BYTES = 128
#: what is tried: groups of a block along rows and columns, blocks of rows of a group, pieces at once
GROUPS, BLOCKS, STAGES = ((1, 1), (2, 1), (1, 2), (2, 2)), (1, 2), (2, 3, 4)
#: what a number from shared and from far memory is worth in multiply-adds: those of `tensor_cores` are half as fast
NEAR, FAR = 32, 80


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not has_blocks(machine) or axis(machine, GROUP) is None or axis(machine, MEMBER) is None:
        return "the machine has no groups of warps"
    if kernel.opaque:
        return "an operator with a loop nest of its own"
    s = Schedule(kernel, machine, decisions=decisions)
    inline_producers(s)
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
        assert isinstance(found, Product)
    return planned(s, found, products, machine)


def planned(s: Schedule, p: Product, products: list[WarpProduct], machine: Machine) -> Schedule | str:
    """The schedule with a nest, or why there is none."""
    sides = side(s, p, products[0], 0), side(s, p, products[0], 1)
    size = LOOP_TYPES[products[0].dtype].nbytes
    if not all(x.deep and x.plain and x.run * size == COPY_BYTES for x in sides):
        return "its factors do not lie along the sum"
    tile = choose(s, p, products, machine)
    if isinstance(tile, str):
        return tile
    product = next(w for w in products if w.columns == tile.unit_columns)
    s.body = GroupWriter(s, p, tile, product, sides, machine.warp_loads[0]).nest()
    s.temporaries.clear()
    s.plan = str(tile).replace("warps", "groups of warps")
    return s


def instructions(s: Schedule, p: Product, machine: Machine) -> list[WarpProduct]:
    """Those on factors in shared memory that multiply the factors of a product."""
    total = s.buffer(p.sum.targets[0].buffer).dtype
    found = [w for w in machine.warp_products if w.operands != w.memory and not w.first and w.sums == total]
    return [
        w
        for w in found
        if all(isinstance(f, Op) and f.op == w.extends and f.args[0].dtype == w.dtype for f in p.factors)
    ]


def turned(s: Schedule, p: Product) -> bool:
    """Whether constant factors have been laid out along the sum."""
    deep, done = [v for v, _ in p.depth], False
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


def choose(s: Schedule, p: Product, products: list[WarpProduct], machine: Machine) -> WarpTile | str:
    """The tile; what a tuner may change is asked of the schedule."""
    size = LOOP_TYPES[products[0].dtype].nbytes
    group, member = axis(machine, GROUP), axis(machine, MEMBER)
    assert group is not None and member is not None and member.limit is not None
    depth = ROW_BYTES // size
    if p.size("depth") % depth:
        return f"its sum has {p.size('depth')} steps, which are no multiple of {depth}"
    fits = []
    for w in products:
        for a, b in GROUPS:
            for n in BLOCKS:
                for stages in STAGES:
                    t = WarpTile(a * n * w.rows, b * w.columns, n * w.rows, w.columns, depth, stages, member.limit)
                    few = (t.rows < p.size("rows") + w.rows) and t.columns < p.size("columns") + w.columns
                    if few and a * b <= (group.limit or 1) and stages <= max(p.size("depth") // depth, 1):
                        fits.append(t)
    fits = [
        t
        for t in fits
        if share(t, _registers(t), size, machine) <= 1
        and _registers(t) + 2 * OTHER_REGISTERS <= machine.vector_registers
        and all(fits_axis(machine, a, n) for a, n in grid(p, t))
    ]
    if not fits:
        return "no tile fits the machine"
    best = min(fits, key=lambda t: (cost(t, p, products[0].rows, machine, size), -t.stages))
    if best.tiles(p) * 16 < machine.cores:
        return "its tiles are too few for groups of warps"
    numbers = [(t.rows, t.columns, t.unit_rows, t.unit_columns, t.depth, t.stages) for t in fits]
    m, n, a, b, d, k = s.sample_choice("tile", numbers, numbers[fits.index(best)])
    return WarpTile(m, n, a, b, d, k, best.lanes)


def _registers(t: WarpTile) -> int:
    """Of a unit: sums."""
    return t.unit_rows * t.unit_columns // t.lanes


def cost(t: WarpTile, p: Product, rows: int, machine: Machine, size: int) -> float:
    """As `tensor_cores.cost`; an instruction has so many rows."""
    turns = -(-t.tiles(p) // max(machine.cores // 8, 1))
    steps = p.size("depth") // t.depth
    at_once = min(turns, max(int(1 / share(t, _registers(t), size, machine)), 1))
    least = t.rows * t.columns * t.depth
    work = least * (1 + NEAR * (1 / t.unit_columns + 1 / rows) + FAR * (1 / t.rows + 1 / t.columns))
    wait = max(LATENCY / at_once - (t.stages - 1) * least, 0.0) + STEP / at_once
    return turns * (steps * (work + wait) + LATENCY / at_once)


class GroupWriter(WarpWriter):
    """Writes the nest of a product with a tile of groups of warps."""

    team_axis, unit_axis = GROUP, MEMBER

    def products(self, slot: Expr) -> Stmt:
        t, w = self.t, self.w
        team, part = Var("w"), Var("part")
        m, n, k = Var("mi"), Var("ni"), Var("ki")
        row = Var("mt") * w.rows + m
        deep = part * w.depth + k
        lines = team // self.across * t.unit_rows + row, team % self.across * t.unit_columns + n
        factors: list[Expr] = []
        for which, line in enumerate(lines):
            place = self.place(which, slot, line, deep // self.vector, deep % self.vector)
            factors.append(Op(w.extends, (Load(self.pieces[which].name, place, w.dtype),), w.sums))
        at = (team, row, n)
        old = Load(self.sums.name, at, w.sums)
        value = Op("addf", (old, Op("mulf", tuple(factors), w.sums)), w.sums)
        put = store(self.sums.name, at, value, self.s.fresh("multiply"))
        inner = replace(on("serial", "ki", w.depth, put), notes=((NOTE, w.name),))
        one = on("serial", "mi", w.rows, on("serial", "ni", w.columns, inner))
        every = on("unroll", "part", t.depth // w.depth, on("unroll", "mt", t.unit_rows // w.rows, one))
        return on(self.team_axis, "w", t.warps, every)


__all__ = ["NAME", "PRIORITY", "GroupWriter", "apply", "choose", "cost", "instructions", "turned"]
