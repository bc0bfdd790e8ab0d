"""erf."""

from __future__ import annotations

from tilewright.tensor.mathlib import coefficients as c
from tilewright.tensor.mathlib.build import (
    MAGIC,
    V,
    absolute,
    at_most,
    copysign,
    fma,
    from_bits,
    horner,
    nearest,
    select,
)

ONE = 0x3F800000  # the bits of 1.0


def erf(x: V) -> V:
    """The error function, within 1.25 ULP: an odd polynomial near 0, and beyond ``1 - 2^(t P(t))``."""
    t = at_most(absolute(x), 4.0)  # erf rounds to 1 from 3.92 on
    square = t * t
    near = fma(t, horner(square, c.ERF), t)
    exponent = t * horner(t, c.ERFC_LOG2)
    k, k_bits = nearest(exponent + MAGIC)
    f = exponent - k
    power = from_bits((k_bits << 23) + ONE)
    far = fma(f * horner(f, c.EXP2), -power, 1.0 - power)
    return copysign(select(t < c.ERF_SPLIT, near, far), x)
