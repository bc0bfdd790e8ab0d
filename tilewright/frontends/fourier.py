"""Fourier transforms as products with constant matrices: short ones directly, longer ones factor by factor.

`n` appends operators, and has what `moves.Moves` has and ``constant(array)``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..ir.types import NUMPY, Typed

#: transforms up to this length are one product
DIRECT = 64
#: so are those of prime length up to this one; longer primes become convolutions
PRIME = 256

Pair = tuple[Any, Any]


class Fourier:
    """Transforms along the last dimension of a real and an imaginary part (None: 0); `sign` is -1, or 1 for the
    inverse."""

    def __init__(self, n, dtype: str, sign: int) -> None:
        self.n, self.dtype, self.sign = n, dtype, sign

    def table(self, values: np.ndarray) -> tuple[Typed, Typed]:
        kind = NUMPY[self.dtype]
        return self.n.constant(values.real.astype(kind)), self.n.constant(values.imag.astype(kind))

    def run(self, x: Pair, size: int) -> Pair:
        factor = factor_of(size)
        if size <= DIRECT or factor == size <= PRIME:
            return self.direct(x, size)
        return self.convolution(x, size) if factor == size else self.split(x, factor, size // factor)

    def direct(self, x: Pair, size: int) -> Pair:
        n, (re, im) = self.n, x
        turns = np.outer(np.arange(size), np.arange(size)) % size
        cos, sin = self.table(np.exp(self.sign * 2j * np.pi * turns / size))
        lead = re.shape[:-1]

        def product(v, table):
            out = n("matmul", n.reshape(v, (math.prod(lead), size)), table)
            return n.reshape(out, (*lead, size))

        if im is None:
            return product(re, cos), product(re, sin)
        return (
            n("sub", product(re, cos), product(im, sin)),
            n("add", product(re, sin), product(im, cos)),
        )

    def split(self, x: Pair, first: int, second: int) -> Pair:
        """size = first * second: transforms of length `first`, a rotation, transforms of length `second`."""
        lead = x[0].shape[:-1]
        columns = self.turned(self.each(x, lambda v: self.n.reshape(v, (*lead, first, second))))
        inner = self.run(columns, first)
        angles = np.outer(np.arange(second), np.arange(first)) / (first * second)
        rotated = self.times(inner, self.table(np.exp(self.sign * 2j * np.pi * angles)))
        outer = self.turned(self.run(self.turned(rotated), second))
        return self.each(outer, lambda v: self.n.reshape(v, (*lead, first * second)))

    def convolution(self, x: Pair, size: int) -> Pair:
        """A transform of any length as a convolution with a chirp, which transforms of a power of two compute."""
        n, longer = self.n, 1 << (2 * size - 2).bit_length()
        chirp = np.exp(self.sign * 1j * np.pi * (np.arange(size, dtype=np.int64) ** 2 % (2 * size)) / size)
        other = np.zeros(longer, np.complex128)
        other[:size] = chirp.conj()
        other[longer - size + 1 :] = chirp.conj()[:0:-1]
        padded = self.each(self.times(x, self.table(chirp)), lambda v: resize(n, v, v.rank - 1, longer))
        product = self.times(Fourier(n, self.dtype, -1).run(padded, longer), self.table(np.fft.fft(other) / longer))
        back = Fourier(n, self.dtype, 1).run(product, longer)
        return self.times(self.each(back, lambda v: resize(n, v, v.rank - 1, size)), self.table(chirp))

    # ---- complex arithmetic ----

    @staticmethod
    def each(x: Pair, f) -> Pair:
        return f(x[0]), None if x[1] is None else f(x[1])

    def turned(self, x: Pair) -> Pair:
        rank = x[0].rank
        return self.each(x, lambda v: self.n.transpose(v, (*range(rank - 2), rank - 1, rank - 2)))

    def times(self, x: Pair, table: tuple[Typed, Typed]) -> Pair:
        n, (re, im), (c, s) = self.n, x, table
        if im is None:
            return n("mul", re, c), n("mul", re, s)
        return n("sub", n("mul", re, c), n("mul", im, s)), n("add", n("mul", re, s), n("mul", im, c))


def factor_of(size: int) -> int:
    """The largest factor up to DIRECT, else the smallest one (the size itself if it is prime)."""
    small = [f for f in range(2, min(DIRECT, size - 1) + 1) if size % f == 0]
    if small:
        return small[-1]
    return next((f for f in range(DIRECT + 1, math.isqrt(size) + 1) if size % f == 0), size)


def resize(n, x, axis: int, size: int):
    """x cut or padded with zeros at its end to `size` along an axis."""
    have = x.shape[axis]
    if have > size:
        sizes = tuple(size if i == axis else d for i, d in enumerate(x.shape))
        return n("slice", x, starts=(0,) * x.rank, sizes=sizes, steps=(1,) * x.rank)
    if have < size:
        high = tuple(size - have if i == axis else 0 for i in range(x.rank))
        return n("pad", x, low=(0,) * x.rank, high=high)
    return x


def mirrored(n, pair, length: int):
    """The whole spectrum of a real signal of this length from its first half."""
    at = n.constant(np.array([length - k for k in range(length // 2 + 1, length)], np.int64))
    out = []
    for v, sign in zip(pair, (1.0, -1.0), strict=False):
        rest = n("gather", v, at, axis=v.rank - 1)
        out.append(n.concat([v, rest if sign > 0 else n("neg", rest)], v.rank - 1))
    return out


__all__ = ["Fourier", "mirrored", "resize"]
