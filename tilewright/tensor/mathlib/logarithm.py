"""log, log2, log10, log1p, and the inverse hyperbolic functions built on log1p."""

from __future__ import annotations

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import (
    INF,
    NAN,
    V,
    absolute,
    bits,
    copysign,
    f32,
    fma,
    from_bits,
    horner,
    i32,
    select,
    sqrt,
    to_float,
)

LN2 = 0.6931471805599453
LOG2_E = 1.4426950408889634
LOG10_E = 0.4342944819032518
LOG10_2 = 0.3010299956639812
TWO_THIRDS = 0x3F2AAAAB  # its bits: the significand is taken from [2/3, 4/3)
EXPONENT = -(1 << 23)  # mask of sign and exponent
SMALLEST_NORMAL = 2.0**-126


def rest(value: float) -> float:
    """What rounding `value` to float32 loses, itself a float."""
    rounded = f32(value).e.value  # type: ignore[attr-defined]
    return value - rounded


def split(x: V) -> tuple[V, V]:
    """(f, k): ``x = 2^k (1 + f)`` with 1 + f in [2/3, 4/3), for positive finite x, denormals included."""
    tiny = x < SMALLEST_NORMAL
    b = bits(select(tiny, x * 2.0**23, x))
    shift = (b - TWO_THIRDS) & i32(EXPONENT)
    f = from_bits(b - shift) - 1.0
    return f, fma(to_float(shift), 2.0**-23, select(tiny, f32(-23.0), f32(0.0)))


def tail(f: V) -> V:
    """log(1 + f) - f."""
    return (f * f) * horner(f, c.LOG)


def above(pole: float, x: V, result: V) -> V:
    """`result` for pole < x < inf; -inf at the pole, NaN below it; inf and NaN stay."""
    edge = select(x < INF, select(x.eq(pole), x.like(-INF), NAN), x)
    return select((x > pole) & (x < INF), result, edge)


def log(x: V) -> V:
    """Natural logarithm, within 1 ULP."""
    f, k = split(x)
    return above(0.0, x, fma(k, LN2, f + tail(f)))


def _in_base(x: V, factor: float, unit: float) -> V:
    """log(1 + f) * factor + k * unit; f * factor is taken exactly, so that it rounds once near x = 1."""
    f, k = split(x)
    t = tail(f)
    small = fma(t, factor, f * rest(factor))
    if rest(unit):
        small = fma(k, rest(unit), small)
    return above(0.0, x, fma(k, unit, fma(f, factor, small)))


def log2(x: V) -> V:
    """Binary logarithm, within 2 ULP; exact for powers of two."""
    return _in_base(x, LOG2_E, 1.0)


def log10(x: V) -> V:
    """Decimal logarithm, within 2 ULP."""
    return _in_base(x, LOG10_E, LOG10_2)


def log1p_core(x: V) -> V:
    """log(1 + x) for -1 < x < inf."""
    u = x + 1.0
    # minus the exponent k of u, so that the product with -ln(2) below is -0 for k = 0 and keeps a result of -0
    shift = (i32(TWO_THIRDS + (1 << 23) - 1) - bits(u)) & i32(EXPONENT)
    # f = x 2^-k - (1 - 2^-k), both terms without rounding; 2^(2-k) is a normal number for every k; -0 stays
    four = from_bits(shift + 0x40800000)
    f = from_bits(bits(x) + shift) - fma(four, -0.25, 1.0)
    return fma(to_float(shift), -LN2 * 2.0**-23, f + tail(f))


def log1p(x: V) -> V:
    """log(1 + x), within 2 ULP."""
    return above(-1.0, x, log1p_core(x))


BIG = 2.0**30  # where sqrt(x^2 + 1) is x


def asinh(x: V) -> V:
    """Inverse hyperbolic sine, within 3 ULP: log1p(|x| + x^2 / (1 + sqrt(x^2 + 1)))."""
    magnitude = absolute(x)
    square = magnitude * magnitude
    argument = magnitude + square / (sqrt(square + 1.0) + 1.0)
    return copysign(_beyond(magnitude, argument), x)


def acosh(x: V) -> V:
    """Inverse hyperbolic cosine, within 3 ULP: log1p(t + sqrt(t^2 + 2t)) of t = x - 1. NaN below 1."""
    t = x - 1.0
    return select(x < 1.0, f32(NAN), _beyond(x, t + sqrt(fma(t, t, t + t))))


def _beyond(x: V, argument: V) -> V:
    """log1p(argument), and log(2x) for large x, where `argument` may overflow."""
    big = x > BIG
    chosen = select(big, x, argument)
    result = log1p_core(chosen) + select(big, f32(LN2), f32(0.0))
    return select(x < INF, result, x)


def atanh(x: V) -> V:
    """Inverse hyperbolic tangent, within 3 ULP: log1p(2|x| / (1 - |x|)) / 2. Infinite at 1, NaN beyond."""
    magnitude = absolute(x)
    result = log1p_core((magnitude + magnitude) / (1.0 - magnitude)) * 0.5
    edge = select(magnitude.eq(1.0), f32(INF), f32(NAN))
    return copysign(select(magnitude < 1.0, result, edge), x)
