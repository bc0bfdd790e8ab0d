"""Reading and writing at computed places: embedding, index, gather, scatter, sort."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.types import NUMPY
from .node import Node, Tensor
from .registry import aten


def positions(n: Node, x: Tensor) -> Tensor:
    """Indices of a type that operators take."""
    return x if x.dtype in ("i64", "i32") else n.cast(x, "i64")


@aten("embedding")
def embedding(n: Node, weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> Any:
    return n("gather", weight, positions(n, indices), axis=0)


@aten("index_select")
def index_select(n: Node, x: Tensor, dim: int, index: Tensor) -> Any:
    if not x.rank:
        return n.reshape(x, n.shape)
    if not math.prod(n.shape):
        return n.full(n.shape, 0, x.dtype)
    return n("gather", x, positions(n, n.reshape(index, (math.prod(index.shape),))), axis=x.axis(dim))


@aten("gather")
def gather(n: Node, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    if not math.prod(index.shape):
        return n.full(n.shape, 0, x.dtype)
    if not x.rank:
        return n.reshape(x, n.shape)
    if not index.rank:
        return n.reshape(n("gather_elements", x, positions(n, n.reshape(index, (1,))), axis=0), ())
    return n("gather_elements", x, positions(n, index), axis=x.axis(dim))


@aten("take")
def take(n: Node, x: Tensor, index: Tensor) -> Any:
    if not math.prod(n.shape):
        return n.full(n.shape, 0, x.dtype)
    return n("gather", n.reshape(x, (math.prod(x.shape),)), positions(n, index), axis=0)


def _together(n: Node, x: Tensor, indices: Sequence[Tensor | None]) -> tuple[Tensor, Tensor, int, list[int]]:
    """x with the indexed dimensions first, joint indices [..., k], where their dimensions go, how x was permuted."""
    n.need(all(i is None or i.dtype != "i1" for i in indices), "by a mask, whose result has a size of its own")
    at = [(axis, positions(n, i)) for axis, i in enumerate(indices) if i is not None]
    axes = [axis for axis, _ in at]
    order = axes + [i for i in range(x.rank) if i not in axes]
    shape = np.broadcast_shapes(*[i.shape for _, i in at])
    joint = n.concat([n.reshape(n.expand(n.cast(i, "i64"), shape), (*shape, 1)) for _, i in at], len(shape))
    side_by_side = axes == list(range(axes[0], axes[-1] + 1))
    return n.transpose(x, order), joint, axes[0] if side_by_side else 0, order


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(n: Node, x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype != "i1" and x.rank and math.prod(n.shape):
        return n("gather", x, positions(n, given[0]), axis=list(indices).index(given[0]))
    if not given:
        return x
    n.need(all(i.dtype != "i1" for i in given), "by a mask, whose result has a size of its own")
    if not math.prod(n.shape):
        return n.full(n.shape, 0, x.dtype)
    moved, joint, place, _ = _together(n, x, indices)
    made = n("gather_nd", moved, joint)
    count = joint.rank - 1  # the dimensions of the indices stand first: they go where the indexed ones were
    rest = list(range(count, made.rank))
    return n.transpose(made, [*rest[:place], *range(count), *rest[place:]])


@aten("index_put", "_unsafe_index_put")
def index_put(n: Node, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    given = [i for i in indices if i is not None]
    values = n.cast(values, x.dtype)
    if len(given) == 1 and given[0].dtype == "i1":  # one number wherever the mask holds
        if math.prod(values.shape) != 1:
            n.need(given[0].rank == x.rank and not accumulate, "by a mask, with several values")
            return masked_scatter(n, x, given[0], values)
        mask, axis = given[0], list(indices).index(given[0])
        mask = n.reshape(mask, (*mask.shape, *[1] * (x.rank - axis - mask.rank)))
        value = n.reshape(values, ())
        return n("where", mask, n("add", x, value) if accumulate else value, x)
    if not math.prod(x.shape) or any(0 in i.shape for i in given):
        return x
    moved, joint, place, order = _together(n, x, indices)
    outer = joint.shape[:-1]
    rest = moved.shape[joint.shape[-1] :]
    full = (*rest[:place], *outer, *rest[place:])  # the shape of what indexing gives
    values = n.expand(values, full)
    count = len(outer)
    values = n.transpose(values, [*range(place, place + count), *range(place), *range(place + count, len(full))])
    made = scatter_nd(n, moved, joint, values, "add" if accumulate else "none")
    return n.transpose(made, [order.index(i) for i in range(x.rank)])


def scatter_nd(n: Node, x: Tensor, at: Tensor, values: Tensor, reduction: str) -> Tensor:
    """bools are written as bytes."""
    if x.dtype == "i1":
        n.need(reduction == "none", "sums of bools")
        made = n("scatter_nd", n.cast(x, "ui8"), at, n.cast(values, "ui8"), reduction=reduction)
        return n.cast(made, "i1")
    written: Tensor = n("scatter_nd", x, at, values, reduction=reduction)
    return written


SCATTERS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add", "multiply": "mul", None: "none"}


@aten("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add", "scatter_reduce.two")
def scatter(n: Node, x: Tensor, dim: int, index: Tensor, src: Any = None, reduce: str | None = None, *,
            value: Any = None, include_self: bool = True) -> Any:  # fmt: skip
    if n.overload.endswith("scatter_add"):
        reduce = "sum"
    src = value if src is None else src
    n.need(include_self, "without the elements that are there")
    n.need(reduce in SCATTERS, f"with reduce={reduce!r}")
    n.need(x.dtype != "i1" or reduce is None, "of bools")
    if not math.prod(index.shape):
        return x
    shape = x.shape
    x, index = (n.reshape(v, (1,)) if not v.rank else v for v in (x, index))
    if isinstance(src, Tensor):
        src = n.reshape(src, (1,)) if not src.rank else src
        for axis, size in enumerate(index.shape):
            src = n.slice(src, axis, 0, size)
    else:
        src = n.full(index.shape, src, x.dtype)
    kept, x = x.dtype, n.cast(x, "ui8") if x.dtype == "i1" else x
    made = n(
        "scatter_elements", x, positions(n, index), n.cast(src, x.dtype), axis=x.axis(dim), reduction=SCATTERS[reduce]
    )
    return n.reshape(n.cast(made, kept), shape)


@aten("index_add", "index_copy")
def index_add(n: Node, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    if not math.prod(index.shape) or not math.prod(x.shape):
        return x
    if not x.rank:
        x, source = n.reshape(x, (1,)), n.reshape(source, (math.prod(source.shape),))
        return n.reshape(index_add(n, x, 0, index, source, alpha=alpha), ())
    axis = x.axis(dim)
    source = n.cast(source, x.dtype)
    source = source if alpha == 1 else n("mul", source, n.tensor(alpha, x.dtype))
    first = [axis, *[i for i in range(x.rank) if i != axis]]
    at = n.reshape(positions(n, index), (math.prod(index.shape), 1))
    reduction = "add" if n.overload.endswith("index_add") else "none"
    made = scatter_nd(n, n.transpose(x, first), at, n.transpose(source, first), reduction)
    return n.transpose(made, [first.index(i) for i in range(x.rank)])


@aten("put")
def put(n: Node, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    size = math.prod(index.shape)
    if not size:
        return x
    at = n.reshape(positions(n, index), (size, 1))
    flat = n.reshape(x, (math.prod(x.shape),))
    made = scatter_nd(n, flat, at, n.reshape(n.cast(source, x.dtype), (size,)), "add" if accumulate else "none")
    return n.reshape(made, x.shape)


@aten("index_reduce")
def index_reduce(
    n: Node, x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    n.need(include_self and reduce in SCATTERS, f"with reduce={reduce!r}" if include_self else "without what is there")
    n.need(x.rank and index.rank, "of a tensor without dimensions")
    axis = x.axis(dim)
    at = n.reshape(positions(n, index), [index.shape[0] if i == axis else 1 for i in range(x.rank)])
    at = n.expand(at, source.shape)
    return n("scatter_elements", x, at, n.cast(source, x.dtype), axis=axis, reduction=SCATTERS[reduce])


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(n: Node, x: Tensor, mask: Tensor, value: Any) -> Any:
    return n("where", mask, n.tensor(value, x.dtype), x)


@aten("masked_scatter")
def masked_scatter(n: Node, x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """The elements of `source` in order, where the mask holds."""
    size = math.prod(x.shape)
    if not size or not math.prod(source.shape):
        return x
    mask = n.reshape(n.expand(mask, x.shape), (size,))
    at = n("sub", n("cumsum", n.cast(mask, "i64"), axis=0), n.cast(mask, "i64"))  # how many came before
    picked = n("gather", n.reshape(n.cast(source, x.dtype), (math.prod(source.shape),)), at, axis=0)
    return n.reshape(n("where", mask, picked, n.reshape(x, (size,))), x.shape)


# ---- order ---------------------------------------------------------------------------------------------------------


def _ordered(n: Node, x: Tensor, axis: int, k: int, largest: bool) -> list[Tensor]:
    """Values and places; what has no order of its own kind is compared as another type."""
    if not x.rank:
        return [x, n.full((), 0, "i64")]
    if not math.prod(x.shape) or not k:
        shape = [k if i == axis else d for i, d in enumerate(x.shape)]
        return [n.full(shape, 0, x.dtype), n.full(shape, 0, "i64")]
    kind = "ui8" if x.dtype == "i1" else x.dtype
    values, places = n("top_k", n.cast(x, kind), k=k, axis=axis, largest=largest)
    return [n.cast(values, x.dtype), places]


@aten("topk")
def topk(n: Node, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Tensor]:
    return _ordered(n, x, x.axis(dim), k, largest)


@aten("sort", "sort.stable")
def sort(n: Node, x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> list[Tensor]:
    axis = x.axis(dim)
    return _ordered(n, x, axis, x.shape[axis] if x.rank else 1, descending)


@aten("argsort", "argsort.stable")
def argsort(n: Node, x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    return sort(n, x, dim, descending)[1]


@aten("kthvalue")
def kthvalue(n: Node, x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> list[Tensor]:
    axis = x.axis(dim)
    found = _ordered(n, x, axis, k if x.rank else 1, False)
    return [n.reshape(n.slice(v, axis, k - 1, 1) if x.rank else v, n.shape) for v in found]


@aten("median", "nanmedian", "median.dim", "nanmedian.dim")
def median(n: Node, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
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
def running_extreme(n: Node, x: Tensor, dim: int) -> list[Tensor]:
    """In steps of 1, 2, 4 ...: the best of what lies so far back, or of what is known here. Of equal ones the last."""
    if not x.rank or not math.prod(x.shape):
        return [x, n.full(x.shape, 0, "i64")]
    axis, kept = x.axis(dim), x.dtype
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
def search(n: Node, first: Tensor, second: Tensor, *, out_int32: bool = False, right: bool = False,
           side: str | None = None, sorter: Any = None) -> Any:  # fmt: skip
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
def one_hot(n: Node, x: Tensor, num_classes: int = -1) -> Any:
    n.need(num_classes >= 0, "with a number of classes that depends on the data")
    classes = n.constant(np.arange(num_classes, dtype=NUMPY[x.dtype]))
    return n.cast(n("equal", n.unsqueeze(x, x.rank), classes), "i64")
