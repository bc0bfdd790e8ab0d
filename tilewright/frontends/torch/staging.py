"""Partitioning of PyTorch programs into compiled subgraphs and host operators (NumPy, SciPy), for `runtime.staged`.

`TorchSource` is what `runtime.staged` asks. The nodes are divided by what they wait for: a part has those that need no
result of the host, then the operators on the host run, then the next part follows. Sizes that depend on data are known
when what has them is there: a part is made for them.

Complex tensors are pairs of numbers everywhere but inside of functions on the host.
"""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch_mlir import ir

from ...graph.cut import divide
from ...ir.types import NUMPY, from_array
from ...runtime import random_seed
from ...runtime.parts import DynamicInfo, Entry, Source, StoredSource, plain
from ...support import host_operators as host
from ...support.errors import CompileError, UnsupportedError
from ...support.host_plan import Action, BodyInfo, SubgraphPlan, Tree
from . import arrays
from .importer import TorchImporter, host_function
from .node import COMPLEX, DTYPES, FxTensor, is_complex, report
from .program import TorchProgram

if TYPE_CHECKING:
    import sympy

#: what an action is called, as an operator of `support.host_operators`
KIND = "torch"


class TorchSource(Source):
    """See `runtime.parts.Source`. UnsupportedError if SciPy is missing."""

    def __init__(self, program: TorchProgram) -> None:
        if importlib.util.find_spec("scipy") is None:
            raise UnsupportedError(
                "operators of this program are computed by SciPy, which is not installed",
                stage="import",
                hint='pip install "tilewright[torch]"',
            )
        self.program, self.graph = program, program.exported.graph
        self.module = program.exported.graph_module
        self.nodes = [n for n in self.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
        self.number = {n: i for i, n in enumerate(self.nodes)}
        self.outputs = program.call.outputs(program.call.returned)

    @property
    def source(self) -> TorchProgram:
        return self.program

    # ---- names ----

    def names(self, node: torch.fx.Node) -> tuple[str, ...]:
        """The entries of what a node gives."""
        if node.op == "call_function" and node.target is operator.getitem:
            return (f"{producer(node).name}.{node.args[1]}",)
        value = node.meta.get("val")
        return (
            tuple(f"{node.name}.{i}" for i in range(len(value))) if isinstance(value, (list, tuple)) else (node.name,)
        )

    def known(self, node: torch.fx.Node) -> bool:
        """Whether a node is a constant of the program."""
        return node.op == "get_attr" or (node.op == "placeholder" and node.name in self.program.known)

    # ---- what the runtime asks ----

    def signature(self) -> tuple[list[DynamicInfo], list[DynamicInfo]]:
        metas = {n.name: n.meta.get("val") for n in self.graph.nodes if n.op == "placeholder"}
        inputs = [_info(n, metas[n]) for n in self.program.inputs]
        return inputs, [_info(name, n.meta.get("val")) for name, n in self.outputs]

    def body(self, body: str) -> BodyInfo:
        outputs = tuple(self.names(n)[0] for _, n in self.outputs)
        return BodyInfo("main", tuple(self.program.inputs), outputs, len(self.nodes))

    def reads(self, body: str, todo: tuple[int, ...]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for i in todo:
            for n in self.nodes[i].all_input_nodes:
                if not self.known(n) and self.number.get(producer(n), -1) not in todo:
                    found.update(dict.fromkeys(self.names(n)))
        return tuple(found)

    def plan(
        self, body: str, todo: tuple[int, ...], frozen: frozenset[str], entries: Mapping[str, Entry]
    ) -> SubgraphPlan:
        split = divide(
            todo,
            lambda i: {producer(n) for n in self.nodes[i].all_input_nodes},
            lambda i: (self.nodes[i],),
            lambda i: host_function(self.nodes[i]) is not None,
        )
        return TorchSubgraphImporter(self, split, frozen, entries).plan()

    def store(self) -> StoredSource:
        raise UnsupportedError(
            "programs of PyTorch that run operators on the host are not saved yet",
            stage="save",
            hint="compile the module in the process that runs it",
        )


def producer(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose results an item is taken of."""
    while node.op == "call_function" and node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        node = source
    return node


def _info(name: str, meta: Any) -> DynamicInfo:
    if not isinstance(meta, torch.Tensor):
        return DynamicInfo(name, (), "f64" if isinstance(meta, (float, torch.SymFloat)) else "i64")
    dims = tuple(d if isinstance(d, int) else None for d in meta.shape)
    pairs = meta.dtype in COMPLEX
    return DynamicInfo(name, (*dims, 2) if pairs else dims, COMPLEX[meta.dtype] if pairs else DTYPES[meta.dtype])


class TorchSubgraphImporter(TorchImporter):
    """Imports the native nodes of a stage."""

    def __init__(
        self,
        source: TorchSource,
        split: tuple[list[int], list[int], list[int]],
        frozen: frozenset[str],
        entries: Mapping[str, Entry],
    ) -> None:
        self.source, self.frozen = source, frozen
        self.native, self.on_host_now = ([source.nodes[i] for i in part] for part in split[:2])
        self.later = tuple(split[2])
        self.entries = {n: plain(e) for n, e in entries.items()}
        self.constants: list[np.ndarray] = []
        #: nodes outside of the native part that it reads
        outside = {n for node in self.native for n in node.all_input_nodes} - set(self.native)
        self.outside = {n: None for n in source.graph.nodes if n in outside or n in {producer(o) for o in outside}}
        read = [name for n in self.outside if not source.known(n) for name in source.names(n) if _is_tensor(n)]
        inputs = {n: from_array(self.entries[n]) for n in read if self.entries.get(n) is not None}
        super().__init__(list(inputs.items()), source.program.known, self._symbols(source))

    def _symbols(self, source: TorchSource) -> dict[sympy.Symbol, int]:
        """Sizes that depend on data, as what is there tells them."""
        found: dict[sympy.Symbol, int] = {}
        for node in source.graph.nodes:
            values = node.meta.get("val")
            several = isinstance(values, (list, tuple))
            for name, value in zip(source.names(node), values if several else [values], strict=False):
                entry = self.entries.get(name)
                if entry is None:
                    continue
                sizes = value.shape if isinstance(value, torch.Tensor) else [value]
                actual = entry.shape if isinstance(value, torch.Tensor) else [entry.item()]
                for d, size in zip(sizes, actual, strict=False):
                    if isinstance(d, (torch.SymInt, torch.SymFloat)) and d.node.expr.is_symbol:
                        found[d.node.expr] = size
        return found

    def plan(self) -> SubgraphPlan:
        source = self.source
        native = set(self.native)
        for node in source.graph.nodes:
            if node in native:
                self.values[node] = self._call(node)
            elif node in self.outside or producer(node) in native:
                self.values[node] = self._outside(node)
        if self.failures:
            raise report(self.failures)
        results, values = self._results_wanted()
        actions = tuple(map(self._action, self.on_host_now))
        graph = self.make.finish([(f"result{i}", v) for v, i in values.items()]) if values else None
        feeds = tuple(n for n in self.make.names if n != random_seed.KEY)
        numbers = self.frozen | {n.name for n in self.on_host_now if not _is_tensor(n)}
        frozen = numbers.intersection(source.reads("main", self.later))
        return SubgraphPlan(graph, feeds, results, self.constants, actions, self.later, frozen)

    def _outside(self, node: torch.fx.Node) -> Any:
        """The value of a node that is not in the native subgraph of this stage."""
        source = self.source
        if node.op == "get_attr":
            return self._attribute(operator.attrgetter(str(node.target))(source.module))
        if node.op == "placeholder" and source.known(node):
            return self._constant(self.known[node.name], node.name)
        if node.op == "call_function" and node.target is operator.getitem and producer(node) in self.values:
            return self.values[producer(node)][node.args[1]]
        found = [self._entry(name, v) for name, v in zip(source.names(node), _values(node), strict=True)]
        return found if isinstance(node.meta.get("val"), (list, tuple)) else found[0]

    def _entry(self, name: str, meta: Any) -> Any:
        if name in self.arguments:
            return self.arguments[name]
        entry = self.entries.get(name)
        return entry.item() if entry is not None and not isinstance(meta, torch.Tensor) else None

    # ---- what the part gives ----

    def _results_wanted(self) -> tuple[dict[str, Tree], dict[ir.Value, int]]:
        """How the runtime gets what the host, later stages and the caller want of this one."""
        source, native = self.source, set(self.native)
        later = [source.nodes[i] for i in self.later]
        wanted = [n for node in self.on_host_now for n in node.all_input_nodes]
        wanted += [n for node in later for n in node.all_input_nodes if not source.known(n)]
        wanted += [n for _, n in source.outputs]
        results: dict[str, Tree] = {}
        values: dict[ir.Value, int] = {}
        for node in wanted:
            if producer(node) in native or (source.known(node) and source.names(node)[0] not in self.entries):
                made = self.values.get(node, self.values.get(producer(node)))
                if source.known(node):
                    made = self._array(node)
                items = made if isinstance(made, list) else [made]
                for name, item in zip(source.names(node), items, strict=False):
                    results[name] = self._tree(item, values)
        return results, values

    def _array(self, node: torch.fx.Node) -> Any:
        """A constant of the program, as an array."""
        if node.op == "placeholder":
            return self.known[node.name]
        found = operator.attrgetter(str(node.target))(self.source.module)
        return arrays.view(found) if isinstance(found, torch.Tensor) else found

    def _tree(self, item: Any, values: dict[ir.Value, int]) -> Tree:
        if item is None:
            return ["none"]
        if not isinstance(item, FxTensor):  # a number
            self.constants.append(np.asarray(item))
            return ["const", len(self.constants) - 1]
        if isinstance(item.ssa.owner, ir.Block):
            return ["in", self.make.names[ir.BlockArgument(item.ssa).arg_number]]
        return ["out", values.setdefault(item.ssa, len(values))]

    # ---- what the host does ----

    def _action(self, node: torch.fx.Node) -> Action:
        tensors: dict[str, int] = {}

        def slot(x: Any) -> Any:
            if isinstance(x, torch.fx.Node):
                (name,) = self.source.names(x)
                return Slot(tensors.setdefault(name, len(tensors)), is_complex(x.meta.get("val")))
            return [slot(v) for v in x] if isinstance(x, (list, tuple)) else x

        attributes = {
            "called": node,
            "args": [slot(a) for a in node.args],
            "kwargs": {k: slot(v) for k, v in node.kwargs.items()},
        }
        outputs = self.source.names(node)
        return Action(KIND, self._name(node), tuple(tensors), outputs, attributes, (), self.source.number[node])


@dataclass(frozen=True)
class Slot:
    """The placeholder of an array among the arguments of a host function."""

    index: int
    pairs: bool


@host.operator(KIND)
def run_on_host(label: str, *tensors: np.ndarray, called: torch.fx.Node, args: Any, kwargs: Any) -> list[Any]:
    """The results of a node by its function on the host, in the types that PyTorch says."""

    def given(x: Any) -> Any:
        if isinstance(x, Slot):
            return _joined(tensors[x.index]) if x.pairs else tensors[x.index]
        return [given(v) for v in x] if isinstance(x, list) else x

    function = host_function(called)
    assert function is not None
    with np.errstate(all="ignore"):
        made = function(*map(given, args), **{k: given(v) for k, v in kwargs.items()})
    several = isinstance(called.meta.get("val"), (list, tuple))
    return [_checked(label, r, v) for r, v in zip(made if several else [made], _values(called), strict=True)]


def _joined(pairs: np.ndarray) -> np.ndarray:
    """Pairs of numbers as complex ones."""
    wide = np.ascontiguousarray(pairs, np.float32 if pairs.dtype == np.float16 else pairs.dtype)
    made: np.ndarray = wide.view(np.complex64 if wide.dtype == np.float32 else np.complex128)[..., 0]
    return made


def _checked(label: str, result: Any, meta: Any) -> Any:
    """A result of the dtype that PyTorch says; CompileError for another shape, which is a fault of the function."""
    if not isinstance(meta, torch.Tensor):
        return None if result is None else np.asarray(result)
    pairs = meta.dtype in COMPLEX
    array = np.asarray(result)
    expected = [d if isinstance(d, int) else None for d in meta.shape]
    if len(expected) != array.ndim or any(e not in (None, d) for e, d in zip(expected, array.shape, strict=True)):
        raise CompileError(f"its function gives {array.shape}, PyTorch {expected}", stage="run", operator=label)
    if not pairs:
        return np.ascontiguousarray(array, NUMPY[DTYPES[meta.dtype]]).reshape(array.shape)
    return np.ascontiguousarray(np.stack([array.real, array.imag], -1), NUMPY[COMPLEX[meta.dtype]])


def _values(node: torch.fx.Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _is_tensor(node: torch.fx.Node) -> bool:
    return any(isinstance(v, torch.Tensor) for v in _values(node))


__all__ = ["TorchSource"]
