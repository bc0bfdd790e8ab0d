"""`com.microsoft` operators that ONNX Runtime's optimizers emit for GPUs only: it has no CPU kernels for them."""

from __future__ import annotations

import math

import numpy as np

from . import nn, shape
from .contrib import MS, activate, fast_gelu, gelu
from .nn import split_heads
from .registry import onnx_op
from .shape import channels_first, channels_last


@onnx_op("BiasSplitGelu", since=1, domain=MS)
def bias_split_gelu(n, x, bias):
    x = n("add", x, bias)
    left, right = shape.split(n, x, shape.even(n, x.shape[-1], 2), x.rank - 1)
    return n("mul", left, gelu(n, right))


@onnx_op("BiasAdd", since=1, domain=MS)
def bias_add(n, x, bias, skip):
    return n("add", n("add", x, bias), skip)


@onnx_op("BiasSoftmax", since=1, domain=MS)
def bias_softmax(n, x, bias):
    axis = n.axis(1, x.rank)
    flat = (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))
    if not n.attr("is_inner_broadcast", 1):
        bias = n.reshape(bias, (*bias.shape[:1], *[1] * (x.rank - bias.rank), *bias.shape[1:]))
    return n.reshape(n("softmax", n.reshape(n("add", x, bias), flat), axis=1), x.shape)


@onnx_op("GemmFastGelu", since=1, domain=MS)
def gemm_fast_gelu(n, x, weights, bias=None):
    return fast_gelu(n, n("matmul", x, weights), bias)


@onnx_op("GroupNorm", since=1, domain=MS)
def group_norm(n, x, gamma, beta):
    last = bool(n.attr("channels_last", 1))
    x = channels_first(n, x, last)
    attributes = {"groups": n.required("groups"), "epsilon": float(n.attr("epsilon", 1e-5))}
    out = n("group_norm", x, n.cast(gamma, x.dtype), n.cast(beta, x.dtype), **attributes)
    out = n("silu", out, alpha=1.0) if n.attr("activation", 0) else out
    return channels_last(n, out, last)


@onnx_op("SkipGroupNorm", since=1, domain=MS)
def skip_group_norm(n, x, gamma, beta, skip, bias=None):
    channel = -1 if n.attr("channels_last", 1) else 1
    if skip.rank == 2:  # [N, C]
        ones, (batch, channels) = [1] * (x.rank - 2), skip.shape
        skip = n.reshape(skip, (batch, channels, *ones) if channel == 1 else (batch, *ones, channels))
    total = n("add", x, skip)
    if bias is not None:
        total = n("add", total, n.reshape(bias, [-1 if i == channel % x.rank else 1 for i in range(x.rank)]))
    return [group_norm(n, total, gamma, beta), total]


@onnx_op("NhwcConv", since=1, domain=MS)
def nhwc_conv(n, x, w, bias=None):
    """The weights are channels-last too: [M, ..., C / group]."""
    w = n.transpose(w, (0, w.rank - 1, *range(1, w.rank - 1)))
    return channels_last(n, nn.convolution(n, channels_first(n, x), w, bias))


@onnx_op("NhwcFusedConv", since=1, domain=MS)
def nhwc_fused_conv(n, x, w, bias=None, other=None):
    """The weights are as those of Conv: [M, C / group, ...]."""
    out = channels_last(n, nn.convolution(n, channels_first(n, x), w, bias))
    return activate(n, out if other is None else n("add", out, other))


# ---- biases of attention that depend on distances ------------------------------------------------------------------


@onnx_op("RelativePositionBias", since=1, domain=MS)
def relative_position_bias(n, table, queries, keys):
    """T5's: a number for each head and bucket of distances; the table's bytes are [heads, buckets], not its shape."""
    buckets, heads = table.shape
    distances = np.arange(n.scalar(keys, "key_length"))[None] - np.arange(n.scalar(queries, "query_length"))[:, None]
    at = distance_buckets(distances, buckets, n.required("max_distance"), both=bool(n.attr("is_bidirectional", 0)))
    return n.unsqueeze(n("gather", n.reshape(table, (heads, buckets)), n.constant(at), axis=1), 0)


def distance_buckets(distances, buckets, farthest, *, both):
    """One bucket for each small distance, wider ones for larger; half of them for keys ahead if those are seen."""
    first = np.zeros_like(distances)
    if both:
        buckets //= 2
        first = np.where(distances > 0, buckets, 0)
        distances = np.abs(distances)
    else:
        distances = np.maximum(-distances, 0)
    exact = buckets // 2
    far = np.log(np.maximum(distances, 1) / exact) / math.log(farthest / exact) * (buckets - exact)
    wide = np.minimum(exact + far.astype(np.int64), buckets - 1)
    return first + np.where(distances < exact, distances, wide)


@onnx_op("GatedRelativePositionBias", since=1, domain=MS)
def gated_relative_position_bias(n, queries, query_bias, distances, weights, bias, factor, offsets=None):
    """WavLM's and BEiT's: the distance biases [1, heads, S, S] times a gate for each query."""
    if offsets is not None:
        raise n.error("token_offset (rows without padding) is not supported")
    heads = split_heads(n, n("add", queries, query_bias), n.required("num_heads"))
    batch, count, length, _ = heads.shape
    gates = n("add", n("matmul", heads, weights), bias)
    gates = n.reshape(gates, (batch, count, length, 2, weights.shape[1] // 2))
    gates = n("sigmoid", n("reduce_sum", gates, axes=(4,), keepdims=False))
    update, reset = shape.split(n, gates, [1, 1], 3)
    gate = n("add", n("mul", update, n("sub", n("mul", reset, factor), 1)), 2)
    return n("mul", gate, distances)
