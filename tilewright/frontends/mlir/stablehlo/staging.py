"""StableHLO programs with open sizes as a source: one graph for the sizes of each call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....graph.cut import has_control_flow
from ....ir.context import parse, use
from ....runtime.parts import BodyInfo, DynamicInfo, Entry, StoredSource, SubgraphPlan, Tree, plain
from ....support.errors import UnsupportedError, UsageError
from ....support.mapped_file import MappedFile
from .program import StableHloProgram

#: what stored sources are called: as their front end
KIND = "mlir"


class StableHloSource:
    """See `runtime.parts.Source`."""

    def __init__(self, program: StableHloProgram) -> None:
        self.program = program

    @property
    def files(self) -> tuple[MappedFile, ...]:
        return ()

    @property
    def source(self) -> str:
        with use():
            return str(self.program.module.operation.get_asm(enable_debug_info=True))

    def signature(self) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
        with use():
            lists = self.program.inputs(), self.program.outputs()
            infos = [[DynamicInfo(n, t.shape, t.dtype) for n, t in those] for those in lists]
        return infos[0], infos[1]

    def recipes(self) -> list[list[str]]:
        return []

    def body(self, body: str) -> BodyInfo:
        inputs, outputs = self.signature()
        return BodyInfo("main", tuple(t.name for t in inputs), tuple(t.name for t in outputs), 1)

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        return self.body(body).inputs

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        info = self.body(body)
        graph = self.program.fixed({n: plain(a).shape for n, a in entries.items()}).graph()
        if has_control_flow(graph):
            raise UnsupportedError(
                f"{self.program.source} has loops that depend on data, and sizes that are open",
                stage="import",
                hint="loops that depend on data need fixed sizes: inputs={name: shape}, or export it without open ones",
            )
        results: dict[str, Tree] = {n: ["out", i] for i, n in enumerate(info.outputs)}
        return SubgraphPlan(graph, info.inputs, results, [], (), (), frozenset())

    def evaluate(self, body: str, node: int, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        raise UsageError("operators of StableHLO are not evaluated one by one")

    def store(self) -> StoredSource:
        platform = self.program.platform
        arrays = {} if platform is None else {"platform": np.array(platform)}
        return StoredSource(KIND, self.source.encode(), arrays, [])


def restore(stored: StoredSource) -> StableHloSource:
    """The inverse of `StableHloSource.store`."""
    platform = stored.arrays.get("platform")
    with use():
        module = parse(stored.data.decode(), "the saved program")
        return StableHloSource(StableHloProgram(module, "the saved program", None if platform is None else int(platform)))


__all__ = ["StableHloSource", "restore"]
