"""Legalization for SPIR-V: operations that it lacks, or leaves undefined for some operands, as expressions of others.

Division by zero gives 0 (and all remains), the smallest number divided by -1 itself; shifts by the width or more move
all bits out; a float that does not fit an integer saturates, NaN gives 0. Drivers may take it that there is no NaN and
no infinity: tests for them look at bits. Operations named ``spirv.`` are the machine's own
(`expressions.SpirvExpressions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...tensor.expr import Const, Op
from ...tensor.mathlib.build import V, f32, i32

_SIGN, _INFINITY = -(1 << 31), 0x7F800000
#: the same of f64
_SIGN_64, _INFINITY_64 = -(1 << 63), 0x7FF0000000000000


def own(name: str, dtype: str, *args: V) -> V:
    """One of the machine's operations."""
    return V(Op(f"spirv.{name}", tuple(a.e for a in args), dtype))


def choose(cond: V, a: V, b: V) -> V:
    return V(Op("select", (cond.e, a.e, b.e), a.dtype))


def known(x: V, *others: int) -> bool:
    """Whether it is a constant, and none of these."""
    return isinstance(x.e, Const) and x.e.value not in others


# ---- integers


def divsi(a: V, b: V) -> V:
    if known(b, 0, -1):
        return own("sdiv", a.dtype, a, b)
    zero, minus = b.eq(0), b.eq(-1)
    quotient = own("sdiv", a.dtype, a, choose(zero | minus, b.like(1), b))
    return choose(zero, a.like(0), choose(minus, a.like(0) - a, quotient))


def remsi(a: V, b: V) -> V:
    if known(b, 0, -1):
        return own("srem", a.dtype, a, b)
    zero = b.eq(0)
    return choose(zero, a, own("srem", a.dtype, a, choose(zero | b.eq(-1), b.like(1), b)))


def _rounded(up: bool) -> Callable[[V, V], V]:
    """Signed division rounded down or up."""

    def divide(a: V, b: V) -> V:
        quotient, rest = divsi(a, b), remsi(a, b)
        signs = (rest ^ b) >= 0 if up else (rest ^ b) < 0
        return choose(b.ne(0) & rest.ne(0) & signs, quotient + (1 if up else -1), quotient)

    return divide


def divui(a: V, b: V) -> V:
    zero = b.eq(0)
    return choose(zero, a.like(0), own("udiv", a.dtype, a, choose(zero, b.like(1), b)))


def remui(a: V, b: V) -> V:
    zero = b.eq(0)
    return choose(zero, a, own("urem", a.dtype, a, choose(zero, b.like(1), b)))


def ceildivui(a: V, b: V) -> V:
    return choose(remui(a, b).ne(0) & b.ne(0), divui(a, b) + 1, divui(a, b))


def shift(name: str, a: V, b: V, bits: int) -> V:
    """Of a number of so many bits, by any number."""
    last, inside = b.like(bits - 1), b.compare("ult", b.like(bits))
    out = own(name, a.dtype, a, last) if name == "ashr" else a.like(0)
    moved = own(name, a.dtype, a, b if known(b) else b & last)
    return moved if isinstance(b.e, Const) and 0 <= b.e.value < bits else choose(inside, moved, out)


def narrowed(x: V, bits: int) -> V:
    """The lowest bits of an i32, with their sign."""
    return own("ashr", "i32", own("shl", "i32", x, i32(32 - bits)), i32(32 - bits))


def low(x: V, bits: int) -> V:
    """The lowest bits without sign."""
    return x & ((1 << bits) - 1)


def _extreme(predicate: str) -> Callable[[V, V], V]:
    return lambda a, b: choose(a.compare(predicate, b), a, b)


def mulhsi(a: V, b: V) -> V:
    wide = own("sext", "i64", a) * own("sext", "i64", b)
    return own("strunc", "i32", own("lshr", "i64", wide, wide.like(32)))


# ---- floats


def bits(x: V) -> V:
    return own("bitcast", "i32" if x.dtype == "f32" else "i64", x)


def magnitude(x: V) -> V:
    """The bits without the sign."""
    b = bits(x)
    return b & ~(_SIGN if x.dtype == "f32" else _SIGN_64)


def infinity(x: V) -> V:
    """The bits of infinity, for numbers of this type."""
    return bits(x).like(_INFINITY if x.dtype == "f32" else _INFINITY_64)


def odd(x: V) -> V:
    """An f64 as an f32, rounded such that another rounding, to a half, is as if there was this one only."""
    near = own("fconvert", "f32", x)
    back, pattern = own("fconvert", "f64", near), bits(near)
    below = magnitude(back) < magnitude(x)
    off = (below | (magnitude(back) > magnitude(x))) & (magnitude(x) < infinity(x) + 1) & (pattern & 1).eq(0)
    return choose(off, own("bitcast", "f32", pattern + choose(below, i32(1), i32(-1))), near)


def isnan(x: V) -> V:
    return magnitude(x) > infinity(x)


def isinf(x: V) -> V:
    return magnitude(x).eq(infinity(x))


def isfinite(x: V) -> V:
    return magnitude(x) < infinity(x)


def compare(predicate: str, a: V, b: V) -> V:
    """What is said of numbers that are none."""
    if predicate in ("ord", "uno"):
        none = isnan(a) | isnan(b)
        return own("opposite", "i1", none) if predicate == "ord" else none
    if predicate == "one":
        return (a < b) | (a > b)
    equal = own("opposite", "i1", a.compare("oeq", b)) if predicate == "une" else a.compare(f"o{predicate[1:]}", b)
    return equal | isnan(a) | isnan(b)


def _larger(predicate: str, nan_wins: bool) -> Callable[[V, V], V]:
    return lambda a, b: choose(a.compare(predicate, b) | isnan(a if nan_wins else b), a, b)


def copysign(x: V, sign: V) -> V:
    s, b = _SIGN if x.dtype == "f32" else _SIGN_64, bits(sign)
    return own("bitcast", x.dtype, magnitude(x) | (b & s))


def round_away(x: V) -> V:
    """To the nearest; a half away from zero."""
    whole = V(Op("trunc", (x.e,), x.dtype))
    off = V(Op("absf", ((x - whole).e,), x.dtype))
    return choose(off >= 0.5, whole + copysign(x.like(1.0), x), whole)


def fptosi(x: V, dtype: str, width: int) -> V:
    least, most = -(1 << width - 1), (1 << width - 1) - 1
    made = own("ftos", dtype, x)
    small = choose(isnan(x), made.like(0), made.like(least))
    return choose(x > float(least), choose(x < float(most + 1), made, made.like(most)), small)


def fptoui(x: V, dtype: str, width: int) -> V:
    made = own("ftou", dtype, x)
    most = made.like(-1 if width == (64 if dtype == "i64" else 32) else (1 << width) - 1)
    return choose(x > 0.0, choose(x < 2.0**width, made, most), made.like(0))


# ---- halves, which are computed in f32


def half_of(x: V) -> V:
    """The f32 that the 16 bits of an f16 are."""
    rest, sign = x & 0x7FFF, (x & 0x8000) << 16
    small = bits(own("stof", "f32", rest) * f32(2.0**-24))
    number = choose(rest < 0x400, small, (rest << 13) + 0x38000000)
    number = choose(rest >= 0x7C00, ((rest & 0x3FF) << 13) | _INFINITY, number)
    return own("bitcast", "f32", sign | number)


def half_bits(x: V) -> V:
    """The 16 bits of an f32 rounded to f16, to the nearest, a half to even."""
    b, rest = bits(x), magnitude(x)
    scaled = V(Op("roundeven", ((V(Op("absf", (x.e,), "f32")) * f32(2.0**24)).e,), "f32"))
    number = choose(
        rest < 0x38800000, own("ftos", "i32", scaled), ((rest + 0xFFF + ((rest >> 13) & 1)) >> 13) - 0x1C000
    )
    number = choose(rest >= 0x477FF000, i32(0x7C00), number)
    number = choose(rest > _INFINITY, i32(0x7E00), number)
    return ((b >> 16) & 0x8000) | number


def bfloat_of(x: V) -> V:
    return own("bitcast", "f32", x << 16)


def bfloat_bits(x: V) -> V:
    b = bits(x)
    number = own("lshr", "i32", b + 0x7FFF + (own("lshr", "i32", b, i32(16)) & 1), i32(16))
    return choose(isnan(x), own("lshr", "i32", b, i32(16)) | 64, number)


#: 16-bit floats -> their value from bits, and their bits, rounded
HALVES = {"f16": (half_of, half_bits), "bf16": (bfloat_of, bfloat_bits)}

#: operations on numbers of one type
TREES: dict[str, Callable[..., V]] = {
    "divsi": divsi,
    "remsi": remsi,
    "divui": divui,
    "remui": remui,
    "ceildivui": ceildivui,
    "mulhsi": mulhsi,
    "floordivsi": _rounded(False),
    "ceildivsi": _rounded(True),
    "maxsi": _extreme("sgt"),
    "minsi": _extreme("slt"),
    "maxui": _extreme("ugt"),
    "minui": _extreme("ult"),
    "absi": lambda a: choose(a < 0, a.like(0) - a, a),
    "isnan": isnan,
    "isinf": isinf,
    "isfinite": isfinite,
    "copysign": copysign,
    "round": round_away,
    "maximumf": _larger("ogt", True),
    "minimumf": _larger("olt", True),
    "maxnumf": _larger("ogt", False),
    "minnumf": _larger("olt", False),
    "rsqrt": lambda x: x.like(1.0) / V(Op("sqrt", (x.e,), x.dtype)),
}
NAN = math.nan
