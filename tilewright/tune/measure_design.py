"""Measures a model on a design of a chip: its layers' programs by the timing simulator, the rest by what the host would
have to do.

What does not hang on the design is done once for a model: reading it, passes on its graph, and lowering. The host's
kernels are not compiled at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import TilewrightError
from ..targets.accelerator.designs import ON_HOST, DesignMeasurement
from ..targets.base import find

if TYPE_CHECKING:
    from ..driver.compile_state import State
    from ..schedule.machine import Machine
    from ..tensor.kernel import Kernel

#: models that are kept lowered
_KEPT = 4


@dataclass(frozen=True)
class DesignJob:
    """A model on a design: what a worker needs to know."""

    target: str
    model: str
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...] = ()


@dataclass(frozen=True)
class DesignResult:
    """What came out: numbers with the model's data files as they were, or an error's text."""

    measured: DesignMeasurement | None = None
    files: Mapping[str, object] | None = None
    error: str = ""
    hint: str | None = None


def measure(job: DesignJob) -> DesignResult:
    """Adds up what the simulator says of each call of a kernel on the chip; until `forget`, the model's file may not
    change."""
    from ..driver.package_cache import data_files
    from ..targets.accelerator.target import one_of_several

    try:
        file, _, given = job.target.partition(":")
        wanted, _ = one_of_several(given)
        state = lowered(job.model, job.shapes, f"{file}:{wanted}" if wanted else file)
        found = measured(state, job.target)
    except TilewrightError as e:
        return DesignResult(error=e.message, hint=e.hint)
    if found is None:
        return DesignResult(error="no kernel runs on the chip: the host is faster, or their sizes are open")
    return DesignResult(found, data_files(Path(job.model), state.files[1:]))


@lru_cache(_KEPT)
def lowered(model: str, shapes: tuple[tuple[str, tuple[int | str, ...]], ...], target: str) -> State:
    """A compilation as far as level 3, which is the same for all designs of a chip (`target`, without parameters)."""
    from ..driver.compiler import compile_state

    how: dict[str, Any] = {"threads": 1, "cache": False, "tuned": False, "stop_after": "lower"}
    state, _ = compile_state(model, target=target, inputs=dict(shapes) or None, **how)
    return state


def forget() -> None:
    """Models may have changed."""
    lowered.cache_clear()


def measured(state: State, name: str) -> DesignMeasurement | None:
    """The numbers of a lowered model on the target `name`, a chip beside a host; None if nothing runs on the chip."""
    from ..driver.compile_state import State
    from ..driver.stages import fuse_graph
    from ..tensor.divide import symbol_of
    from ..tensor.read import read_kernel

    target: Any = find(name)
    own = State(state.request, target, target.describe(), name=state.name, graph=state.module.clone())
    fuse_graph(own)
    total = _Sum(target.coprocessor)
    calls = Counter(op.attributes["callee"].value for op in own.module.operations() if op.name == "func.call")
    for function in own.module.functions():
        times = calls[symbol_of(function)]
        if "tw.taken" in function.attributes:
            total.on_chip(read_kernel(function), times)
        elif times:
            total.on_host(read_kernel(function), times, own.description)
    return total.result()


class _Sum:
    """The numbers of calls, one kernel after the other."""

    def __init__(self, chip: Any) -> None:
        self.chip, self.formats = chip, chip.formats
        self.bounds: Counter[str] = Counter()
        self.cycles = self.work = self.calls = self.left = 0
        self.energy = self.host = 0.0

    def on_chip(self, kernel: Kernel, times: int) -> None:
        from ..targets.accelerator.layers import LayerRun, work_of

        work = work_of(self.chip.select(kernel))
        run = LayerRun.of(kernel.name, (), self.chip.scheduled(kernel), self.formats, work)
        self.cycles += times * run.cycles
        self.work += times * run.work
        self.energy += times * run.energy
        self.calls += times
        self.bounds[run.bounding] += times * run.cycles

    def on_host(self, kernel: Kernel, times: int, description: Machine) -> None:
        from ..schedule import work
        from ..schedule.rules import schedule

        nest = None if kernel.opaque is None else schedule(kernel, description).schedule.nest()
        # a multiply-add counts as two operations
        self.host += times * work.work_of(kernel, nest).operations / 2 / self.formats.chip.host_rate
        self.left += times

    def result(self) -> DesignMeasurement | None:
        from ..targets.accelerator.layers import peak

        if not self.calls:
            return None
        clock = self.formats.chip.clock
        parts = {name: n / clock for name, n in self.bounds.items()} | ({ON_HOST: self.host} if self.host else {})
        most_first = dict(sorted(parts.items(), key=lambda p: -p[1]))
        use = self.work / (peak(self.formats.listing)[1] * self.cycles)
        seconds = self.cycles / clock + self.host
        return DesignMeasurement(
            seconds, self.cycles, self.host, self.energy, self.work, use, self.calls, self.left, most_first
        )
