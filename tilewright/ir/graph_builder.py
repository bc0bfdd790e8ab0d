"""Builder of level-2 graphs from Python, one operator after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from ..support.lazy_array import Stored
from . import dialect
from .context import use
from .graph import Graph
from .types import Type


class Maker:
    """A graph that is being made; called with the name of an operator, it appends that.

    >>> make = Maker([("x", Type((2, 3), "f32"))])
    >>> y = make("softmax", make.inputs[0], axis=1)
    >>> make.finish([("y", y)]).outputs()
    [('y', Type(shape=(2, 3), dtype='f32'))]
    """

    def __init__(self, inputs: Sequence[tuple[str, Type]], name: str = "main") -> None:
        self.names = [n for n, _ in inputs]
        with use(), ir.Location.name(name):
            self.graph = Graph(ir.Module.create())
            types = [t.mlir() for _, t in inputs]
            with ir.InsertionPoint(self.graph.module.body):
                self.main = func.FuncOp("main", (types, []))
            self.block = ir.Block.create_at_start(
                self.main.regions[0], types, [ir.Location.name(n) for n in self.names]
            )
        #: the values of the inputs
        self.inputs = list(self.block.arguments)
        #: how many operators with regions were made
        self.controls = 0
        #: functions beside @main that hold blocks until an operator takes them
        self._holders: list[ir.OpView] = []

    def __call__(
        self,
        operator: str,
        *operands: ir.Value | None,
        place: str = "",
        regions: Sequence[ir.Block] = (),
        **attributes: Any,
    ) -> Any:
        """The result of a new operator, a list of them if it has several; `place` names it in errors and reports.
        `regions`: blocks of `region`.

        CompileError if its operands or attributes do not fit."""
        self.controls += bool(regions)
        with use(), ir.InsertionPoint(self.block):
            location = ir.Location.name(place or operator)
            results = dialect.create(operator, *operands, location=location, regions=regions, **attributes)
        return results[0] if len(results) == 1 and not dialect.OPERATORS[operator].multiple else results

    @contextmanager
    def region(self, types: Sequence[Type] = ()) -> Iterator[ir.Block]:
        """A block with arguments of these types, to which all operators are appended meanwhile: for an operator that
        takes it, or for `inline`."""
        with use():
            kinds = [t.mlir() for t in types]
            with ir.InsertionPoint(self.graph.module.body):
                self._holders.append(func.FuncOp(f"region{len(self._holders)}", (kinds, [])))
            region = self._holders[-1].regions[0]
            block = ir.Block.create_at_start(region, kinds, [ir.Location.unknown()] * len(kinds))
        with self.within(block):
            yield block

    @contextmanager
    def within(self, block: ir.Block) -> Iterator[None]:
        """All operators are appended to this block meanwhile."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    def inline(self, block: ir.Block) -> None:
        """Append what was put into a block that takes no arguments."""
        with use(), ir.InsertionPoint(self.block) as here:
            for op in list(block.operations):
                op.operation.detach_from_parent()
                here.insert(op)

    def input(self, name: str, t: Type) -> ir.Value:
        """One more input, the last."""
        self.names.append(name)
        with use():
            self.inputs.append(self.graph.block.add_argument(t.mlir(), ir.Location.name(name)))
        return self.inputs[-1]

    def constant(self, array: Stored | np.generic, name: str = "c") -> ir.Value:
        """A tensor with these elements; the array is not copied."""
        with use(), ir.InsertionPoint(self.block):
            return self.graph.constant(array, name, ir.Location.name(name))

    def finish(self, outputs: Sequence[tuple[str, ir.Value]]) -> Graph:
        """The graph, which returns these values under these names, verified."""
        with use(), ir.InsertionPoint(self.block):
            func.ReturnOp([v for _, v in outputs])
            for holder in reversed(self._holders):  # they may read values of those around them
                holder.erase()
            self.graph.sign(self.names, [n for n, _ in outputs])
            self.graph.verify("import")
        return self.graph


__all__ = ["Maker"]
