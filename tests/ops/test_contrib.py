"""`com.microsoft` operators, as ONNX Runtime's exporters and optimizers emit them, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import tilewright as tw
from tilewright.frontends.onnx import load
from tilewright.graph.interpret import interpret

MS = "com.microsoft"


def model_of(operator, inputs, constants=(), outputs=1, domain=MS, opset=17, **attributes):
    """A model of one node; `inputs` by name (None: absent), those in `constants` become initializers."""
    given = {k: v for k, v in inputs.items() if v is not None}
    names = [k if v is not None else "" for k, v in inputs.items()]
    results = [f"y{i}" if i in want else "" for want in [range(outputs) if isinstance(outputs, int) else outputs]
               for i in range(max(want) + 1)]  # fmt: skip
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    values = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in given.items()
        if k not in constants
    ]
    from onnx import numpy_helper

    graph = helper.make_graph(
        [node],
        operator,
        values,
        [helper.make_empty_tensor_value_info(r) for r in results if r],
        [numpy_helper.from_array(given[k], k) for k in constants if k in given],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return model.SerializeToString(), {k: v for k, v in given.items() if k not in constants}


def onnx_runtime(data, feed):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)


def compare(actual, expected, tolerance=1e-5):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        if a.dtype.kind in "iub":
            # half of a quantum is rounded by whoever comes first
            assert np.abs(a.astype(np.int64) - e.astype(np.int64)).max(initial=0) <= (tolerance >= 1)
        else:
            half = a.dtype == np.float16
            np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), 1e-2 if half else tolerance,
                                       1e-2 if half else tolerance)  # fmt: skip


def check(operator, inputs, constants=(), *, native=False, tolerance=1e-5, **rest):
    """The references' results, and natively computed ones, against ONNX Runtime's."""
    data, feed = model_of(operator, inputs, constants, **rest)
    expected = onnx_runtime(data, feed)
    compare(list(interpret(load(data), feed).values()), expected, tolerance)
    if native:
        compare(tw.compile(data).run(feed), expected, tolerance)


def floats(*shape, seed=0, scale=1.0, dtype=np.float32):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(dtype)


def bytes_(*shape, low=0, high=256, dtype=np.uint8, seed=0):
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


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


@pytest.mark.parametrize("activation", ["Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "HardSigmoid", "Softplus"])
def test_fused_gemm(activation):
    check("FusedGemm", {"a": floats(3, 4), "b": floats(4, 5), "c": floats(5)}, activation=activation, alpha=0.5)


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
