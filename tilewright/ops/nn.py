"""Softmax and its relatives. Halves are computed in f32."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..support.dtypes import wide
from .common import axis_of, in_wide, need, total
from .reduce import ArgMax


class AlongAxis(Operator, abstract=True):
    """Base: float in, the same type out, one axis."""

    @classmethod
    def infer(cls, x, *, axis: int = -1):
        need("float", x)
        axis_of(axis, x.rank)
        return x


class Softmax(AlongAxis):
    """exp(x - max(x)) / sum(exp(x - max(x))) along `axis`.

    ``"tw.softmax"(%x) {axis = -1} : (tensor<2x8xf32>) -> tensor<2x8xf32>``
    """

    @staticmethod
    def reference(x, *, axis):
        def f(v):
            e = np.exp(v - v.max(axis=axis, keepdims=True, initial=-np.inf))
            return e / e.sum(axis=axis, keepdims=True)

        return in_wide(f, x)

    @staticmethod
    def lower(b, x, *, axis):
        return softmax(b, x, axis)


def softmax(b, x, axis):
    """Softmax of x in linalg, computed in the wide dtype, result in the dtype of x."""
    axes, dtype = [axis % x.rank], x.dtype
    x = b.cast_tensor(x, wide(dtype))
    # a NaN may be left out of the maximum: its own exponential is NaN, and so is the sum
    top = b.reduce(lambda v, m: b.larger(v, m), -np.inf, x, axes, keepdims=True)
    e = b.elementwise(lambda v, m: b.unary("exp", v - m), x, top)
    s = total(b, e, axes, keepdims=True)
    inverse = b.elementwise(lambda s: 1.0 / s, s)  # one division a row
    return b.elementwise(lambda v, r: b.cast(v * r, dtype), e, inverse, dtype=dtype)


class LogSoftmax(AlongAxis):
    """x - max(x) - log(sum(exp(x - max(x)))) along `axis`."""

    @staticmethod
    def reference(x, *, axis):
        def f(v):
            shifted = v - v.max(axis=axis, keepdims=True, initial=-np.inf)
            return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))

        return in_wide(f, x)

    @staticmethod
    def lower(b, x, *, axis):
        axes, dtype = [axis % x.rank], x.dtype
        x = b.cast_tensor(x, wide(dtype))
        top = b.reduce(lambda v, m: b.larger(v, m), -np.inf, x, axes, keepdims=True)
        shifted = b.elementwise(lambda v, m: v - m, x, top)
        s = total(b, b.elementwise(lambda v: b.unary("exp", v), shifted), axes, keepdims=True)
        log = b.elementwise(lambda s: b.unary("log", s), s)  # one logarithm a row
        return b.elementwise(lambda v, r: b.cast(v - r, dtype), shifted, log, dtype=dtype)


class Hardmax(AlongAxis):
    """1 at the first largest element along `axis`, 0 elsewhere."""

    @staticmethod
    def reference(x, *, axis):
        if not x.size:
            return x
        first = np.expand_dims(np.argmax(x, axis), axis)
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        return (np.arange(x.shape[axis]).reshape(shape) == first).astype(x.dtype)

    @staticmethod
    def lower(b, x, *, axis):
        axis = axis % x.rank
        at = ArgMax.lower(b, x, axis=axis, keepdims=True, last=False)
        index = [b.dim(i) for i in range(x.rank)]

        def body(i, _):
            one, zero = b.constant(1, x.dtype), b.constant(0, x.dtype)
            return b.select(b.cast(b.index(axis), "i64").eq(i), one, zero)

        return b.generic([(at, b.broadcast_index(at.shape, x.shape))], [(b.empty(x.type), index)], "p" * x.rank, body)[
            0
        ]
