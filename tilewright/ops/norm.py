"""Normalizations: computed in f32 for halves, each step its own linalg operation (fusion joins them)."""

from __future__ import annotations

from math import prod

import numpy as np

from ..ir.dialect import Operator
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import average, axis_of, divided, in_wide, need, need_shape, per_channel, same_dtype, total


def _shaped(v, axis, rank):
    """A vector laid along dimension `axis` of a tensor of this rank (NumPy)."""
    return v.reshape([-1 if i == axis else 1 for i in range(rank)])


class BatchNorm(Operator):
    """(x - mean) / sqrt(var + epsilon) * scale + bias with stored statistics for each channel (dimension `axis`)."""

    @staticmethod
    def infer(x, scale, bias, mean, var, *, epsilon: float = 1e-5, axis: int = 1):
        need("float", x, scale, bias, mean, var)
        channels = (x.shape[axis_of(axis, x.rank)],)
        for name, p in (("scale", scale), ("bias", bias), ("mean", mean), ("var", var)):
            need_shape(name, p, channels)
        return x

    @staticmethod
    def reference(x, scale, bias, mean, var, *, epsilon, axis):
        def f(x, *params):
            scale, bias, mean, var = (_shaped(p, axis % x.ndim, x.ndim) for p in params)
            return (x - mean) / np.sqrt(var + epsilon) * scale + bias

        return in_wide(f, x, scale, bias, mean, var)

    @staticmethod
    def lower(b, x, scale, bias, mean, var, *, epsilon, axis):
        acc = wide(x.dtype)

        def factor(s, v):
            return b.cast(s, acc) * b.unary("rsqrt", b.cast(v, acc) + epsilon)

        def body(v, k, m, c):  # the mean first: what is near it keeps its digits
            return b.cast((b.cast(v, acc) - b.cast(m, acc)) * k + b.cast(c, acc), x.dtype)

        return per_channel(b, body, x, [b.elementwise(factor, scale, var, dtype=acc), mean, bias], axis % x.rank)


def _normalize(b, x, axes, epsilon, dtype):
    """(x - mean) / sqrt(variance + epsilon) over `axes`, in the wide dtype."""
    x = b.cast_tensor(x, wide(dtype))
    centred = b.elementwise(lambda v, m: v - m, x, average(b, x, axes))
    squares = b.reduce(lambda v, s: v * v + s, 0, centred, axes, keepdims=True)
    count = prod(x.shape[a] for a in axes)
    inverse = b.elementwise(lambda s: b.unary("rsqrt", divided(s, count) + epsilon), squares)
    return b.elementwise(lambda v, r: v * r, centred, inverse)


def _normalize_numpy(x, axes, epsilon):
    centred = x - x.mean(axis=axes, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)


class LayerNorm(Operator):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the dimensions from `axis` on.

    Scale and bias broadcast to x from the right.
    ``"tw.layer_norm"(%x, %s, %b) : (tensor<2x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<2x8xf32>``
    """

    @staticmethod
    def infer(x, scale=None, bias=None, *, axis: int = -1, epsilon: float = 1e-5):
        return _check_trailing(x, axis, scale=scale, bias=bias)

    @staticmethod
    def reference(x, scale=None, bias=None, *, axis, epsilon):
        def f(x, scale, bias):
            out = _normalize_numpy(x, tuple(range(axis % x.ndim, x.ndim)), epsilon)
            out = out if scale is None else out * scale
            return out if bias is None else out + bias

        return in_wide(f, x, scale, bias)

    @staticmethod
    def lower(b, x, scale=None, bias=None, *, axis, epsilon):
        out = _normalize(b, x, list(range(axis % x.rank, x.rank)), epsilon, x.dtype)
        return _affine(b, out, scale, bias, x.dtype)


def _check_trailing(x, axis, **params):
    need("float", x)
    axis = axis_of(axis, x.rank)
    for name, p in params.items():
        if p is None:
            continue
        need("float", p)
        if p.rank > x.rank or any(
            d not in (1, n, None) and n is not None for d, n in zip(p.shape[::-1], x.shape[::-1], strict=False)
        ):
            raise OpError(f"{name} {p} does not broadcast to {x}")
    return x


def _affine(b, x, scale, bias, dtype):
    """x * scale + bias, broadcast from the right, then converted to `dtype`."""
    acc, present = x.dtype, [p for p in (scale, bias) if p is not None]

    def body(v, *params):
        rest = [b.cast(p, acc) for p in params]
        if scale is not None:
            v = v * rest.pop(0)
        if bias is not None:
            v = v + rest.pop(0)
        return b.cast(v, dtype)

    return b.elementwise(body, x, *present, dtype=dtype) if present else b.cast_tensor(x, dtype)


class RmsNorm(Operator):
    """x / sqrt(mean(x²) + epsilon) * scale over the dimensions from `axis` on."""

    @staticmethod
    def infer(x, scale=None, *, axis: int = -1, epsilon: float = 1e-5):
        return _check_trailing(x, axis, scale=scale)

    @staticmethod
    def reference(x, scale=None, *, axis, epsilon):
        def f(x, scale):
            axes = tuple(range(axis % x.ndim, x.ndim))
            out = x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + epsilon)
            return out if scale is None else out * scale

        return in_wide(f, x, scale)

    @staticmethod
    def lower(b, x, scale=None, *, axis, epsilon):
        axes, wider = list(range(axis % x.rank, x.rank)), b.cast_tensor(x, wide(x.dtype))
        squares = b.reduce(lambda v, s: v * v + s, 0, wider, axes, keepdims=True)
        count = prod(x.shape[a] for a in axes)
        inverse = b.elementwise(lambda s: b.unary("rsqrt", divided(s, count) + epsilon), squares)
        return _affine(b, b.elementwise(lambda v, r: v * r, wider, inverse), scale, None, x.dtype)


class GroupNorm(Operator):
    """Channels in `groups` groups, each normalized together with all positions; then scale and bias a channel.

    ``groups`` equal to the channels is instance normalization. Channels are dimension 1, or the last with layout
    "nhwc".
    """

    @staticmethod
    def infer(x, scale, bias, *, groups: int, epsilon: float = 1e-5, layout: str = "nchw"):
        need("float", x, scale, bias)
        axis = channel_axis(x, layout)
        if groups < 1 or (x.shape[axis] or 0) % groups:
            raise OpError(f"{x.shape[axis]} channels of {x} do not divide into {groups} groups")
        need_shape("scale", scale, (x.shape[axis],))
        need_shape("bias", bias, (x.shape[axis],))
        return x

    @staticmethod
    def _grouped(shape, groups, layout):
        """The shape with the group as a dimension of its own, and the axes that are normalized."""
        rank = len(shape)
        if layout == "nchw":
            return (shape[0], groups, shape[1] // groups, *shape[2:]), tuple(range(2, rank + 1))
        return (*shape[:-1], groups, shape[-1] // groups), (*range(1, rank - 1), rank)

    @staticmethod
    def reference(x, scale, bias, *, groups, epsilon, layout):
        axis = 1 if layout == "nchw" else x.ndim - 1

        def f(x, scale, bias):
            shape, axes = GroupNorm._grouped(x.shape, groups, layout)
            out = _normalize_numpy(x.reshape(shape), axes, epsilon).reshape(x.shape)
            return out * _shaped(scale, axis, x.ndim) + _shaped(bias, axis, x.ndim)

        return in_wide(f, x, scale, bias)

    @staticmethod
    def lower(b, x, scale, bias, *, groups, epsilon, layout):
        axis, acc = 1 if layout == "nchw" else x.rank - 1, wide(x.dtype)
        shape, axes = GroupNorm._grouped(x.shape, groups, layout)
        out = b.reshape(_normalize(b, b.reshape(x, shape), list(axes), epsilon, x.dtype), x.shape)

        def body(v, s, c):
            return b.cast(v * b.cast(s, acc) + b.cast(c, acc), x.dtype)

        return per_channel(b, body, out, [scale, bias], axis, x.dtype)


def channel_axis(x, layout):
    """The channel dimension: 1, or the last one with layout "nhwc"; OpError for other layouts or ranks."""
    if layout not in ("nchw", "nhwc"):
        raise OpError(f'layout is "nchw" (channels first) or "nhwc" (channels last), not {layout!r}')
    if x.rank < 2:
        raise OpError(f"needs batch and channel dimensions, got {x}")
    return 1 if layout == "nchw" else x.rank - 1


class Lrn(Operator):
    """x / (bias + alpha / size * (sum of squares of `size` neighbouring channels)) ** beta; channels first."""

    @staticmethod
    def infer(x, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0):
        need("float", x)
        same_dtype(x)
        if x.rank < 2 or size < 1:
            raise OpError(f"needs channels and a positive size, got {x} and {size}")
        return x

    @staticmethod
    def reference(x, *, size, alpha, beta, bias):
        def f(x):
            before = (size - 1) // 2
            width = [(before, size - 1 - before) if i == 1 else (0, 0) for i in range(x.ndim)]
            squares = np.pad(x * x, width)
            s = sum(np.take(squares, np.arange(i, i + x.shape[1]), 1) for i in range(size))
            return x / (bias + alpha / size * s) ** beta

        return in_wide(f, x)

    @staticmethod
    def lower(b, x, *, size, alpha, beta, bias):
        acc, n, before = wide(x.dtype), x.rank, (size - 1) // 2
        low = [before if i == 1 else 0 for i in range(n)]
        high = [size - 1 - before if i == 1 else 0 for i in range(n)]
        wider = b.cast_tensor(x, acc)
        window = b.empty(x.type.with_shape((size,)).with_dtype(acc))
        source = [b.dim(i) + b.dim(n) if i == 1 else b.dim(i) for i in range(n)]
        s = b.generic(
            [(b.pad(wider, low, high), source), (window, [b.dim(n)])],
            [(b.fill(0, wider.type), [b.dim(i) for i in range(n)])],
            "p" * n + "r",
            lambda v, _, s: v * v + s,
        )[0]

        def body(v, s):
            return b.cast(v / b.pow(s * (alpha / size) + bias, b.constant(beta, acc)), x.dtype)

        return b.elementwise(body, wider, s, dtype=x.dtype)


class LpNorm(Operator):
    """x divided by its 1-norm or 2-norm along `axis`; 0 where the norm is 0."""

    @staticmethod
    def infer(x, *, axis: int = -1, p: int = 2):
        need("float", x)
        axis_of(axis, x.rank)
        if p not in (1, 2):
            raise OpError(f"p is 1 or 2, not {p}")
        return x

    @staticmethod
    def reference(x, *, axis, p):
        def f(x):
            norm = np.abs(x).sum(axis=axis, keepdims=True) if p == 1 else np.sqrt((x * x).sum(axis=axis, keepdims=True))
            return np.where(norm == 0, np.zeros((), x.dtype), x / norm)

        return in_wide(f, x)

    @staticmethod
    def lower(b, x, *, axis, p):
        wider = b.cast_tensor(x, wide(x.dtype))
        power = b.elementwise(lambda v: b.abs(v) if p == 1 else v * v, wider)
        norm = total(b, power, [axis % x.rank], keepdims=True)
        if p == 2:
            norm = b.elementwise(lambda v: b.unary("sqrt", v), norm)

        def body(v, n):
            return b.cast(b.select(n.eq(0.0), 0.0, v / n), x.dtype)

        return b.elementwise(body, wider, norm, dtype=x.dtype)
