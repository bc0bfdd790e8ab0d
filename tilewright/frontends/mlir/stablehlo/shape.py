"""Moving elements without computing: reshape, broadcast, transpose, slice, join, pad, count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...moves import fill
from .node import HloEmitter, HloOp
from .registry import hlo
from .values import HloTensor


@hlo("reshape", by_parts=True)
def reshape(n: HloOp, x: HloTensor) -> HloTensor:
    return n.reshape(x, n.shape)


@hlo("broadcast_in_dim", by_parts=True)
def broadcast_in_dim(n: HloOp, x: HloTensor) -> HloTensor:
    return spread(n, x, n.numbers("broadcast_dimensions"), n.shape)


def spread(n: HloEmitter, x: HloTensor, dims: Sequence[int], shape: Sequence[int]) -> HloTensor:
    """x in a shape of which it has the dimensions `dims`, in this order."""
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    x = n.transpose(x, order)
    sizes = [1] * len(shape)
    for i in order:
        sizes[dims[i]] = x.shape[order.index(i)]
    made: HloTensor = n.expand(n.reshape(x, sizes), shape)
    return made


@hlo("transpose", by_parts=True)
def transpose(n: HloOp, x: HloTensor) -> HloTensor:
    return n.transpose(x, n.numbers("permutation"))


@hlo("reverse", by_parts=True)
def reverse(n: HloOp, x: HloTensor) -> HloTensor:
    return flip(n, x, n.numbers("dimensions"))


def flip(n: HloEmitter, x: HloTensor, axes: Sequence[int]) -> HloTensor:
    """x backwards along some axes."""
    for axis in axes:
        if x.shape[axis] > 1:
            x = n.slice(x, axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


@hlo("slice", by_parts=True)
def slice_(n: HloOp, x: HloTensor) -> HloTensor:
    starts, steps = n.numbers("start_indices"), n.numbers("strides")
    if x.pieces and n.shape.count(0) == 0 and all(s == 1 for s in steps):
        axis = x.axis
        others = all(i == axis or n.shape[i] == x.shape[i] for i in range(x.rank))
        if others:
            return n.narrowed(x, axis, starts[axis], n.shape[axis])
    if x.shape == n.shape:
        return x
    return n("slice", x, starts=tuple(starts), sizes=n.shape, steps=tuple(steps))


@hlo("concatenate", by_parts=True)
def concatenate(n: HloOp, *xs: HloTensor) -> HloTensor:
    return n.concat(xs, n.number("dimension"))


@hlo("pad", by_parts=True)
def pad(n: HloOp, x: HloTensor, value: HloTensor) -> HloTensor:
    return padded(
        n, x, value, n.numbers("edge_padding_low"), n.numbers("edge_padding_high"), n.numbers("interior_padding")
    )


def padded(
    n: HloEmitter, x: HloTensor, value: HloTensor, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> HloTensor:
    """x with elements added at the ends of dimensions (negative numbers: taken away) and between neighbours."""
    for axis, between in enumerate(interior):
        if between and x.shape[axis] > 1:
            x = _spaced(n, x, value, axis, between)
    added = [max(v, 0) for v in low], [max(v, 0) for v in high]
    if any(added[0]) or any(added[1]):
        x = filled(n, x, value, *added)
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        if before < 0 or after < 0:
            first = max(-before, 0)
            x = n.slice(x, axis, first, x.shape[axis] - first - max(-after, 0))
    return x


def filled(n: HloEmitter, x: HloTensor, value: HloTensor, low: Sequence[int], high: Sequence[int]) -> HloTensor:
    """x with `value`, which may be computed, around it."""
    number = None if value.array is None else value.array.reshape(()).item()
    if number is not None and x.dtype != "i1":
        made: HloTensor = n("pad", x, low=tuple(low), high=tuple(high), value=fill(x.dtype, number))
        return made
    shape = [a + d + b for a, d, b in zip(low, x.shape, high, strict=True)]
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        parts = [x]
        for count, at in ((before, 0), (after, 1)):
            if count:
                rest = [*shape[:axis], count, *x.shape[axis + 1 :]]
                parts.insert(at * len(parts), n.expand(value, rest))
        x = n.concat(parts, axis)
    return x


def _spaced(n: HloEmitter, x: HloTensor, value: HloTensor, axis: int, between: int) -> HloTensor:
    """x with `between` new elements between neighbours along an axis."""
    size = x.shape[axis]
    x = n.unsqueeze(x, axis + 1)
    high = [between if i == axis + 1 else 0 for i in range(x.rank)]
    x = filled(n, x, value, [0] * x.rank, high)
    x = n.reshape(x, (*x.shape[:axis], size * (between + 1), *x.shape[axis + 2 :]))
    made: HloTensor = n.slice(x, axis, 0, size * (between + 1) - between)
    return made


@hlo("iota")
def iota(n: HloOp) -> HloTensor:
    axis = n.number("iota_dimension")
    return spread(n, n.places(n.shape[axis], n.dtype), [axis], n.shape)


@hlo("get_dimension_size")
def get_dimension_size(n: HloOp, x: HloTensor) -> HloTensor:
    return n.constant(np.array(x.shape[n.number("dimension")]), n.dtype)
