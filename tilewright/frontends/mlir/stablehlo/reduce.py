"""Reductions with any body: those for which there is an operator by that, others by pairs of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_mlir import ir

from .elementwise import is_neutral
from .node import HloEmitter, HloOp, real
from .registry import hlo
from .values import HloTensor

Body = Callable[[Sequence[HloTensor], Sequence[HloTensor]], list[HloTensor]]
#: operators for bodies that are one operator of numbers, of truth values
REDUCTIONS = {"add": "reduce_sum", "multiply": "reduce_prod", "maximum": "reduce_max", "minimum": "reduce_min"}
OF_BOOLS = {
    "add": "reduce_any", "maximum": "reduce_any", "or": "reduce_any",
    "multiply": "reduce_all", "minimum": "reduce_all", "and": "reduce_all",
}  # fmt: skip


def simple(block: ir.Block) -> str | None:
    """The name of the operator that a body of two numbers is; None if it is another body."""
    operations = [op.operation for op in block.operations]
    if len(operations) != 2 or len(block.arguments) != 2:
        return None
    first, end = operations
    own = len(first.operands) == 2 and {*first.operands} == {*block.arguments} and len(first.results) == 1
    if not own or end.operands[0] != first.results[0]:
        return None
    return str(first.name.removeprefix("stablehlo."))


def body_of(n: HloOp) -> Body:
    """The body of an operator as a function of tensors."""
    block = n.block()

    def body(xs: Sequence[HloTensor], ys: Sequence[HloTensor]) -> list[HloTensor]:
        return n.importer.lifted(block, [*xs, *ys])

    return body


@hlo("reduce")
def reduce(n: HloOp, *operands: HloTensor) -> Any:
    """Of argmax, too, whose body has two operands: values and places."""
    count = len(operands) // 2
    xs, inits = [real(x) for x in operands[:count]], [real(x) for x in operands[count:]]
    axes = n.numbers("dimensions")
    if 0 in xs[0].shape:
        return [n.expand(i, t.dims) for i, t in zip(inits, n.types, strict=True)]
    name, body = simple(n.block()), body_of(n)
    own = (OF_BOOLS if xs[0].dtype == "i1" else REDUCTIONS).get(name or "")
    if count == 1 and own is not None:
        # the dimensions are kept at first: patterns of softmax and of norms have them so
        whole = n(own, xs[0], axes=tuple(axes), keepdims=True) if axes else xs[0]
        made = [n.reshape(whole, n.shape)]
        return made if is_neutral(name, inits[0]) else body(inits, made)
    for axis in sorted(axes, reverse=True):  # in the order of the elements
        xs = folded(n, xs, axis, body)
    made = [n.reshape(x, t.dims) for x, t in zip(xs, n.types, strict=True)]
    return [n.expand(v, t.dims) for v, t in zip(body(inits, made), n.types, strict=True)]


def folded(n: HloEmitter, xs: Sequence[HloTensor], axis: int, body: Body) -> list[HloTensor]:
    """Neighbours along an axis combined, until one is left; the axis stays, of size 1."""
    found = list(xs)
    while (size := found[0].shape[axis]) > 1:
        half = size // 2
        sides = [[n.slice(x, axis, at, half, 2) for x in found] for at in (0, 1)]
        made = body(*sides)
        made = [n.expand(m, s.shape) for m, s in zip(made, sides[0], strict=True)]
        if size % 2:
            made = [n.concat([m, n.slice(x, axis, size - 1, 1)], axis) for m, x in zip(made, found, strict=True)]
        found = made
    return found
