"""StableHLO programs that run in parts: with loops and branches that depend on data, or for the sizes of each call.

`PartsSource` is what `runtime.staged` asks. A body is a block: that of @main, of a loop, of a branch. Operators that
wait for nothing are one native program; then the loops that could not be unrolled run, driven by the runtime; what
waits for their results is the next part. Values go by names from part to part; bodies see those of the blocks around
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

from ....ir.context import parse, use
from ....ir.types import from_array
from ....runtime.parts import Action, BodyInfo, DynamicInfo, Entry, StoredSource, SubgraphPlan, Tree, plain
from ....support.errors import UnsupportedError, UsageError
from ....support.mapped_file import MappedFile
from ...failures import FAILED, ImportFailure
from .importer import RETURNS, StableHloImporter, label
from .node import DataDependentOperation, HloOp, place_of
from .program import StableHloProgram
from .values import HloTensor, known_tensor

#: what stored sources are called: as their front end
KIND = "mlir"
#: the condition of a loop after a step of it
AGAIN = "again"


class StableHloSource:
    """What both kinds of sources share; see `runtime.parts.Source`."""

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

    def evaluate(self, body: str, node: int, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        raise UsageError("operators of StableHLO are not evaluated one by one")

    def store(self) -> StoredSource:
        platform = self.program.platform
        arrays = {} if platform is None else {"platform": np.array(platform)}
        return StoredSource(KIND, self.source.encode(), arrays, [])


class DynamicStableHloSource(StableHloSource):
    """A program with open sizes: one graph for those of each call."""

    def body(self, body: str) -> BodyInfo:
        inputs, outputs = self.signature()
        return BodyInfo("main", tuple(t.name for t in inputs), tuple(t.name for t in outputs), 1)

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        return self.body(body).inputs

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        info = self.body(body)
        fixed = self.program.fixed({n: plain(a).shape for n, a in entries.items()})
        try:
            graph = fixed.graph()
        except UnsupportedError as e:
            if e.run_time:
                e.hint = (
                    "loops that depend on data need fixed sizes: inputs={name: shape}, or export it without open ones"
                )
            raise
        results: dict[str, Tree] = {n: ["out", i] for i, n in enumerate(info.outputs)}
        return SubgraphPlan(graph, info.inputs, results, [], (), (), frozenset())


@dataclass
class StableHloBody:
    """A block that runs as a unit. `condition` is that of a loop, which is computed after each step."""

    id: str
    block: ir.Block
    condition: ir.Block | None = None
    operations: list[ir.Operation] = field(default_factory=list)
    returned: list[ir.Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        every = [op.operation for op in self.block.operations]
        self.operations = [op for op in every if op.name not in RETURNS]
        self.returned = list(every[-1].operands)

    @property
    def nodes(self) -> int:
        """Its operators, and one more for the condition."""
        return len(self.operations) + (self.condition is not None)

    def uses(self, node: int) -> list[ir.Value]:
        """The values of other operators that a node needs."""
        if node == len(self.operations):
            assert self.condition is not None
            return [*self.returned, *_free(self.condition)]
        op = self.operations[node]
        return [*op.operands, *(v for r in op.regions for b in r.blocks for v in _free(b))]


def _free(block: ir.Block) -> Iterator[ir.Value]:
    """Values that a block uses and that are not its own."""
    own = {*block.arguments}
    for view in block.operations:
        op = view.operation
        yield from (v for v in op.operands if v not in own)
        for region in op.regions:
            for inner in region.blocks:
                yield from (v for v in _free(inner) if v not in own)
        own.update(op.results)


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "stablehlo.constant"


class PartsSource(StableHloSource):
    """A program of known sizes with loops that depend on data."""

    def __init__(self, program: StableHloProgram) -> None:
        super().__init__(program)
        self.bodies: dict[str, StableHloBody] = {}
        self.names: dict[ir.Value, str] = {}
        with use():
            inputs = iter([n for n, _ in program.inputs()])
            for i, argument in enumerate(program.block.arguments):
                self.names[argument] = next(inputs) if i in program.used_arguments else "platform"
            self.add(StableHloBody("main", program.block))

    def add(self, body: StableHloBody) -> None:
        """One more body; its values get their names."""
        self.bodies[body.id] = body
        for i, argument in enumerate(body.block.arguments):
            self.names.setdefault(argument, f"{body.id}.argument{i}")
        for i, op in enumerate(body.operations):
            for k, result in enumerate(op.results):
                self.names[result] = f"{body.id}.{i}.{k}"

    # ---- what the runtime asks ----

    def body(self, body: str) -> BodyInfo:
        with use():
            found = self.bodies[body]
            outputs = [self.names[v] for v in found.returned]
            inputs = [self.names[a] for a in found.block.arguments if self.names[a] != "platform"]
            if found.condition is not None:  # what the runtime gives a loop, and what that gives back
                inputs, outputs = [f"{body}.step", f"{body}.going", *inputs], [f"{body}.{AGAIN}", *outputs]
            return BodyInfo(body, tuple(inputs), tuple(outputs), found.nodes)

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        with use():
            found = self.bodies[body]
            made = {r for i in todo if i < len(found.operations) for r in found.operations[i].results}
            free = [v for i in todo for v in found.uses(i) if v not in made and not _is_constant(v)]
            # what the body returns as it came
            free += [v for v in found.returned if isinstance(v.owner, ir.Block) and v not in made]
            return tuple(dict.fromkeys(self.names[v] for v in free if self.names[v] != "platform"))

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        with use():
            arrays = {n: plain(e) for n, e in entries.items()}
            return StableHloSubgraphImporter(self, self.bodies[body], arrays).plan(todo)


class StableHloSubgraphImporter(StableHloImporter):
    """Imports what a part of a body computes."""

    def __init__(self, source: PartsSource, body: StableHloBody, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__(source.program.functions, [(n, from_array(a)) for n, a in arrays.items()])
        self.source, self.body = source, body
        #: values that actions of this part, or later parts, make
        self.behind: set[ir.Value] = set()
        self.actions: list[Action] = []
        #: names of what this part makes that others need, and their values
        self.wanted: dict[str, HloTensor] = {}

    def plan(self, todo: Sequence[int]) -> SubgraphPlan:
        later = []
        for i in todo:
            if any(v in self.behind for v in self.body.uses(i)):
                later.append(i)
                self._wait(i)
            elif i == len(self.body.operations):
                self._condition()
            else:
                self._operation(i)
        self.raise_failures()
        self._wanted_later(later)
        constants: list[np.ndarray] = []
        order: dict[ir.Value, int] = {}
        results: dict[str, Tree] = {n: self._tree(v, order, constants) for n, v in self.wanted.items()}
        graph = self.make.finish([(f"result{i}", v) for v, i in order.items()]) if order else None
        feeds = tuple(self.make.names)
        return SubgraphPlan(graph, feeds, results, constants, tuple(self.actions), tuple(later), frozenset())

    def _wait(self, node: int) -> None:
        if node < len(self.body.operations):
            self.behind.update(self.body.operations[node].results)

    def _bring(self, value: ir.Value) -> None:
        """A value of another part, or of a block around this one, or a constant."""
        if value in self.values:
            return
        if _is_constant(value):
            self.step(value.owner)
        elif (name := self.source.names[value]) in self.inputs:
            self.values[value] = self.inputs[name]
        elif name == "platform":
            self.values[value] = known_tensor(self.emitter, np.array(self.source.program.platform, np.int32))

    def _operation(self, node: int) -> None:
        op = self.body.operations[node]
        for v in self.body.uses(node):
            self._bring(v)
        try:
            self.step(op)
        except DataDependentOperation as e:
            try:
                self._act(node, op, e)
            except DataDependentOperation as other:
                self._failed(op, str(other))
            self._wait(node)

    def _failed(self, op: ir.Operation, why: str) -> None:
        self.failures.append(ImportFailure(label(op), place_of(op), why))

    def _condition(self) -> None:
        """The loop condition after this step."""
        assert self.body.condition is not None
        for v in self.body.uses(len(self.body.operations)):
            self._bring(v)
        given = [self.values[v] for v in self.body.returned]
        if any(v is FAILED for v in given):
            return
        try:
            (again,) = self.walk(self.body.condition, given)
        except DataDependentOperation as e:
            self._failed(self.body.condition.owner, f"{e}, in its condition")
            return
        self.wanted[f"{self.body.id}.{AGAIN}"] = again

    # ---- what the runtime does ----

    def _act(self, node: int, op: ir.Operation, why: DataDependentOperation) -> None:
        """A loop or a branch as an action after this part."""
        name = f"{self.body.id}/{node}"
        outputs = tuple(self.source.names[r] for r in op.results)
        blocks = [r.blocks[0] for r in op.regions]
        if op.name == "stablehlo.while":
            (going,) = self.walk(blocks[0], [self.values[v] for v in op.operands])
            condition, kind, bodies = f"{name}.going", "loop", [StableHloBody(name, blocks[1], blocks[0])]
            inputs = ("", condition, *(self.source.names[v] for v in op.operands))
        elif op.name in ("stablehlo.if", "stablehlo.case") and len(blocks) == 2:
            index = self.values[op.operands[0]]
            node_ = HloOp(self, self.emitter, op, op.name.partition(".")[2])
            going = index if op.name == "stablehlo.if" else node_("equal", index, 0)
            condition, kind = f"{name}.condition", "branch"
            bodies = [StableHloBody(f"{name}.{i}", b) for i, b in enumerate(blocks)]
            inputs = (condition,)
        else:
            self._failed(op, f"{why}; only loops and branches of two ways can wait for that")
            return
        for body in bodies:
            if body.id not in self.source.bodies:
                self.source.add(body)
        self.wanted[condition] = going
        for v in self.body.uses(node):
            self._want(v)
        self.actions.append(Action(kind, place_of(op) or name, inputs, outputs, {}, tuple(b.id for b in bodies), node))

    # ---- what the part gives ----

    def _want(self, value: ir.Value) -> None:
        if value not in self.values:
            return
        found = self.values[value]
        if not isinstance(found, HloTensor):
            self.failures.append(ImportFailure("while", self.body.id, "with complex numbers that it did not make"))
            return
        self.wanted[self.source.names[value]] = found

    def _wanted_later(self, later: Sequence[int]) -> None:
        for i in later:
            for v in self.body.uses(i):
                if not _is_constant(v):
                    self._want(v)
        for v in self.body.returned:
            if v not in self.behind:
                self._bring(v)
                self._want(v)
        self.raise_failures()

    def _tree(self, x: HloTensor, order: dict[ir.Value, int], constants: list[np.ndarray]) -> Tree:
        if x.array is not None:
            constants.append(np.array(x.array, order="C"))
            return ["const", len(constants) - 1]
        if isinstance(x.ssa.owner, ir.Block):
            return ["in", self.make.names[ir.BlockArgument(x.ssa).arg_number]]
        return ["out", order.setdefault(x.ssa, len(order))]


def source_of(program: StableHloProgram) -> DynamicStableHloSource | PartsSource:
    """The program as what parts are made of."""
    with use():
        return DynamicStableHloSource(program) if program.open else PartsSource(program)


def restore(stored: StoredSource) -> DynamicStableHloSource | PartsSource:
    """The inverse of `StableHloSource.store`."""
    platform = stored.arrays.get("platform")
    with use():
        module = parse(stored.data.decode(), "the saved program")
        return source_of(StableHloProgram(module, "the saved program", None if platform is None else int(platform)))


__all__ = ["DynamicStableHloSource", "PartsSource", "restore", "source_of"]
