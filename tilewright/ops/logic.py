"""Comparisons, logic, bits and selection."""

from __future__ import annotations

import numpy as np

from ..ir.types import NUMPY, is_unsigned, itemsize
from ..support.errors import OpError
from .common import KINDS, Binary, Elementwise, Unary, need, same_dtype


class Equal(Binary):
    """x == y.

    ``"tw.equal"(%x, %y) : (tensor<4xf32>, tensor<f32>) -> tensor<4xi1>``
    """

    result = "i1"
    reference = staticmethod(np.equal)

    @staticmethod
    def scalar(b, x, y):
        return x.eq(y)


class Less(Binary):
    """x < y."""

    accepts, result = "number", "i1"
    reference = staticmethod(np.less)

    @staticmethod
    def scalar(b, x, y):
        return x < y


class LessEqual(Binary):
    """x <= y."""

    accepts, result = "number", "i1"
    reference = staticmethod(np.less_equal)

    @staticmethod
    def scalar(b, x, y):
        return x <= y


class Greater(Binary):
    """x > y."""

    accepts, result = "number", "i1"
    reference = staticmethod(np.greater)

    @staticmethod
    def scalar(b, x, y):
        return x > y


class GreaterEqual(Binary):
    """x >= y."""

    accepts, result = "number", "i1"
    reference = staticmethod(np.greater_equal)

    @staticmethod
    def scalar(b, x, y):
        return x >= y


class And(Binary):
    """Logical and of bools, bitwise and of integers."""

    accepts = "bits"
    reference = staticmethod(np.bitwise_and)

    @staticmethod
    def scalar(b, x, y):
        return x & y


class Or(Binary):
    """Logical or of bools, bitwise or of integers."""

    accepts = "bits"
    reference = staticmethod(np.bitwise_or)

    @staticmethod
    def scalar(b, x, y):
        return x | y


class Xor(Binary):
    """Exclusive or of bools or of the bits of integers."""

    accepts = "bits"
    reference = staticmethod(np.bitwise_xor)

    @staticmethod
    def scalar(b, x, y):
        return x ^ y


class Not(Unary):
    """Logical not of bools, bitwise not of integers."""

    accepts = "bits"
    reference = staticmethod(np.invert)

    @staticmethod
    def scalar(b, x):
        return ~x


class ShiftLeft(Binary):
    """x << y, 0 where y is at least the width of the type or negative."""

    accepts = "int"

    @staticmethod
    def reference(x, y):
        return _shift(np.left_shift, x, y)

    @staticmethod
    def scalar(b, x, y):
        return b.shift_left(x, y)


class ShiftRight(Binary):
    """x >> y; signed integers keep their sign. All bits leave where y is at least the width or negative."""

    accepts = "int"

    @staticmethod
    def reference(x, y):
        bits = x.dtype.itemsize * 8
        if x.dtype.kind == "u":
            return _shift(np.right_shift, x, y)
        return np.right_shift(x, np.where((y < 0) | (y >= bits), bits - 1, y).astype(y.dtype))

    @staticmethod
    def scalar(b, x, y):
        if is_unsigned(x.dtype):
            return b.shift_right(x, y)
        last = int(x.dtype[1:]) - 1
        return b.shift_right(x, b.select((y < 0) | (y > last), last, y))


def _shift(f, x, y):
    bits = x.dtype.itemsize * 8
    valid = (y >= 0) & (y < bits)
    return np.where(valid, f(x, np.where(valid, y, 0).astype(y.dtype)), 0).astype(x.dtype)


class IsNan(Unary):
    """Whether x is NaN."""

    accepts, result = "float", "i1"
    reference = staticmethod(np.isnan)

    @staticmethod
    def scalar(b, x):
        return x.ne(x)


class IsInf(Elementwise):
    """Whether x is infinite, of the signs asked for."""

    accepts, result = "float", "i1"

    @classmethod
    def infer(cls, x, *, negative: bool = True, positive: bool = True):
        return cls.check(x)

    @staticmethod
    def reference(x, *, negative, positive):
        return np.isinf(x) & ((x > 0) & positive | (x < 0) & negative)

    @staticmethod
    def scalar(b, x, *, negative, positive):
        if negative and positive:
            return b.abs(x).eq(np.inf)
        if not negative and not positive:
            return b.constant(False, "i1")
        return x.eq(np.inf if positive else -np.inf)


class Where(Elementwise):
    """x where the condition (i1) holds, y elsewhere; shapes broadcast."""

    @classmethod
    def infer(cls, condition, x, y):
        need("bool", condition)
        same_dtype(x, y)
        return cls.check(condition, x.with_dtype("i1"), y.with_dtype("i1")).with_dtype(x.dtype)

    @staticmethod
    def reference(condition, x, y):
        return np.where(condition, x, y)

    @staticmethod
    def scalar(b, condition, x, y):
        return b.select(condition, x, y)

    @classmethod
    def lower(cls, b, condition, x, y):
        return b.elementwise(b.select, condition, x, y, dtype=x.dtype)


class Bitcast(Elementwise):
    """The bits of every element read as the dtype `to`, of the same size."""

    @classmethod
    def infer(cls, x, *, to: str):
        if to not in KINDS["any"] or itemsize(to) != itemsize(x.dtype):
            raise OpError(f"cannot read the elements of {x} as {to!r}")
        return x.with_dtype(to)

    @staticmethod
    def reference(x, *, to):
        return np.ascontiguousarray(x).view(NUMPY[to]).reshape(x.shape)

    @classmethod
    def lower(cls, b, x, *, to):
        if "i1" not in (x.dtype, to):
            return b.elementwise(lambda v: b.reinterpret(v, to), x, dtype=to)
        return b.cast_tensor(x, to)  # a boolean is a byte, 0 or 1
