"""Steps that GPU rules share: binding loops to grid, block and warp axes, loops over a block's threads, reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ....graph.machine_costs import MIDDLING
from ....support.sizes import at_most, is_open, smaller
from ....tensor.expr import Const, Expr, Op, Var
from ...machine import Axis, Machine, Memory
from ...nest import For, If, Stmt, loop, seq

#: the axes that rules bind loops to
GRID, BLOCK, WARP, LANE, GROUP, MEMBER = "grid", "block", "warp", "lane", "group", "member"
CLUSTER = "cluster"
#: a block whose threads share nothing has this part of the most threads that it may have
PART = 4


def axis(machine: Machine, name: str) -> Axis | None:
    return next((a for a in machine.axes if a.name == name), None)


def fits_axis(machine: Machine, name: str, count: int) -> bool:
    """Whether the machine's limit for an axis of the grid (``grid.x``) allows so many blocks or threads, for all
    sizes."""
    found = axis(machine, name.partition(".")[0])
    return found is not None and (found.side(name) is None or at_most(count, found.side(name) or 0))


def shared(machine: Machine) -> Memory | None:
    """The memory that threads of a block share."""
    return next((m for m in machine.memories if BLOCK in m.shared_by and GRID not in m.shared_by), None)


def has_blocks(machine: Machine) -> bool:
    """Whether the machine has a grid of thread blocks with shared memory."""
    return all(axis(machine, n) is not None for n in (GRID, BLOCK)) and shared(machine) is not None


def digits(position: Expr, dims: Sequence[tuple[str, int]]) -> dict[str, Expr]:
    """The loop variables of `dims` at a position in all of them, the last one fastest.

    >>> from tilewright.tensor.expr import Var
    >>> {v: str(e) for v, e in digits(Var("p"), [("i", 4), ("j", 8)]).items()}
    {'i': '(p // 8)', 'j': '(p % 8)'}
    """
    found: dict[str, Expr] = {}
    below = prod(n for _, n in dims)
    for i, (v, n) in enumerate(dims):
        below //= n
        upper = position // below if below != 1 else position  # divided first: digits add up to the position again
        found[v] = (upper if i == 0 else upper % n) if n != 1 else Const(0, "index")
    return found


def within(position: Expr, size: int, tile: int) -> Expr | None:
    """The condition that a position of a tile lies in `size`; None if all do."""
    whole = size == tile if is_open(tile) else size % tile == 0
    return None if whole else Op("cmpi.slt", (position, Const(size, "index")), "i1")


def all_of(conditions: Sequence[Expr | None]) -> Expr | None:
    """The conjunction of those that are conditions."""
    found: Expr | None = None
    for c in conditions:
        if c is not None:
            found = c if found is None else Op("andi", (found, c), "i1")
    return found


def guarded(condition: Expr | None, value: Expr, otherwise: Const) -> Expr:
    """A predicated value: computed where the condition holds, and its loads happen only there."""
    return value if condition is None else Op("guard", (condition, value, otherwise), otherwise.dtype)


def only_if(condition: Expr | None, s: Stmt) -> Stmt:
    return s if condition is None else If(condition, s)


def on(kind: str, var: str, extent: int, *body: Stmt) -> For:
    """A loop of a kind (``serial``, ``unroll``), or bound to an axis."""
    return loop(var, extent, seq(*body), kind)


@dataclass(frozen=True)
class WarpAxes:
    """Blocks as warps of so many lanes: their axes, and the barrier of the lanes of one warp."""

    outer: str
    inner: str
    barrier: str
    lanes: int


def warps_of(machine: Machine) -> WarpAxes | None:
    """The warps of a machine whose lanes have a barrier of their own."""
    for inner in machine.axes:
        outer = axis(machine, inner.inside)
        if outer is None or not outer.barriers or inner.kind or not inner.limit:
            continue
        if own := [b for b in inner.barriers if b not in outer.barriers]:
            return WarpAxes(outer.name, inner.name, own[0], inner.limit)
    return None


def processors(machine: Machine) -> int:
    """The number of multiprocessors."""
    return (machine.grid_costs or MIDDLING).processors


def grid_of(blocks: int, machine: Machine) -> tuple[int, int]:
    """So many blocks along x and y of the grid: along x alone where that is long enough. There may be more than asked
    for, which have nothing to do."""
    found = axis(machine, GRID)
    side = found.side(f"{GRID}.x") if found is not None else None
    return (blocks, 1) if side is None or at_most(blocks, side) else (smaller(blocks, side), -(-blocks // side))


def blocks_on_grid(grid: tuple[int, int], name: str, body: Stmt) -> Stmt:
    """Loops ``name_x`` and ``name_y`` over the blocks of a grid; one along which there is one block is left out."""
    for d, n in zip("xy", grid, strict=True):
        body = on(f"grid.{d}", f"{name}_{d}", n, body) if n != 1 else body
    return body


def block_number(grid: tuple[int, int], name: str) -> Expr:
    """The linear block index in the loops of `blocks_on_grid`."""
    x: Expr = Var(f"{name}_x") if grid[0] != 1 else Const(0, "index")
    return Var(f"{name}_y") * grid[0] + x if grid[1] != 1 else x


def block_sizes(machine: Machine) -> tuple[list[int], int]:
    """Block sizes for kernels whose threads do not communicate: what is tried, and what is taken
    untuned, a part of the most, so that several blocks fit a processor."""
    found = axis(machine, BLOCK)
    limit = (found.limit if found is not None else None) or 1
    sizes = [1 << i for i in range(5, limit.bit_length())] or [limit]
    return sizes, max(limit // PART, sizes[0])


def spread_out(count: int, threads: int, name: str, machine: Machine, each: Callable[[Expr], Stmt]) -> Stmt:
    """``each(number)`` for so many numbers, neighbours on neighbouring threads of blocks of `threads`."""
    grid = grid_of(-(-count // threads), machine)
    thread = Var(f"{name}_unit")
    number = block_number(grid, name) * threads + thread
    body = only_if(within(number, count, grid[0] * grid[1] * threads), each(number))
    return blocks_on_grid(grid, name, on("block.x", thread.name, threads, body))
