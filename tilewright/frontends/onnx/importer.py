"""The walk over an ONNX graph: names, scopes, folding of shape arithmetic, functions and subgraphs, errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto
from torch_mlir import ir
from torch_mlir.dialects import func

from ...ir import dialect
from ...ir.context import use
from ...ir.graph import INLINE_ELEMENTS, Graph
from ...ir.types import NUMPY, Type, addressable, from_array, is_float, type_of
from ...runtime import indices, random_seed
from ...support.budget import Counter
from ...support.errors import ModelError, OpError, TilewrightError, UnsupportedError
from ...support.sizes import Undecided, decode, is_open
from ..open_values import REFERENCES, check_computed, fixed, holds_sizes, open_array, sizes_as_tensor
from . import functions, inputs
from .names import needed
from .node import OnnxNode
from .reader import Model
from .registry import find, oldest
from .values import POISON, DataDependentNode, OnnxFailure, OnnxNotImported, OnnxValue, Poison, report

#: integer and bool tensors up to this many elements are folded at once (floats: INLINE_ELEMENTS)
FOLD_ELEMENTS = 1024
#: operators that are never folded here: the pass on quantized models wants to see the 8-bit weights
KEPT = ("dequantize_linear",)
#: functions may call functions this deep
MAX_DEPTH = 64

#: a tensor, a sequence, an absent optional, or the output of a node that could not be imported
Item = Any


@dataclass
class Scope:
    """Names of one graph or function body; lookups go to the enclosing graph."""

    parent: Scope | None = None
    names: dict[str, Item] = field(default_factory=dict)
    #: names that later nodes of this graph define, for errors about order
    pending: set[str] = field(default_factory=set)
    #: attributes of the function call
    attributes: dict[str, AttributeProto] = field(default_factory=dict)
    #: opset versions by domain
    opsets: dict[str, int] = field(default_factory=dict)
    #: names of the calls around this body
    prefix: str = ""
    depth: int = 0
    #: how often the loops around this body run together
    repeats: int = 1
    #: its nodes and what it gives, the node that is being imported, and the scope of the node that this is part of
    nodes: Sequence[onnx.NodeProto] = ()
    outputs: Sequence[str] = ()
    at: onnx.NodeProto | None = None
    caller: Scope | None = None
    #: what has to hold for the results to count (branches of which both are computed); None: they do
    condition: OnnxValue | None = None

    def find(self, name: str) -> tuple[bool, Item]:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return True, scope.names[name]
            scope = scope.parent
        return False, None

    def child(self, repeats: int) -> Scope:
        """The scope of a subgraph that runs so often."""
        scope = Scope(
            self, {}, set(), self.attributes, self.opsets, self.prefix, self.depth + 1, self.repeats * max(1, repeats)
        )
        scope.caller, scope.condition = self, self.condition
        return scope

    @cached_property
    def needed(self) -> set[str]:
        """The names that the outputs of this graph or function need."""
        return needed(self.nodes, self.outputs)

    @property
    def reached(self) -> bool:
        """Whether the outputs of the model need the node that is being imported."""
        here = self.at is None or not self.needed.isdisjoint(self.at.output)
        return here and (self.caller is None or self.caller.reached)


class OnnxImporter:
    """Imports one model; `run` gives the graph."""

    def __init__(self, model: Model, lazy: bool = False, check_indices: bool = False) -> None:
        self.model = model
        self.graph: Graph
        self.failures: list[OnnxFailure] = []
        self.arguments: list[str] = []  # names of the arguments of @main
        #: costly branches and long loops are left to the runtime (`staging`), not computed both ways and unrolled
        self.lazy = lazy
        self.draws = 0  # of random numbers that differ from run to run
        self._key: OnnxValue | None = None
        #: operators with indices that only a run knows, the sizes that these have to fit, and their ranges (`bounds`)
        self.checks: list[tuple[str, Sequence[int], OnnxValue]] = []
        self.check_indices = check_indices
        self.functions = functions.by_name(model.proto, model.source)
        self._checker = functions.checker(model.proto)
        self._counter = Counter()

    def run(self, shapes: dict[str, Any]) -> Graph:
        """Import the whole model; `shapes` as the `inputs` of `load`."""
        proto = self.model.proto.graph
        initializers = self.model.initializers()
        self.failures += inputs.of_other_types(proto, set(initializers))
        self._raise_failures()
        arguments, frozen = inputs.resolve(proto, set(initializers), shapes, self.model.source)
        self.arguments = [name for name, _ in arguments]
        with use():
            self.graph = Graph(ir.Module.create())
            location = ir.Location.name(proto.name or "main")
            with ir.InsertionPoint(self.graph.module.body), location:
                main = func.FuncOp("main", ([t.mlir() for _, t in arguments], []))
                locations = [ir.Location.name(name) for name, _ in arguments]
                block = ir.Block.create_at_start(main.regions[0], [t.mlir() for _, t in arguments], locations)
            scope = Scope(opsets=_opsets(self.model.proto.opset_import))
            for (name, t), argument in zip(arguments, block.arguments, strict=True):
                self._define(scope, name, OnnxValue(t, argument, name=name), "input")
            for name, array in frozen.items():
                self._define(scope, name, self.constant(array, name), "input")
            for name, (tensor, position) in initializers.items():
                self._define(scope, name, self._initializer(tensor, position), "initializer")
            if proto.sparse_initializer:
                self.failures.append(OnnxFailure("sparse initializer", proto.sparse_initializer[0].values.name))
            with ir.InsertionPoint(block):
                results = self.nodes(proto, scope)
                self._raise_failures()
                self._finish(self.arguments, proto, results)
            self._drop_unused()
            self.graph.verify(stage="import")
        return self.graph

    def _initializer(self, tensor: onnx.TensorProto, position: int) -> Item:
        try:
            return self.constant(fixed(self.model.array(tensor, position), tensor.name), tensor.name)
        except UnsupportedError as e:
            self.failures.append(OnnxFailure("initializer", tensor.name, e.message))
            return POISON

    def _finish(self, arguments: list[str], proto: onnx.GraphProto, results: list[Item]) -> None:
        """The return, and the names of arguments and results."""
        names = [o.name for o in proto.output]
        if not names:
            raise ModelError(f"{self.model.source} has no outputs", stage="import")
        for name, r in zip(names, results, strict=True):
            if not isinstance(r, OnnxValue):
                error = UnsupportedError(f"output {name!r} is not a tensor (sequence or optional)", stage="import")
                error.run_time = True
                raise error
        names += self.check_names()
        values = [self.materialize(r) for r in [*results, *(r for _, _, r in self.checks)]]
        func.ReturnOp(values)
        self.graph.sign(arguments, names)

    def check_names(self) -> list[str]:
        """What the outputs for `checks` are called."""
        return [indices.output_name(i, label, sizes) for i, (label, sizes, _) in enumerate(self.checks)]

    def _drop_unused(self) -> None:
        """Erase operators whose results nothing uses, and the constants that only they used."""
        used = set()
        for op in reversed(list(self.graph.operations())):
            if op.name != "func.return" and not any(True for r in op.results for _ in r.uses):
                op.erase()
            elif op.name == "tw.constant" and "symbol" in op.attributes:
                used.add(ir.StringAttr(op.attributes["symbol"]).value)
        self.graph.constants.keep_only(used)

    # ---- names ----

    def _define(self, scope: Scope, name: str, item: Item, what: str) -> None:
        if name in scope.names:
            raise ModelError(
                f"{self.model.source}: the name {name!r} of {what} is defined twice",
                stage="import",
                hint="every input, initializer and node output needs a name of its own",
            )
        scope.names[name] = item
        scope.pending.discard(name)

    def lookup(self, scope: Scope, name: str, reader: str) -> Item:
        """The value of a name; ModelError that says whether it is defined later or not at all."""
        if not name:
            return None
        found, item = scope.find(name)
        if found:
            return item
        inner: Scope | None = scope
        while inner is not None:
            if name in inner.pending:
                message = f"{name!r} is used before the node that defines it"
                raise ModelError(
                    message, stage="import", operator=reader, hint="the nodes form a cycle or are not in order"
                )
            inner = inner.parent
        raise ModelError(
            f"{name!r} is not an input, an initializer or the output of a node",
            stage="import",
            operator=reader,
            hint="the file may be incomplete (a missing initializer)",
        )

    # ---- graphs ----

    def nodes(self, graph: onnx.GraphProto, scope: Scope) -> list[Item]:
        """Import all nodes of a graph into `scope`, whose inputs are defined; gives the graph's outputs."""
        scope.pending = {o for node in graph.node for o in node.output if o}
        scope.nodes, scope.outputs = graph.node, [o.name for o in graph.output]
        for proto in graph.node:
            self.node(proto, scope)
        return [self.lookup(scope, o.name, "graph outputs") for o in graph.output]

    def subgraph(
        self,
        graph: onnx.GraphProto,
        arguments: Sequence[Item],
        outer: Scope,
        repeats: int = 1,
        condition: OnnxValue | None = None,
    ) -> list[Item]:
        """Import the body of an If, Loop or Scan in place, which is done so often; its results only count where the
        condition holds."""
        scope = outer.child(repeats)
        scope.condition = condition or outer.condition
        if len(graph.input) != len(arguments):
            raise ModelError(
                f"subgraph {graph.name!r} takes {len(graph.input)} inputs, not {len(arguments)}", stage="import"
            )
        for declared, item in zip(graph.input, arguments, strict=True):
            self._define(scope, declared.name, item, "subgraph input")
        for tensor in graph.initializer:
            if tensor.name not in scope.names:
                self._define(scope, tensor.name, self._initializer(tensor, -1), "initializer")
        return self.nodes(graph, scope)

    # ---- nodes ----

    def node(self, proto: onnx.NodeProto, scope: Scope) -> None:
        """Import one node and define its outputs."""
        if not proto.op_type:
            raise ModelError(
                f"{self.model.source}: a node has no operator", stage="import", operator=proto.name or None
            )
        domain = _domain(proto.domain)
        name = proto.name or f"{proto.op_type}_{next((o for o in proto.output if o), '')}"
        scope.at = proto
        node = OnnxNode(self, proto, scope, scope.prefix + name, scope.opsets.get(domain, 0))
        self._counter.add(node.label, not scope.depth)
        arguments = [self.lookup(scope, i, node.label) for i in proto.input]
        if any(isinstance(a, Poison) for a in arguments):
            outputs: Sequence[Item] = [POISON] * len(proto.output)
        else:
            outputs = self._import(node, domain, arguments)
        for i, output in enumerate(proto.output):
            if output:
                item = outputs[i] if i < len(outputs) else None
                if isinstance(item, OnnxValue) and not item.name:
                    item.name = output
                self._define(scope, output, item, f"an output of {node.label}")

    def _import(self, node: OnnxNode, domain: str, arguments: list[Item]) -> Sequence[Item]:
        proto, failed = node.proto, [POISON] * len(node.proto.output)
        local = self.functions.get((domain, proto.op_type))
        function = None if local is not None else find(domain, proto.op_type, node.opset)
        try:
            if local is not None:
                return self._call(node, local, arguments)
            if domain not in node.scope.opsets:
                raise OnnxNotImported(f"the model does not state the opset of domain {domain!r}")
            if function is not None:
                self._checker(node)
                return dialect.as_list(function(node, *arguments))
            return self.expand(node, arguments)
        except DataDependentNode as e:
            e.operator = e.operator or node.operator
            return self.asked(node, e)
        except OnnxNotImported as e:
            self.failures.append(OnnxFailure(f"{node.operator} (opset {node.opset})", node.name, str(e), e.needs))
            return failed
        except OpError as e:
            error = ModelError(str(e), stage="import", operator=node.label)
            error.size_condition = e.size_condition
            raise error from None
        except TilewrightError as e:
            e.operator = e.operator or node.label
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError) as e:
            why = f"{type(e).__name__}: {e}"
            raise ModelError(f"cannot be imported: {why}", stage="import", operator=node.label) from e

    def takes_partial(self, scope: Scope) -> bool:
        """Whether results of unknown size (`Partial`) can go into a scope."""
        return False

    def question(self, what: str) -> str:
        """A name for the number that a node is about to ask for; "" where answers are not possible."""
        return ""

    def answer(self, question: str, value: OnnxValue) -> np.ndarray | None:
        """The number that `value` is in this run, where the runtime computed it before; None if it did not."""
        return None

    def asked(self, node: OnnxNode, ask: DataDependentNode) -> Sequence[Item]:
        """What becomes of a node that cannot be imported before the model runs."""
        reason = str(ask)
        self.failures.append(OnnxFailure(f"{node.operator} (opset {node.opset})", node.name, reason, ask.needs, True))
        return [POISON] * len(node.proto.output)

    def expand(self, node: OnnxNode, arguments: list[Item]) -> Sequence[Item]:
        """Import a node by the function with which ONNX defines its operator; NotImported if there is none."""
        body = functions.definition(node, arguments)
        if body is None:
            first = oldest(_domain(node.proto.domain), node.proto.op_type)
            raise OnnxNotImported("" if first is None else f"it is read from opset {first} on")
        self._checker(node)
        return self._call(node, body, arguments)

    def _call(self, node: OnnxNode, body: onnx.FunctionProto, arguments: list[Item]) -> list[Item]:
        if node.scope.depth >= MAX_DEPTH:
            raise node.error(f"functions call each other more than {MAX_DEPTH} deep")
        if len(arguments) > len(body.input):
            raise node.error(f"function {body.name!r} takes {len(body.input)} inputs, not {len(arguments)}")
        opsets = {**node.scope.opsets, **_opsets(body.opset_import)}
        scope = Scope(opsets=opsets, prefix=f"{node.name}/", depth=node.scope.depth + 1, repeats=node.scope.repeats)
        read = [node.wants(i) and node.proto.output[i] in node.scope.needed for i in range(len(body.output))]
        scope.nodes, scope.outputs = body.node, [o for o, r in zip(body.output, read, strict=True) if r]
        scope.caller, scope.condition = node.scope, node.scope.condition
        scope.attributes = {a.name: a for a in body.attribute_proto}
        for a in node.proto.attribute:
            value = node.scope.attributes.get(a.ref_attr_name) if a.ref_attr_name else a
            if value is not None:
                scope.attributes[a.name] = value
        for i, name in enumerate(body.input):
            scope.names[name] = arguments[i] if i < len(arguments) else None
        scope.pending = {o for n in body.node for o in n.output if o}
        for proto in body.node:
            self.node(proto, scope)
        wanted = [node.wants(i) for i in range(len(body.output))]  # the body may leave out the others
        return [self.lookup(scope, o, node.label) if w else None for o, w in zip(body.output, wanted, strict=True)]

    # ---- emitting ----

    def constant(self, array: np.ndarray, name: str = "") -> OnnxValue:
        """A tensor known at import; it enters the IR when an operator uses it. Undecided for a table as long as a size
        that is not known."""
        if is_open(*map(decode, array.shape)):
            raise Undecided(f"a table of {' x '.join(str(decode(d)) for d in array.shape)} numbers is made ahead")
        return OnnxValue(from_array(array), array=array, name=name)

    def random_key(self) -> OnnxValue:
        """The argument that is another number in every run; @main gets it when it is first asked for."""
        self.draws += 1
        if self._key is None:
            t = Type((), "i32")
            block = self.graph.block
            self._key = OnnxValue(
                t, block.add_argument(t.mlir(), ir.Location.name(random_seed.KEY)), name=random_seed.KEY
            )
            self.arguments.append(random_seed.KEY)
        return self._key

    def materialize(self, value: OnnxValue) -> ir.Value:
        """The value in the IR; a constant is appended at its first use."""
        if value.ssa is None:
            assert value.array is not None
            location = ir.Location.name(value.name or "constant")
            if holds_sizes(value.array):
                return sizes_as_tensor(value.array, location)
            value.ssa = self.graph.constant(value.array, value.name or "c", location)
        return value.ssa

    def emit(self, node: OnnxNode, mnemonic: str, values: Sequence[OnnxValue | None], attrs: dict[str, Any]) -> Any:
        """One `tw` operator: folded if its operands are small and known, else appended to the graph."""
        cls = dialect.OPERATORS[mnemonic]
        full = {**cls.attributes, **attrs}
        types = [addressable(t) for t in dialect.infer(cls, [None if v is None else v.type for v in values], full)]
        present = [v for v in values if v is not None]
        later: list[Callable[[], np.ndarray]] | None = None
        if all(v.constant for v in present) and _closed(present, types):
            arrays = _Evaluation(cls, values, full, types)
            small = mnemonic not in KEPT and _small([*(v.type for v in present), *types])
            if small and all(v.array is not None for v in present):
                with _left_to_a_run(present):
                    out = [self.constant(arrays(i), node.name) for i in range(len(types))]
                    return out if cls.multiple else out[0]
            later = [partial(arrays, i) for i in range(len(types))]
        operands = [None if v is None else self.materialize(v) for v in values]
        results = dialect.create_typed(cls, operands, full, types, node.location)
        out = [OnnxValue(type_of(r), r, later=later[i] if later else None) for i, r in enumerate(results)]
        return out if cls.multiple else out[0]

    def _raise_failures(self) -> None:
        if not self.failures:
            return
        seen = {f.node for f in self.failures}
        for name, op in functions.without_importer(self.model.proto, set(self.functions)):
            if name not in seen:
                self.failures.append(OnnxFailure(op, name))
        raise report(self.failures, self.model.source)


class _Evaluation:
    """The reference results of an operator on known operands, computed once and only if asked for."""

    def __init__(
        self, cls: type[dialect.Operator], values: Sequence[OnnxValue | None], attrs: dict, types: list[Type]
    ) -> None:
        self.cls, self.values, self.attrs, self.types = cls, values, attrs, types
        self.results: list[np.ndarray] | None = None

    def __call__(self, i: int) -> np.ndarray:
        if self.results is None:
            with np.errstate(all="ignore"):
                arrays = [None if v is None else open_array(v.known()) for v in self.values]
                opened = any(a is not None and a.dtype == object for a in arrays)
                reference = self.cls.reference
                if opened:
                    check_computed(self.cls.mnemonic, arrays, self.attrs)
                    reference = REFERENCES.get(self.cls.mnemonic, reference)
                out = reference(*arrays, **self.attrs)
            out = list(out) if self.cls.multiple else [out]
            self.results = [
                np.asarray(a).astype(NUMPY[t.dtype], copy=False) for a, t in zip(out, self.types, strict=True)
            ]
            self.values = ()
        return self.results[i]


def _closed(operands: Sequence[OnnxValue], types: Sequence[Type]) -> bool:
    """Whether an operator on constants has results that are known now: of known size, and integers made of integers
    where these encode sizes."""
    if is_open(*(d for t in types for d in t.dims)):
        return False
    return not any(is_float(t.dtype) for t in types) or not any(
        v.array is not None and holds_sizes(v.array) for v in operands
    )


@contextlib.contextmanager
def _left_to_a_run(operands: Sequence[OnnxValue]) -> Iterator[None]:
    """What only a run can tell of operands that hold sizes (whether one is less than a number, an element of a table at
    one) ends this block, and the operator becomes one of the graph."""
    try:
        yield
    except (Undecided, IndexError, TypeError):
        if not any(v.array is not None and holds_sizes(v.array) for v in operands):
            raise


def _small(types: Sequence[Type]) -> bool:
    """Whether tensors of these types are shape arithmetic rather than weights."""
    largest = max((t.size for t in types), default=0)
    return largest <= (INLINE_ELEMENTS if any(is_float(t.dtype) for t in types) else FOLD_ELEMENTS)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _opsets(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {_domain(o.domain): o.version for o in imports}
