"""Long sums in slices: right, the same bits with any number of threads, and only where they pay."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from support import onnx_models
from support.machines import MACHINES
from support.onnx_models import value

import tilewright as tw
from tilewright.graph.passes import make, run_pipeline

F32 = TensorProto.FLOAT


def model(nodes, inputs, result, constants):
    """Inputs are shapes by name; the result is y."""
    return onnx_models.model(nodes, [value(n, s) for n, s in inputs.items()], [value("y", result)], constants)


def split(source):
    """Whether the pass changes a model."""
    graph = tw.compile(source, stop_after="simplify")
    ((_, report),) = run_pipeline(graph, [make("split-sums", tile=MACHINES["zen4"].split_sums)])
    return bool(report)


def same_for_all_threads(source, *xs):
    first, *others = [tw.compile(source, threads=n)(*xs)[0] for n in (1, 2, 3)]
    for y in others:
        np.testing.assert_array_equal(y.view(np.int32), first.view(np.int32))
    return first


@pytest.mark.parametrize("rows, depth, columns", [(1, 1306, 173), (4, 4096, 64), (5, 1479, 76), (3, 20000, 8)])
def test_product_with_bias_and_activation(rows, depth, columns):
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((rows, depth), (depth, columns)))
    b = rng.standard_normal(columns).astype(np.float32)
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    y = same_for_all_threads(model(nodes, {"x": [rows, depth]}, [rows, columns], {"w": w, "b": b}), x)
    want = np.maximum(x.astype(float) @ w + b, 0)
    np.testing.assert_allclose(y, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("position", [1, 3])
def test_convolution_of_many_channels(position):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 512, position, position), (16, 512, 3, 3)))
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
    y = same_for_all_threads(model(nodes, {"x": list(x.shape)}, [1, 16, position, position], {"w": w}), x)
    padded = np.pad(x[0].astype(float), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    want = np.einsum("chwij,fcij->fhw", windows, w)[None]
    np.testing.assert_allclose(y, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name, shape, axes", [
    ("ReduceSum", (1 << 18,), (0,)), ("ReduceMean", (3, 1000, 512), (1, 2)), ("ReduceMax", (1000, 512), (0, 1)),
    ("ReduceMin", (2, 7, 11, 4096), (1, 2, 3)), ("ReduceMean", (65537,), (0,)),
])  # fmt: skip
def test_reductions_to_few_numbers(name, shape, axes):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    nodes = [helper.make_node(name, ["x", "axes"], ["y"], keepdims=0)]
    result = [n for d, n in enumerate(shape) if d not in axes]
    y = same_for_all_threads(model(nodes, {"x": list(shape)}, result, {"axes": np.array(axes)}), x)
    want = getattr(np, name[6:].lower())(x.astype(float), axis=axes)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6 * np.abs(x).sum() / y.size)


@pytest.mark.parametrize("rows, depth, columns, wanted", [
    (4, 4096, 64, True), (4, 4099, 64, False), (64, 4096, 64, False), (4, 4096, 1, False), (4, 256, 16, False),
])  # fmt: skip
def test_only_long_sums_with_few_results(rows, depth, columns, wanted):
    w = np.ones((depth, columns), np.float32)
    source = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [rows, depth]}, [rows, columns], {"w": w})
    assert split(source) is wanted
