"""What a target is, and how targets are found. Nothing outside `targets/` names one.

A target is a folder in `tilewright/targets` (or an entry point of the group ``tilewright.targets`` of any installed
package) whose module has an attribute ``TARGET`` that fulfils the protocol `Target`, or ``TARGETS``, a list of such for
a family of machines. The module is imported to list targets, so it must import its code generator only inside its
methods.

A target may also have what not every machine can: `Exporter` (the package as files for other tools) and `Emulator`
(running the code on a simulated machine).
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..support.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from ..program.package import Package
    from ..program.program import Program
    from ..program.timeline import Stamps

ENTRY_POINTS = "tilewright.targets"


@dataclass(frozen=True)
class TargetStage:
    """A stage of the pipeline that a target provides: its name, the level of its result (4, 5 or 6), what it does,
    the function that the driver calls with its state, and the one that gives its result as text.
    """

    name: str
    level: int
    doc: str
    run: Callable[..., Any]
    show: Callable[..., str]


@dataclass(frozen=True)
class Built:
    """A kernel that was built alone: its object, and what a program must know of it (`codegen.kernel_info`)."""

    data: bytes
    info: Any


class Tuning(Protocol):
    """What a target offers to the tuner; `Target.tuning` gives it."""

    def build(
        self, nests: Mapping[str, Any], description: Any, *, workers: int | None, timeout: float
    ) -> dict[str, Built | str]:
        """Objects of finished nests by symbol, or the reason why there is none; never raises for a nest."""

    def measured_on(self, description: Any) -> tuple[str, str]:
        """What times depend on: the machine, and the versions of what makes the code."""

    def forms(self) -> dict[str, Callable[[Any, Any], str]]:
        """The texts that a finished nest can be shown as: name -> function of the nest and the description."""


class Context(Protocol):
    """Memory and threads for one run of a program at a time.

    `enter` runs it at once on the arrays given, inputs then outputs, if that is simple. It returns 0 if not (nothing
    has run, and `run` has to be used), 1 if it ran, 2 if `judge` has to be called before the next run.
    `not_at_once` stands for targets that know no such way.
    """

    enter: Callable[..., int]

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """Run once on the addresses of the arrays. A `Runner.timed` program fills `stamps`; no other takes any."""

    def judge(self) -> None:
        """Look at what the last run was like, for the next one."""

    def close(self) -> None:
        """End the threads; the context cannot be used any more."""


def not_at_once(*arrays: np.ndarray) -> int:
    """An `enter` that leaves every call to `run`."""
    return 0


class Runner(Protocol):
    """A program loaded into this process."""

    seconds_per_tick: float
    threads: int

    def context(self) -> Context: ...

    def timed(self) -> Runner:
        """The same program with time stamps in it; UsageError if the target has no clock."""


@runtime_checkable
class Target(Protocol):
    """A kind of machine: how it is described, the stages from kernels to binary code, and how that code is run."""

    name: str
    doc: str

    def describe(self) -> Any:
        """The description of the machine to compile for; has ``to_json()``."""

    def stages(self) -> Sequence[TargetStage]:
        """The stages after scheduling, in order."""

    def link(self, program: Program, objects: dict[str, bytes], description: Any) -> dict[str, bytes]:
        """All objects of a package: the kernels and the code that calls them in order."""

    def check(self, description: dict[str, Any]) -> None:
        """PackageError if code for a machine so described cannot run here."""

    def load(self, package: Package, threads: int) -> Runner:
        """Load a package's code to run with `threads` threads."""


@runtime_checkable
class Exporter(Protocol):
    """A target whose packages can be written as files that other tools build with: source code, a library, a header."""

    name: str
    #: name of a setting -> (its choices, the first of which is the default; what it does)
    settings: Mapping[str, tuple[tuple[str, ...], str]]

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        """The files by name."""


@dataclass(frozen=True)
class CallCount:
    """A kernel call of an emulated run and the instructions it took."""

    symbol: str
    names: tuple[str, ...]
    instructions: int


@dataclass(frozen=True)
class Emulated:
    """What emulated runs gave: the outputs of each, the instructions of the last (of each call too), and bytes of the
    image by section. `instructions` is None where the emulator cannot count.
    """

    outputs: list[list[np.ndarray]]
    machine: str
    instructions: int | None = None
    calls: tuple[CallCount, ...] = ()
    sections: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable
class Emulator(Protocol):
    """A target whose code can run on a simulated machine."""

    def emulate(self, package: Package, runs: Sequence[Sequence[np.ndarray]]) -> Emulated:
        """Run the model once for each list of inputs; UsageError if the simulator is not installed."""


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    """All targets by name: the folders here, then installed entry points.

    >>> "cpu" in targets()
    True
    """
    package = importlib.import_module("tilewright.targets")
    found: dict[str, Target] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.ispkg:
            module = importlib.import_module(f"tilewright.targets.{info.name}")
            one = getattr(module, "TARGET", None)
            for target in (*([one] if one is not None else []), *getattr(module, "TARGETS", ())):
                found[target.name] = target
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        target = entry.load()
        target = getattr(target, "TARGET", target)
        if not isinstance(target, Target):
            raise UsageError(f"entry point {entry.name!r} of {ENTRY_POINTS} is no target", hint=f"it is {entry.value}")
        found.setdefault(target.name, target)
    return found


def find(name: str) -> Target:
    """The target of that name; UsageError lists those that there are."""
    known = targets()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown target {name!r}", hint=f"{hint}targets: {', '.join(sorted(known))}")
    return known[name]


def of(target: Target | str) -> Target:
    """A target, or the one of that name."""
    return find(target) if isinstance(target, str) else target
