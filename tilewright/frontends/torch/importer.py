"""The walk over the graph of a `torch.export` program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...ir.graph import Graph
from ...ir.graph_builder import Maker
from ...ir.types import Type, from_array, type_of
from ...runtime import random_seed
from ...support.errors import CompileError, TilewrightError, UnsupportedError
from ...support.sizes import Size, Undecided
from ..open_values import fixed
from . import arrays, families
from .node import (
    COMPLEX,
    DTYPES,
    FAILED,
    FxNode,
    FxTensor,
    ImportFailure,
    NotImported,
    RunTimeNumber,
    dtype_of,
    place_of,
    report,
    touches_complex,
)
from .registry import find, find_on_host
from .runtime_scalars import float_of
from .symbols import Known, NoFormula, formula_of, holds, size_of

_ON_NUMBERS = {
    f: f.__name__
    for f in (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.truediv,
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.pow, operator.and_,
        operator.or_, operator.not_, torch.sym_max, torch.sym_min, torch.sym_int, torch.sym_float, torch.sym_not,
        torch.sym_sum, torch.sym_sqrt,
    )
}  # fmt: skip


#: overloads that take what indices, or masks, choose
_INDEXING = ("aten.index.Tensor", "aten._unsafe_index.Tensor")


class TorchImporter:
    """Imports a graph module: `inputs` are (name, type) of those placeholders that are arguments, `known` the arrays of
    the others. `sizes` has numbers for symbols of dimensions."""

    #: whether what is made of the graph may run in parts
    loops = True

    def __init__(self, inputs: Sequence[tuple[str, Type]], known: Mapping[str, Any], sizes: Known) -> None:
        families.load()
        self.make = Maker(inputs, "torch")
        self.known, self.sizes = known, sizes
        self.values: dict[torch.fx.Node, Any] = {}
        self.failures: list[ImportFailure] = []
        #: nodes that run on the host, between native parts
        self.on_host: list[torch.fx.Node] = []
        self.draws = self.depth = 0
        self.arguments = {n: FxTensor(v, type_of(v)) for (n, _), v in zip(inputs, self.make.inputs, strict=True)}

    def run(self, module: torch.fx.GraphModule) -> list[Any]:
        """Import all nodes; what the graph returns. UnsupportedError lists all that cannot be imported, or says
        (`run_time`) that the program runs in parts, for some of its operators run on the host."""
        results = self.walk(module, None)
        if self.failures:
            raise report(self.failures)
        if self.on_host and self.make.controls:
            raise UnsupportedError(
                f"it has loops that depend on data, and operators that run on the host: {self._name(self.on_host[0])}",
                stage="import",
            )
        if self.on_host:
            names = ", ".join(sorted({self._name(n) for n in self.on_host}))
            error = UnsupportedError(f"these operators run on the host: {names}", stage="import")
            error.run_time = True
            raise error
        return results

    def finish(self, outputs: Sequence[tuple[str, FxTensor]]) -> Graph:
        return self.make.finish([(n, v.ssa) for n, v in outputs])

    def walk(self, module: torch.fx.GraphModule, given: Sequence[Any] | None) -> list[Any]:
        """The results of a graph; `given` are the values of its placeholders, by position, if it is part of another."""
        outer, self.values = self.values, {}
        self.depth += 1
        try:
            return self._nodes(module, given)
        finally:
            self.depth -= 1
            self.values = outer

    def values_of(self, module: torch.fx.GraphModule) -> Mapping[torch.fx.Node, Any]:
        """Import all nodes; the values of all of them. What cannot be imported is in `failures`."""
        self.values = {}
        self.depth = 1
        self._nodes(module, None)
        return self.values

    def _nodes(self, module: torch.fx.GraphModule, given: Sequence[Any] | None) -> list[Any]:
        places = iter(given or ())
        results: list[Any] = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node.name) if given is None else next(places)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(operator.attrgetter(node.target)(module))
            elif node.op == "output":
                found = self._value(node.args[0])
                results = found if isinstance(found, list) else [found]
            else:
                self.values[node] = self._call(node)
        return results

    def _placeholder(self, name: str) -> Any:
        if name in self.arguments:
            return self.arguments[name]
        return self._constant(self.known[name], name)

    def _attribute(self, found: Any) -> Any:
        if not isinstance(found, torch.Tensor):
            return found  # the graph of a branch or of a loop
        return self._constant(arrays.view(found), "constant")

    def _constant(self, array: np.ndarray, name: str) -> Any:
        if not isinstance(array, np.ndarray):
            return array  # a number or None
        return FxTensor(self.make.constant(fixed(array, name), name), from_array(array))

    def key(self) -> FxTensor:
        """The input that is another number in every run; the graph gets it when it is first asked for."""
        if random_seed.KEY not in self.arguments:
            t = Type((), "i32")
            self.arguments[random_seed.KEY] = FxTensor(self.make.input(random_seed.KEY, t), t)
        return self.arguments[random_seed.KEY]

    def draw(self) -> int:
        """The number of a node that draws random numbers."""
        self.draws += 1
        return self.draws

    # ---- nodes ----

    def _value(self, x: Any) -> Any:
        if isinstance(x, torch.fx.Node):
            return self.values[x]
        if isinstance(x, (list, tuple)):
            return [self._value(i) for i in x]
        return x

    def _call(self, node: torch.fx.Node) -> Any:
        args = [self._value(a) for a in node.args]
        kwargs = {k: self._value(v) for k, v in node.kwargs.items()}
        failed = _has_failed([args, list(kwargs.values())])
        if node.target is operator.getitem:
            return FAILED if failed else args[0][args[1]]
        name = self._name(node)
        try:
            if node.target in _ON_NUMBERS:
                return FAILED if failed else self._number(node, name, args)
            function = self._function(node, name)
            if function is None and host_function(node) is not None:
                return self._wait(node, nested=self.depth > 1)
            if function is None:
                raise NotImported("of complex tensors" if touches_complex(node) else "")
            return FAILED if failed else self._import(node, name, function, args, kwargs)
        except (NotImported, NoFormula) as e:
            return self._fail(node, name, str(e))
        except Undecided as e:
            return self._fail(node, name, e.message)
        except TypeError:
            if not _computed([args, list(kwargs.values())]):
                raise
            return self._fail(node, name, "of a number that is computed from sizes at run time")
        except TilewrightError as e:
            e.operator = f"{name} ({place_of(node)})" if place_of(node) else name
            raise

    def _fail(self, node: torch.fx.Node, name: str, why: str) -> Any:
        self.failures.append(ImportFailure(name, place_of(node), why))
        return FAILED

    def _number(self, node: torch.fx.Node, name: str, args: list[Any]) -> Any:
        """A number that the program computes: a size, or what PyTorch says of it; of floats a tensor."""
        if not _computed(args):
            return node.target(*args)  # type: ignore[operator]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if isinstance(value, torch.SymBool):
            return holds(formula_of(value), self.sizes)
        if isinstance(value, torch.SymFloat):
            return float_of(FxNode(self, node, name, [Type((), "f64")]), node.target, args)
        if value is None:
            raise NotImported("of sizes that are not known")
        return value

    @staticmethod
    def _name(node: torch.fx.Node) -> str:
        """``aten.add.Tensor``, or the name of an operator of others."""
        called = node.target
        if isinstance(called, torch._ops.OpOverload):
            return str(called).removesuffix(".default")
        return f"{getattr(called, '__module__', '')}.{getattr(called, '__name__', called)}"

    @staticmethod
    def _function(node: torch.fx.Node, name: str) -> Callable[..., Any] | None:
        return find(key_of(node, name))

    def _wait(self, node: torch.fx.Node, nested: bool) -> Any:
        """Placeholders for the results of a node that runs on the host, so that the rest is checked; FAILED where their
        types are not known yet."""
        if nested:
            raise NotImported("on the host, inside of a branch or a loop")
        if self.sizes:
            raise NotImported("on the host, while dimensions are open")
        self.on_host.append(node)
        try:
            types = self._results(node)
        except (NotImported, NoFormula, Undecided):
            return FAILED
        made = [None if t is None else FxTensor(self.make.input(f"{node.name}.{i}", t), t) for i, t in enumerate(types)]
        several = isinstance(node.meta.get("val"), (list, tuple))
        return made if several else FAILED if made[0] is None else made[0]

    def _import(
        self, node: torch.fx.Node, name: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if name == "aten.slice.Tensor":
            self._learn_size(node, *args)
        n = FxNode(self, node, name, self._results(node))
        made = function(n, *args, **kwargs)
        return self._checked(n, name, made)

    def _learn_size(
        self, node: torch.fx.Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
    ) -> None:
        """PyTorch gives a slice by numbers that depend on data a size of its own; here the numbers are known."""
        size = node.meta["val"].shape[dim]
        symbol = size.node.expr if isinstance(size, torch.SymInt) else None
        numbers = [x.shape[dim], *(v for v in (start, end) if v is not None)]
        if symbol is not None and symbol.is_symbol and symbol not in self.sizes and not _computed(numbers):
            self.sizes = {**self.sizes, symbol: len(range(numbers[0])[slice(start, end, step)])}

    def _results(self, node: torch.fx.Node) -> list[Type | None]:
        """The types that PyTorch gives the results."""
        value = node.meta.get("val")
        return [self._type(v) for v in (value if isinstance(value, (list, tuple)) else [value])]

    def _type(self, value: object) -> Type | None:
        if not isinstance(value, torch.Tensor):
            return None
        shape = tuple(self.size(d) for d in value.shape)
        if value.dtype in COMPLEX:
            return Type((*shape, 2), COMPLEX[value.dtype])
        return Type(shape, dtype_of(value.dtype))

    def size(self, d: int | torch.SymInt) -> int:
        """A dimension as a number or a size."""
        return d if isinstance(d, int) else size_of(formula_of(d), self.sizes)

    def _checked(self, n: FxNode, name: str, made: Any) -> Any:
        """Results of the dtype that PyTorch says; CompileError for another shape, which is a fault of the function."""
        several = isinstance(made, (list, tuple))
        out = []
        for v, t in zip(made if several else [made], n.results, strict=False):
            if isinstance(v, FxTensor) and t is not None:
                if v.shape != t.shape:
                    raise CompileError(f"its import gives {v.type}, PyTorch {t}", stage="import", operator=name)
                v = n.cast(v, t.dtype)
            out.append(v)
        return out if several else out[0]


def _computed(x: object) -> bool:
    """Whether one of the arguments is a number that is known at run time only."""
    return any(map(_computed, x)) if isinstance(x, list) else isinstance(x, Size | RunTimeNumber)


def key_of(node: torch.fx.Node, name: str) -> str:
    """What a node is registered as; `name` is its overload."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        called = next((str(a).removesuffix(".default") for a in node.args if isinstance(a, torch._ops.OpOverload)), "")
        return f"higher_order.{node.target.name()}{f'({called})' if called else ''}"
    name = name.removeprefix("aten.") + ("(mask)" if name in _INDEXING and _by_mask(node) else "")
    return ("complex." if touches_complex(node) else "") + name


def _by_mask(node: torch.fx.Node) -> bool:
    """Whether a node takes what masks choose: the size of its result depends on data."""
    indices = node.args[1]
    assert isinstance(indices, (list, tuple))
    values = [i.meta.get("val") for i in indices if isinstance(i, torch.fx.Node)]
    return any(isinstance(v, torch.Tensor) and v.dtype in (torch.bool, torch.uint8) for v in values)


def host_function(node: torch.fx.Node) -> Callable[..., Any] | None:
    """What computes a node on the host, None if nothing does."""
    name = key_of(node, TorchImporter._name(node))
    return find_on_host(name.removeprefix("complex."))


def _has_failed(x: object) -> bool:
    return any(map(_has_failed, x)) if isinstance(x, list) else x is FAILED


__all__ = ["DTYPES", "TorchImporter", "host_function"]
