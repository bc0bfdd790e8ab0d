"""Analytical cost model of a tiling on an accelerator: each engine's busy cycles over all tiles, without a program.

Engines work beside each other, so the slowest of them counts, or two that take turns with the slots of what one makes
and the other takes. What depends on the kernel alone is found out once, what depends on the sizes of tiles once for all
orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...support.dtypes import LOOP_TYPES
from .describe import HOST, CopyEngine, Engine, Listing
from .layouts import TileLayout, TilePlan
from .match import Element, InstructionSelection, MatchedInstruction
from .tiles import TiledNest

#: the part that other engines add to the time of the slowest one: where they meet, somebody waits
HIDDEN = 0.1


@dataclass(frozen=True)
class Estimate:
    """Cycles that a plan is expected to take, and those that each engine works."""

    cycles: float
    engines: dict[str, float]


class Costs:
    """What is the same for all plans of a kernel."""

    def __init__(self, s: InstructionSelection, listing: Listing) -> None:
        self.s, self.listing, self.engines = s, listing, listing.engines
        self.tiles = TiledNest(s, listing, TilePlan())
        self.tiles.prepare()
        buffers = self.tiles.buffers
        self.memories = {name: b.scope for name, b in buffers.items()}
        self.read: list[tuple[Element, set[str], CopyEngine]] = []
        for e in self.tiles.read():
            engine = listing.copy_engine(HOST, buffers[e.buffer].scope)
            assert engine is not None
            self.read.append((e, self.tiles.depends(e), engine))
        sizes = {name: b.size * LOOP_TYPES[b.dtype].nbytes for name, b in buffers.items()}
        self.small = {name for name, size in sizes.items() if size <= listing.memories[self.memories[name]].bytes}
        self.last = s.steps[-1].output.buffer
        stored = listing.copy_engine(buffers[self.last].scope, HOST)
        assert stored is not None
        self.out = stored
        self.delay = {n: e.latency for n, e in listing.engines.items() if isinstance(e, CopyEngine)}
        self.latencies = {step.instruction.name: _latency(step) for step in s.steps}
        self.users = [{x.buffer for x in step.operands.values()} for step in s.steps]

    def comes_again(self, order: tuple[str, ...]) -> tuple[str, ...]:
        """The operands whose tiles are brought more than once in this order, but for those that no memory holds."""
        again = []
        for e, mine, _ in self.read:
            loops = [v for v in order if e.buffer in self.users[0] or v not in self.tiles.sums]
            last = max((n for n, v in enumerate(loops) if v in mine), default=-1)
            if e.buffer in self.small and any(v not in mine for v in loops[:last]):
                again.append(e.buffer)
        return tuple(again)

    def of_tile(self, t: TiledNest) -> EngineTileCosts:
        return EngineTileCosts(self, t)


class EngineTileCosts:
    """What engines do for one tile; how often they do it depends on the order of tiles."""

    def __init__(self, costs: Costs, t: TiledNest) -> None:
        self.c, self.sums = costs, t.sums
        self.times = {v: -(-n // t.tile(v)) for v, n in t.extents.items()}

        def copied(engine: CopyEngine, buffer: str, whole: bool) -> float:
            b = t.buffers[buffer]
            word = costs.listing.memories[b.scope].word
            cycles = _copied(engine, t.layouts[buffer], LOOP_TYPES[b.dtype].nbytes, whole, word)
            return _paced(cycles, engine.latency, engine)

        self.brought = [(e, mine, engine.name, copied(engine, e.buffer, e.constant)) for e, mine, engine in costs.read]
        self.steps = [(step, step_cycles(t, step, paced=True)) for step in costs.s.steps]
        self.out = (costs.out.name, copied(costs.out, costs.last, False))

    def estimate(self, plan: TilePlan) -> Estimate:
        """The slowest engine, or two that take turns with the slots of what one makes and the other takes."""
        c = self.c
        work, first = dict.fromkeys(c.engines, 0.0), 0.0
        frame = prod(self.times[v] for v in plan.order if v not in self.sums)
        runs = [frame if step.sums == () else prod(self.times[v] for v in plan.order) for step, _ in self.steps]
        for (step, cycles), n in zip(self.steps, runs, strict=True):
            work[step.instruction.engine] += cycles * n
        turns = [0.0]
        brought: list[tuple[Element, int, float, str]] = []
        results = tuple(v for v in plan.order if v not in self.sums)
        for e, mine, engine, cycles in self.brought:
            order = plan.order if e.buffer in c.users[0] else results
            n = prod(self.times[v] for v in order if v in mine) if e.buffer in plan.kept else self.around(order, mine)
            work[engine] += cycles * n
            first += cycles
            brought.append((e, n, cycles, engine))
        for (step, used), times, users in zip(self.steps, runs, c.users, strict=True):
            moving = [x for x in brought if x[0].buffer in users and x[1] > 1 and x[0].buffer not in plan.kept]
            if moving:
                late = max(n * (c.delay[g] + c.latencies[step.instruction.name]) for _, n, _, g in moving)
                slots = min(plan.slots_in(c.memories[e.buffer]) for e, _, _, _ in moving)
                turns.append((sum(n * m for _, n, m, _ in moving) + late + used * times) / slots)
        if plan.kept:
            turns.append(self.beginning(plan, brought, max(work[step.instruction.engine] for step, _ in self.steps)))
        engine, out = self.out
        work[engine] += out * frame
        for (a, used), (b, more), n in zip(self.steps, self.steps[1:], runs, strict=False):
            late = c.latencies[a.instruction.name] + c.latencies[b.instruction.name]
            turns.append((used * n + frame * (more + late)) / plan.slots_in(a.memory))
        slowest = max(*work.values(), *turns)
        total = slowest + first + out + sum(c.delay.values())
        rest = sum(work.values()) - slowest
        alone = max(plan.slots, *plan.depth.values(), 1) == 1
        return Estimate(total + rest * (1.0 if alone else HIDDEN), work)

    def beginning(self, plan: TilePlan, brought: list[tuple[Element, int, float, str]], computing: float) -> float:
        """What a plan takes that keeps operands: in the first round of the outermost loop all tiles of those come that
        it does not move, and instructions wait for them; then the other rounds."""
        outer = plan.order[0]
        rounds, loads = self.times[outer], dict.fromkeys(self.c.engines, 0.0)
        for e, n, cycles, engine in brought:
            whole = e.buffer in plan.kept and outer not in self.c.tiles.depends(e)
            loads[engine] += n * cycles / (1 if whole else rounds)
        return max(*loads.values(), computing / rounds) + computing * (1 - 1 / rounds)

    def around(self, order: tuple[str, ...], mine: set[str]) -> int:
        """How often a tile is brought: once for all loops up to the last by which it moves."""
        last = max((n for n, v in enumerate(order) if v in mine), default=-1)
        return prod(self.times[v] for v in order[: last + 1])


def _copied(engine: CopyEngine, layout: TileLayout, size: int, whole: bool, word: int) -> float:
    """Cycles of one tile's copy; a constant (`whole`) lies in the order in which it is read."""
    extents = layout.full
    if whole and extents and extents[-1] * size % word == 0:  # narrower columns are copied row by row
        return engine.cycles(1, prod(extents) * size)
    if layout.joined:  # each part of a run begins at the word before (`emit.ChipProgramEmitter.painted`)
        runs, parts = prod(extents[: -1 - layout.joined]), prod(extents[-1 - layout.joined : -1])
        part = extents[-1] * size
        return sum(engine.cycles(runs, n * part % word + part) for n in range(parts))
    return engine.cycles(prod(extents[:-1]), (extents[-1] if extents else 1) * size)


def _latency(step: MatchedInstruction) -> int:
    """From the beginning of an instruction's work to its result, but for the longest part of its pipeline; of one as
    large as it can be."""
    i = step.instruction
    counts = {d.name: d.limit for d in i.dims} | {f.name: 0 for f in i.fields}
    return i.delay(counts) + sum(i.busy(counts)) - max(i.busy(counts))


def _paced(cycles: float, latency: int, engine: Engine) -> float:
    """What one of several takes: not more than the engine's queue are under way at a time."""
    return max(cycles, (cycles + latency) / engine.queue)


def step_cycles(t: TiledNest, step: MatchedInstruction, paced: bool = False) -> float:
    """Cycles of an instruction's engine for one tile; `paced`, with what it waits for room in its queue."""
    chunk = t.chunks(step)
    counts = {d.name: prod(chunk[v] for v in step.dims[d.name]) for d in step.instruction.dims}
    counts |= {f.name: 0 for f in step.instruction.fields}
    busy: float = max(step.instruction.busy(counts))
    if paced:
        busy = _paced(busy, step.instruction.delay(counts), t.listing.engines[step.instruction.engine])
    around = prod(t.tile(v) for v in t.around(step))
    runs = {v for d in step.instruction.dims if not d.levels for v in step.dims[d.name]}
    times = (-(-t.run_tile(v) // c) if v in runs else t.run_tile(v) / c for v, c in chunk.items())
    return busy * around * prod(times)
