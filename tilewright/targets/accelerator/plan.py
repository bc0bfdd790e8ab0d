"""Chooses tiles: sizes along every loop, the order of tiles, one or two slots, so that engines wait little.

`plans` lists what fits the memories, the best first by an estimate: what each engine has to do in all tiles, the
slowest of them hiding the others where there are two slots. `best` asks the timing simulator about the first few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from math import ceil, prod

from ...schedule.nest import Nest
from ...support.dtypes import LOOP_TYPES
from ...support.errors import CompileError
from ...tensor.expr import Const, Expr, Op, Var
from .binary import ChipProgram, Formats
from .describe import HOST, CopyEngine, Listing
from .emit import emit
from .layouts import Plan, run_limit
from .match import Element, Selection, Step
from .tiles import Tiles
from .timing import Timing, simulate

#: into how many tiles the outermost loop of rows is cut, and the others
OUTER, INNER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128), (1, 2, 4, 8)
#: plans that may fail before a kernel is given up
TRIED = 12
#: tiles of columns or sums at most, in what an instruction takes of them: 1, 2, 4 ...
DOUBLED = 4
#: the part that other engines add to the time of the slowest one: where they meet, somebody waits
HIDDEN = 0.1


@dataclass(frozen=True)
class Estimate:
    """Cycles that a plan is expected to take, and those that each engine works."""

    cycles: float
    engines: dict[str, float]


@dataclass(frozen=True)
class Planned:
    """A kernel for a chip: how it is cut, the nest, the program, and its time."""

    plan: Plan
    nest: Nest
    program: ChipProgram
    timing: Timing


def plans(s: Selection, listing: Listing) -> list[tuple[Plan, Estimate]]:
    """All plans that fit, the best first; CompileError if there is none."""
    for slots in (2, 1):
        if found := [p for tiles in sizes(s, listing) for p in orders(s, listing, tiles, slots)]:
            return sorted(found, key=lambda p: p[1].cycles)
    raise CompileError(
        "no tile of it fits the memories of the chip",
        stage="schedule",
        operator=s.kernel.name,
        hint=_too_much(s, listing),
    )


def _too_much(s: Selection, listing: Listing) -> str:
    """What the smallest tiles take."""
    taken = []
    for tiles in sizes(s, listing):
        t = Tiles(s, listing, Plan(tiles, tuple(v for v in tiles if tiles[v] < s.extents[v]), 1))
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


def orders(s: Selection, listing: Listing, tiles: dict[str, int], slots: int) -> Iterator[tuple[Plan, Estimate]]:
    """The orders of tiles of one size; none if they do not fit."""
    cut = [v for v in s.extents if v in tiles and tiles[v] < s.extents[v]]
    sums = [v for v in cut if v in s.steps[0].sums]
    frame = [v for v in cut if v in s.loops]
    first = Tiles(s, listing, Plan(tiles, (*frame, *sums), slots))
    first.prepare()
    if not fits(first, listing):
        return
    costs = Costs(first, listing)
    for order in permutations(frame):
        plan = Plan(tiles, (*order, *sums), slots)
        yield plan, costs.estimate(plan)


def planned(s: Selection, formats: Formats, plan: Plan) -> Planned:
    """A kernel cut by a plan, all the way to a program and its time."""
    nest = Tiles(s, formats.listing, plan).build()
    program = emit(nest, formats)
    return Planned(plan, nest, program, simulate(formats, program))


def best(s: Selection, formats: Formats, asked: int = 1) -> Planned:
    """The plan that is estimated to be the fastest; of the first `asked`, the one that the simulator finds so.

    CompileError if no plan fits, or none of the first `TRIED` can be emitted.
    """
    found: list[Planned] = []
    failed: CompileError | None = None
    for plan, _ in plans(s, formats.listing)[: max(asked, TRIED)]:
        try:
            found.append(planned(s, formats, plan))
        except CompileError as e:  # rows that do not begin at words, say: other sizes may do
            failed = e
        if len(found) == asked:
            break
    if not found:
        assert failed is not None
        raise failed
    return min(found, key=lambda p: p.timing.cycles)


# ---- what is tried -------------------------------------------------------------------------------------------------


def sizes(s: Selection, listing: Listing) -> Iterator[dict[str, int]]:
    """Sizes of tiles along the loops of a kernel."""
    loops = [*s.loops, *s.steps[0].sums]
    yield from (dict(zip(loops, chosen, strict=True)) for chosen in product(*[along(s, v) for v in loops]))


def along(s: Selection, v: str) -> list[int]:
    """The sizes that are tried along one loop: multiples of what an instruction takes, or parts of the whole."""
    extent = s.extents[v]
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


def _whole(s: Selection, v: str) -> bool:
    """Whether a sum within an instruction runs through a loop of the result."""
    return any(v in step.again.values() for step in s.steps)


def used(t: Tiles, listing: Listing) -> dict[str, int]:
    """The bytes that tiles take of each memory."""
    found = dict.fromkeys(listing.memories, 0)
    for b in t.buffers.values():
        memory = listing.memories[b.scope]
        size = b.size * LOOP_TYPES[b.dtype].nbytes
        found[b.scope] += -(-size // memory.word) * memory.word
    return found


def fits(t: Tiles, listing: Listing) -> bool:
    return all(n <= listing.memories[m].bytes for m, n in used(t, listing).items())


# ---- what it costs -------------------------------------------------------------------------------------------------


class Costs:
    """What engines do for one tile; how often they do it hangs on the order of tiles."""

    def __init__(self, t: Tiles, listing: Listing) -> None:
        self.t, self.engines = t, listing.engines
        self.times = {v: -(-n // t.tile(v)) for v, n in t.extents.items()}
        self.brought: list[tuple[Element, set[str], str, float]] = []
        for e in t.read():
            engine = listing.copy_engine(HOST, t.buffers[e.buffer].scope)
            assert engine is not None
            self.brought.append((e, t.depends(e), engine.name, self.copied(engine, e.buffer, e.constant)))
        self.steps = [(step, step_cycles(t, step)) for step in t.s.steps]
        last = t.s.steps[-1].output.buffer
        engine = listing.copy_engine(t.buffers[last].scope, HOST)
        assert engine is not None
        self.out = (engine.name, self.copied(engine, last, False))
        self.delay = {n: e.latency for n, e in listing.engines.items() if isinstance(e, CopyEngine)}
        full = {s.instruction.name: {d.name: d.limit for d in s.instruction.dims} for s in t.s.steps}
        zero = {s.instruction.name: {f.name: 0 for f in s.instruction.fields} for s in t.s.steps}
        self.latencies = {
            s.instruction.name: s.instruction.delay(full[s.instruction.name] | zero[s.instruction.name])
            for s in t.s.steps
        }

    def copied(self, engine: CopyEngine, buffer: str, whole: bool) -> float:
        """Cycles of one tile's copy; a constant lies in the order in which it is read."""
        size = LOOP_TYPES[self.t.buffers[buffer].dtype].nbytes
        extents = [in_full_tile(n) for _, n in self.t.layouts[buffer].walks]
        if whole:
            return engine.cycles(1, prod(extents) * size)
        return engine.cycles(prod(extents[:-1]), (extents[-1] if extents else 1) * size)

    def estimate(self, plan: Plan) -> Estimate:
        """The slowest engine, or two that take turns with the slots of what one makes and the other takes."""
        work, first = dict.fromkeys(self.engines, 0.0), 0.0
        frame = prod(self.times[v] for v in plan.order if v not in self.t.sums)
        runs = [frame if step.sums == () else prod(self.times[v] for v in plan.order) for step, _ in self.steps]
        for (step, cycles), n in zip(self.steps, runs, strict=True):
            work[step.instruction.engine] += cycles * n
        turns = [0.0]
        for e, mine, engine, cycles in self.brought:
            n = self.around(plan.order, mine)
            work[engine] += cycles * n
            first += cycles
            for (step, used), times in zip(self.steps, runs, strict=True):
                if n > 1 and any(x.buffer == e.buffer for x in step.operands.values()):
                    turns.append(
                        n * (cycles + self.delay[engine] + self.latencies[step.instruction.name]) + used * times
                    )
        engine, out = self.out
        work[engine] += out * frame
        for (a, used), (b, more), n in zip(self.steps, self.steps[1:], runs, strict=False):
            late = self.latencies[a.instruction.name] + self.latencies[b.instruction.name]
            turns.append(used * n + frame * (more + late))
        slowest = max(*work.values(), max(turns) / plan.slots)
        total = slowest + first + out + sum(self.delay.values())
        rest = sum(work.values()) - slowest
        return Estimate(total + rest * (1.0 if plan.slots == 1 else HIDDEN), work)

    def around(self, order: tuple[str, ...], mine: set[str]) -> int:
        """How often a tile is brought: once for all loops up to the last by which it moves."""
        last = max((n for n, v in enumerate(order) if v in mine), default=-1)
        return prod(self.times[v] for v in order[: last + 1])


def in_full_tile(e: Expr) -> int:
    """An extent in the first tile, which is full."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return 0
    assert isinstance(e, Op)
    a, b = map(in_full_tile, e.args)
    if e.op == "floordivsi":
        return a // b
    return {"addi": a + b, "muli": a * b, "minsi": min(a, b), "maxsi": max(a, b)}[e.op]


def step_cycles(t: Tiles, step: Step) -> float:
    """Cycles of an instruction's engine for one tile."""
    chunk = t.chunks(step)
    counts = {d.name: prod(chunk[v] for v in step.dims[d.name]) for d in step.instruction.dims}
    busy = max(step.instruction.busy(counts | {f.name: 0 for f in step.instruction.fields}))
    around = prod(t.tile(v) for v in step.sums if v not in chunk)
    return busy * around * prod(t.tile(v) / c for v, c in chunk.items())
