"""The plan of a product: the one with the least cycles, or what a tuner decides. Every decision is asked here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

from ..machine import Machine
from .candidates import (
    FORMS,
    MIN_TRANSPOSED_ROWS,
    best,
    block_counts,
    block_runs,
    blocked,
    brought,
    candidates,
    run_counts,
    tile_loops,
    tiled,
    whole_rows,
)
from .cycles import cycles, streams, transposing
from .instructions import SHORT_LOOP, Bytes, Matrices, Pairs
from .plan import Along, Brought, Plan
from .product import MAX_WINDOW, Product

#: asks for a decision: name, candidates, what it is untuned (`Schedule.sample_choice`)
Ask = Callable[[str, Sequence[Any], Any], Any]

#: sums of up to so many products are unrolled whole, in tiles of fewer registers, if registers hold twice as many
#: vectors (measured: 1.05 to 1.35 times as fast, 5 to 12 products)
MAX_UNROLLED = 12
#: where sums take this part of the registers, one step of a block of the reduction is unrolled: of two, LLVM keeps
#: sums in memory at times (14 by 2 vectors in 32 registers: 10 of 29 convolutions took 1.3 to 1.6 times the time)
CROWDED_REGISTER_PART = 7 / 8
#: the latency of additions counts in sums of so many products
MIN_INTERLEAVED_STEPS = 128
#: how far ahead packed weights may be asked for: the next panel while rows pass over this one (in a plan, 1), or so
#: many times as far as the machine asks ahead where a panel is read once (a matrix times a vector)
NEXT_PANEL, TIMES_AHEAD = 1, (1 / 4, 1 / 2, 1, 2, 4)
#: steps of the reduction between which sums on matrix registers are worth being put aside
MIN_PIECE_STEPS = 4


def choose(product: Product, machine: Machine, ask: Ask) -> tuple[Plan, Product]:
    """The plan for a sum on vectors, and the product with the lanes and the rows that it has."""
    if plan := _form(product, machine, ask):
        return plan, product
    widest = product.width
    product = product.with_lanes(min(widest, 1 << max(product.n - 1, 0).bit_length()))
    if product.guarded:
        product = replace(product, rows=())  # every guarded load is a branch: a tile of rows would multiply them
    vector, operands = _lanes(product, widest, machine, ask)
    if vector == "M":
        product = product.along_rows(widest)
    short = product.contraction and product.window is None and product.steps <= MAX_UNROLLED and product.width > 1
    whole = short and machine.vector_registers > 2 * MAX_UNROLLED and ask("lay_out", (True, False), True)
    plan = replace(_tile(product, operands, whole, machine, ask), vector=vector, operands=operands)
    return _around(plan, product, whole, machine, ask), product


def choose_grouped(product: Product, machine: Machine, ask: Ask) -> Plan:
    """The plan for a sum on an instruction that takes neighbours of the reduction together."""
    x = product.instruction
    sizes = product.tiles()
    preferred = sizes if isinstance(x, Pairs) else sorted(sizes)  # of tiles with equal cycles the first
    plans = [Plan(tile=t, operands=brought(product), instruction=x.name) for t in preferred]
    plan = best(plans, product, machine)[1]
    plan = replace(plan, tile=ask("tile", sizes, plan.tile))
    rows, weights = product.nbytes(product.still), product.nbytes(product.moved)
    inside = ask("rows_inside", (True, False), rows <= machine.l2_bytes * 3 // 4 or weights > rows)
    plan = replace(plan, rows_inside=inside)
    if isinstance(x, Matrices):
        able = inside and pieces_of(product, plan, machine) is not None
        plan = replace(plan, k_pieces=able and ask("pieces", (True, False), True))
        serial = True
    else:
        inner = [product.trips(k) for k in product.reduction if k in product.live]
        loops, factors, usual = x.unrolled(inner, prod(plan.tile))
        serial = loops < len(inner)
        plan = _unrolled(plan, inner, loops, factors, usual, ask)
    if isinstance(x, Bytes) or not serial or product.batch or not inside:
        return plan
    panel = plan.tile[2] * product.width
    packed = [y for y in product.layouts(product.columns, panel) if y.size * x.factor_bytes > machine.l2_bytes // 2]
    panels = -(-product.n // panel)
    if len(packed) != 1 or prod(packed[0].shape[: packed[0].shape.index(panels)]) != 1:  # none, or panels of groups
        return plan
    numbers = packed[0].size // panels
    again = prod(tile_loops(product, plan)[1]) > 1
    ahead = NEXT_PANEL if again else min(numbers, machine.prefetch.weight_bytes // x.factor_bytes)
    return replace(plan, prefetch=ahead if ask("prefetch", (True, False), True) else 0)


def _form(product: Product, machine: Machine, ask: Ask) -> Plan | None:
    """The plan of the first form that is faster than those after it; None if plain tiles are."""
    found = candidates(product.compared, machine)
    own = [(form, plans, best(plans, product, machine)[1]) for form, plans in found if form.own]
    costs = [cycles(usual, product.compared, machine) for _, _, usual in own]
    costs += [_cost(plans, product, machine) for form, plans in found if own and not form.own]
    for i, (form, plans, usual) in enumerate(own):
        gain = min(costs[i + 1 :]) / costs[i]
        if gain >= form.tried_gain and ask(form.decision, (True, False), gain > form.min_gain):
            return _formed(product, plans, usual, form.own, ask)
    return None


def _cost(plans: Sequence[Plan], product: Product, machine: Machine) -> float:
    """The cycles by which forms are compared: those alone, of a plan with few streams of rows."""
    few = partial(streams, machine=machine)
    return cycles(best(plans, product.compared, machine, few)[1], product.compared, machine)


def _formed(product: Product, plans: Sequence[Plan], usual: Plan, name: str, ask: Ask) -> Plan:
    """One of the plans of a form, by its tile."""
    if usual.vector == "K":
        return replace(usual, tile=ask(name, [p.tile for p in plans], usual.tile))
    sizes = {(p.tile[0], p.share if p.remainder == "peel" else p.tile[2]): p for p in plans}
    key = next(size for size, p in sizes.items() if p == usual)
    plan = sizes[ask(name, list(sizes), key)]
    inner = [product.extents[k] for k in product.reduction]
    return _unrolled(plan, inner, *product.instruction.unrolled(inner), ask)


def _lanes(product: Product, widest: int, machine: Machine, ask: Ask) -> tuple[Along, Brought]:
    """The loop of the lanes (N, or M), and how the operands of the columns are brought."""
    if not product.rows or product.window is not None or product.width == 1:
        return "N", brought(product)
    if product.transposed:
        many = prod(product.extents[m] for m in product.rows) >= MIN_TRANSPOSED_ROWS
        return "N", "transposed" if ask("turn", (True, False), many) else "gathered"
    wide = product.with_lanes(widest)
    form = next(f for f in FORMS if f.decision == "lanes")
    plans = form.plans(wide.compared, machine)
    if plans and not product.repeats_layout and transposing(wide, machine)[1] <= machine.l2_bytes // 2:
        gain = _cost(tiled(wide.compared, machine), wide, machine) / _cost(plans, wide, machine)
        usual = "rows" if gain > form.min_gain else "columns"
        if gain >= form.tried_gain and ask("lanes", ("columns", "rows"), usual) == "rows":
            return "M", "transposed"
    return "N", brought(product)


def _tile(product: Product, operands: str, whole: bool, machine: Machine, ask: Ask) -> Plan:
    """In how many blocks the reduction is taken, and the tile for that."""
    steps, registers = [product.extents[k] for k in product.reduction], machine.vector_registers
    room = registers
    if whole:
        room = machine.unrolled_registers
    elif product.contraction and all(k <= SHORT_LOOP for k in steps) and product.width > 1:
        room = machine.short_loop_registers
    plan = best(tiled(product, machine, registers if product.window else room), product, machine)[1]
    counts = block_counts(steps)
    able = not product.batch and operands == "packed" and product.rows and product.one_weight
    if len(counts) > 1 and product.window is None and able:
        blocks = best(blocked(product, counts[1:], machine), product, machine)[1]
        usual = blocks.k_blocks if _blocks_pay(product, plan, machine) else 1
        count = ask("k_blocks", counts, usual)
        if count not in (1, blocks.k_blocks):
            blocks = best(blocked(product, [count], machine), product, machine)[1]
        plan = plan if count == 1 else blocks
    sizes, best_size = product.tiles(), plan.tile
    if (rows := whole_rows(product)) and rows not in sizes:
        sizes, best_size = [*sizes, rows], rows
    return replace(plan, tile=ask("tile", sizes, best_size))


def _blocks_pay(product: Product, plain: Plan, machine: Machine) -> bool:
    """Whether blocks are faster than whole sums in tiles `plain` (measured, with weights from memory).

    Each block costs as much as 3% of its arithmetic. That is won back where a panel of weights does not stay in the
    second-level cache, and where few rows pass over it in the time that the next one needs from memory."""
    rows, depth = prod(product.extents[v] for v in product.parallel if v != product.columns), product.steps
    if product.width == 1 or rows <= plain.tile[0] * plain.tile[1]:
        return False
    x = machine.blocking
    large = depth * 2 * product.width * 4 > machine.l2_bytes * x.l2_share
    return (depth >= x.medium_sum and large) or (depth >= x.long_sum and rows <= x.few_rows)


def _around(plan: Plan, product: Product, whole: bool, machine: Machine, ask: Ask) -> Plan:
    """What is around a tile: products of a batch, the order of loops, runs of rows, unrolled steps, prefetches."""
    blocks, together = plan.k_blocks > 1, product.swapped or plan.operands == "transposed"
    if product.window is None and not together:
        plan = replace(plan, interleaved=_interleaved(plan, product, machine, ask))
    inside = blocks or together or ask("rows_inside", (True, False), True)
    plan = replace(plan, rows_inside=inside)
    if inside:
        plan = replace(plan, row_runs=_runs(plan, product, blocks or together, machine, ask))
    sums = prod(plan.tile)
    most = 4 if not blocks else 1 if sums >= CROWDED_REGISTER_PART * machine.vector_registers else 2
    inner = block_extents([product.extents[k] for k in product.reduction if k in product.live], plan.k_blocks)
    short = SHORT_LOOP if product.window is None else MAX_WINDOW
    loops, factors, usual = product.instruction.unrolled(inner, short=short, most=most)
    loops = len(inner) if whole else loops
    plan = _unrolled(plan, inner, loops, factors, usual, ask)
    if blocks:
        return replace(plan, prefetch=int(ask("prefetch", (True, False), True)))
    return plan if together or loops == len(inner) else replace(plan, prefetch=_prefetch(plan, product, machine, ask))


def _interleaved(plan: Plan, product: Product, machine: Machine, ask: Ask) -> int:
    """How many products of a batch are summed beside each other: as many as hide the latency of their additions."""
    if not product.batch or product.width == 1 or not product.contraction or product.steps < MIN_INTERLEAVED_STEPS:
        return 1
    most = min(machine.fma.in_flight, machine.vector_registers // 2) // prod(plan.tile)
    fits = [d for d in range(1, most + 1) if product.extents[product.batch[-1]] % d == 0] or [1]
    return int(ask("beside", fits, fits[-1]))


def _runs(plan: Plan, product: Product, together: bool, machine: Machine, ask: Ask) -> int:
    """In how many runs the rows are taken: threads take runs of the outermost loop, and what the innermost walks over
    should stay in the cache."""
    panel = plan.tile[2] * product.width
    panels = -(-product.n // panel)
    runs = run_counts(product, plan) if together or panels > 1 else [1]
    if together:
        return int(ask("row_blocks", runs, block_runs(runs, product, plan, machine)))
    by_core = machine.cores in runs and product.rows_shared(machine)
    return int(ask("row_blocks", runs, machine.cores if by_core else 1))


def _prefetch(plan: Plan, product: Product, machine: Machine, ask: Ask) -> int:
    """How far ahead packed weights are asked for: in a model they come from beyond the second-level cache, and hardware
    prefetching stops at every page. Either while the rows pass over one panel for the next one, a share of it in every
    step of the reduction, or a number of floats ahead of the present one."""
    layouts = product.layouts(product.columns, plan.tile[2] * product.width)
    packed = [x for x in layouts if x.size * 4 > machine.l1_bytes]
    if product.batch or product.stacked or len(packed) != 1:
        return 0
    panel = packed[0].size // packed[0].shape[0]
    rows = tile_loops(product, plan)[1]
    passes = prod(rows) // plan.row_runs if plan.rows_inside else 1
    roomy = panel * 4 <= machine.l2_bytes // 4  # two panels and the rows fit it
    spread = [NEXT_PANEL] if passes > 1 and roomy else []
    usual, stream = 0, machine.prefetch.weight_bytes // 4
    if plan.rows_inside:
        usual = min(panel, stream) if passes == 1 else NEXT_PANEL if roomy else 0
    ahead = [int(n * stream) for n in TIMES_AHEAD]
    return int(ask("prefetch", [0, *spread, *(d for d in ahead if d < packed[0].size)], usual))


# ---- unrolled steps ------------------------------------------------------------------------------------------------


def block_extents(extents: Sequence[int], count: int) -> list[int]:
    """The extents of the loops of a reduction within one of `count` blocks; `count` is one of their `block_counts`."""
    inner = list(extents)
    while count > 1:
        n = inner[0]
        if count % n:
            return [n // count, *inner[1:]]
        inner, count = inner[1:], count // n
    return inner


def _unrolled(plan: Plan, inner: Sequence[int], loops: int, factors: Sequence[int], usual: int, ask: Ask) -> Plan:
    """With `loops` inner loops of the reduction unrolled, and the steps that are unrolled of the one around them."""
    plan = replace(plan, unroll_loops=loops)
    return plan if loops == len(inner) else replace(plan, unroll=ask("unroll", factors, usual))


# ---- the first-level cache -----------------------------------------------------------------------------------------


class Pieces(NamedTuple):
    """How many tiles of rows pass over a piece of the reduction, and its extents by loop; the loops that are missing
    are outside of it."""

    together: int
    extents: dict[str, int]


def pieces_of(product: Product, plan: Plan, machine: Machine) -> Pieces | None:
    """How several tiles of rows pass over a piece of the panel of weights that stays in the first-level cache; None if
    that is not possible or brings nothing.

    Four products take as long as the second-level cache needs for about half of what they read; the weights then come
    from the first level. The price is that the sums of a tile are put aside between pieces, and that there is less to
    divide among threads: at least so much that they share it evenly."""
    (rows, outer, vectors), x = plan.tile, product.instruction
    size, room = x.group * x.factor_bytes, machine.l1_bytes * 3 // 4
    extents, again = {k: product.trips(k) for k in product.reduction}, product.again

    def nbytes(steps: dict[str, int]) -> int:
        """Of the rows and the columns of a tile."""
        own = prod(n for v, n in steps.items() if v not in again)
        return (vectors * product.width * prod(steps.values()) + rows * outer * own) * size

    moved = [n for n in tile_loops(product, plan)[1] if n > 1]
    if nbytes(extents) <= room or not moved:
        return None
    panels = -(-product.n // (vectors * product.width)) * prod(product.extents[v] for v in product.batch)
    others = panels * prod(moved[:-1])

    def shared(parts: int) -> bool:
        return parts % machine.cores == 0 or parts >= 4 * machine.cores

    # tiles whose sums stay in the cache too
    most = min(machine.l1_bytes // 3 // (rows * outer * vectors * product.width * 4), moved[-1])
    counts = [d for d in range(2, most + 1) if moved[-1] % d == 0 and shared(others * (moved[-1] // d))]
    together = max(counts, default=0)
    piece: dict[str, int] = {}
    for k in reversed(product.reduction):
        parts = [d for d in range(1, extents[k] + 1) if extents[k] % d == 0]
        piece[k] = max((d for d in parts if nbytes({**piece, k: d}) <= room), default=1)
        if piece[k] < extents[k]:
            break
    return Pieces(together, piece) if together and prod(piece.values()) >= MIN_PIECE_STEPS else None


__all__ = ["NEXT_PANEL", "Pieces", "block_extents", "choose", "choose_grouped", "pieces_of"]
