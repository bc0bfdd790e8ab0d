"""Writing float32 algorithms as Python arithmetic: `V` wraps an `Expr`, and its operators build `Op` nodes.

Sub-expressions are shared by object identity: bind them to Python variables.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from tilewright.tensor.expr import Const, Expr, Op

Number = float | int
INF, NAN = math.inf, math.nan
SIGN = -(1 << 31)  # the sign bit of an f32, as an i32


class V:
    """A value of dtype f32, i32 or i1. Numbers beside it become constants of its dtype."""

    __slots__ = ("e",)

    def __init__(self, e: Expr) -> None:
        self.e = e

    @property
    def dtype(self) -> str:
        return self.e.dtype  # type: ignore[attr-defined]

    def _binary(self, name: str, other: V | Number, swap: bool = False) -> V:
        a, b = self, self.like(other)
        suffix = (
            "" if name in ("andi", "ori", "xori", "shli", "shrsi", "shrui") else "f" if self.dtype == "f32" else "i"
        )
        return V(Op(name + suffix, (b.e, a.e) if swap else (a.e, b.e), self.dtype))

    def like(self, other: V | Number) -> V:
        """`other` as a value of this one's dtype."""
        return other if isinstance(other, V) else i32(int(other)) if self.dtype == "i32" else f32(other)

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
        return V(Op("negf", (self.e,), "f32"))

    def __and__(self, other: V | int) -> V:
        return self._binary("andi", other)

    def __or__(self, other: V | int) -> V:
        return self._binary("ori", other)

    def __xor__(self, other: V | int) -> V:
        return self._binary("xori", other)

    def __lshift__(self, other: int) -> V:
        return self._binary("shli", other)

    def __rshift__(self, other: int) -> V:
        """Arithmetic: the sign is kept."""
        return self._binary("shrsi", other)

    def compare(self, predicate: str, other: V | Number) -> V:
        return V(Op(f"cmp{'f' if self.dtype == 'f32' else 'i'}.{predicate}", (self.e, self.like(other).e), "i1"))

    def __lt__(self, other: V | Number) -> V:
        return self.compare("olt" if self.dtype == "f32" else "slt", other)

    def __gt__(self, other: V | Number) -> V:
        return self.compare("ogt" if self.dtype == "f32" else "sgt", other)

    def __ge__(self, other: V | Number) -> V:
        return self.compare("oge" if self.dtype == "f32" else "sge", other)

    def eq(self, other: V | Number) -> V:
        return self.compare("oeq" if self.dtype == "f32" else "eq", other)

    def ne(self, other: V | Number) -> V:
        return self.compare("une" if self.dtype == "f32" else "ne", other)


def f32(value: Number) -> V:
    """The constant rounded to float32."""
    return V(Const(struct.unpack("f", struct.pack("f", value))[0], "f32"))


def i32(value: int) -> V:
    return V(Const(value, "i32"))


def _unary(name: str, x: V, dtype: str = "f32") -> V:
    return V(Op(name, (x.e,), dtype))


def absolute(x: V) -> V:
    return _unary("absf", x)


def sqrt(x: V) -> V:
    return _unary("sqrt", x)


def floor(x: V) -> V:
    return _unary("floor", x)


def bits(x: V) -> V:
    """The bits of an f32 as an i32."""
    return _unary("bitcast", x, "i32")


def from_bits(x: V) -> V:
    return _unary("bitcast", x, "f32")


def to_float(x: V) -> V:
    return _unary("sitofp", x, "f32")


def to_int(x: V) -> V:
    return _unary("fptosi", x, "i32")


def fma(a: V, b: V | Number, c: V | Number) -> V:
    """``a * b + c`` rounded once."""
    return V(Op("fma", (a.e, a.like(b).e, a.like(c).e), "f32"))


def copysign(x: V, sign: V) -> V:
    return V(Op("copysign", (x.e, sign.e), "f32"))


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


def at_most(x: V, high: Number) -> V:
    """The smaller of both; NaN stays. Written as x86 ``minps(high, x)`` means it: one instruction there."""
    limit = f32(high)
    return select(limit < x, limit, x)


def at_least(x: V, low: Number) -> V:
    limit = f32(low)
    return select(limit > x, limit, x)


def horner(x: V, coefficients: Sequence[V | float]) -> V:
    """``c0 + c1 x + c2 x^2 + ...``, one fma a coefficient."""
    last = coefficients[-1]
    result = last if isinstance(last, V) else f32(last)
    for c in reversed(coefficients[:-1]):
        result = fma(x, result, c)
    return result


def odd(x: V, coefficients: Sequence[float]) -> V:
    """``x + x^3 P(x^2)``."""
    square = x * x
    return fma(square * horner(square, coefficients), x, x)


MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits


def nearest(t: V) -> tuple[V, V]:
    """From ``t = value + MAGIC``: the integer nearest, as f32 and in the low bits of an i32; |value| < 2^21."""
    return t - MAGIC, bits(t)
