"""The walk over the graph of a `torch.export` program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...ir.graph import Graph
from ...ir.maker import Maker
from ...ir.types import Type, from_array, type_of
from ...runtime import noise
from ...support.errors import CompileError, TilewrightError
from . import arrays, families
from .node import DTYPES, FAILED, Failure, Node, NotImported, Tensor, dtype_of, place_of, report
from .registry import find

_ON_NUMBERS = {
    f: f.__name__
    for f in (
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.truediv,
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.pow, operator.and_,
        operator.or_, operator.not_, torch.sym_max, torch.sym_min, torch.sym_int, torch.sym_float, torch.sym_not,
    )
}  # fmt: skip


class Importer:
    """Imports a graph module: `inputs` are (name, type) of those placeholders that are arguments, `known` the arrays of
    the others. `sizes` has numbers for symbols of dimensions."""

    def __init__(self, inputs: Sequence[tuple[str, Type]], known: Mapping[str, Any], sizes: Mapping[Any, int]) -> None:
        families.load()
        self.make = Maker(inputs, "torch")
        self.known, self.sizes = known, sizes
        self.values: dict[torch.fx.Node, Any] = {}
        self.failures: list[Failure] = []
        self.draws = 0
        self.arguments = {n: Tensor(v, type_of(v)) for (n, _), v in zip(inputs, self.make.inputs, strict=True)}

    def run(self, module: torch.fx.GraphModule) -> list[Any]:
        """Import all nodes; what the graph returns. UnsupportedError lists all that cannot be imported."""
        results = self.walk(module, None)
        if self.failures:
            raise report(self.failures)
        return results

    def finish(self, outputs: Sequence[tuple[str, Tensor]]) -> Graph:
        return self.make.finish([(n, v.ssa) for n, v in outputs])

    def walk(self, module: torch.fx.GraphModule, given: Sequence[Any] | None) -> list[Any]:
        """The results of a graph; `given` are the values of its placeholders, by position, if it is part of another."""
        outer, self.values = self.values, {}
        places = iter(given or ())
        results: list[Any] = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node.name) if given is None else next(places)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(operator.attrgetter(node.target)(module))
            elif node.op == "output":
                results = list(self._value(node.args[0]))
            else:
                self.values[node] = self._call(node)
        self.values = outer
        return results

    def _placeholder(self, name: str) -> Any:
        if name in self.arguments:
            return self.arguments[name]
        return self._constant(self.known[name], name)

    def _attribute(self, found: Any) -> Any:
        if not isinstance(found, torch.Tensor):
            return found  # the graph of a branch or of a loop
        return self._constant(arrays.view(found), "constant")

    def _constant(self, array: Any, name: str) -> Any:
        if not isinstance(array, np.ndarray):
            return array  # a number or None
        return Tensor(self.make.constant(array, name), from_array(array))

    def key(self) -> Tensor:
        """The input that is another number in every run; the graph gets it when it is first asked for."""
        if noise.KEY not in self.arguments:
            t = Type((), "i32")
            self.arguments[noise.KEY] = Tensor(self.make.input(noise.KEY, t), t)
        return self.arguments[noise.KEY]

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
        if node.target in _ON_NUMBERS:
            return FAILED if failed else node.target(*args)  # type: ignore[operator]
        name = self._name(node)
        function = self._function(node, name)
        try:
            if function is None:
                raise NotImported
            return FAILED if failed else self._import(node, name, function, args, kwargs)
        except NotImported as e:
            self.failures.append(Failure(name, place_of(node), str(e)))
            return FAILED
        except TilewrightError as e:
            e.operator = f"{name} ({place_of(node)})" if place_of(node) else name
            raise

    @staticmethod
    def _name(node: torch.fx.Node) -> str:
        """``aten.add.Tensor``, or the name of an operator of others."""
        called = node.target
        if isinstance(called, torch._ops.OpOverload):
            return str(called).removesuffix(".default")
        return f"{getattr(called, '__module__', '')}.{getattr(called, '__name__', called)}"

    @staticmethod
    def _function(node: torch.fx.Node, name: str) -> Callable[..., Any] | None:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return find(f"higher_order.{node.target.name()}")
        return find(name.removeprefix("aten."))

    def _import(
        self, node: torch.fx.Node, name: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        n = Node(self, node, name, self._results(node))
        made = function(n, *args, **kwargs)
        return self._checked(n, name, made)

    def _results(self, node: torch.fx.Node) -> list[Type | None]:
        """The types that PyTorch gives the results."""
        value = node.meta.get("val")
        return [self._type(v) for v in (value if isinstance(value, (list, tuple)) else [value])]

    def _type(self, value: Any) -> Type | None:
        if not isinstance(value, torch.Tensor):
            return None
        return Type(tuple(self.size(d) for d in value.shape), dtype_of(value.dtype))

    def size(self, d: Any) -> int:
        """A dimension as a number."""
        if isinstance(d, int):
            return d
        found = d.node.expr.xreplace(self.sizes)
        if not found.is_number:
            raise NotImported(f"a dimension is {found}, known at run time only")
        return int(found)

    def _checked(self, n: Node, name: str, made: Any) -> Any:
        """Results of the dtype that PyTorch says; CompileError for another shape, which is a fault of the function."""
        several = isinstance(made, (list, tuple))
        out = []
        for v, t in zip(made if several else [made], n.results, strict=False):
            if isinstance(v, Tensor) and t is not None:
                if v.shape != t.shape:
                    raise CompileError(f"its import gives {v.type}, PyTorch {t}", stage="import", operator=name)
                v = n.cast(v, t.dtype)
            out.append(v)
        return out if several else out[0]


def _has_failed(x: Any) -> bool:
    return any(map(_has_failed, x)) if isinstance(x, list) else x is FAILED


__all__ = ["DTYPES", "Importer"]
