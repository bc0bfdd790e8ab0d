"""Convolution and its relatives, and resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .node import Each, FxNode, FxTensor
from .registry import aten

#: how much larger a result of resizing is: one dimension, or all
Scale: TypeAlias = "float | Sequence[float] | None"


def _each(v: Each, rank: int) -> tuple[int, ...]:
    values = [v] if isinstance(v, int) else list(v)
    return tuple(values * rank if len(values) == 1 else values)


@aten("convolution")
def convolution(n: FxNode, x: FxTensor, w: FxTensor, bias: FxTensor | None, stride: Each, padding: Each, dilation: Each,
                transposed: bool, output_padding: Each, groups: int) -> FxTensor:  # fmt: skip
    r = w.rank - 2
    n.need(x.is_float, "of integers")
    alone = x.rank == w.rank - 1  # without a batch
    x = n.unsqueeze(x, 0) if alone else x
    pads = _each(padding, r)
    attributes = {"strides": _each(stride, r), "pads": pads * 2, "dilations": _each(dilation, r), "groups": groups}
    if not math.prod(n.shape):
        return n.full(n.shape, 0, n.dtype)
    if not math.prod(x.shape):
        made = n.full((1, *n.shape) if alone else n.shape, 0, n.dtype)
        made = made if bias is None else n("add", made, n.reshape(bias, (bias.shape[0], *[1] * r)))
    elif transposed:
        made = _transposed(n, x, w, bias, attributes, _each(output_padding, r))
    else:
        made = n("conv", x, w, bias, **attributes)
    return n.reshape(made, n.shape)


def _transposed(
    n: FxNode, x: FxTensor, w: FxTensor, bias: FxTensor | None, attributes: Mapping[str, object], extra: tuple[int, ...]
) -> FxTensor:
    return n("conv_transpose", x, w, bias, output_padding=extra, **attributes)


@aten("im2col")
def im2col(n: FxNode, x: FxTensor, kernel_size: Each, dilation: Each, padding: Each, stride: Each) -> FxTensor:
    kernel, dilation, pads, stride = (_each(v, 2) for v in (kernel_size, dilation, padding, stride))
    x = n.unsqueeze(x, 0) if x.rank == 3 else x
    n.known(*x.shape[2:])
    if any(pads):
        x = n("pad", x, low=(0, 0, *pads), high=(0, 0, *pads))
    at = []
    for i in range(2):
        count = (x.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        at.append(np.arange(kernel[i])[:, None] * dilation[i] + np.arange(count) * stride[i])
    rows = n("gather", x, n.constant(at[0].astype(np.int64)), axis=2)  # [N, C, kh, oh, W]
    both = n("gather", rows, n.constant(at[1].astype(np.int64)), axis=4)  # [N, C, kh, oh, kw, ow]
    return n.reshape(n.transpose(both, (0, 1, 2, 4, 3, 5)), n.shape)


@aten("col2im")
def col2im(
    n: FxNode, x: FxTensor, output_size: Each, kernel_size: Each, dilation: Each, padding: Each, stride: Each
) -> FxTensor:
    x = n.unsqueeze(x, 0) if x.rank == 2 else x
    pads = _each(padding, 2)
    sizes = {"image": _each(output_size, 2), "block": _each(kernel_size, 2), "strides": _each(stride, 2)}
    return n.reshape(n("col2im", x, pads=pads * 2, dilations=_each(dilation, 2), **sizes), n.shape)


# ---- resizing ------------------------------------------------------------------------------------------------------


def ratios(
    n: FxNode, before: Sequence[int], after: Sequence[int], positional: Sequence[Scale], named: Mapping[str, object],
    dtype: str = "f32",
) -> list[np.floating]:  # fmt: skip
    """How far apart in the input of resizing neighbours of the result are, as PyTorch rounds it: in f64 where it
    interpolates numbers of that `dtype`, else in f32. The scales that a call gives count, in a list, one by one, or by
    name."""
    kind = np.float64 if dtype == "f64" else np.float32
    n.known(*before, *after)
    found: list[Any] = [*positional, *named.values()]
    if len(found) == 1 and isinstance(found[0], (list, tuple)):
        found = list(found[0])
    given = [v for v in found if v is not None]
    given += [None] * (len(before) - len(given))
    return [kind(1.0 / s) if s else kind(x) / kind(y) for s, x, y in zip(given, before, after, strict=True)]


def nearest(overload: str, before: int, after: int, ratio: np.floating) -> np.ndarray:
    """[after]: the elements that resizing to the nearest picks along a dimension."""
    half = np.float32(0.5 if "exact" in overload else 0)
    at = np.floor((np.arange(after, dtype=np.float32) + half) * ratio)
    return np.clip(at, 0, before - 1).astype(np.int64)


def repetitions(at: np.ndarray, size: int) -> int:
    """How often each of `size` elements is repeated, one after the other; 0 if something else is picked."""
    factor = len(at) // size
    return factor if np.array_equal(at, np.repeat(np.arange(size), factor)) else 0


@aten(*(f"{mode}{r}d{kind}" for mode in ("upsample_nearest", "_upsample_nearest_exact") for r in (1, 2, 3)
        for kind in ("", ".vec")))  # fmt: skip
def upsample_nearest(n: FxNode, x: FxTensor, output_size: Each, *scales: Scale, **named: object) -> FxTensor:
    for i, ratio in enumerate(ratios(n, x.shape[2:], n.shape[2:], scales, named)):
        size, axis = x.shape[2 + i], 2 + i
        at = nearest(n.overload, size, n.shape[axis], ratio)
        if np.array_equal(at, np.arange(size)):
            continue
        if factor := repetitions(at, size):  # no gather
            wide = n.expand(n.unsqueeze(x, axis + 1), (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :]))
            x = n.reshape(wide, (*x.shape[:axis], size * factor, *x.shape[axis + 1 :]))
        else:
            x = n("gather", x, n.constant(at), axis=axis)
    return x


INTERPOLATIONS = (
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
)  # fmt: skip


@aten(*INTERPOLATIONS, *(f"{name}.vec" for name in INTERPOLATIONS))
def upsample(
    n: FxNode,
    x: FxTensor,
    output_size: Each,
    align_corners: bool,
    *scales: Scale,
    **named: object,
) -> FxTensor:
    n.need(x.is_float, "of integers")
    for i, ratio in enumerate(ratios(n, x.shape[2:], n.shape[2:], scales, named, x.dtype)):
        axis = 2 + i
        taps = interpolation(n.overload, x.shape[axis], n.shape[axis], ratio, align_corners)
        if taps is not None:
            x = n("resample", x, n.constant(taps[0]), n.constant(taps[1], x.dtype), axis=axis)
    return x


def interpolation(
    overload: str, before: int, after: int, ratio: np.floating, align_corners: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """[after, taps]: the elements that each place of a dimension is made of, and their weights; None if it stays as it
    is."""
    kind, antialias = type(ratio), "_aa" in overload
    at, half = np.arange(after, dtype=kind), kind(0.5)
    if align_corners:
        ratio = kind(before - 1) / kind(after - 1) if after > 1 else kind(0)
    if align_corners and not antialias:
        at = at * ratio
    else:  # PyTorch's filters stand on the middle of elements, and only their distance has to do with corners
        at = (at + half) * ratio - half
    if before == after and np.array_equal(at, np.arange(before)):
        return None
    cubic = "cubic" in overload
    return _antialiased(at, ratio, before, cubic) if antialias else _neighbours(at, before, cubic)


def _neighbours(at: np.ndarray, size: int, cubic: bool) -> tuple[np.ndarray, np.ndarray]:
    """The elements that each place is made of, and their weights."""
    if not cubic:
        at = np.maximum(at, 0)
    low = np.floor(at).astype(np.int64)
    reach = 2 if cubic else 1
    table = low[:, None] + np.arange(1 - reach, 1 + reach)
    part = (at - low).astype(np.float64)
    distance = np.abs(np.arange(1 - reach, 1 + reach) - part[:, None])
    weights = _cubic(distance, -0.75) if cubic else np.clip(1 - distance, 0, 1)
    return np.clip(table, 0, size - 1), weights


def _antialiased(at: np.ndarray, ratio: np.floating, size: int, cubic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights of a filter as wide as what one element of the result stands for; they add up to 1."""
    scale = max(float(ratio), 1.0)
    support = (2 if cubic else 1) * scale
    centre = at.astype(np.float64) + 0.5
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + support + 0.5).astype(np.int64), size)
    table = low[:, None] + np.arange(int((high - low).max()))
    distance = np.abs((table + 0.5 - centre[:, None]) / scale)
    weights = _cubic(distance, -0.5) if cubic else np.clip(1 - distance, 0, 1)
    weights = np.where(table < high[:, None], weights, 0)
    return halved(table, weights / weights.sum(1, keepdims=True), high - low)


def halved(table: np.ndarray, weights: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `counts` elements and their weights, filled with the last element of each, which counts in parts.

    A weight of zero would make NaN of another element that is infinite. Halves are exact:

    >>> halved(np.array([[0, 1, 2], [2, 3, 4]]), np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]), np.array([3, 1]))[1]
    array([[0.5 , 0.25, 0.25],
           [0.5 , 0.25, 0.25]])
    """
    at = np.arange(table.shape[1]) - (counts[:, None] - 1)  # from the last element on
    last = np.arange(len(table))[:, None], counts[:, None] - 1
    more = table.shape[1] - counts[:, None]
    parts = weights[last] * 0.5 ** np.minimum(at + 1, more)
    return np.where(at > 0, table[last], table), np.where(at >= 0, parts, weights)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


@aten("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def grid_sample(
    n: FxNode, x: FxTensor, grid: FxTensor, mode: int = 0, padding: int = 0, align_corners: bool = False
) -> FxTensor:
    names = ("linear", "nearest", "cubic")[mode], ("zeros", "border", "reflection")[padding]
    return n("grid_sample", x, grid, mode=names[0], padding=names[1], align_corners=align_corners)
