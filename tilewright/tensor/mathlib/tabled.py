"""exp, tanh and erf for machines that pick one of sixteen numbers, and multiply by powers of two, in one instruction
each (vectors of AVX-512).

exp: ``e^x = 2^k (1 + q)`` with k a multiple of 1/16, so that |q| < 0.022 and a polynomial of three terms is enough: the
sixteenths of k select ``2^(j/16)`` from a table, its whole part is left to the multiplication, which rounds denormal
results and overflows by itself. Only the remainder has to be limited: for large x it is anything, while ``2^k`` is
right even for infinite k.

tanh and erf are polynomials in sixteen pieces, of |x| up to where they round to 1: every coefficient is picked, and so
is the point of the piece that the polynomial is about. At those points the function is a float32 or nearly, so that
``value + d P(d)`` rounds once. The pieces are quarters of the octaves of ``u = 1 + scale |x|``: narrow near 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import (
    MAGIC,
    V,
    absolute,
    at_most,
    bits,
    copysign,
    fma,
    horner,
    limit,
    pick,
    scalef,
    select,
)
from tilewright.tensor.mathlib.exponential import LN2_HIGH, LN2_LOW, LOG2_E

SIXTEENTHS = MAGIC / 16  # adding it rounds to a sixteenth, whose number then stands in the low bits
ROOTS = tuple(2.0 ** (j / 16) for j in range(16))


def exp(x: V) -> V:
    """e^x, within 1.25 ULP; denormal results included."""
    t = fma(x, LOG2_E, SIXTEENTHS)
    k = t - SIXTEENTHS
    r = limit(fma(k, -LN2_LOW, fma(k, -LN2_HIGH, x)), 1.0)
    root = pick(bits(t), ROOTS)
    return scalef(fma(root * r, horner(r, (1.0, *c.EXP_SHORT)), root), k)


FIRST = 0x3F800000 >> 21 & 15  # the number of the first piece: from the exponent and two more bits of u = 1


def piece(size: V, scale: float, tables: Sequence[Sequence[float]]) -> tuple[V, V, V, V]:
    """(u, d, value, P(d)) for `size` >= 0."""
    u = fma(size, scale, 1.0)
    number = bits(u) >> 21
    point, value, *rest = (pick(number, (*t[-FIRST:], *t[:-FIRST])) for t in tables)
    d = size - point
    return u, d, value, horner(d, rest)


def tanh(x: V) -> V:
    """Hyperbolic tangent, within 2 ULP."""
    _, d, value, p = piece(at_most(absolute(x), 9.5), c.TANH_PIECES_SCALE, c.TANH_PIECES)
    return copysign(fma(d, p, value), x)


def erf(x: V) -> V:
    """The error function, within 1.25 ULP."""
    size = at_most(absolute(x), 4.0)
    u, d, value, p = piece(size, c.ERF_PIECES_SCALE, c.ERF_PIECES)
    # its slope at 0 is no float: what is beyond x is added to x
    return copysign(fma(d, p, select(u < 1.25, size, value)), x)
