"""Validation of tuned schedules in the whole model: with and without them, interleaved.

A schedule that wins alone may lose in a model, where its data come from other kernels and the caches are shared. What
is slower there than untuned, beyond noise, is taken back."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.kernel_key import kernel_key, layer_key
from ..driver.tuning_database import Database, Machine

if TYPE_CHECKING:
    from ..driver.compile_state import State
    from ..runtime.executable import Executable

#: rounds of both models (more of a fast one, as many as fit into so many seconds), runs of each in a round, and how
#: often results of single kernels may be taken back
ROUNDS, MOST_ROUNDS, SECONDS, RUNS, PASSES = 9, 100, 3.0, 5, 3
#: a kernel is slower if the median of the rounds says so by this much, and three in four rounds agree; whole calls,
#: which are compared more exactly, by that much. How fast either is depends on where memory happens to lie, so both
#: must be so twice, in executables made anew: beside themselves kernels of resnet50 and mobilenet_v2 differ by 1 to 2%
#: (standard deviation, at worst 12%), whole calls by 0.3% in the median and 1.1% at worst (measured)
SLOWER, WHOLE = 1.02, 1.005
#: rounds of whole calls (fewest and most), seconds of calls of a model in one, and of all of them
CALL_ROUNDS, CALL_SECONDS, ALL_CALLS = (9, 40), 0.05, 10.0


@dataclass
class Recheck:
    """Seconds of one run of the model, untuned and tuned (medians of paired rounds), and the kernels whose results were
    taken back."""

    untuned: float = 0.0
    tuned: float = 0.0
    withdrawn: list[str] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        return self.untuned / self.tuned if self.tuned else 1.0


@dataclass
class Pair:
    """Executables of a model without and with its tuned kernels; `used` and `algorithms` are the results in the
    latter."""

    plain: Executable
    tuned: Executable
    state: State
    used: dict[str, Any]
    algorithms: dict[Any, Any]
    ratios: dict[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def made(source: object, options: dict[str, Any], stack: contextlib.ExitStack) -> Pair:
        from ..driver.compiler import compile_state

        _, plain = compile_state(source, **{**options, "tuned": False, "algorithms": {}})
        stack.callback(plain.close)
        state, tuned = compile_state(source, **{**options, "tuned": True, "algorithms": None})
        stack.callback(tuned.close)
        found = state.tuned
        return Pair(plain, tuned, state, *((dict(found.used), dict(found.algorithms)) if found else ({}, {})))

    def measure(self, found: Recheck) -> None:
        self.ratios, found.untuned, found.tuned = by_round(self.plain, self.tuned)

    def slower_kernels(self) -> set[str]:
        return {name for name in self.used if _slower(self.ratios.get(name))}

    def slower(self) -> bool:
        """Whether the model as a whole is slower."""
        return _slower(self.ratios[""]) or _slower(whole_calls(self.plain, self.tuned), WHOLE)


def recheck(source: object, options: dict[str, Any], database: Database, machine: Machine) -> Recheck:
    """Measure a model with and without its tuned kernels, and withdraw results that make a kernel slower in it.

    `options` are those of `tilewright.compile`. The tuned model that remains is not slower than the untuned one beyond
    noise: if whole calls of it still seem to be, all its results are withdrawn."""
    found = Recheck()
    with using(database):
        for attempt in range(PASSES + 1):
            with contextlib.ExitStack() as stack:
                pair = Pair.made(source, options, stack)
                if not pair.used and not pair.algorithms:
                    break
                pair.measure(found)
                slow = pair.slower_kernels() if attempt < PASSES else set()
                if not slow and not pair.slower():
                    return found
                again = Pair.made(source, options, stack)
                again.measure(found)
                if slow:
                    _withdraw(sorted(slow & again.slower_kernels()), pair, database, machine, found)
                elif again.slower():  # and no single kernel is to blame
                    _withdraw_all(pair, database, machine, found)
                    break
                else:
                    return found
    found.tuned = found.untuned
    return found


def _withdraw(names: Iterable[str], pair: Pair, database: Database, machine: Machine, found: Recheck) -> None:
    for name in names:
        number = database.task(kernel_key(pair.state.kernels[name]), name, machine)
        database.withdraw(number, pair.used[name].digest)
        found.withdrawn.append(name)


def _withdraw_all(pair: Pair, database: Database, machine: Machine, found: Recheck) -> None:
    for layer, (way, _) in pair.algorithms.items():
        database.withdraw(database.task(layer_key(layer), "conv3x3 way", machine), way)
        found.withdrawn.append(layer.described(way))
    _withdraw(pair.used, pair, database, machine, found)


def by_round(plain: Executable, tuned: Executable) -> tuple[dict[str, np.ndarray], float, float]:
    """Time ratios of every round by kernel (and of the whole model under ""), and the median times of both models."""
    inputs = inputs_of(plain)
    rows: dict[str, list[float]] = {"": []}
    before, after = [], []
    once = sum(by_kernel(plain, inputs).values())
    rounds = min(max(ROUNDS, int(SECONDS / (2 * RUNS * max(once, 1e-6)))), MOST_ROUNDS)
    for turn in range(rounds):
        order = (plain, tuned) if turn % 2 == 0 else (tuned, plain)
        times = {id(x): by_kernel(x, inputs) for x in order}
        old, new = times[id(plain)], times[id(tuned)]
        before.append(sum(old.values()))
        after.append(sum(new.values()))
        rows[""].append(after[-1] / before[-1])
        for name in old.keys() & new.keys():
            rows.setdefault(name, []).append(new[name] / max(old[name], 1e-12))
    return {n: np.array(r) for n, r in rows.items()}, float(np.median(before)), float(np.median(after))


def whole_calls(plain: Executable, tuned: Executable) -> np.ndarray:
    """Time ratios of calls, tuned over untuned, of rounds in which both take turns: what a kernel leaves in the caches
    and when threads end count too, which no sum of kernels has."""
    inputs = inputs_of(plain)
    once = max(seconds_a_call(plain, inputs, 0.0) + seconds_a_call(tuned, inputs, 0.0), 2 * CALL_SECONDS)
    fewest, most = CALL_ROUNDS
    ratios = []
    for turn in range(min(max(fewest, int(ALL_CALLS / once)), most)):
        order = (plain, tuned) if turn % 2 == 0 else (tuned, plain)
        times = {id(x): seconds_a_call(x, inputs, CALL_SECONDS) for x in order}
        ratios.append(times[id(tuned)] / times[id(plain)])
    return np.array(ratios)


def seconds_a_call(executable: Executable, inputs: list[np.ndarray], seconds: float) -> float:
    """The median of calls in a row for so long; at least one, after one that is not counted. States begin as zeros."""
    executable.reset()
    executable(*inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        executable(*inputs)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def inputs_of(executable: Executable) -> list[np.ndarray]:
    from ..driver.compare import random_inputs

    made = random_inputs([(i.name, i.shape, i.numpy_dtype) for i in executable.inputs], 0)
    return [made[i.name] for i in executable.inputs]


def by_kernel(executable: Executable, inputs: list[np.ndarray]) -> dict[str, float]:
    """Seconds of all calls of each kernel in one run: the fastest of a few runs, call by call."""
    fastest = executable.time_calls(inputs, runs=RUNS).min(axis=0)
    found: dict[str, float] = {}
    for call, seconds in zip(executable.package.program.calls, fastest, strict=True):
        found[call.symbol] = found.get(call.symbol, 0.0) + float(seconds)
    return found


def _slower(ratios: np.ndarray | None, by: float = SLOWER) -> bool:
    """Whether a kernel, or the model, is slower beyond noise."""
    return ratios is not None and bool(np.median(ratios) > by and np.quantile(ratios, 0.25) > 1.0)


@contextlib.contextmanager
def using(database: Database) -> Iterator[None]:
    """Let compilation read this database."""
    old = os.environ.get("TILEWRIGHT_DB")
    os.environ["TILEWRIGHT_DB"] = str(database.path)
    try:
        yield
    finally:
        if old is None:
            del os.environ["TILEWRIGHT_DB"]
        else:
            os.environ["TILEWRIGHT_DB"] = old


__all__ = ["Recheck", "by_round", "recheck", "using"]
