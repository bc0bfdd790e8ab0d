"""StableHLO programs with open sizes as a source: one graph for the sizes of each call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....ir.context import parse, use
from ....ir.graph import Graph
from ....ir.types import Type
from ....runtime.parts import StoredSource
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
    """The inverse of `StableHloSource.store`."""
    platform = stored.arrays.get("platform")
    with use():
        module = parse(stored.data.decode(), "the saved program")
        return StableHloSource(
            StableHloProgram(module, "the saved program", None if platform is None else int(platform))
        )


__all__ = ["StableHloSource", "restore"]
