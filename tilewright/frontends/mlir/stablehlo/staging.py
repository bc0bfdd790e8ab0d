"""StableHLO programs with open sizes as a source: one graph for the sizes of each call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....ir.context import parse, use
from ....ir.graph import Graph
from ....ir.types import Type
from ....runtime.parts import StoredSource
from ....support.errors import UsageError
from ...open_graph import GraphSource
from .program import StableHloProgram

#: what stored sources are called: as their front end
KIND = "mlir"


class StableHloSource(GraphSource):
    """See `runtime.parts.Source`."""

    def __init__(self, program: StableHloProgram) -> None:
        self.program = program
        super().__init__()

    @property
    def source(self) -> str:
        with use():
            return str(self.program.module.operation.get_asm(enable_debug_info=True))

    def inputs(self) -> list[tuple[str, Type]]:
        return self.program.inputs()

    def outputs(self) -> list[tuple[str, Type]]:
        return self.program.outputs()

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        return self.program.fixed(shapes).graph()

    def store(self) -> StoredSource:
        platform = self.program.platform
        arrays = {} if platform is None else {"platform": np.array(platform)}
        return StoredSource(KIND, self.source.encode(), arrays, [])


def restore(stored: StoredSource) -> StableHloSource:
    """The inverse of `StableHloSource.store`; UsageError for programs of fixed sizes, which older versions cut
    otherwise."""
    platform = stored.arrays.get("platform")
    number = None if platform is None else int(platform)
    with use():
        module = parse(stored.data.decode(), "the saved program")
        source = StableHloSource(StableHloProgram(module, "the saved program", number))
    if not source.open:
        raise UsageError(
            "this file of an older version lacks a part of the program that a branch or loop now needs",
            hint="compile the program and save it again",
        )
    return source


__all__ = ["StableHloSource", "restore"]
