"""Roofline report of layers on an accelerator: cycles of each beside its lower bound, and what makes up the difference.

A multiply-add is one operation here; where nothing is multiplied, an element of the instruction's dimensions is. The
floor of the engine that computes is the layer's work at the engine's full size; the floor of a copy engine is each byte
of the host's memory that it needs, once, at full width. No tiling is below its floors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from .binary import ChipProgram, Formats, Issue
from .describe import HOST, CopyEngine, Instruction, Listing
from .functional import window
from .layouts import TilePlan
from .match import InstructionSelection
from .plan import Planned
from .timing import QUEUE, ProgramTiming

#: the part of the time from which on the engine that works is the reason, not what it waits for
FULL = 0.8
#: what an engine waits for when its last instruction is finished, and while one is in other parts of its pipeline
END, PIPELINE = "the end", "its pipeline"
#: what bounds a layer whose busiest engine waits for these
_BOUND = {END: "{0}, then others", PIPELINE: "{0}'s pipeline", QUEUE: "{0}'s queue"}


@dataclass(frozen=True)
class EngineUse:
    """An engine in a layer: instructions, cycles at work, cycles of waiting by cause, the least cycles (0 for engines
    that neither copy nor do the layer's work). The first part of a pipeline may wait while the last one works, so that
    both together can be more than the layer's cycles. Of copy engines: `moved`, the bytes from or to the host, and how
    many of them are `needed`, each once."""

    name: str
    copies: bool
    instructions: int
    busy: int
    stalls: Mapping[str, int]
    floor: int = 0
    moved: int = 0
    needed: int = 0


@dataclass(frozen=True)
class LayerRun:
    """A layer on a chip. `array` is the engine that does its `work`, `peak` what this does in a cycle at best.

    >>> from tilewright import te
    >>> from tilewright.targets.accelerator.plan import best
    >>> from tilewright.targets.accelerator.match import select
    >>> from tilewright.targets.chips.outer4 import CHIP
    >>> relu = "def relu(x: f32[8, 16], y: out(f32[8, 16])):\\n for i in serial(8):\\n  for j in serial(16):\\n"
    >>> kernel = te.from_nest(relu + "   s: y[i, j] = maximumf(x[i, j], f32(0.0))")
    >>> formats = Formats(CHIP())
    >>> selection = select(kernel, formats.listing)
    >>> run = LayerRun.of("relu", ["/relu"], best(selection, formats), formats, work_of(selection))
    >>> run.array, run.work, run.engine("vector").floor, run.engine("load").floor
    ('vector', 128, 32, 64)
    """

    name: str
    sources: tuple[str, ...]
    plan: TilePlan
    program: ChipProgram
    timing: ProgramTiming
    work: int
    array: str
    peak: float
    engines: tuple[EngineUse, ...]

    @staticmethod
    def of(name: str, sources: Sequence[str], planned: Planned, formats: Formats, work: int) -> LayerRun:
        """The numbers of a planned kernel that does `work` multiply-adds; `sources` are the names of its nodes."""
        main = _main(planned.program)
        peak = rate(main) if main is not None else 0.0
        array = main.engine if main is not None else ""
        engines = tuple(_engine(e, planned, formats, ceil(work / peak) if e == array else 0) for e in formats.engines)
        return LayerRun(name, tuple(sources), planned.plan, planned.program, planned.timing, work, array, peak, engines)

    @property
    def cycles(self) -> int:
        return self.timing.cycles

    @property
    def floor(self) -> int:
        """The least cycles: those of the engine that needs most."""
        return max((e.floor for e in self.engines), default=0)

    @property
    def utilization(self) -> float:
        """The work over what the array could have done in all cycles, 0 to 1."""
        return self.work / (self.peak * self.cycles) if self.peak and self.cycles else 0.0

    @property
    def speed(self) -> float:
        """Operations a cycle."""
        return self.work / max(self.cycles, 1)

    @property
    def intensity(self) -> float:
        """Operations for a byte of the host's memory that is moved."""
        return self.work / max(self.timing.moved[HOST], 1)

    @property
    def energy(self) -> float:
        """Picojoules in all."""
        return sum(self.timing.energy.values())

    def engine(self, name: str) -> EngineUse:
        return next(e for e in self.engines if e.name == name)

    @property
    def bound(self) -> str:
        """An engine that has work for nearly all the time, or what the busiest one waits for most."""
        e, cause = self._busiest
        return _BOUND.get(cause, "{0} waits for {1}").format(e.name, cause) if cause else e.name

    @property
    def bounding(self) -> str:
        """The engine that is the reason for `bound`: the busiest one, or the one that it waits for."""
        e, cause = self._busiest
        return cause if any(cause == other.name for other in self.engines) else e.name

    @property
    def _busiest(self) -> tuple[EngineUse, str]:
        """The busiest engine, and what it waits for most if it has not enough work."""
        e = max(self.engines, key=lambda e: e.busy)
        enough = e.busy >= FULL * self.cycles
        return e, "" if enough else max(e.stalls, key=lambda c: e.stalls[c], default="")


def work_of(s: InstructionSelection) -> int:
    """The multiply-adds of a kernel, or the elements of its first step."""
    return prod(s.extents[v] for v in (*s.loops, *s.steps[0].sums))


def rate(i: Instruction) -> float:
    """Operations a cycle of an instruction as large as it can be.

    >>> from tilewright.targets.chips.systolic32 import CHIP
    >>> rate(CHIP().instruction("mma"))
    1024.0
    """
    full = {d.name: d.limit for d in i.dims} | {f.name: 0 for f in i.fields}
    return prod(d.limit for d in i.dims) / max(i.busy(full))


def peak(listing: Listing) -> tuple[str, float]:
    """The engine that does most in a cycle, and how much that is."""
    best = max(listing.instructions.values(), key=rate)
    return best.engine, rate(best)


def _main(program: ChipProgram) -> Instruction | None:
    """The instruction that does most of a program's work."""
    done: dict[str, float] = {}
    found: dict[str, Instruction] = {}
    alike: dict[int, float] = {}  # many instructions share their numbers
    for issue in program.issues():
        i = issue.form.meaning
        if i is not None:
            if (key := id(issue.values)) not in alike:
                alike[key] = prod(issue.counts[d.name] for d in i.dims)
            found[i.name] = i
            done[i.name] = done.get(i.name, 0) + alike[key]
    return found[max(done, key=lambda n: done[n])] if done else None


def _engine(name: str, planned: Planned, formats: Formats, floor: int) -> EngineUse:
    time, engine = planned.timing.engines[name], formats.listing.engines[name]
    stalls = dict(time.stalls.most_common())
    end = planned.timing.cycles - (time.finished[-1] if time.finished else 0)
    rest = planned.timing.cycles - time.busy - sum(stalls.values()) - end
    stalls |= {cause: cycles for cause, cycles in ((PIPELINE, rest), (END, end)) if cycles > 0}
    if not isinstance(engine, CopyEngine):
        return EngineUse(name, False, time.instructions, time.busy, stalls, floor)
    moved, needed = _host_bytes(planned.program, formats, name)
    least = ceil(needed / engine.bytes_per_cycle)
    return EngineUse(name, True, time.instructions, time.busy, stalls, least, moved, needed)


def _host_bytes(program: ChipProgram, formats: Formats, engine: str) -> tuple[int, int]:
    """Bytes between an engine and the host: all, and how many different ones."""
    moved, seen = 0, [np.zeros(n, np.bool_) for n in program.arguments]
    boxes: set[tuple[object, ...]] = set()
    routes = formats.routes(engine)
    for issue in program.streams.get(engine, ()):
        source, target = routes[issue["route"]]
        if HOST not in (source, target) or (target != HOST and _fills(issue)):
            continue
        v = issue.values
        box = (v["arg"], v["host"], v["count"], v["host_stride"], v["run"])
        moved += prod(v["count"]) * issue["run"]
        if box not in boxes:
            boxes.add(box)
            counts, strides = (*v["count"], issue["run"]), (*v["host_stride"], 1)
            window(seen[issue["arg"]], np.dtype(np.bool_), issue["host"], counts, strides)[...] = True
    return moved, sum(int(s.sum()) for s in seen)


def _fills(issue: Issue) -> bool:
    return "fill" in issue.values and bool(issue["fill"])


# ---- as text ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Totals:
    """Sums over layers: cycles, the sum of their floors, operations, bytes of the host, picojoules by memory."""

    cycles: int
    floor: int
    work: int
    host: int
    energy: dict[str, float]
    peak: float

    @staticmethod
    def of(runs: Sequence[LayerRun], listing: Listing) -> Totals:
        energy: dict[str, float] = {}
        for r in runs:
            for memory, joules in r.timing.energy.items():
                energy[memory] = energy.get(memory, 0.0) + joules
        return Totals(
            sum(r.cycles for r in runs),
            sum(r.floor for r in runs),
            sum(r.work for r in runs),
            sum(r.timing.moved[HOST] for r in runs),
            energy,
            peak(listing)[1],
        )

    @property
    def utilization(self) -> float:
        """The work over what the chip's fastest engine could have done in all cycles."""
        return self.work / (self.peak * self.cycles) if self.cycles else 0.0


def table(runs: Sequence[LayerRun], formats: Formats) -> str:
    """A line a layer: cycles, use of the array, floors, what bounds it, energy; then the sum."""
    listing = formats.listing
    copies = [e for e, d in listing.engines.items() if isinstance(d, CopyEngine)]
    rows = [["layer", "operations", "cycles", "use", "floor: array", *copies, "nJ", "bound", "from"]]
    for r in runs:
        floors = [r.engine(r.array).floor if r.array else 0, *(r.engine(e).floor for e in copies)]
        names = ", ".join(r.sources[:2]) + (f" +{len(r.sources) - 2}" if len(r.sources) > 2 else "")
        rows.append(_cells(r.name, r.work, r.cycles, r.utilization, floors, r.energy, r.bound, names))
    t = Totals.of(runs, listing)
    floors = [sum(r.engine(r.array).floor for r in runs if r.array)]
    floors += [sum(r.engine(e).floor for r in runs) for e in copies]
    time = f"{1e3 * t.cycles / formats.chip.clock:.3f} ms at {formats.chip.clock / 1e6:g} MHz"
    rows.append(_cells("all", t.work, t.cycles, t.utilization, floors, sum(t.energy.values()), time, ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    outer = (0, len(widths) - 2, len(widths) - 1)
    lines = (
        "  ".join(c.ljust(w) if i in outer else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _cells(
    name: str, work: int, cycles: int, use: float, floors: Sequence[int], joules: float, bound: str, names: str
) -> list[str]:
    numbers = [f"{work:,}", f"{cycles:,}", f"{use:.1%}", *(f"{f:,}" for f in floors), f"{joules / 1e3:,.1f}"]
    return [name, *numbers, bound, names]
