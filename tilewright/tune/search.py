"""Evolutionary search in the space of one kernel, guided by the cost model.

Each round breeds a pool: neighbours and children of the best candidates measured so far, and random ones. The model
ranks the pool, the first go to measurement, and a few random ones with them, so that a wrong model cannot keep a region
out of sight. The first of all are the default schedule with one yes-or-no decision taken otherwise: in a large space
hardly a candidate is tried on the other side of such a fork. Nothing is proposed twice. Without a model it is random
search."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..driver.tuning_database import Measurement
from ..schedule.decisions import freeze
from ..support.errors import TilewrightError
from .cost import CostModel
from .features import features
from .space import Candidate, Space

#: bred in a round for every candidate that is measured
POOL = 6
PARENTS = 12
#: spaces up to this size are listed whole
SMALL = 96


@dataclass
class Search:
    """The state of the search in one space; `add` what was measured, `propose` what to measure next.

    `epsilon` is the fraction of each batch that is chosen at random; `guided=False` is random search.
    """

    space: Space
    model: CostModel | None = None
    seed: int = 0
    epsilon: float = 0.15
    seen: set[object] = field(default_factory=set)
    ranked: list[tuple[float, Candidate]] = field(default_factory=list)
    samples: list[tuple[tuple[float, ...], float]] = field(default_factory=list)
    hints: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._features: dict[object, tuple[float, ...]] = {}
        self._all: list[Candidate] | None = None
        self.seen |= {self.space.default.key, self.space.default.digest}
        self.ranked.append((1.0, self.space.default))
        self._forks = self.space.forks() if self.model is not None else iter(())

    # ---- what is known ----

    def features(self, c: Candidate) -> tuple[float, ...]:
        if c.key not in self._features:
            self._features[c.key] = features(self.space.kernel, c.plain, self.space.machine)
        return self._features[c.key]

    def add(self, candidate: Candidate, status: str, ratio: float | None) -> None:
        """Learn of a measurement; a failed one is not proposed again, and counts as slow."""
        self.seen |= {candidate.key, candidate.digest}
        self.samples.append((self.features(candidate), ratio if ratio is not None else 8.0))
        if status == "ok" and ratio is not None:
            self.ranked.append((ratio, candidate))
            self.ranked.sort(key=lambda r: r[0])

    def resume(self, found: Sequence[Measurement]) -> None:
        """Learn of measurements from the database. One whose decisions mean something else now is left out."""
        for m in found:
            candidate = self.space.realize(m.decisions)
            if candidate is not None and candidate.digest == m.digest and candidate.digest not in self.seen:
                self.add(candidate, m.status, m.ratio)

    @property
    def best(self) -> tuple[float, Candidate]:
        """(ratio, candidate) of the fastest so far; the default has ratio 1."""
        return self.ranked[0]

    def correct(self, candidate: Candidate, ratio: float) -> None:
        """A longer race gave another ratio."""
        self.drop(candidate)
        self.ranked.append((ratio, candidate))
        self.ranked.sort(key=lambda r: r[0])
        known = self.features(candidate)
        self.samples = [(f, ratio if f == known else r) for f, r in self.samples]

    def drop(self, candidate: Candidate) -> None:
        """A candidate that looked fast but is not, or is wrong: no parent any more."""
        self.ranked = [(r, c) for r, c in self.ranked if c is not candidate]

    # ---- what to try ----

    def propose(self, count: int) -> list[Candidate]:
        """Up to `count` new candidates, the most promising first; fewer if the space ends, none if it is exhausted."""
        chosen: list[Candidate] = []
        while self.hints and len(chosen) < count:
            self._take(self.hints.pop(0), chosen)
        if self.space.count() <= SMALL:
            self._from_list(count, chosen)
            return chosen
        while len(chosen) < count and (fork := next(self._forks, None)) is not None:
            self._take(fork, chosen)
        if len(chosen) == count:
            return chosen
        guided = self.model is not None and self.model.ready
        random_ones = count if not guided else max(1, round(count * self.epsilon))
        if self.model is not None and not guided:  # the default is a good start, and its neighbours teach the model
            for _ in range(3 * count):
                if len(chosen) < count // 2:
                    self._take(self.space.mutate(self.space.default, self.rng), chosen)
        if guided and len(chosen) < count - random_ones:
            pool = self._breed(POOL * count)
            for i in self._scores(pool).argsort(kind="stable"):
                if len(chosen) >= count - random_ones:
                    break
                self._take(pool[i], chosen)
        for _ in range(20 * count):
            if len(chosen) >= count:
                break
            self._take(self.space.sample(self.rng), chosen)
        return chosen

    def _scores(self, candidates: list[Candidate]) -> np.ndarray:
        """What the model predicts; smaller is better."""
        assert self.model is not None
        described = [self.features(c) for c in candidates]
        return self.model.predict(described, self.features(self.space.default), len(self.samples))

    def _take(self, c: Candidate, chosen: list[Candidate]) -> None:
        if c.key in self.seen:
            return
        self.seen.add(c.key)
        try:
            new = c.digest not in self.seen
        except TilewrightError:  # it cannot even be finished
            return
        if new:
            self.seen.add(c.digest)
            chosen.append(c)

    def _from_list(self, count: int, chosen: list[Candidate]) -> None:
        """A small space is walked through, in the model's order once it has one."""
        if self._all is None:
            self._all = list(self.space.list())
            self.rng.shuffle(self._all)
        rest = [c for c in self._all if c.key not in self.seen]
        if self.model is not None and self.model.ready:
            rest = [rest[i] for i in self._scores(rest).argsort(kind="stable")]
        for c in rest:
            if len(chosen) >= count:
                break
            self._take(c, chosen)

    def _breed(self, count: int) -> list[Candidate]:
        """New candidates near the best ones."""
        parents = [c for _, c in self.ranked[:PARENTS]]
        pool: dict[object, Candidate] = {}
        for _ in range(3 * count):
            if len(pool) >= count:
                break
            dice = self.rng.random()
            # the better a parent, the more children
            first = parents[min(int(self.rng.expovariate(1.0) * len(parents) / 3), len(parents) - 1)]
            if dice < 0.55:
                child = self.space.mutate(first, self.rng)
            elif dice < 0.75 and len(parents) > 1:
                child = self.space.cross(first, self.rng.choice(parents), self.rng)
            else:
                child = self.space.sample(self.rng)
            if child.key not in self.seen:
                pool.setdefault(freeze(child.decisions), child)
        return list(pool.values())


__all__ = ["Search"]
