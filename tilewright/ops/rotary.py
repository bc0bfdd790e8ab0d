"""Rotary positions: pairs of numbers of each head turned by an angle of the token."""

from __future__ import annotations

from ..ir.dialect import Operator
from ..support.errors import OpError
from .common import in_wide, need, need_shape, wide_body


class Rotary(Operator):
    """x [T, heads, depth] in which the numbers (a, b) of pair i, of n, become (a cos - b sin, b cos + a sin).

    cosine and sine are [T, n]. A pair is d and d + n, for d below n; with `interleaved` 2 d and 2 d + 1. What lies
    beyond the first 2 n numbers of a head stays as it is.

    ``"tw.rotary"(%x, %c, %s) {interleaved = false} : (tensor<6x8x64xf32>, tensor<6x32xf32>, tensor<6x32xf32>) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(x, cosine, sine, *, interleaved: bool = False):
        need("float", x, cosine, sine)
        if x.rank != 3 or cosine.rank != 2:
            raise OpError(f"x is [T, heads, depth], and cosine and sine [T, pairs], got {x} and {cosine}")
        need_shape("cosine", cosine, (x.shape[0], None))
        need_shape("sine", sine, cosine.shape)
        if None not in (cosine.shape[1], x.shape[2]) and 2 * cosine.shape[1] > x.shape[2]:
            raise OpError(f"{cosine.shape[1]} pairs are more than {x} has")
        return x

    @staticmethod
    def reference(x, cosine, sine, *, interleaved):
        def turned(x, cosine, sine):
            n = cosine.shape[1]
            first, second = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(n), slice(n, 2 * n))
            a, b, out = x[..., first], x[..., second], x.copy()
            c, s = cosine[:, None], sine[:, None]
            out[..., first], out[..., second] = a * c - b * s, b * c + a * s
            return out

        return in_wide(turned, x, cosine, sine)

    @staticmethod
    def decompose(b, x, cosine, sine, *, interleaved):
        n = cosine.shape[1]

        def element(t, h, d):
            inside = b.minimum(d, 2 * n - 1)
            pair, second = (inside // 2, inside % 2) if interleaved else (inside % n, inside // n)
            other = (pair * 2 + 1 - second) if interleaved else pair + (1 - second) * n
            c, s = b.load(cosine, [t, pair]), b.load(sine, [t, pair])

            def turn(own, other, c, s, sign):
                return own * c + other * s * sign

            sign = b.cast(b.cast(second * 2 - 1, "i32"), "f32")
            own, theirs = b.load(x, [t, h, d]), b.load(x, [t, h, other])
            if x.dtype == "f64":
                sign = b.cast(sign, "f64")
            return b.select(d < 2 * n, wide_body(b, turn)(own, theirs, c, s, sign), own)

        return b.compute(x.type, element)


__all__ = ["Rotary"]
