"""The plans that a product may have, by form: which loop becomes the vector, and what happens to the columns beyond
whole vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product as tuples
from math import prod

from ..machine import Machine, lanes
from .cycles import BLOCK_L1_SHARE, block_bytes, cycles, last_panel, uneven
from .instructions import Tile
from .plan import Brought, Plan
from .product import Product

#: rows that share vectors leave so much of the registers: of more LLVM keeps sums in memory where it unrolls two steps
#: (measured)
SHARED_REGISTER_PART = 27 / 32
#: shorter blocks of the reduction, and more of them, are not tried
MIN_BLOCK, MAX_BLOCKS = 32, 96
#: runs that the rows are taken in, at most, and how uneven the shares of the cores may be
MAX_RUNS, MAX_UNEVEN = 16, 1.125
#: so many rows must pass over what was transposed (measured: with fewer, gathering is as fast)
MIN_TRANSPOSED_ROWS = 4
#: windows of two vectors at most: more are slower (measured)
WINDOW_VECTORS = 2


def best(
    plans: Sequence[Plan], product: Product, machine: Machine, factor: Callable[[Plan], float] = lambda plan: 1.0
) -> tuple[float, Plan]:
    """The estimated cycles (times a factor) of the plan with the fewest, the first of equal ones."""
    found: tuple[float, Plan] | None = None
    for plan in plans:
        cost = cycles(plan, product, machine) * factor(plan)
        if found is None or cost < found[0] * (1 - (1e-9 if plan.remainder == "mask" and plan.vector != "K" else 0.0)):
            found = cost, plan
    assert found is not None
    return found


def best_tile(product: Product, machine: Machine) -> Tile:
    """The tile with the fewest cycles of those with lanes along columns: for loop nests that are built by hand."""
    rows, outer, columns = best(tiled(product, machine), product, machine)[1].tile
    return rows, outer, columns


# ---- lanes along columns -------------------------------------------------------------------------------------------


def tiled(product: Product, machine: Machine, registers: int | None = None) -> list[Plan]:
    """Tiles of columns, the last vector a partial one; of windows those for which the positions that a tile touches
    stay in registers beside its sums: spilling them makes the kernel twice as slow (measured)."""
    room = registers or product.instruction.registers
    if product.window is None:
        many = prod(product.spans) >= MIN_TRANSPOSED_ROWS
        across: Brought = "transposed" if many else "gathered"
        operands, name = across if product.transposed else "direct", product.instruction.name
        return [Plan(tile=t, operands=operands, instruction=name) for t in product.tiles(room)]
    step, size = product.window
    found = []
    for r, q, v in product.instruction.tiles(product.spans[:1], product.n, room):
        touched = (r - 1) * step + size
        if (
            q == 1
            and product.fits(v)
            and v <= (WINDOW_VECTORS if step == 1 else 1)
            and (r == 1 or (r + touched) * v <= room)
        ):
            found.append(Plan(tile=(r, q, v)))
    return found


def brought(product: Product) -> Brought:
    """How operands of the columns are read that are not transposed."""
    return "packed" if product.packable(product.columns) else "direct"


def along_rows(product: Product, machine: Machine) -> list[Plan]:
    """Tiles with lanes along the rows, for which the operand of the rows is transposed."""
    widest = lanes(machine, product.dtype)
    if not product.rows or product.swapped or product.extents[product.rows[0]] < widest or product.window is not None:
        return []
    if product.transposed or not product.across(product.rows[0], 1):
        return []
    turned = product.along_rows(widest)
    return [Plan("M", t, operands="transposed") for t in turned.tiles()]


def shared(product: Product, machine: Machine) -> list[Plan]:
    """Rows that have a vector together for the columns beyond whole ones."""
    share = product.shared
    if share == 1:
        return []
    whole, rows = product.n // product.width, product.extents[product.rows[0]]
    room, found = int(machine.vector_registers * SHARED_REGISTER_PART), []
    for v in range(2, min(whole, 5) + 2):
        last = whole % v if v <= whole else whole
        for t in range(2, min(rows, 24) + 1):
            fits = t * last + -(-t // share) + last + 1 + share <= room and (v > whole or t * v + v + 1 <= room)
            if last and fits and (t % share == 0 or t == rows):
                found.append(Plan(tile=(t, 1, v), remainder="share", share=share, operands=brought(product)))
    return found


def peeled(product: Product, machine: Machine) -> list[Plan]:
    """Whole vectors of columns, and sums with lanes along the reduction for those beyond."""
    x = product.peeled
    if x is None:
        return []
    vectors, room = x.whole // product.width, machine.vector_registers
    most = min(product.extents[product.rows[0]], product.width)
    operands: Brought = "transposed" if product.across(product.columns, 1) else brought(product)
    return [
        Plan(tile=(r, 1, vectors), remainder="peel", share=t, operands=operands)
        for r in range(1, most + 1)
        for t in range(1, r + 1)
        if r * vectors + vectors + 1 <= room and r % t == 0 and t * x.left + min(t, x.left) + 1 < room
    ]


# ---- lanes along the reduction -------------------------------------------------------------------------------------


def along_k(product: Product, machine: Machine) -> list[Plan]:
    """Tiles whose sums stay in registers, beside a vector of each row or column, and of no more of either than a vector
    of their sums has lanes. The last vectors of a constant that is all in one tile stay there too where they are
    partial: every tile needs the same, and LLVM keeps them."""
    x = product.along_k
    if x is None:
        return []
    spans = [product.extents[v] for v in x.loops]
    partial = product.extents[x.k] % product.width > 0
    kept = [partial and any(y.constant and y.steps[v] != 0 for y in product.operands) for v in x.loops]

    def needs(tile: tuple[int, ...]) -> int:
        whole = sum([t for t, n, k in zip(tile, spans, kept, strict=True) if k and t == n])
        return prod(tile) + min(tile, default=0) + 1 + whole

    sizes = tuples(*(range(1, min(n, product.width) + 1) for n in spans))
    operands: Brought = "packed" if x.packed else "direct"
    return [Plan("K", t, operands=operands) for t in sizes if needs(t) < machine.vector_registers]


# ---- blocks of the reduction ---------------------------------------------------------------------------------------


def blocked(product: Product, counts: Sequence[int], machine: Machine) -> list[Plan]:
    """Tiles with the reduction in blocks (one of `counts`): a piece of a panel and the rows of a tile stay in the
    first-level cache, if they can. Panels (and runs of rows) should be shared evenly by the cores, and what a run of
    rows reads in one block should stay in the second-level cache."""
    room, found = int(machine.l1_bytes * BLOCK_L1_SHARE), []
    for tile in product.tiles():
        rows, outer, vectors = tile
        step = (vectors * product.width + rows * outer) * 4
        count = next((c for c in counts if product.steps // c * step <= room), counts[-1])
        plan = Plan(tile=tile, k_blocks=count)
        runs = run_counts(product, plan)
        found.append(replace(plan, row_runs=block_runs(runs, product, plan, machine)))
    return found


def tile_loops(product: Product, plan: Plan) -> tuple[list[str], list[int]]:
    """The row loops of which a tile takes a part, and the extents of all loops over rows outside of it."""
    used = [m for m, size in zip(product.rows[: product.tile_rows], plan.tile, strict=False) if size > 1]
    sizes = dict(zip(product.rows, plan.tile, strict=False))
    rest = [v for v in product.parallel if v not in (product.columns, *used, *product.batch)]
    return used, [product.extents[v] for v in rest] + [-(-product.extents[m] // sizes[m]) for m in reversed(used)]


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
    return [c for c in counts if c == 1 or (c <= MAX_BLOCKS and outer // c >= MIN_BLOCK)]


def run_counts(product: Product, plan: Plan) -> list[int]:
    """The numbers of equal runs that the outermost loop over rows divides into; 1 where it may have any extent."""
    rows = tile_loops(product, plan)[1]
    extent = 1 if product.open_rows or not rows else rows[0]
    return [b for b in range(1, MAX_RUNS + 1) if extent % b == 0]


def block_runs(runs: Sequence[int], product: Product, plan: Plan, machine: Machine) -> int:
    """How many runs the rows of a plan with blocks are taken in."""
    panel = plan.tile[2] * product.width
    panels = -(-product.n // panel) * prod(product.extents[v] for v in product.batch)
    return default_runs(runs, panels, block_bytes(product, plan), machine, last_panel(product.n, panel))


def default_runs(candidates: Sequence[int], panels: int, nbytes: int, machine: Machine, last: float = 1.0) -> int:
    """How many runs the rows are taken in: as few as give all cores the same to do, and let what the rows of a run read
    and sum up in one block (`nbytes` for all rows) stay in the second-level cache. `last`: see `uneven`."""
    even = [b for b in candidates if uneven(panels, b, last, machine.cores) <= MAX_UNEVEN]
    even = even or [min(candidates, key=lambda b: uneven(panels, b, last, machine.cores))]
    return next((b for b in even if nbytes // b <= machine.l2_bytes // 2), even[-1])


# ---- sums over rows ------------------------------------------------------------------------------------------------


def whole_rows(product: Product) -> Tile | None:
    """The tile of a sum over rows (of a single operand, over one loop) that lie one after the other: all of a row, so
    that memory is read in order, if three quarters of the registers hold it; else, and of rows that lie further apart,
    equal parts of a row that do, of more than the 8 vectors that other tiles have.

    Measured: 0.9 to 1.9 times as fast as the best of two and more tiles a row; parts are 1.0 to 1.7 times as fast as
    such tiles, but not for sums of less than 9 rows."""
    if product.contraction or len(product.reduction) != 1:
        return None
    n, vectors, most = product.n, -(-product.n // product.width), 3 * product.instruction.registers // 4
    loads = [x.steps[product.reduction[0]] for x in product.operands]
    if loads == [n] and vectors <= most:
        return 1, 1, vectors
    apart = len(loads) == 1 and loads[0] is not None and loads[0] >= n
    if not apart or vectors <= 8 or product.steps < 9:
        return None
    return 1, 1, -(-vectors // -(-vectors // most))


# ---- all of them ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A form of plans: the decision for it (one that is asked before those of plain tiles has `own`, for its tile), and
    the estimated gain over the forms after it from which a tuner may try it, and from which it is the default."""

    decision: str
    own: str
    plans: Callable[[Product, Machine], list[Plan]]
    tried_gain: float = 1.0
    min_gain: float = 1.0


#: in the order in which they are preferred
FORMS = (
    Form("halves", "halves_tile", shared, 0.9, 1.02),
    Form("cut", "cut_tile", peeled, 0.9, 1.1),
    Form("sum_lanes", "results", along_k, 0.7, 1.1),
    Form("lanes", "", along_rows, 0.85, 1.05),
    Form("tile", "", tiled),
)


def candidates(product: Product, machine: Machine) -> list[tuple[Form, list[Plan]]]:
    """All plans, by the forms that are possible; plain tiles alone where these pack constants as they lie already."""
    forms = FORMS[-1:] if product.repeats_layout else FORMS
    return [(form, plans) for form in forms if (plans := form.plans(product, machine))]


__all__ = [
    "FORMS", "MIN_TRANSPOSED_ROWS", "Form", "along_rows", "best", "best_tile", "block_counts", "block_runs", "blocked",
    "brought", "candidates", "default_runs", "run_counts", "tile_loops", "tiled", "whole_rows",
]  # fmt: skip
