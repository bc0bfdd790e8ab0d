"""`com.microsoft` quantized operators: their integers are dequantized, computed with, and quantized again; products of
matrices are computed in i32."""

from __future__ import annotations

import math

import numpy as np

from ...ir.types import NUMPY
from . import nn, quant
from .contrib import MS, embed_layer_norm
from .contrib_attention import attend_projected
from .quant import centred
from .registry import find, onnx_op
from .shape import channels_first, channels_last
from .values import OnnxNotImported

for _name, _since in (("QuantizeLinear", 10), ("DequantizeLinear", 10)):
    _function = find("", _name, _since)
    assert _function is not None
    onnx_op(_name, since=1, domain=MS)(_function)


def scalar(n, x):
    """A tensor of one element without dimensions; others as they are."""
    return n.reshape(x, ()) if x is not None and x.type.size == 1 else x


def real(n, x, scale, zero):
    """The integers x, dequantized."""
    scale, zero = scalar(n, scale), scalar(n, zero)
    return n("dequantize_linear", x, scale, zero)


def quantized(n, x, scale, zero, like=None):
    """x, quantized to the dtype of the zero point, or of `like` where there is none."""
    scale, zero = scalar(n, scale), scalar(n, zero)
    return n("quantize_linear", x, scale, zero, to=zero.dtype if zero is not None else like.dtype)


# ---- elementwise ---------------------------------------------------------------------------------------------------


@onnx_op("QLinearAdd", "QLinearMul", since=1, domain=MS)
def qlinear_binary(n, x, x_scale, x_zero, y, y_scale, y_zero, scale, zero=None):
    operator = {"QLinearAdd": "add", "QLinearMul": "mul"}[n.proto.op_type]
    return quantized(n, n(operator, real(n, x, x_scale, x_zero), real(n, y, y_scale, y_zero)), scale, zero, x)


@onnx_op("QLinearSigmoid", since=1, domain=MS)
def qlinear_sigmoid(n, x, x_scale, x_zero, scale, zero=None):
    return quantized(n, n("sigmoid", real(n, x, x_scale, x_zero)), scale, zero, x)


@onnx_op("QLinearLeakyRelu", since=1, domain=MS)
def qlinear_leaky_relu(n, x, x_scale, x_zero, scale, zero=None):
    return quantized(
        n, n("leaky_relu", real(n, x, x_scale, x_zero), alpha=float(n.attr("alpha", 0.01))), scale, zero, x
    )


@onnx_op("QLinearSoftmax", since=1, domain=MS)
def qlinear_softmax(n, x, x_scale, x_zero, scale, zero=None):
    wide = real(n, x, x_scale, x_zero)
    if n.required("opset") >= 13:
        out = n("softmax", wide, axis=n.attr("axis", -1))
    else:  # over all dimensions from `axis` on together
        axis = n.axis(1, x.rank)
        flat = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        out = n.reshape(n("softmax", n.reshape(wide, flat), axis=1), x.shape)
    return quantized(n, out, scale, zero, x)


@onnx_op("QLinearConcat", since=1, domain=MS)
def qlinear_concat(n, scale, zero, *parts):
    wide = [real(n, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return quantized(n, n.concat(wide, n.axis(0, wide[0].rank)), scale, zero)


@onnx_op("QLinearWhere", since=1, domain=MS)
def qlinear_where(n, condition, x, x_scale, x_zero, y, y_scale, y_zero, scale, zero):
    return quantized(n, n("where", condition, real(n, x, x_scale, x_zero), real(n, y, y_scale, y_zero)), scale, zero)


# ---- pooling and convolution, with channels last where the attribute says so ---------------------------------------


@onnx_op("QLinearAveragePool", "QLinearGlobalAveragePool", since=1, domain=MS)
def qlinear_average_pool(n, x, x_scale, x_zero, scale, zero=None):
    last = bool(n.attr("channels_last", 0))
    pool = nn.global_average_pool if "Global" in n.proto.op_type else nn.average_pool
    out = pool(n, channels_first(n, real(n, x, x_scale, x_zero), last))
    return quantized(n, channels_last(n, out, last), scale, zero, x)


@onnx_op("NhwcMaxPool", since=1, domain=MS)
def nhwc_max_pool(n, x):
    return channels_last(n, nn.max_pool(n, channels_first(n, x))[0])


@onnx_op("QLinearConv", since=1, domain=MS)
def qlinear_conv(n, x, *rest):
    last = bool(n.attr("channels_last", 0))
    return channels_last(n, quant.qlinear_conv(n, channels_first(n, x, last), *rest), last)


# ---- products ------------------------------------------------------------------------------------------------------


def scaled(n, product, *scales):
    """An i32 product as f32, times its factors' scales (of one element or of one a column)."""
    scale = scalar(n, scales[0])
    for other in scales[1:]:
        scale = n("mul", scale, scalar(n, other))
    return n("mul", n.cast(product, "f32"), scale)


def integer_product(n, x, y, x_zero, y_zero):
    return n("matmul", centred(n, x, x_zero, -2), centred(n, y, y_zero, -1))


@onnx_op("MatMulInteger16", since=1, domain=MS)
def matmul_integer_16(n, x, y):
    return integer_product(n, x, y, None, None)


@onnx_op("MatMulIntegerToFloat", since=1, domain=MS)
def matmul_integer_to_float(n, x, y, x_scale, y_scale, x_zero=None, y_zero=None, bias=None):
    out = scaled(n, integer_product(n, x, y, x_zero, y_zero), x_scale, y_scale)
    return out if bias is None else n("add", out, bias)


def dynamically_quantized(n, x):
    """x as ui8 with a scale and a zero point that fit its range, as DynamicQuantizeLinear chooses them."""
    axes = tuple(range(x.rank))
    low = n("min", n("reduce_min", x, axes=axes, keepdims=False), 0)
    high = n("max", n("reduce_max", x, axes=axes, keepdims=False), 0)
    scale = n("div", n("sub", high, low), 255)
    scale = n("where", n("equal", scale, 0), n.constant(np.ones((), NUMPY[x.dtype])), scale)
    zero = n("round", n("clip", n("div", n("neg", low), scale), low=0.0, high=255.0))
    zero = n.cast(zero, "ui8")
    return n("quantize_linear", x, scale, zero, to="ui8"), scale, zero


@onnx_op("DynamicQuantizeMatMul", since=1, domain=MS)
def dynamic_quantize_matmul(n, x, y, y_scale, y_zero=None, bias=None):
    q, scale, zero = dynamically_quantized(n, x)
    out = scaled(n, integer_product(n, q, y, zero, y_zero), scale, y_scale)
    return out if bias is None else n("add", out, bias)


@onnx_op("QGemm", since=1, domain=MS)
def qgemm(n, x, x_scale, x_zero, y, y_scale, y_zero, bias=None, scale=None, zero=None):
    x = n.transpose(centred(n, x, x_zero, None), (1, 0)) if n.attr("transA", 0) else centred(n, x, x_zero, None)
    y = centred(n, n.transpose(y, (1, 0)) if n.attr("transB", 0) else y, y_zero, -1)
    product = n("matmul", x, y)
    out = scaled(n, product if bias is None else n("add", product, bias), x_scale, y_scale)
    alpha = float(n.attr("alpha", 1.0))
    out = n("mul", out, alpha) if alpha != 1 else out
    return out if scale is None else quantized(n, out, scale, zero)


# ---- transformers --------------------------------------------------------------------------------------------------


@onnx_op("QAttention", since=1, domain=MS)
def qattention(
    n, x, weights, bias, x_scale, weight_scale, mask=None, x_zero=None, weight_zero=None, past=None
):  # fmt: skip
    """Attention whose input and weights are integers."""
    if n.attr("do_rotary", 0) or n.attr("past_present_share_buffer", 0):
        raise OnnxNotImported("with do_rotary or a buffer that past and present share")
    product = scaled(n, integer_product(n, x, weights, x_zero, weight_zero), x_scale, weight_scale)
    product = product if bias is None else n("add", product, bias)
    return attend_projected(n, product, [weights.shape[1] // 3] * 3, mask, past, None)


@onnx_op("QEmbedLayerNormalization", since=1, domain=MS)
def qembed_layer_norm(n, ids, segments, *rest):
    """EmbedLayerNormalization of quantized tables: five of them, the mask, then their scales and zero points."""
    tables, mask, scales, zeros = rest[:5], rest[5], rest[6:11], rest[11:16]
    words, places, types, gamma, beta = (
        None if t is None else real(n, t, s, z) for t, s, z in zip(tables, scales, zeros, strict=True)
    )
    return embed_layer_norm(n, ids, segments, words, places, types, gamma, beta, mask)


#: the sixteen numbers of bitsandbytes' codes: FP4, and NF4 (quantiles of the normal distribution)
FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@onnx_op("MatMulBnb4", since=1, domain=MS)
def matmul_bnb4(n, x, packed, largest):
    """x times weights [N, K] of 4-bit codes, the first of two in the high bits; each block has its largest number."""
    k, columns, block = (n.required(name) for name in ("K", "N", "block_size"))
    blocks = -(-columns * k // block)
    if packed.type.size != (columns * k + 1) // 2 or largest.type.size != blocks or blocks * block != columns * k:
        raise OnnxNotImported(f"of weights {packed.type} that do not fill blocks of {block}")
    table = np.array(NF4 if n.attr("quant_type", 1) else (*FP4, *(-v for v in FP4)), np.float32)
    flat = n.reshape(packed, (packed.type.size, 1))
    codes = n.concat([n("shift_right", flat, 4), n("and", flat, 15)], 1)
    numbers = n("gather", n.constant(table), n.cast(n.reshape(codes, (blocks, block)), "i32"), axis=0)
    weights = n("mul", numbers, n.cast(n.reshape(largest, (blocks, 1)), "f32"))
    weights = n.cast(n.reshape(weights, (columns, k)), x.dtype)
    return n("matmul", x, n.transpose(weights, (1, 0)) if n.attr("transB", 1) else weights)
