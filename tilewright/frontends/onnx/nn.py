"""Convolution, pooling, normalization, softmax, attention."""

from __future__ import annotations

import math

import numpy as np

from ...ir.types import NUMPY, is_float
from ...support.sizes import is_open
from .random import random
from .registry import onnx_op

# ---- windows -------------------------------------------------------------------------------------------------------


def window(n, spatial, kernel):
    """strides, pads (low sides, then high sides) and dilations of a node; `auto_pad` is resolved to pads."""
    r = len(spatial)
    strides = tuple(n.attr("strides") or [1] * r)
    dilations = tuple(n.attr("dilations") or [1] * r)
    pads = tuple(n.attr("pads") or [0] * 2 * r)
    if len(kernel) != r or len(strides) != r or len(dilations) != r or len(pads) != 2 * r:
        raise n.error(
            f"kernel {kernel}, strides {strides}, pads {pads} or dilations {dilations} do not fit {r} dimensions"
        )
    auto = n.attr("auto_pad", "NOTSET") or "NOTSET"
    if auto == "VALID":
        pads = (0,) * 2 * r
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        needed = [
            max((-(-d // s) - 1) * s + dl * (k - 1) + 1 - d, 0)
            for d, s, k, dl in zip(spatial, strides, kernel, dilations, strict=True)
        ]
        small, large = [t // 2 for t in needed], [t - t // 2 for t in needed]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    elif auto != "NOTSET":
        raise n.error(f"auto_pad {auto!r} is not known")
    return strides, pads, dilations


@onnx_op("Conv", since=1)
def conv(n, x, w, bias=None):
    return convolution(n, x, w, bias)


def convolution(n, x, w, bias=None):
    """tw.conv with the attributes of an ONNX convolution (also ConvInteger, QLinearConv)."""
    kernel = w.shape[2:]
    if list(n.attr("kernel_shape") or kernel) != list(kernel):
        raise n.error(f"kernel_shape {n.attr('kernel_shape')} differs from the weights {w.type}")
    strides, pads, dilations = window(n, x.shape[2:], kernel)
    x, pads = crop(n, x, pads)
    groups = n.attr("group", 1)
    return n("conv", x, w, bias, strides=strides, pads=pads, dilations=dilations, groups=groups)


def crop(n, x, pads):
    """Negative pads cut x instead."""
    r = x.rank - 2
    if min(pads, default=0) >= 0:
        return x, pads
    low, high = [min(p, 0) for p in pads[:r]], [min(p, 0) for p in pads[r:]]
    starts = (0, 0, *[-p for p in low])
    sizes = (*x.shape[:2], *[d + a + c for d, a, c in zip(x.shape[2:], low, high, strict=True)])
    return n("slice", x, starts=starts, sizes=sizes, steps=(1,) * x.rank), tuple(max(p, 0) for p in pads)


@onnx_op("ConvTranspose", since=1)
def conv_transpose(n, x, w, bias=None):
    spatial, kernel, r = x.shape[2:], w.shape[2:], x.rank - 2
    strides = tuple(n.attr("strides") or [1] * r)
    dilations = tuple(n.attr("dilations") or [1] * r)
    extra = tuple(n.attr("output_padding") or [0] * r)
    pads = tuple(n.attr("pads") or [0] * 2 * r)
    auto, shape = n.attr("auto_pad", "NOTSET") or "NOTSET", n.attr("output_shape")
    full = [
        (d - 1) * s + dl * (k - 1) + 1 + e
        for d, s, k, dl, e in zip(spatial, strides, kernel, dilations, extra, strict=True)
    ]
    if auto == "VALID":
        pads = (0,) * 2 * r
    if shape is None and auto.startswith("SAME"):
        shape = [d * s for d, s in zip(spatial, strides, strict=True)]
    if shape is not None:
        total = [f - d for f, d in zip(full, shape[-r:], strict=True)]
        # what is missing is added at the end, as more output padding
        extra = tuple(e + max(-t, 0) for e, t in zip(extra, total, strict=True))
        total = [max(t, 0) for t in total]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    attributes = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra}
    return n("conv_transpose", x, w, bias, groups=n.attr("group", 1), **attributes)


def pool_attributes(n, x):
    kernel = tuple(n.required("kernel_shape"))
    strides, pads, dilations = window(n, x.shape[2:], kernel)
    auto = (n.attr("auto_pad", "NOTSET") or "NOTSET").startswith("SAME")
    ceil_mode = bool(n.attr("ceil_mode", 0)) and not auto
    return {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations, "ceil_mode": ceil_mode}


@onnx_op("MaxPool", since=1)
def max_pool(n, x):
    attributes = pool_attributes(n, x)
    outputs = [n("max_pool", x, **attributes)]
    if n.wants(1):
        outputs.append(n("max_pool_indices", x, order=n.attr("storage_order", 0), **attributes))
    return outputs


@onnx_op("AveragePool", since=1)
def average_pool(n, x):
    return n("avg_pool", x, count_include_pad=bool(n.attr("count_include_pad", 0)), **pool_attributes(n, x))


@onnx_op("LpPool", since=1)
def lp_pool(n, x):
    return n("lp_pool", x, p=float(n.attr("p", 2)), **pool_attributes(n, x))


@onnx_op("GlobalAveragePool", since=1)
def global_average_pool(n, x):
    return n("reduce_mean", x, axes=tuple(range(2, x.rank)), keepdims=True)


@onnx_op("GlobalMaxPool", since=1)
def global_max_pool(n, x):
    return n("reduce_max", x, axes=tuple(range(2, x.rank)), keepdims=True)


@onnx_op("GlobalLpPool", since=1)
def global_lp_pool(n, x):
    p, axes = float(n.attr("p", 2)), tuple(range(2, x.rank))
    if p == 1:
        return n("reduce_l1", x, axes=axes, keepdims=True)
    if p == 2:
        return n("reduce_l2", x, axes=axes, keepdims=True)
    power = n("pow", n("abs", x), float(p))
    return n("pow", n("reduce_sum", power, axes=axes, keepdims=True), 1.0 / p)


# ---- normalization -------------------------------------------------------------------------------------------------


@onnx_op("BatchNormalization", since=14)
def batch_norm_14(n, x, scale, bias, mean, var):
    if n.attr("training_mode", 0):
        return batch_norm_training(n, x, scale, bias, mean, var)[:3]
    return batch_norm(n, x, scale, bias, mean, var)


def batch_norm(n, x, scale, bias, mean, var):
    parameters = [n.cast(p, x.dtype) for p in (scale, bias, mean, var)]
    return n("batch_norm", x, *parameters, epsilon=float(n.attr("epsilon", 1e-5)))


def batch_norm_training(n, x, scale, bias, mean, var):
    """The result, the running mean and variance, and those of this batch."""
    axes = tuple(i for i in range(x.rank) if i != 1)
    here = n("reduce_mean", x, axes=axes, keepdims=True)
    centred = n("sub", x, here)
    spread = n("reduce_mean", n("mul", centred, centred), axes=axes, keepdims=True)
    channels = (x.shape[1],)
    wide = (x.shape[1], *[1] * (x.rank - 2))
    scale, bias = (n.reshape(n.cast(p, x.dtype), wide) for p in (scale, bias))
    factor = n("mul", scale, n("rsqrt", n("add", spread, float(n.attr("epsilon", 1e-5)))))
    out = n("add", n("mul", centred, factor), bias)
    here, spread = n.reshape(here, channels), n.reshape(spread, channels)
    keep = float(n.attr("momentum", 0.9))

    def running(old, new):
        return n("add", n("mul", old, keep), n("mul", n.cast(new, old.dtype), 1 - keep))

    return [out, running(mean, here), running(var, spread), n.cast(here, mean.dtype), n.cast(spread, var.dtype)]


@onnx_op("InstanceNormalization", since=1)
def instance_norm(n, x, scale, bias):
    return n("group_norm", x, scale, bias, groups=x.shape[1], epsilon=float(n.attr("epsilon", 1e-5)))


@onnx_op("GroupNormalization", since=18)
def group_norm_18(n, x, scale, bias):
    """Scale and bias are given a group."""
    groups = n.required("num_groups")

    def per_channel(p):
        spread = n.expand(n.reshape(p, (groups, 1)), (groups, x.shape[1] // groups))
        return n.reshape(spread, (x.shape[1],))

    epsilon = float(n.attr("epsilon", 1e-5))
    return n("group_norm", x, per_channel(scale), per_channel(bias), groups=groups, epsilon=epsilon)


@onnx_op("GroupNormalization", since=21)
def group_norm(n, x, scale, bias):
    return n("group_norm", x, scale, bias, groups=n.required("num_groups"), epsilon=float(n.attr("epsilon", 1e-5)))


@onnx_op("LayerNormalization", since=17)
def layer_norm(n, x, scale, bias=None):
    axis, epsilon = n.axis(-1, x.rank), float(n.attr("epsilon", 1e-5))
    outputs = [n("layer_norm", x, scale, bias, axis=axis, epsilon=epsilon)]
    if n.wants(1) or n.wants(2):
        axes, wider = tuple(range(axis, x.rank)), n.cast(x, "f64" if x.dtype == "f64" else "f32")
        mean = n("reduce_mean", wider, axes=axes, keepdims=True)
        centred = n("sub", wider, mean)
        variance = n("reduce_mean", n("mul", centred, centred), axes=axes, keepdims=True)
        outputs += [mean, n("rsqrt", n("add", variance, epsilon))]
    return outputs


@onnx_op("RMSNormalization", since=23)
def rms_norm(n, x, scale):
    out = n("rms_norm", x, n.cast(scale, x.dtype), axis=n.axis(-1, x.rank), epsilon=float(n.attr("epsilon", 1e-5)))
    return n.cast(out, scale.dtype)


@onnx_op("LRN", since=1)
def lrn(n, x):
    alpha, beta, bias = float(n.attr("alpha", 1e-4)), float(n.attr("beta", 0.75)), float(n.attr("bias", 1.0))
    return n("lrn", x, size=n.required("size"), alpha=alpha, beta=beta, bias=bias)


@onnx_op("LpNormalization", since=1)
def lp_normalization(n, x):
    return n("lp_norm", x, axis=n.axis(-1, x.rank), p=n.attr("p", 2))


# ---- softmax and dropout -------------------------------------------------------------------------------------------

SOFTMAX = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}


@onnx_op(*SOFTMAX, since=1)
def softmax_1(n, x):
    """Over all dimensions from `axis` on together."""
    axis = n.axis(1, x.rank)
    rows = math.prod(x.shape[:axis])
    out = n(SOFTMAX[n.proto.op_type], n.reshape(x, (rows, math.prod(x.shape[axis:]))), axis=1)
    return n.reshape(out, x.shape)


@onnx_op(*SOFTMAX, since=13)
def softmax(n, x):
    return n(SOFTMAX[n.proto.op_type], x, axis=n.attr("axis", -1))


@onnx_op("Dropout", since=1)
def dropout_1(n, x, ratio=None):
    """Nothing is dropped at inference."""
    kept = n.constant(np.array(True) if n.opset >= 10 else np.ones((), NUMPY[x.dtype]))
    return [x, n.expand(kept, x.shape)] if n.wants(1) else [x]


@onnx_op("Dropout", since=12)
def dropout(n, x, ratio=None, training=None):
    if not n.scalar(training, "training_mode", False):
        return dropout_1(n, x)
    if ratio is not None and ratio.known() is None:  # a number like others: 0 drops nothing
        share = n.cast(n.reshape(ratio, ()), "f32")
        scale = n.cast(n("reciprocal", n("add", n("neg", share), 1)), x.dtype)
    else:
        share = float(n.scalar(ratio, "ratio", 0.5))
        if not share:
            return dropout_1(n, x)
        if not 0 < share < 1:
            raise n.error(f"the ratio is at least 0 and less than 1, not {share}")
        scale = 1 / (1 - share)
    mask = n("greater_equal", random(n, "uniform", x.shape, "f32"), share)
    return [n("where", mask, n("mul", x, scale), n.zero(x)), mask]


# ---- attention -----------------------------------------------------------------------------------------------------


@onnx_op("Attention", since=23)
def attention(n, q, k, v, mask=None, past_key=None, past_value=None, valid=None):
    """tw.attention; with a softcap, windows or scores as an output, ONNX's own definition is expanded."""
    special = n.attr("softcap", 0.0) or n.wants(3) or valid is not None
    windows = [n.attr("left_window_size", -1), n.attr("right_window_size", -1)]
    if special or windows != [-1, -1]:
        return n.importer.expand(n, [q, k, v, mask, past_key, past_value, valid][: len(n.proto.input)])
    if (past_key is None) != (past_value is None):
        raise n.error("past_key and past_value go together")
    flat = q.rank == 3
    if flat:
        heads, shared = n.required("q_num_heads"), n.required("kv_num_heads")
        q, k, v = split_heads(n, q, heads), split_heads(n, k, shared), split_heads(n, v, shared)
    offset = 0
    if past_key is not None:
        offset = past_key.shape[2]
        k, v = n("concat", past_key, k, axis=2), n("concat", past_value, v, axis=2)
    scale = float(n.attr("scale", 0.0))
    if not scale and is_open(q.shape[3]):
        scale, q = 1.0, n("mul", q, n("rsqrt", n.size(q.shape[3], q.dtype)))
    scale = scale or 1 / math.sqrt(q.shape[3])
    causal = bool(n.attr("is_causal", 0))
    bias = None if mask is None else additive(n, mask, q.dtype, k.shape[2])
    out = n("attention", q, k, v, bias, scale=scale, causal=causal, offset=offset)
    if flat:
        out = n.transpose(out, (0, 2, 1, 3))
        out = n.reshape(out, (*out.shape[:2], out.shape[2] * out.shape[3]))
    return [out, k, v]


def split_heads(n, x, heads):
    """[B, S, H * D] to [B, H, S, D]."""
    batch, length, width = x.shape
    return n.transpose(n.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def additive(n, mask, dtype, keys):
    """A mask to be added to the scores: bools select 0 or -inf; keys that it does not cover are masked."""
    low = n.constant(np.array(-np.inf, NUMPY[dtype]))
    mask = n.cast(mask, dtype) if is_float(mask.dtype) else n("where", n.cast(mask, "i1"), n.zero(low), low)
    missing = keys - mask.shape[-1]
    if missing <= 0 or mask.shape[-1] == 1:
        return mask
    high = (0,) * (mask.rank - 1) + (missing,)
    return n("pad", mask, low=(0,) * mask.rank, high=high, value=float("-inf"))
