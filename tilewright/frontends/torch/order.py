"""Sorting and selection: top-k, sorting, medians, running extremes, searching, modes."""

from __future__ import annotations

import math

import numpy as np

from ...ir.types import NUMPY
from .index import positions
from .node import FxNode, FxTensor
from .registry import aten


def _ordered(n: FxNode, x: FxTensor, axis: int, k: int, largest: bool) -> list[FxTensor]:
    """Values and places; types without an order are compared as another type."""
    if not x.rank:
        return [x, n.full((), 0, "i64")]
    if not math.prod(x.shape) or not k:
        shape = [k if i == axis else d for i, d in enumerate(x.shape)]
        return [n.full(shape, 0, x.dtype), n.full(shape, 0, "i64")]
    kind = "ui8" if x.dtype == "i1" else x.dtype
    values, places = n("top_k", n.cast(x, kind), k=k, axis=axis, largest=largest)
    return [n.cast(values, x.dtype), places]


@aten("topk")
def topk(n: FxNode, x: FxTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[FxTensor]:
    return _ordered(n, x, x.axis(dim), k, largest)


@aten("sort", "sort.stable")
def sort(
    n: FxNode, x: FxTensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> list[FxTensor]:
    axis = x.axis(dim)
    return _ordered(n, x, axis, x.shape[axis] if x.rank else 1, descending)


@aten("argsort", "argsort.stable")
def argsort(n: FxNode, x: FxTensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> FxTensor:
    return sort(n, x, dim, descending)[1]


@aten("kthvalue")
def kthvalue(n: FxNode, x: FxTensor, k: int, dim: int = -1, keepdim: bool = False) -> list[FxTensor]:
    axis = x.axis(dim)
    found = _ordered(n, x, axis, k if x.rank else 1, False)
    return [n.reshape(n.slice(v, axis, k - 1, 1) if x.rank else v, n.shape) for v in found]


@aten("median", "nanmedian", "median.dim", "nanmedian.dim")
def median(n: FxNode, x: FxTensor, dim: int | None = None, keepdim: bool = False) -> FxTensor | list[FxTensor]:
    """The lower one of two in the middle; with NaN among them NaN, or the median of the others."""
    if dim is None:
        x = n.reshape(x, (math.prod(x.shape),))
    n.need(math.prod(x.shape), "of nothing")
    if not x.rank:
        return [x, n.full((), 0, "i64")]
    axis = x.axis(dim or 0)
    size = x.shape[axis]
    values, at = _ordered(n, x, axis, size, False)
    middle = n.full([1 if i == axis else d for i, d in enumerate(x.shape)], (size - 1) // 2, "i64")
    if x.is_float:  # NaN stands at the end
        bad = n("reduce_sum", n.cast(n("is_nan", x), "i64"), axes=(axis,), keepdims=True)
        numbers = n("sub", n.full(bad.shape, size, "i64"), bad)
        if "nanmedian" in n.overload:
            middle = n("max", n("div", n("sub", numbers, 1), 2), 0)
        else:
            middle = n("where", n("greater", bad, 0), numbers, middle)
    found = [n.reshape(n("gather_elements", v, middle, axis=axis), n.shape) for v in (values, at)]
    return found[0] if dim is None else found


@aten("cummax", "cummin")
def running_extreme(n: FxNode, x: FxTensor, dim: int) -> list[FxTensor]:
    """In steps of 1, 2, 4 ...: the best of what lies so far back, or of what is known here. Of equal ones the last."""
    if not x.rank or not math.prod(x.shape):
        return [x, n.full(x.shape, 0, "i64")]
    axis, kept = x.axis(dim), x.dtype
    n.known(*x.shape)
    x = n.cast(x, "ui8") if kept == "i1" else x
    size, step = x.shape[axis], 1
    at = np.arange(size).reshape([-1 if i == axis else 1 for i in range(x.rank)])
    places, values = n.constant(np.broadcast_to(at, x.shape).astype(np.int64)), x
    while step < size:
        old, old_places = (
            n.concat([n.slice(v, axis, 0, step), n.slice(v, axis, 0, size - step)], axis) for v in (values, places)
        )
        better = n("greater" if n.overload.endswith("cummax") else "less", old, values)
        if x.is_float:
            better = n("or", better, n("and", n("is_nan", old), n("not", n("is_nan", values))))
        better = n("and", better, n.constant(np.broadcast_to(at >= step, x.shape).copy()))
        values, places = n("where", better, old, values), n("where", better, old_places, places)
        step *= 2
    return [n.cast(values, kept), places]


@aten("bucketize.Tensor", "searchsorted.Tensor")
def search(n: FxNode, first: FxTensor, second: FxTensor, *, out_int32: bool = False, right: bool = False,
           side: str | None = None, sorter: FxTensor | None = None) -> FxTensor:  # fmt: skip
    """How many boundaries are less than (or, from the right, not greater than) each element."""
    x, bounds = (first, second) if "bucketize" in n.overload else (second, first)
    if sorter is not None and 0 not in bounds.shape:
        bounds = n("gather_elements", bounds, positions(n, sorter), axis=bounds.rank - 1)
    n.need(bounds.dtype == x.dtype, "of two types")
    right = right or side == "right"
    if bounds.rank > 1:
        bounds = n.unsqueeze(bounds, bounds.rank - 1)
    x = n.unsqueeze(x, x.rank)
    if x.is_float:  # NaN comes after all
        below = n("not", n("less" if right else "less_equal", x, bounds))
    else:
        below = n("less_equal" if right else "less", bounds, x)
    return n("reduce_sum", n.cast(below, n.dtype), axes=(below.rank - 1,))


@aten("one_hot")
def one_hot(n: FxNode, x: FxTensor, num_classes: int = -1) -> FxTensor:
    n.need(num_classes >= 0, "with a number of classes that depends on the data")
    classes = n.cast(n.count(num_classes), x.dtype)
    return n.cast(n("equal", n.unsqueeze(x, x.rank), classes), "i64")


@aten("mode")
def mode(n: FxNode, x: FxTensor, dim: int = -1, keepdim: bool = False) -> list[FxTensor]:
    """The value that is there most often, the smallest one of several, and where it is last."""
    if not x.rank:
        return [x, n.full((), 0, "i64")]
    axis, kept = x.axis(dim), x.dtype
    n.known(x.shape[axis])
    last = [i for i in range(x.rank) if i != axis] + [axis]
    moved = n.transpose(n.cast(x, "ui8") if kept == "i1" else x, last)
    r = moved.rank
    n.need(moved.shape[-1], "of nothing")
    alike = n.cast(n("equal", n.unsqueeze(moved, r), n.unsqueeze(moved, r - 1)), "i64")
    count = n("reduce_sum", alike, axes=(r,))
    most = n("equal", count, n("reduce_max", count, axes=(r - 1,), keepdims=True))
    high = np.inf if moved.is_float else np.iinfo(NUMPY[moved.dtype]).max
    value = n("reduce_min", n("where", most, moved, n.full((), high, moved.dtype)), axes=(r - 1,), keepdims=True)
    places = n.count(moved.shape[-1])
    at = n("reduce_max", n("where", n("equal", moved, value), places, n.full((), -1, "i64")), axes=(r - 1,))
    return [n.cast(n.reshape(v, n.shape), t) for v, t in ((value, kept), (at, "i64"))]


@aten("nonzero_static")
def nonzero_static(n: FxNode, x: FxTensor, *, size: int, fill_value: int = -1) -> FxTensor:
    if not math.prod(n.shape):
        return n.full(n.shape, 0, "i64")
    if not math.prod(x.shape):
        return n.full(n.shape, fill_value, "i64")
    n.known(*x.shape, size)
    found, count = n("non_zero", x)
    rows = n.transpose(found, (1, 0))
    have = min(size, rows.shape[0])
    rows = n.slice(rows, 0, 0, have)
    if have < size:
        rows = n.concat([rows, n.full((size - have, rows.shape[1]), 0, "i64")], 0)
    there = n("less", n.constant(np.arange(size, dtype=np.int64)[:, None]), count)
    return n("where", there, rows, n.full((), fill_value, "i64"))
