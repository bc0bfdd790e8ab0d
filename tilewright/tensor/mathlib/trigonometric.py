"""sin, cos, tan and their inverses."""

from __future__ import annotations

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import (
    MAGIC,
    SIGN,
    V,
    absolute,
    at_least,
    at_most,
    bits,
    copysign,
    f32,
    fma,
    from_bits,
    horner,
    i32,
    nearest,
    odd,
    select,
    sqrt,
)

TWO_OVER_PI = 0.6366197723675814
HALF_PI_PARTS = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)  # float32 each, sum is pi/2


def reduce_angle(x: V) -> tuple[V, V]:
    """(r, k): ``x = k pi/2 + r``, k in the low bits of an i32, |r| <= pi/4.

    Each step is one fma: the first cancels exactly, the others round below the last place of r. Good to |x| = 1e6;
    beyond it the third part is not enough, and from 3e6 on k does not fit the low bits.
    """
    k, k_bits = nearest(fma(x, TWO_OVER_PI, MAGIC))
    r = x
    for part in HALF_PI_PARTS:
        r = fma(k, -part, r)
    return r, k_bits


def _sin_cos(x: V) -> tuple[V, V, V]:
    """(sin r, cos r, k) of the reduced angle; r is kept in [-1, 1] where the reduction has lost its meaning."""
    r, k_bits = reduce_angle(x)
    r = at_least(at_most(r, 1.0), -1.0)
    square = r * r
    cosine = fma(square * square, horner(square, c.COS), fma(square, -0.5, 1.0))
    return fma(square * horner(square, c.SIN), r, r), cosine, k_bits


def sin(x: V) -> V:
    """Sine, within 2 ULP for |x| <= 1e6. From 3e6 on the value lies in [-1, 1] but means nothing."""
    sine, cosine, k = _sin_cos(absolute(x))
    value = select((k & 1).ne(0), cosine, sine)
    return from_bits(bits(value) ^ (((k << 30) ^ bits(x)) & i32(SIGN)))


def cos(x: V) -> V:
    """Cosine, within 2 ULP for |x| <= 1e6. From 3e6 on the value lies in [-1, 1] but means nothing."""
    sine, cosine, k = _sin_cos(x)
    value = select((k & 1).ne(0), sine, cosine)
    return from_bits(bits(value) ^ (((k + 1) << 30) & i32(SIGN)))


def tan(x: V) -> V:
    """Tangent, within 3.5 ULP for |x| <= 1e5. The error grows beyond; from 3e6 on the value means nothing."""
    r, k = reduce_angle(absolute(x))
    r = at_least(at_most(r, 1.0), -1.0)
    t = odd(r, c.TAN)
    value = select((k & 1).ne(0), -1.0 / t, t)
    return from_bits(bits(value) ^ (bits(x) & i32(SIGN)))


def half_pi_plus(x: V, times: float = 1.0) -> V:
    """``times * pi/2 + x`` (times is 1 or 2) with pi/2 to more than float32 precision, rounded once."""
    return fma(f32(c.HALF_PI[0] * times), c.HALF_PI[1], x)


def _asin_parts(x: V) -> tuple[V, V, V]:
    """(|x| > 1/2, v, asin(v)): v is |x|, or sqrt((1 - |x|) / 2) where |x| > 1/2, so that v <= 1/2 always."""
    magnitude = absolute(x)
    large = magnitude > 0.5
    v = select(large, sqrt(fma(magnitude, -0.5, 0.5)), magnitude)
    return large, v, odd(v, c.ASIN)


def asin(x: V) -> V:
    """Arc sine, within 2 ULP. NaN beyond 1."""
    large, _, p = _asin_parts(x)
    return copysign(select(large, half_pi_plus(p * -2.0), p), x)


def acos(x: V) -> V:
    """Arc cosine, within 2 ULP. NaN beyond 1."""
    large, _, p = _asin_parts(x)
    double = p + p
    near_end = select(x < 0.0, half_pi_plus(-double, 2.0), double)
    return select(large, near_end, half_pi_plus(-copysign(p, x)))


def atan(x: V) -> V:
    """Arc tangent, within 2 ULP."""
    magnitude = absolute(x)
    large = magnitude > 1.0
    p = odd(select(large, 1.0 / magnitude, magnitude), c.ATAN)
    return copysign(select(large, half_pi_plus(-p), p), x)


def atan2(y: V, x: V) -> V:
    """Angle of the point (x, y), within 3 ULP, with the limits of C's atan2: signed zeros and infinities count."""
    ax, ay = absolute(x), absolute(y)
    steep = ay > ax
    low, high = select(steep, ax, ay), select(steep, ay, ax)
    equal = select(high.eq(0.0), f32(0.0), f32(1.0))  # what 0/0 and inf/inf have to be
    ratio = select(low.eq(high), equal, low / high)
    p = odd(ratio, c.ATAN)
    p = select(steep, half_pi_plus(-p), p)
    return copysign(select(bits(x) < 0, half_pi_plus(-p, 2.0), p), y)
