"""Elementwise arithmetic and functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ..ir.types import is_float, is_unsigned, signless
from .common import Binary, Elementwise, Unary, in_wide


class Add(Binary):
    """x + y.

    ``"tw.add"(%x, %y) : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>``
    """

    accepts = "number"
    reference = staticmethod(np.add)

    @staticmethod
    def scalar(b, x, y):
        return x + y


class Sub(Binary):
    """x - y."""

    accepts = "number"
    reference = staticmethod(np.subtract)

    @staticmethod
    def scalar(b, x, y):
        return x - y


class Mul(Binary):
    """x * y."""

    accepts = "number"
    reference = staticmethod(np.multiply)

    @staticmethod
    def scalar(b, x, y):
        return x * y


class Div(Binary):
    """x / y; integers truncate toward zero, and an integer divided by zero is 0 (never a trap)."""

    accepts = "number"

    @staticmethod
    def reference(x, y):
        with np.errstate(all="ignore"):
            if x.dtype.kind not in "iu":
                return x / y
            safe = np.where(y == 0, 1, y).astype(y.dtype)
            quotient = x // safe
            quotient = quotient + ((x % safe != 0) & ((x < 0) != (y < 0))).astype(quotient.dtype)
            return np.where(y == 0, 0, quotient).astype(x.dtype)

    @staticmethod
    def scalar(b, x, y):
        if is_float(x.dtype):
            return x / y
        zero = y.eq(0)
        if is_unsigned(x.dtype):
            return b.select(zero, 0, x / b.select(zero, 1, y))
        minus = y.eq(-1)  # the lowest integer divided by -1 traps
        quotient = x / b.select(zero | minus, 1, y)
        return b.select(zero, 0, b.select(minus, 0 - x, quotient))


class Mod(Elementwise):
    """Remainder of x / y: with the sign of y as in Python, or of x as in C if `fmod`; integers modulo 0 give 0."""

    accepts = "number"

    @classmethod
    def infer(cls, x, y, *, fmod: bool = False):
        return cls.check(x, y)

    @staticmethod
    def reference(x, y, *, fmod):
        if x.dtype.kind == "O":  # sizes, which are not negative
            return np.mod(x, y)
        if x.dtype.kind in "iu":
            f = np.fmod if fmod else np.mod
            safe = np.where(y == 0, 1, y).astype(y.dtype)
            return np.where(y == 0, 0, f(x, safe)).astype(x.dtype)

        def of_floats(x, y):  # np.mod gives a zero the sign of y
            r = np.fmod(x, y)
            return r if fmod else np.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)

        return in_wide(of_floats, x, y)

    widens = True

    @staticmethod
    def scalar(b, x, y, *, fmod):
        if is_float(x.dtype):
            r = b.remainder(x, y)
            wrong_side = r.ne(0.0) & ((r < 0.0) ^ (y < 0.0))
            return r if fmod else b.select(wrong_side, r + y, r)
        trap = y.eq(0) if is_unsigned(x.dtype) else y.eq(0) | y.eq(-1)
        r = b.remainder(x, b.select(trap, 1, y))  # modulo 1 and -1 are 0
        if fmod or is_unsigned(x.dtype):
            return r
        wrong_side = r.ne(0) & ((r < 0) ^ (y < 0))
        return b.select(wrong_side, r + y, r)


class Pow(Binary):
    """x ** y; integer powers wrap. Negative powers of integers are 0, but for those of 1 and -1."""

    accepts = "number"
    widens = True

    @staticmethod
    def reference(x, y):
        if x.dtype.kind not in "iu":  # of one exponent for all NumPy takes the square root, which differs for -0
            return in_wide(np.power, x, np.array(np.broadcast_to(y, np.broadcast_shapes(x.shape, y.shape))))
        power = np.power(x, np.where(y < 0, y & 1, y))
        return np.where((y < 0) & (x != 1) & (x + 1 != 0), 0, power).astype(x.dtype)

    @staticmethod
    def scalar(b, x, y):
        if is_float(x.dtype):
            return b.pow(x, y)
        result, square = b.constant(1, x.dtype), x
        bits = int(signless(x.dtype)[1:]) - (not is_unsigned(x.dtype))
        for bit in range(bits):
            square = square * square if bit else x
            result = b.select((y & (1 << bit)).ne(0), result * square, result)
        if is_unsigned(x.dtype):
            return result
        return b.select((y < 0) & x.ne(1) & x.ne(-1), 0, result)  # the lowest bit says what -1 becomes


class Max(Binary):
    """The larger of x and y; NaN if either is."""

    accepts = "number"
    reference = staticmethod(np.maximum)

    @staticmethod
    def scalar(b, x, y):
        return b.maximum(x, y)


class Min(Binary):
    """The smaller of x and y; NaN if either is."""

    accepts = "number"
    reference = staticmethod(np.minimum)

    @staticmethod
    def scalar(b, x, y):
        return b.minimum(x, y)


class Neg(Unary):
    """-x."""

    accepts = "number"
    reference = staticmethod(np.negative)

    @staticmethod
    def scalar(b, x):
        return -x


class Abs(Unary):
    """The absolute value of x."""

    accepts = "number"
    reference = staticmethod(np.abs)

    @staticmethod
    def scalar(b, x):
        return b.abs(x)


class Sign(Elementwise):
    """1 for positive, -1 for negative numbers; NaN and zeros stay, or are 0 `by_order`: (x > 0) - (x < 0)."""

    accepts = "number"

    @classmethod
    def infer(cls, x, *, by_order: bool = False):
        return cls.check(x)

    @staticmethod
    def reference(x, *, by_order):
        other = np.zeros((), x.dtype) if by_order else x
        return np.where(x > 0, np.ones((), x.dtype), np.where(x < 0, -np.ones((), x.dtype), other))

    @staticmethod
    def scalar(b, x, *, by_order):
        other = b.constant(0, x.dtype) if by_order else x
        low = other if is_unsigned(x.dtype) else b.select(x < 0, -1, other)
        return b.select(x > 0, 1, low)


class Reciprocal(Unary):
    """1 / x."""

    accepts = "float"

    @staticmethod
    def reference(x):
        return in_wide(lambda v: 1 / v, x)

    @staticmethod
    def scalar(b, x):
        return 1.0 / x


class Clip(Elementwise):
    """x limited to [low, high]; a missing limit does not limit. NaN stays NaN."""

    accepts = "number"

    @classmethod
    def infer(cls, x, *, low: float | None = None, high: float | None = None):
        return cls.check(x)

    @staticmethod
    def reference(x, *, low, high):
        if low is not None:
            x = np.maximum(x, np.asarray(low).astype(x.dtype))
        return x if high is None else np.minimum(x, np.asarray(high).astype(x.dtype))

    @staticmethod
    def scalar(b, x, *, low, high):
        if low is not None:
            x = b.maximum(x, low)
        return x if high is None else b.minimum(x, high)


# ---- functions of one float ----------------------------------------------------------------------------------------


class MathFunction(Unary, abstract=True):
    """A function of floats that is one `math` operation of the same name; halves are computed in f32."""

    accepts = "float"
    widens = True
    function: ClassVar[Callable]

    @classmethod
    def reference(cls, x):
        return in_wide(cls.function, x)

    @classmethod
    def scalar(cls, b, x):
        return b.unary(cls.mnemonic, x)


class Exp(MathFunction):
    """e ** x."""

    function = np.exp


class Exp2(MathFunction):
    """2 ** x, exact for whole numbers."""

    @staticmethod
    def function(x):
        return np.exp2(x, dtype=np.float64)


class Expm1(MathFunction):
    """e ** x - 1, precise near 0."""

    function = np.expm1


class Log(MathFunction):
    """Natural logarithm."""

    function = np.log


class Log1p(MathFunction):
    """log(1 + x), precise near 0."""

    function = np.log1p


class Log2(MathFunction):
    """Binary logarithm, exact for powers of 2."""

    @staticmethod
    def function(x):
        return np.log2(x, dtype=np.float64)


class Log10(MathFunction):
    """Decimal logarithm, exact for powers of 10."""

    @staticmethod
    def function(x):
        return np.log10(x, dtype=np.float64)


class Sqrt(MathFunction):
    """Square root."""

    function = np.sqrt


class Cbrt(MathFunction):
    """Cube root."""

    function = np.cbrt


class Rsqrt(MathFunction):
    """1 / sqrt(x)."""

    @staticmethod
    def function(x):
        return 1 / np.sqrt(x)


class Tanh(MathFunction):
    """Hyperbolic tangent."""

    function = np.tanh


class Erf(MathFunction):
    """Gauss error function."""

    @staticmethod
    def function(x):
        return erf(x)


class Sin(MathFunction):
    """Sine."""

    function = np.sin


class Cos(MathFunction):
    """Cosine."""

    function = np.cos


class Tan(MathFunction):
    """Tangent."""

    function = np.tan


class Asin(MathFunction):
    """Inverse sine."""

    function = np.arcsin


class Acos(MathFunction):
    """Inverse cosine."""

    function = np.arccos


class Atan(MathFunction):
    """Inverse tangent."""

    function = np.arctan


class Sinh(MathFunction):
    """Hyperbolic sine."""

    function = np.sinh


class Cosh(MathFunction):
    """Hyperbolic cosine."""

    function = np.cosh


class Asinh(MathFunction):
    """Inverse hyperbolic sine."""

    function = np.arcsinh


class Acosh(MathFunction):
    """Inverse hyperbolic cosine."""

    function = np.arccosh


class Atanh(MathFunction):
    """Inverse hyperbolic tangent."""

    function = np.arctanh


class Floor(MathFunction):
    """The next integer below."""

    function = np.floor


class Ceil(MathFunction):
    """The next integer above."""

    function = np.ceil


class Round(MathFunction):
    """The nearest integer; halves go to the even one."""

    function = np.rint


def erf(x: np.ndarray) -> np.ndarray:
    """The error function of every element, computed in float64."""
    flat = np.asarray(x, np.float64).reshape(-1)
    return np.fromiter(map(math.erf, flat.tolist()), np.float64, flat.size).reshape(x.shape).astype(x.dtype)
