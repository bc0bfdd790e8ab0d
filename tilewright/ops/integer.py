"""Integer arithmetic of quantized models: sums of products in i32, and the step back to 8 bits.

Every result is defined here exactly, so that all targets give the same bits. An 8-bit number q stands for
``(q - zero) * scale``. A sum of products of such numbers is an exact i32; its way to the result's 8 bits is
`Requantize`: a multiplication by a number of 31 bits and one rounding, in integers only. That serves processors without
an FPU (three instructions a number on a Cortex-M4, two on Helium vectors), and is closer to the exact quotient of the
scales than f32 arithmetic is. See docs/quantized_models.md.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import NUMPY, Type
from ..support.errors import OpError
from .common import Elementwise, Unary, axes_of, broadcast_shapes, need_shape
from .conv import convolve, convolve_numpy, spatial, with_channels
from .norm import channel_axis
from .quant import limits

BYTES = ("i8", "ui8")
#: of weights: their zero point has been subtracted, which may need more than 8 bits
WEIGHTS = ("i8", "i16")


def need_bytes(*xs: Type) -> None:
    """OpError unless all operands are 8-bit integers."""
    for x in xs:
        if x.dtype not in BYTES:
            raise OpError(f"needs operands of {' or '.join(BYTES)}, got {x}")


def _equal(a: int | None, b: int | None, times: int = 1) -> bool:
    """Whether dimensions a * times and b can be equal; unknown ones can."""
    return a is None or b is None or a * times == b


class IntegerConv(Operator):
    """Convolution of 8-bit numbers with an exact i32 result; padding has the value `pad_value`, the zero point of x.

    Weights are [O, I / groups, *kernel] of i8 or i16 with their zero point already subtracted; that of x is not:
    its share, ``zero * sum(w)``, belongs into the bias of the `requantize` that follows.

    ``"tw.integer_conv"(%x, %w) {strides = ..., pads = ..., dilations = ..., pad_value = -3}
    : (tensor<1x3x8x8xi8>, tensor<16x3x3x3xi8>) -> tensor<1x16x8x8xi32>``
    """

    @staticmethod
    def infer(
        x,
        w,
        *,
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        dilations: tuple[int, ...],
        groups: int = 1,
        layout: str = "nchw",
        pad_value: int = 0,
    ):
        need_bytes(x)
        if w.dtype not in WEIGHTS:
            raise OpError(f"needs weights of {' or '.join(WEIGHTS)}, got {w}")
        low, high = limits(x.dtype)
        if not low <= pad_value <= high:
            raise OpError(f"pad_value {pad_value} is no number of {x.dtype}")
        channels, r = x.shape[channel_axis(x, layout)], x.rank - 2
        if w.rank != x.rank or r < 1 or len(strides) != r or len(dilations) != r or len(pads) != 2 * r:
            raise OpError(f"strides {strides}, dilations {dilations}, pads {pads} and {w} do not fit {x}")
        if groups < 1 or (w.shape[0] or 0) % groups or not _equal(w.shape[1], channels, groups):
            raise OpError(f"weights {w} in {groups} groups do not fit {x}")
        sizes: list[int | None] = []
        for i, n in enumerate(spatial(x.shape, layout)):
            k = w.shape[2 + i]
            if n is None or k is None:
                sizes.append(None)
                continue
            free = n + pads[i] + pads[r + i] - dilations[i] * (k - 1) - 1
            if free < 0:
                raise OpError(f"the kernel of {w} is larger than the padded dimension {i} of {x}")
            sizes.append(free // strides[i] + 1)
        return Type(tuple(with_channels(x.shape[0], w.shape[0], sizes, layout)), "i32")

    @staticmethod
    def reference(x, w, *, strides, pads, dilations, groups, layout, pad_value):
        x = np.moveaxis(x, -1, 1) if layout == "nhwc" else x
        r = x.ndim - 2
        x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:r], pads[r:], strict=True)], constant_values=pad_value)
        # float64 holds the products and their sums exactly, and NumPy multiplies its matrices fast
        out = convolve_numpy(x.astype(np.float64), w.astype(np.float64), strides, dilations, groups).astype(np.int32)
        return np.ascontiguousarray(np.moveaxis(out, 1, -1)) if layout == "nhwc" else out

    @staticmethod
    def lower(b, x, w, *, strides, pads, dilations, groups, layout, pad_value):
        r = x.rank - 2
        low, high = with_channels(0, 0, pads[:r], layout), with_channels(0, 0, pads[r:], layout)
        x = b.pad(x, low, high, pad_value)
        if layout == "nhwc" and groups == 1 and dilations[-1] == 1:
            return _rows_of_windows(b, x, w, strides, dilations)
        return convolve(b, x, w, strides, dilations, groups, layout, "i32")


def _rows_of_windows(b, x, w, strides, dilations):
    """Convolution of padded x [N, *spatial, C]: in memory a row of a window and its channels are one run of numbers, so
    they are one loop. A 1x1 convolution that skips nothing is a product of matrices."""
    n, *sizes, c = x.shape
    o, kernel = w.shape[0], list(w.shape[2:])
    w = b.reshape(b.transpose(w, [*range(2, w.rank), 1, 0]), [*kernel[:-1], kernel[-1] * c, o])
    if all(k == 1 for k in kernel) and all(s == 1 for s in strides):
        out = b.contract("mk,kn->mn", b.reshape(x, [x.type.size // c, c]), b.reshape(w, [c, o]), dtype="i32")
        return b.reshape(out, [n, *sizes, o])
    r = len(sizes)
    out_sizes = [(sizes[i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(r)]
    x = b.reshape(x, [n, *sizes[:-1], sizes[-1] * c])
    # loops: n, positions, output channel; rows of the window, run
    at = [b.dim(i) for i in range(2 + r + r)]
    y, out, k, run = at[1 : 1 + r], at[1 + r], at[2 + r : 1 + 2 * r], at[1 + 2 * r]
    position = [y[i] * strides[i] + k[i] * dilations[i] for i in range(r - 1)]
    zero = b.fill(0, Type((n, *out_sizes, o), "i32"))
    return b.generic(
        [(x, [at[0], *position, y[-1] * (strides[-1] * c) + run]), (w, [*k, run, out])],
        [(zero, at[: 2 + r])],
        "p" * (2 + r) + "r" * r,
        lambda v, f, s: s + b.cast(v, "i32") * b.cast(f, "i32"),
    )[0]


class IntegerMatmul(Operator):
    """x [..., K] times weights [K, N] (zero point subtracted, see `IntegerConv`): an exact i32 result.

    ``"tw.integer_matmul"(%x, %w) : (tensor<4x640xi8>, tensor<640x128xi8>) -> tensor<4x128xi32>``
    """

    @staticmethod
    def infer(x, w):
        need_bytes(x)
        if w.dtype not in WEIGHTS or w.rank != 2 or x.rank < 1:
            raise OpError(f"needs weights [K, N] of {' or '.join(WEIGHTS)}, got {w} for {x}")
        if not _equal(x.shape[-1], w.shape[0]):
            raise OpError(f"inner dimensions differ: {x} and {w}")
        return Type((*x.shape[:-1], w.shape[1]), "i32")

    @staticmethod
    def reference(x, w):
        return np.matmul(x.astype(np.float64), w.astype(np.float64)).astype(np.int32)

    @staticmethod
    def lower(b, x, w):
        rows = b.reshape(x, [prod(x.shape[:-1]), x.shape[-1]])
        out = b.contract("mk,kn->mn", rows, w, dtype="i32")
        return b.reshape(out, [*x.shape[:-1], w.shape[1]])


class ReduceBytes(Operator):
    """The sum of 8-bit numbers over `axes` in i32."""

    @staticmethod
    def infer(x, *, axes: tuple[int, ...], keepdims: bool = False):
        need_bytes(x)
        axes = axes_of(axes, x.rank)
        dims = [1 if i in axes else d for i, d in enumerate(x.shape) if keepdims or i not in axes]
        return Type(tuple(dims), "i32")

    @staticmethod
    def reference(x, *, axes, keepdims):
        return x.sum(axis=tuple(axes), keepdims=keepdims, dtype=np.int32)

    @staticmethod
    def lower(b, x, *, axes, keepdims):
        axes = axes_of(axes, x.rank)
        return b.reduce(lambda v, s: s + b.cast(v, "i32"), 0, x, axes, keepdims=keepdims, dtype="i32")


class Requantize(Operator):
    """An i32 sum as an 8-bit number: ``clip(round((x + bias) * multiplier / 2**(33 + shift)) + zero, low, high)``.

    Halves round to the even neighbour. `bias`, `multiplier` (2**30 up to 2**31 - 1) and `shift` (0 to 30) are i32
    numbers, or vectors along `axis`; ``left`` first multiplies x + bias by 2**left, which must not overflow.

    Only the upper word of the product is formed: ``h = (x * multiplier) >> 32``, then ``((h >> shift) + 1) >> 1``,
    which rounds halves up. An exact half can only come up for a multiplier with many zeros at its end (scales that
    divide to a power of two, mostly); then, and only then, `odd` and `half` are there, which detect it in wrapping i32
    arithmetic: with r the result, ``(x + bias) * odd + half == r << exponent`` where ``odd * 2**t == multiplier``.
    With `even` it is detected without them, for any multiplier, from both words of the product.
    """

    @staticmethod
    def infer(
        x,
        bias,
        multiplier,
        shift,
        odd=None,
        half=None,
        exponent=None,
        *,
        to: str,
        zero: int = 0,
        low: int,
        high: int,
        left: int = 0,
        axis: int = 1,
        even: bool = False,
    ):
        if even and odd is not None:
            raise OpError("finds exact halves with even, or with odd, half and exponent, not with both")
        if x.dtype != "i32" or to not in BYTES:
            raise OpError(f"turns i32 into {' or '.join(BYTES)}, not {x} into {to}")
        smallest, largest = limits(to)
        if not smallest <= low <= high <= largest:
            raise OpError(f"limits {low} and {high} are not in the range of {to}")
        for name, p in _parameters(bias, multiplier, shift, odd, half, exponent):
            if p.dtype != "i32":
                raise OpError(f"{name} must be i32, got {p}")
            if p.rank:
                need_shape(name, p, (x.shape[axis],))
        if not 0 <= left <= 30:
            raise OpError(f"left is {left}, it must be 0 to 30")
        return x.with_dtype(to)

    @staticmethod
    def reference(
        x, bias, multiplier, shift, odd=None, half=None, exponent=None, *, to, zero, low, high, left, axis, even
    ):
        def spread(p):
            return p.astype(np.int64).reshape(
                [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)] if p.ndim else ()
            )

        bits = spread(shift) + 33
        product = ((x.astype(np.int64) + spread(bias)) << left) * spread(multiplier)
        whole = product >> bits
        rest, middle = product - (whole << bits), np.left_shift(np.int64(1), bits - 1)
        rounded = whole + ((rest > middle) | ((rest == middle) & (whole % 2 == 1)))
        return np.clip(rounded + zero, low, high).astype(NUMPY[to])

    @staticmethod
    def lower(
        b, x, bias, multiplier, shift, odd=None, half=None, exponent=None, *, to, zero, low, high, left, axis, even
    ):
        ties = odd is not None

        def body(v, offset, factor, count, *more):
            v = v + offset
            v = v.shift_left(left) if left else v
            upper = b.multiply_high(v, factor)
            h = b.shift_right_by(upper, count)
            if even:
                exact = (v * factor).eq(0) & b.shift_left_by(h, count).eq(upper)
                down = b.cast(exact & (h & 3).eq(1), "i32")  # a half above an even number
                h = (h + (2 * zero + 1) - down).shift_right(1)
            elif not ties:
                h = (h + (2 * zero + 1)).shift_right(1)
            else:
                h = (h + 1).shift_right(1)
                o, m, e = more
                tie = (v * o + m).eq(b.shift_left_by(h, e))
                h = b.select(tie, h & -2, h)
                h = h + zero if zero else h
            return b.cast(b.minimum(b.maximum(h, low), high), to)

        params = [p for _, p in _parameters(bias, multiplier, shift, odd, half, exponent)]
        index = [b.dim(i) for i in range(x.rank)]
        inputs = [(x, index), *[(p, [index[axis]] if p.rank else []) for p in params]]
        out = b.empty(x.type.with_dtype(to))
        return b.generic(inputs, [(out, index)], "p" * x.rank, lambda *a: body(*a[:-1]))[0]


def _parameters(bias, multiplier, shift, odd, half, exponent):
    named = zip(
        ("bias", "multiplier", "shift", "odd", "half", "exponent"),
        (bias, multiplier, shift, odd, half, exponent),
        strict=True,
    )
    return [(n, p) for n, p in named if p is not None]


class IntegerAdd(Elementwise):
    """Sum of two 8-bit tensors of different scales: ``clip(round((x * mx + y * my + offset) / 2**shift) + zero)``.

    `mx` and `my` are the operands' scales over that of the result, times 2**shift; `offset` takes the zero points out.
    The sum fits i32 (which `infer` checks; on the way to it numbers may wrap), halves round to even; shapes broadcast.
    """

    @staticmethod
    def infer(x, y, *, mx: int, my: int, offset: int, shift: int, to: str, zero: int, low: int, high: int):
        need_bytes(x, y, Type((), to))
        if not 1 <= shift <= 30:
            raise OpError(f"shift is {shift}, it must be 1 to 30")
        ends = [sorted(m * q for q in limits(t.dtype)) for m, t in ((mx, x), (my, y))]
        low_end, high_end = (sum(e[i] for e in ends) + offset for i in (0, 1))
        if max(-low_end, high_end) + (1 << shift) >= 1 << 31:
            raise OpError(f"multipliers {mx} and {my} with offset {offset} and shift {shift} overflow i32")
        return Type(broadcast_shapes(x.shape, y.shape), to)

    @staticmethod
    def reference(x, y, *, mx, my, offset, shift, to, zero, low, high):
        v = x.astype(np.int64) * mx + y.astype(np.int64) * my + offset
        v = (v + (1 << shift - 1) - 1 + (v >> shift & 1)) >> shift
        return np.clip(v + zero, low, high).astype(NUMPY[to])

    @staticmethod
    def lower(b, x, y, *, mx, my, offset, shift, to, zero, low, high):
        def body(p, q):
            v = b.cast(p, "i32") * mx + b.cast(q, "i32") * my + offset
            even = v.shift_right(shift) & 1
            v = (v + ((1 << shift - 1) - 1) + even).shift_right(shift)
            return b.cast(b.minimum(b.maximum(v + zero, low), high), to)

        return b.elementwise(body, x, y, dtype=to)


class Lookup(Operator):
    """table[x] for 8-bit x: any function of one quantized number, as the table of its 256 values.

    The table is ordered by the bits of x: first 0 to 127, then 128 to 255 or -128 to -1.
    """

    @staticmethod
    def infer(x, table):
        need_bytes(x)
        need_shape("table", table, (256,))
        return x.with_dtype(table.dtype)

    @staticmethod
    def reference(x, table):
        return table[x.view(np.uint8)]

    @staticmethod
    def lower(b, x, table):
        def body(v):
            return b.load(table, [b.cast(b.reinterpret(v, "ui8"), "index")])

        return b.elementwise(body, x, dtype=table.dtype)


class FlipSign(Unary):
    """The 8-bit number moved by 128 into the other signedness: ui8 200 becomes i8 72, i8 -128 becomes ui8 0."""

    @classmethod
    def infer(cls, x):
        need_bytes(x)
        return x.with_dtype("ui8" if x.dtype == "i8" else "i8")

    @staticmethod
    def reference(x):
        return (x.view(np.uint8) ^ 0x80).view(np.int8 if x.dtype == np.uint8 else np.uint8)

    @classmethod
    def lower(cls, b, x):
        other = "ui8" if x.dtype == "i8" else "i8"
        return b.elementwise(lambda v: b.reinterpret(v ^ -128, other), x, dtype=other)
