"""Quantized models as exporters write them: integer kernels, the same bits on every path, ONNX Runtime's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.quantized_digits import digits_int8

import tilewright as tw
from tilewright.ir import dialect
from tilewright.ir.context import use
from tilewright.ir.types import type_of
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.cpu.description import host

REPOSITORY = Path(__file__).resolve().parents[2]


class Net:
    """Builds a QDQ model; every method returns the name of a dequantized (or plain) tensor."""

    def __init__(self, dtype=np.int8, seed=0):
        self.dtype, self.rng = dtype, np.random.default_rng(seed)
        self.nodes, self.arrays, self.count = [], {}, 0

    def name(self):
        self.count += 1
        return f"t{self.count}"

    def add(self, kind, *inputs, **attributes):
        out = self.name()
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"{kind}_{out}", **attributes))
        return out

    def const(self, array):
        name = self.name()
        self.arrays[name] = np.asarray(array)
        return name

    def zero(self):
        return self.rng.integers(-20, 20) if self.dtype == np.int8 else self.rng.integers(100, 150)

    def stored(self, x, scale, zero):
        return self.add("QuantizeLinear", x, self.const(np.float32(scale)), self.const(self.dtype(zero)))

    def read(self, q, scale, zero):
        return self.add("DequantizeLinear", q, self.const(np.float32(scale)), self.const(self.dtype(zero)))

    def qdq(self, x, scale, zero=None):
        zero = self.zero() if zero is None else zero
        return self.read(self.stored(x, scale, zero), scale, zero)

    def weights(self, shape, axis, dtype=np.int8, per_channel=True, zero=0):
        info = np.iinfo(dtype)
        w = self.rng.integers(max(info.min, -127), info.max + 1, shape).astype(dtype)
        n = shape[axis] if per_channel else ()
        scale = self.rng.uniform(0.002, 0.012, n).astype(np.float32)
        zeros = self.const(np.full(n, zero, dtype))
        return self.add("DequantizeLinear", self.const(w), self.const(scale), zeros, axis=axis), scale

    def bias(self, x_scale, w_scale, channels):
        scale = np.broadcast_to(np.float32(x_scale) * w_scale, channels).astype(np.float32)
        b = self.rng.integers(-3000, 3000, channels).astype(np.int32)
        return self.add(
            "DequantizeLinear", self.const(b), self.const(scale), self.const(np.zeros(channels, np.int32)), axis=0
        )

    def model(self, x_shape, out, float_out, float_in=True):
        kinds = {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8}
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT if float_in else kinds[self.dtype], x_shape)
        y = helper.make_tensor_value_info(out, TensorProto.FLOAT if float_out else kinds[self.dtype], None)
        arrays = [numpy_helper.from_array(a, k) for k, a in self.arrays.items()]
        graph = helper.make_graph(self.nodes, "g", [x], [y], arrays)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(model, x):
    """What ONNX Runtime computes in floats, node by node. (Its integers are not exact on every processor: without VNNI
    sums of two products are cut off at 16 bits.)"""
    ort = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed: pip install tilewright[demo]")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


def operators(model, *, only_floats=False):
    """Names of the operators of the graph after the passes; those on floats only, if asked for."""
    graph = tw.compile(model, stop_after="layout")
    with use():
        found = [op for op in graph.operations() if op.name not in ("func.return", "tw.constant")]
        if only_floats:
            found = [op for op in found if any(type_of(v).dtype == "f32" for v in (*op.operands, *op.results))]
        return [dialect.mnemonic(op) for op in found]


def onnx_reference(model, x):
    """What ONNX's own evaluator says of operators on integers."""
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


def check(model, x, most=1, part=0.02, by=expected):
    """Within one quantum of the float reference nearly everywhere; equal bits from C; no operator on floats left."""
    assert operators(model, only_floats=True) == []
    want, got = by(model, x), tw.compile(model).run({"x": x})[0]
    difference = np.abs(got.astype(np.int64) - want)
    assert difference.max() <= most and (difference > 0).mean() <= part
    np.testing.assert_array_equal(tw.compile(model, target="c").run({"x": x})[0], got)
    return got


def bytes_of(net, shape):
    info = np.iinfo(net.dtype)
    return np.random.default_rng(1).integers(info.min, info.max + 1, shape).astype(net.dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(
    "channels, filters, kernel, groups, options",
    [
        (3, 16, 3, 1, {"pads": [1, 1, 1, 1]}),
        (16, 33, 3, 1, {"pads": [0, 1, 2, 1], "strides": [2, 1]}),
        (5, 20, 1, 1, {}),
        (20, 70, 1, 1, {"strides": [2, 2]}),
        (12, 12, 3, 12, {"pads": [1, 1, 1, 1]}),
        (8, 12, 3, 4, {"pads": [1, 1, 1, 1]}),
        (8, 9, 3, 1, {"dilations": [2, 2]}),
    ],
)
def test_conv(dtype, channels, filters, kernel, groups, options):
    net = Net(dtype)
    zero = net.zero()
    w, scale = net.weights((filters, channels // groups, kernel, kernel), 0)
    y = net.add("Conv", net.read("x", 0.03, zero), w, net.bias(0.03, scale, filters), group=groups, **options)
    out = net.stored(net.add("Relu", y), 0.05, net.zero())
    model = net.model([2, channels, 11, 9], out, False, False)
    check(model, bytes_of(net, (2, channels, 11, 9)))


@pytest.mark.parametrize("weights, zero", [(np.int8, 0), (np.uint8, 128), (np.uint8, 77), (np.int8, 5)])
@pytest.mark.parametrize("rows, depth, columns", [(1, 64, 10), (7, 33, 37), (5, 3, 4), (19, 1, 3)])
def test_matmul(weights, zero, rows, depth, columns):
    net = Net(np.uint8)
    w, _ = net.weights((depth, columns), 1, weights, per_channel=zero == 0, zero=zero)
    y = net.add("MatMul", net.read("x", 0.03, 131), w)
    y = net.add("Add", y, net.const(net.rng.standard_normal(columns).astype(np.float32)))
    model = net.model([rows, depth], net.stored(y, 0.09, 120), False, False)
    check(model, bytes_of(net, (rows, depth)))


def test_every_kind_of_operator():
    net = Net(np.int8)
    x = net.read("x", 0.02, 4)
    w, scale = net.weights((8, 4, 3, 3), 0)
    a = net.add("Conv", x, w, net.bias(0.02, scale, 8), pads=[1, 1, 1, 1])
    a = net.qdq(net.add("Clip", a, net.const(np.float32(0)), net.const(np.float32(6))), 0.03)
    p = net.qdq(net.add("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 0.025)
    s = net.qdq(net.add("AveragePool", a, kernel_shape=[2, 2], strides=[2, 2]), 0.02)
    both = net.qdq(net.add("Concat", p, s, axis=1), 0.027)
    gate = net.qdq(net.add("HardSigmoid", both), 1 / 256)
    y = net.qdq(net.add("Mul", both, gate), 0.02)
    y = net.qdq(net.add("Sub", y, both), 0.018)
    y = net.qdq(net.add("Add", y, net.qdq(net.add("Sigmoid", y), 1 / 256)), 0.02)
    y = net.qdq(net.add("GlobalAveragePool", y), 0.011)
    y = net.add("Flatten", y)
    w, _ = net.weights((10, 16), 0)
    y = net.add("Gemm", y, w, net.const(net.rng.standard_normal(10).astype(np.float32)), transB=1)
    model = net.model([1, 4, 8, 8], net.stored(y, 0.02, 3), False, False)
    names = operators(model)
    assert names.count("integer_conv") == 2 and names.count("integer_add") == 2 and names.count("lookup") >= 4
    check(model, bytes_of(net, (1, 4, 8, 8)), most=3, part=0.5)  # a quantum in the middle may become more at the end


def test_float_at_both_ends():
    net = Net(np.uint8)
    x = net.qdq("x", 0.02)
    w, scale = net.weights((6, 3, 3, 3), 0)
    y = net.qdq(net.add("Conv", x, w, net.bias(0.02, scale, 6)), 0.04)
    w, _ = net.weights((96, 5), 1)
    y = net.add("Softmax", net.add("MatMul", net.add("Flatten", y), w))
    model = net.model([1, 3, 6, 6], y, True)
    names = operators(model)
    assert {"integer_conv", "integer_matmul"} <= set(names) and not {"conv", "matmul"} & set(names)
    x = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)
    assert np.abs(tw.compile(model).run({"x": x})[0] - expected(model, x)).max() < 1e-3


def test_exact_halves_round_to_even():
    """Scales that are powers of two make exact halves; they must go to the even neighbour on every path."""
    net = Net(np.int8)
    w = net.add(
        "DequantizeLinear", net.const(np.eye(16, dtype=np.int8)), net.const(np.float32(0.5)), net.const(np.int8(0))
    )
    y = net.add("MatMul", net.read("x", 0.25, 0), w)
    model = net.model([16, 16], net.stored(y, 0.25, 0), False, False)
    x = np.arange(-128, 128).astype(np.int8).reshape(16, 16)
    got = check(model, x, most=0, part=0)
    np.testing.assert_array_equal(got, np.rint(x / 2).astype(np.int8))


def test_qlinear_operators_become_the_same():
    net = Net(np.uint8)
    w = net.const(net.rng.integers(-127, 128, (6, 3, 3, 3)).astype(np.int8))
    scale = net.const(net.rng.uniform(0.002, 0.01, 6).astype(np.float32))
    b = net.const(net.rng.integers(-999, 999, 6).astype(np.int32))
    step = net.const(np.float32(0.03)), net.const(np.uint8(120))
    y = net.add("QLinearConv", "x", *step, w, scale, net.const(np.zeros(6, np.int8)), *step, b, pads=[1, 1, 1, 1])
    y = net.add("Reshape", y, net.const(np.array([6, 25], np.int64)))
    m = net.const(net.rng.integers(0, 255, (25, 4)).astype(np.uint8))
    y = net.add("QLinearMatMul", y, *step, m, net.const(np.float32(0.01)), net.const(np.uint8(128)), *step)
    model = net.model([1, 3, 5, 5], y, False, False)
    assert {"integer_conv", "integer_matmul", "requantize"} <= set(operators(model))
    check(model, bytes_of(net, (1, 3, 5, 5)), most=2, part=0.1, by=onnx_reference)


def test_dynamic_quantization():
    """DynamicQuantizeLinear and MatMulInteger: the zero point is known at run time only."""
    w = np.random.default_rng(0).integers(-127, 128, (40, 24)).astype(np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, [3, 40])], [info("y", 1, [3, 24])], [numpy_helper.from_array(w, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "integer_matmul" in operators(model)
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    want = onnx_reference(model, x)
    assert np.abs(tw.compile(model).run({"x": x})[0] - want).max() < 1e-5 * np.abs(want).max()


def test_threads_and_saved_packages_give_the_same(tmp_path):
    net = Net(np.uint8)
    w, scale = net.weights((40, 24, 3, 3), 0)
    y = net.add("Conv", net.read("x", 0.03, 131), w, net.bias(0.03, scale, 40), pads=[1, 1, 1, 1])
    model = net.model([1, 24, 20, 20], net.stored(y, 0.1, 120), False, False)
    x = bytes_of(net, (1, 24, 20, 20))
    want = tw.compile(model, threads=1).run({"x": x})[0].copy()
    compiled = tw.compile(model, threads=2)
    np.testing.assert_array_equal(compiled.run({"x": x})[0], want)
    compiled.save(tmp_path / "m.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "m.tw").run({"x": x})[0], want)


@pytest.mark.parametrize("unsigned", [False, True])
def test_digits_quantized(unsigned):
    """The digits CNN in int8: its accuracy on the real test images."""
    images, labels, model = digits_int8(unsigned)
    compiled = tw.compile(model)
    got = np.array([compiled.run({"image": x[None]})[0][0].argmax() for x in images])
    assert np.mean(got == labels) > 0.97


@pytest.mark.parametrize("kind", ["vnni", "avx512", "avxvnni", "avx2"])
def test_processors_give_the_same_bits(kind, monkeypatch):
    """With and without instructions for sums of products of bytes, which also decides how activations are kept."""
    here = host()
    avx2 = {"vector_bytes": 32, "vector_registers": 16, "cpu": "x86-64-v3"}
    narrow = tuple(f for f in here.features if "avx512" not in f)
    chosen = {
        "vnni": ("avx512vnni", here),
        "avx512": ("avx512f", replace(here, features=tuple(f for f in here.features if "vnni" not in f))),
        "avxvnni": ("avxvnni", replace(here, features=narrow, **avx2)),
        "avx2": ("avx2", replace(here, features=tuple(f for f in narrow if f != "avxvnni"), **avx2)),
    }
    feature, description = chosen[kind]
    if feature not in here.features:
        pytest.skip(f"this processor has no {feature}")
    net = Net(np.uint8)
    w, scale = net.weights((40, 7, 3, 3), 0)
    y = net.add("Conv", net.read("x", 0.03, 131), w, net.bias(0.03, scale, 40), pads=[1, 1, 1, 1])
    y = net.qdq(y, 0.1, 120)
    w, scale = net.weights((40, 1, 3, 3), 0)
    y = net.qdq(net.add("Add", y, net.qdq(net.add("Conv", y, w, group=40, pads=[1, 1, 1, 1]), 0.2, 117)), 0.25, 99)
    w, scale = net.weights((11, 40, 1, 1), 0)
    y = net.stored(net.add("Conv", y, w, strides=[2, 2]), 0.3, 120)
    model, x = net.model([1, 7, 13, 9], y, False, False), bytes_of(net, (1, 7, 13, 9))
    want = tw.compile(model, target="c").run({"x": x})[0].copy()
    monkeypatch.setattr(CpuTarget, "describe", lambda self: description)
    state = tw.compile(model, stop_after="emit").state
    assert ("tw_dot_vnni" in "".join(state.emitted.values())) == (kind in ("vnni", "avxvnni"))
    np.testing.assert_array_equal(tw.compile(model).run({"x": x})[0], want)
