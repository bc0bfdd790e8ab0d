"""Functions of f64 as expressions of machine operations, for devices that have f64 but none of its functions.

On a processor they go to the C library. Whoever compiles these may take sums in another order, and may round a product
and a sum once or twice: where the low part of a number counts, its high part is cut off by its bits (`high`), which
nobody reorders. Errors are stated for operations that round to the nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.tensor.expr import Const, Expr, Op
from tilewright.tensor.mathlib import double_angle
from tilewright.tensor.mathlib import double_coefficients as c
from tilewright.tensor.mathlib.build import (
    INF,
    NAN,
    V,
    absolute,
    bits,
    copysign,
    f64,
    from_bits,
    horner,
    i64,
    limited,
    roundeven,
    select,
    sign_bit,
    sqrt,
    to_float,
    to_int,
)
from tilewright.tensor.mathlib.logarithm import above
from tilewright.tensor.mathlib.power import rsqrt, special_powers
from tilewright.tensor.mathlib.trigonometric import angle_of

ONE = 0x3FF0000000000000  # the bits of 1.0
LN2 = math.log(2.0)
#: two parts of it, the first with 32 bits: times a number of 20 bits it is exact
LN2_PARTS = (0.6931471803691238, 1.9082149292705877e-10)
LOG2_E, LOG10_E = 1.4426950408889634, 0.4342944819032518
#: two parts of log10(2), the first with 40 bits: times an exponent it is exact
LOG10_2_PARTS = (0.3010299956640665, -8.532344317057107e-14)
#: 2 / ln 2 in parts, the first with 26 bits
SCALE_PARTS = (2.885390043258667, 3.851925982253235e-08)
HALF_PI, HALF_PI_LOW = math.pi / 2, 6.123233995736766e-17
QUARTER_PI = math.pi / 4
TAN_EIGHTH = 0.41421356237309503
SQRT_HALF = 0x3FE6A09E667F3BCD  # its bits
EXPONENT = -(1 << 52)  # mask of sign and exponent
SMALLEST_NORMAL = 2.0**-1022


# ---- exponentials


def reduce_exp(x: V) -> tuple[V, V]:
    """(q, k): ``e^x = 2^k (1 + q)``, k an i64; |x| < 2^19."""
    k = roundeven(x * LOG2_E)
    r = (x - k * LN2_PARTS[0]) - k * LN2_PARTS[1]
    return r + r * r * horner(r, c.EXPM1), to_int(k)


def scale(q: V, k: V) -> V:
    """``2^k (1 + q)`` for -2044 <= k <= 2046, in two steps."""
    half = k >> 1
    first, second = from_bits((half << 52) + ONE), from_bits(((k - half) << 52) + ONE)
    return (first + q * first) * second


def exp(x: V) -> V:
    """e^x, within 1.5 ULP; twice that where the result is denormal."""
    return scale(*reduce_exp(limited(x, -746.0, 711.0)))


def exp2(x: V) -> V:
    """2^x, within 1.5 ULP."""
    x = limited(x, -1080.0, 1025.0)
    k = roundeven(x)
    r = (x - k) * LN2
    return scale(r + r * r * horner(r, c.EXPM1), to_int(k))


def expm1(x: V) -> V:
    """e^x - 1, within 3 ULP."""
    q, k = reduce_exp(limited(x, -40.0, 710.0))
    half = from_bits(((k - 1) << 52) + ONE)  # 2^k overflows where the result does not yet
    result = q * half + (half - 0.5)
    return select(absolute(x) < 2.0**-54, x, result + result)


def sigmoid(x: V) -> V:
    """1 / (1 + e^-x), within 3 ULP."""
    e = scale(*reduce_exp(limited(f64(0.0) - absolute(x), -746.0, 0.0)))
    return select(x < 0.0, e, f64(1.0)) / (e + 1.0)


def tanh(x: V) -> V:
    """Hyperbolic tangent, within 4 ULP."""
    t = expm1(limited(absolute(x) * 2.0, 0.0, 44.0))
    return copysign(t / (t + 2.0), x)


def _half_exp(magnitude: V) -> V:
    """e^|x| / 2, which reaches beyond e^|x|."""
    q, k = reduce_exp(limited(magnitude, 0.0, 712.0))
    return scale(q, k - 1)


def sinh(x: V) -> V:
    """Hyperbolic sine, within 3 ULP."""
    magnitude = absolute(x)
    h, square = _half_exp(magnitude), magnitude * magnitude
    near = magnitude + magnitude * square * horner(square, c.SINH)
    return copysign(select(magnitude < 1.0, near, h - 0.25 / h), x)


def cosh(x: V) -> V:
    """Hyperbolic cosine, within 3 ULP."""
    h = _half_exp(absolute(x))
    return h + 0.25 / h


# ---- logarithms


def split(x: V) -> tuple[V, V]:
    """(m, k): ``x = 2^k m`` with m in [sqrt(1/2), sqrt(2)), for positive finite x."""
    tiny = x < SMALLEST_NORMAL
    b = bits(select(tiny, x * 2.0**54, x))
    shift = (b - SQRT_HALF) & i64(EXPONENT)
    return from_bits(b - shift), to_float(shift >> 52) + select(tiny, f64(-54.0), f64(0.0))


def _log_1p_small(f: V) -> V:
    """log(1 + f) of a number in [sqrt(1/2), sqrt(2)) less 1."""
    s, half = f / (f + 2.0), f * f * 0.5
    square = s * s
    return f - (half - s * (half + square * horner(square, c.LOG)))


def log(x: V) -> V:
    """Natural logarithm, within 1.5 ULP."""
    m, k = split(x)
    return above(0.0, x, k * LN2_PARTS[0] + (_log_1p_small(m - 1.0) + k * LN2_PARTS[1]))


def log2(x: V) -> V:
    """Binary logarithm, within 3 ULP; exact for powers of two."""
    m, k = split(x)
    return above(0.0, x, k + _log_1p_small(m - 1.0) * LOG2_E)


def log10(x: V) -> V:
    """Decimal logarithm, within 3 ULP; exact for powers of ten."""
    m, k = split(x)
    return above(0.0, x, k * LOG10_2_PARTS[0] + (_log_1p_small(m - 1.0) * LOG10_E + k * LOG10_2_PARTS[1]))


def _log1p(x: V) -> V:
    """log(1 + x) for -1 < x < inf."""
    shift = (bits(x + 1.0) - SQRT_HALF) & i64(EXPONENT)  # 2^k of 1 + x, k in its exponent
    power = from_bits(i64(ONE) - shift + (2 << 52))  # 2^(2 - k), a normal number
    f = x * (power * 0.25) + (power * 0.25 - 1.0)
    k = to_float(shift >> 52)
    return k * LN2_PARTS[0] + (_log_1p_small(f) + k * LN2_PARTS[1])


def log1p(x: V) -> V:
    """log(1 + x), within 3 ULP."""
    return above(-1.0, x, select(absolute(x) < 2.0**-54, x, select(x > 2.0**60, log(x), _log1p(x))))


def asinh(x: V) -> V:
    """Inverse hyperbolic sine, within 5 ULP."""
    magnitude = absolute(x)
    t = select(magnitude > 2.0**30, f64(0.0), magnitude)
    near = log1p(t + t * t / (sqrt(t * t + 1.0) + 1.0))
    return copysign(select(magnitude > 2.0**30, log(magnitude) + LN2, near), x)


def acosh(x: V) -> V:
    """Inverse hyperbolic cosine, within 5 ULP. NaN below 1."""
    t = select(x > 2.0**30, f64(0.0), x - 1.0)
    near = log1p(t + sqrt(t * t + (t + t)))
    return select(x < 1.0, f64(NAN), select(x > 2.0**30, log(x) + LN2, near))


def atanh(x: V) -> V:
    """Inverse hyperbolic tangent, within 5 ULP. Infinite at 1, NaN beyond."""
    magnitude = absolute(x)
    result = log1p((magnitude + magnitude) / (1.0 - magnitude)) * 0.5
    edge = select(magnitude.eq(1.0), f64(INF), f64(NAN))
    return copysign(select(magnitude < 1.0, result, edge), x)


# ---- erf


def erf(x: V) -> V:
    """The error function, within 2 ULP."""
    t = limited(absolute(x), 0.0, 6.0)
    square = t * t
    near = t + t * horner(square, c.ERF)
    far = 1.0 - exp(f64(0.0) - square) * horner((t - 2.5) / (t + 2.5), c.ERFC)
    return select(x.ne(x), x, copysign(select(t < 1.0, near, far), x))


# ---- angles


def _sin_cos(r: V) -> tuple[V, V]:
    square = r * r
    cosine = 1.0 - (square * 0.5 - square * square * horner(square, c.COS))
    return r + r * square * horner(square, c.SIN), cosine


def _signed(value: V, sign: V) -> V:
    """With its sign changed where the lowest bit of an i64 is 1."""
    return from_bits(bits(value) ^ (sign << 63))


def sin(x: V) -> V:
    """Sine, within 2 ULP. NaN for infinity."""

    def value(r: V, k: V) -> V:
        sine, cosine = _sin_cos(r)
        return _signed(select((k & 1).ne(0), cosine, sine), (k >> 1) & 1)

    return copysign_of_product(double_angle.any_angle(absolute(x), value), x)


def cos(x: V) -> V:
    """Cosine, within 2 ULP. NaN for infinity."""

    def value(r: V, k: V) -> V:
        sine, cosine = _sin_cos(r)
        return _signed(select((k & 1).ne(0), sine, cosine), ((k + 1) >> 1) & 1)

    return double_angle.any_angle(absolute(x), value)


def tan(x: V) -> V:
    """Tangent, within 4 ULP. NaN for infinity."""

    def value(r: V, k: V) -> V:
        sine, cosine = _sin_cos(r)
        odd = (k & 1).ne(0)
        return select(odd, f64(0.0) - cosine, sine) / select(odd, sine, cosine)

    return copysign_of_product(double_angle.any_angle(absolute(x), value), x)


def copysign_of_product(value: V, x: V) -> V:
    """An odd function of x from that of its magnitude."""
    return from_bits(bits(value) ^ sign_bit(x))


def _asin_small(v: V) -> V:
    square = v * v
    return v + v * square * horner(square, c.ASIN)


def _asin_parts(x: V) -> tuple[V, V]:
    """(|x| > 1/2, asin of |x|, or of sqrt((1 - |x|) / 2) where that holds)."""
    magnitude = absolute(x)
    large = magnitude > 0.5
    return large, _asin_small(select(large, sqrt(0.5 - magnitude * 0.5), magnitude))


def asin(x: V) -> V:
    """Arc sine, within 3 ULP. NaN beyond 1."""
    large, p = _asin_parts(x)
    made = copysign(select(large, HALF_PI - ((p + p) - HALF_PI_LOW), p), x)
    return select(absolute(x) > 1.0, f64(NAN), made)


def acos(x: V) -> V:
    """Arc cosine, within 3 ULP. NaN beyond 1."""
    large, p = _asin_parts(x)
    twice = p + p
    far = select(x < 0.0, 2 * HALF_PI - (twice - 2 * HALF_PI_LOW), twice)
    made = select(large, far, HALF_PI - (copysign(p, x) - HALF_PI_LOW))
    return select(absolute(x) > 1.0, f64(NAN), made)


def _atan_01(z: V) -> V:
    """Of 0 <= z <= 1."""
    upper = z > TAN_EIGHTH
    v = select(upper, (z - 1.0) / (z + 1.0), z)
    square = v * v
    made = v + v * square * horner(square, c.ATAN)
    return select(upper, made + QUARTER_PI, made)


def atan(x: V) -> V:
    """Arc tangent, within 3 ULP."""
    magnitude = absolute(x)
    large = magnitude > 1.0
    p = _atan_01(select(large, 1.0 / magnitude, magnitude))
    return copysign(select(large, HALF_PI - (p - HALF_PI_LOW), p), x)


def atan2(y: V, x: V) -> V:
    """Angle of the point (x, y), within 4 ULP, with the limits of C's atan2."""
    angle = angle_of(y, x, _atan_01, lambda p, times: times * HALF_PI - (p - times * HALF_PI_LOW))
    return select(x.ne(x) | y.ne(y), x + y, copysign(angle, y))


# ---- powers


def high(x: V) -> V:
    """The part of a number that has its first 26 bits: products of two of them are exact."""
    return from_bits(bits(x) & -(1 << 27))


def _log2_parts(x: V) -> tuple[V, V]:
    """log2 of a positive number as high + low, to 2^-64 of its size; the high part has 26 bits."""
    m, k = split(x)
    f = m - 1.0
    d = f + 2.0
    dh = high(d)
    dl = (2.0 - dh) + f
    s = f / d
    sh = high(s)
    sl = ((f - sh * dh) - sh * dl) / d
    z = sh * sh  # exact
    zl = (sh + sh) * sl + sl * sl
    zh = high(z)
    zl = (z - zh) + zl
    tail = horner(s * s, c.LOG_TAIL) + THIRD_LOW
    qh = high(tail + THIRD)
    ql = (THIRD - qh) + tail
    u = zh * qh
    uh = high(u)
    ul = (u - uh) + (zh * ql + zl * (qh + ql))
    vh = high(uh + 1.0)
    vl = ((1.0 - vh) + uh) + ul
    w = sh * vh
    wh = high(w)
    wl = (w - wh) + (sh * vl + sl * (vh + vl))
    e = wh * SCALE_PARTS[0]
    eh = high(e)
    el = (e - eh) + (wh * SCALE_PARTS[1] + wl * (SCALE_PARTS[0] + SCALE_PARTS[1]))
    top = high(k + eh)
    return top, ((k - top) + eh) + el


THIRD, THIRD_LOW = 1.0 / 3.0, 1.850371707708594e-17


def _power(magnitude: V, y: V) -> V:
    """magnitude^y for magnitude >= 0, where neither 0^0, 1^inf nor inf^0 matters."""
    finite = (magnitude > 0.0) & (magnitude < INF)
    top, low = _log2_parts(select(finite, magnitude, f64(2.0)))
    yh = high(y)
    main = yh * top
    rest = y * low + (y - yh) * top
    inside = absolute(y * top) < 1100.0
    bound = select(y * top > 0.0, f64(1100.0), f64(-1100.0))
    main, rest = select(inside, main, bound), select(inside, rest, f64(0.0))
    k = roundeven(main + rest)
    r = ((main - k) + rest) * LN2
    made = scale(r + r * r * horner(r, c.EXPM1), to_int(k))
    up = select(magnitude > 0.0, y > 0.0, y < 0.0)  # of infinity and 0
    return select(finite, made, select(up, f64(INF), f64(0.0)))


def powf(x: V, y: V) -> V:
    """x^y, within 2 ULP, with the special cases of C."""
    return special_powers(x, y, _power)


def cbrt(x: V) -> V:
    """Cube root, within 3 ULP: a guess on the bits, and Halley's steps."""
    magnitude = absolute(x)
    tiny = magnitude < SMALLEST_NORMAL
    a = select(tiny, magnitude * 2.0**54, magnitude)
    third = V(Op("divsi", (bits(a).e, i64(3).e), "i64"))
    root = from_bits(third + 0x2A9F7893782DA1CE)
    for _ in range(3):
        cube = root * root * root
        root = root * ((cube + (a + a)) / (cube + cube + a))
    made = select(tiny, root * 2.0**-18, root)
    return select(x.eq(0.0) | magnitude.eq(INF), x, copysign(made, x))


FUNCTIONS: dict[str, Callable[..., V]] = {
    f.__name__: f
    for f in (
        exp, exp2, expm1, sigmoid, tanh, sinh, cosh, log, log2, log10, log1p, asinh, acosh, atanh, erf,
        sin, cos, tan, asin, acos, atan, atan2, powf, cbrt, rsqrt,
    )
}  # fmt: skip
_POWERS: dict[float, Callable[[V], V]] = {1.0: lambda x: x, 2.0: lambda x: x * x, -1.0: lambda x: 1.0 / x}


def short_power(x: Expr, y: Expr) -> Expr | None:
    """x^y of f64 for exponents with a shorter exact way; None for others."""
    found = _POWERS.get(float(y.value)) if isinstance(y, Const) else None
    return found(V(x)).e if found is not None else None


def expand_f64(op: str, args: Sequence[Expr]) -> Expr | None:
    """``op(args)`` of f64 in machine operations; None where it should stay as it is.

    >>> from tilewright.tensor.expr import Var
    >>> str(expand_f64("rsqrt", [Var("x", "f64")])), expand_f64("sqrt", [Var("x", "f64")])
    ('(1.0:f64 /. sqrt(x))', None)
    """
    if op not in FUNCTIONS:
        return None
    short = short_power(args[0], args[1]) if op == "powf" else None
    return FUNCTIONS[op](*map(V, args)).e if short is None else short


__all__ = ["FUNCTIONS", "expand_f64", "short_power"]
