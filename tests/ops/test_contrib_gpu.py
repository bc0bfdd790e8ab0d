"""`com.microsoft` operators that ONNX Runtime computes on GPUs only, against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.against_onnxruntime import compute, floats, model_of, onnx_runtime


def expect(actual, *expected, tolerance=1e-5):
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def standard(operator, inputs, **attributes):
    """The result of an operator of ONNX itself."""
    (result,) = onnx_runtime(*model_of(operator, inputs, domain="", **attributes))
    return result


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def group_norm(x, gamma, beta, groups):
    """Of x [N, H, W, C]."""
    n, h, w, c = x.shape
    parts = x.reshape(n, h, w, groups, c // groups)
    mean, var = (f(parts, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
    return ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * gamma + beta


def test_bias_split_gelu_and_bias_add():
    x, b = floats(2, 3, 8), floats(8)
    left, right = np.split(x + b, 2, axis=-1)
    expect(compute("BiasSplitGelu", {"x": x, "b": b}), left * gelu(right))
    skip = floats(2, 3, 8, seed=1)
    expect(compute("BiasAdd", {"x": x, "b": b, "skip": skip}), x + b + skip)


@pytest.mark.parametrize("inner, shape", [(1, (4, 5)), (0, (2, 1, 4, 5))])
def test_bias_softmax(inner, shape):
    x, b = floats(2, 3, 4, 5), floats(*shape, seed=1)
    e = np.exp(x + b)
    wanted = e / e.sum(-1, keepdims=True)
    expect(compute("BiasSoftmax", {"x": x, "b": b}, axis=3, is_inner_broadcast=inner), wanted)


def test_gemm_fast_gelu():
    x, w, b = floats(3, 4), floats(4, 5), floats(5)
    t = x @ w + b
    wanted = t / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)))
    expect(compute("GemmFastGelu", {"x": x, "w": w, "b": b}), wanted)


@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(activation):
    x, g, b = floats(2, 4, 5, 6), floats(6), floats(6, seed=1)
    wanted = group_norm(x, g, b, 3)
    wanted = wanted * sigmoid(wanted) if activation else wanted
    expect(compute("GroupNorm", {"x": x, "g": g, "b": b}, groups=3, activation=activation), wanted)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (2, 1, 1, 6), (2, 6)])
def test_skip_group_norm(shape):
    x, g, b, skip, bias = floats(2, 4, 5, 6), floats(6), floats(6, seed=1), floats(*shape, seed=2), floats(6, seed=3)
    total = x + (skip[:, None, None] if len(shape) == 2 else skip) + bias
    inputs = {"x": x, "g": g, "b": b, "skip": skip, "bias": bias}
    expect(compute("SkipGroupNorm", inputs, groups=3, outputs=2), group_norm(total, g, b, 3), total)


def test_convolutions_with_channels_last():
    x, w, b = floats(1, 6, 6, 3), floats(4, 3, 3, 3, seed=1), floats(4)
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    wanted = standard("Conv", {"x": np.moveaxis(x, -1, 1).copy(), "w": w, "b": b}, **window)
    wanted = np.moveaxis(wanted, 1, -1)
    inputs = {"x": x, "w": np.moveaxis(w, 1, -1).copy(), "b": b}
    expect(compute("NhwcConv", inputs, ("w", "b"), **window), wanted, tolerance=1e-4)
    z = floats(1, 6, 6, 4, seed=2)
    inputs = {"x": x, "w": w, "b": b, "z": z}
    actual = compute("NhwcFusedConv", inputs, ("w", "b"), **window, activation="Relu")
    expect(actual, np.maximum(wanted + z, 0), tolerance=1e-4)


def bucket(distance, buckets, farthest, both):
    """The bucket of one distance (key - query), as the T5 paper has it."""
    base = 0
    if both:
        buckets //= 2
        base = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    return base + min(
        exact + int(math.log(distance / exact) / math.log(farthest / exact) * (buckets - exact)), buckets - 1
    )


@pytest.mark.parametrize("both", [False, True])
def test_relative_position_bias(both):
    table = floats(8, 3)  # [heads, buckets] in the bytes
    lengths = {"q": np.array([7], np.int64), "k": np.array([7], np.int64)}
    at = np.array([[bucket(k - q, 8, 5, both) for k in range(7)] for q in range(7)])
    wanted = table.reshape(3, 8)[:, at][None]
    inputs = {"table": table, **lengths}
    expect(compute("RelativePositionBias", inputs, tuple(lengths), max_distance=5, is_bidirectional=int(both)), wanted)


def test_gated_relative_position_bias():
    heads, size, length, wide = 2, 4, 5, 6
    q, b, rel = floats(2, length, heads * size), floats(heads * size), floats(1, heads, length, length)
    w, wb, eco = floats(size, wide), floats(wide), floats(1, heads, 1, 1)
    layer = (q + b).reshape(2, length, heads, size).transpose(0, 2, 1, 3)
    gates = sigmoid((layer @ w + wb).reshape(2, heads, length, 2, wide // 2).sum(-1))
    wanted = (gates[..., :1] * (gates[..., 1:] * eco - 1.0) + 2.0) * rel
    inputs = {"q": q, "b": b, "rel": rel, "w": w, "wb": wb, "eco": eco}
    expect(compute("GatedRelativePositionBias", inputs, num_heads=heads), wanted)
