"""The reference interpreter of level 2: evaluates a graph operator by operator with the operators' NumPy references."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import Type, is_float, numpy_dtype
from ..support.dtypes import DTYPES
from ..support.errors import CompileError, InputError
from .rewrite import names, uses

#: what an operator's reference is given (its name, operands, attributes)
Change = Callable[[str, list[Any], Mapping[str, Any]], list[Any]]

#: attributes that name the dtype of a result
_DTYPE_ATTRIBUTES = ("to", "dtype")


def interpret(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    *,
    float64: bool = False,
    keep: Collection[str] = (),
    change: Change | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of a level-2 graph, by name, for arrays by input name.

    ``float64=True`` computes in double precision throughout: inputs, constants and the results of casts to smaller
    floats are all promoted. ``keep`` names source nodes (as in the locations) whose first result is returned as well,
    under that name. ``change`` gives other operands to an operator's reference (`driver.quantized_tolerance`).
    Intermediate arrays are freed after their last use.

    Raises InputError if a name, shape or dtype does not fit the graph, CompileError (naming the operator) if a
    reference fails or gives another shape than the operator's type.

    >>> from tilewright.ir.context import parse
    >>> text = '''func.func @main(%x: tensor<2xf32> {tw.name = "x"}) -> (tensor<2xf32> {tw.name = "y"}) {
    ...   %0 = "tw.softmax"(%x) : (tensor<2xf32>) -> tensor<2xf32>
    ...   return %0 : tensor<2xf32> }'''
    >>> interpret(Graph(parse(text)), {"x": np.zeros(2, np.float32)})
    {'y': array([0.5, 0.5], dtype=float32)}
    """
    with use():
        values: dict[ir.Value, np.ndarray] = {}
        for argument, (name, t) in zip(graph.block.arguments, graph.inputs(), strict=True):
            values[argument] = _promote(_input(inputs, name, t), float64)
        _no_unknown(inputs, [n for n, _ in graph.inputs()])
        run = _Run(graph, float64, keep, change)
        outputs = run.block(graph.block, values)
        return run.kept | {name: array for (name, _), array in zip(graph.outputs(), outputs, strict=True)}


@dataclass
class _Run:
    """The evaluation of the operators of a graph; `kept`: results by the names in `keep`."""

    graph: Graph
    float64: bool
    keep: Collection[str]
    change: Change | None
    kept: dict[str, np.ndarray] = field(default_factory=dict)

    def block(self, block: ir.Block, values: dict[ir.Value, np.ndarray]) -> list[np.ndarray]:
        """What a block returns, where `values` are those that it reads; they are freed after their last use."""
        *operations, end = [op.operation for op in block.operations]
        last = {v: op for op in (*operations, end) for v in uses(op)}
        for op in operations:
            results = self._results(op, values)
            values.update((r, array) for r, array in zip(op.results, results, strict=True) if r in last)
            self.kept.update((name, results[0]) for name in (names(op) if self.keep else ()) if name in self.keep)
            for v in dict.fromkeys(uses(op)):
                if last[v] == op:
                    del values[v]
        return [values[v] for v in end.operands]

    def _results(self, op: ir.Operation, values: dict[ir.Value, np.ndarray]) -> list[np.ndarray]:
        operands: list[Any] = [values.get(v) for v in op.operands]
        if not dialect.has_regions(op):
            return evaluate(self.graph, op, operands, float64=self.float64, change=self.change)
        blocks = [region.blocks[0] for region in op.regions]
        going, *state = operands
        if op.name == "tw.if":
            return self.block(blocks[0 if np.all(going) else 1], dict(values))
        while np.all(going):
            given = zip(blocks[0].arguments, state, strict=True)
            going, *state = self.block(blocks[0], values | dict(given))
        return state


def evaluate(
    graph: Graph,
    op: ir.Operation,
    operands: Sequence[np.ndarray | None],
    *,
    float64: bool = False,
    change: Change | None = None,
) -> list[np.ndarray]:
    """The results of one `tw` operation; `operands` holds one array an SSA operand."""
    name = dialect.mnemonic(op)
    if name is None:
        raise CompileError(f"cannot interpret {op.name}: only level-2 graphs can be", stage="interpret")
    if name == "constant":
        array = graph.constant_value(op.results[0])
        assert array is not None
        return [_promote(array, float64)]
    cls, attrs = dialect.operator(op), dialect.attributes(op)
    if float64:
        attrs |= {k: "f64" for k in _DTYPE_ATTRIBUTES if isinstance(attrs.get(k), str) and is_float(attrs[k])}
    rest = iter(operands)
    arguments = [None if v is None else next(rest) for v in dialect.arguments(op)]
    if change is not None:
        arguments = change(name, arguments, attrs)
    try:
        with np.errstate(all="ignore"):
            results = [np.asarray(r) for r in dialect.as_list(cls.reference(*arguments, **attrs))]
    except Exception as e:
        raise CompileError(
            f"the reference of tw.{name} failed: {type(e).__name__}: {e}", stage="interpret", operator=_place(op)
        ) from e
    return [_checked(op, _promote(a, float64), r, float64) for a, r in zip(results, op.results, strict=True)]


def _checked(op: ir.Operation, array: np.ndarray, result: ir.Value, float64: bool) -> np.ndarray:
    t = Type(array.shape, DTYPES.get(array.dtype, str(array.dtype)))
    shape = ir.RankedTensorType(result.type)
    expected = Type(
        tuple(d if shape.is_dynamic_dim(i) else shape.shape[i] for i, d in enumerate(array.shape))
        if shape.rank == array.ndim
        else tuple(shape.shape),
        "f64" if float64 and is_float(str(shape.element_type)) else str(shape.element_type),
    )
    if t != expected:
        message = f"the reference of {op.name} gave {t}, its type is {expected}"
        raise CompileError(message, stage="interpret", operator=_place(op))
    return array


def _place(op: ir.Operation) -> str:
    return f'{op.name} "{", ".join(names(op))}"'


def _promote(array: np.ndarray, float64: bool) -> np.ndarray:
    if float64 and is_float(DTYPES.get(array.dtype, "")):
        return array.astype(np.float64, copy=False)
    return array


def _input(inputs: Mapping[str, np.ndarray], name: str, t: Type) -> np.ndarray:
    if name not in inputs:
        raise InputError(f"input {name!r} ({t}) was not given", hint=f"given: {', '.join(inputs) or 'nothing'}")
    array = np.asarray(inputs[name])
    fits = array.ndim == t.rank and all(d is None or d == n for d, n in zip(t.shape, array.shape, strict=True))
    if not fits:
        raise InputError(f"input {name!r} has shape {tuple(array.shape)}, the model wants {t}")
    if array.dtype != numpy_dtype(t.dtype):
        raise InputError(
            f"input {name!r} has dtype {array.dtype}, the model wants {numpy_dtype(t.dtype)}",
            hint=f"convert it with .astype('{numpy_dtype(t.dtype)}')",
        )
    return array


def _no_unknown(inputs: Mapping[str, np.ndarray], known: list[str]) -> None:
    extra = [n for n in inputs if n not in known]
    if extra:
        raise InputError(
            f"the model has no input {', '.join(map(repr, extra))}", hint=f"its inputs: {', '.join(known)}"
        )
