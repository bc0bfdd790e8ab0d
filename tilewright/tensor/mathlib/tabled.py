"""exp for machines that pick one of sixteen numbers, and multiply by powers of two, in one instruction each
(vectors of AVX-512).

``e^x = 2^k (1 + q)`` with k a multiple of 1/16, so that |q| < 0.022 and a polynomial of three terms is enough: the
sixteenths of k select ``2^(j/16)`` from a table, its whole part is left to the multiplication, which rounds denormal
results and overflows by itself. Only the remainder has to be limited: for large x it is anything, while ``2^k`` is
right even for infinite k.
"""

from __future__ import annotations

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import MAGIC, V, bits, fma, horner, limit, pick, scalef
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
