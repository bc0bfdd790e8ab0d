"""Clipping of convolution and pooling windows to the image: positions that are always padding are not visited."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ..support.sizes import at_most, highest, smaller, surely


@dataclass(frozen=True)
class Clipped:
    """The positions `taps` of a window that are inside for some result, `low` and `high` elements of padding that
    they need, and the part ``[start, stop)`` of the image that they read (all of it unless something is never read)."""

    taps: range
    low: int
    high: int
    start: int
    stop: int


def clip(n: int, out: int, kernel: int, stride: int, low: int, dilation: int) -> Clipped:
    """For `out` results of windows that move by `stride` over n elements with `low` in front. No taps are left if no
    window holds an element of the image.

    Beside taps that never are inside, whole strides of taps drop out where results are far apart: what is left is
    evenly spaced again. Of an image of open size everything stays that is not surely outside; there may be more padding
    than some of its sizes need.

    >>> clip(14, 14, 3, 1, 36, 36)  # dilation 36 of 14 elements: the tap in the middle
    Clipped(taps=range(1, 2), low=0, high=0, start=0, stop=14)
    >>> clip(7, 1, 1280, 1280, 0, 1)
    Clipped(taps=range(0, 7), low=0, high=0, start=0, stop=7)
    >>> clip(8, 1, 3, 1, 13, 10)  # one result, whose last tap is inside
    Clipped(taps=range(2, 3), low=0, high=0, start=7, stop=8)
    >>> len(clip(3, 2, 2, 1, 5, 1).taps)
    0
    """
    inside = [k for k in range(kernel) if not _surely_never(n, out, stride, k * dilation - low)]
    if not inside:
        return Clipped(range(0), 0, 0, 0, 0)
    step = gcd(*[k - inside[0] for k in inside]) or 1
    taps = range(inside[0], inside[-1] + 1, step)
    first = taps[0] * dilation - low  # where the first result's first tap lies
    beyond = first + (out - 1) * stride + (taps[-1] - taps[0]) * dilation + 1
    start, high = max(first, 0), max(highest(beyond - n), 0)
    # what less than a stride is left over stays: it costs nothing, and a part of an image does
    stop = beyond if at_most(beyond, n - stride) or start else n
    return Clipped(taps, max(-first, 0), high, start, smaller(stop, n))


def _surely_never(n: int, out: int, stride: int, at: int) -> bool:
    """Whether none of them does, for all sizes."""
    return surely(lambda: not _ever(n, out, stride, at))


def _ever(n: int, out: int, stride: int, at: int) -> bool:
    """Whether one of the places at, at + stride, ... of `out` results lies in [0, n)."""
    result = max(-(at // stride), 0)
    return result < out and at + result * stride < n


__all__ = ["Clipped", "clip"]
