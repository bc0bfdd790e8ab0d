"""The space of a layer on a chip: the plans that its tiles can have, what a plan looks like to the cost model, and the
search in it.

The cost model here corrects what the compiler's estimate of a plan says by what the simulator has said of others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..schedule.decisions import Decision, freeze
from ..targets.accelerator.choices import Choices, Chosen
from ..targets.accelerator.describe import Listing
from ..targets.accelerator.layouts import TilePlan
from ..targets.accelerator.match import InstructionSelection
from ..targets.accelerator.plan import plans
from .cost import CostModel
from .search import Search
from .space import Decisions, Space

#: loops and engines that the cost model sees
LOOPS, ENGINES = 8, 6
#: plans with the best estimates that are tried first
FIRST = 8


class PlanCandidate:
    """A plan of a layer with all its decisions taken (`tune.space.Candidate`)."""

    def __init__(self, chosen: Chosen, candidates: Mapping[str, tuple[Any, ...]], default: Mapping[str, Any]) -> None:
        self.chosen, self.plan = chosen, chosen.plan
        self.decisions: Decisions = dict(chosen.decisions)
        self.options = {n: Decision(n, c, self.decisions[n], default[n]) for n, c in candidates.items()}

    @cached_property
    def digest(self) -> str:
        return str(self.plan)

    @property
    def key(self) -> tuple[object, ...]:
        return freeze(self.decisions)


@dataclass
class PlanSpace(Space):
    """All plans of a selection; the plan that the compiler takes untuned is the default.

    `kernel` and `machine` are the selection's kernel and the chip.
    """

    selection: InstructionSelection
    listing: Listing
    first: TilePlan

    def __post_init__(self) -> None:
        self.choices = Choices(self.selection, self.listing, self.first)
        self._known: dict[tuple[object, ...], Any] = {}
        self.default: Any = self.realize({})

    def realize(self, decisions: Mapping[str, Any]) -> Any:
        """The candidate with these decisions, those not given are the default's; None if its tiles do not fit."""
        given = freeze(decisions)
        if given not in self._known:
            chosen = self.choices.chosen(decisions)
            made = PlanCandidate(chosen, self.choices.candidates, self.choices.default) if chosen else None
            self._known[given] = made
            if made is not None:
                self._known.setdefault(made.key, made)
        return self._known[given]

    def estimated(self) -> list[Any]:
        """The candidates that the estimate likes best."""
        found = (self.realize(self.choices.of(p)) for p, _ in plans(self.selection, self.listing)[: FIRST + 1])
        return [c for c in found if c is not None and c.digest != self.default.digest]


class PlanSearch(Search):
    """The search in a `PlanSpace`."""

    def features(self, c: Any) -> tuple[float, ...]:
        """What the cost model sees: estimates over the default's, tiles along each loop, their order, slots."""
        default: Any = self.space.default
        base, own = default.chosen, c.chosen
        engines = [_log(own.estimate.engines[e], base.estimate.engines[e]) for e in base.estimate.engines]
        extents = [max(options.candidates) for n, options in c.options.items() if n.startswith("tile")]
        tiles = [_log(c.decisions[f"tile{n}"], extent) for n, extent in enumerate(extents)]
        order = [c.decisions["order"].index(n) / len(extents) for n in range(len(extents))]
        slots = [float(v) for n, v in c.decisions.items() if n.startswith("slots")]
        fixed = [_filled(x, n) for x, n in ((engines, ENGINES), (tiles, LOOPS), (order, LOOPS), (slots, ENGINES))]
        estimate = _log(own.estimate.cycles, base.estimate.cycles)
        return (
            estimate,
            *(x for part in fixed for x in part),
            *(float(c.decisions[n]) for n in ("first", "joined", "kept")),
        )


class CorrectedEstimate(CostModel):
    """Predicts the logarithm of a plan's time over the default's: the estimate, and a learnt correction."""

    @property
    def ready(self) -> bool:
        return True

    def fit(
        self, own: Sequence[tuple[tuple[float, ...], float]], others: Sequence[tuple[tuple[float, ...], float]] = ()
    ) -> None:
        super().fit([(f, r / 2 ** f[0]) for f, r in own], [(f, r / 2 ** f[0]) for f, r in others])

    def predict(
        self, features: Sequence[tuple[float, ...]], default: tuple[float, ...] | None = None, measured: int = 0
    ) -> np.ndarray:
        learnt = super().predict(features) if self.trained else np.zeros(len(features))
        return np.array([f[0] for f in features]) + learnt


def _log(a: float, b: float) -> float:
    return math.log2((a + 1) / (b + 1))


def _filled(values: Sequence[float], length: int) -> list[float]:
    return [*values, *[0.0] * length][:length]
