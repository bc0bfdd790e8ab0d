"""Level-2 graphs with dynamic dimensions as a source: fixed ahead, or specialized for the shapes of each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graph.specialize import Specialize
from ..ir.constants import ConstantTable
from ..ir.context import parse, use
from ..ir.graph import Graph
from ..ir.types import from_array
from ..runtime.parts import BodyInfo, DynamicInfo, Entry, StoredSource, SubgraphPlan
from ..support.errors import UsageError
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

    def body(self, body: str) -> BodyInfo:
        inputs, outputs = self.signature()
        return BodyInfo("main", tuple(t.name for t in inputs), tuple(t.name for t in outputs), 1)

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        return self.body(body).inputs

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        graph = fixed(self.graph.clone(), {n: from_array(a).dims for n, a in entries.items()})
        info = self.body(body)
        results: dict[str, list[Any]] = {n: ["out", i] for i, n in enumerate(info.outputs)}
        return SubgraphPlan(graph, info.inputs, results, [], (), (), frozenset())

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
