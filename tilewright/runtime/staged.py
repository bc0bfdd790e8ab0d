"""Partitioned execution of models with data-dependent shapes or control flow: compiled subgraphs and host operators.

A model (and each branch, loop body and function in it) is a `PartitionedBody`: a list of nodes. It runs as a chain of
`Subgraph`s. A subgraph has the nodes that are left to execute. For the shapes of its inputs it is compiled into a
`SpecializedSubgraph`: one native program for all nodes that can be compiled with what is known, and actions for those
that run after it: an operator with a data-dependent result shape (`host`), a branch, a loop, a list operation. The next
subgraph has the nodes that depend on the actions. Each subgraph keeps its versions (`program/versions.py`).

Nothing here imports MLIR: a `Source` compiles a specialization that is not in the cache.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..program.versions import Limits, making
from ..support import host_operators as host
from ..support import internal_errors
from ..support.budget import limited
from ..support.dtypes import NUMPY
from ..support.errors import CompileError, ModelError, TilewrightError, UnsupportedError
from ..support.host_plan import Action, SubgraphPlan
from ..support.mapped_file import MappedFile
from ..support.mapped_file import check as check_files
from ..support.sizes import open_sizes
from .executable import Executable
from .open_parts import OpenPart, SubgraphVersions, formulas_of
from .open_parts import entries as entries_of
from .parts import (
    DynamicShapeSource,
    Entry,
    Frame,
    Missing,
    PartitionedBody,
    Source,
    SpecializedSubgraph,
    Subgraph,
    plain,
)

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from .profile import Profile

log = logging.getLogger("tilewright")

#: versions that a subgraph keeps when the options give no number: these in any case,
KEPT = 16
#: and as many as this while their arenas and code together take no more bytes than that
MOST_KEPT, KEPT_BYTES = 64, 1 << 30
#: subgraphs whose sizes depend on the data see more of them: they keep this many times as many versions
LATER = 8


class Staged:
    """The bodies of a model and all their parts; `run` may be called by several threads."""

    def __init__(
        self,
        source: Callable[[], Source],
        build: Callable[[Graph, str], Executable],
        limit: int | None,
        made: Callable[[Staged, Subgraph, SpecializedSubgraph, Frame], None] = lambda *_: None,
    ) -> None:
        """`limit`: versions kept for each subgraph; None: by their number and bytes (see `limits`)."""
        self.source, self.build, self.limit, self.made = source, build, limit, made
        #: gives the files that the constants of the model are mapped from
        self.files: Callable[[], Sequence[MappedFile]] = tuple
        #: operators and seconds that making a version may take; None: see `budget`
        self.operators: int | None = None
        self.deadline: float | None = None
        #: versions that a subgraph keeps in any case
        self.reserved = KEPT
        #: what a call for which a version is missing ends in; None: the version is made
        self.refuse: Callable[[Subgraph, Frame], TilewrightError] | None = None
        #: whether open versions are made, where sizes change (`open_parts`)
        self.opens: Callable[[], bool] = bool
        self._ahead = threading.local()
        self.bodies: dict[str, PartitionedBody] = {}

    # ---- stages and parts ----

    def body(self, name: str) -> PartitionedBody:
        if name not in self.bodies:
            with making():
                if name not in self.bodies:
                    self.bodies[name] = PartitionedBody(self.source().body(name))
        return self.bodies[name]

    def _stage(self, body: PartitionedBody, todo: tuple[int, ...], frozen: frozenset[str]) -> Subgraph:
        if (todo, frozen) not in body.stages:
            reads = self.source().reads(body.info.id, todo)
            answers = sorted(frozen - set(reads))  # numbers that nodes asked for, without a name in the model
            self.add(body, todo, frozen, (*reads, *answers))
        return body.stages[todo, frozen]

    def add(
        self, body: PartitionedBody, todo: tuple[int, ...], frozen: frozenset[str], reads: tuple[str, ...]
    ) -> Subgraph:
        """A subgraph without versions yet."""
        parts = SubgraphVersions(self.limits(first=len(todo) == body.info.nodes))
        made = body.stages[todo, frozen] = Subgraph(body, todo, frozen, reads, parts)
        return made

    def first(self, body: PartitionedBody) -> Subgraph:
        """The subgraph that a run of this body begins with."""
        if body.first is None:
            with making():
                body.first = self._stage(body, tuple(range(body.info.nodes)), frozenset())
        return body.first

    def has(self, name: str, values: Mapping[str, Entry]) -> bool:
        """Whether there is a fixed version that a run of this body would begin with."""
        body = self.bodies.get(name)
        return body is not None and body.first is not None and body.first.key(Frame(dict(values))) in body.first.parts

    def part(self, stage: Subgraph, frame: Frame) -> SpecializedSubgraph:
        """The version for the current values of the names; made if there is none."""
        ahead = getattr(self._ahead, "making", False)  # then for these sizes alone
        found = self._found(stage, frame, ahead)
        if found is None and self.refuse is not None and not ahead:
            raise self.refuse(stage, frame)
        if found is None:
            with making():
                found = self._found(stage, frame, ahead) or (None if ahead else self._open(stage, frame))
                found = found or self._fixed(stage, frame)
        assert found is not None
        return found

    def _found(self, stage: Subgraph, frame: Frame, ahead: bool) -> SpecializedSubgraph | None:
        key = stage.key(frame)
        return stage.parts.used(key) or (None if ahead else stage.parts.served(key))

    def _fixed(self, stage: Subgraph, frame: Frame, by_values: bool = True) -> SpecializedSubgraph | None:
        """A version for these sizes alone; None where it would depend on values, unless it may (`by_values`)."""
        start = time.perf_counter()
        self.check()
        entries = {n: e for n in stage.reads if (e := frame.find(n)) is not Missing}
        with limited(self.operators, self.deadline):
            plan = self.source().plan(stage.body.info.id, stage.todo, stage.frozen, entries)
            if not by_values and (plan.learned or stage.frozen):
                return None
            stage.frozen |= plan.learned
            _check_progress(stage, plan)
            part = self._assembled(stage, plan, start)
        key = stage.key(frame)  # what making it learned is a part of it
        stage.parts.saw(key)
        if stage.parts.keep(key, part):
            self._drop_bodies()
        self.made(self, stage, part, frame)
        return part

    def _drop_bodies(self) -> None:
        """Forget the bodies that no version calls any more: a graph with open sizes has some for each combination of
        sizes. A thread that still runs a version that was dropped gets them anew."""
        kept, todo = {"main"}, ["main"]
        while todo:
            body = self.bodies.get(todo.pop())
            for stage in list(body.stages.values()) if body is not None else ():
                for part in (*stage.parts.values(), *(o.part for o in stage.parts.open)):
                    new = {b for a in part.actions for b in a.bodies} - kept
                    kept |= new
                    todo += new
        if self.bodies.keys() - kept:
            self.bodies = {n: b for n, b in self.bodies.items() if n in kept}
            self.source().keep(kept)

    def limits(self, first: bool) -> Limits:
        """How many fixed versions a subgraph keeps; where none is made in calls, all that were made ahead."""
        more = 1 if first else LATER
        if self.limit is not None:
            return Limits(self.limit * more)
        if self.refuse is not None:
            return Limits(sys.maxsize)
        return Limits(self.reserved * more, MOST_KEPT * more, KEPT_BYTES)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Fixed versions that this thread asks for meanwhile are made, also where calls are refused."""
        before, self._ahead.making = getattr(self._ahead, "making", False), True
        try:
            yield
        finally:
            self._ahead.making = before

    def prepare(self, name: str, values: dict[str, Entry]) -> None:
        """Make the first fixed version of a body for arrays of these shapes; nothing if their values matter."""
        with making():
            stage, frame = self.first(self.body(name)), Frame(values)
            if stage.key(frame) not in stage.parts:
                self._fixed(stage, frame, by_values=False)

    def _assembled(self, stage: Subgraph, plan: SubgraphPlan, start: float) -> SpecializedSubgraph:
        """The version that a plan leads to, which was begun at this time."""
        executable = None if plan.graph is None else self.build(plan.graph, stage.body.info.id)
        self.check()
        following = self._stage(stage.body, plan.todo, plan.frozen) if plan.todo else None
        return SpecializedSubgraph(plan, executable, following, time.perf_counter() - start)

    def _open(self, stage: Subgraph, frame: Frame) -> SpecializedSubgraph | None:
        """An open version, at the sizes of now; None if sizes are not what changed, or no program can serve all of
        them."""
        source = self.source() if self.opens() else None
        if not isinstance(source, DynamicShapeSource) or not self._goes_on(stage):
            return None
        key, body, refused = stage.key(frame), stage.body.info.id, False
        for form in stage.parts.forms(key):
            plan: SubgraphPlan | None = None
            start = time.perf_counter()
            self.check()
            try:
                with limited(self.operators, self.deadline), open_sizes(form.dims) as known:
                    assert known is not None
                    entries = entries_of(stage.reads, frame, key, form.numbers(known.symbols))
                    found = source.plan_open(body, stage.todo, stage.frozen, entries)
                    if more := found.learned - stage.frozen:
                        raise UnsupportedError(f"it hangs on the values of {', '.join(more)}", operator=body)
                    _check_progress(stage, found)
                    plan = found
                    part, formulas = self._assembled(stage, plan, start), formulas_of(plan.constants)
            except Exception as e:  # no reason for a call to fail
                self.check()
                internal_errors.note(e, f"{body} is compiled for each size")
                why = e.message if isinstance(e, TilewrightError) else f"{type(e).__name__}: {e}"
                log.info("%s: no program for all sizes of %s: %s", body, form, why)
                refused = True
                if plan is not None:  # the operators do not ask for more than there is to know
                    break
                continue
            stage.parts.saw(key)
            stage.parts.widen(OpenPart(key, form, part, formulas))
            self.made(self, stage, part, frame)
            return stage.parts.served(key)
        if refused:
            stage.parts.refused(key)
        return None

    def _goes_on(self, stage: Subgraph) -> bool:
        """Whether a model has sizes that depend on data: of others, whose sizes are those of their inputs alone,
        fixed versions are made (`OpenVersions` has the open ones)."""
        if not stage.first or stage.body.info.id != "main":
            return True
        return any(
            p.actions or p.following is not None or any(tree[0] == "part" for tree in p.results.values())
            for p in stage.parts.values()
        )

    def check(self) -> None:
        """ModelError if a file that constants are mapped from was overwritten: weights of two models would mix."""
        check_files(self.files(), "specialize", ModelError)

    # ---- running ----

    def run(
        self, name: str, values: dict[str, Entry], parent: Frame | None = None, times: RunProfiler | None = None
    ) -> list[Entry]:
        """Run a body; its outputs in order, without `EmbeddedConstant`."""
        body = self.body(name)
        frame, stage = Frame(values, parent), self.first(body)
        while True:
            part = self.part(stage, frame)
            part.runs += 1
            outputs: list[np.ndarray] = []
            if part.executable is not None:
                arguments = [plain(frame.find(n)) for n in part.feeds]
                if times is not None:
                    times.native(part.executable, arguments)
                outputs = part.executable(*arguments)
            made = {n: part.entry(t, outputs, frame) for n, t in part.results.items()}
            frame.values.update(made)
            for action in part.actions:
                self.act(action, frame, body, times)
            if part.following is None:
                return [self.result(frame, n, body) for n in body.info.outputs]
            stage = part.following
            needed = {*stage.reads, *body.info.outputs}  # everything else can go
            frame.values = {n: v for n, v in frame.values.items() if n in needed}

    def result(self, frame: Frame, name: str, body: PartitionedBody) -> Entry:
        found = frame.find_plain(name)
        if found is Missing:
            raise ModelError(f"{name!r} is returned, but nothing defines it", stage="run", operator=body.info.id)
        return found

    def act(self, action: Action, frame: Frame, body: PartitionedBody, times: RunProfiler | None) -> None:
        start = time.perf_counter()
        run = _DRIVERS.get(action.kind)
        if run is not None:
            results = run(self, action, frame, times)
        elif action.kind == "fold":
            entries = {n: frame.find_plain(n) for n in action.inputs if n}
            with making():
                self.check()
                found = self.source().evaluate(body.info.id, action.node, entries)
            results = [found.get(n) for n in action.outputs]
        else:
            arguments = [frame.find_plain(n) for n in action.inputs]
            results = host.call(action.kind, action.name, arguments, action.attributes, len(action.outputs))
        if times is not None and run is None:
            times.host(action.kind, action.name, time.perf_counter() - start)
        for name, result in zip(action.outputs, results, strict=False):
            if name:
                frame.values[name] = result


def _check_progress(stage: Subgraph, plan: SubgraphPlan) -> None:
    if plan.todo and not plan.actions and (plan.todo, plan.frozen) == (stage.todo, stage.start):
        raise CompileError(
            "this part of the model does not get any further", stage="specialize", operator=stage.body.info.id
        )


class RunProfiler:
    """Collects what a run takes, for `profile`, in order: the profile of every native part that runs, and (kind, name,
    seconds) of every operator on the host between them."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.parts: list[Profile | tuple[str, str, float]] = []

    def native(self, executable: Executable, arguments: Sequence[np.ndarray]) -> None:
        self.parts.append(executable.profile(arguments, self.repeats))

    def host(self, kind: str, name: str, seconds: float) -> None:
        self.parts.append((kind, name, seconds))


# ---- control flow --------------------------------------------------------------------------------------------------


def _truth(entry: Entry, action: Action) -> bool:
    if not isinstance(entry, np.ndarray) or entry.size != 1:
        raise host.error(action.name, "the condition needs exactly one element")
    return bool(entry.reshape(()))


def _if(staged: Staged, action: Action, frame: Frame, times: RunProfiler | None) -> Iterable[Entry]:
    chosen = 0 if _truth(frame.find_plain(action.inputs[0]), action) else 1
    return staged.run(action.bodies[chosen], {}, frame, times)


def _call(staged: Staged, action: Action, frame: Frame, times: RunProfiler | None) -> Iterable[Entry]:
    """A function: it sees its arguments only."""
    names = staged.body(action.bodies[0]).info.inputs
    given = [frame.find(n) if n else None for n in action.inputs]
    given += [None] * (len(names) - len(given))
    return staged.run(action.bodies[0], dict(zip(names, given, strict=True)), None, times)


def _loop(staged: Staged, action: Action, frame: Frame, times: RunProfiler | None) -> Iterable[Entry]:
    body = staged.body(action.bodies[0]).info
    count, condition, *state = (frame.find_plain(n) for n in action.inputs)
    limit = None if count is None else int(count.reshape(()))
    going = condition is None or _truth(condition, action)
    scans: list[list[np.ndarray]] = [[] for _ in body.outputs[1 + len(state) :]]
    i = 0
    while going and (limit is None or i < limit):
        arguments = [np.array(i, np.int64), np.array(True), *state]
        again, *results = staged.run(body.id, dict(zip(body.inputs, arguments, strict=True)), frame, times)
        state = results[: len(state)]
        for scan, item in zip(scans, results[len(state) :], strict=True):
            scan.append(item)
        going, i = _truth(again, action), i + 1
    types = body.types[1 + len(state) :]
    return [*state, *(_joined(s, 0, t) for s, t in zip(scans, types, strict=True))]


def _scan(staged: Staged, action: Action, frame: Frame, times: RunProfiler | None) -> Iterable[Entry]:
    operands = [frame.find_plain(n) for n in action.inputs]
    if action.attributes.get("batched"):
        return _scan_batch(staged, action, operands, frame, times)
    return _scan_steps(staged, action, operands, frame, times)


def _scan_steps(
    staged: Staged,
    action: Action,
    operands: list[Any],
    frame: Frame,
    times: RunProfiler | None,
    length: int | None = None,
) -> list[Entry]:
    body, attributes = staged.body(action.bodies[0]).info, action.attributes
    count = attributes["scanned"]
    state, xs = operands[: len(operands) - count], operands[len(operands) - count :]
    outputs = len(body.outputs) - len(state)

    def setting(name: str, n: int) -> list[int]:
        return list(attributes.get(name) or [0] * n)

    xs = [np.moveaxis(x, a, 0) for x, a in zip(xs, setting("axes", count), strict=True)]
    xs = [x[:length] for x in xs]
    backwards = setting("backwards", count)
    xs = [x[::-1] if back else x for x, back in zip(xs, backwards, strict=True)]
    scans: list[list[np.ndarray]] = [[] for _ in range(outputs)]
    for items in zip(*xs, strict=True):
        arguments = [*state, *(np.ascontiguousarray(x) for x in items)]
        results = staged.run(body.id, dict(zip(body.inputs, arguments, strict=True)), frame, times)
        state = results[: len(state)]
        for scan, item in zip(scans, results[len(state) :], strict=True):
            scan.append(item)
    ordered = [s[::-1] if b else s for s, b in zip(scans, setting("output_backwards", outputs), strict=True)]
    axes, types = setting("output_axes", outputs), body.types[len(state) :]
    return [*state, *(_joined(s, a, t) for s, a, t in zip(ordered, axes, types, strict=True))]


def _scan_batch(
    staged: Staged, action: Action, operands: list[Any], frame: Frame, times: RunProfiler | None
) -> list[Entry]:
    """A scan of every element of a batch, which the first dimension counts and which may have lengths of their own."""
    lengths, *operands = operands
    steps = operands[-1].shape[1]
    rows = []
    states = len(operands) - action.attributes["scanned"]
    for b in range(operands[-1].shape[0]):
        length = steps if lengths is None else int(lengths[b])
        results = _scan_steps(staged, action, [x[b] for x in operands], frame, times, length)
        for i in range(states, len(results)):  # positions after the end of a short sequence are zero
            pad = [(0, steps - length)] + [(0, 0)] * (results[i].ndim - 1)
            results[i] = np.pad(results[i], pad)
        rows.append(results)
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _joined(items: list[np.ndarray], axis: int, declared: tuple[str, tuple[int, ...] | None]) -> np.ndarray:
    """Arrays along a new dimension; with none of them, by the declared type (dimensions it leaves open are 0)."""
    if items:
        return np.ascontiguousarray(np.stack(items, axis))
    dtype, dims = declared
    shape = list(dims or ())
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 0)
    return np.zeros(shape, NUMPY[dtype or "f32"])


_DRIVERS: dict[str, Callable[..., Iterable[Entry]]] = {
    "if": _if, "loop": _loop, "scan": _scan, "call": _call,
}  # fmt: skip
