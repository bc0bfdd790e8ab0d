"""Quarter turns of f64 angles: in parts of pi/2, and those of large angles exactly, by the method of Payne and Hanek.

An f64 is ``m 2^e`` with 53 bits of m. Of ``m 2^e / (2 pi)`` whole turns do not count, and so the bits of 1/(2 pi) do
not that are worth a turn or more once they are multiplied by 2^e. 192 bits from there on times m are the fraction of
the turn, of which 128 bits are kept.

Source: M. Payne, R. Hanek, "Radian reduction for trigonometric functions", SIGNUM Newsletter 18 (1983).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.tensor.mathlib.build import V, bits, f64, i64, roundeven, seldom, select, to_float, to_int

#: angles beyond it are large
LIMIT_EXPONENT = 20
LIMIT = float(2**LIMIT_EXPONENT)
TWO_OVER_PI = 0.6366197723675814
#: pi/2, the first three of 33 bits: times a number of 20 bits they are exact
HALF_PI_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
#: the fraction 2^-32 / (2 pi), in words of 64 bits: the least large angles are 53 bits of m times 2^-32
TURNS = (
    0x0000000028BE60DB,
    0x9391054A7F09D5F4,
    0x7D4D377036D8A566,
    0x4F10E4107F9458EA,
    0xF7AEF1586DC91B8E,
    0x909374B801924BBA,
    0x827464873F877AC7,
    0x2C4A69CFBA208D7D,
    0x4BAED1213A671C09,
    0xAD17DF904E64758E,
    0x60D4CE7D272117E2,
    0xEF7E4A0EC7FE25FF,
    0xF7816603FBCBC462,
    0xD6829B47DB4D9FB3,
    0xC9F2C26DD3D18FD9,
    0xA797FA8B5D49EEB1,
    0xFAF97C5ECF41CE7D,
    0xE294A4BA9AFED7EC,
    0x47E357421580CC11,
    0xBF1EDAEAFC33EF08,
)


def any_angle(magnitude: V, value: Callable[[V, V], V]) -> V:
    """``value(r, k)`` of an angle that is not negative: ``magnitude = k pi/2 + r``, k an i64."""
    return seldom(magnitude > LIMIT, value(*_large(magnitude)), value(*_small(magnitude)))


def _small(x: V) -> tuple[V, V]:
    k = roundeven(x * TWO_OVER_PI)
    r = x
    for part in HALF_PI_PARTS:
        r = r - k * part
    return r, to_int(k)


def _upper(a: V, b: V) -> V:
    """The upper 64 bits of the product of two numbers of 64 bits without sign."""
    low = (1 << 32) - 1
    al, ah, bl, bh = a & low, a.logical_shift(32), b & low, b.logical_shift(32)
    middle = ah * bl + (al * bl).logical_shift(32)
    other = al * bh + (middle & low)
    return ah * bh + middle.logical_shift(32) + other.logical_shift(32)


def _word(index: V, words: tuple[int, ...]) -> V:
    """The word with a number."""
    found = i64(words[-1])
    for n in range(len(words) - 2, -1, -1):
        found = select(index.eq(n), i64(words[n]), found)
    return found


def _large(x: V) -> tuple[V, V]:
    pattern = bits(x)
    mantissa = (pattern & ((1 << 52) - 1)) | (1 << 52)
    skipped = pattern.logical_shift(52) - (1023 + LIMIT_EXPONENT)
    index, shift = skipped.logical_shift(6), skipped & 63
    back = shift ^ 63
    words = [_word(index, TURNS[n : len(TURNS) - 3 + n]) for n in range(4)]

    def window(a: V, b: V) -> V:
        return (a << shift) | b.logical_shift(1).logical_shift(back)

    first, second, third = (window(words[n], words[n + 1]) for n in range(3))
    low = mantissa * second + _upper(mantissa, third)
    # a carry where the sum without sign is less than a summand
    flip = i64(-(1 << 63))
    carry = select(((low ^ flip) < ((mantissa * second) ^ flip)), i64(1), i64(0))
    turn = mantissa * first + _upper(mantissa, second) + carry
    quarter = (turn + (1 << 61)).logical_shift(62)
    rest = turn - (quarter << 62)
    r = to_float(rest) + to_float(low.logical_shift(11)) * 2.0**-53
    r = r * math.ldexp(2.0 * math.pi, -64)
    return select(x < math.inf, r, f64(math.nan)), quarter
