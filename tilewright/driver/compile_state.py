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
from ..targets.base import Target
from ..tensor.kernel import Kernel
from .journal import Journal
from .placement import Placement
from .request import CompileRequest


@dataclass
class State:
    """Everything a compilation has made so far; every stage reads and adds to it."""

    request: CompileRequest
    target: Target
    description: Machine
    name: str = "model"
    journal: Journal = field(default_factory=Journal)
    graph: Graph | None = None
    kernels: dict[str, Kernel] = field(default_factory=dict)
    schedules: dict[str, Scheduled] = field(default_factory=dict)
    nests: dict[str, Nest] = field(default_factory=dict)
    emitted: dict[str, str] = field(default_factory=dict)
    infos: dict[str, KernelInfo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    package: Package | None = None
    #: what earlier compilations left (`targets.base.Memo`), None if it is not to be used, and what it gave
    memo: Any = None
    recalled: dict[str, Any] = field(default_factory=dict)
    #: level-3 text of the kernels that the memo does not know yet
    unknown: dict[str, str] = field(default_factory=dict)
    #: what the tuning database gave (`driver.tuned.Tuned`)
    tuned: Any = None
    #: the convolutions that may be computed in several ways (`graph.choose_winograd.Layer` -> how many there are)
    layers: Mapping[Any, int] = field(default_factory=dict)
    #: the schedules that the options give (`driver.external_schedules.ExternalSchedules`)
    external_schedules: Any = None
    #: of several devices: where kernels run and why, and which of them this is the part of
    placement: Placement | None = None
    device: str = ""
    #: the states that grow, by name
    growing: Mapping[str, Growth] = field(default_factory=dict)

    def kernel_done(self, done: int, count: int, symbol: str = "") -> None:
        """So many kernels of this stage are done."""
        self.journal.progress.kernel(done, count, symbol)

    @property
    def options(self) -> Options:
        return self.request.options

    @property
    def consume(self) -> bool:
        """Whether the graph's constants are not needed once they have been packed: a caller's graph, and the references
        of `verify`, share theirs with it."""
        return not (self.request.keep or self.options.verify or isinstance(self.request.source, Graph))

    @property
    def unloaded(self) -> bool:
        """Whether the package is only to be written: it is not loaded."""
        return self.request.unloaded and not self.options.verify

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """Files that the constants are mapped from, the model's own first where it is one."""
        return self.graph.constants.files if self.graph is not None else ()

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
