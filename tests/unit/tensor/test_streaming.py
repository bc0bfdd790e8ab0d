"""Layers that run row by row: which kernels have rows, the loop nests of chains, results in place of operands, and what
is chosen for a whole model."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch_mlir import ir

import tilewright as tw
from tilewright.driver.build_program import pack_array
from tilewright.driver.compiler import compile_state
from tilewright.ir.context import use
from tilewright.ir.types import type_of
from tilewright.schedule.finish import finish
from tilewright.schedule.inplace import inplace_pairs
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import Schedule
from tilewright.targets.base import find
from tilewright.tensor.analysis import VIEWS
from tilewright.tensor.read import read_kernel
from tilewright.tensor.row_chains import Chain, chain, copy_rows, row_kernel

needs_cc = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")


class Net:
    """A model of one line of layers, written layer by layer."""

    def __init__(self, rng, shape):
        self.rng, self.shape, self.at = rng, shape, "x"
        self.nodes, self.weights = [], []

    def conv(self, out, kernel, stride=1, pads=None, groups=1, act="Relu"):
        c, n = self.shape[1], len(self.nodes)
        kh, kw = kernel
        pads = pads or (kh // 2, kw // 2, kh // 2, kw // 2)
        w = self.rng.standard_normal((out, c // groups, kh, kw)) / np.sqrt(c // groups * kh * kw)
        b = self.rng.standard_normal(out) / 2
        self.weights += [(f"w{n}", w), (f"b{n}", b)]
        self.nodes.append(
            helper.make_node(
                "Conv", [self.at, f"w{n}", f"b{n}"], [f"c{n}"], f"conv{n}",
                kernel_shape=kernel, strides=[stride, stride], pads=pads, group=groups,
            )
        )  # fmt: skip
        self.nodes.append(helper.make_node(act, [f"c{n}"], [f"a{n}"]))
        self.at = f"a{n}"
        h, w = (
            (s + pads[i] + pads[i + 2] - k) // stride + 1
            for i, (s, k) in enumerate(zip(self.shape[2:], kernel, strict=True))
        )
        self.shape = (1, out, h, w)
        return self

    def pool(self, size, stride):
        n = len(self.nodes)
        self.nodes.append(
            helper.make_node("MaxPool", [self.at], [f"p{n}"], kernel_shape=[size] * 2, strides=[stride] * 2)
        )
        self.at = f"p{n}"
        self.shape = (*self.shape[:2], *((s - size) // stride + 1 for s in self.shape[2:]))
        return self

    def add(self, other):
        n = len(self.nodes)
        self.nodes.append(helper.make_node("Add", [self.at, other], [f"s{n}"]))
        self.at = f"s{n}"
        return self

    def model(self, shape):
        mean = helper.make_node("GlobalAveragePool", [self.at], ["y"])
        graph = helper.make_graph(
            [*self.nodes, mean],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, self.shape[1], 1, 1))],
            [numpy_helper.from_array(a.astype(np.float32), n) for n, a in self.weights],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def random_net(seed):
    """Convolutions of several kinds behind each other, of odd sizes, with strides and uneven borders."""
    rng = np.random.default_rng(seed)
    shape = (1, int(rng.integers(1, 4)), int(rng.integers(9, 15)), int(rng.integers(5, 12)))
    net = Net(rng, shape).conv(int(rng.integers(3, 8)), (3, 3))
    for _ in range(3):
        kind, c = rng.integers(0, 4), net.shape[1]
        if kind == 0:
            net.conv(int(rng.integers(3, 11)), (1, 1))
        elif kind == 1:
            stride = int(rng.integers(1, 3))
            net.conv(c, (3, 3), stride, (*map(int, rng.integers(0, 2, 2)), 1, 1), groups=c)
        elif kind == 2 and min(net.shape[2:]) > 4:
            net.conv(int(rng.integers(2, 9)), (int(rng.integers(1, 5)), 3), 1)
        elif min(net.shape[2:]) > 3:
            net.pool(2, int(rng.integers(1, 3)))
        if rng.random() < 0.3 and len(net.nodes) > 3:
            before = net.at
            net.conv(net.shape[1] * 3, (1, 1)).conv(net.shape[1], (3, 3), groups=net.shape[1])
            net.conv(net.shape[1] // 3, (1, 1)).add(before)
    return net.model(shape)


def interpreted(model, x, **options):
    """The program at level 4, kernel by kernel in the interpreter of loop nests; and the rules that made the nests."""
    state, _ = compile_state(model, stop_after="schedule", **options)
    graph = state.module
    with use():
        values = {graph.block.arguments[0]: x}
        for op in graph.operations():
            if op.name == "tw.constant":
                values[op.results[0]] = np.asarray(graph.constant_value(op.results[0]))
            elif op.name in VIEWS:
                values[op.results[0]] = values[op.operands[0]].reshape(type_of(op.results[0]).dims)
            elif op.name == "func.call":
                nest = state.nests[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
                given = {}
                for p, v in zip(nest.params, op.operands, strict=False):
                    a = values[v]
                    given[p.name] = pack_array(a, nest.packs[p.name]) if p.name in nest.packs else a
                made = interpret_nest(nest, given)
                values.update(zip(op.results, made.values(), strict=True))
            elif op.name == "func.return":
                result = values[op.operands[0]]
    return result, [s.rule for s in state.schedules.values()]


@pytest.mark.parametrize("seed", range(8))
def test_random_nets_against_numpy(seed):
    model = random_net(seed)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    got, rules = interpreted(model, x, target="c")
    assert "streaming" in rules
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_a_net_with_vectors_against_numpy():
    """Channels that are no multiple of the lanes."""
    model = Net(np.random.default_rng(1), (1, 2, 11, 7)).conv(5, (3, 3)).conv(13, (1, 1)).conv(13, (3, 3), 2, groups=13)
    model = model.conv(6, (1, 1)).model((1, 2, 11, 7))
    x = np.random.default_rng(2).standard_normal((1, 2, 11, 7)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    got, rules = interpreted(model, x, target="cortex-m55")
    assert "streaming" in rules
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


@pytest.fixture(scope="module")
def tools():
    path = Path(__file__).resolve().parents[3] / "benchmarks" / "quantize.py"
    spec = importlib.util.spec_from_file_location("quantize_tool", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("seed", "target"), [(0, "cortex-m4"), (3, "cortex-m55"), (5, "riscv32imc")])
def test_random_int8_nets_have_the_bits_of_the_host(seed, target, tools):
    model = random_net(seed)
    model = tools.quantize(model, tools.normal_inputs(model), integers=True)
    host = tw.compile(model)
    x = np.random.default_rng(seed).integers(-128, 128, host.inputs[0].shape).astype(np.int8)
    got, rules = interpreted(model, x, target=target)
    assert "streaming" in rules
    np.testing.assert_array_equal(got, host(x)[0])


# ---- chains --------------------------------------------------------------------------------------------------------


def kernels_of(model, **options):
    graph = tw.compile(model, target="c", stop_after="fuse", **options)
    return [read_kernel(f) for f in graph.functions()]


@pytest.fixture(scope="module")
def depthwise():
    """Kernels of 1x1, depthwise 3x3, 1x1: the middle of a larger net."""
    net = Net(np.random.default_rng(0), (1, 4, 9, 7)).conv(4, (3, 3)).conv(6, (1, 1)).conv(6, (3, 3), groups=6)
    found = kernels_of(net.conv(4, (1, 1)).model((1, 4, 9, 7)))
    return [k for k in found if "conv" in k.name][-3:]


def random_arrays(kernel, rng):
    return {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.inputs}


def run(nest, arrays):
    given = {n: pack_array(a, nest.packs[n]) if n in nest.packs else a for n, a in arrays.items()}
    return next(iter(interpret_nest(nest, given).values()))


def test_one_row_of_a_depthwise_convolution(depthwise):
    row = row_kernel(depthwise[1])
    assert (row.count, row.first, row.total, row.border) == (9, 0, 9, None)
    assert row.steps["p0"] == (0, 1, 0, 0)
    assert row_kernel(depthwise[0]).first == 1  # its result has a border


def test_kernels_without_rows():
    net = Net(np.random.default_rng(0), (1, 4, 9, 7)).conv(4, (3, 3))
    why = [row_kernel(k) for k in kernels_of(net.model((1, 4, 9, 7))) if "mean" in k.name]
    assert why == ["its result has no rows"]


def test_a_chain_computes_what_its_kernels_do(depthwise):
    made = chain("both", depthwise, [None, "p0", "p0"])
    assert isinstance(made, Chain)
    arrays = random_arrays(made, np.random.default_rng(0))
    expected = run(finish(Schedule(made).nest()), arrays)
    nest = finish(schedule(made, find("c").describe()).schedule.nest())
    np.testing.assert_allclose(run(nest, arrays), expected, atol=1e-5)
    rings = {b.name: b.shape for b in nest.buffers().values() if b.scope == "local"}
    assert rings == {"x0": (3, 9 * 6), "x1": (1, 7 * 6)}  # three rows with their borders, and one


def test_a_chain_that_does_not_fit_is_refused(depthwise):
    assert chain("wrong", depthwise[:2], [None, "p1"]) == "its rows are others"


def test_a_copy_of_rows_lets_a_window_write_over_its_operand(depthwise):
    kernel, d = depthwise[1], find("c").describe()
    plain = finish(schedule(kernel, d).schedule.nest())
    assert inplace_pairs(plain) == []
    made = chain("copied", [copy_rows(kernel, "p0"), kernel], [None, "p0"])
    nest = finish(schedule(made, d).schedule.nest())
    (result,) = nest.outputs
    assert inplace_pairs(nest) == [(result, "p0")]
    arrays = random_arrays(made, np.random.default_rng(0))
    expected = run(plain, dict(zip([p.name for p in kernel.inputs], arrays.values(), strict=True)))
    np.testing.assert_allclose(run(nest, arrays), expected, atol=1e-5)


def test_results_larger_than_what_was_read_do_not_take_its_place(depthwise):
    made = chain("wide", depthwise[:2], [None, "p0"])  # from 4 channels to 6
    assert inplace_pairs(finish(schedule(made, find("c").describe()).schedule.nest())) == []


# ---- what is chosen ------------------------------------------------------------------------------------------------


def bottleneck():
    """Two inverted residual blocks of MobileNetV2."""
    net = Net(np.random.default_rng(3), (1, 3, 33, 33)).conv(8, (3, 3), 2)
    for _ in range(2):
        before = net.at
        net.conv(48, (1, 1)).conv(48, (3, 3), groups=48).conv(8, (1, 1), act="Identity").add(before)
    return net.model((1, 3, 33, 33))


@needs_cc
def test_a_bottleneck_needs_a_fraction_of_its_memory():
    model = bottleneck()
    whole = tw.compile(model, target="c", stream=False)
    streamed = tw.compile(model, target="c")
    assert streamed.package.program.arena_size < 0.3 * whole.package.program.arena_size
    x = np.random.default_rng(0).standard_normal((1, 3, 33, 33)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    for e in (whole, streamed):
        np.testing.assert_allclose(e(x)[0], expected, atol=1e-5 * np.abs(expected).max())


@needs_cc
def test_a_depthwise_convolution_writes_over_its_operand():
    """Behind a layer whose rows do not follow each other: only copying rows ahead lets the result lie there."""
    rng = np.random.default_rng(0)
    net = Net(rng, (1, 2, 10, 10)).conv(8, (3, 3))
    net.weights.append(("scales", np.array([1, 1, 2, 2])))
    net.nodes.append(helper.make_node("Resize", [net.at, "", "scales"], ["r"], mode="linear"))
    net.at, net.shape = "r", (1, 8, 20, 20)
    model = net.conv(8, (3, 3), pads=(0, 0, 0, 0), groups=8).model((1, 2, 10, 10))
    state, streamed = compile_state(model, target="c")
    (name,) = [n for n, s in state.schedules.items() if s.rule == "streaming"]
    assert len(state.kernels[name].members) == 2 and state.kernels[name].members[0].kernel.name == "copy"
    call = next(c for c in streamed.package.program.calls if c.symbol == name)
    given, result = call.args[0], call.args[-1]
    assert given.overlaps(result) and given.offset == result.offset
    x = rng.standard_normal((1, 2, 10, 10)).astype(np.float32)
    np.testing.assert_allclose(streamed(x)[0], tw.compile(model)(x)[0], atol=1e-5)


def test_rows_of_a_matrix_stay_together():
    """One by one they would read all weights anew."""
    w = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in ("xa", "ab", "by")]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, (9, 8))], [value("y", TensorProto.FLOAT, (9, 8))], [w]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    state, _ = compile_state(model, stop_after="schedule", target="c")
    assert "streaming" not in {s.rule for s in state.schedules.values()}


def test_a_limit_streams_only_as_far_as_needed():
    model = bottleneck()
    whole = tw.compile(model, target="c", stream=False).package.program
    least = tw.compile(model, target="c").package.program
    assert tw.compile(model, target="c", arena_limit=whole.arena_size).package.program == whole
    between = (whole.arena_size + least.arena_size) // 2
    some = tw.compile(model, target="c", arena_limit=between).package.program
    assert some.arena_size <= between and len(least.calls) <= len(some.calls) < len(whole.calls)
    with pytest.raises(tw.errors.UsageError) as e:
        tw.compile(model, target="c", stream=False, arena_limit=between)
    assert "row by row" in e.value.hint


def test_large_machines_do_not_stream():
    state, _ = compile_state(bottleneck(), stop_after="schedule", target="cpu")
    assert "streaming" not in {s.rule for s in state.schedules.values()}


def test_a_dumped_graph_streams_as_the_model_did(tmp_path):
    model = bottleneck()
    direct = tw.compile(model, target="c", dump=str(tmp_path)).package.program
    (fused,) = tmp_path.glob("*-fuse.mlir")
    assert tw.compile(fused, target="c", start_after="fuse").package.program.calls == direct.calls


def test_the_dumped_nests_of_chains_go_on(tmp_path):
    direct = tw.compile(bottleneck(), target="c", dump=str(tmp_path)).package
    (nests,) = tmp_path.glob("*-schedule.txt")
    assert "def rows_" in nests.read_text()
    again = tw.compile(nests, target="c", start_after="schedule").package
    assert again.objects == direct.objects and again.program.calls == direct.program.calls


@needs_cc
def test_verify_follows_chains():
    tw.compile(bottleneck(), target="c", verify=True)
