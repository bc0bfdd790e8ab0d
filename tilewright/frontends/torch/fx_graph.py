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
from . import arrays
from .importer import Importer
from .node import DTYPES, FAILED, Tensor


@dataclass(frozen=True)
class Form:
    """How a tensor lies: sizes, strides and offset in elements; `order` has its dimensions from the outermost in memory
    to the innermost, None where elements are not dense."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    order: tuple[int, ...] | None

    @staticmethod
    def of(value: torch.Tensor, number: Callable[[Any], int]) -> Form:
        sizes, strides = tuple(map(number, value.shape)), tuple(map(number, value.stride()))
        return Form(value.dtype, sizes, strides, number(value.storage_offset()), dense_order(sizes, strides))

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
    for order in (plain, tuple(sorted(plain, key=lambda i: -strides[i]))):
        step = 1
        for i in reversed(order):
            if sizes[i] != 1 and strides[i] != step:
                break
            step *= sizes[i]
        else:
            return order
    return None


@dataclass(frozen=True)
class Result:
    """What the graph returns in one place. `kind`: "value" (a number or None), "argument" or "output" (of this number),
    itself or, with a form, a view of it that begins so many elements after it."""

    kind: str
    what: Any
    view: Form | None = None


class FxGraph:
    """A module of ATen operators with the sizes that its symbols stand for; `frozen` has tensors that are built in, by
    the number of their placeholder."""

    def __init__(
        self, module: torch.fx.GraphModule, sizes: Mapping[Any, Any], frozen: Mapping[int, torch.Tensor] | None = None
    ) -> None:
        self.module, self.sizes = module, sizes
        self.placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.known: dict[str, Any] = {}
        #: the arguments that the program reads: their numbers, and how they lie
        self.inputs: list[tuple[int, Form]] = []
        self._names: list[str] = []
        #: what the program gives, and what the graph returns
        self.outputs: list[Form] = []
        self.results: list[Result] = []
        for i, node in enumerate(self.placeholders):
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                self.known[node.name] = number_of(value, sizes)
            elif value.dtype not in DTYPES or value.layout != torch.strided or value.is_conj() or value.is_neg():
                self.known[node.name] = FAILED
            elif i in (frozen or {}):
                self.known[node.name] = arrays.view((frozen or {})[i])
            elif value.device.type != "cpu":
                raise UnsupportedError(f"tensors on {value.device} are not supported", stage="import")
            else:
                self.inputs.append((i, Form.of(value, self._number)))
                self._names.append(node.name)

    def _number(self, d: Any) -> int:
        return int(number_of(d, self.sizes))

    def graph(self, importer: type[Importer] = Importer) -> tuple[Graph | None, Importer]:
        """The level-2 graph, None if it computes nothing; and the importer. UnsupportedError lists all operators that
        cannot be imported, unless the importer puts up with them."""
        types = [(name, form.memory_type()) for name, (_, form) in zip(self._names, self.inputs, strict=True)]
        numbers: dict[Any, Any] = {
            s: int(v) if sympy.sympify(v).is_Integer else float(v) for s, v in self.sizes.items()
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
        self, walk: Importer, nodes: Sequence[Any], values: Mapping[torch.fx.Node, Any]
    ) -> list[tuple[str, Tensor]]:
        """Fills `outputs` and `results`; names and values of what the program gives."""
        self.outputs, self.results = [], []
        made: list[tuple[str, Tensor]] = []
        numbers: dict[torch.fx.Node, int] = {}
        places = {n: i for i, n in enumerate(self.placeholders)}
        for node in nodes:
            if not isinstance(node, torch.fx.Node):
                self.results.append(Result("value", node))
                continue
            if not isinstance(node.meta.get("val"), torch.Tensor):
                self.results.append(Result("value", values[node]))
                continue
            root = root_of(node)
            form = Form.of(node.meta["val"], self._number)
            if root in places:
                begin = Form.of(root.meta["val"], self._number)
                self.results.append(Result("argument", places[root], None if root is node else _from(form, begin)))
                continue
            begin = Form.of(root.meta["val"], self._number)
            if begin.order is None:
                root, begin = node, form
            if root not in numbers:
                numbers[root] = len(made)
                value = values[root]
                if begin.order is not None and not begin.is_plain:
                    value = _permuted(walk, value, begin.order)
                made.append((f"output{len(made)}", value))
                self.outputs.append(begin)
            self.results.append(Result("output", numbers[root], None if root is node else _from(form, begin)))
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


def _from(form: Form, begin: Form) -> Form:
    return Form(form.dtype, form.sizes, form.strides, form.offset - begin.offset, form.order)


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def _permuted(walk: Importer, x: Tensor, permutation: Sequence[int]) -> Tensor:
    made = walk.make("transpose", x.ssa, permutation=tuple(permutation))
    return Tensor(made, Type(tuple(x.shape[i] for i in permutation), x.dtype))


# ---- sizes -----------------------------------------------------------------------------------------------------------


def number_of(value: Any, sizes: Mapping[Any, Any]) -> Any:
    """A number, or a symbolic one under these sizes; what is no number as it is. UnsupportedError if a size is missing.

    >>> number_of(3, {})
    3
    """
    if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    found = value.node.expr.xreplace(dict(sizes))
    if not (found.is_number or found.is_Boolean):
        raise UnsupportedError(f"the size {found} is known at run time only", stage="import")
    return bool(found) if isinstance(value, torch.SymBool) else value.node.pytype(found)


def symbols_of(module: torch.fx.GraphModule) -> dict[Any, tuple[int, int | None]]:
    """Where the symbols of a graph are found in its arguments: the number of the argument, and of its dimension, None
    where the argument itself is the number. UnsupportedError for a symbol that is in none of them."""
    places: dict[Any, tuple[int, int | None]] = {}
    needed: set[Any] = set()
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for i, node in enumerate(placeholders):
        value = node.meta.get("val")
        dims: Sequence[tuple[int | None, Any]] = [(None, value)]
        if isinstance(value, torch.Tensor):
            dims = list(enumerate(value.shape))
            needed |= {s for d in (*value.shape, *value.stride()) for s in _symbols(d)}
        for axis, d in dims:
            needed |= set(_symbols(d))
            if isinstance(d, (torch.SymInt, torch.SymFloat)) and d.node.expr.is_Symbol:
                places.setdefault(d.node.expr, (i, axis))
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for v in value if isinstance(value, (list, tuple)) else [value]:
            for d in v.shape if isinstance(v, torch.Tensor) else [v]:
                needed |= {s for s in _symbols(d) if not _unbacked(s)}
    if missing := needed - set(places):
        names = ", ".join(sorted(map(str, missing)))
        raise UnsupportedError(f"the sizes {names} are in no argument of the graph", stage="import")
    return {s: places[s] for s in sorted(needed, key=str)}


def _symbols(d: Any) -> Sequence[Any]:
    return list(d.node.expr.free_symbols) if isinstance(d, (torch.SymInt, torch.SymFloat, torch.SymBool)) else ()


def _unbacked(symbol: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(symbol))


def hints_of(module: torch.fx.GraphModule) -> dict[Any, Any]:
    """What the symbols of a graph stood for when it was traced, where that is known."""
    found: dict[Any, Any] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for d in value.shape if isinstance(value, torch.Tensor) else [value]:
            if not isinstance(d, (torch.SymInt, torch.SymFloat)):
                continue
            for s in d.node.expr.free_symbols:
                hint = d.node.shape_env.backed_var_to_val.get(s) if d.node.shape_env is not None else None
                if hint is not None:
                    found[s] = hint
    return found


__all__ = ["Form", "FxGraph", "Result", "hints_of", "number_of", "symbols_of"]
