"""Convolutions that keep their channels first: which do, and what they compute, against the ONNX reference."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.machines import NARROW, WIDE

import tilewright as tw
from tilewright.driver.compiler import compile_state
from tilewright.driver.kernels import BuiltKernel
from tilewright.graph.layout_choice import Sizes, cycles
from tilewright.ir import dialect
from tilewright.lang import te
from tilewright.runtime.executable import Executable
from tilewright.schedule.finish import finish
from tilewright.schedule.machine import Machine
from tilewright.schedule.rules import schedule
from tilewright.targets.base import find
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tune.space import Space


@pytest.fixture(autouse=True)
def wide_vectors(monkeypatch):
    """Decide as for vectors of 64 bytes, whatever machine this is."""
    monkeypatch.setattr(CpuDescription, "image_lanes", 16)


class Net:
    """A small ONNX model with random constants."""

    def __init__(self, *shape: int, dtype=np.float32) -> None:
        self.rng, self.nodes, self.constants, self.dtype = np.random.default_rng(0), [], {}, dtype
        self.x = self.rng.standard_normal(shape).astype(dtype)
        self.last = "x"

    def add(self, kind: str, *more: str, **attributes) -> Net:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [self.last, *more], [name], **attributes))
        self.last = name
        return self

    def constant(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        scale = 1 / max(np.prod(shape[1:]), 1) ** 0.5
        self.constants[name] = (scale * self.rng.standard_normal(shape)).astype(self.dtype)
        return name

    def conv(self, channels: int, filters: int, *window: int, bias: bool = True, group: int = 1, **how) -> Net:
        operands = [self.constant(filters, channels // group, *window)]
        return self.add("Conv", *operands, *([self.constant(filters)] if bias else []), group=group, **how)

    def model(self):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", kind, self.x.shape)],
            [helper.make_tensor_value_info(self.last, kind, None)],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def layouts(net: Net, **options) -> list[str]:
    graph = tw.compile(net.model(), stop_after="layout", cache=False, **options)
    return [dialect.attributes(op)["layout"] for op in graph.operations() if op.name == "tw.conv"]


def check(net: Net, tolerance: float = 1e-5, **options) -> set[str]:
    """Compare with the reference at one and more threads; the schedule rules that were used."""
    model = net.model()
    (want,) = ReferenceEvaluator(model).run(None, {"x": net.x})
    state, run = compile_state(model, threads=1, cache=False, tuned=False, **options)
    for threads in (1, 2, 3):
        (y,) = Executable(run.package, threads)(net.x)
        np.testing.assert_allclose(y, want, atol=tolerance * np.abs(want).max())
    return {s.rule for s in state.schedules.values()}


# ---- which ---------------------------------------------------------------------------------------------------------


def alone(shape, *conv, **how) -> Net:
    return Net(*shape).conv(*conv, **how)


WHICH = {
    "pixels": (alone((1, 17, 40, 41), 17, 90, 1, 1), "nchw"),
    "49 pixels": (alone((1, 512, 7, 7), 512, 512, 1, 1), "nhwc"),
    "depthwise": (alone((1, 33, 60, 61), 33, 33, 3, 3, group=33, pads=[1] * 4), "nchw"),
    "small depthwise": (alone((1, 200, 7, 7), 200, 200, 3, 3, group=200, pads=[1] * 4), "nhwc"),
    "few filters": (alone((1, 3, 90, 93), 3, 12, 3, 3, pads=[1] * 4), "nchw"),
    "short rows": (alone((1, 40, 20, 20), 40, 32, 3, 3, pads=[1] * 4), "nhwc"),
    "winograd": (alone((1, 64, 40, 64), 64, 64, 3, 3, pads=[1] * 4), None),
    "elementwise": (Net(1, 17, 40, 41).add("Relu").conv(17, 90, 1, 1).add("Relu").add("Sigmoid"), "nchw"),
    "chain": (alone((1, 8, 64, 64), 8, 24, 1, 1).add("Relu").conv(24, 24, 3, 3, group=24).conv(24, 8, 1, 1), "nchw"),
    "pool": (alone((1, 17, 40, 41), 17, 9, 1, 1).add("MaxPool", kernel_shape=[2, 2]), "nhwc"),
    "long": (alone((1, 17, 30, 31), 17, 9, 1, 1).conv(9, 9, 1, 1).conv(9, 9, 1, 1).conv(9, 9, 1, 1), "nhwc"),
    "given last": (
        Net(1, 40, 41, 17).add("Transpose", perm=[0, 3, 1, 2]).conv(17, 90, 1, 1).add("Transpose", perm=[0, 2, 3, 1]),
        "nhwc",
    ),
}


@pytest.mark.parametrize("name", WHICH)
def test_which(name):
    """All of a chain or none."""
    net, layout = WHICH[name]
    assert set(layouts(net)) == ({layout} if layout else set())


def test_nothing_is_transposed():
    net = Net(1, 17, 40, 41).add("Relu").conv(17, 90, 1, 1).add("Relu").add("Sigmoid")
    graph = tw.compile(net.model(), stop_after="layout", cache=False)
    assert not any(op.name == "tw.transpose" for op in graph.operations())


def test_a_residual_joins_two_chains():
    """A sum of two convolutions is one chain; one with the input itself is not part of it, whatever is decided."""
    net = Net(1, 12, 40, 41).conv(12, 12, 1, 1).add("Relu")
    left = net.last
    net.conv(12, 12, 1, 1).add("Add", left)
    assert layouts(net) == ["nchw", "nchw"]
    check(net)
    net.add("Add", "x")
    assert len(set(layouts(net))) == 1
    check(net)


def test_other_types_and_machines_keep_channels_last(monkeypatch):
    net = Net(1, 17, 40, 41).conv(17, 90, 1, 1)
    assert layouts(net, precision="bf16") == ["nhwc"]
    assert layouts(net, precision="f16") == ["nhwc"]
    half = Net(1, 17, 40, 41, dtype=np.float16).conv(17, 90, 1, 1)
    assert layouts(half) == ["nhwc"]
    check(half, tolerance=2e-3)
    monkeypatch.setattr(CpuDescription, "image_lanes", 0)
    assert layouts(net) == ["nhwc"]


def test_estimates():
    """Full vectors are what decides."""
    for sizes, first in (
        (Sizes(1, 16, 8, (64, 64), (3, 3), (1, 1)), True),
        (Sizes(1, 16, 64, (17, 17), (3, 3), (1, 1)), False),
        (Sizes(2, 16, 16, (15,), (3,), (1,)), False),
        (Sizes(1, 9, 9, (4, 32, 32), (3, 3, 3), (1, 1, 1), 9), True),
    ):
        last, own = cycles(sizes, 16, Machine().image_costs)
        assert (own < last) == first, sizes


# ---- what they compute ---------------------------------------------------------------------------------------------

SINGLE = {
    "plain": Net(1, 7, 13, 11).conv(7, 5, 1, 1),
    "no bias": Net(1, 19, 21, 22).conv(19, 23, 1, 1, bias=False),
    "batch": Net(3, 7, 9, 11).conv(7, 5, 1, 1),
    "groups": Net(2, 12, 20, 21).conv(12, 9, 1, 1, group=3),
    "padded": Net(1, 6, 17, 19).conv(6, 11, 1, 1, pads=[1, 0, 2, 1]),
    "stride": Net(1, 6, 31, 40).conv(6, 11, 1, 1, strides=[2, 2]),
    "signal": Net(2, 5, 77).conv(5, 7, 1),
    "volume": Net(1, 5, 6, 7, 9).conv(5, 7, 1, 1, 1),
    "one filter": Net(1, 9, 20, 33).conv(9, 1, 1, 1),
}


@pytest.mark.parametrize("name", SINGLE)
def test_windows_of_one_pixel(name, monkeypatch):
    """As they are chosen, and with channels first and last in any case."""
    net = SINGLE[name]
    check(net)
    for worth in (1e9, 0):
        monkeypatch.setattr("tilewright.graph.layout_choice.WORTH", worth)
        assert layouts(net) == ["nchw" if worth else "nhwc"]
        check(net)


WINDOWS = {
    "3x3": Net(1, 5, 14, 37).conv(5, 7, 3, 3, pads=[1] * 4),
    "stride": Net(1, 5, 15, 38).conv(5, 9, 3, 3, pads=[1] * 4, strides=[2, 2]),
    "stride 3": Net(1, 3, 15, 58).conv(3, 9, 5, 5, pads=[2] * 4, strides=[3, 3]),
    "dilations": Net(2, 5, 14, 37).conv(5, 7, 3, 3, pads=[2, 1, 2, 3], dilations=[2, 2]),
    "groups": Net(1, 6, 14, 37).conv(6, 8, 3, 3, pads=[1] * 4, group=2),
    "two a channel": Net(1, 6, 14, 37).conv(6, 12, 3, 3, pads=[1] * 4, group=6),
    "signal": Net(2, 5, 77).conv(5, 7, 5, pads=[2, 2]),
    "volume": Net(1, 3, 5, 6, 19).conv(3, 4, 3, 3, 3, pads=[1] * 6),
    "large": Net(1, 3, 40, 41).conv(3, 4, 11, 11, pads=[5] * 4),
    "tall": Net(1, 9, 20, 35).conv(9, 20, 7, 1, pads=[3, 0, 3, 0]),
    "few columns": Net(1, 9, 20, 3).conv(9, 20, 3, 3, pads=[1] * 4),
}
DEPTHWISE = {
    "3x3": Net(1, 9, 14, 37).conv(9, 9, 3, 3, pads=[1] * 4, group=9),
    "stride": Net(1, 9, 15, 38).conv(9, 9, 3, 3, pads=[1] * 4, strides=[2, 2], group=9),
    "strides": Net(2, 9, 21, 38).conv(9, 9, 5, 5, pads=[2] * 4, strides=[3, 1], group=9),
    "dilations": Net(2, 9, 14, 37).conv(9, 9, 3, 3, pads=[2, 1, 2, 3], dilations=[2, 2], group=9),
    "signal": Net(2, 9, 77).conv(9, 9, 5, pads=[2, 2], group=9),
    "volume": Net(1, 5, 5, 6, 19).conv(5, 5, 3, 3, 3, pads=[1] * 6, group=5),
    "7x7": Net(1, 5, 12, 35).conv(5, 5, 7, 7, pads=[3] * 4, group=5),
    "row": Net(1, 5, 12, 35).conv(5, 5, 1, 3, pads=[0, 1, 0, 1], group=5),
    "column": Net(1, 5, 12, 35).conv(5, 5, 3, 1, pads=[1, 0, 1, 0], group=5),
    "not padded": Net(1, 5, 12, 35).conv(5, 5, 3, 3, group=5),
    "few columns": Net(1, 9, 20, 3).conv(9, 9, 3, 3, pads=[1] * 4, group=9),
    "one row": Net(1, 9, 1, 40).conv(9, 9, 1, 5, pads=[0, 2, 0, 2], group=9),
}


def then(net: Net) -> Net:
    """With what fusion adds to a convolution: an activation, a residual, a factor of each channel."""
    x = Net(*net.x.shape)
    x.nodes, x.constants, x.last = list(net.nodes), dict(net.constants), net.last
    channels, rank = x.constants[x.nodes[0].input[1]].shape[0], net.x.ndim
    first = x.add("Relu").last
    return x.add("Mul", x.constant(channels, *[1] * (rank - 2))).add("Add", first).add("Sigmoid")


@pytest.mark.parametrize("more", [False, True], ids=["alone", "then"])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, more, monkeypatch):
    monkeypatch.setattr("tilewright.graph.layout_choice.WORTH", 1e9)
    net = then(WINDOWS[name]) if more else WINDOWS[name]
    assert layouts(net) == ["nchw"]
    check(net)


@pytest.mark.parametrize("more", [False, True], ids=["alone", "then"])
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name, more, monkeypatch):
    monkeypatch.setattr("tilewright.graph.layout_choice.WORTH", 1e9)
    net = then(DEPTHWISE[name]) if more else DEPTHWISE[name]
    assert layouts(net) == ["nchw"]
    assert "depthwise-columns" in check(net)


def test_what_follows_joins_a_product_of_pixels():
    """It is computed in the kernel of the convolution, though that knows no rows and columns."""
    net = Net(1, 19, 21, 22).conv(19, 19, 1, 1).add("Relu")
    net.add("Mul", net.constant(19, 1, 1)).add("Add", "x").add("Sigmoid")
    state, _ = compile_state(net.model(), threads=1, cache=False, tuned=False)
    assert len(state.schedules) == 1 and layouts(net) == ["nchw"]
    check(net)


def test_a_border_does_not_cut_vectors_of_pixels():
    """Lanes along all pixels are written as they are; what gives the image a border copies it."""
    net = alone((1, 8, 40, 41), 8, 24, 1, 1).add("Relu").conv(24, 24, 3, 3, group=24, pads=[1] * 4).conv(24, 9, 1, 1)
    assert set(layouts(net)) == {"nchw"}
    state, _ = compile_state(net.model(), threads=1, cache=False, tuned=False)
    assert len(state.schedules) == 4
    check(net)


# ---- the rule ------------------------------------------------------------------------------------------------------


def columns(channels, height, width, size=3, stride=1, dtype="f32"):
    h, w = ((n - 1) * stride + size for n in (height, width))
    x = te.placeholder((channels, h, w), "x", dtype)
    weights = te.placeholder((channels, size, size), "w", dtype, constant=True)
    ry, rx = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx")
    out = te.compute(
        (channels, height, width),
        lambda f, y, z: te.sum(x[f, y * stride + ry, z * stride + rx] * weights[f, ry, rx], ry, rx),
        "s",
    )
    return te.kernel(out, name="columns")


def expected(x, w, stride=1):
    size = w.shape[-1]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (size, size), axis=(1, 2))
    return np.einsum("chwij,cij->chw", windows[:, ::stride, ::stride], w.astype(np.float64))


SHAPES = [
    (7, 9, 11, 3, 1), (3, 7, 33, 3, 1), (5, 16, 16, 5, 1), (2, 13, 70, 3, 1), (4, 6, 9, 7, 1), (3, 6, 37, 3, 2),
    (5, 5, 20, 5, 2), (2, 1, 40, 3, 1), (6, 30, 1, 3, 1), (2, 2, 2, 2, 1), (3, 9, 21, 3, 4),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_tiles(shape, dtype):
    """The default and other decisions."""
    k, rng = columns(*shape, dtype=dtype), np.random.default_rng(0)
    x, w = (rng.standard_normal(p.shape).astype({"f32": np.float32, "f64": np.float64}[dtype]) for p in k.inputs)
    want, chooser = expected(x, w, shape[4]), random.Random(0)
    space = Space(k, find("cpu").describe())
    assert space.default.rule == "depthwise-columns"
    for c in [space.default, *(space.sample(chooser) for _ in range(2))]:
        got = BuiltKernel(c.nest, find("cpu"), chooser.choice((1, 2, 3)))(x, w)
        tolerance = 1e-5 if dtype == "f32" else 1e-12
        np.testing.assert_allclose(got, want, atol=tolerance * np.abs(want).max(), err_msg=str(c.decisions))


def test_what_is_another_rules():
    assert schedule(columns(3, 9, 20, 1), WIDE).rule != "depthwise-columns"  # nothing to share
    assert schedule(columns(3, 19, 20, 11), WIDE).rule != "depthwise-columns"  # too much to lay out
    a, b, r = te.placeholder((6, 5), "a"), te.placeholder((5, 40), "b"), te.reduce_axis(5, "r")
    product = te.kernel(te.compute((6, 40), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"))
    assert schedule(product, WIDE).rule == "contraction"


def test_narrow_vectors():
    text = str(finish(schedule(columns(5, 9, 30), NARROW).schedule.nest()))
    assert "lanes=8" in text and "lanes=16" not in text
