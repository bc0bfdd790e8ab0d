"""Level-2 graphs with open dimensions or control flow as a source: their parts (`graph/cut.py`), each for the shapes that
reach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ..graph.cut import Cut, Step, has_control_flow
from ..graph.specialize import Specialize
from ..ir.constants import ConstantTable
from ..ir.context import parse, use
from ..ir.graph import Graph
from ..ir.types import from_array
from ..runtime import noise
from ..runtime.parts import Action, BodyInfo, DynamicInfo, Entry, StoredSource, SubgraphPlan, Tree, plain
from ..support.errors import UsageError
from ..support.mapped_file import MappedFile

KIND = "graph"
#: control flow, as the runtime calls it
ACTIONS = {"if": "branch", "loop": "loop"}


def fixed(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph with these shapes of inputs; UsageError if dimensions are left open."""
    if shapes:
        Specialize(shapes=shapes).run(graph)
    if open_inputs := _open(graph):
        error = UsageError(
            f"the shapes of these inputs are not fixed: {open_inputs}",
            stage="import",
            hint="pass inputs={name: shape}",
        )
        error.run_time = True
        raise error
    return graph


def _open(graph: Graph) -> str:
    return ", ".join(f"{n}: {t}" for n, t in graph.inputs() if not t.static)


class OpenGraph:
    """See `runtime.parts.Source`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        if graph.level != 2 and (open_inputs := _open(graph)):
            raise UsageError(
                f"the shapes of these inputs are not fixed: {open_inputs}",
                stage="import",
                hint="only level 2 and models that are imported to it may have open dimensions",
            )

    @property
    def files(self) -> tuple[MappedFile, ...]:
        return self.graph.constants.files

    @property
    def source(self) -> Graph:
        return self.graph

    def signature(self) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
        with use():
            lists = [
                [DynamicInfo(n, t.shape, t.dtype) for n, t in s()] for s in (self.graph.inputs, self.graph.outputs)
            ]
        return lists[0], lists[1]

    @cached_property
    def cut(self) -> Cut | None:
        """The graph in parts; None if it is one."""
        with use():
            return Cut(self.graph) if self.graph.level == 2 and has_control_flow(self.graph) else None

    def body(self, body: str) -> BodyInfo:
        if self.cut is None:
            inputs, outputs = self.signature()
            return BodyInfo("main", tuple(t.name for t in inputs), tuple(t.name for t in outputs), 1)
        found = self.cut.bodies[body]
        first = ["%step", "%going"] if found.loop else []  # the runtime gives a loop what those of ONNX take
        return BodyInfo(body, (*first, *_given(found.inputs)), tuple(self.cut.outputs(body)), len(found.nodes))

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        return self.body(body).inputs if self.cut is None else _given(self.cut.reads(body, todo))

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        types = {n: from_array(plain(e)) for n, e in entries.items()}
        results: dict[str, Tree]
        if self.cut is None:
            info = self.body(body)
            results = {n: ["out", i] for i, n in enumerate(info.outputs)}
            graph = fixed(self.graph.clone(), {n: t.dims for n, t in types.items()})
            return SubgraphPlan(graph, info.inputs, results, [], (), (), frozenset())
        part = self.cut.part(body, todo, types)
        results = {n: ["out", i] for i, n in enumerate(part.results)}
        results |= {n: ["const", i] for i, n in enumerate(part.constants)}
        constants, actions = list(part.constants.values()), tuple(map(_action, part.steps))
        return SubgraphPlan(part.graph, _given(part.feeds), results, constants, actions, part.later, frozenset())

    def evaluate(self, body: str, node: int, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        raise UsageError("a graph has no nodes to evaluate")

    def recipes(self) -> list[list[str]]:
        return []

    def store(self) -> StoredSource:
        with use():
            text = self.graph.text()
        return StoredSource(KIND, text.encode(), dict(self.graph.constants), [])

    @staticmethod
    def restore(stored: StoredSource) -> OpenGraph:
        table = ConstantTable()
        table._arrays.update(stored.arrays)
        return OpenGraph(Graph(parse(stored.data.decode(), "the saved graph"), table))


def _given(names: Sequence[str]) -> tuple[str, ...]:
    """Those that a program does not give itself."""
    return tuple(n for n in names if n != noise.KEY)


def _action(step: Step) -> Action:
    limit = ("",) if step.operator == "loop" else ()
    inputs = (*limit, *step.inputs)
    return Action(ACTIONS[step.operator], step.name, inputs, step.outputs, {}, step.bodies, step.node)
