"""What functions of f64 are written with: `build` for numbers of 64 bits."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tensor.expr import Op
from tilewright.tensor.mathlib.build import V, f64, i64, select

ONE = 0x3FF0000000000000  # the bits of 1.0


def _unary(name: str, x: V, dtype: str = "f64") -> V:
    return V(Op(name, (x.e,), dtype))


def nearest(x: V) -> V:
    """The integer nearest, as f64."""
    return _unary("roundeven", x)


def bits(x: V) -> V:
    return _unary("bitcast", x, "i64")


def from_bits(x: V) -> V:
    return _unary("bitcast", x)


def to_float(x: V) -> V:
    return _unary("sitofp", x)


def whole(x: V) -> V:
    """An f64 that is an integer as i64."""
    return _unary("fptosi", x, "i64")


def limited(x: V, low: float, high: float) -> V:
    """Between two numbers; NaN stays."""
    x = select(f64(high) < x, f64(high), x)
    return select(f64(low) > x, f64(low), x)


def high(x: V) -> V:
    """The part of a number that has its first 26 bits: products of two of them are exact."""
    return from_bits(bits(x) & i64(-(1 << 27)))


def horner(x: V, coefficients: Sequence[float]) -> V:
    """``c0 + c1 x + c2 x^2 + ...``."""
    result = f64(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result
