"""Tiling search for an accelerator: tile sizes, loop order, and single or double buffering, ranked by a cost model.

`plans` lists what fits the memories, the best first by an estimate: what each engine has to do in all tiles, the
slowest of them hiding the others where there are two slots. `best` asks the timing simulator about the first few.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import ceil, prod

from ...schedule.nest import Nest
from ...support.dtypes import LOOP_TYPES
from ...support.errors import CompileError
from .binary import ChipProgram, Formats
from .costs import Costs, Estimate
from .describe import Listing
from .emit import emit
from .layouts import TilePlan, joinable, run_limit, run_of_sums
from .match import InstructionSelection
from .tiles import TiledNest
from .timing import ProgramTiming, simulate

#: into how many tiles the outermost loop of rows is cut, and the others
OUTER, INNER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128), (1, 2, 4, 8)
#: plans that may fail before a kernel is left to the host
TRIED = 12
#: tiles of columns or sums at most, in what an instruction takes of them: 1, 2, 4 ...
DOUBLED = 4
#: how many plans that keep operands are looked at
KEPT = 32
#: of how many plans more slots for results are tried, and how many those may be
DEEPER, SLOTS = 8, (3, 4)
#: estimates that say nothing about which plan is the better one
ALIKE = 1.005
#: instructions of the programs that are simulated to choose among plans
SHORT = 150


@dataclass(frozen=True)
class Planned:
    """A kernel for a chip: how it is cut, the nest, the program, and its time."""

    plan: TilePlan
    nest: Nest
    program: ChipProgram
    timing: ProgramTiming


def plans(s: InstructionSelection, listing: Listing) -> list[tuple[TilePlan, Estimate]]:
    """All plans that fit, the best first; CompileError if there is none."""
    costs = Costs(s, listing)
    for slots in (2, 1):
        if found := [p for tiles in sizes(s) for p in orders(costs, tiles, slots)]:
            for joined in joins(s):
                found += [p for tiles in grouped(s, joined) for p in orders(costs, tiles, slots, joined)]
            found = fitting(costs, sorted(found, key=lambda p: p[1].cycles))
            deeper = [p for plan, _ in found[:DEEPER] for p in more_slots(costs, plan)]
            return ranked(s, [*found, *deeper])
    raise CompileError(
        "no tile of it fits the memories of the chip",
        stage="schedule",
        operator=s.kernel.name,
        hint=_too_much(s, listing),
    )


def ranked(s: InstructionSelection, found: list[tuple[TilePlan, Estimate]]) -> list[tuple[TilePlan, Estimate]]:
    """The best first; of those that are as good as the best, the one with the fewest tiles."""
    found = sorted(found, key=lambda p: p[1].cycles)
    good = [p for p in found if p[1].cycles <= ALIKE * found[0][1].cycles]
    tiles = {id(p): prod(ceil(s.extents[v] / n) for v, n in p[0].tiles.items()) for p in good}
    return [*sorted(good, key=lambda p: tiles[id(p)]), *found[len(good) :]]


def _too_much(s: InstructionSelection, listing: Listing) -> str:
    """What the smallest tiles take."""
    taken = []
    for tiles in sizes(s):
        t = TiledNest(s, listing, TilePlan(tiles, tuple(v for v in tiles if tiles[v] < s.extents[v]), 1))
        t.prepare()
        taken.append(used(t, listing))
    if not taken:
        whole = next(v for v in s.loops if not along(s, v))
        most = run_limit(s, whole)
        return f"an instruction takes all of {whole} at a time, {most} at most, and here are {s.extents[whole]}"
    least = min(taken, key=lambda t: sum(t.values()))
    wanted = {m: (n, listing.memories[m].bytes) for m, n in least.items()}
    return "the smallest tiles take " + " and ".join(
        f"{n} bytes of {m}, which has {has}" for m, (n, has) in wanted.items() if n > has
    )


def orders(
    costs: Costs, tiles: dict[str, int], slots: int, joined: tuple[str, ...] = ()
) -> Iterator[tuple[TilePlan, Estimate]]:
    """The orders of tiles of one size, each also with operands kept that would come again; none if they do not fit
    (what keeps operands may not: see `fitting`)."""
    s = costs.s
    cut = [v for v in s.extents if v in tiles and tiles[v] < s.extents[v]]
    sums = [v for v in cut if v in s.steps[0].sums]
    frame = [v for v in cut if v in s.loops]
    first = laid_out(costs, TilePlan(tiles, (*frame, *sums), slots, joined=joined))
    if first is None:
        return
    of_tile = costs.of_tile(first)
    for order in permutations(frame):
        plan = TilePlan(tiles, (*order, *sums), slots, joined=joined)
        yield plan, of_tile.estimate(plan)
        if slots > 1 and (again := costs.comes_again(plan.order)):
            plan = replace(plan, kept=again)
            yield plan, of_tile.estimate(plan)


def fitting(costs: Costs, found: list[tuple[TilePlan, Estimate]]) -> list[tuple[TilePlan, Estimate]]:
    """Plans (the best first) without those that keep more than fits; of those that keep something, the first few."""
    kept = [p for p in found if p[0].kept]
    good = {id(p) for p in kept[:KEPT] if laid_out(costs, p[0]) is not None}
    return [p for p in found if not p[0].kept or id(p) in good]


def laid_out(costs: Costs, plan: TilePlan) -> TiledNest | None:
    """The tiles of a plan, None if they do not fit."""
    t = costs.tiles.planned(plan)
    t.prepare()
    return t if fits(t, costs.listing) else None


def more_slots(costs: Costs, plan: TilePlan) -> Iterator[tuple[TilePlan, Estimate]]:
    """A plan with more places for results, and for all tiles: small ones wait longer for each other than they take."""
    every = tuple(costs.listing.memories)
    for wanted, deeper in product(SLOTS, ({step.memory for step in costs.s.steps}, every)) if plan.order else ():
        given = {m: wanted if m in deeper else plan.slots_in(m) for m in every}
        slots, depth = costs.tiles.planned(plan).slots(given)
        more = replace(plan, slots=slots, depth=depth)
        if (t := laid_out(costs, more)) is not None:
            yield more, costs.of_tile(t).estimate(more)


def planned(s: InstructionSelection, formats: Formats, plan: TilePlan) -> Planned:
    """A kernel cut by a plan, all the way to a program and its time."""
    nest = TiledNest(s, formats.listing, plan).build()
    program = emit(nest, formats)
    return Planned(plan, nest, program, simulate(formats, program))


def best(s: InstructionSelection, formats: Formats, asked: int = 1) -> Planned:
    """The plan that is estimated to be the fastest; of the first `asked`, the one that the simulator finds so. Of short
    programs more are asked about: what engines wait for each other counts most there, and asking costs little. Where
    the first plans keep operands or have more slots, the first one that does not is asked about too.

    CompileError if no plan fits, or none of the first `TRIED` can be emitted.
    """
    found: list[Planned] = []
    failed: CompileError | None = None
    order = [plan for plan, _ in plans(s, formats.listing)]
    plain = next((p for p in order if not p.kept and not p.depth), None)
    for plan in order[: max(asked, TRIED)]:
        try:
            found.append(planned(s, formats, plan))
        except CompileError as e:  # rows that do not begin at words, say: other sizes may do
            failed = e
        if len(found) >= asked and sum(len(e) for p in found for e in p.program.streams.values()) > SHORT:
            break
    if plain is not None and all(p.plan != plain for p in found):
        with suppress(CompileError):
            found.append(planned(s, formats, plain))
    if not found:
        assert failed is not None
        raise failed
    return min(found, key=lambda p: p.timing.cycles)


# ---- what is tried -------------------------------------------------------------------------------------------------


def sizes(s: InstructionSelection) -> Iterator[dict[str, int]]:
    """Sizes of tiles along the loops of a kernel."""
    loops = [*s.loops, *s.steps[0].sums]
    yield from (dict(zip(loops, chosen, strict=True)) for chosen in product(*[along(s, v) for v in loops]))


def joins(s: InstructionSelection) -> list[tuple[str, ...]]:
    """Loops of sums that may be joined with the run: the innermost, the two innermost ..."""
    found = joinable(s)
    return [found[-n:] for n in range(1, len(found) + 1)]


def grouped(s: InstructionSelection, joined: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """Sizes of tiles with joined loops: as many of the first as need fewer instructions, the others whole."""
    (run,) = run_of_sums(s)
    whole = {v: s.extents[v] for v in (*joined[1:], run)}
    part, limit, extent = prod(whole.values()), run_limit(s, run), s.extents[joined[0]]
    plain = extent * prod(whole[v] for v in joined[1:]) * ceil(s.extents[run] / limit)
    groups = [n for n in range(1, extent + 1) if _instructions(n, extent, part, limit) < plain]
    others = [v for v in (*s.loops, *s.steps[0].sums) if v not in whole and v != joined[0]]
    for chosen in product(*[along(s, v) for v in others]):
        for n in groups:
            yield dict(zip(others, chosen, strict=True)) | {joined[0]: n} | whole


def _instructions(group: int, extent: int, part: int, limit: int) -> int:
    """How many instructions a sum takes, in groups of parts."""
    full, rest = divmod(extent, group)
    return full * ceil(group * part / limit) + ceil(rest * part / limit)


def along(s: InstructionSelection, v: str) -> list[int]:
    """The sizes that are tried along one loop: multiples of what an instruction takes, or parts of the whole."""
    extent = s.extents[v]
    if v in s.steps[0].sums and not s.steps[0].instruction.accumulates:
        return [extent]
    places = [step.instruction.dim(d) for step in s.steps for d, own in step.dims.items() if v in own]
    if v in s.loops and len(places) < len(s.steps):
        return [1]  # some instruction does not have it: tiles are single iterations
    limits = [d.limit for d in places if not d.levels]
    if _whole(s, v):
        return [extent] if extent <= run_limit(s, v) else []
    if limits:
        unit = max(limits) if v in s.steps[0].sums else run_limit(s, v)
        found = {extent, *(min(unit << n, extent) for n in range(DOUBLED))}
    elif places:
        outer = all(v == own[0] for step in s.steps for own in step.dims.values() if v in own)
        found = {ceil(extent / n) for n in (OUTER if outer else INNER)}
    else:
        found = {extent, 1}
    return sorted(found, reverse=True)


def _whole(s: InstructionSelection, v: str) -> bool:
    """Whether a sum within an instruction runs through a loop of the result."""
    return any(v in step.again.values() for step in s.steps)


def used(t: TiledNest, listing: Listing) -> dict[str, int]:
    """The bytes that tiles take of each memory."""
    found = dict.fromkeys(listing.memories, 0)
    for b in t.buffers.values():
        memory = listing.memories[b.scope]
        size = b.size * LOOP_TYPES[b.dtype].nbytes
        found[b.scope] += -(-size // memory.word) * memory.word
    return found


def fits(t: TiledNest, listing: Listing) -> bool:
    return all(n <= listing.memories[m].bytes for m, n in used(t, listing).items())
