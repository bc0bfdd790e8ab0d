"""Partitioning of ONNX models with data-dependent shapes or control flow into subgraphs, for `runtime.staged`.

An `OnnxBody` is the model's graph, a branch, the body of a loop, or a function. `OnnxSource.plan` imports those of its
nodes that can be imported for the shapes at hand into one graph. A node that needs a value which is not known yet
(`values.DataDependentNode`) is postponed, and so is everything that reads its results; then

- if the number is arithmetic on small inputs of this part and tells their values (a target shape, twice a size), the
  import starts again with these as constants, and the runtime makes their values part of the key;
- if it is arithmetic on small inputs that tells less (one of several lengths, a difference), this part computes that
  number and nothing else. The next one has everything else to do, and the number in its key: under its name in the
  model if it has one, else as the *answer* to the question that the node asked, under a name of its own;
- a number that is read from a table or summed up, as the length of what is made of a text, waits too, but with it
  everything else is computed that can be; only the number becomes part of the next key;
- a branch, a loop, a function, or an operator of `support.host_operators` becomes an action of the runtime;
- otherwise the next part gets the number as a constant, or (if it is a large tensor) the operators' references compute
  the node.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto
from torch_mlir import ir
from torch_mlir.dialects import func

from ...ir.context import use
from ...ir.graph import Graph
from ...ir.types import from_array
from ...runtime import random_seed
from ...runtime.parts import DynamicInfo, EmbeddedConstant, Entry, Source, StoredSource
from ...support import host_operators as host
from ...support.errors import UnsupportedError
from ...support.host_plan import Action, BodyInfo, SubgraphPlan, Tree
from ...support.mapped_file import MappedFile
from ...support.sizes import at_most
from . import functions, operators, partials, stored  # noqa: F401  (a restored model needs the operators, too)
from .bodies import OnnxBody, declared, node_of
from .importer import OnnxImporter, Scope, _domain, _opsets
from .node import OnnxNode
from .reader import Model
from .registry import find
from .values import (
    DataDependentNode,
    Deferred,
    OnnxNotImported,
    OnnxValue,
    Partial,
    Poison,
    SequenceHandle,
    inputs_of,
    is_arithmetic,
    reached,
    sources,
)

#: tensors up to this many elements may become constants of a part, their values part of its key
INTEGERS, FLOATS = 1024, 16
#: control flow
CONTROL = ("If", "Loop", "Scan")
#: attributes of Scan (the second name of opset 8), as the runtime calls them
SCAN = {
    "num_scan_inputs": "scanned", "scan_input_axes": "axes", "scan_input_directions": "backwards",
    "directions": "backwards", "scan_output_axes": "output_axes", "scan_output_directions": "output_backwards",
}  # fmt: skip


class Restart(Exception):
    """The import needs these inputs as constants."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(names)
        self.names = names


class OnnxSource(Source):
    """See `runtime.parts.Source`."""

    def __init__(self, model: Model, check_indices: bool = False) -> None:
        self.model, self.check_indices = model, check_indices
        proto = model.proto.graph
        tensors = model.initializers()
        inputs = tuple(i.name for i in proto.input if i.name not in tensors)
        main = OnnxBody(
            "main", proto.node, inputs, tuple(o.name for o in proto.output), tensors, _opsets(model.proto.opset_import)
        )
        self.bodies = {"main": main}
        self.functions = {(_domain(f.domain), f.name): f for f in model.proto.functions}

    @property
    def files(self) -> tuple[MappedFile, ...]:
        return self.model.files

    @property
    def source(self) -> Model:
        return self.model

    def signature(self) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
        return stored.signature(self.model)

    # ---- what the runtime asks ----

    def body(self, body: str) -> BodyInfo:
        found = self.bodies[body]
        return BodyInfo(body, found.inputs, found.outputs, len(found.nodes), found.types)

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        found = self.bodies[body]
        return tuple(n for n in found.reads(todo) if found.initializer(n) is None)

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        learned: frozenset[str] = frozenset()
        while True:
            try:
                importer = OnnxSubgraphImporter(self, self.bodies[body], todo, frozen | learned)
                plan = importer.plan(entries)
            except Restart as e:
                learned |= e.names
                continue
            plan.learned = learned
            return plan

    plan_open = plan

    def evaluate(self, body: str, node: int, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        found = self.bodies[body]
        importer = OnnxSubgraphImporter(self, found, (node,), frozenset(entries), found.nodes[node].output)
        plan = importer.plan(entries)
        if plan.actions or plan.todo or plan.graph is not None:
            label = f'{found.nodes[node].op_type} "{found.nodes[node].name}"'
            raise UnsupportedError("its result cannot be computed at run time", stage="run", operator=label)
        return {n: plan.constants[t[1]] if t[0] == "const" else entries.get(t[-1]) for n, t in plan.results.items()}

    # ---- bodies inside of bodies ----

    def subgraph(self, body: OnnxBody, at: int, name: str, graph: onnx.GraphProto) -> str:
        key = f"{body.id}/{at}.{name}"
        if key not in self.bodies:
            self.bodies[key] = OnnxBody(
                key,
                graph.node,
                tuple(i.name for i in graph.input),
                tuple(o.name for o in graph.output),
                {t.name: (t, -1) for t in graph.initializer},
                body.opsets,
                body,
                body.attributes,
                body.prefix,
                body.depth + 1,
                tuple(map(declared, graph.output)),
            )
        return key

    def function(self, body: OnnxBody, at: int, node: OnnxNode, proto: onnx.FunctionProto) -> str:
        """A call of a function; equal ones of different argument types may have different bodies."""
        number = 0
        while (key := f"{body.id}/{at}.call{number}") in self.bodies:
            if self._protos[key] == proto:
                return key
            number += 1
        attributes = {a.name: a for a in proto.attribute_proto}
        for a in node.proto.attribute:
            value = body.attributes.get(a.ref_attr_name) if a.ref_attr_name else a
            if value is not None:
                attributes[a.name] = value
        self._protos[key] = proto
        self.bodies[key] = OnnxBody(
            key,
            proto.node,
            tuple(proto.input),
            tuple(o if node.wants(i) else "" for i, o in enumerate(proto.output)),
            {},
            {**body.opsets, **_opsets(proto.opset_import)},
            None,
            attributes,
            f"{node.name}/",
            body.depth + 1,
        )
        return key

    @cached_property
    def _protos(self) -> dict[str, onnx.FunctionProto]:
        return {}

    # ---- saving ----

    def store(self) -> StoredSource:
        return stored.store(self.model, self.recipes())

    def recipes(self) -> list[list[str]]:
        """How to make the bodies again, parents first: [id] and, for a function, its definition."""
        return [
            [k, base64.b64encode(self._protos[k].SerializeToString()).decode()] if k in self._protos else [k]
            for k in self.bodies
            if k != "main"
        ]

    def restore(self, recipes: Sequence[Sequence[str]]) -> None:
        """The inverse of `recipes`."""
        for key, *rest in recipes:
            outer, _, place = key.rpartition("/")
            number, _, name = place.partition(".")
            body, at = self.bodies[outer], int(number)
            proto = body.nodes[at]
            if rest:
                with use():
                    node = node_of(OnnxImporter(self.model), body, proto)
                    self.function(body, at, node, onnx.FunctionProto.FromString(base64.b64decode(rest[0])))
            else:
                self.subgraph(body, at, name, next(a.g for a in proto.attribute if a.name == name))


@dataclass(frozen=True)
class Waiting:
    """A node that could not be imported; `ask` is None if it waits for another one."""

    index: int
    ready: bool
    ask: DataDependentNode | None


class OnnxSubgraphImporter(OnnxImporter):
    """Imports the nodes of a stage as far as possible."""

    def __init__(
        self,
        source: OnnxSource,
        body: OnnxBody,
        todo: Sequence[int],
        frozen: frozenset[str],
        outputs: Sequence[str] | None = None,
    ) -> None:
        super().__init__(source.model, lazy=True, check_indices=source.check_indices)
        self.source, self.body, self.todo, self.frozen = source, body, todo, frozen
        self.outputs = tuple(o for o in (body.outputs if outputs is None else outputs) if o)
        self.waiting: list[Waiting] = []
        self.constants: list[np.ndarray] = []
        #: the node that is being imported, and how often it has asked
        self.at, self.questions = -1, 0
        #: numbers that are arithmetic on inputs and tell less than these, by their questions, with their `sources`
        self.derived: dict[str, tuple[OnnxValue, list[ir.Value]]] = {}
        #: questions that the next part gets the answers of
        self.asking: list[str] = []

    def plan(self, entries: Mapping[str, Entry]) -> SubgraphPlan:
        body, self.entries = self.body, entries
        tensors = {n: e for n, e in entries.items() if isinstance(e, np.ndarray) and n not in self.frozen}
        self.arguments = list(tensors)
        with use():
            self.graph = Graph(ir.Module.create())
            types = [from_array(a).mlir() for a in tensors.values()]
            with ir.InsertionPoint(self.graph.module.body), ir.Location.name(body.id):
                main = func.FuncOp("main", (types, []))
                block = ir.Block.create_at_start(main.regions[0], types, [ir.Location.name(n) for n in tensors])
            self.scope = Scope(opsets=body.opsets, attributes=body.attributes, prefix=body.prefix, depth=body.depth)
            self.scope.nodes, self.scope.outputs = body.nodes, body.outputs
            for (name, a), argument in zip(tensors.items(), block.arguments, strict=True):
                self.scope.names[name] = OnnxValue(from_array(a), argument, name=name)
            self._fixed(entries)
            with ir.InsertionPoint(block):
                self.scope.pending = {o for i in self.todo for o in body.nodes[i].output if o}
                for i in self.todo:
                    self.at = i
                    self.node(body.nodes[i], self.scope)
                self._raise_failures()
                return self._finish_part(block)

    def _fixed(self, entries: Mapping[str, Entry]) -> None:
        """Names with a value that is not an argument."""
        for name, e in entries.items():
            if name in self.scope.names:
                continue
            if isinstance(e, np.ndarray):  # a copy: the caller may change the array
                self.scope.names[name] = self.constant(e.copy(), name)
            elif isinstance(e, EmbeddedConstant):
                self.scope.names[name] = self.constant(e.array, name)
            else:
                self.scope.names[name] = None if e is None else SequenceHandle(name, e)
        for name in [*self.body.reads(self.todo), *self.outputs]:
            tensor = self.body.initializer(name)
            if tensor is not None and name not in self.scope.names:
                self.scope.names[name] = self._initializer(*tensor)

    # ---- nodes ----

    def takes_partial(self, scope: Scope) -> bool:
        return scope is self.scope

    def question(self, what: str) -> str:
        self.questions += 1  # of known numbers too: which those are may differ the next time
        output = next((o for o in self.body.nodes[self.at].output if o), "")
        return f"{output}?{self.questions} {what}"

    def answer(self, question: str, value: OnnxValue) -> np.ndarray | None:
        found = self.scope.names.get(question)
        return found.array if isinstance(found, OnnxValue) and found.type == value.type else None

    def asked(self, node: OnnxNode, ask: DataDependentNode) -> Sequence[Any]:
        raise ask

    def node(self, proto: onnx.NodeProto, scope: Scope) -> None:
        if scope is not self.scope:
            super().node(proto, scope)
            return
        read = [scope.names.get(n) for n in self.body.node_reads[self.at]]
        if any(isinstance(r, Deferred) for r in read):
            self._wait(proto, Waiting(self.at, False, None))
        elif any(isinstance(r, Partial) for r in read):
            if not self._follow(proto):
                self._wait(proto, Waiting(self.at, False, None))
        elif any(isinstance(r, SequenceHandle) for r in read):
            self._wait(proto, Waiting(self.at, True, None))
        else:
            before, self.questions = len(self.checks), 0
            try:
                super().node(proto, scope)
            except DataDependentNode as ask:
                del self.checks[before:]  # of a body that is not imported as a whole
                self._restart(ask)
                self._wait(proto, Waiting(self.at, True, ask))

    def _follow(self, proto: onnx.NodeProto) -> bool:
        """Import a node on the whole buffers of its operands, where it treats positions one by one (`partials`)."""
        node = node_of(self, self.body, proto)
        operands = [self.lookup(self.scope, i, node.label) for i in proto.input]
        axis = None if self.check_indices else partials.open_axis(node, operands)  # what is behind is no index
        if axis is None:
            return False
        found = next(x for x in operands if isinstance(x, Partial))
        buffers = [x.buffer if isinstance(x, Partial) else x for x in operands]
        try:
            results = self._import(node, _domain(proto.domain), buffers)
        except DataDependentNode:
            return False
        size = found.buffer.shape[found.axis]
        fits = all(isinstance(r, OnnxValue) and r.shape[axis] == size for r in results)
        if not fits or not all(at_most(r.type.size, partials.MOST_ELEMENTS) for r in results):
            return False
        for name, result in zip(proto.output, results, strict=False):
            if name:
                self._define(self.scope, name, Partial(result, found.count, axis), f"an output of {node.label}")
        return True

    def _wait(self, proto: onnx.NodeProto, waiting: Waiting) -> None:
        self.waiting.append(waiting)
        for output in proto.output:
            if output:
                self._define(self.scope, output, Deferred(), f"an output of {proto.op_type}")

    def _restart(self, ask: DataDependentNode) -> None:
        """Start again if what is asked for is arithmetic on small inputs and tells what they are; remember it if it
        tells less."""
        if ask.value is None or ask.operator in CONTROL or ask.operator in host.OPERATORS:
            return
        names = {self.arguments[i] for i in inputs_of(ask.value)}
        if not names or random_seed.KEY in names or not is_arithmetic(ask.value):
            return
        if not all(_small(self.entries[n]) for n in names):
            return
        made_of = sources(ask.value)
        if not ask.question or all(isinstance(v.owner, ir.Block) for v in made_of):
            raise Restart(names)
        self.derived[ask.question] = ask.value, made_of

    # ---- the result ----

    def _derive(self, block: ir.Block) -> SubgraphPlan:
        """The plan for the derived numbers alone: the stage after it knows them, and has everything else to do.

        Where numbers are told by others that have names in the model (a height and a width, of which several sizes are
        made), it knows those: all that is made of them is known too, and not asked for in further stages.
        """
        self.checks.clear()
        named = {
            i.ssa: n for n, i in reversed(self.scope.names.items()) if isinstance(i, OnnxValue) and i.ssa is not None
        }
        known: dict[str, OnnxValue] = {}
        for question, (value, made_of) in self.derived.items():
            names = [named.get(v, "") for v in made_of]
            if all(n in self.arguments or self._alone(n) for n in names):
                known |= {n: self.scope.names[n] for n in names}
            else:
                known[question] = value
        values: dict[ir.Value, int] = {}
        results = {n: self._tree(n, v, values) for n, v in known.items() if n not in self.arguments}
        feeds = self._return(block, values, results)
        todo = tuple(i for i in self.todo if not known.keys() & set(self.body.nodes[i].output))
        return SubgraphPlan(self.graph, feeds, results, [], (), todo, self.frozen.union(known))

    def _alone(self, name: str) -> bool:
        """Whether a name is the only output of a node of this stage."""
        at = self.body.produced.get(name, -1)
        return at in self.todo and list(self.body.nodes[at].output) == [name]

    def _finish_part(self, block: ir.Block) -> SubgraphPlan:
        if self.derived:
            return self._derive(block)
        actions: list[Action] = []
        frozen: set[str] = set()
        for w in self.waiting:
            if w.ready:
                action = self._action(w, frozen)
                actions += [action] if action else []
        done = {a.node for a in actions}
        todo = tuple(w.index for w in self.waiting if w.index not in done)
        wanted = dict.fromkeys([*self.outputs, *self.asking])
        for w in self.waiting:
            wanted.update(dict.fromkeys(self.body.node_reads[w.index]))
        values: dict[ir.Value, int] = {}
        results = {}
        for name in wanted:
            item = self.scope.names.get(name)
            if not isinstance(item, Deferred) and name in self.scope.names and self._new(name, item, done):
                results[name] = self._tree(name, item, values)
            elif name not in self.scope.names and self.body.parent is None and name not in self.body.defined:
                self.lookup(self.scope, name, "graph outputs")
        feeds = self._return(block, values, results)
        graph = self.graph if values or self.checks else None
        outputs = {o for i in todo for o in self.body.nodes[i].output}
        answered = {n for n in self.frozen if n.rpartition("?")[0] in outputs}
        still = frozen | answered | (self.frozen & set(self.body.reads(todo)))
        return SubgraphPlan(graph, feeds, results, self.constants, tuple(actions), todo, frozenset(still))

    def _new(self, name: str, item: Any, acting: set[int]) -> bool:
        """Whether the runtime has no entry of a name yet (of initializers only those that it needs)."""
        if name in self.entries:
            return False
        if self.body.initializer(name) is None:
            return True
        direct = {i for index in acting for i in self.body.nodes[index].input}
        return name in self.outputs or name in direct

    def _tree(self, name: str, item: Any, values: dict[ir.Value, int]) -> Tree:
        if item is None:
            return ["none"]
        if isinstance(item, SequenceHandle):
            return ["in", item.name]
        if isinstance(item, list):
            return ["list", *[self._tree(name, i, values) for i in item]]
        if isinstance(item, Partial):
            parts = [self._tree(name, i, values) for i in (item.buffer, item.count)]
            return ["part", *parts, item.axis]
        if isinstance(item, Poison):
            raise UnsupportedError(f"{name!r} cannot be computed", stage="import")
        if item.constant:
            array = item.known()
            for i, other in enumerate(self.constants):
                if other is array:
                    return ["const", i]
            self.constants.append(array)
            return ["const", len(self.constants) - 1]
        if isinstance(item.ssa.owner, ir.Block):
            return ["in", self.arguments[ir.BlockArgument(item.ssa).arg_number]]
        return ["out", values.setdefault(item.ssa, len(values))]

    def _return(self, block: ir.Block, values: dict[ir.Value, int], results: dict[str, Tree]) -> tuple[str, ...]:
        """End @main, without arguments that nothing uses; the names of the others."""
        func.ReturnOp([*values, *(self.materialize(r) for _, _, r in self.checks)])
        self._drop_unused()
        feeds = list(self.arguments)
        for i in reversed(range(len(feeds))):
            if not any(True for _ in block.arguments[i].uses):
                block.erase_argument(i)
                del feeds[i]
        names = {t[1]: n for n, t in reversed(results.items()) if t[0] == "out"}
        labels = [names.get(i, f"result{i}") for i in range(len(values))] + self.check_names()
        self.graph.sign(feeds, labels)
        self.graph.verify(stage="import")
        return tuple(n for n in feeds if n != random_seed.KEY)

    # ---- what the runtime does ----

    def _action(self, w: Waiting, frozen: set[str]) -> Action | None:
        """How a node that is ready gets done by the runtime; None if it waits for `frozen` names in the next part."""
        proto = self.body.nodes[w.index]
        node = node_of(self, self.body, proto)
        domain, inputs, outputs = _domain(proto.domain), tuple(proto.input), tuple(proto.output)
        arguments = [self._argument(n) for n in inputs]
        local = self.source.functions.get((domain, proto.op_type))
        if not domain and local is None and proto.op_type in CONTROL:
            graphs = [(a.name, a.g) for a in proto.attribute if a.type == AttributeProto.GRAPH]
            graphs.sort(key=lambda g: g[0] != "then_branch")
            bodies = tuple(self.source.subgraph(self.body, w.index, name, g) for name, g in graphs)
            batched = {"batched": 1} if proto.op_type == "Scan" and node.opset < 9 else {}
            attributes = {SCAN.get(k, k): v for k, v in _attributes(node).items()} | batched
            return Action(proto.op_type.lower(), node.label, inputs, outputs, attributes, bodies, w.index)
        if not domain and local is None and proto.op_type in host.OPERATORS:
            return Action(proto.op_type, node.label, inputs, outputs, _attributes(node), (), w.index)
        body = local
        if body is None and find(domain, proto.op_type, node.opset) is None:
            body = functions.definition(node, arguments)
        if body is not None:
            key = self.source.function(self.body, w.index, node, body)
            return Action("call", node.label, inputs, outputs, {}, (key,), w.index)
        if w.ask is None:
            raise UnsupportedError("it cannot take a sequence", stage="import", operator=node.label)
        if self._freeze(w.ask, inputs, arguments, frozen):
            return None
        return Action("fold", node.label, inputs, outputs, {}, (), w.index)

    def _argument(self, name: str) -> Any:
        """The item of a name; a sequence as a list with one element, for its type."""
        item = self.scope.names.get(name) if name else None
        if isinstance(item, SequenceHandle):
            return [OnnxValue(from_array(np.asarray(a))) for a in item.entry[:1]]
        return item

    def _freeze(
        self, ask: DataDependentNode, inputs: Sequence[str], arguments: Sequence[Any], frozen: set[str]
    ) -> bool:
        """Choose what becomes a constant of the next part, the number asked for or operands; False if that is too
        large."""
        open_ = [(n, a) for n, a in zip(inputs, arguments, strict=True) if isinstance(a, OnnxValue) and not a.constant]
        value, ends = ask.value, {a.ssa for _, a in open_}
        if value is not None and ask.question and value.ssa not in ends and _few(value.type.size, value.dtype):
            self.scope.names[ask.question] = value  # it is made of operands, and tells no more than they do
            self.asking.append(ask.question)
            frozen.add(ask.question)
            return True
        behind = set() if value is None else reached(value, ends)
        asked = [(n, a) for n, a in open_ if a is value or a.ssa in behind] or open_
        if not all(_few(a.type.size, a.dtype) for _, a in asked):
            return False
        frozen.update(n for n, _ in asked)
        return True


def _small(entry: Entry) -> bool:
    return isinstance(entry, np.ndarray) and _few(entry.size, from_array(entry).dtype)


def _few(size: int, dtype: str) -> bool:
    return size <= (FLOATS if "f" in dtype else INTEGERS)


def _attributes(node: OnnxNode) -> dict[str, Any]:
    """The attributes of a node that are numbers, strings, or lists of these."""
    graphs = (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.TYPE_PROTO)
    try:
        found = {a.name: node.attr(a.name) for a in node.proto.attribute if a.type not in graphs}
    except OnnxNotImported as e:
        raise UnsupportedError(str(e), stage="import", operator=node.label) from None
    return {k: v for k, v in found.items() if v is not None}
