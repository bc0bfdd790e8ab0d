"""Depthwise convolutions: tiles of pixels and merged rows against NumPy, and the primitives that merging needs."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.machines import MACHINES, NARROW, WIDE
from support.primitive_cases import becomes, kernel, refuses

from tilewright.driver.build_program import pack_array
from tilewright.driver.compiler import compile_state
from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.runtime.executable import Executable
from tilewright.schedule.finish import finish
from tilewright.schedule.nest import Pack
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.targets.base import find
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tune.space import Space


def depthwise(height, width, channels, size=3, stride=1, dtype="f32", after=None, constant=True):
    h, w = ((n - 1) * stride + size for n in (height, width))
    x, weights = (
        te.placeholder((h, w, channels), "x", dtype),
        te.placeholder((size, size, channels), "w", dtype, constant=constant),
    )
    ry, rx = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx")
    out = te.compute(
        (height, width, channels),
        lambda y, z, f: te.sum(x[y * stride + ry, z * stride + rx, f] * weights[ry, rx, f], ry, rx),
        "s",
    )
    return te.kernel(after(out) if after else out, name="depthwise")


def expected(x, w, stride=1):
    size = w.shape[0]
    h, v = ((n - size) // stride + 1 for n in x.shape[:2])
    taps = [(i, j) for i in range(size) for j in range(size)]
    last = (h - 1) * stride + 1, (v - 1) * stride + 1
    return sum(x[i : i + last[0] : stride, j : j + last[1] : stride].astype(np.float64) * w[i, j] for i, j in taps)


def given(k, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(p.shape).astype({"f32": np.float32, "f64": np.float64}[p.dtype]) for p in k.inputs]


SHAPES = [
    (9, 11, 33, 3, 1), (7, 8, 3, 3, 1), (5, 6, 17, 5, 1), (13, 5, 100, 3, 1), (6, 9, 7, 7, 1), (6, 7, 50, 3, 2),
    (5, 5, 91, 5, 2), (8, 8, 32, 3, 1), (9, 9, 48, 3, 2), (1, 40, 5, 3, 1), (30, 1, 19, 3, 1), (2, 2, 2, 2, 1),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_against_numpy(shape):
    """The default and other decisions of every form."""
    k = depthwise(*shape)
    x, w = given(k)
    want, rng = expected(x, w, shape[4]), random.Random(0)
    space = Space(k, find("cpu").describe())
    assert space.default.rule == "depthwise"
    for c in [space.default, *(space.sample(rng) for _ in range(2))]:
        got = BuiltKernel(c.nest, find("cpu"), rng.choice((1, 2, 3)))(x, w)
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), err_msg=str(c.decisions))


def chosen(k):
    """The default decisions on a machine with vectors of 64 bytes and caches of 48 KB and 1 MB."""
    machine = MACHINES["zen5"]
    return {n: d.chosen for n, d in schedule(k, machine).schedule.decisions.items()}


def test_what_is_merged():
    """Where vectors of pixels would have many empty lanes, windows move by one column, and weights are constants."""
    assert chosen(depthwise(9, 11, 33))["form"] == "merged"
    assert chosen(depthwise(9, 11, 345))["form"] == "pixels"  # nearly full vectors
    assert "form" not in chosen(depthwise(9, 11, 48))
    assert "form" not in chosen(depthwise(9, 11, 33, 3, 2))
    assert "form" not in chosen(depthwise(9, 11, 33, constant=False))


def test_several_rows_at_once():
    """Where windows move by more than one row, and where the rows of a window do not stay in the first-level cache."""
    assert chosen(depthwise(14, 14, 384)) == {"tile": (1, 7, 2), "order": "panels"}
    assert chosen(depthwise(14, 14, 192, 3, 2)) == {"tile": (4, 7, 1), "order": "panels"}
    assert chosen(depthwise(14, 14, 512)) == {"tile": (4, 1, 2), "order": "pixels"}  # they share its sets
    assert chosen(depthwise(112, 112, 32)) == {"tile": (4, 4, 1), "order": "pixels"}


def test_what_is_another_rules():
    """Shared operands, windows of one pixel."""
    a, b, r = te.placeholder((6, 5), "a"), te.placeholder((5, 40), "b", constant=True), te.reduce_axis(5, "r")
    product = te.kernel(te.compute((6, 40), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"))
    assert schedule(product, WIDE).rule == "contraction"
    assert schedule(depthwise(6, 7, 20, 1), WIDE).rule != "depthwise"


@pytest.mark.parametrize("form", ["pixels", "merged"])
def test_what_follows_is_applied_to_the_tile(form):
    """A constant of each channel, a tensor of the result's shape."""
    scale, other = te.placeholder((21,), "scale", constant=True), te.placeholder((6, 7, 21), "other")

    def after(out):
        return te.compute((6, 7, 21), lambda y, z, f: te.maximum(out[y, z, f] * scale[f] + other[y, z, f], 0.0), "y")

    k = depthwise(6, 7, 21, after=after)
    made = schedule(k, WIDE, {"form": form})
    assert made.rule == "depthwise" and made.schedule.decisions["form"].chosen == form
    arrays = dict(zip([p.name for p in k.inputs], given(k), strict=True))
    want = np.maximum(expected(arrays["x"], arrays["w"]) * arrays["scale"] + arrays["other"], 0)
    got = BuiltKernel(finish(made.schedule.nest()), find("cpu"), 2)(*arrays.values())
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_a_variable_of_each_channel_is_not_merged():
    scale = te.placeholder((21,), "scale")
    k = depthwise(6, 7, 21, after=lambda out: te.compute((6, 7, 21), lambda y, z, f: out[y, z, f] * scale[f], "y"))
    made = schedule(k, WIDE)
    assert made.rule == "depthwise" and "form" not in made.schedule.decisions


def test_doubles():
    k = depthwise(6, 7, 13, dtype="f64")
    x, w = given(k)
    for form in ("pixels", "merged"):
        made = schedule(k, WIDE, {"form": form})
        assert made.rule == "depthwise"
        got = BuiltKernel(finish(made.schedule.nest()), find("cpu"), 1)(x, w)
        np.testing.assert_allclose(got, expected(x, w), rtol=1e-12, atol=1e-12)


def test_narrow_vectors():
    k = depthwise(9, 10, 11)
    for form in ("pixels", "merged"):
        text = str(finish(schedule(k, NARROW, {"form": form}).schedule.nest()))
        assert "lanes=8" in text and "lanes=16" not in text


MODELS = {  # batch, channels, height, width, window, stride, pads, then
    "padded": (1, 33, 12, 13, 3, 1, (1, 1, 1, 1), ("Relu",)),
    "batch": (3, 20, 9, 8, 3, 1, (1, 1, 1, 1), ("Clip",)),
    "stride": (1, 37, 15, 14, 5, 2, (2, 2, 2, 2), ()),
    "large": (1, 5, 12, 9, 7, 1, (3, 3, 3, 3), ("Relu",)),
    "uneven": (2, 9, 11, 10, 3, 1, (0, 1, 2, 0), ("Add",)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name, monkeypatch):
    monkeypatch.setattr(CpuDescription, "image_lanes", 0)  # with channels last in any case
    batch, c, h, w, size, stride, pads, then = MODELS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, c, h, w)).astype(np.float32)
    weights = {"w": (c, 1, size, size), "b": (c,), "low": (), "high": (), "other": (1,)}
    constants = {n: rng.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    constants["high"] = constants["low"] + 1
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y0"], group=c, pads=pads, strides=[stride] * 2)]
    more = {"Relu": [], "Clip": ["low", "high"], "Add": ["other"]}
    for i, kind in enumerate(then):
        nodes.append(helper.make_node(kind, [f"y{i}", *more[kind]], [f"y{i + 1}"]))
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(f"y{len(then)}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    state, run = compile_state(model, threads=1, cache=False, tuned=False)
    assert "depthwise" in {s.rule for s in state.schedules.values()}
    for threads in (1, 2, 3):
        (y,) = Executable(run.package, threads)(x)
        np.testing.assert_allclose(y, want, atol=1e-5 * np.abs(want).max())


# ---- primitives ----------------------------------------------------------------------------------------------------

ROUND = """
def k(b: f32[3], y: out(f32[32])):
    for i in serial(8):
        for j in serial(4):
            s0: y[i * 4 + j] = negf(b[(i * 4 + j) % 3])
"""


def test_repeat():
    s = Schedule(kernel(ROUND, ("b",)))
    refuses(s, "y is not a constant", "repeat", "y", 0, "j")
    refuses(s, "no dimension 1", "repeat", "b", 1, "j")
    refuses(s, "does not walk round dimension 0 along i", "repeat", "b", 0, "i")
    s.repeat("b", 0, "j")
    assert s.params["b"].shape == (6,) and s.packs["b"] == Pack("b", ((),), (0,), (3,))
    becomes(
        s,
        """
        for i in serial(8):
            for j in serial(4):
                s0: y[i * 4 + j] = negf(b[i * 4 % 3 + j])
        """,
    )
    refuses(s, "packed already", "repeat", "b", 0, "j")
    assert parse_nest(format_nest(s.nest())) == s.nest()
    assert Schedule.replay(s.kernel, str(s.trace)).nest() == s.nest()


def test_repeat_of_another_length():
    s = Schedule(kernel(ROUND.replace("% 3", "% 2"), ("b",)))
    refuses(s, "does not walk round", "repeat", "b", 0, "j")


def test_repeated_more_than_once():
    pack = Pack("b", ((), (2,)), (1, 0, 2), (0, 5))
    found = pack_array(np.arange(6).reshape(2, 3), pack)
    want = np.array([[0, 1, 2, 0, 1, 2, 0, 1], [3, 4, 5, 3, 4, 5, 3, 4]]).reshape(2, 4, 2).transpose(1, 0, 2)
    np.testing.assert_array_equal(found, want)


def test_flatten():
    s = Schedule(
        kernel(
            """
            def k(x: f32[4, 8], y: out(f32[4, 8])):
                t = local(f32[4, 8])
                for i in serial(4):
                    for j in serial(8):
                        s0: t[i, j] = exp(x[i, j])
                for m in serial(4):
                    for n in serial(8):
                        s1: y[m, n] = negf(t[m, n])
            """
        )
    )
    refuses(s, "x is no temporary", "flatten", "x", 0)
    refuses(s, "behind 1", "flatten", "t", 1)
    s.fuse("i", "j")
    s.fuse("m", "n")
    s.flatten("t", 0)
    becomes(
        s,
        """
        t = local(f32[32])
        for i_j in serial(32):
            s0: t[i_j] = exp(x[i_j // 8, i_j % 8])
        for m_n in serial(32):
            s1: y[m_n // 8, m_n % 8] = negf(t[m_n])
        """,
    )


def test_a_dump_knows_what_is_repeated(tmp_path):
    """The packing of weights is part of what is dumped after `emit`."""
    from tilewright.codegen.llvm.stages import _info_attributes, _read_info
    from tilewright.driver.build_program import KernelInfo
    from tilewright.ir.context import parse, use

    info = KernelInfo(64, {1: Pack("w", ((), (), ()), (0, 1, 2), (0, 0, 15))}, True, (), False)
    module = parse(f"module attributes {_info_attributes(info)} {{}}", "test")
    with use():
        assert _read_info(module.operation.attributes) == info
