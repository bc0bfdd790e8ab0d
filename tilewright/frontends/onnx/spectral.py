"""Fourier transforms (`frontends.fourier`), windows and frames of signals."""

from __future__ import annotations

import numpy as np

from ..fourier import Fourier, mirrored, resize
from .reader import DTYPES
from .registry import onnx_op
from .values import OnnxNotImported


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
    pair = [n.transpose(n.pick(x, last, i), order) for i in range(x.shape[-1])]
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
        raise OnnxNotImported("of an element type that is not supported")
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
