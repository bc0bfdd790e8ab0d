"""`com.microsoft` operators, as ONNX Runtime's exporters and optimizers emit them, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from support.against_onnxruntime import bytes_, check, floats

# ---- activations and products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(operator):
    check(operator, {"x": floats(3, 16)}, native=True)


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
def test_activations_with_a_bias(operator):
    check(operator, {"x": floats(3, 16), "b": floats(16)}, native=True)


def test_quick_gelu_with_alpha():
    check("QuickGelu", {"x": floats(3, 16)}, alpha=1.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_fast_gelu_dtypes(dtype):
    check("FastGelu", {"x": floats(3, 16, dtype=dtype), "b": floats(16, dtype=dtype)}, tolerance=1e-3)


FUSED_MATMUL = [
    ({"alpha": 0.5}, (2, 3, 4), (2, 4, 5)),
    ({"transA": 1}, (2, 4, 3), (2, 4, 5)),
    ({"transB": 1, "alpha": 2.0}, (2, 3, 4), (2, 5, 4)),
    ({"transA": 1, "transB": 1}, (4, 3), (5, 4)),
    ({"transBatchA": 1}, (3, 2, 4), (2, 4, 5)),
    ({"transBatchA": 1, "transA": 1}, (4, 2, 3), (2, 4, 5)),
    ({"transBatchB": 1, "transB": 1}, (2, 3, 4), (5, 2, 4)),
]


@pytest.mark.parametrize("attributes, a, b", FUSED_MATMUL)
def test_fused_matmul(attributes, a, b):
    check("FusedMatMul", {"a": floats(*a), "b": floats(*b, seed=1)}, **attributes)


def test_transpose_matmul():
    check("TransposeMatMul", {"a": floats(4, 3), "b": floats(4, 5, seed=1)}, transA=1, alpha=0.25, native=True)


FUSED_GEMM = [
    ("Relu", {}),
    ("Tanh", {}),
    ("Sigmoid", {}),
    ("Softplus", {}),
    ("LeakyRelu", {"activation_alpha": 0.1}),
    ("Elu", {"activation_alpha": 0.7}),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
]


@pytest.mark.parametrize("activation, parameters", FUSED_GEMM)
def test_fused_gemm(activation, parameters):
    inputs = {"a": floats(3, 4), "b": floats(4, 5), "c": floats(5)}
    check("FusedGemm", inputs, activation=activation, alpha=0.5, **parameters)


@pytest.mark.parametrize("activation, parameters", [
    ("Relu", None), ("Tanh", None), ("Sigmoid", None), ("LeakyRelu", [0.1]), ("Clip", [-0.5, 0.5]),
    ("HardSigmoid", [0.3, 0.4]),
])  # fmt: skip
def test_fused_conv(activation, parameters):
    attributes = {"activation": activation} | ({"activation_params": parameters} if parameters else {})
    inputs = {"x": floats(1, 3, 6, 6), "w": floats(4, 3, 3, 3, seed=1), "b": floats(4)}
    check("FusedConv", inputs, ("w", "b"), kernel_shape=[3, 3], pads=[1, 1, 1, 1], **attributes)


def test_fused_conv_with_a_sum():
    inputs = {"x": floats(1, 3, 6, 6), "w": floats(4, 3, 3, 3, seed=1), "b": floats(4), "z": floats(1, 4, 6, 6)}
    check("FusedConv", inputs, ("w", "b"), kernel_shape=[3, 3], pads=[1, 1, 1, 1], activation="Relu", native=True)


@pytest.mark.parametrize("upper, k", [(1, 0), (0, 1), (1, -1)])
def test_trilu(upper, k):
    check("Trilu", {"x": floats(2, 4, 5), "k": np.array(k, np.int64)}, ("k",), upper=upper)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_expand_dims(axis):
    check("ExpandDims", {"x": floats(2, 3), "axis": np.array(axis, np.int32)}, ("axis",))


# ---- normalization -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optional", [(), ("beta",), ("beta", "bias")])
def test_skip_layer_normalization(optional):
    inputs = {"x": floats(2, 5, 8), "skip": floats(2, 5, 8, seed=1), "gamma": floats(8)}
    inputs |= {k: floats(8, seed=i) if k in optional else None for i, k in enumerate(("beta", "bias"))}
    outputs = (0, 3) if "bias" in optional else (0,)
    check("SkipLayerNormalization", inputs, epsilon=1e-5, outputs=outputs, native=True)


@pytest.mark.parametrize("skip", [(5, 8), (1, 5, 8)])
def test_skip_layer_normalization_broadcasts_the_skip(skip):
    check("SkipLayerNormalization", {"x": floats(2, 5, 8), "skip": floats(*skip, seed=1), "gamma": floats(8)})


@pytest.mark.parametrize("bias", [False, True])
def test_skip_simplified_layer_normalization(bias):
    inputs = {"x": floats(2, 5, 8), "skip": floats(2, 5, 8, seed=1), "gamma": floats(8)}
    inputs |= {"bias": floats(8, seed=2)} if bias else {}
    check("SkipSimplifiedLayerNormalization", inputs, epsilon=1e-5, outputs=(0, 3), native=True)


def test_simplified_layer_normalization():
    inputs = {"x": floats(2, 5, 8), "scale": floats(8)}
    check("SimplifiedLayerNormalization", inputs, domain="", epsilon=1e-5, axis=-1, stash_type=1, native=True)


@pytest.mark.parametrize("segments, mask, positions", [(True, True, False), (False, False, False), (True, True, True)])
def test_embed_layer_normalization(segments, mask, positions):
    inputs = {
        "ids": bytes_(2, 5, high=11, dtype=np.int32),
        "segments": bytes_(2, 5, high=2, dtype=np.int32) if segments else None,
        "words": floats(11, 8),
        "places": floats(7, 8, seed=1),
        "types": floats(2, 8, seed=2) if segments else None,
        "gamma": floats(8),
        "beta": floats(8, seed=1),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if mask else None,
        "at": bytes_(2, 5, high=7, dtype=np.int32) if positions else None,
    }
    inputs = dict(list(inputs.items())[: 9 if positions else 8 if mask else 7])
    check("EmbedLayerNormalization", inputs, outputs=2, epsilon=1e-5, native=segments)


def test_embed_layer_normalization_gives_the_sum():
    inputs = {
        "ids": bytes_(2, 5, high=11, dtype=np.int32),
        "segments": None,
        "words": floats(11, 8),
        "places": floats(7, 8, seed=1),
        "types": None,
        "gamma": floats(8),
        "beta": floats(8, seed=1),
    }
    check("EmbedLayerNormalization", inputs, outputs=3, epsilon=1e-5)


# ---- mixtures of experts -------------------------------------------------------------------------------------------

MIXTURES = [
    ("relu", {}),
    ("gelu", {"k": 2}),
    ("silu", {"k": 2, "normalize_routing_weights": 1}),
    ("identity", {"k": 3}),
    ("swiglu", {"k": 2, "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}),
]


@pytest.mark.parametrize("activation, attributes", MIXTURES)
def test_mixture_of_experts(activation, attributes):
    experts, wide, size = 4, 16, 24
    first = size * (2 if activation == "swiglu" else 1)
    inputs = {"x": floats(2, 3, wide), "router": floats(6, experts), "w1": floats(experts, first, wide, scale=0.3)}
    inputs |= {"b1": floats(experts, first), "w2": floats(experts, wide, size, scale=0.3), "b2": floats(experts, wide)}
    check(
        "MoE", inputs, ("w1", "b1", "w2", "b2"), activation_type=activation, native=True, tolerance=1e-4, **attributes
    )
