"""exp, exp2, expm1, sigmoid, tanh, sinh, cosh: all from ``e^x = 2^k (1 + q)`` with |q| < 0.42."""

from __future__ import annotations

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import (
    MAGIC,
    V,
    absolute,
    at_least,
    at_most,
    copysign,
    f32,
    fma,
    from_bits,
    horner,
    i32,
    nearest,
    odd,
    select,
)

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693145751953125  # 16 bits: k * LN2_HIGH is exact
LN2_LOW = 1.4286068203094172e-06
ONE = 0x3F800000  # the bits of 1.0
UNDERFLOW = -104.0  # exp rounds to 0 below
OVERFLOW = 89.0


def reduce_exp(x: V) -> tuple[V, V]:
    """(q, k): ``e^x = 2^k (1 + q)``; k in the low bits of an i32. q has a relative error below 1 ULP. |x| < 2^20."""
    k, k_bits = nearest(fma(x, LOG2_E, MAGIC))
    r = fma(k, -LN2_LOW, fma(k, -LN2_HIGH, x))
    return fma(r * r, horner(r, c.EXPM1), r), k_bits


def scale(q: V, k_bits: V) -> V:
    """``2^k (1 + q)`` for -252 <= k <= 254, in two steps, so that neither factor leaves the range of normal numbers."""
    whole = k_bits << 23
    half = (k_bits << 22) & i32(-(1 << 23))  # k // 2 in the exponent field
    first = from_bits(half + ONE)
    second = from_bits((whole - half) + ONE)
    return fma(q, first, first) * second


def exp(x: V) -> V:
    """e^x, within 1.25 ULP; denormal results included."""
    return scale(*reduce_exp(at_least(at_most(x, OVERFLOW), UNDERFLOW)))


def exp2(x: V) -> V:
    """2^x, within 1.25 ULP; denormal results included."""
    limited = at_least(at_most(x, 129.0), -151.0)
    k, k_bits = nearest(limited + MAGIC)
    f = limited - k
    return scale(f * horner(f, c.EXP2), k_bits)


def expm1(x: V) -> V:
    """e^x - 1, within 1.75 ULP."""
    q, k_bits = reduce_exp(at_least(at_most(x, OVERFLOW), -25.0))
    half = from_bits((k_bits << 23) + (ONE - (1 << 23)))  # 2^(k-1): 2^k overflows where e^x - 1 does not yet
    result = fma(q, half, half - 0.5)
    # x itself where x^2/2 is below rounding: keeps -0 and denormals
    return select(absolute(x) < 2.0**-25, x, result + result)


def sigmoid(x: V) -> V:
    """1 / (1 + e^-x), within 2 ULP, for both signs without overflow and down to denormal results."""
    e = scale(*reduce_exp(at_least(-absolute(x), UNDERFLOW)))
    top = select(x < 0.0, e, f32(1.0))
    result = top / (e + 1.0)
    # what the rounded sum and quotient miss, times 1 / (1 + e) roughly; top - result is exact
    return fma(fma(-result, e, top - result), fma(e, -0.48, 0.97), result)


def tanh(x: V) -> V:
    """Hyperbolic tangent, within 2 ULP, from t = expm1(2|x|) as t / (t + 2)."""
    q, k_bits = reduce_exp(at_most(absolute(x) * 2.0, 20.0))
    power = from_bits((k_bits << 23) + ONE)
    t = fma(q, power, power - 1.0)
    result = t / (t + 2.0)
    # what the rounded sum and quotient miss (exact for small t, and too small to matter above), times 1 / (t + 2),
    # which is (1 - result) / 2
    missing = select(t < 2.0, fma(-result, t, fma(result, -2.0, t)), f32(0.0))
    return copysign(fma(missing, fma(result, -0.5, 0.5), result), x)


def _half_exp(magnitude: V) -> V:
    """e^|x| / 2, which reaches beyond e^|x|."""
    q, k_bits = reduce_exp(at_most(magnitude, 90.0))
    return scale(q, k_bits - 1)


def sinh(x: V) -> V:
    """Hyperbolic sine, within 2 ULP."""
    magnitude = absolute(x)
    h = _half_exp(magnitude)
    return copysign(select(magnitude < 1.0, odd(magnitude, c.SINH), h - 0.25 / h), x)


def cosh(x: V) -> V:
    """Hyperbolic cosine, within 2 ULP."""
    h = _half_exp(absolute(x))
    return h + 0.25 / h
