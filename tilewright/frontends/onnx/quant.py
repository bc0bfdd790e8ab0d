"""Quantized operators: tw has the two conversions; integer products are computed in i32."""

from __future__ import annotations

from ...ir.types import is_float
from .nn import convolution
from .reader import DTYPES
from .registry import onnx_op
from .values import OnnxNotImported


def same_form(n, zero_point, scale):
    """A zero point of one element in the shape of its scale."""
    if zero_point is None or zero_point.type.size != 1 or scale.type.size != 1:
        return zero_point
    return n.reshape(zero_point, scale.shape)


@onnx_op("QuantizeLinear", since=10)
def quantize_linear(n, x, scale, zero_point=None):
    to = zero_point.dtype if zero_point is not None else DTYPES.get(n.attr("output_dtype", 0) or 2)
    if to is None:
        raise OnnxNotImported("to an element type that is not supported")
    zero_point = same_form(n, zero_point, scale)
    precision = DTYPES.get(n.attr("precision", 0), scale.dtype)
    if not is_float(precision):
        raise OnnxNotImported(f"with a scale of type {precision}")
    attributes = {"axis": n.attr("axis", 1), "block": n.attr("block_size", 0), "saturate": bool(n.attr("saturate", 1))}
    return n("quantize_linear", n.cast(x, precision), n.cast(scale, precision), zero_point, to=to, **attributes)


@onnx_op("DequantizeLinear", since=10)
def dequantize_linear(n, x, scale, zero_point=None):
    zero_point = same_form(n, zero_point, scale)
    dtype = DTYPES.get(n.attr("output_dtype", 0), scale.dtype if is_float(scale.dtype) else "f32")
    if not is_float(scale.dtype):  # powers of two
        scale = n.cast(scale, "f32")
    out = n("dequantize_linear", x, scale, zero_point, axis=n.attr("axis", 1), block=n.attr("block_size", 0))
    return [n.cast(out, dtype)]


def centred(n, x, zero_point, axis=None):
    """x - zero_point in i32; a vector of zero points lies along `axis`."""
    x = n.cast(x, "i32")
    if zero_point is None:
        return x
    zero = n.cast(zero_point, "i32")
    if zero.rank == 1 and zero.shape[0] > 1 and axis is not None:
        zero = n.reshape(zero, [-1 if i == axis % x.rank else 1 for i in range(x.rank)])
    elif zero.type.size == 1:
        zero = n.reshape(zero, ())
    return n("sub", x, zero)


@onnx_op("MatMulInteger", since=10)
def matmul_integer(n, x, y, x_zero=None, y_zero=None):
    return n("matmul", centred(n, x, x_zero, -2), centred(n, y, y_zero, -1))


@onnx_op("ConvInteger", since=10)
def conv_integer(n, x, w, x_zero=None, w_zero=None):
    return convolution(n, centred(n, x, x_zero), centred(n, w, w_zero, 0))


def requantize(n, product, scales, y_scale, y_zero, axis):
    """An i32 product to the quantized result: times the scales of its factors, quantized by the result's."""
    out = n.cast(product, "f32")
    for scale in scales:
        scale = n.cast(scale, "f32")
        if scale.type.size == 1:
            scale = n.reshape(scale, ())
        elif scale.rank == 1:
            scale = n.reshape(scale, [-1 if i == axis % out.rank else 1 for i in range(out.rank)])
        out = n("mul", out, scale)
    return n("quantize_linear", out, n.cast(y_scale, "f32"), y_zero, to=y_zero.dtype, axis=axis % out.rank)


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(n, x, x_scale, x_zero, y, y_scale, y_zero, out_scale, out_zero):
    product = n("matmul", centred(n, x, x_zero, -2), centred(n, y, y_zero, -1))
    if x_scale.type.size > 1:
        x_scale = n.reshape(x_scale, (*x_scale.shape, 1)) if x_scale.rank == 1 else x_scale
    return requantize(n, product, [x_scale, y_scale], out_scale, out_zero, -1)


@onnx_op("QLinearConv", since=10)
def qlinear_conv(n, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias=None):
    product = convolution(n, centred(n, x, x_zero), centred(n, w, w_zero, 0))
    if bias is not None:
        product = n("add", product, n.reshape(bias, (-1, *[1] * (x.rank - 2))))
    return requantize(n, product, [x_scale, w_scale], y_scale, y_zero, 1)
