"""Transpositions: elementwise kernels that write rows and read columns. What is read across comes in tiles through
shared memory, so that neighbouring units read neighbours and write neighbours.

    for each tile, on a block:
        units bring it row by row of what is read, into rows of shared memory that are one element longer
        units write it row by row of the result, with what else is computed

A unit brings neighbours at once, and writes such, where the machine has accesses that long and all rows are made of
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....support.dtypes import LOOP_TYPES
from ....support.sizes import typical
from ....tensor.expr import Buffer, Expr, Load, Op, Var, children, map_loads, substitute
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...nest import Alloc, Barrier, Stmt, Store, seq, store, stores
from ...schedule import Schedule
from ..common import inline_producers, load_strides, merge_loops, store_stride
from .units import (
    BLOCK,
    all_of,
    axis,
    block_number,
    blocks_on_grid,
    digits,
    grid_of,
    has_blocks,
    on,
    only_if,
    shared,
    within,
)

NAME = "block_transpose"
PRIORITY = 8
#: shorter rows or columns are not worth a tile
SHORT = 8
#: sides of a tile, and elements of it that a unit takes: what is tried
SIDES, ELEMENTS = (64, 32, 16, 8), (4, 1, 2, 8)
_LANE = Var("lane")


@dataclass(frozen=True)
class Across:
    """A store whose rows run along the loop `row`, while `reads` run along `column`, and the other loops."""

    store: Store
    row: tuple[str, int]
    column: tuple[str, int]
    others: tuple[tuple[str, int], ...]
    reads: tuple[Load, ...]


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not has_blocks(machine):
        return "the machine has no grid of blocks"
    if kernel.opaque or kernel.one_thread:
        return "an operator with a loop nest of its own, or a part of a kernel"
    if any(t.init is not None for x in kernel.stages for t in x.targets):
        return "it contains a reduction"
    s = Schedule(kernel, machine, decisions=decisions)
    inline_producers(s)
    found = read(s)
    if isinstance(found, str):
        return found
    tile = choose(s, found, machine)
    if isinstance(tile, str):
        return tile
    s.body = Writer(found, tile, s, machine).nest()
    s.temporaries.clear()
    s.plan = f"tiles of {tile[0]} x {tile[0]} through shared memory, {tile[1]} elements a unit"
    return s


def read(s: Schedule) -> Across | str:
    """The one store of a kernel whose producers have been inlined, or why it is no transposition."""
    blocks = stores(s.body)
    if len(blocks) != 1 or len(blocks[0].targets) != 1 or s.temporaries:
        return "it is not one store"
    name = blocks[0].block
    order = merge_loops(s, name, s.loops(name))
    block = s.store(name)
    dims = [(v, s.extent_or_zero(v)) for v in order]
    if any(n == 0 for _, n in dims):
        return "its extents vary"
    row = next((d for d in dims if store_stride(s, block, d[0]) == 1), None)
    if row is None:
        return "its results do not lie in rows"
    plain = _always(block.targets[0].value)
    jumps = {str(x) for x, c in load_strides(s, block, row[0]) if c not in (0, 1, None)} & plain
    for d in (d for d in dims if d != row):
        reads = tuple(x for x, c in load_strides(s, block, d[0]) if c == 1 and str(x) in jumps)
        if reads and min(d[1], row[1]) >= SHORT:
            return Across(block, row, d, tuple(x for x in dims if x not in (row, d)), reads)
    return "nothing is read across, or rows are short"


def _always(e: Expr) -> set[str]:
    """The texts of the loads of a value that do not hang on a condition."""
    if isinstance(e, Load):
        return {str(e)}.union(*map(_always, e.indices))
    lazy = isinstance(e, Op) and e.op in ("guard", "seldom")
    return set[str]().union(*(_always(c) for i, c in enumerate(children(e)) if not (lazy and i == 1)))


def choose(s: Schedule, a: Across, machine: Machine) -> tuple[int, int] | str:
    """The side of the tile, and elements of it that a unit takes."""
    block, memory = axis(machine, BLOCK), shared(machine)
    assert block is not None and memory is not None
    size = sum(LOOP_TYPES[x.dtype].nbytes for x in a.reads)
    fits = [
        (side, each)
        for side in SIDES
        for each in ELEMENTS
        if side * side // each <= (block.limit or 1) and side * (side + 1) * size <= memory.bytes
    ]
    if not fits:
        return "no tile fits the machine"
    return s.sample_choice("tile", fits, min(fits, key=lambda t: cost(t, a, machine)))


def cost(tile: tuple[int, int], a: Across, machine: Machine) -> float:
    """What a tile is worth: lines of memory that are not used up and places beyond the result count as time, and so do
    the indices of each unit, and units of a block that are few."""
    side, each = tile
    lines = max(machine.line_bytes / 4 / side, 1.0)
    beyond = prod(-(-n // side) * side / n for n in (typical(a.row[1]), typical(a.column[1])))
    idle = max(machine.line_bytes / (side * side / each), 1.0)
    return (lines + 1 / each + side / 256) * beyond * idle


class Writer:
    """Writes the nest of a transposition with tiles of a side."""

    def __init__(self, a: Across, tile: tuple[int, int], s: Schedule, machine: Machine) -> None:
        self.a, (self.side, self.each), self.s = a, tile, s
        self.units = self.side * self.side // self.each
        wide = lanes(machine)
        in_runs = all(n % wide == 0 for n in (self.side, self.each, a.row[1], a.column[1]))
        self.wide = wide if in_runs else 1
        self.tiles = [-(-n // self.side) for _, n in (a.column, a.row)]
        self.blocks = prod(self.tiles) * prod(n for _, n in a.others)
        self.grid = grid_of(self.blocks, machine)
        whole = self.grid[0] * self.grid[1]
        self.number = block_number(self.grid, "tile")
        self.exists = None if whole == self.blocks else within(self.number, self.blocks, whole)
        self.places = digits(self.number, [*a.others, ("%column", self.tiles[0]), ("%row", self.tiles[1])])
        self.pieces = [
            Buffer(s.fresh(f"across_{i}"), (self.side, self.side + 1), x.dtype, "shared") for i, x in enumerate(a.reads)
        ]

    def nest(self) -> Stmt:
        body = seq(self.bring(), Barrier(BLOCK), self.put())
        for b in reversed(self.pieces):
            body = Alloc(b, body)
        return blocks_on_grid(self.grid, "tile", body)

    def phase(self, name: str, across: bool) -> tuple[Expr, Expr, Expr | None, dict[str, Expr]]:
        """Row and column within the tile of a unit's element, the condition that they exist, and all loops' values;
        neighbouring units go along columns, or `across` them."""
        a, u, step = self.a, Var(f"u_{name}"), Var(f"e_{name}")
        beside = self.side // self.wide
        far, first = step * (self.units // beside) + u // beside, u % beside * self.wide
        near = first + _LANE if self.wide > 1 else first
        row, column = (far, near) if across else (near, far)
        at_row, at_column = (self.places[n] * self.side for n in ("%row", "%column"))
        begin = (far, first) if across else (first, far)  # neighbours exist together
        inside = [within(at_row + begin[0], a.row[1], self.side), within(at_column + begin[1], a.column[1], self.side)]
        values = {v: self.places[v] for v, _ in a.others} | {a.row[0]: at_row + row, a.column[0]: at_column + column}
        return row, column, all_of([self.exists, *inside]), values

    def loops(self, name: str, body: Stmt) -> Stmt:
        return on("block.x", f"u_{name}", self.units, on("unroll", f"e_{name}", self.each // self.wide, body))

    def lanes(self, body: Stmt) -> Stmt:
        return body if self.wide == 1 else on("vector", _LANE.name, self.wide, body)

    def bring(self) -> Stmt:
        """Bring what is read across, along its rows."""
        row, column, inside, values = self.phase("in", True)
        parts = zip(self.pieces, self.a.reads, strict=True)
        puts = [store(b.name, (row, column), substitute(x, values), f"bring_{i}") for i, (b, x) in enumerate(parts)]
        return self.loops("in", only_if(inside, seq(*map(self.lanes, puts))))

    def put(self) -> Stmt:
        """Write the result along its rows."""
        row, column, inside, values = self.phase("out", False)
        here = {str(x): Load(b.name, (row, column), x.dtype) for b, x in zip(self.pieces, self.a.reads, strict=True)}
        t = self.a.store.targets[0]
        value = map_loads(t.value, lambda x: Var(f"%{x}", x.dtype) if str(x) in here else x)
        value = substitute(value, {**values, **{f"%{x}": held for x, held in here.items()}})
        place = tuple(substitute(i, values) for i in t.indices)
        return self.loops("out", only_if(inside, self.lanes(store(t.buffer, place, value, self.a.store.block))))
