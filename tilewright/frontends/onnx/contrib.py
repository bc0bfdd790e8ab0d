"""`com.microsoft` operators that ONNX Runtime's exporters and optimizers emit: activations, normalization, products."""

from __future__ import annotations

import numpy as np

from . import linear, nn
from .math import ACTIVATIONS, UNARY
from .registry import onnx_op
from .values import OnnxNotImported

MS = "com.microsoft"


def gelu(n, x, approximate="none"):
    return n("gelu", x, approximate=approximate)


# ---- activations ---------------------------------------------------------------------------------------------------


@onnx_op("Gelu", since=1, domain=MS)
def gelu_1(n, x):
    return gelu(n, x)


@onnx_op("BiasGelu", since=1, domain=MS)
def bias_gelu(n, x, bias):
    return gelu(n, n("add", x, bias))


@onnx_op("FastGelu", since=1, domain=MS)
def fast_gelu(n, x, bias=None):
    return gelu(n, x if bias is None else n("add", x, bias), "tanh")


@onnx_op("QuickGelu", since=1, domain=MS)
def quick_gelu(n, x):
    return n("silu", x, alpha=float(n.attr("alpha", 1.702)))


# ---- normalization -------------------------------------------------------------------------------------------------


def statistics(n, x, axis, epsilon, *, centre):
    """Mean (None without `centre`) and 1 / deviation over the dimensions from `axis` on, in f32."""
    axes, wide = tuple(range(axis, x.rank)), n.cast(x, "f64" if x.dtype == "f64" else "f32")
    mean = n("reduce_mean", wide, axes=axes, keepdims=True) if centre else None
    centred = wide if mean is None else n("sub", wide, mean)
    square = n("reduce_mean", n("mul", centred, centred), axes=axes, keepdims=True)
    return mean, n("rsqrt", n("add", square, epsilon))


@onnx_op("SkipLayerNormalization", since=1, domain=MS)
def skip_layer_norm(n, x, skip, gamma, beta=None, bias=None):
    total = n("add", x, skip)
    total = total if bias is None else n("add", total, bias)
    epsilon, axis = float(n.attr("epsilon", 1e-12)), x.rank - 1
    out = n("layer_norm", total, gamma, beta, axis=axis, epsilon=epsilon)
    stats = statistics(n, total, axis, epsilon, centre=True) if n.wants(1) or n.wants(2) else (None, None)
    return [out, *stats, total]


@onnx_op("SkipSimplifiedLayerNormalization", since=1, domain=MS)
def skip_rms_norm(n, x, skip, gamma, bias=None):
    total = n("add", x, skip)
    total = total if bias is None else n("add", total, bias)
    epsilon, axis = float(n.attr("epsilon", 1e-12)), x.rank - 1
    out = n("rms_norm", total, gamma, axis=axis, epsilon=epsilon)
    inverse = statistics(n, total, axis, epsilon, centre=False)[1] if n.wants(2) else None
    return [out, None, inverse, total]


@onnx_op("SimplifiedLayerNormalization", since=1)
@onnx_op("SimplifiedLayerNormalization", since=1, domain=MS)
def simplified_layer_norm(n, x, scale):
    axis, epsilon = n.axis(-1, x.rank), float(n.attr("epsilon", 1e-5))
    out = n.cast(n("rms_norm", x, n.cast(scale, x.dtype), axis=axis, epsilon=epsilon), scale.dtype)
    return [out, statistics(n, x, axis, epsilon, centre=False)[1]] if n.wants(1) else [out]


@onnx_op("LayerNormalization", since=1)  # before it became part of the standard
def layer_norm(n, *operands):
    return nn.layer_norm(n, *operands)


@onnx_op("EmbedLayerNormalization", since=1, domain=MS)
def embed_layer_norm(n, ids, segments, words, places, segment_table, gamma, beta, mask=None, position_ids=None):
    length = ids.shape[1]
    total = n("gather", words, ids, axis=0)
    at = n.constant(np.arange(length)) if position_ids is None else position_ids
    total = n("add", total, n("gather", places, at, axis=0))
    if segments is not None:
        total = n("add", total, n("gather", segment_table, segments, axis=0))
    out = n("layer_norm", total, gamma, beta, axis=2, epsilon=float(n.attr("epsilon", 1e-12)))
    if mask is None:
        ends = n.constant(np.zeros(ids.shape[0], np.int32))
    else:  # how many positions a row uses
        ends = n("reduce_sum", n.cast(mask, "i32"), axes=(1,), keepdims=False)
    return [out, ends, total]


# ---- products ------------------------------------------------------------------------------------------------------


def swapped(n, x):
    return n.transpose(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


@onnx_op("FusedMatMul", "TransposeMatMul", since=1, domain=MS)
def fused_matmul(n, x, y):
    operands = []
    for v, name in ((x, "A"), (y, "B")):
        if n.attr(f"transBatch{name}", 0):
            v = n.transpose(v, (*range(1, v.rank - 1), 0, v.rank - 1))
        operands.append(swapped(n, v) if n.attr(f"trans{name}", 0) and v.rank > 1 else v)
    out, alpha = n("matmul", *operands), float(n.attr("alpha", 1.0))
    return out if alpha == 1 else n("mul", out, alpha)


def activate(n, x):
    """The activation that a fused operator names."""
    name = n.attr("activation", "")
    if not name:
        return x
    given = n.attr("activation_params") or [n.attr(f"activation_{p}") for p in ("alpha", "beta", "gamma")]
    given = [v for v in given if v is not None]
    if name == "Clip":
        low, high = given if len(given) == 2 else (None, None)
        return n("clip", x, low=low, high=high)
    if name in ACTIVATIONS:
        operator, defaults = ACTIVATIONS[name]
        values = [*given[: len(defaults)], *list(defaults.values())[len(given) :]]
        return n(operator, x, **{k: float(v) for k, v in zip(defaults, values, strict=True)})
    if name not in UNARY:
        raise OnnxNotImported(f"with activation {name}")
    return n(UNARY[name], x)


@onnx_op("FusedGemm", since=1, domain=MS)
def fused_gemm(n, x, y, c=None):
    return activate(n, linear.gemm(n, x, y, c))


@onnx_op("FusedConv", since=1, domain=MS)
def fused_conv(n, x, w, bias=None, other=None):
    out = nn.convolution(n, x, w, bias)
    return activate(n, out if other is None else n("add", out, other))


@onnx_op("ExpandDims", since=1, domain=MS)
def expand_dims(n, x, axis):
    at = int(n.scalar(axis, "axis"))
    return [n.unsqueeze(x, at + x.rank + 1 if at < 0 else at)]


__all__ = ["MS", "swapped"]
