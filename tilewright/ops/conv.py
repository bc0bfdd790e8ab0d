"""Convolution and transposed convolution over any number of spatial dimensions.

Layout "nchw" means channels first ([N, C, *spatial]), "nhwc" channels last, for x and the result; weights are always
[O, I / groups, *kernel] at level 2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.dtypes import wide
from ..support.errors import OpError
from ..support.sizes import at_most
from .common import in_result, in_wide, need, need_factors, need_shape, per_channel, same_dtype
from .norm import channel_axis


class Conv(Operator):
    """Convolution with zero padding: ``pads`` holds the low sides of all spatial dimensions, then the high sides.

    With `dtype` (``"f32"``) the result of halves is not rounded to their type, and has that of the bias; the weights
    may then be f32 themselves. `x_layout` is that of x, where it has another than the result.

    ``"tw.conv"(%x, %w, %b) {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
    : (tensor<1x3x8x8xf32>, tensor<16x3x3x3xf32>, tensor<16xf32>) -> tensor<1x16x4x4xf32>``
    """

    @staticmethod
    def infer(
        x,
        w,
        bias=None,
        *,
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        dilations: tuple[int, ...],
        groups: int = 1,
        layout: str = "nchw",
        dtype: str | None = None,
        x_layout: str | None = None,
    ):
        channel_axis(x, layout)
        channels = check_conv(x, w, strides, pads, dilations, x_layout or layout, dtype)
        if groups < 1 or (w.shape[0] or 0) % groups:
            raise OpError(f"{w.shape[0]} output channels of {w} do not divide into {groups} groups")
        if channels is not None and w.shape[1] is not None and w.shape[1] * groups != channels:
            raise OpError(f"weights {w} with {groups} groups need {w.shape[1] * groups} channels, {x} has {channels}")
        need_shape("bias", bias, (w.shape[0],))
        result = x.with_dtype(dtype or x.dtype)
        same_dtype(result, bias)
        n, r = x.shape[0], x.rank - 2
        sizes = spatial(x.shape, x_layout or layout)
        out: list[int | None] = []
        for i in range(r):
            if sizes[i] is None or w.shape[2 + i] is None:
                out.append(None)
                continue
            free = sizes[i] + pads[i] + pads[r + i] - dilations[i] * (w.shape[2 + i] - 1) - 1
            if not at_most(0, free):
                raise OpError(f"the kernel of {w} is larger than the padded dimension {i} of {x}")
            out.append(free // strides[i] + 1)
        return result.with_shape(with_channels(n, w.shape[0], out, layout))

    @staticmethod
    def reference(x, w, bias=None, *, strides, pads, dilations, groups, layout, dtype, x_layout):
        def f(x, w, bias):
            if (x_layout or layout) == "nhwc":
                x = np.moveaxis(x, -1, 1)
            r = x.ndim - 2
            x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:r], pads[r:], strict=True)])
            out = convolve_numpy(x, w, strides, dilations, groups)
            out = out if bias is None else out + bias.reshape(-1, *[1] * r)
            return np.ascontiguousarray(np.moveaxis(out, 1, -1)) if layout == "nhwc" else out

        return in_wide(f, *in_result(dtype, x, w, bias))

    @staticmethod
    def lower(b, x, w, bias=None, *, strides, pads, dilations, groups, layout, dtype, x_layout):
        r, own = x.rank - 2, x_layout or layout
        low, high = with_channels(0, 0, pads[:r], own), with_channels(0, 0, pads[r:], own)
        x = b.pad(x, low, high)
        sizes = None
        if own == layout == "nchw" and all(n == 1 for n in (*w.shape[2:], *strides)):  # a product: lanes along pixels
            sizes, strides, dilations = x.shape[2:], (1,), (1,)
            x = b.reshape(x, [*x.shape[:2], math.prod(sizes)])
            w = b.reshape(w, [*w.shape[:2], 1])
        out = convolve(b, x, w, strides, dilations, groups, layout, x_layout=own)
        out = add_bias(b, out, bias, layout, dtype or x.dtype)
        return out if sizes is None else b.reshape(out, [*out.shape[:2], *sizes])


def check_conv(x, w, strides, pads, dilations, layout, dtype=None):
    """The rules that all convolutions share; returns the number of channels of x."""
    need("number", x, w)
    need_factors(x, w, dtype)
    axis = channel_axis(x, layout)
    r = x.rank - 2
    if r < 1 or w.rank != x.rank:
        raise OpError(f"needs x and weights of one rank >= 3, got {x} and {w}")
    if len(strides) != r or len(dilations) != r or len(pads) != 2 * r:
        raise OpError(f"needs {r} strides, {r} dilations and {2 * r} pads, got {strides}, {dilations}, {pads}")
    if min((*strides, *dilations), default=1) < 1 or min(pads, default=0) < 0:
        raise OpError(f"strides {strides} and dilations {dilations} are positive, pads {pads} not negative")
    if 0 in w.shape[2:]:
        raise OpError(f"the window of {w} has no elements")
    return x.shape[axis]


def spatial(shape, layout):
    """The spatial sizes of a shape."""
    return shape[2:] if layout == "nchw" else shape[1:-1]


def with_channels(n, c, sizes, layout):
    """[n, c, *sizes] or [n, *sizes, c]."""
    return (n, c, *sizes) if layout == "nchw" else (n, *sizes, c)


def add_bias(b, x, bias, layout, dtype):
    """x + bias a channel, converted to `dtype`."""
    if bias is None:
        return b.cast_tensor(x, dtype)
    axis = 1 if layout == "nchw" else x.rank - 1
    return per_channel(b, lambda v, c: b.cast(v + b.cast(c, x.dtype), dtype), x, [bias], axis, dtype)


def convolve(b, x, w, strides, dilations, groups, layout, dtype=None, x_layout=None):
    """The convolution of an already padded x, one linalg.generic; the result has the wide dtype, or `dtype`.

    Loops are n, group, output channel, positions, then input channel and kernel; with "nhwc" n, positions, group,
    output channel, then kernel and input channel, the weights transposed so that the output channel is innermost. Where
    x is not "nhwc" then, the input channel comes before the kernel again.
    Loops that could only have one value (the group of an ordinary, the channels of a depthwise convolution) are left
    out.
    """
    r, first = x.rank - 2, layout == "nchw"
    channels_first = (x_layout or layout) == "nchw"
    n, sizes, kernel = x.shape[0], spatial(x.shape, x_layout or layout), w.shape[2:]
    size = {"g": groups, "o": w.shape[0] // groups, "c": w.shape[1], "n": n}
    out_sizes = [
        (d - dilations[i] * (k - 1) - 1) // strides[i] + 1 for i, (d, k) in enumerate(zip(sizes, kernel, strict=True))
    ]
    size |= {f"y{i}": d for i, d in enumerate(out_sizes)} | {f"k{i}": d for i, d in enumerate(kernel)}
    g = ["g"] if groups > 1 else []
    o = ["o"] if size["o"] > 1 or groups == 1 else []
    c = ["c"] if size["c"] > 1 or groups == 1 else []
    y, k = [f"y{i}" for i in range(r)], [f"k{i}" for i in range(r)]
    parallel = ["n", *g, *o, *y] if first else ["n", *y, *g, *o]
    loops = [*parallel, *(c + k if channels_first else k + c)]
    at = {name: b.dim(i) for i, name in enumerate(loops)}

    position = [at[f"y{i}"] * strides[i] + at[f"k{i}"] * dilations[i] for i in range(r)]
    x = b.reshape(x, with_split(n, [size[d] for d in g + c], sizes, channels_first))
    x_index = with_split(at["n"], [at[d] for d in g + c], position, channels_first)
    w = b.reshape(w, [size[d] for d in g + o + c + k])
    w_order = g + o + c + k
    if not first:
        inner = c + k if channels_first else k + c
        w_order = [*g, *inner, *o] if o else [*inner, *g]
        w = b.transpose(w, [(g + o + c + k).index(d) for d in w_order])
    acc = dtype or wide(x.dtype)
    zero = b.fill(0, Type(tuple(size[d] for d in parallel), acc))
    kinds = "".join("p" if d in parallel else "r" for d in loops)
    out = b.generic(
        [(x, x_index), (w, [at[d] for d in w_order])],
        [(zero, [at[d] for d in parallel])],
        kinds,
        lambda v, f, s: s + b.cast(v, acc) * b.cast(f, acc),
    )[0]
    return b.reshape(out, with_channels(n, w_channels(size), out_sizes, layout))


def w_channels(size):
    return size["g"] * size["o"]


def with_split(n, channels, rest, first):
    """[n, *channels, *rest] or [n, *rest, *channels]."""
    return [n, *channels, *rest] if first else [n, *rest, *channels]


def convolve_numpy(x, w, strides, dilations, groups):
    """Convolution of an already padded x [N, C, *spatial], by one matrix product a group."""
    r, n = x.ndim - 2, x.shape[0]
    extent = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, extent, axis=tuple(range(2, 2 + r)))
    steps: list[Any] = [slice(None, None, s) for s in (*strides, *dilations)]
    windows = windows[(..., *steps)]
    sizes = windows.shape[2 : 2 + r]
    columns = windows.reshape(n, groups, x.shape[1] // groups, *windows.shape[2:])
    order = (0, 1, *range(3, 3 + r), 2, *range(3 + r, 3 + 2 * r))
    depth = math.prod(w.shape[1:])  # not -1, which is no size beside one of 0
    columns = columns.transpose(order).reshape(n, groups, math.prod(sizes), depth)
    out = np.matmul(w.reshape(groups, w.shape[0] // groups, depth), np.swapaxes(columns, -1, -2))
    return out.reshape(n, w.shape[0], *sizes)


class ConvTranspose(Operator):
    """Transposed convolution: the gradient of `conv` with respect to its input. Weights are [I, O / groups, *kernel].

    The result has ``(size - 1) * stride + dilation * (kernel - 1) + 1 - pads + output_padding`` elements a dimension.
    """

    @staticmethod
    def infer(
        x,
        w,
        bias=None,
        *,
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        dilations: tuple[int, ...],
        output_padding: tuple[int, ...],
        groups: int = 1,
        layout: str = "nchw",
    ):
        channels = check_conv(x, w, strides, pads, dilations, layout)
        r, sizes = x.rank - 2, spatial(x.shape, layout)
        if channels is not None and w.shape[0] is not None and channels != w.shape[0]:
            raise OpError(f"weights {w} need {w.shape[0]} channels, {x} has {channels}")
        if groups < 1 or (w.shape[0] or 0) % groups:
            raise OpError(f"{w.shape[0]} channels do not divide into {groups} groups")
        if len(output_padding) != r or min(output_padding, default=0) < 0:
            raise OpError(f"needs {r} output paddings >= 0, got {tuple(output_padding)}")
        out_channels = None if w.shape[1] is None else w.shape[1] * groups
        need_shape("bias", bias, (out_channels,))
        same_dtype(x, bias)
        out: list[int | None] = []
        for i, n in enumerate(sizes):
            if n is None or w.shape[2 + i] is None:
                out.append(None)
                continue
            size = (n - 1) * strides[i] + dilations[i] * (w.shape[2 + i] - 1) + 1
            size += output_padding[i] - pads[i] - pads[r + i]
            out.append(size)
            if size < 1:
                raise OpError(f"pads {tuple(pads)} leave nothing of dimension {i}")
        return x.with_shape(with_channels(x.shape[0], out_channels, out, layout))

    @staticmethod
    def _margins(kernel, pads, dilations, output_padding):
        """Elements to add before and after each zero-stuffed dimension; negative ones are cut off."""
        reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
        r = len(kernel)
        low = [reach[i] - pads[i] for i in range(r)]
        high = [reach[i] - pads[r + i] + output_padding[i] for i in range(r)]
        return low, high

    @staticmethod
    def reference(x, w, bias=None, *, strides, pads, dilations, output_padding, groups, layout):
        def f(x, w, bias):
            if layout == "nhwc":
                x = np.moveaxis(x, -1, 1)
            r, kernel = x.ndim - 2, w.shape[2:]
            sizes = [(d - 1) * s + 1 for d, s in zip(x.shape[2:], strides, strict=True)]
            stuffed = np.zeros((*x.shape[:2], *sizes), x.dtype)
            steps: list[Any] = [slice(None, None, s) for s in strides]
            stuffed[(..., *steps)] = x
            low, high = ConvTranspose._margins(kernel, pads, dilations, output_padding)
            width = [(max(a, 0), max(c, 0)) for a, c in zip(low, high, strict=True)]
            stuffed = np.pad(stuffed, [(0, 0), (0, 0), *width])
            cut: list[Any] = [
                slice(max(-a, 0), d - max(-c, 0)) for a, c, d in zip(low, high, stuffed.shape[2:], strict=True)
            ]
            stuffed = stuffed[(..., *cut)]
            flipped = np.flip(w, tuple(range(2, 2 + r))).reshape(groups, w.shape[0] // groups, w.shape[1], *kernel)
            flipped = np.swapaxes(flipped, 1, 2).reshape(groups * w.shape[1], w.shape[0] // groups, *kernel)
            out = convolve_numpy(stuffed, flipped, [1] * r, dilations, groups)
            out = out if bias is None else out + bias.reshape(-1, *[1] * r)
            return np.ascontiguousarray(np.moveaxis(out, 1, -1)) if layout == "nhwc" else out

        return in_wide(f, x, w, bias)

    @staticmethod
    def lower(b, x, w, bias=None, *, strides, pads, dilations, output_padding, groups, layout):
        r, kernel = x.rank - 2, w.shape[2:]
        low, high = ConvTranspose._margins(kernel, pads, dilations, output_padding)
        stuffed = _stuff(b, x, strides, low, high, layout)
        # [I, O/g, *k] -> [O, I/g, *k], kernel reversed
        last = [k - 1 for k in kernel]
        w = b.slice(w, [0, 0, *last], w.shape, [1, 1, *[-1] * r]) if any(last) else w
        w = b.reshape(w, [groups, w.shape[0] // groups, *w.shape[1:]])
        w = b.transpose(w, [0, 2, 1, *range(3, 3 + r)])
        w = b.reshape(w, [w.shape[0] * w.shape[1], *w.shape[2:]])
        out = convolve(b, stuffed, w, [1] * r, dilations, groups, layout)
        return add_bias(b, out, bias, layout, x.dtype)


def _stuff(b, x, strides, low, high, layout):
    """x with stride - 1 zeros between its elements and the margins added (or cut off where negative).

    Zeros come from padding a dimension of size 1 behind each spatial one: [.., H] -> [.., H, 1] -> [.., H, s] -> [..,
    H * s].
    """
    axes = range(2, x.rank) if layout == "nchw" else range(1, x.rank - 1)
    for axis, s, a, c in zip(axes, strides, low, high, strict=True):
        shape = list(x.shape)
        if s > 1:
            spread = b.reshape(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
            behind = [s - 1 if i == axis + 1 else 0 for i in range(spread.rank)]
            shape[axis] *= s
            x = b.reshape(b.pad(spread, [0] * spread.rank, behind), shape)
            c -= s - 1  # the zeros behind the last element
        if a < 0 or c < 0:
            starts = [max(-a, 0) if i == axis else 0 for i in range(x.rank)]
            shape[axis] -= max(-a, 0) + max(-c, 0)
            x = b.slice(x, starts, shape, [1] * x.rank)
        before = [max(a, 0) if i == axis else 0 for i in range(x.rank)]
        x = b.pad(x, before, [max(c, 0) if i == axis else 0 for i in range(x.rank)])
    return x
