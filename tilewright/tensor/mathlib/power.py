"""powf, cbrt, rsqrt."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import (
    INF,
    MAGIC,
    NAN,
    V,
    absolute,
    at_least,
    at_most,
    bits,
    copysign,
    f32,
    floor,
    fma,
    from_bits,
    horner,
    i32,
    nearest,
    select,
    sign_bit,
    sqrt,
    to_float,
    to_int,
)
from tilewright.tensor.mathlib.exponential import scale
from tilewright.tensor.mathlib.logarithm import EXPONENT, LOG2_E, SMALLEST_NORMAL, rest

SQRT_HALF = 0x3F3504F3  # its bits


def _log2_pair(x: V) -> tuple[V, V]:
    """log2(x), x > 0, as high + low, to 2^-29 of its size: log2(1 + f) = log2((1 + s)/(1 - s)), s = f / (2 + f)."""
    tiny = x < SMALLEST_NORMAL
    b = bits(select(tiny, x * 2.0**24, x))
    shift = (b - SQRT_HALF) & i32(EXPONENT)
    k = fma(to_float(shift), 2.0**-23, select(tiny, f32(-24.0), f32(0.0)))
    m = from_bits(b - shift)
    f, d = m - 1.0, m + 1.0
    d_low = m - (d - 1.0)
    inverse = 1.0 / d
    s = f * inverse
    s_low = inverse * fma(s, -d_low, fma(-s, d, f))
    factor = 2 * LOG2_E
    square = s * s
    high = s * factor
    total = k + high
    # what these two lose is tiny; it is gathered first, and the rest of the series, s^3 P, added with one rounding
    lost = fma(s_low, fma(square, factor, factor), fma(s, factor, -high) + (high - (total - k)))
    low = fma(s, fma(square, horner(square, c.LOG2_ATANH), rest(factor)), lost)
    result = total + low
    return result, low - (result - total)


def _power(magnitude: V, y: V) -> V:
    """magnitude^y for magnitude >= 0, where neither 0^0, 1^inf nor inf^0 matters."""
    finite = (magnitude > 0.0) & (magnitude < INF)
    high, low = _log2_pair(magnitude)
    # log2 of 0 and of infinity: huge instead of infinite, so that y * log2 is no NaN
    high = select(finite, high, select(magnitude > 0.0, magnitude, f32(-INF)))
    low = select(finite, low, f32(0.0))
    product = y * high
    product_low = fma(y, low, fma(y, high, -product))
    limited = at_least(at_most(product, 130.0), -152.0)
    extra = select(limited.eq(product), product_low, f32(0.0))
    k, k_bits = nearest(limited + MAGIC)
    f = (limited - k) + extra
    return scale(f * horner(f, c.EXP2), k_bits)


def powf(x: V, y: V) -> V:
    """x^y, within 3 ULP, with the special cases of C: 1 for y = 0 or x = 1, NaN for negative x and a y not whole."""
    return special_powers(x, y, _power)


def special_powers(x: V, y: V, power: Callable[[V, V], V]) -> V:
    """x^y with the special cases of C; `power` is that of x >= 0, where neither 0^0, 1^inf nor inf^0 matters."""
    magnitude = absolute(x)
    value = select(magnitude.eq(1.0), x.like(1.0), power(magnitude, y))
    whole = floor(y).eq(y)
    half = y * 0.5
    odd = whole & floor(half).ne(half)
    signed = from_bits(bits(value) | select(odd, sign_bit(x), 0))
    no_root = (x < 0.0) & (x > -INF) & floor(y).ne(y)
    result = select(no_root, x.like(NAN), signed)
    unknown = y.ne(y) | x.ne(x)
    result = select(unknown, x + y, result)
    return select(y.eq(0.0) | x.eq(1.0), x.like(1.0), result)


def powf_constant(x: V, y: float) -> V | None:
    """x^y for the exponents with a shorter exact way; None for others."""
    if y == 1:
        return x
    if y == 2:
        return x * x
    if y == 3:
        return x * x * x
    if y == -1:
        return 1.0 / x
    if y == 0.5:  # unlike sqrt: pow(-0, 1/2) is +0 and pow(-inf, 1/2) is +inf
        return select(x.eq(-INF), f32(INF), sqrt(x + 0.0))
    return None


def cbrt(x: V) -> V:
    """Cube root, within 1 ULP: the inverse root by a guess on the bits and one step of fourth order, then Newton."""
    magnitude = absolute(x)
    tiny = magnitude < SMALLEST_NORMAL
    a = select(tiny, magnitude * 2.0**24, magnitude)
    guess = from_bits(to_int(fma(to_float(bits(a)), -1 / 3, float(0x54A21D2A))))
    e = fma(a * guess, -(guess * guess), 1.0)
    guess = fma(guess * e, fma(e, fma(e, 14 / 81, 2 / 9), 1 / 3), guess)
    square = guess * guess
    root = a * square
    root = fma(fma(root * root, -root, a), square * (1 / 3), root)
    result = select(tiny, root * 2.0**-8, root)
    return select((x.eq(0.0)) | absolute(x).eq(INF), x, copysign(result, x))


def rsqrt(x: V) -> V:
    """1 / sqrt(x), within 2 ULP: two exactly rounded steps."""
    return 1.0 / sqrt(x)
