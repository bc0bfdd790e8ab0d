"""Imports of ``dot_general`` and ``convolution``."""

from __future__ import annotations

import math

from torch_mlir._mlir_libs import _stablehlo

from ....ir.types import is_float
from .node import HloOp
from .registry import hlo
from .shape import flip, padded
from .values import HloTensor


def factors(n: HloOp, x: HloTensor, y: HloTensor) -> tuple[HloTensor, HloTensor, dict[str, str]]:
    """Both operands in one dtype, and the attributes that give the product the dtype of the result."""
    n.need(n.dtype != "i1", "of booleans")
    if x.dtype == y.dtype == n.dtype:
        return x, y, {}
    if x.dtype == y.dtype and x.dtype in ("f16", "bf16") and n.dtype == "f32":
        return x, y, {"dtype": "f32"}
    n.need(is_float(n.dtype) or not x.is_float, f"of {x.dtype} and {y.dtype} with a result of {n.dtype}")
    return n.cast(x, n.dtype), n.cast(y, n.dtype), {}


@hlo("dot_general")
def dot_general(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    dims = _stablehlo.DotDimensionNumbers(n.attribute("dot_dimension_numbers"))
    sides = (
        (list(dims.lhs_batching_dimensions), list(dims.lhs_contracting_dimensions)),
        (list(dims.rhs_batching_dimensions), list(dims.rhs_contracting_dimensions)),
    )
    if not math.prod(n.shape) or 0 in (*x.shape, *y.shape):
        return n.full(n.shape, 0, n.dtype)
    x, y, wide = factors(n, x, y)
    (xb, xc), (yb, yc) = sides
    x_free = [i for i in range(x.rank) if i not in (*xb, *xc)]
    y_free = [i for i in range(y.rank) if i not in (*yb, *yc)]
    batch = [x.shape[i] for i in xb]
    inner = math.prod(x.shape[i] for i in xc)
    rows, columns = [x.shape[i] for i in x_free], [y.shape[i] for i in y_free]
    x = n.transpose(x, [*xb, *x_free, *xc])
    y = n.transpose(y, [*yb, *yc, *y_free])
    left = [*batch, math.prod(rows), inner] if batch or not rows else [*rows, inner]
    made = n("matmul", n.reshape(x, left), n.reshape(y, [*batch, inner, math.prod(columns)]), **wide)
    return n.reshape(made, n.shape)


@hlo("convolution")
def convolution(n: HloOp, x: HloTensor, w: HloTensor) -> HloTensor:
    dims = _stablehlo.ConvDimensionNumbers(n.attribute("dimension_numbers"))
    xs, ws, os = (list(getattr(dims, f"{k}_spatial_dimensions")) for k in ("input", "kernel", "output"))
    if not math.prod(n.shape) or 0 in (*x.shape, *w.shape):
        return n.full(n.shape, 0, n.dtype)
    x, w, wide = factors(n, x, w)
    r = len(xs)
    w = flip(n, w, [d for d, back in zip(ws, n.flags("window_reversal", r), strict=True) if back])
    x, low, high = _around(n, x, xs)
    last = dims.input_feature_dimension == r + 1 == dims.output_feature_dimension and r > 0
    last = last and xs == os == list(range(1, r + 1))
    first = [dims.input_batch_dimension, dims.input_feature_dimension, *xs]
    x = x if last else n.transpose(x, first)
    w = n.transpose(w, [dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension, *ws])
    groups, batches = n.number("feature_group_count", 1), n.number("batch_group_count", 1)
    strides, dilations = n.numbers("window_strides", [1] * r), n.numbers("rhs_dilation", [1] * r)
    if not r:  # a product of matrices is a convolution without dimensions
        x, w, low, high = n.unsqueeze(x, 2), n.unsqueeze(w, 2), [0], [0]
        strides, dilations = [1], [1]
    if batches > 1:
        n.need(groups == 1, "with groups of features and of the batch")
        x, groups, last = (
            _batches_as_channels(n, n.transpose(x, _channels_first(r)) if last else x, batches),
            batches,
            False,
        )
    made = n(
        "conv", x, w, None, strides=tuple(strides), pads=(*low, *high), dilations=tuple(dilations), groups=groups,
        layout="nhwc" if last else "nchw", **wide,
    )  # fmt: skip
    if last:
        return made
    made = made if r else n.reshape(made, made.shape[:2])
    order = [dims.output_batch_dimension, dims.output_feature_dimension, *os]
    if batches > 1 and dims.input_feature_dimension == r + 1 and not os:
        return made
    return n.transpose(made, [order.index(i) for i in range(r + 2)])


def _channels_first(r: int) -> list[int]:
    return [0, r + 1, *range(1, r + 1)]


def _around(n: HloOp, x: HloTensor, axes: list[int]) -> tuple[HloTensor, list[int], list[int]]:
    """x and the padding of the convolution. Negative padding and dilation of x, which `conv` has not, are applied to
    x."""
    r = len(axes)
    pads, spaced = n.numbers("padding", [0] * 2 * r), n.numbers("lhs_dilation", [1] * r)
    low, high = pads[0::2], pads[1::2]
    if all(d == 1 for d in spaced) and min(pads, default=0) >= 0:
        return x, low, high
    each: list[list[int]] = [[0] * x.rank for _ in range(3)]
    for i, axis in enumerate(axes):
        for numbers, v in zip(each, (low[i], high[i], spaced[i] - 1), strict=True):
            numbers[axis] = v
    return padded(n, x, n.full((), 0, x.dtype), *each), [0] * r, [0] * r


def _batches_as_channels(n: HloOp, x: HloTensor, groups: int) -> HloTensor:
    """[G * N, C, ...] as [N, G * C, ...]."""
    size, channels, *rest = x.shape
    x = n.reshape(x, (groups, size // groups, channels, *rest))
    x = n.transpose(x, (1, 0, *range(2, x.rank)))
    made: HloTensor = n.reshape(x, (size // groups, groups * channels, *rest))
    return made
