"""Quantize and dequantize: x ≈ (q - zero_point) * scale, for a tensor, a channel, or blocks along a dimension."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import NUMPY
from ..support import sub_byte as narrow
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import KINDS, axis_of, fits, need, same_dtype


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer dtype."""
    if dtype in narrow.INTS:
        return narrow.limits(dtype)
    info = np.iinfo(NUMPY[dtype])
    return int(info.min), int(info.max)


def _check(x, scale, zero_point, axis, block):
    if zero_point is not None and not fits(zero_point.shape, scale.shape):
        raise OpError(f"zero point {zero_point} and scale {scale} have different shapes")
    if scale.rank == 0 or scale.shape == (1,):
        return
    axis = axis_of(axis, x.rank)
    if block:
        expected = [None if d is None else -(-d // block) if i == axis else d for i, d in enumerate(x.shape)]
    else:
        expected = [x.shape[axis]]
    if not fits(scale.shape, tuple(expected)):
        raise OpError(
            f"scale {scale} does not fit dimension {axis} of {x}" + (f" in blocks of {block}" if block else "")
        )


def spread(p, x, axis, block):
    """A parameter in a shape that broadcasts to x (NumPy)."""
    if p is None or p.size == 1:
        return p if p is None else p.reshape(())
    if block:
        return np.take(np.repeat(p, block, axis), np.arange(x.shape[axis]), axis)
    return p.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


class QuantizeLinear(Operator):
    """round(x / scale) + zero_point, limited to the range of the integer dtype `to`; halves round to even.

    For an 8- or 4-bit float `to`, x / scale rounded to it; `saturate` says whether what is beyond becomes its largest
    number.

    ``"tw.quantize_linear"(%x, %s, %z) {to = "ui8"} : (tensor<4xf32>, tensor<f32>, tensor<ui8>) -> tensor<4xui8>``
    """

    @staticmethod
    def infer(x, scale, zero_point=None, *, to: str, axis: int = 1, block: int = 0, saturate: bool = True):
        need("number", x)
        need("float", scale)
        if to not in KINDS["quantized"] or (zero_point is not None and zero_point.dtype != to):
            raise OpError(f"cannot quantize to {to!r} with zero point {zero_point}")
        _check(x, scale, zero_point, axis, block)
        return x.with_dtype(to)

    @staticmethod
    def reference(x, scale, zero_point=None, *, to, axis, block, saturate):
        dtype = np.float64 if scale.dtype == np.float64 else np.float32
        y = x.astype(dtype) / spread(scale, x, axis, block).astype(dtype)
        y = y if to in narrow.FLOATS else np.rint(y)
        if zero_point is not None:
            y = y + narrow.decode(spread(zero_point, x, axis, block)).astype(dtype)
        if to in narrow.FLOATS:
            return narrow.encode(y, to, saturate)
        y = np.clip(y, *limits(to))
        return narrow.encode(y, to) if to in narrow.INTS else y.astype(NUMPY[to])

    @staticmethod
    def lower(b, x, scale, zero_point=None, *, to, axis, block, saturate):
        acc = wide(scale.dtype)

        def body(v, s, *zero):
            y = b.cast(v, acc) / b.cast(s, acc)
            y = y if to in narrow.FLOATS else b.unary("roundeven", y)
            if zero:
                y = y + b.cast(zero[0], acc)
            if to in narrow.FLOATS:
                return b.cast(y, to, saturate)
            low, high = limits(to)
            return b.cast(b.minimum(b.maximum(y, float(low)), float(high)), to)

        return _by_parameter(b, body, x, [scale, zero_point], axis, block, to)


class DequantizeLinear(Operator):
    """(x - zero_point) * scale, in the dtype of scale."""

    @staticmethod
    def infer(x, scale, zero_point=None, *, axis: int = 1, block: int = 0):
        need("quantized", x)
        need("float", scale)
        same_dtype(x, zero_point)
        _check(x, scale, zero_point, axis, block)
        return x.with_dtype(scale.dtype)

    @staticmethod
    def reference(x, scale, zero_point=None, *, axis, block):
        dtype = np.float64 if scale.dtype == np.float64 else np.float32
        y = narrow.decode(x).astype(dtype)
        if zero_point is not None:
            y = y - narrow.decode(spread(zero_point, x, axis, block)).astype(dtype)
        return (y * spread(scale, x, axis, block).astype(dtype)).astype(scale.dtype)

    @staticmethod
    def lower(b, x, scale, zero_point=None, *, axis, block):
        acc = wide(scale.dtype)

        def body(v, s, *zero):
            y = b.cast(v, acc)
            if zero:
                y = y - b.cast(zero[0], acc)
            return b.cast(y * b.cast(s, acc), scale.dtype)

        return _by_parameter(b, body, x, [scale, zero_point], axis, block, scale.dtype)


def _by_parameter(b, body, x, params, axis, block, dtype):
    """Elementwise body(x, *params) with parameters of the tensor, of a channel or of a block."""
    params = [p for p in params if p is not None]
    if params[0].type.size == 1:
        params = [b.reshape(p, ()) for p in params]
    elif block:
        axis = axis % x.rank
        shape, n = list(x.shape), x.shape[axis]
        blocks = -(-n // block)
        high = [blocks * block - n if i == axis else 0 for i in range(x.rank)]
        whole = b.pad(x, [0] * x.rank, high)
        split = b.reshape(whole, [*shape[:axis], blocks, block, *shape[axis + 1 :]])
        params = [b.reshape(p, [*p.shape[: axis + 1], 1, *p.shape[axis + 1 :]]) for p in params]
        out = b.reshape(b.elementwise(body, split, *params, dtype=dtype), whole.shape)
        return b.slice(out, [0] * x.rank, shape, [1] * x.rank) if any(high) else out
    else:
        params = [b.reshape(p, [p.shape[0] if i == axis % x.rank else 1 for i in range(x.rank)]) for p in params]
    return b.elementwise(body, x, *params, dtype=dtype)
