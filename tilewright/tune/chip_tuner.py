"""Tunes the layers of a model that run on a chip: plans timed by its simulator instead of schedules timed by a clock.

    report = tw.tune("model.onnx", target="cpu+systolic32", trials=500)
    model = tw.compile("model.onnx", target="cpu+systolic32")          # uses the results

Cycles do not depend on the machine at hand, so results hold for the chip's description, and any machine may find them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_mlir import ir

from ..codegen.kernel_info import location_names
from ..driver.kernel_key import kernel_key
from ..driver.tuned import coprocessor_machine
from ..driver.tuning_database import Database, Result
from ..support.errors import UsageError
from ..support.options import Options
from ..targets.accelerator.layers import LayerRun, work_of
from ..targets.base import find
from ..tensor.divide import symbol_of
from ..tensor.read import read_kernel
from .chip_measure import PlanMeter, differs
from .chip_space import CorrectedEstimate, PlanSearch, PlanSpace
from .tasks import Task
from .tuner import Tuner, TuneReport, Watch

if TYPE_CHECKING:
    from ..tensor.kernel import Kernel


def tune_chip(
    source: object,
    options: Options,
    *,
    trials: int | None,
    deadline: float | None,
    database: Database,
    seed: int,
    watch: Watch | None,
    verify: bool,
) -> TuneReport:
    """`tilewright.tune` for a target with a chip; UsageError if nothing of the model runs there."""
    target: Any = find(options.target)
    tasks = layers(source, target, options)
    tuner = PlanTuner(tasks, target, options, CorrectedEstimate(seed), database, seed, watch)
    report = tuner.run(trials, deadline)
    if verify and not report.interrupted:
        tuner.check()
    return report


def layers(source: object, target: Any, options: Options) -> list[Task]:
    """The layers of a model that the chip runs untuned, the longest first; equal ones are one task."""
    from ..driver.compiler import compile_state

    how: dict[str, Any] = {"threads": 1, "cache": False, "tuned": False, "stop_after": "fuse"}
    state, _ = compile_state(source, target=options.target, inputs=options.inputs, states=options.states, **how)
    chip: Any = state.target.coprocessor
    clock = chip.formats.chip.clock
    names: dict[str, list[tuple[str, ...]]] = {}
    for op in state.module.operations():
        if op.name == "func.call":
            symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            names.setdefault(symbol, []).append(location_names(op.location))
    tasks: dict[str, Task] = {}
    for function in state.module.functions():
        if "tw.taken" not in function.attributes:
            continue
        kernel, calls = read_kernel(function), names.get(symbol_of(function), [])
        key = kernel_key(kernel)
        task = tasks.setdefault(key.kernel, Task(kernel, key, None, 0))
        task.calls += len(calls)
        task.names = (*task.names, *(n for c in calls for n in c))
        task.seconds += len(calls) * chip.scheduled(kernel).timing.cycles / clock
    if not tasks:
        notes = "; ".join(list(chip.notes())[:3])
        raise UsageError(f"{options.target} runs nothing of the model on the chip", stage="tune", hint=notes)
    return sorted(tasks.values(), key=lambda t: -t.seconds)


class PlanTuner(Tuner):
    """Tunes the plans of layers; `run` may be called again and goes on."""

    def __init__(
        self,
        tasks: Sequence[Task],
        target: Any,
        options: Options,
        model: CorrectedEstimate | None,
        database: Database,
        seed: int = 0,
        watch: Watch | None = None,
    ) -> None:
        self.formats, self.partitioner = target.coprocessor.formats, target.coprocessor
        self.partitioner.take_plans(None)
        machine = coprocessor_machine(self.partitioner)
        assert machine is not None  # a chip is planned
        meter = PlanMeter(target.name, self.formats.chip.clock, machine, self.formats.chip, options.job_count)
        super().__init__(tasks, options, model, database, seed, watch, meter)
        for entry, task, progress in zip(self.report.tasks, self.tasks, self.progress, strict=True):
            run = self.untuned(task)
            entry.cycles = run.cycles
            progress.weight *= 1 - run.floor / run.cycles  # no plan is below its floors

    def search(self, task: Task, seed: int) -> PlanSearch:
        found = self.partitioner.select(task.kernel)
        made = self.partitioner.best(task.kernel, found)
        space = PlanSpace(task.kernel, self.formats.chip, found, self.formats.listing, made.plan)
        return PlanSearch(space, self.model, seed, hints=space.estimated())

    def untuned(self, task: Task) -> LayerRun:
        found = self.partitioner.select(task.kernel)
        return LayerRun.of("", (), self.partitioner.best(task.kernel, found), self.formats, work_of(found))

    def run(self, trials: int | None, deadline: float | None = None) -> TuneReport:
        self.meter.begin()
        return super().run(trials, deadline)

    def subject(self, i: int) -> Kernel:
        return self.tasks[i].kernel

    def _promote(self, i: int, subject: object) -> None:
        """The fastest plan is the result: its cycles are what they are."""
        ratio, candidate = self.searches[i].best
        if candidate is self.incumbents[i] or ratio >= min(self.report.tasks[i].ratio, 1.0):
            return
        self.incumbents[i] = candidate
        self._improved(i, ratio, candidate)
        baseline = self.report.tasks[i].cycles / self.formats.chip.clock
        result = Result(candidate.decisions, candidate.digest, str(candidate.plan), ratio * baseline, baseline)  # type: ignore[attr-defined]
        self.database.record(self.numbers[i], result)

    def check(self) -> None:
        """Run what was found beside the default plans on random data, and take back what is not right."""
        self.meter.begin()
        winners: list[Any] = self.incumbents
        for i, candidate in enumerate(winners):
            default: Any = self.searches[i].space.default
            if candidate is default:
                continue
            started = time.monotonic()
            why = self.meter.ask(differs, self.tasks[i].kernel, default.plan, candidate.plan)
            self.report.seconds += time.monotonic() - started
            if why:
                self.database.withdraw(self.numbers[i], candidate.digest)
                self.reject(i, candidate, "wrong")
                self.settle(i, 1.0, default)
                self.report.tasks[i].decisions, self.report.tasks[i].problem = {}, why
        self.meter.close()


__all__ = ["PlanTuner", "layers", "tune_chip"]
