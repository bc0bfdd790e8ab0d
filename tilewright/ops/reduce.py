"""Reductions over axes, and running sums. Halves accumulate in f32."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

import numpy as np

from ..ir.builder import Tensor
from ..ir.dialect import Operator
from ..ir.types import NUMPY, Type, is_float
from ..support.dtypes import wide
from ..support.errors import OpError
from ..support.sizes import is_open
from .common import axes_of, axis_of, need, total, widen
from .math import Div


class Reduction(Operator, abstract=True):
    """Base of the reductions: `axes` are folded away, or kept as dimensions of size 1 with `keepdims`.

    A subclass gives ``fold(x, axes)`` in NumPy (dimensions kept) and ``reduce(b, x, axes)`` in linalg (dimensions
    kept).

    ``"tw.reduce_sum"(%x) {axes = array<i64: 1>, keepdims = true} : (tensor<2x8xf32>) -> tensor<2x1xf32>``
    """

    accepts = "number"
    fold: ClassVar[Callable[..., np.ndarray]]
    reduce: ClassVar[Callable[..., Tensor]]

    @classmethod
    def infer(cls, x, *, axes: tuple[int, ...], keepdims: bool = False):
        need(cls.accepts, x)
        folded = axes_of(axes, x.rank)
        return x.with_shape([1 if i in folded else d for i, d in enumerate(x.shape) if keepdims or i not in folded])

    @classmethod
    def reference(cls, x, *, axes, keepdims):
        folded = axes_of(axes, x.ndim)
        with np.errstate(all="ignore"):
            out = np.asarray(cls.fold(widen(x)[0], folded)).astype(x.dtype)
        return out if keepdims else np.squeeze(out, folded)

    @classmethod
    def lower(cls, b, x, *, axes, keepdims):
        folded = axes_of(axes, x.rank)
        out = b.cast_tensor(cls.reduce(b, x, folded), x.dtype)
        return out if keepdims else b.reshape(out, [d for i, d in enumerate(x.shape) if i not in folded])


class ReduceSum(Reduction):
    """Sum."""

    @staticmethod
    def fold(x, axes):
        return x.sum(axis=axes, keepdims=True, dtype=x.dtype)

    @staticmethod
    def reduce(b, x, axes):
        return total(b, x, axes, keepdims=True)


class ReduceMean(Reduction):
    """Mean; of integers, truncated toward zero."""

    @staticmethod
    def fold(x, axes):
        count = prod(x.shape[a] for a in axes)
        s = x.sum(axis=axes, keepdims=True, dtype=x.dtype)
        if x.dtype.kind == "f":
            return s / np.asarray(count, x.dtype)
        whole = np.dtype(f"{x.dtype.kind}8")
        return Div.reference(s.astype(whole), np.array(max(count, 1), whole))

    @staticmethod
    def reduce(b, x, axes):
        count = prod(x.shape[a] for a in axes)
        s = total(b, x, axes, keepdims=True)
        if is_float(x.dtype):
            return b.elementwise(lambda v: v / count, s)
        if not is_open(count) and count > np.iinfo(NUMPY[x.dtype]).max:  # more than any sum
            return b.fill(0, s.type)
        return b.elementwise(lambda v: v / max(count, 1), s)


class ReduceMax(Reduction):
    """Maximum; of nothing, the lowest number."""

    @staticmethod
    def fold(x, axes):
        return x.max(axis=axes, keepdims=True, initial=lowest(x.dtype))

    @staticmethod
    def reduce(b, x, axes):
        return b.reduce(lambda v, m: b.maximum(v, m), lowest(NUMPY[x.dtype]), x, axes, keepdims=True)


class ReduceMin(Reduction):
    """Minimum; of nothing, the highest number."""

    @staticmethod
    def fold(x, axes):
        return x.min(axis=axes, keepdims=True, initial=highest(x.dtype))

    @staticmethod
    def reduce(b, x, axes):
        return b.reduce(lambda v, m: b.minimum(v, m), highest(NUMPY[x.dtype]), x, axes, keepdims=True)


class ReduceProd(Reduction):
    """Product."""

    @staticmethod
    def fold(x, axes):
        return x.prod(axis=axes, keepdims=True, dtype=x.dtype)

    @staticmethod
    def reduce(b, x, axes):
        acc = wide(x.dtype)
        return b.reduce(lambda v, p: b.cast(v, acc) * p, 1, x, axes, keepdims=True, dtype=acc)


class ReduceL1(Reduction):
    """Sum of absolute values."""

    @staticmethod
    def fold(x, axes):
        return np.abs(x).sum(axis=axes, keepdims=True, dtype=x.dtype)

    @staticmethod
    def reduce(b, x, axes):
        acc = wide(x.dtype)
        return b.reduce(lambda v, s: b.abs(b.cast(v, acc)) + s, 0, x, axes, keepdims=True, dtype=acc)


class ReduceSumSquare(Reduction):
    """Sum of squares."""

    @staticmethod
    def fold(x, axes):
        return (x * x).sum(axis=axes, keepdims=True, dtype=x.dtype)

    @staticmethod
    def reduce(b, x, axes):
        return _sum_square(b, x, axes)


def _sum_square(b, x, axes):
    acc = wide(x.dtype)

    def body(v, s):
        v = b.cast(v, acc)
        return v * v + s

    return b.reduce(body, 0, x, axes, keepdims=True, dtype=acc)


class ReduceL2(Reduction):
    """Square root of the sum of squares; of integers, computed in f64."""

    @staticmethod
    def fold(x, axes):
        return np.sqrt((x * x).sum(axis=axes, keepdims=True, dtype=x.dtype))

    @staticmethod
    def reduce(b, x, axes):
        return _in_floats(b, "sqrt", _sum_square(b, x, axes))


class ReduceLogSum(Reduction):
    """Logarithm of the sum."""

    @staticmethod
    def fold(x, axes):
        return np.log(x.sum(axis=axes, keepdims=True, dtype=x.dtype))

    @staticmethod
    def reduce(b, x, axes):
        return _in_floats(b, "log", total(b, x, axes, keepdims=True))


def _in_floats(b, function, x):
    """A float function of a tensor; integers go through f64."""
    if is_float(x.dtype):
        return b.elementwise(lambda v: b.unary(function, v), x)
    return b.elementwise(lambda v: b.cast(b.unary(function, b.cast(v, "f64")), x.dtype), x)


class ReduceLogSumExp(Reduction):
    """log(sum(exp(x))), without overflow."""

    @staticmethod
    def fold(x, axes):
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
        top = x.max(axis=axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isinf(top), np.zeros((), x.dtype), top)
        return np.log(np.exp(x - top).sum(axis=axes, keepdims=True)) + top

    @staticmethod
    def reduce(b, x, axes):
        x = b.cast_tensor(x, wide(x.dtype) if is_float(x.dtype) else "f64")
        top = b.reduce(lambda v, m: b.maximum(v, m), -np.inf, x, axes, keepdims=True)
        top = b.elementwise(lambda v: b.select(b.abs(v).eq(np.inf), 0.0, v), top)  # inf - inf is no number
        e = b.elementwise(lambda v, m: b.unary("exp", v - m), x, top)
        return b.elementwise(lambda s, m: b.unary("log", s) + m, total(b, e, axes, keepdims=True), top)


class ReduceAny(Reduction):
    """Logical or of bools."""

    accepts = "bool"

    @staticmethod
    def fold(x, axes):
        return x.any(axis=axes, keepdims=True)

    @staticmethod
    def reduce(b, x, axes):
        return b.reduce(lambda v, s: v | s, False, x, axes, keepdims=True)


class ReduceAll(Reduction):
    """Logical and of bools."""

    accepts = "bool"

    @staticmethod
    def fold(x, axes):
        return x.all(axis=axes, keepdims=True)

    @staticmethod
    def reduce(b, x, axes):
        return b.reduce(lambda v, s: v & s, True, x, axes, keepdims=True)


def lowest(dtype: np.dtype) -> float | int:
    """The identity of max: -inf, or the smallest integer."""
    return int(np.iinfo(dtype).min) if dtype.kind in "iu" else -np.inf


def highest(dtype: np.dtype) -> float | int:
    """The identity of min: inf, or the largest integer."""
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else np.inf


# ---- positions -----------------------------------------------------------------------------------------------------


class ArgExtreme(Operator, abstract=True):
    """Base of arg_max and arg_min: the i64 position of the extreme element, the first one or the last one.

    A NaN counts as the extreme element.
    """

    find: ClassVar[Callable[..., Any]]
    extreme: ClassVar[Callable[..., Tensor]]

    @classmethod
    def infer(cls, x, *, axis: int = 0, keepdims: bool = False, last: bool = False):
        need("number", x)
        axis = axis_of(axis, x.rank)
        if x.shape[axis] == 0:
            raise OpError(f"dimension {axis} of {x} is empty")
        return Type(tuple(1 if i == axis else d for i, d in enumerate(x.shape) if keepdims or i != axis), "i64")

    @classmethod
    def reference(cls, x, *, axis, keepdims, last):
        axis, find = axis % x.ndim, cls.find
        x = widen(x)[0]
        out = x.shape[axis] - 1 - find(np.flip(x, axis), axis) if last else find(x, axis)
        return np.expand_dims(out, axis).astype(np.int64) if keepdims else out.astype(np.int64)

    @classmethod
    def lower(cls, b, x, *, axis, keepdims, last):
        axis = axis % x.rank
        n = x.shape[axis]
        # of halves in f32: rounded to a half again it may be another number (on x86 bf16 has no subnormal ones)
        acc = wide(x.dtype)
        extreme = cls.extreme(b, b.cast_tensor(x, acc), (axis,))
        kept = [1 if i == axis else d for i, d in enumerate(x.shape)]
        place = "i32" if n < 1 << 31 else "i64"  # half of the lanes would be needed for nothing
        # behind the last place; the largest number where that is not known
        none = -1 if last else n if not is_open(n) else (1 << (31 if place == "i32" else 63)) - 1
        start = b.fill(none, Type(tuple(kept), place))
        index = [b.dim(i) for i in range(x.rank)]
        one = b.broadcast_index(kept, x.shape)

        def body(v, m, at):
            v = b.cast(v, acc)
            hit = v.eq(m) if not is_float(v.dtype) else v.eq(m) | v.ne(v)
            here = b.cast(b.index(axis), place)
            found = b.select(hit, here, b.constant(none, place))
            return b.maximum(found, at) if last else b.minimum(found, at)

        kinds = "".join("r" if i == axis else "p" for i in range(x.rank))
        if n == 1:  # the result index must name the loop even where its only value is 0
            one = [e if i != axis else b.dim(axis) * 0 for i, e in enumerate(one)]
        out = b.cast_tensor(b.generic([(x, index), (extreme, one)], [(start, one)], kinds, body)[0], "i64")
        return out if keepdims else b.reshape(out, [d for i, d in enumerate(kept) if i != axis])


class ArgMax(ArgExtreme):
    """Position of the largest element along `axis`."""

    find = staticmethod(np.argmax)
    extreme = staticmethod(ReduceMax.reduce)


class ArgMin(ArgExtreme):
    """Position of the smallest element along `axis`."""

    find = staticmethod(np.argmin)
    extreme = staticmethod(ReduceMin.reduce)


# ---- running sums --------------------------------------------------------------------------------------------------


class RunningReduction(Operator, abstract=True):
    """Base of the running sum and product."""

    kind = "opaque"
    neutral = 0
    accumulate: ClassVar[Callable[..., np.ndarray]]

    @staticmethod
    def infer(x, *, axis: int, exclusive: bool = False, reverse: bool = False):
        need("number", x)
        axis_of(axis, x.rank)
        return x

    @classmethod
    def running(cls, x, *, axis, exclusive, reverse):
        """The reference: with `exclusive` shifted by one."""
        wider = widen(np.flip(x, axis) if reverse else x)[0]
        out = cls.accumulate(wider, axis, dtype=wider.dtype)
        if exclusive and x.shape[axis]:
            out = np.roll(out, 1, axis)
            out[(slice(None),) * (axis % x.ndim) + (slice(0, 1),)] = cls.neutral
        return (np.flip(out, axis) if reverse else out).astype(x.dtype)

    @classmethod
    def decompose(cls, b, x, *, axis, exclusive, reverse):
        axis, n, acc = axis % x.rank, x.rank, wide(x.dtype)
        out = [b.dim(i) for i in range(n)]
        source = [b.dim(n) if i == axis else b.dim(i) for i in range(n)]

        def body(v, s):
            here, there = b.index(axis), b.index(n)
            if reverse:
                here, there = there, here
            v = b.cast(v, acc)
            return b.select(there < here if exclusive else there <= here, v * s if cls.neutral else v + s, s)

        start = b.fill(cls.neutral, x.type.with_dtype(acc))
        return b.cast_tensor(b.generic([(x, source)], [(start, out)], "p" * n + "r", body)[0], x.dtype)


class Cumsum(RunningReduction):
    """Running sum along `axis`: `exclusive` leaves out the element itself, `reverse` starts at the end.

    Opaque: a scan is not an iteration domain. `decompose` gives it as a triangular sum in linalg, of quadratic cost.
    """

    accumulate = staticmethod(np.cumsum)

    @staticmethod
    def reference(x, *, axis, exclusive, reverse):
        return Cumsum.running(x, axis=axis, exclusive=exclusive, reverse=reverse)


class Cumprod(RunningReduction):
    """Running product along `axis`, with the attributes of `Cumsum`."""

    neutral = 1
    accumulate = staticmethod(np.cumprod)

    @staticmethod
    def reference(x, *, axis, exclusive, reverse):
        return Cumprod.running(x, axis=axis, exclusive=exclusive, reverse=reverse)
