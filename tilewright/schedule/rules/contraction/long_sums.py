"""Long sums of products in blocks: a piece of the packed weights stays in the first-level cache while all rows pass
over it, and the next piece comes from memory meanwhile.

    for panels of columns:                                    # divided among threads
      sums[rows, columns] = 0
      for blocks of the reduction:                            # 256 long, say
        for tiles of rows:
          tile = the sum over the block                       # in registers
          sums += tile
      y[rows, columns] = relu(sums + bias)

Without blocks a panel of weights that is longer than the second-level cache comes from beyond it for every tile of
rows; with them it comes once, in order. The price is that the sums of a tile pass through memory once a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ....tensor.expr import Expr, Var
from ....tensor.kernel import Stage
from ...machine import Machine
from ...schedule import Schedule
from .tile_choice import tile_candidates, tile_cost
from .tiles import Tile, iterations, registers

#: shorter blocks, and more of them, are not tried
LEAST_DEPTH, MOST_BLOCKS = 32, 96
#: runs that the rows are taken in, at most
MOST_RUNS = 16
#: a reduction of LONG steps is worth blocks if there are at most FEW rows; one of SOME steps for any number of rows if
#: a panel of two vectors takes more than LARGE of the second-level cache
LONG, FEW, SOME, LARGE = 768, 200, 256, 5 / 16
#: a block's piece of the weights and of the rows of a tile may take this part of the first-level cache
ROOM = 5 / 6
#: how uneven the shares of the cores may be
UNEVEN = 1.125


@dataclass(frozen=True)
class Blocked:
    """The loops of a blocked sum: `blocks` of the reduction, the `rows` that pass over one, the rest of the reduction
    in one."""

    blocks: list[str]
    rows: list[str]
    inner: list[str]


def block_counts(extents: Sequence[int]) -> list[int]:
    """The numbers of equal blocks that nested loops (outermost first) divide into: so many of the outer ones, with all
    of the inner ones in each.

    >>> block_counts([3, 3, 128])
    [1, 3, 9, 18, 36]
    """
    counts, outer = [1], 1
    for n in extents:
        counts += [outer * d for d in range(2, n + 1) if n % d == 0]
        outer *= n
    return [c for c in counts if c == 1 or (c <= MOST_BLOCKS and outer // c >= LEAST_DEPTH)]


def last_panel(columns: int, panel: int) -> float:
    """How much of the last of the panels of so many columns there is.

    >>> last_panel(96, 32), last_panel(80, 32)
    (1.0, 0.5)
    """
    return columns % panel / panel or 1.0


def uneven(panels: int, runs: int, last: float, cores: int) -> float:
    """The largest share of the panels of so many runs over the mean share; of the `last` panel there is this part.

    >>> round(uneven(11, 1, 1.0, 2), 3)
    1.091
    >>> round(uneven(4, 1, 1 / 3, 2), 3)  # 2 against 1 1/3
    1.2
    """
    parts = [*[1.0] * (panels - 1), last] * runs
    ends = [len(parts) * core // cores for core in range(cores + 1)]
    return max(sum(parts[a:b]) for a, b in pairwise(ends)) * cores / sum(parts)


@dataclass(frozen=True)
class Sizes:
    """What the choice depends on: extents of the row loops that a tile takes part of (innermost first) and of the
    others (outermost first), columns, extents of the reduction's loops (outermost first), lanes of a vector, and the
    rows that a tile should not have more of (None: any)."""

    rows: tuple[int, ...]
    others: tuple[int, ...]
    columns: int
    steps: tuple[int, ...]
    width: int
    most: int | None


def blocks_pay(sizes: Sizes, plain: Tile, machine: Machine) -> bool:
    """Whether blocks are faster than whole sums in tiles `plain` (measured, with weights from memory).

    Each block costs as much as 3% of its arithmetic. That is won back where a panel of weights does not stay in the
    second-level cache, and where few rows pass over it in the time that the next one needs from memory."""
    rows, depth = prod(sizes.rows) * prod(sizes.others), prod(sizes.steps)
    if sizes.width == 1 or rows <= plain.rows * plain.outer_rows:
        return False
    large = depth * 2 * sizes.width * 4 > machine.l2_bytes * LARGE
    return (depth >= SOME and large) or (depth >= LONG and rows <= FEW)


def choose_blocks(sizes: Sizes, counts: Sequence[int], machine: Machine) -> tuple[int, Tile]:
    """The number of blocks (one of `counts`) and the register tile with the fewest estimated cycles.

    A block's piece of a panel and the rows of a tile stay in the first-level cache, if they can. Panels (and runs of
    rows) should be shared evenly by the cores, and what a run of rows reads in one block should stay in the
    second-level cache."""
    best: tuple[float, int, Tile] | None = None
    room, depth = int(machine.l1_bytes * ROOM), prod(sizes.steps)
    rows = prod(sizes.rows) * prod(sizes.others)
    for size in tile_candidates(list(sizes.rows), sizes.columns, sizes.width, machine.vector_registers):
        tile, columns = Tile(*size), size[2] * sizes.width
        step = (columns + tile.rows * tile.outer_rows) * 4
        count = next((c for c in counts if depth // c * step <= room), counts[-1])
        near = room * columns * 4 // step  # what the rows leave of the cache
        cost = tile_cost(list(sizes.rows), sizes.columns, sizes.width, tile, depth // count, machine, near=near)
        if sizes.most is not None and tile.rows * tile.outer_rows > sizes.most:
            cost *= 1.25
        tiles = [-(-n // t) for n, t in zip(sizes.rows, size, strict=False)]
        runs = run_counts([*sizes.others, *reversed(tiles)][0])
        panels, needs = -(-sizes.columns // columns), row_bytes(rows, depth // count, columns)
        last = last_panel(sizes.columns, columns)
        together = default_runs(runs, panels, needs, machine, last)
        far = needs // together > machine.l2_bytes // 2
        cost *= uneven(panels, together, last, machine.cores) * (1.1 if far else 1.0)
        if best is None or cost < best[0] - 1e-9:
            best = (cost, count, tile)
    assert best is not None
    return best[1:]


def run_counts(extent: int) -> list[int]:
    """The numbers of equal runs that a loop over rows divides into."""
    return [b for b in range(1, MOST_RUNS + 1) if extent % b == 0]


def row_bytes(rows: int, depth: int, columns: int) -> int:
    """What so many rows read and sum up in one block, in bytes."""
    return rows * (depth + columns) * 4


def default_runs(candidates: Sequence[int], panels: int, nbytes: int, machine: Machine, last: float = 1.0) -> int:
    """How many runs the rows are taken in: as few as give all cores the same to do, and let what the rows of a run read
    and sum up in one block (`nbytes` for all rows) stay in the second-level cache. `last`: see `uneven`."""
    even = [b for b in candidates if uneven(panels, b, last, machine.cores) <= UNEVEN]
    even = even or [min(candidates, key=lambda b: uneven(panels, b, last, machine.cores))]
    return next((b for b in even if nbytes // b <= machine.l2_bytes // 2), even[-1])


def split_blocks(s: Schedule, count: int, reductions: Sequence[str], rows: Sequence[str]) -> Blocked:
    """Split the loops of a reduction into `count` blocks; `count` is one of their `block_counts`."""
    blocks: list[str] = []
    inner = list(reductions)
    while count > 1:
        k = inner[0]
        n = s.extent(k)
        if count % n:
            o, inner[0] = s.split(k, n // count)
            blocks.append(o)
            break
        blocks.append(inner.pop(0))
        count //= n
    return Blocked(blocks, list(rows), inner)


def schedule_sums(s: Schedule, anchor: Stage, loops: Blocked, tile: list[str], after: list[str], width: int) -> None:
    """Sums of a tile in registers, added to those in memory at the end of a block; in vectors, as what follows them.

    `tile` are the loops of the tile, `after` those of the block that reads the sums."""
    total = s.partial_sums(anchor.name, loops.rows[-1], scope="register")
    around = s.loops(total)
    registers(s, tile, width)
    registers(s, around[around.index(loops.rows[-1]) + 1 :], width)
    registers(s, after[-1:], width)


def prefetch_blocks(s: Schedule, anchor: Stage, at: str, panels: int, loops: Blocked, machine: Machine) -> None:
    """While the rows pass over one piece of a panel, ask for the next: a share of it in every step of the reduction."""
    steps = [v for v in s.loops(anchor.name) if v != at and s.loop(v).kind == "serial" and v not in loops.blocks]
    (buffer,) = (s.params[b] for b in s.packs)
    if not s.sample_choice("prefetch", (True, False), True):
        return
    piece = buffer.size // panels // prod(s.extent(v) for v in loops.blocks)
    step, lines = shares(piece * 4 // machine.line_bytes, iterations(s, steps), prod(s.extent(v) for v in steps))
    first = (Var(at) % panels * prod(s.extent(v) for v in loops.blocks) + iterations(s, loops.blocks) + 1) * piece
    s.prefetch(steps[-1], buffer.name, [first + (step + line) * (machine.line_bytes // 4) for line in range(lines)])


def shares(lines: int, step: Expr, steps: int) -> tuple[Expr, int]:
    """Cache lines shared out to steps: the first line of step number `step`, and how many. Where there are more steps
    than lines, two (or four, ...) of them ask for the same line: what lies behind comes later."""
    together = 1
    while steps // (2 * together) >= lines:
        together *= 2
    if together > 1:
        return step // together, 1
    each = -(-lines // steps)
    return step * each, each
