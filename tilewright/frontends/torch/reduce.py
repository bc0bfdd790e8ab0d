"""Reductions, positions of extremes, running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...support.sizes import is_open, larger
from .node import Axes, FxNode, FxTensor, dtype_of
from .registry import aten


def folded(n: FxNode, operator: str, x: FxTensor, axes: tuple[int, ...], keepdim: bool = False) -> FxTensor:
    """A reduction; over no dimensions the tensor itself."""
    made: FxTensor = n(operator, x, axes=axes, keepdims=keepdim) if x.rank else x
    return made


@aten("sum", "sum.dim_IntList", "mean", "mean.dim")
def total(
    n: FxNode, x: FxTensor, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> FxTensor:
    mean = n.overload.startswith("aten.mean")
    return folded(n, "reduce_mean" if mean else "reduce_sum", n.cast(x, n.dtype), x.axes(dim), keepdim)


@aten("prod", "prod.dim_int")
def prod(
    n: FxNode, x: FxTensor, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> FxTensor:
    return folded(n, "reduce_prod", n.cast(x, n.dtype), x.axes(dim), keepdim)


@aten("amax", "amin", "max", "min", "max.dim", "min.dim")
def extreme(n: FxNode, x: FxTensor, dim: Axes = None, keepdim: bool = False) -> FxTensor | list[FxTensor]:
    largest = "max" in n.overload
    places = n.overload.endswith(".dim")
    if x.dtype == "i1":
        if isinstance(dim, int) and places:
            values, at = _with_places(n, n.cast(x, "ui8"), largest, dim, keepdim)
            return [n.cast(values, "i1"), at]
        return folded(n, "reduce_any" if largest else "reduce_all", x, x.axes(dim), keepdim)
    if isinstance(dim, int) and places:
        return _with_places(n, x, largest, dim, keepdim)
    return folded(n, "reduce_max" if largest else "reduce_min", x, x.axes(dim), keepdim)


def _with_places(n: FxNode, x: FxTensor, largest: bool, dim: int, keepdim: bool) -> list[FxTensor]:
    values = folded(n, "reduce_max" if largest else "reduce_min", x, x.axes(dim), keepdim)
    return [values, _places(n, x, largest, dim, keepdim)]


def _places(n: FxNode, x: FxTensor, largest: bool, dim: int, keepdim: bool) -> FxTensor:
    if not x.rank or not math.prod(x.shape):
        return n.full([d for i, d in enumerate(x.shape) if i != x.axis(dim)] if not keepdim else x.shape, 0, "i64")
    made: FxTensor = n("arg_max" if largest else "arg_min", x, axis=x.axis(dim), keepdims=keepdim)
    return made


@aten("argmax", "argmin")
def arg_extreme(n: FxNode, x: FxTensor, dim: int | None = None, keepdim: bool = False) -> FxTensor:
    largest = n.overload.endswith("argmax")
    x = n.cast(x, "ui8") if x.dtype == "i1" else x
    if dim is None:
        return n.reshape(_places(n, n.reshape(x, (math.prod(x.shape),)), largest, 0, False), n.shape)
    return _places(n, x, largest, dim, keepdim)


@aten("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def truth(n: FxNode, x: FxTensor, dim: Axes = None, keepdim: bool = False) -> FxTensor:
    some = n.overload.startswith("aten.any")
    if isinstance(dim, (list, tuple)) and not dim:
        return n.cast(x, "i1")
    return folded(n, "reduce_any" if some else "reduce_all", n.cast(x, "i1"), x.axes(dim), keepdim)


@aten("cumsum", "cumprod")
def running(n: FxNode, x: FxTensor, dim: int, *, dtype: torch.dtype | None = None) -> FxTensor:
    x = n.cast(x, n.dtype if dtype is None else dtype_of(dtype))
    if not x.rank or not math.prod(x.shape):
        return x
    return n(n.overload.removeprefix("aten."), x, axis=x.axis(dim))


@aten("logcumsumexp")
def log_running_sum(n: FxNode, x: FxTensor, dim: int) -> FxTensor:
    """In steps of 1, 2, 4 ...: log(e^a + e^b) of what is known here and what is known so far back."""
    if not x.rank or not math.prod(x.shape):
        return x
    axis, kept = x.axis(dim), x.dtype
    n.known(x.shape[axis])
    made = n.cast(x, "f32") if kept in ("f16", "bf16") else x
    size, step = x.shape[axis], 1
    while step < size:
        shape = [step if i == axis else d for i, d in enumerate(x.shape)]
        none = n.full(shape, -math.inf, made.dtype)
        before = n.concat([none, n.slice(made, axis, 0, size - step)], axis)
        high, low = n("max", made, before), n("min", made, before)
        known = n("where", n("equal", high, low), n.full((), 0, made.dtype), n("sub", low, high))
        both = n("add", high, n("log1p", n("exp", known)))
        made = n("where", n("is_inf", high), high, both)
        step *= 2
    return n.cast(made, kept)


@aten("logsumexp")
def logsumexp(n: FxNode, x: FxTensor, dim: Axes, keepdim: bool = False) -> FxTensor:
    return folded(n, "reduce_log_sum_exp", n.cast(x, n.dtype), x.axes(dim), keepdim)


@aten(
    "var.correction", "var.dim", "var", "std.correction", "std.dim", "std", "var_mean.correction", "std_mean.correction"
)
def variance(
    n: FxNode,
    x: FxTensor,
    dim: Axes = None,
    unbiased: bool | Sequence[int] | None = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> FxTensor | list[FxTensor]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = (1 if unbiased else 0) if correction is None else correction
    axes, narrow = x.axes(dim), x.dtype
    x = n.cast(x, "f32") if narrow in ("f16", "bf16") else x
    count = math.prod(x.shape[a] for a in axes)
    mean = folded(n, "reduce_mean", x, axes, True)
    centred = n("sub", x, mean)
    squares = folded(n, "reduce_sum", n("mul", centred, centred), axes, keepdim)
    if is_open(count):
        made = n("div", squares, n.tensor(larger(count - int(correction), 0), x.dtype))
    else:
        made = n("div", squares, float(max(count - correction, 0)))
    made = n.cast(n("sqrt", made) if "std" in n.overload else made, narrow)
    return [made, n.cast(n.reshape(mean, made.shape), narrow)] if "mean" in n.overload else made


@aten("linalg_vector_norm")
def vector_norm(
    n: FxNode, x: FxTensor, ord: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> FxTensor:
    axes, x = x.axes(dim), n.cast(x, n.dtype)
    if not x.rank:
        return n("abs", x) if ord != 0 else n.cast(n("not", n("equal", x, 0.0)), n.dtype)
    if math.isinf(ord):
        return n("reduce_max" if ord > 0 else "reduce_min", n("abs", x), axes=axes, keepdims=keepdim)
    if ord == 0:
        return n("reduce_sum", n.cast(n("not", n("equal", x, 0.0)), n.dtype), axes=axes, keepdims=keepdim)
    if ord in (1, 2):
        return n("reduce_l1" if ord == 1 else "reduce_l2", x, axes=axes, keepdims=keepdim)
    x = n.cast(x, "f32") if n.dtype in ("f16", "bf16") else x  # whose powers overflow
    power = n("pow", n("abs", x), float(ord))
    return n.cast(n("pow", n("reduce_sum", power, axes=axes, keepdims=keepdim), 1.0 / ord), n.dtype)


@aten("count_nonzero.dim_IntList", "count_nonzero")
def count_nonzero(n: FxNode, x: FxTensor, dim: Axes = None) -> FxTensor:
    return folded(n, "reduce_sum", n.cast(n.cast(x, "i1"), "i64"), x.axes(dim))
