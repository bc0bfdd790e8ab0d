"""Pooling windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .conv import _each, halved
from .node import Each, FxNode, FxTensor
from .registry import aten


def _batched(n: FxNode, x: FxTensor, rank: int) -> FxTensor:
    return n.unsqueeze(x, 0) if x.rank == rank + 1 else x


def _window(
    kernel: Each, stride: Each | None, padding: Each, dilation: Each, ceil_mode: bool, r: int
) -> dict[str, Any]:
    k = _each(kernel, r)
    return {
        "kernel": k,
        "strides": _each(stride, r) if stride not in (None, [], ()) else k,
        "pads": _each(padding, r) * 2,
        "dilations": _each(dilation, r),
        "ceil_mode": ceil_mode,
    }


@aten("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(n: FxNode, x: FxTensor, kernel_size: Each, stride: Each | None = None, padding: Each = 0,
             dilation: Each = 1, ceil_mode: bool = False) -> FxTensor | list[FxTensor | None]:  # fmt: skip
    r = int(n.overload.split("max_pool")[1][0])
    x = _batched(n, x, r)
    attributes = _window(kernel_size, stride, padding, dilation, ceil_mode, r)
    n.need(math.prod(x.shape), "of nothing")
    values = n.reshape(n("max_pool", x, **attributes), n.shape)
    if "indices" not in n.overload:
        return values
    if {u.args[1] for u in n.node.users if u.users} <= {0}:
        return [values, None]
    at = n("max_pool_indices", x, **attributes)
    plane = math.prod(x.shape[2:])  # PyTorch counts within a plane, and of equal ones takes the first too
    return [values, n.reshape(n("mod", at, plane), n.shape)]


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    n: FxNode,
    x: FxTensor,
    kernel_size: Each,
    stride: Each | None = None,
    padding: Each = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> FxTensor:
    r = int(n.overload.split("avg_pool")[1][0])
    n.need(x.is_float, "of integers")
    n.need(math.prod(x.shape), "of nothing")
    x = _batched(n, x, r)
    attributes = _window(kernel_size, stride, padding, 1, ceil_mode, r)
    if divisor_override is not None:  # sums: the padding becomes part of x, so that all windows are whole
        k, steps, pads = attributes["kernel"], attributes["strides"], attributes["pads"][:r]
        reach = [(o - 1) * s + d for o, s, d in zip(n.shape[-r:], steps, k, strict=True)]
        high = [max(e - d - p, 0) for e, d, p in zip(reach, x.shape[2:], pads, strict=True)]
        x = n("pad", x, low=(0, 0, *pads), high=(0, 0, *high))
        for axis, end in enumerate(reach):
            x = n.slice(x, 2 + axis, 0, end)
        attributes |= {"pads": (0,) * 2 * r, "ceil_mode": False}
        made = n("mul", n("avg_pool", x, count_include_pad=True, **attributes), math.prod(k) / divisor_override)
    else:
        made = n("avg_pool", x, count_include_pad=count_include_pad, **attributes)
    return n.reshape(made, n.shape)


@aten("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", *(f"adaptive_avg_pool{r}d" for r in (1, 2, 3)))
def adaptive_avg_pool(n: FxNode, x: FxTensor, output_size: Each) -> FxTensor:
    r = int(n.overload.split("avg_pool")[1][0])
    if not math.prod(n.shape):
        return n.full(n.shape, 0, n.dtype)
    n.need(math.prod(x.shape), "of nothing")
    for axis in range(x.rank - r, x.rank):
        size, out = x.shape[axis], n.shape[axis]
        if out == 1:
            x = n("reduce_mean", x, axes=(axis,), keepdims=True)
        elif size % out == 0:
            split = n.reshape(x, (*x.shape[:axis], out, size // out, *x.shape[axis + 1 :]))
            x = n("reduce_mean", split, axes=(axis + 1,)) if size > out else x
        else:  # windows of different sizes: a table of weights
            n.known(size, out)
            table, weights = _windows(size, out)
            x = n("resample", x, n.constant(table), n.constant(weights, x.dtype), axis=axis)
    return x


def _windows(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    low = np.arange(out) * size // out
    high = -(-(np.arange(out) + 1) * size // out)
    table = low[:, None] + np.arange(int((high - low).max()))
    return halved(table, np.broadcast_to(1 / (high - low)[:, None], table.shape), high - low)


@aten("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(n: FxNode, x: FxTensor, output_size: Each) -> list[FxTensor] | list[FxTensor | None]:
    r = int(n.overload.split("max_pool")[1][0])
    if not math.prod(n.shape):
        return [n.full(n.shape, 0, n.dtype), n.full(n.shape, 0, "i64")]
    n.need(math.prod(x.shape), "of nothing")
    outer, plane = x.shape[:-r], x.shape[-r:]
    n.known(*plane)
    if {u.args[1] for u in n.node.users if u.users} <= {0}:
        for axis in range(x.rank - r, x.rank):
            table = _inside(x.shape[axis], n.shape[axis])
            x = n("reduce_max", n("gather", x, n.constant(table), axis=axis), axes=(axis + 1,))
        return [x, None]
    flat = np.zeros((1, 1), np.int64)  # the places of each window, counted in the plane
    for size, out in zip(plane, n.shape[-r:], strict=True):
        table = _inside(size, out)
        flat = (flat[:, None, :, None] * size + table[:, None]).reshape(len(flat) * out, -1)
    picked = n("gather", n.reshape(x, (*outer, math.prod(plane))), n.constant(flat), axis=len(outer))
    last = len(outer) + 1
    best = n("arg_max", picked, axis=last, keepdims=True)
    places = n.expand(n.constant(flat), (*outer, *flat.shape))
    values = n("reduce_max", picked, axes=(last,))
    return [n.reshape(v, n.shape) for v in (values, n("gather_elements", places, best, axis=last))]


def _inside(size: int, out: int) -> np.ndarray:
    """The places of each window; shorter ones name their last element again, which changes no maximum."""
    at = np.arange(out)
    low, high = at * size // out, -(-(at + 1) * size // out)
    table = low[:, None] + np.arange(int((high - low).max()))
    return np.minimum(table, high[:, None] - 1).astype(np.int64)
