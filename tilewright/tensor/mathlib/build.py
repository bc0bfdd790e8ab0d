"""Writing algorithms of f32 and f64 as Python arithmetic: `V` wraps an `Expr`, and its operators build `Op` nodes.

Sub-expressions are shared by object identity: bind them to Python variables.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from tilewright.tensor.expr import Const, Expr, Op

Number = float | int
INF, NAN = math.inf, math.nan
FLOATS = ("f32", "f64")
#: the integer dtype that has the bits of a float dtype, and back
BITS = {"f32": "i32", "f64": "i64"}
FLOAT_OF = {"i32": "f32", "i64": "f64"}
SIGN = {"f32": -(1 << 31), "f64": -(1 << 63)}  # the sign bit


class V:
    """A value of dtype f32, f64, i32, i64 or i1. Numbers beside it become constants of its dtype."""

    __slots__ = ("e",)

    def __init__(self, e: Expr) -> None:
        self.e = e

    @property
    def dtype(self) -> str:
        return self.e.dtype

    def _binary(self, name: str, other: V | Number, swap: bool = False) -> V:
        a, b = self, self.like(other)
        whole = name in ("andi", "ori", "xori", "shli", "shrsi", "shrui")
        suffix = "" if whole else "f" if self.dtype in FLOATS else "i"
        return V(Op(name + suffix, (b.e, a.e) if swap else (a.e, b.e), self.dtype))

    def like(self, other: V | Number) -> V:
        """`other` as a value of this one's dtype."""
        return other if isinstance(other, V) else _CONSTANTS[self.dtype](other)

    def __add__(self, other: V | Number) -> V:
        return self._binary("add", other)

    def __radd__(self, other: Number) -> V:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: V | Number) -> V:
        return self._binary("sub", other)

    def __rsub__(self, other: Number) -> V:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: V | Number) -> V:
        return self._binary("mul", other)

    def __rmul__(self, other: Number) -> V:
        return self._binary("mul", other, swap=True)

    def __truediv__(self, other: V | Number) -> V:
        return self._binary("div", other)

    def __rtruediv__(self, other: Number) -> V:
        return self._binary("div", other, swap=True)

    def __neg__(self) -> V:
        return V(Op("negf", (self.e,), self.dtype)) if self.dtype in FLOATS else 0 - self

    def __and__(self, other: V | int) -> V:
        return self._binary("andi", other)

    def __or__(self, other: V | int) -> V:
        return self._binary("ori", other)

    def __xor__(self, other: V | int) -> V:
        return self._binary("xori", other)

    def __lshift__(self, other: V | int) -> V:
        return self._binary("shli", other)

    def __rshift__(self, other: int) -> V:
        """Arithmetic: the sign is kept."""
        return self._binary("shrsi", other)

    def logical_shift(self, other: V | int) -> V:
        """To the right, filled with zeros."""
        return self._binary("shrui", other)

    def compare(self, predicate: str, other: V | Number) -> V:
        return V(Op(f"cmp{'f' if self.dtype in FLOATS else 'i'}.{predicate}", (self.e, self.like(other).e), "i1"))

    def __lt__(self, other: V | Number) -> V:
        return self.compare("olt" if self.dtype in FLOATS else "slt", other)

    def __gt__(self, other: V | Number) -> V:
        return self.compare("ogt" if self.dtype in FLOATS else "sgt", other)

    def __ge__(self, other: V | Number) -> V:
        return self.compare("oge" if self.dtype in FLOATS else "sge", other)

    def eq(self, other: V | Number) -> V:
        return self.compare("oeq" if self.dtype in FLOATS else "eq", other)

    def ne(self, other: V | Number) -> V:
        return self.compare("une" if self.dtype in FLOATS else "ne", other)


def f32(value: Number) -> V:
    """The constant rounded to float32."""
    return V(Const(struct.unpack("f", struct.pack("f", value))[0], "f32"))


def f64(value: Number) -> V:
    return V(Const(float(value), "f64"))


def i32(value: Number) -> V:
    return V(Const(int(value), "i32"))


def i64(value: Number) -> V:
    """The constant of these 64 bits."""
    value = int(value) & (1 << 64) - 1
    return V(Const(value - (1 << 64) if value >> 63 else value, "i64"))


_CONSTANTS = {"f32": f32, "f64": f64, "i32": i32, "i64": i64}


def _unary(name: str, x: V, dtype: str = "") -> V:
    return V(Op(name, (x.e,), dtype or x.dtype))


def absolute(x: V) -> V:
    return _unary("absf", x)


def sqrt(x: V) -> V:
    return _unary("sqrt", x)


def floor(x: V) -> V:
    return _unary("floor", x)


def roundeven(x: V) -> V:
    """The integer nearest, as a float."""
    return _unary("roundeven", x)


def bits(x: V) -> V:
    """The bits of an f32 as an i32, of an f64 as an i64."""
    return _unary("bitcast", x, BITS[x.dtype])


def from_bits(x: V) -> V:
    return _unary("bitcast", x, FLOAT_OF[x.dtype])


def sign_bit(x: V) -> V:
    """An integer that has the sign of x, and zeros."""
    return bits(x) & SIGN[x.dtype]


def to_float(x: V) -> V:
    """An i32 as f32, an i64 as f64."""
    return _unary("sitofp", x, FLOAT_OF[x.dtype])


def to_int(x: V) -> V:
    """An f32 as i32, an f64 as i64."""
    return _unary("fptosi", x, BITS[x.dtype])


def widened(x: V) -> V:
    """An i32 that is not negative as an i64."""
    return _unary("extui", x, "i64")


def low_half(x: V) -> V:
    """The low bits of an i64 as an i32."""
    return _unary("trunci", x, "i32")


def to_f32(x: V) -> V:
    """An f64 rounded."""
    return _unary("truncf", x, "f32")


def fma(a: V, b: V | Number, c: V | Number) -> V:
    """``a * b + c`` rounded once."""
    return V(Op("fma", (a.e, a.like(b).e, a.like(c).e), "f32"))


def copysign(x: V, sign: V) -> V:
    return V(Op("copysign", (x.e, sign.e), x.dtype))


def scalef(x: V, exponent: V) -> V:
    """``x * 2^floor(exponent)`` rounded once."""
    return V(Op("scalef", (x.e, exponent.e), "f32"))


def limit(x: V, largest: Number) -> V:
    """x with a magnitude of at most `largest`; that instead of NaN."""
    return V(Op("limit", (x.e, f32(largest).e), "f32"))


def pick(index: V, table: Sequence[float]) -> V:
    """The entry of a table of 2^n numbers that the n low bits of an i32 select."""
    return V(Op("pick", (index.e, *(f32(v).e for v in table)), "f32"))


def select(condition: V, a: V | Number, b: V | Number) -> V:
    like = a if isinstance(a, V) else b
    assert isinstance(like, V)
    return V(Op("select", (condition.e, like.like(a).e, like.like(b).e), like.dtype))


def seldom(condition: V, there: V, elsewhere: V) -> V:
    """`there` where the condition holds, else `elsewhere`; on machines `there` is only computed if one lane needs it.

    For what is long and hardly ever needed: a comparison and a branch that is not taken are all that it costs then.
    """
    return V(Op("seldom", (condition.e, there.e, elsewhere.e), there.dtype))


def at_most(x: V, high: Number) -> V:
    """The smaller of both; NaN stays. Written as x86 ``minps(high, x)`` means it: one instruction there."""
    limit = x.like(high)
    return select(limit < x, limit, x)


def at_least(x: V, low: Number) -> V:
    limit = x.like(low)
    return select(limit > x, limit, x)


def limited(x: V, low: Number, high: Number) -> V:
    """Between two numbers; NaN stays."""
    return at_least(at_most(x, high), low)


def horner(x: V, coefficients: Sequence[V | float]) -> V:
    """``c0 + c1 x + c2 x^2 + ...``, one fma a coefficient of f32, a product and a sum of f64."""
    result = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(x, result, c) if x.dtype == "f32" else result * x + c
    return result


def odd(x: V, coefficients: Sequence[float]) -> V:
    """``x + x^3 P(x^2)``."""
    square = x * x
    return fma(square * horner(square, coefficients), x, x)


MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits


def nearest(t: V) -> tuple[V, V]:
    """From ``t = value + MAGIC``: the integer nearest, as f32 and in the low bits of an i32; |value| < 2^21."""
    return t - MAGIC, bits(t)
