"""Cuts a graph at its control flow into parts that run as native programs, and says how they follow each other.

The bodies of a graph are @main and the blocks of its `if`s and `loop`s. Each runs as a chain of parts: operators that
wait for nothing are one native program, then the control flow that they lead to runs, which calls its own bodies; what
waits for its results is the next part.

    %0 = "tw.exp"(%x)                     a part: %0 and %1
    %1 = "tw.less"(%0, %y)
    %2 = "tw.if"(%1) ({...}, {...})       an action, with a body for each region
    %3 = "tw.add"(%2, %0)                 the part after it, for the sizes that %2 has

Values have names, by which they go from part to part; bodies see those of the bodies around them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import func

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.graph_builder import Maker
from ..ir.types import Type, type_of
from ..support.host_plan import Action, BodyInfo, SubgraphPlan, Tree
from .rewrite import drop_unused_constants, names, uses
from .specialize import infer_again

#: what the runtime gives the body of a loop besides its state (how often it ran, whether it goes on) has no names
LOOP = ("", "")


@dataclass
class Body:
    """A block that runs as a unit: its nodes are the operators that its results need, but for constants."""

    inputs: tuple[str, ...]
    returned: list[ir.Value]
    nodes: list[ir.Operation]


class Cut:
    """The bodies of a level-2 graph: "main", "main/3.0" for the first region of its fourth node ..., all behind a
    prefix; `part` makes the parts of one. `own`: inputs that programs give themselves."""

    def __init__(self, graph: Graph, prefix: str = "", own: Collection[str] = ()) -> None:
        self.graph, self.prefix, self.own = graph, prefix, own
        self.bodies: dict[str, Body] = {}
        with use():
            self.names = {a: n for a, (n, _) in zip(graph.block.arguments, graph.inputs(), strict=True)}
            self.mark = "%" * (1 + max((n.count("%") for n in self.names.values()), default=0))
            self._add(f"{prefix}main", graph.block, ())

    def _add(self, body: str, block: ir.Block, before: tuple[str, ...]) -> None:
        *operations, last = [op.operation for op in block.operations]
        for value in (*block.arguments, *(r for op in operations for r in op.results)):
            self.names.setdefault(value, f"{self.mark}{len(self.names)}")  # the same for the same text
        nodes = _needed(operations, list(last.operands))
        inputs = (*before, *self._given(block.arguments))
        self.bodies[body] = Body(inputs, list(last.operands), nodes)
        for i, op in enumerate(nodes):
            for k, region in enumerate(op.regions):
                self._add(f"{body}/{i}.{k}", region.blocks[0], LOOP if op.name == "tw.loop" else ())

    def _given(self, values: Iterable[ir.Value]) -> tuple[str, ...]:
        """The names of values, but for those that programs give themselves."""
        return tuple(n for v in values if (n := self.names[v]) not in self.own)

    # ---- what the runtime asks ----

    def info(self, body: str) -> BodyInfo:
        found = self.bodies[body]
        return BodyInfo(body, found.inputs, tuple(self.names[v] for v in found.returned), len(found.nodes))

    def reads(self, body: str, todo: Sequence[int]) -> tuple[str, ...]:
        """The names that these nodes read, and that none of them makes."""
        nodes = [self.bodies[body].nodes[i] for i in todo]
        made = {r for op in nodes for r in op.results}
        return self._given(v for v in _read(nodes) if v not in made and not _is_constant(v))

    def part(self, body: str, todo: Sequence[int], types: Mapping[str, Type]) -> SubgraphPlan:
        """The part that begins with these nodes, where what it reads is of these types."""
        with use():
            found = self.bodies[body]
            nodes = found.nodes
            acts = lambda i: dialect.has_regions(nodes[i])  # noqa: E731
            native, acting, later = divide(todo, lambda i: uses(nodes[i]), lambda i: nodes[i].results, acts)
            direct = [*found.returned, *(v for i in acting for v in nodes[i].operands)]
            made = {r for i in native for r in nodes[i].results}
            read = dict.fromkeys([*direct, *_read(nodes[i] for i in (*acting, *later))])
            wanted = [v for v in read if v in made]
            known = [v for v in dict.fromkeys(direct) if _is_constant(v)]
            results: dict[str, Tree] = {self.names[v]: ["out", i] for i, v in enumerate(wanted)}
            results |= {self.names[v]: ["const", i] for i, v in enumerate(known)}
            graph, feeds = self._native([nodes[i] for i in native], made, wanted, types) if wanted else (None, ())
            constants = [np.asarray(self.graph.constant_value(v), order="C") for v in known]
            actions = tuple(self._action(body, i) for i in acting)
            return SubgraphPlan(graph, feeds, results, constants, actions, tuple(later))

    def _action(self, body: str, node: int) -> Action:
        op = self.bodies[body].nodes[node]
        limit = ("",) if op.name == "tw.loop" else ()  # there is none
        inputs, outputs = ([self.names[v] for v in values] for values in (op.operands, op.results))
        bodies = tuple(f"{body}/{node}.{k}" for k in range(len(op.regions)))
        place = (names(op) or [f"{body}/{node}"])[0]
        return Action(op.name[len("tw.") :], place, (*limit, *inputs), tuple(outputs), {}, bodies, node)

    def _native(
        self, nodes: Sequence[ir.Operation], made: set[ir.Value], wanted: Sequence[ir.Value], types: Mapping[str, Type]
    ) -> tuple[Graph, tuple[str, ...]]:
        """A graph of these operators, and the names of what it takes of others."""
        outside = [v for v in _read(nodes) if v not in made and not _is_constant(v)]
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
        return make.graph, self._given(outside)


def divide(
    todo: Iterable[int],
    reads: Callable[[int], Iterable[Any]],
    makes: Callable[[int], Iterable[Any]],
    acts: Callable[[int], bool],
) -> tuple[list[int], list[int], list[int]]:
    """Nodes by what they wait for: those of a native program, those that the runtime does after it (`acts`), the rest.

    >>> divide(range(4), lambda i: [i - 1], lambda i: [i], lambda i: i in (1, 2))
    ([0], [1, 2], [3])
    """
    native: list[int] = []
    acting: list[int] = []
    later: list[int] = []
    after: set[Any] = set()
    behind: set[Any] = set()
    for i in todo:
        read = list(reads(i))
        if any(v in behind for v in read) or (not acts(i) and any(v in after for v in read)):
            later.append(i)
            behind.update(makes(i))
        elif acts(i):
            acting.append(i)
            after.update(makes(i))
        else:
            native.append(i)
    return native, acting, later


def has_control_flow(graph: Graph) -> bool:
    """Whether a graph has to be cut before it is compiled."""
    return any(dialect.has_regions(op) for op in graph.operations())


def _read(nodes: Iterable[ir.Operation]) -> dict[ir.Value, None]:
    return dict.fromkeys(v for op in nodes for v in uses(op))


def _needed(operations: Sequence[ir.Operation], returned: Sequence[ir.Value]) -> list[ir.Operation]:
    """Those of the operators that what is returned needs, in order."""
    needed, found = set(returned), []
    for op in reversed(operations):
        if op.name != "tw.constant" and any(r in needed for r in op.results):
            needed.update(uses(op))
            found.append(op)
    return found[::-1]


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "tw.constant"


__all__ = ["Cut", "divide", "has_control_flow"]
