"""`cycles`: what a plan costs, the one estimate by which all plans for a sum of products are compared.

A tile of r rows and v vectors issues r*v multiply-adds, v vector loads and r broadcasts in a step, and cannot be faster
than the latency of its sums. The small terms are measured: loop overhead, broadcasts, and vector loads, which cost more
if the panel they walk is larger than the first-level cache, and more again if it does not stay in the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from itertools import product as tuples
from math import log2, prod

from ...tensor.expr import variables
from ..machine import Machine, lanes
from ..rules.common import coefficient
from .instructions import Step
from .plan import Plan
from .product import Product

#: a block's piece of the weights and of the rows of a tile may take this part of the first-level cache: what is left
#: is for the sums that come and go
BLOCK_L1_SHARE = 5 / 6


def cycles(plan: Plan, product: Product, machine: Machine) -> float:
    """The estimated cycles of a sum of products by a plan, for the whole result on one core.

    Unless the product is `alone`, with what is around it: how evenly threads share it, where its operands come from.

    >>> from tilewright.schedule.planner.instructions import Instruction
    >>> from tilewright.schedule.planner.product import sized
    >>> p = sized([64], 64, 256, Instruction(lanes=16))
    >>> cycles(Plan(tile=(6, 1, 2)), p, Machine()) < cycles(Plan(tile=(1, 1, 1)), p, Machine())
    True
    """
    if plan.vector == "K":
        return _along_k(plan, product, machine)
    if product.window is not None:
        return _windows(plan, product, product.window, machine)
    if plan.vector == "M" and not product.swapped:
        turned = product.along_rows(lanes(machine, product.dtype))
        return cycles(plan, turned, machine) + product.others * transposing(product, machine)[0]
    found = _tiles(plan, product, machine)
    if not product.alone:
        found = _around(plan, product, machine, found)
    if plan.remainder == "peel":
        found += _peeled(plan, product, machine)
    elif plan.vector == "N" and plan.operands in ("transposed", "gathered"):
        each = machine.shuffles.transpose_in if plan.operands == "transposed" else machine.shuffles.gather
        found += each * product.steps * -(-product.n // product.width) * product.others
    return found


def pieces(total: int, size: int) -> list[tuple[int, int]]:
    """(tile size, how many of them): the full tiles and the partial one.

    >>> pieces(10, 4)
    [(4, 2), (2, 1)]
    """
    found = [(size, total // size)]
    return [*found, (total % size, 1)] if total % size else found


# ---- lanes along columns -------------------------------------------------------------------------------------------


def _tiles(plan: Plan, product: Product, machine: Machine) -> float:
    """All tiles of the columns in whole vectors, or of all columns."""
    x, (rows, outer, vectors) = product.instruction, plan.tile
    columns = product.peeled.whole if plan.remainder == "peel" and product.peeled else product.n
    steps, near = product.steps // plan.k_blocks, machine.l1_bytes
    if plan.k_blocks > 1:  # what the rows leave of the cache
        width = vectors * product.width
        near = int(machine.l1_bytes * BLOCK_L1_SHARE) * width * 4 // ((width + rows * outer) * 4)
    inner, second = (*product.spans, 1, 1)[:2]
    loads, total = (1.0 if product.alone else product.lane_loads or 1.0), 0.0
    for panel, (tv, shares), count in _panels(plan, columns, product.width):
        size = steps * panel * product.width * x.group * x.factor_bytes
        level = 0 if size <= near else 1 if size <= machine.l2_bytes // 2 else 2
        far = machine.far.shared_l2_vector if plan.remainder == "share" and level == 1 else x.costs.panel[level]
        for tr, rn in pieces(inner, rows):
            for tq, qn in pieces(second, outer):
                t = tr * tq
                tail = -(-t // plan.share) if shares else 0
                sums, stores = t * tv + tail, t * tv + plan.share * tail
                step = Step(tr, tq, tv + shares, sums, stores, loads, far)
                total += count * rn * qn * x.cycles(steps, step, vectors * product.width >= columns)
    factor = streams(plan, machine) if plan.remainder == "share" else x.factor((rows, outer, vectors))
    return total * plan.k_blocks * product.others * factor


def _panels(plan: Plan, columns: int, width: int) -> Iterator[tuple[int, tuple[int, int], int]]:
    """Vectors of a whole panel, (vectors, shared ones) of a panel, and how many there are of such."""
    v = plan.tile[2]
    if plan.remainder != "share":
        for size, count in pieces(-(-columns // width), v):
            yield v, (size, 0), count
        return
    whole = columns // width
    if v <= whole:
        yield v, (v, 0), whole // v
    last = whole % v
    yield last + 1, (last, 1), 1


def _around(plan: Plan, product: Product, machine: Machine, found: float) -> float:
    """The cycles of tiles with what is around a kernel."""
    rows, outer, vectors = plan.tile
    if plan.remainder != "mask":
        return found * _uneven_rows(plan, product, machine) if plan.remainder == "share" else found
    most, columns, panel = product.max_rows(machine), product.n, vectors * product.width
    if most is not None and rows * outer > most:
        found *= machine.far.crowded_sets
    if plan.k_blocks > 1:
        last = last_panel(columns, panel)
        needs = block_bytes(product, plan) // plan.row_runs
        found *= uneven(-(-columns // panel), plan.row_runs, last, machine.cores)
        return found * (machine.far.far_block if needs > machine.l2_bytes // 2 else 1.0)
    found *= streams(plan, machine)
    if product.columns_shared(machine):
        found *= uneven_columns(-(-columns // product.width), vectors)
    if product.rows_from_afar(machine):  # wider panels read them less often (measured: 1 to 3%)
        found += machine.far.number * prod(product.spans) * -(-columns // panel) * product.steps * product.others
    return found


def streams(plan: Plan, machine: Machine) -> float:
    """How much longer a tile takes by the streams of its rows: what a kernel before left elsewhere comes in as many,
    more than processors fetch ahead (measured in models, 14 rows against 7: 1 to 3%; alone, it is even)."""
    return machine.far.crowded_streams if plan.tile[0] * plan.tile[1] > machine.far.streams else 1.0


def block_bytes(product: Product, plan: Plan) -> int:
    """What all rows read and sum up in one block of the reduction and one panel."""
    rows = prod(product.extents[v] for v in product.parallel if v not in (product.columns, *product.batch))
    return rows * (product.steps // plan.k_blocks + plan.tile[2] * product.width) * 4


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


def uneven_columns(vectors: int, panel: int) -> float:
    """The largest share of the vectors of a row over the mean one, where threads share panels of so many vectors: each
    has as many panels, one the last, which is smaller.

    >>> uneven_columns(64, 2), round(uneven_columns(64, 3), 3)
    (1.0, 1.031)
    """
    return -(-vectors // panel) * panel / vectors if vectors > panel else 1.0


def _uneven_rows(plan: Plan, product: Product, machine: Machine) -> float:
    """The rows of the thread that has most, over the mean."""
    rows = product.extents[product.rows[0]]
    others = prod(product.extents[v] for v in product.parallel if v not in (product.columns, product.rows[0]))
    tiles = -(-rows // plan.tile[0])

    def before(task: int) -> int:
        return task // tiles * rows + min(task % tiles * plan.tile[0], rows)

    ends = [before(tiles * others * i // machine.cores) for i in range(machine.cores + 1)]
    return max(b - a for a, b in pairwise(ends)) * machine.cores / (rows * others)


def _windows(plan: Plan, product: Product, window: tuple[int, int], machine: Machine) -> float:
    """Windows of `size` positions, `step` apart, along the rows, of operands that the lanes do not share. What
    neighbouring windows share is loaded once."""
    (step, size), (rows, _, vectors), costs = window, plan.tile, machine.tile
    total = 0.0
    for tv, tn in pieces(-(-product.n // product.width), vectors):
        for tr, rn in pieces(product.spans[0], rows):
            loads = ((tr - 1) * step + size) * tv / size + tv
            partial = 0.0 if tr == rows else costs.cut_windows
            work = max(machine.fma.cycles(tr * tv), loads * machine.access.load)
            total += tn * rn * (work + 2 * costs.step + costs.row * tr + partial)
    return total


# ---- operands and results that are transposed ----------------------------------------------------------------------


def transposing(product: Product, machine: Machine) -> tuple[float, int]:
    """With lanes along the rows: the cycles to transpose what is read and what is written, and the bytes that are
    transposed for a vector of rows."""
    width, extents, row = lanes(machine, product.dtype), product.extents, product.rows[0]
    x = product.across(row, 1)[0]
    load = next(y for y in product.operands if y.load.buffer == x.buffer).load
    index = load.indices[x.lane]
    along = [k for k in product.reduction if k in variables(index)]
    span = extents[row] + sum((extents[k] - 1) * (coefficient(index, k) or 0) for k in along)
    numbers = prod(extents[k] for k in product.reduction if k not in along)
    read, written = numbers * -(-span // width), extents[row] * -(-product.n // width)
    nbytes = numbers * (width + span - extents[row]) * 4
    return machine.shuffles.transpose_in * read + machine.shuffles.transpose_out * written, nbytes


# ---- lanes along the reduction -------------------------------------------------------------------------------------


def _peeled(plan: Plan, product: Product, machine: Machine) -> float:
    """What the columns beyond whole vectors cost, `plan.share` rows at a time."""
    x = product.peeled
    assert x is not None
    depth, rows = product.steps, product.extents[product.rows[0]]
    others = prod(product.extents[v] for v in product.parallel if v not in (product.columns, product.rows[0]))
    run = product.extents[x.k]
    step, vectors = _step_along(product, x.k, machine, plan.share * x.left, plan.share + x.left, run)
    sums = -(-rows // plan.share) * (step * vectors + machine.shuffles.add_lanes * plan.share * x.left)
    moves = machine.shuffles
    turned = moves.transpose_number * x.left if x.w is not None else moves.transpose_in * x.whole / product.width
    times = peeled_runs(product, machine) * prod(product.extents[v] for v in product.outer)
    return sums * others + turned * depth * times


def peeled_runs(product: Product, machine: Machine) -> int:
    """How many runs the rows are taken in, for every step of the batch: so many that all cores have some."""
    return -(-machine.cores // prod(product.extents[v] for v in product.outer))


def _step_along(
    product: Product, k: str, machine: Machine, results: int, operands: int, row: int, arrival: float = 0.0
) -> tuple[float, int]:
    """The cycles of a step with so many sums whose lanes run along loop `k`, of operands with so many numbers a row,
    and how many steps there are."""
    depth, access, fma = product.steps, machine.access, machine.fma
    load = access.load if row * 4 % machine.line_bytes == 0 else access.split_load
    # multiply-adds, loads, and the latency of sums, unless the next tile's hide it while this one's data come
    step = max(results / fma.per_cycle, operands * load, arrival or fma.latency) + machine.tile.step
    return step, depth // product.extents[k] * -(-product.extents[k] // product.width)


def _along_k(plan: Plan, product: Product, machine: Machine) -> float:
    """Sums whose lanes run along the reduction.

    Alone, operands come as fast as for other orders of the lanes. Tiles are compared by how their operands arrive: one
    that passes once in many rows at a time comes slower than in few."""
    found = product.along_k
    assert found is not None
    tile, spans = plan.tile, [product.extents[v] for v in found.loops]
    nbytes = product.steps * 4

    def far(results: int) -> float:
        """Cycles for a load of what so many rows or columns of an operand hold, like `TileCosts.panel`."""
        size = results * nbytes
        return 0.0 if size <= machine.l1_bytes // 2 else machine.tile.panel[1 if size <= machine.l2_bytes // 2 else 2]

    # the last loop is the innermost: all of its operand passes again and again, and a tile of the other's stays
    again = [0.0, *map(far, spans[-1:])][-len(spans) :] if spans else []
    if len(spans) == 2 and spans[1] > tile[1]:
        again[0] = far(tile[0])
    arrival = 0.0 if product.alone else _arrival(plan, product, spans, machine)
    total = 0.0
    for sizes in tuples(*(pieces(n, t) for n, t in zip(spans, tile, strict=True))):
        results, count = prod(t for t, _ in sizes), prod(n for _, n in sizes)
        step, vectors = _step_along(
            product, found.k, machine, results, sum(t for t, _ in sizes), product.steps, arrival
        )
        step += sum(t * c for (t, _), c in zip(sizes, again, strict=True))
        total += count * (step * vectors + machine.shuffles.add_lanes * results)
    return total * prod(product.extents[v] for v in product.parallel if v not in found.loops)


def _arrival(plan: Plan, product: Product, spans: list[int], machine: Machine) -> float:
    """Cycles until a tile's rows or columns are there that come from far, as a mean over its steps."""
    assert product.along_k is not None
    found, nbytes, tile, x = 0.0, product.steps * 4, plan.tile, machine.far
    others = prod(product.extents[v] for v in product.parallel if v not in product.along_k.loops)
    for d, v in enumerate(product.along_k.loops):
        moved = {y.load.buffer: y.size for y in product.operands if y.steps[v] != 0 and not y.constant}
        size, rows = sum(moved.values()) * 4, tile[d]
        passes = prod(-(-spans[i] // tile[i]) for i in range(len(tile)) if i != d)
        if size > machine.l1_bytes and nbytes >= x.stream_lines * machine.line_bytes:
            each, few = (x.l2_vector, x.l2_rows) if size <= machine.l2_bytes else (x.l3_vector, x.l3_rows)
            first = min(size / (spans[d] * nbytes * others * passes), 1.0)
            found = max(found, rows * first * each * (1 + x.row_doubling * max(log2(rows / few), 0.0)))
    return found


__all__ = [
    "BLOCK_L1_SHARE", "block_bytes", "cycles", "last_panel", "peeled_runs", "pieces", "streams", "transposing",
    "uneven",
]  # fmt: skip
