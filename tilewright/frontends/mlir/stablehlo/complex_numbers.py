"""Complex tensors: two of real numbers each. Fourier transforms are products with constant matrices."""

from __future__ import annotations

import numpy as np
from torch_mlir._mlir_libs import _stablehlo

from ... import functions
from ...fourier import Fourier, mirrored
from .node import HloEmitter, HloOp
from .registry import complex_hlo
from .values import Complex, HloTensor


@complex_hlo("complex")
def pair(n: HloOp, re: HloTensor, im: HloTensor) -> Complex:
    return Complex(re, im)


@complex_hlo("real")
def real(n: HloOp, x: Complex) -> HloTensor:
    return x.re


@complex_hlo("imag")
def imag(n: HloOp, x: Complex) -> HloTensor:
    return x.im


@complex_hlo("abs")
def magnitude(n: HloOp, x: Complex) -> HloTensor:
    return functions.hypot(n, x.re, x.im)


@complex_hlo("multiply")
def multiply(n: HloOp, x: Complex, y: Complex) -> Complex:
    re = n("sub", n("mul", x.re, y.re), n("mul", x.im, y.im))
    return Complex(re, n("add", n("mul", x.re, y.im), n("mul", x.im, y.re)))


@complex_hlo("divide")
def divide(n: HloOp, x: Complex, y: Complex) -> Complex:
    """Divided by the larger part of the divisor first, so that nothing overflows on the way (Smith)."""
    large = n("greater_equal", n("abs", y.re), n("abs", y.im))
    high, low = n("where", large, y.re, y.im), n("where", large, y.im, y.re)
    ratio = n("div", low, high)
    below = n("add", high, n("mul", low, ratio))
    re = n("where", large, n("add", x.re, n("mul", x.im, ratio)), n("add", n("mul", x.re, ratio), x.im))
    im = n("where", large, n("sub", x.im, n("mul", x.re, ratio)), n("sub", n("mul", x.im, ratio), x.re))
    return Complex(n("div", re, below), n("div", im, below))


@complex_hlo("exponential")
def exponential(n: HloOp, x: Complex) -> Complex:
    size = n("exp", x.re)
    return Complex(n("mul", size, n("cos", x.im)), n("mul", size, n("sin", x.im)))


@complex_hlo("log")
def log(n: HloOp, x: Complex) -> Complex:
    return Complex(n("log", functions.hypot(n, x.re, x.im)), functions.atan2(n, x.im, x.re))


@complex_hlo("convert")
def convert(n: HloOp, x: HloTensor | Complex) -> HloTensor | Complex:
    """Of complex to real numbers the imaginary part is lost."""
    result = "complex" in str(n.op.results[0].type)
    re, im = (x.re, x.im) if isinstance(x, Complex) else (x, None)
    made = n.cast(re, n.dtype)
    if not result:
        return made
    return Complex(made, n.full(made.shape, 0, n.dtype) if im is None else n.cast(im, n.dtype))


@complex_hlo("compare")
def compare(n: HloOp, x: Complex, y: Complex) -> HloTensor:
    direction = _stablehlo.ComparisonDirectionAttr(n.attribute("comparison_direction")).value
    n.need(direction in ("EQ", "NE"), "of complex numbers by size")
    same = n("and", n("equal", x.re, y.re), n("equal", x.im, y.im))
    return same if direction == "EQ" else n("not", same)


@complex_hlo("is_finite")
def is_finite(n: HloOp, x: Complex) -> HloTensor:
    return n("and", *[n("less", n("abs", v), float("inf")) for v in (x.re, x.im)])


# ---- Fourier transforms --------------------------------------------------------------------------------------------


@complex_hlo("fft")
def fft(n: HloOp, x: HloTensor | Complex) -> HloTensor | Complex:
    kind = _stablehlo.FftTypeAttr(n.attribute("fft_type")).value
    lengths = n.numbers("fft_length")
    re, im = (x.re, x.im) if isinstance(x, Complex) else (x, n.full(x.shape, 0, x.dtype))
    axes = list(range(re.rank - len(lengths), re.rank))
    n.need(all(lengths) and 0 not in re.shape, "of no elements")
    if kind == "RFFT":
        re, im = along(n, (re, None), axes[-1], -1)
        keep = lengths[-1] // 2 + 1
        re, im = n.slice(re, axes[-1], 0, keep), n.slice(im, axes[-1], 0, keep)
        axes = axes[:-1]
    sign = 1 if kind in ("IFFT", "IRFFT") else -1
    last = axes.pop() if kind == "IRFFT" else None
    for axis in reversed(axes):
        re, im = along(n, (re, im), axis, sign)
    if last is not None:  # the imaginary part of the mean, and of the highest frequency, does not count
        whole = mirrored(n, _without(n, re, im, lengths[-1]), lengths[-1])
        re, _ = along(n, whole, last, sign)
    if sign == 1:
        scale = 1.0 / float(np.prod([re.shape[a] for a in range(re.rank - len(lengths), re.rank)]))
        re, im = n("mul", re, scale), n("mul", im, scale)
    return re if kind == "IRFFT" else Complex(re, im)


def _without(n: HloEmitter, re: HloTensor, im: HloTensor, length: int) -> tuple[HloTensor, HloTensor]:
    """Half a spectrum of a real signal, without what such a signal cannot have."""
    keep = np.ones(re.shape[-1], bool)
    keep[0] = False
    if length % 2 == 0:
        keep[-1] = False
    return re, n("where", n.constant(keep), im, n.full((), 0, im.dtype))


def along(n: HloEmitter, x: tuple[HloTensor, HloTensor | None], axis: int, sign: int) -> tuple[HloTensor, HloTensor]:
    """The transform along one axis, not scaled."""
    rank, size = x[0].rank, x[0].shape[axis]
    order = [*(i for i in range(rank) if i != axis), axis]
    re, im = (None if v is None else n.transpose(v, order) for v in x)
    made = Fourier(n, x[0].dtype, sign).run((re, im), size)
    back = [order.index(i) for i in range(rank)]
    return n.transpose(made[0], back), n.transpose(made[1], back)
