"""A graph of ATen operators as `torch.compile` hands it to a backend: what goes in and out, and its level-2 graph.

Tensors may lie in memory in any order of their dimensions (channels last, transposed weights): the program takes and
gives them as they lie, and the graph begins and ends with transposes. Results that are views of arguments or of each
other stay views.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from ...ir.graph import Graph
from ...ir.types import Type
from ...support.errors import UnsupportedError
from ...support.sizes import is_open, ordered
from . import arrays
from .fx_sizes import number_of, numbers_at
from .importer import TorchImporter
from .node import DTYPES, FAILED, FxTensor
from .symbols import NoFormula


@dataclass(frozen=True)
class StridedLayout:
    """How a tensor lies: sizes, strides and offset in elements; `order` has its dimensions from the outermost in memory
    to the innermost, None where elements are not dense."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    order: tuple[int, ...] | None

    @staticmethod
    def of(value: torch.Tensor, number: Callable[[Any], int]) -> StridedLayout:
        """The form of one of PyTorch's; not dense if its strides are open sizes that are not used."""
        sizes = tuple(map(number, value.shape))
        try:
            strides, offset = tuple(map(number, value.stride())), number(value.storage_offset())
        except NoFormula:
            return StridedLayout(value.dtype, sizes, (), 0, None)
        return StridedLayout(value.dtype, sizes, strides, offset, dense_order(sizes, strides))

    def at(self, value: torch.Tensor, number: Callable[[Any], int]) -> StridedLayout:
        """The same for sizes that are known, with the dimensions in the order that they have for all."""
        sizes, strides = tuple(map(number, value.shape)), tuple(map(number, value.stride()))
        return StridedLayout(value.dtype, sizes, strides, number(value.storage_offset()), self.order)

    @property
    def is_plain(self) -> bool:
        """Whether the last dimension is the innermost, and so on."""
        return self.order == tuple(range(len(self.sizes)))

    def memory_type(self) -> Type:
        """The type under which the program sees the memory of a dense tensor."""
        order = self.order if self.order is not None else range(len(self.sizes))
        return Type(tuple(self.sizes[i] for i in order), DTYPES[self.dtype])


def dense_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """
    >>> dense_order((2, 3, 4), (12, 4, 1)), dense_order((2, 3, 4), (12, 1, 3)), dense_order((2, 3), (6, 2))
    ((0, 1, 2), (0, 2, 1), None)
    """
    plain = tuple(range(len(sizes)))
    if not math.prod(sizes):
        return plain
    for order in (plain, tuple(ordered(plain, key=lambda i: -strides[i]))):
        step = 1
        for i in reversed(order):
            if sizes[i] != 1 and strides[i] != step:
                break
            step *= sizes[i]
        else:
            return order
    return None


@dataclass(frozen=True)
class GraphOutput:
    """What the graph returns in one place. `kind`: "value" (a number or None), "argument" or "output" (of this number),
    itself or, with a form, a view of it that begins so many elements after it."""

    kind: str
    what: Any
    view: StridedLayout | None = None


@dataclass(frozen=True)
class GraphSignature:
    """What the call of a program has to know: the arguments that it reads, with their numbers and how they lie; what it
    gives; what the graph returns."""

    inputs: Sequence[tuple[int, StridedLayout]]
    outputs: Sequence[StridedLayout]
    results: Sequence[GraphOutput]


class FxGraph:
    """A module of ATen operators with the sizes of its symbols, which may be dynamic; `frozen` has
    tensors that are built in, by the number of their placeholder."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        sizes: Mapping[sympy.Symbol, int | sympy.Expr],
        frozen: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self.module, self.sizes = module, sizes
        self.placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.known: dict[str, Any] = {}
        #: the arguments that the program reads: their numbers, and how they lie
        self.inputs: list[tuple[int, StridedLayout]] = []
        self._names: list[str] = []
        #: what the program gives, and what the graph returns
        self.outputs: list[StridedLayout] = []
        self.results: list[GraphOutput] = []
        #: what these are of: the tensors of PyTorch's, and of each result its node and the one that it is a view of
        self._made: list[torch.Tensor] = []
        self._origins: list[tuple[Any, torch.fx.Node | None]] = []
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                self.known[node.name] = self._argument(value)
            elif not node.users:
                self.known[node.name] = FAILED  # nobody asks
            elif value.dtype not in DTYPES or value.layout != torch.strided or value.is_conj() or value.is_neg():
                self.known[node.name] = FAILED
            elif i in (frozen or {}):
                self.known[node.name] = arrays.view((frozen or {})[i])
            elif value.device.type != "cpu":
                raise UnsupportedError(f"tensors on {value.device} are not supported", stage="import")
            else:
                self.inputs.append((i, StridedLayout.of(value, self._number)))
                self._names.append(node.name)

    def _argument(self, value: object) -> Any:
        """An argument that is a number; FAILED for one that are not used, which is no open size."""
        try:
            return number_of(value, self.sizes)
        except NoFormula:
            return FAILED

    def _number(self, d: Any) -> int:
        found: int = number_of(d, self.sizes)
        return found

    @property
    def layout(self) -> GraphSignature:
        return GraphSignature(self.inputs, self.outputs, self.results)

    def at(self, sizes: Mapping[sympy.Symbol, int | sympy.Expr]) -> GraphSignature:
        """The layout for some sizes, of a graph whose sizes are open."""

        number = numbers_at(sizes)
        inputs = [(i, form.at(self.placeholders[i].meta["val"], number)) for i, form in self.inputs]
        outputs = [form.at(value, number) for form, value in zip(self.outputs, self._made, strict=True)]
        results = []
        for r, (node, root) in zip(self.results, self._origins, strict=True):
            if r.kind == "value" and isinstance(node, torch.fx.Node):
                r = GraphOutput("value", number(node.meta.get("val")))
            elif r.view is not None and root is not None:
                begin = r.view.at(root.meta["val"], number)
                r = GraphOutput(r.kind, r.what, _from(r.view.at(node.meta["val"], number), begin))
            results.append(r)
        return GraphSignature(inputs, outputs, results)

    def graph(self, importer: type[TorchImporter] = TorchImporter) -> tuple[Graph | None, TorchImporter]:
        """The level-2 graph, None if it computes nothing; and the importer. UnsupportedError lists all operators that
        cannot be imported, unless the importer puts up with them."""
        types = [(name, form.memory_type()) for name, (_, form) in zip(self._names, self.inputs, strict=True)]
        numbers: dict[sympy.Symbol, sympy.Expr] = {
            s: v if is_open(v) else int(v) if sympy.sympify(v).is_Integer else float(v) for s, v in self.sizes.items()
        }
        walk = importer(types, self.known, numbers)
        for name, (_, form) in zip(self._names, self.inputs, strict=True):
            if form.order is not None and not form.is_plain:
                walk.arguments[name] = _permuted(walk, walk.arguments[name], _inverse(form.order))
        values = walk.values_of(self.module)
        if walk.failures:
            return None, walk
        nodes = list(next(n for n in self.module.graph.nodes if n.op == "output").args[0])
        outputs = self._returned(walk, nodes, values)
        return (walk.finish(outputs) if outputs else None), walk

    def _returned(
        self, walk: TorchImporter, nodes: Sequence[Any], values: Mapping[torch.fx.Node, Any]
    ) -> list[tuple[str, FxTensor]]:
        """Fills `outputs` and `results`; names and values of what the program gives."""
        self.outputs, self.results, self._made, self._origins = [], [], [], []
        made: list[tuple[str, FxTensor]] = []
        numbers: dict[torch.fx.Node, int] = {}
        places = {n: i for i, n in enumerate(self.placeholders)}

        def result(r: GraphOutput, node: Any, root: torch.fx.Node | None = None) -> None:
            self.results.append(r)
            self._origins.append((node, root))

        for node in nodes:
            if not isinstance(node, torch.fx.Node):
                result(GraphOutput("value", node), node)
                continue
            if not isinstance(node.meta.get("val"), torch.Tensor):
                result(GraphOutput("value", values[node]), node)
                continue
            root = root_of(node)
            form, begin = (StridedLayout.of(n.meta["val"], self._number) for n in (node, root))
            if root in places:
                result(GraphOutput("argument", places[root], None if root is node else _from(form, begin)), node, root)
                continue
            if begin.order is None:
                root, begin = node, form
            if root not in numbers:
                numbers[root] = len(made)
                value = values[root]
                if begin.order is not None and not begin.is_plain:
                    value = _permuted(walk, value, begin.order)
                made.append((f"output{len(made)}", value))
                self.outputs.append(begin)
                self._made.append(root.meta["val"])
            result(GraphOutput("output", numbers[root], None if root is node else _from(form, begin)), node, root)
        return made


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory this one is a view of, itself if it is none."""
    while (base := _viewed(node)) is not None and _dtype(base) == _dtype(node):
        node = base
    return node


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    if node.target is operator.getitem:
        call = node.args[0]
        return _viewed(call) if isinstance(call, torch.fx.Node) else None
    view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    return node.args[0] if view and node.args and isinstance(node.args[0], torch.fx.Node) else None


def _dtype(node: torch.fx.Node) -> Any:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def _from(form: StridedLayout, begin: StridedLayout) -> StridedLayout:
    """A view by what it begins after the tensor that it is a view of."""
    return StridedLayout(form.dtype, form.sizes, form.strides, form.offset - begin.offset, form.order)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def _permuted(walk: TorchImporter, x: FxTensor, permutation: Sequence[int]) -> FxTensor:
    made = walk.make("transpose", x.ssa, permutation=tuple(permutation))
    return FxTensor(made, Type(tuple(x.shape[i] for i in permutation), x.dtype))


__all__ = ["StridedLayout", "FxGraph", "GraphSignature", "GraphOutput"]
