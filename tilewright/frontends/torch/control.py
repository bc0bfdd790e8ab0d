"""Control flow: branches are computed both, loops with a known number of steps unrolled; other loops stay loops of the
graph, and branches that have them branches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch_mlir import ir

from ...ir.types import type_of
from ..regions import NotMade, either, loop
from .node import FAILED, FxNode, FxTensor
from .registry import aten


@aten("higher_order.cond")
def cond(n: FxNode, condition: Any, yes: Any, no: Any, operands: Sequence[Any]) -> list[Any]:
    if isinstance(condition, bool):
        return n.importer.walk(yes if condition else no, operands)
    branches = [partial(n.importer.walk, branch, operands) for branch in (yes, no)]
    try:
        results, made = either(n.make, lambda: truth(n, condition).ssa, branches, partial(values_of, n))
        for r in results:
            values_of(n, r)
    except NotMade:
        return [FAILED] * len(n.results)
    if made is not None:
        return [FxTensor(v, type_of(v)) for v in made]
    where = truth(n, condition)
    return [a if a is b else n("where", where, a, b) for a, b in zip(*results, strict=True)]


def truth(n: FxNode, condition: FxTensor) -> FxTensor:
    return n.reshape(n.cast(condition, "i1"), ())


def values_of(n: FxNode, results: Sequence[Any]) -> list[ir.Value]:
    """The values of tensors; NotMade if there are others."""
    if not all(isinstance(v, FxTensor) for v in results):
        n.need(n.importer.failures, "with values that are no tensors")
        raise NotMade
    return [v.ssa for v in results]


@aten("higher_order.while_loop")
def while_loop(n: FxNode, condition: Any, body: Any, carried: Sequence[Any], operands: Sequence[Any] = ()) -> list[Any]:
    n.need(n.importer.loops, "which depends on data")

    def walk(graph: Any, state: Sequence[Any]) -> list[ir.Value]:
        return values_of(n, n.importer.walk(graph, [*state, *operands]))

    def step(state: Sequence[ir.Value]) -> list[ir.Value]:
        made = walk(body, [FxTensor(v, type_of(v)) for v in state])
        return [*walk(condition, [FxTensor(v, type_of(v)) for v in made]), *made]

    try:
        (going,) = walk(condition, carried)
        return [FxTensor(v, type_of(v)) for v in loop(n.make, going, values_of(n, carried), step)]
    except NotMade:
        return [FAILED] * len(n.results)


@aten("higher_order.map_impl")
def map_(n: FxNode, body: Any, xs: Sequence[FxTensor], operands: Sequence[Any]) -> list[FxTensor]:
    n.known(xs[0].shape[0])
    rows = [n.importer.walk(body, [*_at(n, xs, i), *operands]) for i in range(xs[0].shape[0])]
    return [n.concat([n.unsqueeze(v, 0) for v in column], 0) for column in zip(*rows, strict=True)]


@aten("higher_order.scan")
def scan(
    n: FxNode, body: Any, carried: Sequence[FxTensor], xs: Sequence[FxTensor], operands: Sequence[Any] = ()
) -> list[Any]:
    n.known(xs[0].shape[0])
    state, rows = list(carried), []
    for i in range(xs[0].shape[0]):
        results = n.importer.walk(body, [*state, *_at(n, xs, i), *operands])
        state = results[: len(state)]
        rows.append(results[len(state) :])
    return [*state, *(n.concat([n.unsqueeze(v, 0) for v in column], 0) for column in zip(*rows, strict=True))]


def _at(n: FxNode, xs: Sequence[FxTensor], i: int) -> list[FxTensor]:
    return [n.reshape(n.slice(x, 0, i, 1), x.shape[1:]) for x in xs]


@aten("higher_order.wrap_with_set_grad_enabled", "higher_order.wrap_with_autocast", "higher_order.wrap",
      "higher_order.invoke_subgraph", "higher_order.hints_wrapper", "higher_order.tag_activation_checkpoint",
      "higher_order.wrap_activation_checkpoint", "higher_order.strict_mode")  # fmt: skip
def wrapped(n: FxNode, *arguments: Any, **_: object) -> list[Any]:
    """A graph in a graph, behind what decides how PyTorch runs it; one that is called by name has that before its
    operands."""
    body = next(i for i, a in enumerate(arguments) if hasattr(a, "graph"))
    operands = [a for a in arguments[body + 1 :] if not isinstance(a, (str, dict))]
    if len(operands) == 1 and isinstance(operands[0], list):
        operands = operands[0]
    return n.importer.walk(arguments[body], operands)


@aten("_assert_scalar")
def assert_scalar(n: FxNode, condition: Any, message: str) -> None:
    """A condition of sizes, which holds for all of them: others are refused where they are computed."""
    n.need(condition is not False, f"it fails for all sizes: {message}")


@aten("_assert_async", "_assert_async.msg", "_assert_tensor_metadata", "complex._assert_tensor_metadata",
      "sym_constrain_range", "sym_constrain_range_for_size", "_functional_assert_async.msg")  # fmt: skip
def nothing(n: FxNode, *_: object, **__: object) -> None:
    """What the program expects of its inputs is not checked."""


@aten("sym_size.int", "sym_stride.int", "sym_numel", "sym_storage_offset")
def size(n: FxNode, x: FxTensor, dim: int = 0) -> int:
    value = n.node.meta["val"]
    return value if isinstance(value, int) else n.importer.size(value)
