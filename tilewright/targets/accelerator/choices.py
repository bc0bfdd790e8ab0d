"""The search space of tilings for a kernel on an accelerator: decisions by name, each with its candidates, and the
plans that they lead to.

    tile0, tile1 ...   the size of a tile along each loop, those of the result first, then those of sums
    order              the loops over tiles, by number, outer first: what stays on the chip while others come and go
    slots_MEMORY       how many tiles of an operand are in a memory at a time
    first              the operand that is brought before others, by its number; -1 leaves them as they are read
    joined             how many loops of sums are joined with the run of the sum
    kept               operands that are kept where they would come again, a bit for each

Numbers stand for names, so that equal kernels have equal decisions whatever their loops are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import ceil
from typing import Any

from .costs import Costs, Estimate
from .describe import Listing
from .layouts import TilePlan, joinable, run_of_sums
from .match import InstructionSelection
from .plan import along, fits

#: into how many tiles a loop is cut at most
PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128)
#: tiles of neighbours, in what an instruction takes of them
RUNS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
#: tiles of an operand that are on the chip at a time
SLOTS = (1, 2, 3)
#: loops whose orders are all tried; with more, those of sums stay innermost
ORDERED = 5


@dataclass(frozen=True)
class Chosen:
    """A plan with the decisions that led to it, and its estimate."""

    decisions: Mapping[str, Any]
    plan: TilePlan
    estimate: Estimate


class Choices:
    """The decisions of a selection around a plan (`default`), with the candidates of each.

    >>> from tilewright import te
    >>> from tilewright.targets.accelerator.match import select
    >>> from tilewright.targets.accelerator.plan import plans
    >>> from tilewright.targets.chips.outer4 import CHIP
    >>> relu = "def relu(x: f32[8, 16], y: out(f32[8, 16])):\\n for i in serial(8):\\n  for j in serial(16):\\n"
    >>> kernel = te.from_nest(relu + "   s: y[i, j] = maximumf(x[i, j], f32(0.0))")
    >>> listing = Listing.of(CHIP())
    >>> s = select(kernel, listing)
    >>> choices = Choices(s, listing, plans(s, listing)[0][0])
    >>> choices.candidates["tile0"], choices.default["slots_scratch"]
    ((8, 4, 3, 2, 1), 4)
    >>> print(choices.chosen({"tile0": 2}).plan)
    tiles i=2, j=16; order i; 4 slots
    """

    def __init__(self, s: InstructionSelection, listing: Listing, plan: TilePlan) -> None:
        self.s, self.listing, self.costs = s, listing, Costs(s, listing)
        self.loops = [*s.loops, *s.steps[0].sums]
        self.operands = [e.buffer for e in self.costs.tiles.read()]
        self.memories = [m for m in listing.memories if m in self.costs.memories.values()]
        self.joinable = joinable(s)
        self.default = self.of(plan)
        self.candidates: dict[str, tuple[Any, ...]] = {}
        for n, v in enumerate(self.loops):
            self.candidates[f"tile{n}"] = tuple(sorted({*sizes(s, v), self.default[f"tile{n}"]}, reverse=True))
        self.candidates["order"] = tuple(dict.fromkeys([self.default["order"], *self.orders()]))
        self.candidates |= {f"slots_{m}": SLOTS for m in self.memories}
        self.candidates["first"] = (-1, *range(len(self.operands)))
        self.candidates["joined"] = tuple(range(len(self.joinable) + 1))
        ones, every = [1 << n for n in range(len(self.operands))], (1 << len(self.operands)) - 1
        self.candidates["kept"] = tuple(sorted({0, self.default["kept"], *ones, every}))

    def orders(self) -> list[tuple[int, ...]]:
        """Of the loops that can be cut."""
        numbers = range(len(self.loops))
        cut = [n for n in numbers if len(self.candidates[f"tile{n}"]) > 1]
        whole = tuple(n for n in numbers if n not in cut)
        if len(cut) <= ORDERED:
            return [(*order, *whole) for order in permutations(cut)]
        frame = [n for n in cut if n < len(self.s.loops)]
        sums = tuple(n for n in cut if n >= len(self.s.loops))
        return [(*frame[:-ORDERED], *order, *sums, *whole) for order in permutations(frame[-ORDERED:])]

    def of(self, plan: TilePlan) -> dict[str, Any]:
        """The decisions that lead to a plan."""
        tiles = {f"tile{n}": plan.tiles.get(v, self.s.extents[v]) for n, v in enumerate(self.loops)}
        order = tuple(self.loops.index(v) for v in (*plan.order, *(v for v in self.loops if v not in plan.order)))
        slots = {f"slots_{m}": plan.slots_in(m) for m in self.memories}
        first = self.operands.index(plan.first[0]) if plan.first else -1
        kept = sum(1 << self.operands.index(b) for b in plan.kept)
        return {**tiles, "order": order, **slots, "first": first, "joined": len(plan.joined), "kept": kept}

    def chosen(self, decisions: Mapping[str, Any]) -> Chosen | None:
        """The plan of some decisions; those left out, or not among the candidates, are the default's. None if its tiles
        do not fit the memories."""
        taken = dict(self.default)
        for name, value in decisions.items():
            value = tuple(value) if isinstance(value, (list, tuple)) else value
            if name in self.candidates and (value in self.candidates[name] or self.is_order(name, value)):
                taken[name] = value
        plan = self.plan(taken)
        tiles = self.costs.tiles.planned(plan)
        tiles.prepare()
        if not fits(tiles, self.listing):
            return None
        return Chosen(taken, plan, self.costs.of_tile(tiles).estimate(plan))

    def is_order(self, name: str, value: Any) -> bool:
        """Of some of the loops, whether it is tried or not."""
        several = isinstance(value, tuple) and len(set(value)) == len(value)
        return name == "order" and several and set(value) <= set(range(len(self.loops)))

    def plan(self, taken: Mapping[str, Any]) -> TilePlan:
        """A plan without what has no effect: loops that are not cut, slots of tiles that stay."""
        tiles = {v: min(taken[f"tile{n}"], self.s.extents[v]) for n, v in enumerate(self.loops)}
        joined = self.joinable[len(self.joinable) - taken["joined"] :]
        if joined:
            tiles |= {v: self.s.extents[v] for v in (*joined[1:], *run_of_sums(self.s))}
        order = [self.loops[n] for n in taken["order"]]
        order += [v for v in self.loops if v not in order]
        cut = tuple(v for v in order if tiles[v] < self.s.extents[v])
        bare = self.costs.tiles.planned(TilePlan(tiles, cut, joined=joined))
        slots, depth = bare.slots({m: taken[f"slots_{m}"] for m in self.memories})
        first = (self.operands[taken["first"]],) if taken["first"] > 0 else ()
        again = self.costs.comes_again(cut)
        kept = tuple(b for n, b in enumerate(self.operands) if taken["kept"] >> n & 1 and b in again)
        return TilePlan(tiles, cut, slots, depth, first, joined, kept)


def sizes(s: InstructionSelection, v: str) -> list[int]:
    """The sizes of tiles along a loop."""
    found, extent = along(s, v), s.extents[v]
    if len(found) < 2:
        return found
    unit = min(found)
    runs = any(not d.levels and v in step.dims[d.name] for step in s.steps for d in step.instruction.dims)
    if runs:
        return [*found, *(unit * n for n in RUNS if unit * n < extent)]
    return [*found, *(ceil(extent / n) for n in PARTS)]
