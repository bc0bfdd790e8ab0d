"""What the pretrained cost model of the tuner is worth: searches on recorded measurements, with and without it.

    python benchmarks/cost_replay.py test.sqlite ten.sqlite --seeds 8 -o results/tuning_pretrained

The databases are those of cost_data.py, of kernels that the model was not trained on. The tuner's search runs as it
is, but candidates come from what was recorded, and so do their ratios: nothing is measured, and all see the same.
Counted are the trials until a candidate is within 2% of the best one recorded; a search that has not found it after
LIMIT trials counts as LIMIT. Kernels whose default schedule is within 2% of the best are left out: there is nothing to
find. A second table is of searches that know the records of the other kernels, as in a database that is in use.

Writes results.json and results.md."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from tune_kernels import machine_facts, reached

from tilewright.driver.tuning_database import Database, Measurement
from tilewright.schedule.decisions import freeze
from tilewright.tune.cost import CostModel
from tilewright.tune.pretrained import Pretrained, load
from tilewright.tune.search import Search
from tilewright.tune.space import distance

BATCH = 8
#: a search is given up after so many trials
LIMIT = 64
#: fewer records of a kernel need no search
ENOUGH = 12
#: neighbours of a candidate are those recorded that are nearest
NEAR = 6

Samples = list[tuple[tuple[float, ...], float]]


class Recorded:
    """A measured candidate; what `Search` asks of `space.Candidate`."""

    def __init__(self, made: Measurement) -> None:
        self.decisions, self.digest, self.key = made.decisions, made.digest, freeze(made.decisions)
        self.made = made


class Records:
    """The measured part of a space; what `Search` asks of `space.Space`. The first record is the default schedule."""

    kernel = machine = None

    def __init__(self, found: list[Measurement]) -> None:
        self.all = [Recorded(m) for m in found]
        self.default = self.all[0]
        self._nearest = lru_cache(None)(self._sorted)

    def count(self) -> int:
        return len(self.all)

    def list(self) -> Iterator[Recorded]:
        return iter(self.all)

    def sample(self, rng: random.Random) -> Recorded:
        return rng.choice(self.all)

    def mutate(self, c: Recorded, rng: random.Random) -> Recorded:
        return rng.choice(self._nearest(c.key)[1 : 1 + NEAR])

    def cross(self, a: Recorded, b: Recorded, rng: random.Random) -> Recorded:
        both = {**a.decisions, **b.decisions}
        child = {n: rng.choice([c.decisions[n] for c in (a, b) if n in c.decisions]) for n in both}
        return self._nearest(freeze(child))[0]

    def _sorted(self, key: tuple) -> list[Recorded]:
        """The records, the nearest to some decisions first."""
        wanted = dict(key)

        def far(c: Recorded) -> float:
            names = {*wanted, *c.decisions}
            return sum(
                distance(wanted[n], freeze(c.decisions[n])) if n in wanted and n in c.decisions else 1.0 for n in names
            )

        return sorted(self.all, key=far)


def replay(records: Records, model: CostModel | None, seed: int, goal: float, others: Samples) -> list[float]:
    """The best ratio after every trial, until it is within 2% of the goal or LIMIT trials are used."""
    search: Any = Search(records, model, seed)  # type: ignore[arg-type]
    search._features = {c.key: c.made.features for c in records.all}
    curve: list[float] = []
    while len(curve) < LIMIT and reached(curve, goal) is None:
        if model is not None and (len(search.samples) >= 4 or not model.trained):
            model.fit(search.samples, others)
        batch = search.propose(min(BATCH, LIMIT - len(curve)))
        if not batch:
            break
        for c in batch:
            search.add(c, c.made.status, c.made.ratio)
            curve.append(min(search.best[0], 1.0))
    return curve


WAYS = ("random", "guided", "pretrained")


def model_of(way: str, seed: int, guide: Pretrained) -> CostModel | None:
    return None if way == "random" else CostModel(seed, pretrained=guide if way == "pretrained" else None)


class Result(NamedTuple):
    """Of one kernel: records, best ratio, and for every way the trials of each seed and the mean loss of the first
    trials (log2 of best so far over best, mean over the first 24)."""

    label: str
    count: int
    best: float
    trials: dict[str, list[int]]
    loss: dict[str, float]


def compare(label: str, found: list[Measurement], guide: Pretrained, seeds: int, others: Samples) -> Result | None:
    """The searches of one kernel; None if there is nothing to find."""
    goal = min(m.ratio for m in found if m.ratio is not None)
    if goal * 1.02 >= 1.0:
        return None
    records, trials, loss = Records(found), {}, {}
    for way in WAYS:
        curves = [replay(records, model_of(way, s, guide), s, goal, others) for s in range(seeds)]
        trials[way] = [reached(c, goal) or LIMIT for c in curves]
        early = [(c + c[-1:] * 24)[:24] for c in curves]
        loss[way] = float(np.mean(np.log2(np.maximum(np.array(early) / goal, 1.0))))
    return Result(label, len(found) - 1, goal, trials, loss)


def samples(found: list[Measurement]) -> Samples:
    return [(m.features, m.ratio) for m in found if m.ratio is not None]


def markdown(results: list[Result], count: int, seeds: int, warm: bool, guide: Pretrained) -> str:
    """The report: a line a kernel, and the means."""
    lines = [
        f"## Searches that {'know the records of the other kernels' if warm else 'begin from nothing'}", "",
        f"{machine_facts()['processor']}. Pretrained on {guide}. {seeds} searches of each kernel.", "",
        "| kernel | records | best ratio | " + " | ".join(WAYS) + " |",
        "|---|---|---|" + "---|" * len(WAYS),
    ]  # fmt: skip
    for r in results:
        means = " | ".join(f"{np.mean(r.trials[w]):.1f}" for w in WAYS)
        lines.append(f"| {r.label} | {r.count} | {r.best:.3f} | {means} |")
    every = {w: [float(np.mean(r.trials[w])) for r in results] for w in WAYS}
    rows = {
        "mean": [f"{np.mean(every[w]):.1f}" for w in WAYS],
        "geometric mean": [f"{np.exp(np.mean(np.log(every[w]))):.1f}" for w in WAYS],
        "best so far over best, mean of the first 24 trials": [
            f"{2 ** np.mean([r.loss[w] for r in results]):.3f}" for w in WAYS
        ],
    }
    lines += [f"| {name} | | | {' | '.join(row)} |" for name, row in rows.items()]
    lines += ["", f"{count - len(results)} of {count} kernels are not here: their default schedule is within 2% of the "
              "best recorded."]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(
    data: Annotated[list[Path], typer.Argument(help="Databases that cost_data.py has made.")],
    seeds: Annotated[int, typer.Option(help="Searches of each kernel.")] = 20,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write FILE.json and FILE.md.")
    ] = None,
) -> None:
    from rich.progress import track

    guide = load()
    assert guide is not None
    tasks = [
        (row.label, base.measurements(row.id))
        for base in (Database(path, read_only=True) for path in data)
        for row in base.rows()
    ]
    tasks = [(label, found) for label, found in tasks if len(found) > ENOUGH]
    report = (
        "# The pretrained cost model\n\nTrials until a candidate is within 2% of the best one recorded, in the mean; "
    )
    report += f"{LIMIT} where none was found. `random` is search without a model, `guided` with one that learns as it "
    report += "goes, `pretrained` with both. Made by benchmarks/cost_replay.py.\n"
    facts = {"machine": machine_facts(), "pretrained": guide.about, "seeds": seeds, "kernels": len(tasks)}
    for warm in (False, True):
        results: list[Result] = []
        for label, found in track(tasks, "with other records" if warm else "from nothing"):
            others = [s for _, other in tasks if other is not found for s in samples(other[1:])] if warm else []
            result = compare(label, found, guide, seeds, others)
            results += [result] if result is not None else []
        report += "\n" + markdown(results, len(tasks), seeds, warm, guide)
        facts["with other records" if warm else "from nothing"] = [r._asdict() for r in results]
    print(report)
    if output is not None:
        Path(f"{output}.md").write_text(report)
        Path(f"{output}.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
