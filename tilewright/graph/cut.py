"""Cuts a graph at its control flow into parts that run as native programs, and says how they follow each other.

The bodies of a graph are @main and the blocks of its `if`s and `loop`s. Each runs as a chain of parts: operators that wait
for nothing are one native program, then the control flow that they lead to runs, which calls its own bodies; what waits
for its results is the next part.

    %0 = "tw.exp"(%x)                     a part: %0 and %1
    %1 = "tw.less"(%0, %y)
    %2 = "tw.if"(%1) ({...}, {...})       a step, with a body for each region
    %3 = "tw.add"(%2, %0)                 the part after it, for the sizes that %2 has

Values have names, by which they go from part to part; bodies see those of the bodies around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.maker import Maker
from ..ir.types import Type, type_of
from .rewrite import drop_unused_constants
from .specialize import infer_again


@dataclass
class Body:
    """A block that runs as a unit: its nodes are the operators that its results need, but for constants."""

    id: str
    inputs: list[str]
    returned: list[ir.Value]
    nodes: list[ir.Operation]
    #: whether it is that of a loop
    loop: bool = False


@dataclass(frozen=True)
class Step:
    """Control flow that runs after the native program of a part: the operator, by its mnemonic, and its bodies."""

    operator: str
    node: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bodies: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """What can run now. `results` of `graph` (None if there are none) have names, as have `constants`; `later` are the
    nodes that wait for the steps."""

    graph: Graph | None
    feeds: tuple[str, ...]
    results: tuple[str, ...]
    constants: dict[str, np.ndarray]
    steps: tuple[Step, ...]
    later: tuple[int, ...]


class Cut:
    """The bodies of a level-2 graph by their names, "main" the first; `part` makes the parts of one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.bodies: dict[str, Body] = {}
        with use():
            self.names = {a: n for a, (n, _) in zip(graph.block.arguments, graph.inputs(), strict=True)}
            self._add("main", graph.block)

    def _add(self, name: str, block: ir.Block, loop: bool = False) -> None:
        for i, argument in enumerate(block.arguments):
            self.names.setdefault(argument, f"%{name}.argument{i}")
        *operations, last = [op.operation for op in block.operations]
        nodes = _needed(operations, list(last.operands))
        for i, op in enumerate(nodes):
            self.names.update((r, f"%{name}.{i}.{k}") for k, r in enumerate(op.results))
        inputs = [self.names[a] for a in block.arguments]
        self.bodies[name] = Body(name, inputs, list(last.operands), nodes, loop)
        for i, op in enumerate(nodes):
            for inner, region in zip(_bodies(name, i, op), op.regions, strict=True):
                self._add(inner, region.blocks[0], dialect.mnemonic(op) == "loop")

    def outputs(self, body: str) -> list[str]:
        """The names of what a body returns."""
        return [self._name(v) for v in self.bodies[body].returned]

    def _name(self, value: ir.Value) -> str:
        """Constants are none of the nodes: where one is returned or decides a branch it gets a name."""
        return self.names.setdefault(value, f"%constant{len(self.names)}")

    def reads(self, body: str, todo: Sequence[int]) -> list[str]:
        """The names that these nodes read, and that none of them makes."""
        nodes = [self.bodies[body].nodes[i] for i in todo]
        made = {r for op in nodes for r in op.results}
        read = dict.fromkeys(v for op in nodes for v in uses(op))
        return [self.names[v] for v in read if v not in made and not _is_constant(v)]

    def part(self, body: str, todo: Sequence[int], types: Mapping[str, Type]) -> Part:
        """The part that begins with these nodes, where what it reads is of these types."""
        with use():
            found = self.bodies[body]
            native: list[ir.Operation] = []
            steps: list[int] = []
            later: list[int] = []
            behind: set[ir.Value] = set()
            for i in todo:
                op = found.nodes[i]
                waits = any(v in behind for v in uses(op))
                if waits or dialect.has_regions(op):
                    behind.update(op.results)
                    (later if waits else steps).append(i)
                else:
                    native.append(op)
            ready = [found.nodes[i] for i in steps]
            # as they are, and what their bodies take of it
            direct = [*found.returned, *(v for op in ready for v in op.operands)]
            read = dict.fromkeys([*direct, *(v for op in (*ready, *(found.nodes[i] for i in later)) for v in uses(op))])
            made = {r for op in native for r in op.results}
            wanted = [v for v in read if v in made]
            constants = {self._name(v): self._constant(v) for v in dict.fromkeys(direct) if _is_constant(v)}
            feeds, graph = self._native(native, made, wanted, types) if wanted else ((), None)
            names = tuple(self.names[v] for v in wanted)
            return Part(graph, feeds, names, constants, tuple(self._step(found, i) for i in steps), tuple(later))

    def _step(self, body: Body, node: int) -> Step:
        op = body.nodes[node]
        operands, results = ([self._name(v) for v in values] for values in (op.operands, op.results))
        place = op.location.name_str if isinstance(op.location, ir.NameLoc) else f"{body.id}/{node}"
        kind = str(dialect.mnemonic(op))
        return Step(kind, node, place, tuple(operands), tuple(results), _bodies(body.id, node, op))

    def _constant(self, value: ir.Value) -> np.ndarray:
        found = self.graph.constant_value(value)
        assert found is not None
        return np.asarray(found, order="C")

    def _native(
        self, nodes: Sequence[ir.Operation], made: set[ir.Value], wanted: Sequence[ir.Value], types: Mapping[str, Type]
    ) -> tuple[tuple[str, ...], Graph]:
        """A graph of these operators, with what it takes of others as its inputs; and their names."""
        outside = dict.fromkeys(v for op in nodes for v in op.operands if v not in made and not _is_constant(v))
        inputs = [(self.names[v], types.get(self.names[v], type_of(v))) for v in outside]
        make = Maker(inputs)
        make.graph.constants = self.graph.constants.copy()
        values: dict[ir.Value, ir.Value] = dict(zip(outside, make.inputs, strict=True))
        with ir.InsertionPoint(make.block):
            for op in nodes:
                for v in op.operands:
                    if v not in values:
                        values[v] = v.owner.operation.clone().results[0]
                copy = op.clone().operation
                for i, v in enumerate(op.operands):
                    copy.operands[i] = values[v]
                values.update(zip(op.results, copy.results, strict=True))
            func.ReturnOp([values[v] for v in wanted])
        if any(t != type_of(v) for (_, t), v in zip(inputs, outside, strict=True)):
            for op in list(make.graph.operations())[:-1]:
                infer_again(op)
        make.graph.sign(make.names, [self.names[v] for v in wanted])
        drop_unused_constants(make.graph)
        make.graph.verify("import")
        return tuple(make.names), make.graph


def has_control_flow(graph: Graph) -> bool:
    """Whether a graph has to be cut before it is compiled."""
    return any(dialect.has_regions(op) for op in graph.operations())


def uses(op: ir.Operation) -> Iterator[ir.Value]:
    """The values that an operator reads, those that its regions read from outside of them included."""
    yield from op.operands
    for region in op.regions:
        for block in region.blocks:
            yield from free(block)


def free(block: ir.Block) -> Iterator[ir.Value]:
    """Values that the operators of a block use and that are not its own."""
    own: set[Any] = {*block.arguments}
    for op in block.operations:
        yield from (v for v in uses(op.operation) if v not in own)
        own.update(op.operation.results)


def _needed(operations: Sequence[ir.Operation], returned: Sequence[ir.Value]) -> list[ir.Operation]:
    """Those of the operators that what is returned needs, in order."""
    needed, found = set(returned), []
    for op in reversed(operations):
        if op.name != "tw.constant" and any(r in needed for r in op.results):
            needed.update(uses(op))
            found.append(op)
    return found[::-1]


def _bodies(body: str, node: int, op: ir.Operation) -> tuple[str, ...]:
    return tuple(f"{body}/{node}.{k}" for k in range(len(op.regions)))


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "tw.constant"


__all__ = ["Body", "Cut", "Part", "Step", "free", "has_control_flow", "uses"]
