"""The space of a kernel: all sets of decisions that its schedule rule can take.

A rule asks for each decision while it runs (`Schedule.sample_choice`), and later decisions may depend on earlier ones,
so a space is discovered by running the rule: with some decisions given, it tells which others there are and what they
could be."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..driver.kernel_key import nest_digest
from ..schedule.decisions import freeze
from ..schedule.finish import finish
from ..schedule.machine import Machine
from ..schedule.nest import Nest
from ..schedule.rules import schedule
from ..schedule.schedule import Decision, Schedule
from ..support.errors import TilewrightError
from ..tensor.kernel import Kernel

Decisions = dict[str, Any]


class Candidate:
    """A schedule of a kernel with all its decisions taken."""

    def __init__(self, made: Schedule, rule: str) -> None:
        self.schedule, self.rule = made, rule
        self.options: dict[str, Decision] = dict(made.decisions)
        self.decisions: Decisions = {n: d.chosen for n, d in made.decisions.items()}

    @cached_property
    def plain(self) -> Nest:
        """The nest as the rule leaves it; its loops over tiles still have varying extents."""
        return self.schedule.nest()

    @cached_property
    def nest(self) -> Nest:
        """The finished nest, ready to be emitted."""
        return finish(self.plain)

    @cached_property
    def digest(self) -> str:
        """Equal for decisions that lead to the same code."""
        return nest_digest(self.nest)

    @property
    def key(self) -> tuple[object, ...]:
        return freeze(self.decisions)


@dataclass
class Space:
    """The decisions of a kernel on a machine: list, count, sample, mutate, cross.

    >>> from tilewright import te
    >>> from tilewright.targets.base import find
    >>> a, b = te.placeholder((8, 16), "a"), te.placeholder((16, 32), "b")
    >>> k = te.reduce_axis(16)
    >>> kernel = te.kernel(te.compute((8, 32), lambda i, j: te.sum(a[i, k] * b[k, j], k)))
    >>> space = Space(kernel, find("cpu").describe())
    >>> space.default.rule
    'contraction'
    >>> "tile" in space.sample(random.Random(0)).decisions
    True
    """

    kernel: Kernel
    machine: Machine

    def __post_init__(self) -> None:
        self._known: dict[tuple[object, ...], Candidate | None] = {}
        made = schedule(self.kernel, self.machine)
        self.default = Candidate(made.schedule, made.rule)
        self._known[self.default.key] = self.default

    # ---- looking ----

    def realize(self, decisions: Mapping[str, Any]) -> Candidate | None:
        """The candidate with these decisions; those not given, or not possible, are the rule's own.

        None if the rule refuses them, or the kernel then falls to another rule.
        """
        given = freeze(decisions)
        if given not in self._known:
            try:
                made = schedule(self.kernel, self.machine, decisions)
                candidate = Candidate(made.schedule, made.rule) if made.rule == self.default.rule else None
            except TilewrightError:
                candidate = None
            self._known[given] = candidate
            if candidate is not None:
                self._known.setdefault(candidate.key, candidate)
        return self._known[given]

    @property
    def decisions(self) -> dict[str, Decision]:
        """The decisions of the default schedule with their candidates."""
        return self.default.options

    def count(self) -> int:
        """The product of the numbers of choices, seen from the default: exact where decisions do not depend on each
        other."""
        return math.prod(len(d.candidates) for d in self.decisions.values())

    def list(self) -> Iterator[Candidate]:
        """Every candidate, lazily and without repetition, the default's choices first."""
        yield from self._branch({})

    def _branch(self, given: Decisions) -> Iterator[Candidate]:
        at = self.realize(given)
        if at is None:
            return
        still = [n for n in at.decisions if n not in given]
        if not still:
            if all(freeze(at.decisions[n]) == freeze(v) for n, v in given.items() if n in at.decisions):
                yield at
            return
        d = at.options[still[0]]
        for value in sorted(d.candidates, key=lambda c: c != d.default):
            yield from self._branch({**given, d.name: value})

    def forks(self) -> Iterator[Candidate]:
        """The default with one yes-or-no (or named) decision taken otherwise, in the order in which the rule asks:
        what it leads to (another loop in the lanes, another form) has later decisions of its own."""
        for name, d in self.decisions.items():
            for value in d.candidates:
                if value == d.chosen or not isinstance(value, (bool, str)):
                    continue
                found = self.realize({name: value})
                if found is not None and found.decisions.get(name) == value:
                    yield found

    # ---- moving ----

    def sample(self, rng: random.Random) -> Candidate:
        """A random candidate."""
        for _ in range(20):
            found = self._complete({}, rng, {n: rng.choice(d.candidates) for n, d in self.decisions.items()}, 1.0)
            if found is not None:
                return found
        return self.default

    def mutate(self, candidate: Candidate, rng: random.Random) -> Candidate:
        """A neighbour: one decision (sometimes two) taken differently, numbers mostly by one step."""
        open_ = [d for d in candidate.options.values() if len(d.candidates) > 1]
        if not open_:
            return candidate
        new = dict(candidate.decisions)
        weights = [math.log2(len(d.candidates)) for d in open_]  # what has more choices needs more tries
        for d in rng.choices(open_, weights, k=1 if rng.random() < 0.7 else 2):
            new[d.name] = _neighbour(d, rng)
        return self._complete(new, rng, {}, 0.3) or candidate

    def cross(self, a: Candidate, b: Candidate, rng: random.Random) -> Candidate:
        """A child that takes each decision from one of two parents."""
        names = [*a.decisions, *(n for n in b.decisions if n not in a.decisions)]
        new = {}
        for n in names:
            sources = [c.decisions[n] for c in (a, b) if n in c.decisions]
            new[n] = rng.choice(sources)
        return self._complete(new, rng, {}, 0.0) or a

    def _complete(self, given: Decisions, rng: random.Random, hints: Decisions, randomness: float) -> Candidate | None:
        """Run the rule until every decision it asks for is taken; new ones are random with probability `randomness`."""
        given = {**hints, **given}
        for _ in range(4):
            at = self.realize(given)
            if at is None:
                return None
            changed = {}
            for n, d in at.options.items():
                refused = n in given and freeze(given[n]) != freeze(d.chosen)
                if (n not in given or refused) and rng.random() < randomness:
                    changed[n] = rng.choice(d.candidates)
            if not changed:
                return at
            given = {**at.decisions, **changed}
        return self.realize(given)


def _neighbour(d: Decision, rng: random.Random) -> Any:
    others = [c for c in d.candidates if c != d.chosen]
    if rng.random() < 0.7:
        others.sort(key=lambda c: distance(c, d.chosen))
        others = others[:6]
    return rng.choice(others)


def distance(a: Any, b: Any) -> float:
    """How far apart two choices are: numbers by their logarithms, tuples by the sum over their parts, anything else by
    equality.

    >>> distance((4, 2), (8, 2)) < distance((4, 2), (16, 2)), distance("x", "y")
    (True, 1.0)
    """
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b):
        return sum(distance(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool) or not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
        return float(a != b)
    return abs(math.log2(abs(a) + 1) - math.log2(abs(b) + 1))


__all__ = ["Candidate", "Decisions", "Space", "distance"]
