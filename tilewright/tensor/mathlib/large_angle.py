"""Quarter turns of large angles, exactly: the method of Payne and Hanek, in integers of 64 bits.

An f32 is ``m 2^e`` with 24 bits of m. Of ``m 2^e / (2 pi)`` whole turns do not count, and so the bits of 1/(2 pi) do
not that are worth a turn or more once they are multiplied by 2^e. The 96 bits behind those times m are the fraction of
the turn, in units of 2^-64: its two highest bits, rounded, are the quarter, and the rest is the angle in it. No f32 is
so near to a multiple of pi/2 that less than 30 bits of the rest would be left.

Source: M. Payne, R. Hanek, "Radian reduction for trigonometric functions", SIGNUM Newsletter 18 (1983).
"""

from __future__ import annotations

import math
from itertools import pairwise

from tilewright.tensor.mathlib.build import V, bits, f64, fma, i64, low_half, select, to_f32, to_float, widened

#: angles beyond it are large (2^LIMIT_EXPONENT)
LIMIT_EXPONENT = 17
LIMIT = float(2**LIMIT_EXPONENT)
#: the fraction 2^-6 / (2 pi), in words of 64 bits; the least large angles are 24 bits of m times 2^-6
TURNS = (0x00A2F9836E4E4415, 0x29FC2757D1F534DD, 0xC0DB6295993C4390, 0x41FE5163ABDEBBC5)


def reduce_large(x: V) -> tuple[V, V]:
    """(r, k): ``x = k pi/2 + r``, k in the low bits of an i32, |r| <= pi/4, for x >= LIMIT; r is NaN for infinity."""
    pattern = bits(x)
    mantissa = widened((pattern & 0x7FFFFF) | 0x800000)
    skipped = widened(pattern >> 23) - (127 + LIMIT_EXPONENT)
    second = skipped > 63
    first, middle, last = (select(second, i64(b), i64(a)) for a, b in pairwise(TURNS))
    shift = skipped & 63
    back = shift ^ 63

    def window(high: V, low: V) -> V:
        return (high << shift) | low.logical_shift(1).logical_shift(back)

    upper, lower = window(first, middle), window(middle, last).logical_shift(32)
    turn = mantissa * upper + (mantissa * lower).logical_shift(32)
    quarter = (turn + (1 << 61)).logical_shift(62)
    r = to_f32(to_float(turn - (quarter << 62)) * f64(math.ldexp(2.0 * math.pi, -64)))
    return fma(x, 0.0, r), low_half(quarter)
