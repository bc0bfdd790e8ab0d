"""Partitions a model between an accelerator and its host: which fused groups run on the chip, where it is faster.

Operations come in the groups that fusion makes for the host. A group that is instructions as a whole is one kernel of
the chip; else a beginning of it that is: a convolution without the float arithmetic behind it. Of several beginnings
the one is taken with which the group is done first: by the cycles that its program takes, and the operations that the
host does in a second for the rest. A chip alone, without a host, has to run groups as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...support.errors import CompileError
from ...support.sizes import Undecided
from ...tensor.kernel import Kernel
from .binary import Formats
from .choices import Choices
from .layouts import TilePlan
from .match import InstructionSelection, NoMatch, select
from .plan import Planned, best, planned

#: a kernel -> the decisions of its tuned plan, and the plan that they led to; None if it was not tuned
KnownPlan = Callable[[Kernel], tuple[Mapping[str, Any], str] | None]


@dataclass(frozen=True)
class KernelPlacement:
    """A kernel, whether the chip runs it, and why (not)."""

    kernel: Kernel
    on_chip: bool
    why: str
    #: on the chip
    seconds: float = 0.0


class Partitioner:
    """The kernels of one chip: what is found out about one is kept for the next that is the same."""

    def __init__(self, formats: Formats, beside: bool, asked: int = 1) -> None:
        self.formats, self.hosted, self.asked = formats, beside, asked
        self.selected: dict[Kernel, InstructionSelection | str] = {}
        self.planned: dict[Kernel, Planned | str] = {}
        self.report: list[KernelPlacement] = []
        self.known: KnownPlan | None = None
        self.tuned: dict[Kernel, str] = {}  # kernels of which a tuned plan is known -> why it is not used, if it is not

    def take_plans(self, known: KnownPlan | None) -> None:
        """Ask `known` for plans from now on."""
        self.known, self.planned, self.tuned = known, {}, {}

    def claims(self, groups: Sequence[Sequence[int]], alone: Callable[[Sequence[int]], Kernel]) -> list[Sequence[int]]:
        """The operations that the chip runs, a list for each kernel."""
        self.report = []
        return [taken for g in groups if (taken := self.claim(g, alone))]

    def claim(self, group: Sequence[int], alone: Callable[[Sequence[int]], Kernel]) -> Sequence[int]:
        """The beginning of a group that the chip runs: the longest one, or with a host the one that is done first."""
        first: KernelPlacement | None = None
        runs: list[tuple[float, Sequence[int], KernelPlacement]] = []
        nodes = sorted(group)
        for n in range(len(nodes), 0, -1):
            placed = self.judged(alone(nodes[:n]))
            if placed.on_chip:
                left = alone(nodes[n:]) if n < len(nodes) else None
                runs.append((placed.seconds + self.on_host(left), nodes[:n], placed))
                if not self.hosted:
                    break
            first = first or placed
        if not runs:
            assert first is not None
            self.report.append(first)
            return ()
        _, taken, placed = min(runs, key=lambda run: run[0])
        if placed is not (longest := runs[0][2]):
            more = f", with what follows {longest.why}: left to the host"
            placed = replace(placed, why=placed.why + more)
        self.report.append(placed)
        return taken

    def on_host(self, kernel: Kernel | None) -> float:
        """Seconds in which the host computes a kernel, at an operation for each of its elements."""
        if kernel is None:
            return 0.0
        return (
            sum(b.size for b in (*kernel.temporaries, *map(kernel.buffer, kernel.outputs)))
            / self.formats.chip.host_rate
        )

    def judged(self, kernel: Kernel) -> KernelPlacement:
        """Whether the chip runs a kernel."""
        found = self.select(kernel)
        if isinstance(found, str):
            return KernelPlacement(kernel, False, found)
        made = self.best(kernel, found)
        if isinstance(made, str):
            return KernelPlacement(kernel, False, made)
        here, there = made.timing.cycles / self.formats.chip.clock, work(found) / self.formats.chip.host_rate
        if self.hosted and here > there:
            return KernelPlacement(kernel, False, f"{here * 1e6:.3g} us on the chip, {there * 1e6:.3g} us on the host")
        tuned = ", tuned" if self.tuned.get(nameless(kernel)) == "" else ""
        return KernelPlacement(kernel, True, f"{made.timing.cycles} cycles{tuned}", here)

    def select(self, kernel: Kernel) -> InstructionSelection | str:
        key = nameless(kernel)
        if kernel.opaque is not None:
            return f"{kernel.opaque.mnemonic} has a loop nest of its own"
        if key not in self.selected:
            try:
                self.selected[key] = select(key, self.formats.listing)
            except NoMatch as e:
                self.selected[key] = str(e)
            except Undecided:
                self.selected[key] = "its sizes are not known"
        return self.selected[key]

    def best(self, kernel: Kernel, found: InstructionSelection) -> Planned | str:
        """The best plan that can be emitted, or why there is none."""
        key = nameless(kernel)
        if key not in self.planned:
            try:
                self.planned[key] = self.as_tuned(kernel, found) or best(found, self.formats, self.asked)
            except CompileError as e:
                self.planned[key] = e.message
        return self.planned[key]

    def as_tuned(self, kernel: Kernel, found: InstructionSelection) -> Planned | None:
        """A kernel by the plan that the tuner found; None if there is none, or it means something else now."""
        result = self.known(kernel) if self.known is not None else None
        if result is None:
            return None
        decisions, digest = result
        key = nameless(kernel)
        try:
            chosen = Choices(found, self.formats.listing, TilePlan()).chosen(decisions)
            if chosen is not None and str(chosen.plan) == digest:
                self.tuned[key] = ""
                return planned(found, self.formats, chosen.plan)
            self.tuned[key] = "its decisions lead to another plan now than the one that was measured"
        except CompileError as e:
            self.tuned[key] = f"its plan is refused: {e.message}"
        return None

    def scheduled(self, kernel: Kernel) -> Planned:
        """A kernel that was claimed, all the way to its program."""
        made = self.planned[nameless(kernel)]
        assert isinstance(made, Planned)
        nest, program = replace(made.nest, name=kernel.name), replace(made.program, name=kernel.name)
        return replace(made, nest=nest, program=program)


def nameless(kernel: Kernel) -> Kernel:
    """The key of a kernel: equal for kernels that compute the same."""
    return replace(kernel, name="kernel")


def work(s: InstructionSelection) -> float:
    """Multiply-adds, or operations where nothing is added up."""
    first = s.steps[0]
    return prod(s.extents[v] for v in (*s.loops, *first.sums)) * (1 if first.sums else len(s.steps))
