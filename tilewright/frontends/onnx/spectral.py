"""Fourier transforms as products with constant matrices: short ones directly, longer ones factor by factor."""

from __future__ import annotations

import math

import numpy as np

from ...ir.types import NUMPY
from .reader import DTYPES
from .registry import onnx_op
from .values import NotImported, Value

#: transforms up to this length are one product
DIRECT = 64
#: so are those of prime length up to this one; longer primes become convolutions
PRIME = 256

Pair = tuple[Value, Value | None]


class Fourier:
    """Transforms along the last dimension of a real and an imaginary part (None: 0); `sign` is -1, or 1 for the
    inverse."""

    def __init__(self, n, dtype: str, sign: int) -> None:
        self.n, self.dtype, self.sign = n, dtype, sign

    def table(self, values: np.ndarray) -> tuple[Value, Value]:
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

    def times(self, x: Pair, table: tuple[Value, Value]) -> Pair:
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


def part(n, x, axis: int, at: int):
    """Position `at` of an axis, without that dimension."""
    starts = tuple(at if i == axis else 0 for i in range(x.rank))
    sizes = tuple(1 if i == axis else d for i, d in enumerate(x.shape))
    return n.reshape(
        n("slice", x, starts=starts, sizes=sizes, steps=(1,) * x.rank), x.shape[:axis] + x.shape[axis + 1 :]
    )


def transform(n, x, axis: int, length: int | None, *, inverse: bool, onesided: bool):
    """ONNX DFT of x, whose last dimension holds real and imaginary part, along `axis`."""
    if x.shape[-1] not in (1, 2):
        raise n.error(f"the last dimension of {x.type} holds real and imaginary part: it has size 1 or 2")
    if not 0 <= axis < x.rank - 1:
        raise n.error(f"axis {axis} is not a dimension of the signal {x.type}")
    dtype, work = x.dtype, "f64" if x.dtype == "f64" else "f32"
    x = n.cast(x, work)
    back = inverse and onesided  # from half a spectrum to a real signal
    if length is None:
        length = 2 * (x.shape[axis] - 1) if back else x.shape[axis]
    if length < 1:
        raise n.error(f"a transform of length {length} is not possible")
    last = x.rank - 1
    order = [i for i in range(last) if i != axis] + [axis]
    pair = [n.transpose(part(n, x, last, i), order) for i in range(x.shape[-1])]
    pair = [resize(n, v, v.rank - 1, length // 2 + 1 if back else length) for v in pair]
    if back:
        pair = mirrored(n, pair, length)
    re, im = Fourier(n, work, 1 if inverse else -1).run((pair[0], pair[1] if len(pair) > 1 else None), length)
    results = [re] if back else [re, im]
    if inverse:
        results = [n("mul", v, 1.0 / length) for v in results]
    elif onesided:
        results = [resize(n, v, last - 1, length // 2 + 1) for v in results]
    restore = [order.index(i) for i in range(last)]
    results = [n.unsqueeze(n.transpose(v, restore), last) for v in results]
    return n.cast(n.concat(results, last), dtype)


def mirrored(n, pair, length: int):
    """The whole spectrum of a real signal of this length from its first half."""
    at = n.constant(np.array([length - k for k in range(length // 2 + 1, length)], np.int64))
    out = []
    for v, sign in zip(pair, (1.0, -1.0), strict=False):
        rest = n("gather", v, at, axis=v.rank - 1)
        out.append(n.concat([v, rest if sign > 0 else n("neg", rest)], v.rank - 1))
    return out


@onnx_op("DFT", since=17)
def dft_17(n, x, length=None):
    size = None if length is None else int(n.scalar(length, "dft_length"))
    axis = n.axis(1, x.rank)
    return transform(n, x, axis, size, inverse=bool(n.attr("inverse", 0)), onesided=bool(n.attr("onesided", 0)))


@onnx_op("DFT", since=20)
def dft(n, x, length=None, axis=None):
    size = None if length is None else int(n.scalar(length, "dft_length"))
    place = int(n.scalar(axis, "axis", -2)) % x.rank
    return transform(n, x, place, size, inverse=bool(n.attr("inverse", 0)), onesided=bool(n.attr("onesided", 0)))


@onnx_op("STFT", since=17)
def stft(n, x, step, window=None, length=None):
    """Frames of the signal by a gather with a constant table, weighted, transformed."""
    if x.rank == 2:
        x = n.unsqueeze(x, 2)
    if x.rank != 3:
        raise n.error(f"takes a signal [batch, length, 1 or 2], got {x.type}")
    hop = int(n.scalar(step, "frame_step"))
    default = x.shape[1] if window is None else window.shape[0]
    size = int(n.scalar(length, "frame_length", default))
    width = size if window is None else window.shape[0]
    count = 1 + (x.shape[1] - size) // hop if hop > 0 else 0
    if size < 1 or count < 1 or width > size:
        raise n.error(f"frames of {size} every {hop} with a window of {width} do not fit a signal of {x.shape[1]}")
    table = np.arange(count)[:, None] * hop + np.arange(width)
    frames = n("gather", x, n.constant(table, "i64"), axis=1)  # [batch, count, width, 1 or 2]
    if window is not None:
        frames = n("mul", frames, n.reshape(window, (width, 1)))
    return transform(n, frames, 2, size, inverse=False, onesided=bool(n.attr("onesided", 1)))


@onnx_op("MelWeightMatrix", since=17)
def mel_weight_matrix(n, bins, length, rate, low, high):
    """Triangles of equal width on the mel scale, as a constant."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    values = [n.scalar(v, name) for v, name in zip((bins, length, rate, low, high), names, strict=True)]
    count, size, rate, low, high = int(values[0]), int(values[1]), *values[2:]
    dtype = DTYPES.get(n.attr("output_datatype", 1))
    if dtype is None:
        raise NotImported("of an element type that is not supported")
    mel = [2595 * np.log1p(f / 700) / np.log(10) for f in (low, high)]
    steps = np.arange(count + 2) * (mel[1] - mel[0]) / (count + 2) + mel[0]
    places = ((size + 1) * (700 * np.expm1(steps / 2595 * np.log(10))) // rate).astype(int)
    out = np.zeros((size // 2 + 1, count))
    if places.min() < 0 or places.max() > size // 2:
        raise n.error(f"frequencies from {low} to {high} do not fit a sample rate of {rate}")
    for i in range(count):
        left, centre, right = places[i : i + 3]
        if left == centre:
            out[centre, i] = 1
        else:
            out[left : centre + 1, i] = np.arange(centre - left + 1) / (centre - left)
        if right > centre:
            out[centre:right, i] = (right - np.arange(centre, right)) / (right - centre)
    return n.constant(out, dtype)
