"""sin, cos, tan and their inverses."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import (
    MAGIC,
    SIGN,
    V,
    absolute,
    bits,
    copysign,
    f32,
    fma,
    from_bits,
    horner,
    nearest,
    odd,
    seldom,
    select,
    sign_bit,
    sqrt,
)
from tilewright.tensor.mathlib.large_angle import LIMIT, reduce_large

TWO_OVER_PI = 0.6366197723675814
HALF_PI_PARTS = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)  # float32 each, sum is pi/2


def reduce_angle(x: V) -> tuple[V, V]:
    """(r, k): ``x = k pi/2 + r``, k in the low bits of an i32, |r| <= pi/4.

    Each step is one fma: the first cancels exactly, the others round below the last place of r. Good to |x| = 2e5;
    beyond it the third part is not enough for the tangent, and from 3e6 on k does not fit the low bits.
    """
    k, k_bits = nearest(fma(x, TWO_OVER_PI, MAGIC))
    r = x
    for part in HALF_PI_PARTS:
        r = fma(k, -part, r)
    return r, k_bits


def _any_angle(magnitude: V, value: Callable[[V, V], V], x: V | None = None) -> V:
    """``value(r, k)`` of the angle `x` (the magnitude itself unless given), which may be as large as floats are."""
    small = value(*reduce_angle(magnitude if x is None else x))
    return seldom(magnitude > LIMIT, value(*reduce_large(magnitude)), small)


def _sin_cos(r: V) -> tuple[V, V]:
    square = r * r
    cosine = fma(square * square, horner(square, c.COS), fma(square, -0.5, 1.0))
    return fma(square * horner(square, c.SIN), r, r), cosine


def sin(x: V) -> V:
    """Sine, within 2 ULP. NaN for infinity."""

    def value(r: V, k: V) -> V:
        sine, cosine = _sin_cos(r)
        return from_bits(bits(select((k & 1).ne(0), cosine, sine)) ^ (((k << 30) ^ bits(x)) & SIGN["f32"]))

    return _any_angle(absolute(x), value)


def cos(x: V) -> V:
    """Cosine, within 2 ULP. NaN for infinity."""

    def value(r: V, k: V) -> V:
        sine, cosine = _sin_cos(r)
        return from_bits(bits(select((k & 1).ne(0), sine, cosine)) ^ (((k + 1) << 30) & SIGN["f32"]))

    return _any_angle(absolute(x), value, x)


def tan(x: V) -> V:
    """Tangent, within 3.5 ULP. NaN for infinity."""

    def value(r: V, k: V) -> V:
        t = odd(r, c.TAN)
        return from_bits(bits(select((k & 1).ne(0), -1.0 / t, t)) ^ sign_bit(x))

    return _any_angle(absolute(x), value)


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
    return copysign(angle_of(y, x, lambda ratio: odd(ratio, c.ATAN), lambda p, times: half_pi_plus(-p, times)), y)


def angle_of(y: V, x: V, arc: Callable[[V], V], less: Callable[[V, float], V]) -> V:
    """The magnitude of atan2: `arc` is the arc tangent of 0 to 1, ``less(p, n)`` is ``n pi/2 - p``."""
    ax, ay = absolute(x), absolute(y)
    steep = ay > ax
    low, high = select(steep, ax, ay), select(steep, ay, ax)
    equal = select(high.eq(0.0), x.like(0.0), 1.0)  # what 0/0 and inf/inf have to be
    ratio = select(low.eq(high), equal, low / high)
    p = arc(ratio)
    p = select(steep, less(p, 1.0), p)
    return select(bits(x) < 0, less(p, 2.0), p)
