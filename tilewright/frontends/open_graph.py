"""Level-2 graphs with open dimensions or control flow as a source: fixed for the shapes of each call, and cut into
parts (`graph/cut.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set

from ..graph.cut import Cut, has_control_flow
from ..graph.specialize import Specialize
from ..ir.constants import ConstantTable
from ..ir.context import parse, use
from ..ir.graph import Graph
from ..ir.types import Type, from_array
from ..runtime import random_seed
from ..runtime.parts import DynamicInfo, Entry, Source, StoredSource, plain
from ..support.errors import UsageError
from ..support.host_plan import Action, BodyInfo, SubgraphPlan
from ..support.mapped_file import MappedFile

KIND = "graph"


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


class GraphSource(Source):
    """A model that is one graph for all shapes, or one for those of each call; see `runtime.parts.Source`.

    One with control flow is cut: its bodies are called as in `graph/cut.py`, behind the shapes if these are open.
    """

    def __init__(self) -> None:
        with use():
            self.open = not all(t.static for _, t in self.inputs())
        self._cuts: dict[str, Cut] = {}

    def inputs(self) -> list[tuple[str, Type]]:
        raise NotImplementedError

    def outputs(self) -> list[tuple[str, Type]]:
        raise NotImplementedError

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """The graph for these shapes."""
        raise NotImplementedError

    def signature(self) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
        with use():
            lists = [[DynamicInfo(n, t.shape, t.dtype) for n, t in those()] for those in (self.inputs, self.outputs)]
        return lists[0], lists[1]

    def _cut(self, body: str) -> Cut | None:
        """The graph that a body is of; None for that of the model where shapes are those of a call."""
        shapes = body.rpartition(":main")[0]
        if self.open and not shapes:
            return None
        if shapes not in self._cuts:
            self._cuts[shapes] = Cut(self.at(json.loads(shapes or "{}")), shapes and f"{shapes}:", (random_seed.KEY,))
        return self._cuts[shapes]

    def keep(self, bodies: Set[str]) -> None:
        shapes = {b.rpartition(":main")[0] for b in bodies}
        self._cuts = {s: cut for s, cut in self._cuts.items() if not s or s in shapes}

    def body(self, body: str) -> BodyInfo:
        if (cut := self._cut(body)) is not None:
            return cut.info(body)
        inputs, outputs = self.signature()
        return BodyInfo("main", tuple(t.name for t in inputs), tuple(t.name for t in outputs), 1)

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        cut = self._cut(body)
        return self.body(body).inputs if cut is None else cut.reads(body, todo)

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        types = {n: from_array(plain(e)) for n, e in entries.items()}
        if (cut := self._cut(body)) is not None:
            return cut.part(body, todo, types)
        info, shapes = self.body(body), {n: t.dims for n, t in types.items()}
        graph = self.at(shapes)
        if not has_control_flow(graph):
            return SubgraphPlan(graph, info.inputs, {n: ["out", i] for i, n in enumerate(info.outputs)})
        call = Action("call", body, info.inputs, info.outputs, {}, (f"{json.dumps(shapes)}:main",), 0)
        return SubgraphPlan(None, actions=(call,))


class OpenGraph(GraphSource):
    """A graph of level 2 as a source."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        if graph.level != 2 and (open_inputs := _open(graph)):
            raise UsageError(
                f"the shapes of these inputs are not fixed: {open_inputs}",
                stage="import",
                hint="only level 2 and models that are imported to it may have open dimensions",
            )
        super().__init__()

    @property
    def files(self) -> tuple[MappedFile, ...]:
        return self.graph.constants.files

    @property
    def source(self) -> Graph:
        return self.graph

    def inputs(self) -> list[tuple[str, Type]]:
        return self.graph.inputs()

    def outputs(self) -> list[tuple[str, Type]]:
        return self.graph.outputs()

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        return fixed(self.graph.clone(), shapes) if self.open else self.graph

    def store(self) -> StoredSource:
        with use():
            text = self.graph.text()
        return StoredSource(KIND, text.encode(), dict(self.graph.constants), [])

    @staticmethod
    def restore(stored: StoredSource) -> OpenGraph:
        table = ConstantTable()
        table._arrays.update(stored.arrays)
        return OpenGraph(Graph(parse(stored.data.decode(), "the saved graph"), table))
