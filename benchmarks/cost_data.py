"""Measurements to train and to test the tuner's pretrained cost model with: kernels of all families at random sizes.

    python benchmarks/cost_data.py train.sqlite --seed 11 --candidates 16 --minutes 10
    python benchmarks/cost_data.py test.sqlite --seed 12 --candidates 100 --quick
    python benchmarks/cost_data.py ten.sqlite --sizes prime --candidates 100

The kernels are those that the operators of survey_cases.py become at the sizes of the seed. Of each space a part is
measured, half of it near the default schedule and half at random, in turns with the default schedule as the tuner does
it. The data are a tuning database. Every batch is kept when it is measured: stop at any time, run again to go on.
The kernels of tune_kernels.py (``--sizes``) are for testing alone."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from survey_cases import FAMILIES, Case, cases

from tilewright.driver.kernel_key import kernel_key
from tilewright.driver.kernels import fused_kernels
from tilewright.driver.tuning_database import Database, Measurement
from tilewright.schedule.machine import Machine
from tilewright.support.errors import TilewrightError
from tilewright.targets.base import find
from tilewright.tensor.kernel import Kernel
from tilewright.tune.features import features
from tilewright.tune.measure import Meter
from tilewright.tune.space import Candidate, Space
from tilewright.tune.tasks import Task, task_of

#: candidates measured together, as in the tuner
BATCH = 8
#: a case with more arithmetic takes too long for what it teaches
LARGEST = 3e8
#: kernels of one form (equal but for sizes) in the data: every convolution comes with the same transpositions
OF_A_FORM = 3


def kernels(seed: int, families: list[str], quick: bool) -> Iterator[Kernel]:
    """The kernels of all cases of a seed, in random order, so that a part of them is like the whole."""
    made = list(cases(families, seed, quick).values())
    random.Random(seed).shuffle(made)
    forms: Counter[str] = Counter()
    for case in made:
        if case.operations > LARGEST:
            continue
        for kernel in fused_kernels(model(case)):
            form = kernel_key(kernel).form
            forms[form] += 1
            if forms[form] <= OF_A_FORM:
                yield kernel


def model(case: Case):
    """The ONNX model of a case."""
    from onnx import helper, numpy_helper

    def info(label: str, array):
        return helper.make_tensor_value_info(label, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    inputs = [info(k, v) for k, v in case.inputs.items()]
    outputs = [helper.make_empty_tensor_value_info(n) for n in case.nodes[-1].output]
    weights = [numpy_helper.from_array(v, k) for k, v in case.constants.items()]
    graph = helper.make_graph(case.nodes, "case", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


class Choice:
    """Candidates of a space to measure: the whole of a small one, of others half near the default."""

    def __init__(self, space: Space, count: int, seed: int) -> None:
        self.space, self.rng = space, random.Random(seed)
        self.seen = {space.default.key, space.default.digest}
        self.rest = self._choose(count)

    def _choose(self, count: int) -> list[Candidate]:
        if self.space.count() <= count:
            every = list(self.space.list())
            self.rng.shuffle(every)
            return [c for c in every if self._new(c)][:count]  # seen from the default it may seem smaller than it is
        chosen: list[Candidate] = []
        for i in range(20 * count):
            c = self._near() if i % 2 else self.space.sample(self.rng)
            if self._new(c):
                chosen.append(c)
            if len(chosen) == count:
                break
        return chosen

    def _near(self) -> Candidate:
        c = self.space.default
        for _ in range(self.rng.randint(1, 3)):
            c = self.space.mutate(c, self.rng)
        return c

    def _new(self, c: Candidate) -> bool:
        try:
            new = c.key not in self.seen and c.digest not in self.seen
        except TilewrightError:  # it cannot even be finished
            return False
        self.seen |= {c.key, c.digest} if new else set()
        return new


def measure(task: Task, machine: Machine, meter: Meter, data: Database, count: int, seed: int, end: float) -> int:
    """Measure what the data do not have yet of a kernel: how many were measured. The default schedule is the first of
    its task in the data, with ratio 1."""
    space = Space(task.kernel, machine)
    if space.count() < 3:
        return 0
    number = data.task(task.key, task.label, meter.machine)
    known = {m.digest for m in data.measurements(number)}
    rest = [c for c in Choice(space, count, seed).rest if c.digest not in known]
    subject = task.subject(meter.target.name, meter.threads)

    def described(c: Candidate) -> tuple[float, ...]:
        return features(task.kernel, c.plain, machine)

    if not known and rest:
        default = space.default
        data.add(number, [Measurement(default.decisions, default.digest, "ok", None, 1.0, described(default))])
    done = 0
    while rest and time.monotonic() < end:
        batch, rest = rest[:BATCH], rest[BATCH:]
        found = meter.measure(subject, space.default, batch)
        data.add(
            number,
            [
                Measurement(o.candidate.decisions, o.candidate.digest, o.status, o.seconds, o.ratio,
                            described(o.candidate))
                for o in found
            ],
        )  # fmt: skip
        done += len(batch)
    return done


def main(
    output: Annotated[Path, typer.Argument(help="The tuning database to add to.")],
    seed: Annotated[int, typer.Option(help="Seed of the sizes and of the candidates.")] = 11,
    candidates: Annotated[int, typer.Option(help="How many candidates of a kernel.")] = 16,
    minutes: Annotated[float, typer.Option(help="Stop after so long.")] = 10.0,
    threads: int = 1,
    family: Annotated[list[str] | None, typer.Option(help="Only these families of survey_cases.py.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two cases of a family instead of all.")] = False,
    sizes: Annotated[
        str | None, typer.Option(help="The ten kernels of tune_kernels.py instead: prime, survey.")
    ] = None,
) -> None:
    from rich.progress import track
    from tune_kernels import SIZES

    data, begin = Database(output), time.monotonic()
    every = [make() for make in SIZES[sizes].values()] if sizes else [*kernels(seed, family or list(FAMILIES), quick)]
    total = 0
    with Meter(find("cpu"), threads, jobs=1, seconds=0.2) as meter:
        for kernel in track(every, "measuring"):
            if time.monotonic() >= begin + 60 * minutes:
                break
            try:
                total += measure(
                    task_of(kernel), meter.description, meter, data, candidates, seed, begin + 60 * minutes
                )
            except TilewrightError as e:
                print(f"{kernel.name}: {e.message}")
    rows = data.rows()
    print(f"{total} measured in {time.monotonic() - begin:.0f} s; {sum(r.trials for r in rows)} of {len(rows)} kernels")


if __name__ == "__main__":
    typer.run(main)
