"""Times plans of an accelerator's layer by its simulator, in processes. The same plan takes the same cycles every time,
so that each is measured once.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

import numpy as np

from ..codegen.kernel_info import pack_array
from ..driver.tuning_database import Machine
from ..support import progress
from ..support.dtypes import NUMPY
from ..support.errors import CompileError, TilewrightError
from ..targets.accelerator.functional import Functional
from ..targets.accelerator.layouts import TilePlan
from ..targets.accelerator.match import InstructionSelection, select
from ..targets.accelerator.plan import Planned, planned
from ..targets.accelerator.race_check import check_order
from ..targets.base import find
from ..tensor.kernel import Kernel
from .measure import NoRunners, Outcome

#: the targets and selections of this process
_targets: dict[str, Any] = {}
_selections: dict[tuple[str, Kernel], InstructionSelection] = {}


def _begin() -> None:
    """Ctrl-C is for the one who asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    progress.allowed = False


def _planned(target: str, kernel: Kernel, plan: TilePlan) -> Planned:
    if target not in _targets:
        _targets[target] = find(target)
    formats = _targets[target].coprocessor.formats
    if (target, kernel) not in _selections:
        _selections[target, kernel] = select(kernel, formats.listing)
    return planned(_selections[target, kernel], formats, plan)


def cycles(target: str, kernel: Kernel, plan: TilePlan) -> int | str:
    """The cycles of a plan, or why it has no program."""
    try:
        return _planned(target, kernel, plan).timing.cycles
    except TilewrightError as e:
        return e.message


def differs(target: str, kernel: Kernel, default: TilePlan, plan: TilePlan) -> str:
    """Why a plan is not right, if it is not: engines that meet at the same words, or other results than the default's
    on random data."""
    results = []
    for p in (default, plan):
        made = _planned(target, kernel, p)
        formats = _targets[target].coprocessor.formats
        try:
            check_order(formats, made.program)
        except TilewrightError as e:
            return e.message
        arrays = _inputs(kernel, 0)
        given = [pack_array(a, made.nest.packs[n]) if n in made.nest.packs else a for n, a in arrays.items()]
        Functional(formats).run(made.program, given)
        results.append([arrays[n] for n in kernel.outputs])
    for a, b in zip(*results, strict=True):
        if a.dtype.kind == "f" and not np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
            return "its results differ from those of the default plan"
        if a.dtype.kind != "f" and not np.array_equal(a, b):
            return "its results differ from those of the default plan"
    return ""


def _inputs(kernel: Kernel, seed: int) -> dict[str, np.ndarray]:
    """Small numbers for every parameter, zeros for results."""
    rng = np.random.default_rng(seed)
    found = {}
    for p in kernel.params:
        dtype = NUMPY[p.dtype]
        if p.name in kernel.outputs:
            found[p.name] = np.zeros(p.shape, dtype)
        elif np.dtype(dtype).kind in "iu":
            found[p.name] = rng.integers(0, 16, p.shape).astype(dtype)
        else:
            found[p.name] = rng.standard_normal(p.shape).astype(dtype)
    return found


_T = TypeVar("_T")


class PlanMeter:
    """Measures batches of plans (`tune.measure.Meter`), `workers` at a time; with one it is this process."""

    def __init__(self, target: str, clock: float, machine: Machine, description: object, workers: int) -> None:
        self.target, self.clock, self.machine, self.description = target, clock, machine, description
        self.workers = workers
        self.pool: ProcessPoolExecutor | None = None
        self.ended = False

    def begin(self) -> None:
        """Measure again, after `close`."""
        self.ended = False

    def close(self) -> None:
        """Batches that are being measured end with the plan that they are at."""
        self.ended = True
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, function: Callable[..., _T], *arguments: object) -> _T:
        if self.ended:
            raise NoRunners("the search has ended", stage="tune")
        if self.workers == 1:
            return function(self.target, *arguments)
        if self.pool is None:
            context = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_begin)
        try:
            return self.pool.submit(function, self.target, *arguments).result()
        except BrokenProcessPool:
            raise CompileError(
                "a process that timed plans has ended",
                stage="tune",
                hint="if memory was short, set TILEWRIGHT_JOBS lower; what was measured is kept",
            ) from None

    def measure(self, kernel: Kernel, default: Any, candidates: Sequence[Any]) -> list[Outcome[Any]]:
        """The outcome of each; `kernel` stands where other meters have a `Subject`."""
        base = self.ask(cycles, kernel, default.plan)
        if isinstance(base, str):
            raise CompileError(f"the default plan has no program: {base}", stage="tune")
        return [self.outcome(c, self.ask(cycles, kernel, c.plan), base) for c in candidates]

    def outcome(self, candidate: Any, found: int | str, base: int) -> Outcome[Any]:
        if isinstance(found, str):
            return Outcome(candidate, "build", why=found)
        return Outcome(candidate, "ok", found / self.clock, found / base)
