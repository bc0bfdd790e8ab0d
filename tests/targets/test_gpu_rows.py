"""Drawn reductions along rows, and transpositions, on devices and in the CUDA emulator, against ONNX's reference."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from support.cuda_driver import EmulatedDriver, runner
from support.cuda_emulator import needs_compiler
from support.gpus import device_of
from support.ptxas import assembled

import tilewright as tw
from tilewright.targets.cuda import stages
from tilewright.targets.cuda.driver import Driver

#: what is computed of x: rows along the last axis, along an axis, over axes
KINDS = {
    "softmax": "y = Softmax<axis={axis}>(x)",
    "log_softmax": "a = Neg(x) b = LogSoftmax<axis={axis}>(a) y = Abs(b)",
    "masked": "a = Where(m, x, low) b = Softmax<axis=-1>(a) y = Mul(b, x)",
    "layer_norm": "y = LayerNormalization<axis=-1>(x, scale, bias)",
    "variance": "a = ReduceMean(x, axes) b = Sub(x, a) c = Mul(b, b) d = ReduceMean(c, axes) y = Div(c, d)",
    "sum": "y = ReduceSum<keepdims=0>(x, axes)",
    "largest": "y = ReduceMax(x, axes)",
    "first": "y = ArgMax<axis={axis}, keepdims=0>(x)",
    "last": "y = ArgMin<axis={axis}, select_last_index=1>(x)",
    "transposed": "a = Transpose<perm=[{perm}]>(x) y = Neg(a)",
    "padded": "a = Transpose<perm=[{perm}]>(x) y = Pad(a, pads)",
}
INTEGERS = ("sum", "largest", "first", "last", "transposed", "padded")


def drawn(seed: int):
    """A model and its input."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    shape = [draw.choice((2, 3, 5, 8, 17, 33, 70)) for _ in range(draw.randint(2, 3))]
    if draw.random() < 0.3:
        shape = [draw.choice((1, 3)), draw.choice((300, 1000, 2049))]
    dtype = draw.choice(("float", "float", "float16", "int32")) if kind in INTEGERS else "float"
    axis = draw.randrange(len(shape))
    axes = draw.choice(([axis], [len(shape) - 1], list(range(1, len(shape)))))
    perm = ", ".join(map(str, draw.sample(range(len(shape)), len(shape))))
    body = KINDS[kind].format(axis=axis, perm=perm)
    result = "int64" if kind in ("first", "last") else dtype
    dims = ", ".join(map(str, shape))
    text = f'<ir_version: 10, opset_import: ["": 21]> m ({dtype}[{dims}] x) => ({result} y) {{ {body} }}'
    made = parser.parse_model(text)
    n = shape[-1]
    constants = {
        "axes": np.array(axes), "pads": numbers.integers(0, 4, 2 * len(shape)),
        "m": numbers.integers(0, 2, n) > 0, "low": np.float32(-1e9),
        "scale": numbers.standard_normal(n).astype("f4"), "bias": numbers.standard_normal(n).astype("f4"),
    }  # fmt: skip
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(numpy_helper.from_array(c, name) for name, c in constants.items() if name in used)
    x = numbers.standard_normal(shape) * 4 if dtype != "int32" else numbers.integers(-9, 10, shape)
    return made, x.astype({"float": "f4", "float16": "f2", "int32": "i4"}[dtype])


def close(got: np.ndarray, made, x: np.ndarray) -> None:
    """A result as the reference has it, relative to the largest value."""
    (want,) = ReferenceEvaluator(made).run(None, {"x": x})
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype.kind == "f":
        limit = (1e-5 if want.dtype == np.float32 else 1e-2) * np.abs(want.astype("f8")).max()
        assert np.abs(got.astype("f8") - want.astype("f8")).max() <= limit
    else:
        assert (got == want).all()


@pytest.mark.parametrize("seed", range(24))
def test_vulkan(seed):
    device_of("vulkan")
    made, x = drawn(seed)
    close(tw.compile(made, target="vulkan")(x)[0], made, x)


@pytest.mark.parametrize("seed", range(100, 112))
def test_opencl(seed):
    device_of("opencl")
    made, x = drawn(seed)
    close(tw.compile(made, target="opencl")(x)[0], made, x)


@needs_compiler
@pytest.mark.parametrize("seed", range(200, 224))
def test_cuda(seed, monkeypatch):
    made, x = drawn(seed)
    emitted, original = {}, stages.emit

    def recorded(nest, machine):
        emitted[nest.name] = original(nest, machine)
        return emitted[nest.name]

    monkeypatch.setattr(stages, "emit", recorded)
    run = tw.compile(made, target="cuda", cache=False)
    (want,) = ReferenceEvaluator(made).run(None, {"x": x})
    found = np.empty(want.shape, want.dtype)
    runner(run.package, lambda: Driver(EmulatedDriver(emitted))).context().run([x.ctypes.data], [found.ctypes.data])
    close(found, made, x)


def test_numbers_that_are_none_go_as_on_processors():
    """The place of an extreme element is that of a NaN; softmax spreads it, and rows of -inf have no result."""
    device_of("opencl")
    text = """<ir_version: 10, opset_import: ["": 21]> m (float[4, 333] x) => (int64 p, float e, float y) {
        p = ArgMax<axis=1>(x) e = ReduceMax<keepdims=0>(x, one) y = Softmax<axis=1>(x) }"""
    made = parser.parse_model(text)
    made.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    x = np.random.default_rng(0).standard_normal((4, 333)).astype("f4")
    x[1, 200], x[2, 17], x[3] = np.nan, np.inf, -np.inf
    for got, want in zip(tw.compile(made, target="opencl")(x), tw.compile(made)(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("body", ["y = Softmax<axis=1>(x)", "y = LayerNormalization<axis=1>(x, scale, bias)"])
def test_a_row_fits_the_registers_of_a_warp(body, tmp_path):
    text = f'<ir_version: 10, opset_import: ["": 21]> m (float[2048, 768] x) => (float y) {{ {body} }}'
    made = parser.parse_model(text)
    if "scale" in body:
        made.graph.initializer.extend(numpy_helper.from_array(np.ones(768, "f4"), n) for n in ("scale", "bias"))
    (data,) = tw.compile(made, target="cuda").package.objects.values()
    ptx = stages.CudaKernel.from_bytes(data).ptx
    assert re.search(r"ld\.global(\.nc)?\.v4", ptx) and "shfl.sync.bfly" in ptx
    assert "bar.warp.sync" not in ptx and "barrier" not in ptx, "a shuffle waits for all lanes itself"
    taken = assembled(ptx, "sm_80", tmp_path)
    assert taken.spilled == 0 and taken.registers <= 64
