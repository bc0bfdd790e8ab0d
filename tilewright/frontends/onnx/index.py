"""Gather and scatter. Constant positions that are outside are errors (`bounds`)."""

from __future__ import annotations

import numpy as np

from .bounds import within
from .registry import onnx_op


@onnx_op("Gather", since=1)
def gather(n, x, indices):
    within(n, indices, x.shape[n.axis(0, x.rank)])
    return n("gather", x, indices, axis=n.attr("axis", 0))


@onnx_op("GatherElements", since=11)
def gather_elements(n, x, indices):
    within(n, indices, x.shape[n.axis(0, x.rank)])
    return n("gather_elements", x, indices, axis=n.attr("axis", 0))


@onnx_op("GatherND", since=11)
def gather_nd(n, x, indices):
    batch = n.attr("batch_dims", 0)
    result = n("gather_nd", x, indices, batch=batch)
    within(n, indices, *x.shape[batch : batch + indices.shape[-1]])
    return result


@onnx_op("ScatterND", since=11)
def scatter_nd(n, x, indices, updates):
    result = n("scatter_nd", x, indices, updates, reduction=n.attr("reduction", "none"))
    within(n, indices, *x.shape[: indices.shape[-1]])
    return result


@onnx_op("Scatter", since=9)
@onnx_op("ScatterElements", since=11)
def scatter_elements(n, x, indices, updates):
    within(n, indices, x.shape[n.axis(0, x.rank)])
    return n("scatter_elements", x, indices, updates, axis=n.attr("axis", 0), reduction=n.attr("reduction", "none"))


@onnx_op("OneHot", since=9)
def one_hot(n, indices, depth, values):
    return n("one_hot", indices, values, depth=int(n.scalar(depth, "depth")), axis=n.attr("axis", -1))


@onnx_op("Trilu", since=14)
@onnx_op("Trilu", since=1, domain="com.microsoft")
def trilu(n, x, k=None):
    upper = bool(n.attr("upper", 1))
    if k is None or k.known() is not None:
        return n("trilu", x, upper=upper, k=n.scalar(k, "k", 0))
    distance = n("sub", n.count(x.shape[-1]), n.unsqueeze(n.count(x.shape[-2]), 1))
    kept = n("greater_equal" if upper else "less_equal", distance, n.reshape(k, ()))
    return n("where", kept, x, n.zero(x))


@onnx_op("NonZero", since=9)
def non_zero(n, x):
    array = x.known()
    if array is None:
        found, count = n("non_zero", x if x.rank else n.reshape(x, (1,)))
        return [n.partial(found, count, 1)]
    return n.constant(np.stack(np.nonzero(np.atleast_1d(array))), "i64")


@onnx_op("Compress", since=9)
def compress(n, x, condition):
    array = condition.known()
    axis = n.attr("axis")
    if axis is None:
        x, axis = n.reshape(x, (x.type.size,)), 0
    axis = axis % x.rank
    if condition.type.size > x.shape[axis]:
        raise n.error(f"the condition has {condition.type.size} elements, dimension {axis} has {x.shape[axis]}")
    if array is None:
        found, count = n("non_zero", condition)
        picked = n("gather", x, n.reshape(found, (condition.type.size,)), axis=axis)
        return [n.partial(picked, count, axis)]
    return n("gather", x, n.constant(np.nonzero(array)[0], "i64"), axis=axis)


@onnx_op("Unique", since=11)
def unique(n, x):
    array, axis = x.known(), n.attr("axis")
    if array is None:
        raise n.needs(x, "the shape of its result depends on the data")
    values, first, inverse, counts = np.unique(array, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not n.attr("sorted", 1):  # in order of appearance
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values, first, counts, inverse = np.take(values, order, axis or 0), first[order], counts[order], rank[inverse]
    return [n.constant(values), *[n.constant(a, "i64") for a in (first, inverse, counts)]]


@onnx_op("TensorScatter", since=24)
def tensor_scatter(n, cache, update, start=None):
    """`update` written into a cache from a place of its own for every element of the batch."""
    axis, mode = n.axis(-2, cache.rank), n.attr("mode", "linear")
    if mode not in ("linear", "circular") or axis == 0:
        raise n.error(f"mode {mode!r} or axis {axis} is not possible")
    size, count, batch = cache.shape[axis], update.shape[axis], cache.shape[0]
    place = n.unsqueeze(n.count(size), 0)
    if start is not None:
        place = n("sub", place, n.reshape(n.cast(start, "i64"), (batch, 1)))
    if mode == "circular":
        place = n("mod", place, size)
    written = n("and", n("greater_equal", place, 0), n("less", place, count))
    shape = [d if i in (0, axis) else 1 for i, d in enumerate(cache.shape)]
    shape[0] = batch if start is not None else 1
    inside = n("min", n("max", place, 0), count - 1)
    at = n.expand(n.reshape(inside, shape), cache.shape)
    return n("where", n.reshape(written, shape), n("gather_elements", update, at, axis=axis), cache)
