"""Tiled transposition through shared memory: elementwise kernels that read strided and write contiguously, so that both
accesses coalesce.

    for each tile, on a block:
        threads load it row by row of what is read, into rows of shared memory that are one element longer
        threads write it row by row of the result, with the elementwise work

A thread loads and writes vectors where the machine has such accesses and all rows are made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ....support.dtypes import LOOP_TYPES
from ....support.sizes import is_open, typical
from ....tensor.expr import Buffer, Expr, Load, Op, Var, children, loads, rebuild, substitute, transform
from ...machine import Machine, lanes
from ...nest import Alloc, Barrier, Stmt, Store, seq, store
from ...schedule import Schedule
from ..common import load_strides, store_stride
from . import elementwise
from .tactics import loops_rule
from .thread_binding import (
    BLOCK,
    all_of,
    axis,
    block_number,
    blocks_on_grid,
    digits,
    grid_of,
    on,
    only_if,
    shared,
    within,
)
from .thread_per_element import shared_out

NAME = "block_transpose"
PRIORITY = 8
#: shorter rows or columns are not worth a tile
SHORT = 8
#: sides of a tile, and elements of it that a thread takes: what is tried
SIDES, ELEMENTS = (64, 32, 16, 8), (4, 1, 2, 8)
_LANE = Var("lane")
Dims = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TransposedStore:
    """A store whose rows run along the loops `row`, while `reads` (elements, or what stands for some of them beyond a
    border: a ``guard``) run along `column`, and the other loops. Neighbouring iterations of several loops, the last one
    fastest, are neighbours in memory."""

    store: Store
    row: Dims
    column: Dims
    others: Dims
    reads: tuple[Expr, ...]

    @property
    def rows(self) -> int:
        """Elements of a row."""
        return prod(n for _, n in self.row)

    @property
    def columns(self) -> int:
        return prod(n for _, n in self.column)


def write(s: Schedule, machine: Machine) -> Stmt | str:
    stores_of = elementwise.read(s)
    if isinstance(stores_of, str):
        return stores_of
    turned = [a for name, dims in stores_of.items() if (a := read(s, name, dims)) is not None]
    if not turned:
        return "nothing is read across, or rows are short"
    found = max(turned, key=lambda a: typical(prod(n for _, n in (*a.row, *a.column, *a.others))))
    tile = choose(s, found, machine)
    if isinstance(tile, str):
        return tile
    others = {name: tuple(dims) for name, dims in stores_of.items() if name != found.store.block}
    s.plan = f"tiles of {tile[0]} x {tile[0]} through shared memory, {tile[1]} elements a thread"
    return TransposeWriter(found, tile, s, machine, others).nest()


apply = loops_rule(NAME, write, elementwise.unfit, elementwise.prepare)


def read(s: Schedule, name: str, dims: Sequence[tuple[str, int]]) -> TransposedStore | None:
    """A store as one that reads across; None if it does not, or if its rows or columns are short."""
    block, order = s.store(name), [v for v, _ in dims]
    steps = {v: dict(load_strides(s, block, v)) for v in order}
    threads = list(_read_together(block.targets[0].value))
    if len(block.targets) != 1:
        return None
    inner = next((v for v in order if store_stride(s, block, v) == 1), None)
    if inner is None:
        return None
    across = {v for v in order if any(_is_across(e, steps[inner], steps[v]) for e in threads)}
    row = _in_a_line(dims, {v: (store_stride(s, block, v),) for v in order if v not in across})
    if not row:
        return None
    rest = [d for d in dims if d not in row]
    for v in (v for v, _ in rest if v in across):
        reads = [e for e in threads if _is_across(e, steps[inner], steps[v])]
        columns = {d: tuple(steps[d][x] for e in reads for x in loads(e)) for d, _ in rest}
        column = _in_a_line(rest, columns)
        if min(prod(n for _, n in row), prod(n for _, n in column)) >= SHORT:
            return TransposedStore(block, row, column, tuple(d for d in rest if d not in column), tuple(reads))
    return None


def _in_a_line(dims: Sequence[tuple[str, int]], strides: Mapping[str, Sequence[int | None]]) -> Dims:
    """The loops that walk through neighbours one after the other, the last one fastest; as many as fill a tile."""
    found: list[tuple[str, int]] = []
    size = 1
    while is_open(size) is False and size < SIDES[0]:
        step = next((d for d in dims if d not in found and all(c == size for c in strides.get(d[0], (None,)))), None)
        if step is None:
            break
        found.insert(0, step)
        size *= step[1]
    return tuple(found)


def _read_together(e: Expr) -> Iterator[Expr]:
    """What a value reads in any case: elements, and guards with what they may read."""
    rest, seen = [e], set()
    while rest:
        x = rest.pop()
        if x in seen:
            continue
        seen.add(x)
        if isinstance(x, Load) or (isinstance(x, Op) and x.op == "guard"):
            yield x
        else:
            lazy = isinstance(x, Op) and x.op == "seldom"
            rest += [c for i, c in enumerate(children(x)) if not (lazy and i == 1)][::-1]


def _is_across(e: Expr, along_row: dict[Load, int | None], along_column: dict[Load, int | None]) -> bool:
    """Whether neighbours along the column are neighbours in memory, and those along a row lie apart: all that is
    read."""
    found = loads(e)
    return bool(found) and all(along_column[x] == 1 and along_row[x] not in (0, 1, None) for x in found)


def choose(s: Schedule, a: TransposedStore, machine: Machine) -> tuple[int, int] | str:
    """The side of the tile, and elements of it that a thread takes."""
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


def cost(tile: tuple[int, int], a: TransposedStore, machine: Machine) -> float:
    """What a tile is worth: lines of memory that are not used up and places beyond the result count as time, and so do
    the indices of each thread, and threads of a block that are few."""
    side, each = tile
    lines = max(machine.line_bytes / 4 / side, 1.0)
    beyond = prod(-(-n // side) * side / n for n in (typical(a.rows), typical(a.columns)))
    idle = max(machine.line_bytes / (side * side / each), 1.0)
    return (lines + 1 / each + side / 256) * beyond * idle


class TransposeWriter:
    """Writes the nest of a transposition with tiles of a side."""

    def __init__(
        self, a: TransposedStore, tile: tuple[int, int], s: Schedule, machine: Machine, others: Mapping[str, Dims]
    ) -> None:
        self.a, (self.side, self.each), self.s = a, tile, s
        self.threads = self.side * self.side // self.each
        self.others = others
        wide = self.longest = lanes(machine)
        in_runs = all(isinstance(x, Load) for x in a.reads) and all(
            n % wide == 0 for n in (self.side, self.each, a.row[-1][1], a.column[-1][1])
        )
        self.wide = wide if in_runs else 1
        self.tiles = [-(-n // self.side) for n in (a.columns, a.rows)]
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
        body = seq(self.bring(), Barrier(BLOCK), self.put(), *self.beside())
        for b in reversed(self.pieces):
            body = Alloc(b, body)
        return blocks_on_grid(self.grid, "tile", body)

    def beside(self) -> list[Stmt]:
        """The elements of other stores, as those of a border."""
        blocks = self.number, self.grid[0] * self.grid[1]
        found = []
        for i, (name, dims) in enumerate(self.others.items()):
            wide = self.longest if dims and dims[-1][1] % self.longest == 0 else 1
            found.append(shared_out(self.s.store(name), dims, i, wide, blocks, self.threads, self.thread))
        return found

    def thread(self, name: str, body: Stmt) -> Stmt:
        return on("block.x", name, self.threads, body)

    def phase(self, name: str, across: bool) -> tuple[Expr, Expr, Expr | None, dict[str, Expr]]:
        """Row and column within the tile of a thread's element, the condition that they exist, and all loops' values;
        neighbouring threads go along columns, or `across` them."""
        a, u, step = self.a, Var(f"u_{name}"), Var(f"e_{name}")
        beside = self.side // self.wide
        far, first = step * (self.threads // beside) + u // beside, u % beside * self.wide
        near = first + _LANE if self.wide > 1 else first
        row, column = (far, near) if across else (near, far)
        at_row, at_column = (self.places[n] * self.side for n in ("%row", "%column"))
        begin = (far, first) if across else (first, far)  # neighbours exist together
        inside = [within(at_row + begin[0], a.rows, self.side), within(at_column + begin[1], a.columns, self.side)]
        values = {v: self.places[v] for v, _ in a.others}
        values |= digits(at_row + row, a.row) | digits(at_column + column, a.column)
        return row, column, all_of([self.exists, *inside]), values

    def loops(self, name: str, body: Stmt) -> Stmt:
        return self.thread(f"u_{name}", on("unroll", f"e_{name}", self.each // self.wide, body))

    def lanes(self, body: Stmt) -> Stmt:
        return body if self.wide == 1 else on("vector", _LANE.name, self.wide, body)

    def bring(self) -> Stmt:
        """Load what is read across, along its rows."""
        row, column, inside, values = self.phase("in", True)
        parts = zip(self.pieces, self.a.reads, strict=True)
        puts = [store(b.name, (row, column), substitute(x, values), f"bring_{i}") for i, (b, x) in enumerate(parts)]
        return self.loops("in", only_if(inside, seq(*map(self.lanes, puts))))

    def put(self) -> Stmt:
        """Write the result along its rows."""
        row, column, inside, values = self.phase("out", False)
        here = {x: Load(b.name, (row, column), x.dtype) for b, x in zip(self.pieces, self.a.reads, strict=True)}
        t = self.a.store.targets[0]

        def bring(x: Expr, args: tuple[Expr, ...]) -> Expr:
            return Var(f"%{x}", x.dtype) if isinstance(x, (Load, Op)) and x in here else rebuild(x, args)

        value = transform(t.value, bring)
        value = substitute(value, {**values, **{f"%{x}": held for x, held in here.items()}})
        place = tuple(substitute(i, values) for i in t.indices)
        return self.loops("out", only_if(inside, self.lanes(store(t.buffer, place, value, self.a.store.block))))
