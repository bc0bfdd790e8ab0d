"""The state of a compilation, which the pipeline's stages read and write, and the definition of a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..codegen.kernel_info import KernelInfo
from ..ir.graph import Graph
from ..program.package import Package
from ..program.program import Growth
from ..schedule.machine import Machine
from ..schedule.nest import Nest
from ..schedule.rules import Scheduled
from ..support.mapped_file import MappedFile
from ..support.options import Options
from ..support.progress import Progress
from ..targets.base import Target
from ..tensor.fuse import FusionReport
from ..tensor.kernel import Kernel
from .pass_instrumentation import PassInstrumentation
from .placement import Placement


@dataclass
class State:
    """Everything a compilation has made so far; every stage reads and adds to it."""

    options: Options
    target: Target
    description: Machine
    source: Any = None
    name: str = "model"
    graph: Graph | None = None
    fusion: FusionReport | None = None
    kernels: dict[str, Kernel] = field(default_factory=dict)
    schedules: dict[str, Scheduled] = field(default_factory=dict)
    nests: dict[str, Nest] = field(default_factory=dict)
    emitted: dict[str, str] = field(default_factory=dict)
    infos: dict[str, KernelInfo] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    package: Package | None = None
    #: what earlier compilations left (`targets.base.Memo`), None if it is not to be used, and what it gave
    memo: Any = None
    recalled: dict[str, Any] = field(default_factory=dict)
    #: fused kernels that were cut in two -> why
    divided: dict[str, str] = field(default_factory=dict)
    #: level-3 text of the kernels that the memo does not know yet
    unknown: dict[str, str] = field(default_factory=dict)
    #: what the tuning database gave (`driver.tuned.Tuned`)
    tuned: Any = None
    #: the convolutions that may be computed in several ways (`graph.choose_winograd.Layer` -> how many there are), and
    #: those algorithms where they are given, in place of the database's
    layers: Mapping[Any, int] = field(default_factory=dict)
    algorithms: Mapping[str, str] | None = None
    #: the schedules that the options give (`driver.external_schedules.ExternalSchedules`)
    external_schedules: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    #: what of an earlier stage's seconds belongs to these, because workers did all of them at once
    ahead_seconds: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    #: of several devices: where kernels run and why, and which of them this is the part of
    placement: Placement | None = None
    device: str = ""
    #: kernels that were scheduled when they were placed, by symbol
    tried: dict[str, Scheduled] = field(default_factory=dict)
    #: the states that grow, by name
    growing: Mapping[str, Growth] = field(default_factory=dict)
    #: whether the graph's constants are not needed once they have been packed
    consume: bool = False
    #: whether the package is only to be written: it is not loaded, and its constants are computed as they are written
    unloaded: bool = False
    #: whether the processes that compile kernels start when the model has been read
    ahead: bool = False
    #: files that the constants are mapped from, the model's own first where it is one
    files: tuple[MappedFile, ...] = ()
    #: with `verify`: the first and the last level-2 graph
    references: list[Graph] = field(default_factory=list)

    #: the line that shows how far a compilation is
    progress: Progress | None = None
    #: the stage that runs, and who looks at its passes, None if nobody does
    stage: str = ""
    instrumentation: PassInstrumentation | None = None

    def kernel_done(self, done: int, count: int, symbol: str = "") -> None:
        """So many kernels of this stage are done."""
        if self.progress is not None:
            self.progress.kernel(done, count, symbol)

    @property
    def module(self) -> Graph:
        assert self.graph is not None, "no graph has been imported"
        return self.graph


@dataclass(frozen=True)
class Stage:
    """A named step: the level of its result, what it does, `run(state)`, and `show(state)`, the text of its result."""

    name: str
    level: int
    doc: str
    run: Callable[[State], None]
    show: Callable[[State], str]


__all__ = ["Stage", "State"]
