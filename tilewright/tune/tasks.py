"""Tasks: the kernels of a model, how much of its time each takes, and which of them to tune next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.kernel_key import Key, kernel_key
from ..driver.tuning_database import Machine
from ..ir.context import use
from ..support.errors import UsageError
from ..tensor.kernel import Kernel
from .runner import Subject

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..runtime.executable import Executable


@dataclass
class Task:
    """A kernel to tune. `seconds` is what all its calls take in one run of the model; `meaning` its level-3 IR as
    text."""

    kernel: Kernel
    key: Key
    meaning: str | None = None
    calls: int = 1
    seconds: float = 0.0
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The kernel's name without the digest that makes it unique."""
        head, _, tail = self.kernel.name.rpartition("_")
        return head if head and len(tail) == 10 else self.kernel.name

    def subject(self, target: str, threads: int) -> Subject:
        k = self.kernel
        params = tuple((p.name, p.shape, p.dtype) for p in k.params)
        return Subject(params, k.outputs, k.constants, target, threads, self.meaning)


def task_of(kernel: Kernel, meaning: str | None = None) -> Task:
    """The task of a single kernel; without the text of its IR, results are compared with the default schedule's
    only."""
    return Task(kernel, kernel_key(kernel), meaning)


def compiled(source: object, **options: Any) -> tuple[Any, Executable]:
    """A model as it is compiled now, with the state of the compilation; UsageError if shapes of it are open."""
    from ..driver.compiler import compile_state
    from ..runtime.executable import Executable

    state, executable = compile_state(source, **options)
    if isinstance(executable, Executable):
        return state, executable
    open_ = "; ".join(map(str, executable.inputs))
    raise UsageError(
        f"a model whose shapes are known at run time only cannot be tuned: {open_}",
        stage="tune",
        hint="fix its inputs, inputs={name: (1, 128)}, one tuning for each size that matters",
    )


def extract_tasks(source: object, **options: Any) -> list[Task]:
    """The tasks of a model, compiled as it is now and measured on random inputs; the most costly first.

    Kernels of equal structure are one task. `options` are those of `tilewright.compile`.
    """
    from ..driver.compare import random_inputs

    state, executable = compiled(source, **options)
    inputs = random_inputs([(i.name, i.shape, i.numpy_dtype) for i in executable.inputs], 0)
    runs = executable.time_calls([inputs[i.name] for i in executable.inputs], runs=12)
    seconds = np.quantile(runs, 0.25, axis=0)  # what other processes take from us is never negative
    with use():
        meanings = {
            k: f"module {{\n{_function(f)}\n}}" for k, f in zip(state.kernels, state.module.functions(), strict=True)
        }
    tasks: dict[str, Task] = {}
    for call, taken in zip(executable.package.program.calls, seconds, strict=True):
        kernel = state.kernels.get(call.symbol)
        if kernel is None:
            continue
        key = kernel_key(kernel)
        task = tasks.setdefault(key.kernel, Task(kernel, key, meanings[kernel.name], 0))
        task.calls += 1
        task.seconds += float(taken)
        task.names = (*task.names, *call.names)
    executable.close()
    return sorted(tasks.values(), key=lambda t: -t.seconds)


def _function(function: ir.OpView) -> str:
    return function.operation.get_asm(use_local_scope=True)


# ---- which task next -----------------------------------------------------------------------------------------------


@dataclass
class TaskProgress:
    """How far the tuning of one task is: `history` has the best ratio after every batch."""

    weight: float
    space: int
    trials: int = 0
    best: float = 1.0
    history: list[float] = field(default_factory=list)
    finished: bool = False

    def after(self, trials: int, best: float) -> None:
        self.trials += trials
        self.best = min(self.best, best)
        self.history.append(self.best)

    @property
    def expected_gain(self) -> float:
        """Seconds of the model's time that the next batch is likely to save.

        A task not looked at promises a tenth of its time; later, what its last batches brought, and a little hope that
        fades with the number of trials."""
        if self.finished:
            return 0.0
        if not self.history:
            return 0.1 * self.weight
        before = self.history[-4] if len(self.history) > 3 else 1.0
        rate = (before - self.best) / min(len(self.history), 3)
        hope = 0.06 * self.best / math.sqrt(len(self.history)) * min(1.0, self.space / (4.0 * self.trials + 1.0))
        return self.weight * (rate + hope)


def next_task(progress: Sequence[TaskProgress], busy: Mapping[int, int] | None = None) -> int | None:
    """The number of the task with the largest expected gain; None if all are finished.

    `busy` is how many batches of a task are being measured now: each makes another one promise less."""
    open_ = [i for i, p in enumerate(progress) if not p.finished]
    running = busy or {}
    return max(open_, key=lambda i: progress[i].expected_gain / (1 + running.get(i, 0))) if open_ else None


__all__ = ["Machine", "TaskProgress", "Task", "extract_tasks", "next_task", "task_of"]
