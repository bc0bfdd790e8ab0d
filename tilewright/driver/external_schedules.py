"""User-supplied schedules: traces from the option ``schedules``, and loop nests read back from a dumped file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..ir.context import use
from ..ir.graph import Graph, read_text
from ..schedule.executed import executed
from ..schedule.nest import Nest
from ..schedule.parse import NestSyntaxError, parse_nest
from ..schedule.primitives.memory import packed_shape
from ..schedule.rules import Scheduled
from ..schedule.schedule import Schedule
from ..schedule.trace import replay
from ..support.errors import ModelError, TilewrightError, UsageError
from ..targets.base import Target
from ..targets.multi_device.stages import Taken
from ..tensor.expr import Buffer
from ..tensor.kernel import Kernel
from ..tensor.read import read_kernel
from .compile_state import State

if TYPE_CHECKING:
    from ..schedule.machine import Machine

#: stands where the name of a rule does
GIVEN = "given"


# ---- traces --------------------------------------------------------------------------------------------------------


@dataclass
class ExternalSchedules:
    """The option ``schedules``: traces by the name of a kernel, or by how names begin (the longest that fits counts).

    UsageError if one is no text.
    """

    traces: Mapping[str, str]
    target: Target
    machine: Machine
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name, trace in self.traces.items():
            if not isinstance(name, str) or not isinstance(trace, str):
                raise UsageError(
                    f"option 'schedules' has for {name!r} no trace as text", hint="str(schedule.trace) of a `Schedule`"
                )

    def knows(self, kernel: str) -> bool:
        return self._key(kernel) is not None

    def _key(self, kernel: str) -> str | None:
        return max((n for n in self.traces if kernel.startswith(n)), key=len, default=None)

    def on(self, target: Target) -> ExternalSchedules:
        """The same for the kernels of one of several devices."""
        return replace(self, target=target, machine=target.describe())

    def trace(self, kernel: str) -> str | None:
        """The trace that is given for a kernel, None if there is none."""
        key = self._key(kernel)
        if key is None:
            return None
        self.used.add(key)
        return self.traces[key]

    def schedule(self, kernel: Kernel) -> Scheduled | None:
        """The kernel with its trace applied, None if none was given. UsageError or ScheduleError, with the kernel and
        the step, if that is not possible. It is not judged against other schedules, and the kernel is never cut."""
        trace = self.trace(kernel.name)
        if trace is None:
            return None
        try:
            made = replay(Schedule(kernel, self.target), trace)
        except TilewrightError as e:
            e.operator = f"kernel {kernel.name}"
            raise
        scheduled = Scheduled(made, GIVEN, ())
        if kernel.opaque is not None:  # an operator's own loop nest is what it is
            return scheduled
        found = executed(scheduled.nest, kernel, self.machine)
        return replace(scheduled, executed=found, problems=tuple(found.reasons(self.machine)))

    def check(self, kernels: list[str]) -> None:
        """UsageError for a name that no kernel of the model has."""
        unused = [n for n in self.traces if n not in self.used]
        if unused:
            raise UsageError(
                f"option 'schedules' names {unused[0]!r}, and there is no such kernel",
                stage="schedule",
                hint=f"kernels: {', '.join(kernels)}",
            )


def traces(state: State) -> dict[str, str]:
    """The trace of every kernel, by kernel; what ``schedules`` takes. Nests that were read from a file have none, and
    kernels that another processor planned by itself."""
    return {
        name: str(made.schedule.trace)
        for name, made in state.schedules.items()
        if made.schedule.trace
        or (not isinstance(made, Taken) and made.schedule.body == Schedule(made.schedule.kernel).body)
    }


# ---- nests ---------------------------------------------------------------------------------------------------------


def graph_file(path: Path) -> Path:
    """Where the fused graph lies that belongs to a file of nests."""
    return path.with_suffix(".graph.mlir")


def enter(state: State, path: Path) -> None:
    """Continue from what was dumped after scheduling: a nest for each kernel, and the graph that calls them.

    ModelError if one of the files is missing or damaged, if a nest cannot be read, or if it is not one of the graph's
    kernels with that kernel's parameters. What a nest computes is as the file says: ``verify`` compares it with the
    graph.
    """
    nests = dict(_read(path))
    beside = graph_file(path)
    if not beside.is_file():
        raise ModelError(
            f"{path} has no graph beside it", stage="parse", hint=f"keep {beside.name} where the nests are"
        )
    state.graph = Graph.load(beside)
    state.module.verify("import")
    with use():
        kernels = {k.name: k for k in map(read_kernel, state.module.functions())}
    _check_names(path, nests, kernels)
    for name, kernel in kernels.items():
        nest = nests[name]
        if reason := _misfit(nest, kernel):
            raise ModelError(f"{path}: {name} {reason}", stage="parse", hint="change what stands inside a nest only")
        own = {p.name: q.name for p, q in zip(kernel.params, nest.params, strict=True)}
        state.kernels[name] = replace(kernel, constants=frozenset(own[n] for n in kernel.constants))
        state.nests[name] = nest
        if all(old == new for old, new in own.items()):  # else it is a chain of kernels, with names of its own
            state.schedules[name] = _scheduled(kernel, nest, state.target)


def _read(path: Path) -> Iterator[tuple[str, Nest]]:
    """The nests in a file; errors have the line of the file."""
    text = read_text(path)
    lines = text.splitlines()
    try:
        found = ast.parse(text).body
        for node in found:
            if not isinstance(node, ast.FunctionDef):
                raise NestSyntaxError(f"line {node.lineno}: expected a nest, `def name(parameters):`")
            own = lines[node.lineno - 1 : node.end_lineno]
            yield node.name, parse_nest("\n" * (node.lineno - 1) + "\n".join(own) + "\n")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        where = f"line {getattr(e, 'lineno', None) or 1}: {getattr(e, 'msg', None) or e or type(e).__name__}"
        raise ModelError(f"{path} is not what was dumped after schedule: {where}", stage="parse") from None
    except NestSyntaxError as e:
        raise ModelError(f"{path} is not what was dumped after schedule: {e.message}", stage="parse") from None


def _check_names(path: Path, nests: Mapping[str, Nest], kernels: Mapping[str, Kernel]) -> None:
    missing = [n for n in kernels if n not in nests]
    other = [n for n in nests if n not in kernels]
    if missing:
        raise ModelError(f"{path} has no nest for kernel {missing[0]}, which the graph calls", stage="parse")
    if other:
        raise ModelError(f"{path} has a nest {other[0]}, which is no kernel of the graph", stage="parse")


def _misfit(nest: Nest, kernel: Kernel) -> str:
    """How the parameters of a nest differ from those of its kernel, "" if they do not."""
    if len(nest.params) != len(kernel.params):
        return f"takes {len(nest.params)} parameters, its kernel {len(kernel.params)}"
    places = {p.name: i for i, p in enumerate(nest.params)}
    wanted = {p.name: i for i, p in enumerate(kernel.params)}
    if [places.get(n) for n in nest.outputs] != [wanted[n] for n in kernel.outputs]:
        return "has other outputs than its kernel"
    for have, want in zip(nest.params, kernel.params, strict=True):
        if have.dtype != want.dtype or have.size != _elements(want, nest, have.name):
            return f"has {have.name}: {have.dtype}{list(have.shape)} for {want.dtype}{list(want.shape)}"
    return ""


def _elements(wanted: Buffer, nest: Nest, name: str) -> int:
    """How many elements the nest's parameter for a kernel's has to have; -1 if its packing is for another rank."""
    pack = nest.packs.get(name)
    if pack is None:
        return wanted.size
    shape = wanted.shape or (1,) * len(pack.splits)
    repeats = pack.repeats or (0,) * len(shape)
    if not len(shape) == len(repeats) == len(pack.splits):
        return -1
    shape = tuple(n + r for n, r in zip(shape, repeats, strict=True))
    if sorted(pack.order) != list(range(len(shape) + sum(map(len, pack.splits)))):
        return -1
    return prod(packed_shape(shape, pack.splits, pack.order))


def _scheduled(kernel: Kernel, nest: Nest, target: Target) -> Scheduled:
    """A nest in the place of what a rule makes."""
    s = Schedule(kernel, target, body=nest.body)
    s.params, s.packs, s.temporaries = {p.name: p for p in nest.params}, dict(nest.packs), {}
    made = Scheduled(s, GIVEN, ())
    made.__dict__["nest"] = nest  # it is finished already
    return made


__all__ = ["GIVEN", "ExternalSchedules", "enter", "graph_file", "traces"]
