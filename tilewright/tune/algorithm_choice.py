"""Convolution algorithm selection by measurement: direct, Winograd F(2x2) or F(4x4) for each 3x3 convolution. The
pass `winograd` estimates it; how much the larger weights of Winograd's method cost on their way from memory differs
from machine to machine, and with the number of threads.

This comes before kernels are searched, as other algorithms mean other kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..driver.kernel_key import layer_key
from ..driver.tuning_database import Database, Machine, Measurement, Result
from ..graph.choose_winograd import ALGORITHMS, Layer, choose
from .recheck import by_kernel, inputs_of
from .tasks import compiled

#: to be kept, a way must take no more of the estimated one's time, in the median of the rounds of two executables
KEEP = 0.97
#: F(4x4) multiplies a quarter as often as the direct sum: what seems faster than this was not measured right
LEAST = 0.2
#: rounds of a race, and runs of each model in a round
ROUNDS, RUNS = 9, 3
#: the part of a model's work below which a convolution is left as it is
SHARE = 0.02


@dataclass
class AlgorithmReport:
    """What racing found for one convolution (`calls` of them): the best way, and its time over the estimated one's."""

    layer: Layer
    calls: int
    estimated: str
    way: str
    ratio: float = 1.0

    def __str__(self) -> str:
        return f"{self.layer.described(self.way)}, {1 / self.ratio:.2f}x"


@dataclass
class AlgorithmRaces:
    """The races of one model. `options` are those of `compile_state`; `tell(what, seconds)` hears what is at work."""

    source: object
    options: dict[str, Any]
    database: Database
    machine: Machine
    tell: Callable[[str], None] = lambda what: None
    found: dict[str, str] = field(default_factory=dict)
    trials: int = 0

    def run(self, most: int | None, deadline: float | None) -> list[AlgorithmReport]:
        """Race every way that was not measured yet, the most costly convolutions first, until `most` races were made or
        the (monotonic) deadline. What won is in the database at once, and in `found`."""
        state, executable = self._compile({})
        executable.close()
        total = sum(layer.work * count for layer, count in state.layers.items())
        reports = []
        for layer, count in sorted(state.layers.items(), key=lambda i: -i[0].work * i[1]):
            known = self.database.result(layer_key(layer).kernel, self.machine)
            way = choose(layer, state.description.winograd_costs)
            report = AlgorithmReport(layer, count, way, way)
            if known is not None:
                report.way, report.ratio = known.decisions["way"], known.seconds / known.baseline
            elif layer.work * count >= SHARE * total:
                self._race_layer(report, most, deadline)
            if report.way != report.estimated:
                self.found[str(layer)] = report.way
                reports.append(report)
        return reports

    def _race_layer(self, report: AlgorithmReport, most: int | None, deadline: float | None) -> None:
        """Try the algorithms of one convolution; one that wins twice becomes the result."""
        number = self.database.task(layer_key(report.layer), "conv3x3 way", self.machine)
        tried = {m.decisions["way"]: m.ratio for m in self.database.measurements(number)}
        raced: dict[str, tuple[float, float]] = {}
        for way in ALGORITHMS:
            done = (most is not None and self.trials >= most) or (deadline is not None and time.monotonic() >= deadline)
            if done or way == report.estimated or way in tried:
                continue
            self.tell(report.layer.described(way))
            raced[way] = self._race(report.layer, way)
            self.trials += 1
            ratio, seconds = raced[way]
            self.database.add(number, [Measurement({"way": way}, way, "ok", seconds * ratio, ratio)])
        if not raced:
            return
        way, (first, _) = min(raced.items(), key=lambda i: i[1][0])
        if first >= KEEP:
            return
        again, seconds = self._race(report.layer, way)
        ratio = max(first, again)
        self.database.correct(number, way, ratio)
        if LEAST < ratio < KEEP:
            report.way, report.ratio = way, ratio
            self.database.record(number, Result({"way": way}, way, "", seconds * ratio, seconds))

    def _race(self, layer: Layer, way: str) -> tuple[float, float]:
        """The time of the kernels that differ, if one convolution is computed another way, over what they take as
        estimated (median of paired rounds; 1 if the whole model is no faster), and the latter in seconds."""
        others = {k: v for k, v in self.found.items() if k != str(layer)}
        _, plain = self._compile(others)
        try:
            _, other = self._compile({**others, str(layer): way})
            try:
                inputs = inputs_of(plain)
                rows = []
                for turn in range(ROUNDS):
                    order = (plain, other) if turn % 2 == 0 else (other, plain)
                    times = {id(x): by_kernel(x, inputs) for x in order}
                    rows.append(_differing(times[id(plain)], times[id(other)]))
            finally:
                other.close()
        finally:
            plain.close()
        old, new, whole = np.array(rows).T
        ratio = float(np.median(new / old))
        return (max(ratio, 1.0) if np.median(whole) >= 1.0 else ratio), float(np.median(old))

    def _compile(self, algorithms: dict[str, str]) -> tuple[Any, Any]:
        return compiled(self.source, keep=False, **{**self.options, "tuned": False, "algorithms": algorithms})


def _differing(old: dict[str, float], new: dict[str, float]) -> tuple[float, float, float]:
    """Seconds of the kernels that only one of two programs has, of each program, and the ratio of all their kernels.

    >>> _differing({"a": 4.0, "b": 2.0}, {"a": 4.0, "c": 1.0})
    (2.0, 1.0, 0.8333333333333334)
    """
    only_old = sum(t for name, t in old.items() if name not in new)
    only_new = sum(t for name, t in new.items() if name not in old)
    return only_old, only_new, sum(new.values()) / sum(old.values())


__all__ = ["AlgorithmReport", "AlgorithmRaces"]
