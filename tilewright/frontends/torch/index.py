"""Gather and scatter: embedding, index, gather, scatter, sort."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ...ir.types import NUMPY
from .node import FxNode, FxTensor, Operand, broadcast
from .registry import aten


def positions(n: FxNode, x: FxTensor) -> FxTensor:
    """Indices of a type that operators take."""
    return x if x.dtype in ("i64", "i32") else n.cast(x, "i64")


@aten("embedding")
def embedding(n: FxNode, weight: FxTensor, indices: FxTensor, *_: object, **__: object) -> FxTensor:
    return n("gather", weight, positions(n, indices), axis=0)


@aten("index_select")
def index_select(n: FxNode, x: FxTensor, dim: int, index: FxTensor) -> FxTensor:
    if not x.rank:
        return n.reshape(x, n.shape)
    if not math.prod(n.shape):
        return n.full(n.shape, 0, x.dtype)
    return n("gather", x, positions(n, n.reshape(index, (math.prod(index.shape),))), axis=x.axis(dim))


@aten("gather")
def gather(n: FxNode, x: FxTensor, dim: int, index: FxTensor, *, sparse_grad: bool = False) -> FxTensor:
    if not math.prod(index.shape):
        return n.full(n.shape, 0, x.dtype)
    if not x.rank:
        return n.reshape(x, n.shape)
    if not index.rank:
        return n.reshape(n("gather_elements", x, positions(n, n.reshape(index, (1,))), axis=0), ())
    return n("gather_elements", x, positions(n, index), axis=x.axis(dim))


@aten("take")
def take(n: FxNode, x: FxTensor, index: FxTensor) -> FxTensor:
    if not math.prod(n.shape):
        return n.full(n.shape, 0, x.dtype)
    return n("gather", n.reshape(x, (math.prod(x.shape),)), positions(n, index), axis=0)


def _together(n: FxNode, x: FxTensor, indices: Sequence[FxTensor | None]) -> tuple[FxTensor, FxTensor, int, list[int]]:
    """x with the indexed dimensions first, joint indices [..., k], where their dimensions go, how x was permuted."""
    n.need(all(i is None or i.dtype != "i1" for i in indices), "by a mask, whose result has a size of its own")
    at = [(axis, positions(n, i)) for axis, i in enumerate(indices) if i is not None]
    axes = [axis for axis, _ in at]
    order = axes + [i for i in range(x.rank) if i not in axes]
    shape = broadcast(*[i.shape for _, i in at])
    joint = n.concat([n.reshape(n.expand(n.cast(i, "i64"), shape), (*shape, 1)) for _, i in at], len(shape))
    side_by_side = axes == list(range(axes[0], axes[-1] + 1))
    return n.transpose(x, order), joint, axes[0] if side_by_side else 0, order


def _everything(n: FxNode, x: FxTensor, indices: Sequence[FxTensor | None]) -> bool:
    """Whether indices name all elements of x in order, such as ``x[arange(batch)[:, None], arange(seq)]``."""
    if len(indices) != x.rank or any(i is None for i in indices):
        return False
    rank, last = max(i.rank for i in indices if i is not None), -1
    nodes = n.node.args[1]
    assert isinstance(nodes, (list, tuple))
    for axis, (i, made) in enumerate(zip(indices, nodes, strict=True)):
        assert i is not None
        wide = [rank - i.rank + k for k, d in enumerate(i.shape) if d != 1]
        if len(wide) != 1 or wide[0] <= last or math.prod(i.shape) != x.shape[axis] or not _counts(made):
            return False
        last = wide[0]
    return True


def _counts(node: object) -> bool:
    """Whether a node gives 0, 1, 2 ... under some shape."""
    while isinstance(node, torch.fx.Node):
        name = str(node.target).removeprefix("aten.").removesuffix(".default")
        if name == "arange.start_step":
            return bool(node.args[0] == 0 and (len(node.args) < 3 or node.args[2] == 1))
        plus = name == "add.Tensor" and node.args[1] == 0 and type(node.args[1]) is int and not node.kwargs
        if not plus and name not in ("unsqueeze", "view", "clone", "alias"):
            return False
        node = node.args[0]
    return False


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(n: FxNode, x: FxTensor, indices: Sequence[FxTensor | None]) -> FxTensor:
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype != "i1" and x.rank and math.prod(n.shape):
        return n("gather", x, positions(n, given[0]), axis=list(indices).index(given[0]))
    if not given:
        return x
    n.need(all(i.dtype != "i1" for i in given), "by a mask, whose result has a size of its own")
    if not math.prod(n.shape):
        return n.full(n.shape, 0, x.dtype)
    if _everything(n, x, indices):
        return n.reshape(x, n.shape)
    moved, joint, place, _ = _together(n, x, indices)
    made = n("gather_nd", moved, joint)
    count = joint.rank - 1  # the dimensions of the indices stand first: they go where the indexed ones were
    rest = list(range(count, made.rank))
    return n.transpose(made, [*rest[:place], *range(count), *rest[place:]])


@aten("index_put", "_unsafe_index_put")
def index_put(
    n: FxNode, x: FxTensor, indices: Sequence[FxTensor | None], values: FxTensor, accumulate: bool = False
) -> FxTensor:
    given = [i for i in indices if i is not None]
    values = n.cast(values, x.dtype)
    if len(given) == 1 and given[0].dtype == "i1":  # one number wherever the mask holds
        if math.prod(values.shape) != 1:
            n.need(not accumulate and indices[0] is given[0], "by a mask, with several values that are added")
            return _put_rows(n, x, given[0], values)
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


def _put_rows(n: FxNode, x: FxTensor, mask: FxTensor, values: FxTensor) -> FxTensor:
    """x with the rows that a mask of its first dimensions chooses replaced: by `values` in order, or all by one."""
    if mask.rank == x.rank:
        return masked_scatter(n, x, mask, values)
    if 0 in x.shape:
        return x
    rows, rest = math.prod(mask.shape), x.shape[mask.rank :]
    count = values.shape[0] if values.rank > len(rest) else 1
    new = n.reshape(n.expand(values, (count, *rest)), (count, math.prod(rest)))
    flag = n.reshape(mask, (rows,))
    if count > 1:
        at = n("sub", n("cumsum", n.cast(flag, "i64"), axis=0), n.cast(flag, "i64"))
        new = n("gather", new, n("min", at, count - 1), axis=0)
    made = n("where", n.reshape(flag, (rows, 1)), new, n.reshape(x, (rows, math.prod(rest))))
    return n.reshape(made, x.shape)


def scatter_nd(n: FxNode, x: FxTensor, at: FxTensor, values: FxTensor, reduction: str) -> FxTensor:
    """bools are written as bytes."""
    if x.dtype == "i1":
        n.need(reduction == "none", "sums of bools")
        made = n("scatter_nd", n.cast(x, "ui8"), at, n.cast(values, "ui8"), reduction=reduction)
        return n.cast(made, "i1")
    written: FxTensor = n("scatter_nd", x, at, values, reduction=reduction)
    return written


SCATTERS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add", "multiply": "mul", None: "none"}


@aten("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add", "scatter_reduce.two")
def scatter(n: FxNode, x: FxTensor, dim: int, index: FxTensor, src: Operand | None = None, reduce: str | None = None, *,
            value: float | None = None, include_self: bool = True) -> FxTensor:  # fmt: skip
    if n.overload.endswith("scatter_add"):
        reduce = "sum"
    src = value if src is None else src
    n.need(x.dtype != "i1" or reduce is None, "of bools")
    if not math.prod(index.shape):
        return x
    shape = x.shape
    x, index = (n.reshape(v, (1,)) if not v.rank else v for v in (x, index))
    if isinstance(src, FxTensor):
        src = n.reshape(src, (1,)) if not src.rank else src
        for axis, size in enumerate(index.shape):
            src = n.slice(src, axis, 0, size)
    else:
        assert src is not None
        src = n.full(index.shape, src, x.dtype)
    kept, x = x.dtype, n.cast(x, "ui8") if x.dtype == "i1" else x
    made = reduced(n, x, positions(n, index), n.cast(src, x.dtype), x.axis(dim), reduce, include_self)
    return n.reshape(n.cast(made, kept), shape)


def reduced(
    n: FxNode, x: FxTensor, at: FxTensor, src: FxTensor, axis: int, reduce: str | None, include_self: bool = True
) -> FxTensor:
    """x with elements of `src` combined into it, at positions along an axis. Without `include_self` what is there does
    not count where something comes."""
    mean = reduce == "mean"
    n.need(mean or reduce in SCATTERS, f"with reduce={reduce!r}")
    combine = "add" if mean else SCATTERS[reduce]
    made = x
    if mean or not include_self:
        ones = n.full(at.shape, 1, "i64")
        count = n("scatter_elements", n.full(x.shape, 0, "i64"), at, ones, axis=axis, reduction="add")
        if not include_self:
            made = n("where", n("greater", count, 0), n.full((), neutral(x.dtype, combine), x.dtype), x)
    made = n("scatter_elements", made, at, src, axis=axis, reduction=combine)
    if not mean:
        return made
    count = n("add", count, 1) if include_self else n("max", count, 1)
    if made.is_float:
        quotient: FxTensor = n("div", made, n.cast(count, made.dtype))
        return quotient
    return floor_divided(n, made, n.cast(count, made.dtype))


def neutral(dtype: str, combine: str) -> float:
    """What changes nothing when it is added, multiplied, or looked at for the largest or smallest."""
    if combine in ("add", "mul", "none"):
        return int(combine == "mul")
    low = combine == "max"
    if dtype.startswith("f") or dtype == "bf16":
        return -math.inf if low else math.inf
    limits = np.iinfo(NUMPY[dtype])
    return limits.min if low else limits.max


def floor_divided(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    """The integer x divided by y > 0, rounded down."""
    quotient = n("div", x, y)
    rest = n("sub", x, n("mul", quotient, y))
    made: FxTensor = (
        n("sub", quotient, n.cast(n("less", rest, 0), x.dtype)) if not x.dtype.startswith("u") else quotient
    )
    return made


@aten("index_add", "index_copy")
def index_add(n: FxNode, x: FxTensor, dim: int, index: FxTensor, source: FxTensor, *, alpha: Operand = 1) -> FxTensor:
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
def put(n: FxNode, x: FxTensor, index: FxTensor, source: FxTensor, accumulate: bool = False) -> FxTensor:
    size = math.prod(index.shape)
    if not size:
        return x
    at = n.reshape(positions(n, index), (size, 1))
    flat = n.reshape(x, (math.prod(x.shape),))
    made = scatter_nd(n, flat, at, n.reshape(n.cast(source, x.dtype), (size,)), "add" if accumulate else "none")
    return n.reshape(made, x.shape)


@aten("index_reduce")
def index_reduce(
    n: FxNode, x: FxTensor, dim: int, index: FxTensor, source: FxTensor, reduce: str, *, include_self: bool = True
) -> FxTensor:
    if not x.rank or not source.rank:
        one = n.reshape(x, (1,)) if not x.rank else x
        index, source = n.reshape(index, (math.prod(index.shape),)), n.reshape(source, (math.prod(source.shape),))
        return n.reshape(index_reduce(n, one, 0, index, source, reduce, include_self=include_self), x.shape)
    if not math.prod(source.shape):
        return x
    axis = x.axis(dim)
    at = n.reshape(positions(n, index), [math.prod(index.shape) if i == axis else 1 for i in range(x.rank)])
    at = n.expand(at, source.shape)
    return reduced(n, x, at, n.cast(source, x.dtype), axis, reduce, include_self)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(n: FxNode, x: FxTensor, mask: FxTensor, value: Operand) -> FxTensor:
    return n("where", mask, n.tensor(value, x.dtype), x)


@aten("masked_scatter")
def masked_scatter(n: FxNode, x: FxTensor, mask: FxTensor, source: FxTensor) -> FxTensor:
    """The elements of `source` in order, where the mask holds."""
    size = math.prod(x.shape)
    if not size or not math.prod(source.shape):
        return x
    mask = n.reshape(n.expand(mask, x.shape), (size,))
    at = n("sub", n("cumsum", n.cast(mask, "i64"), axis=0), n.cast(mask, "i64"))  # how many came before
    picked = n("gather", n.reshape(n.cast(source, x.dtype), (math.prod(source.shape),)), at, axis=0)
    return n.reshape(n("where", mask, picked, n.reshape(x, (size,))), x.shape)
