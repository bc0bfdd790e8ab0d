"""Depthwise convolutions with the convolutions around them as one kernel: against NumPy, for any division among threads
and any decisions, and where they are joined."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.machines import NARROW, RULES_AVX2, RULES_AVX512, WIDE
from support.nests import scalar_products
from support.teams import teams

from tilewright.driver import stages
from tilewright.driver.compiler import compile_state
from tilewright.driver.kernels import BuiltKernel
from tilewright.ir.context import use
from tilewright.runtime.executable import Executable
from tilewright.schedule import rules
from tilewright.schedule.executed import TOO_MUCH
from tilewright.schedule.finish import finish
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.contraction import contraction
from tilewright.schedule.rules.convolution import depthwise_chain
from tilewright.schedule.schedule import Schedule
from tilewright.targets.base import find
from tilewright.targets.cpu.description import CpuDescription, describe_x86
from tilewright.tensor.chains import row_chain
from tilewright.tensor.read import read_kernel
from tilewright.tune.space import Space


@dataclass(frozen=True)
class Case:
    """Images of `shape` (N, C, H, W); a 1x1 convolution to `wide` channels, a depthwise one, a 1x1 one to `out`."""

    shape: tuple[int, int, int, int]
    wide: int
    out: int
    size: int | tuple[int, int] = 3
    stride: int = 1
    dilation: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    act: str = "Clip"
    project: bool = True
    shared: bool = False  # the first result is read twice
    first: int = 1  # size of the first convolution
    residual: bool = False
    then: tuple[int, int, int, int] | None = None  # the border that a convolution of the result wants
    bias: bool = True  # of the 1x1 convolution behind
    groups: int = 1  # of the first convolution

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        nodes, weights = [], [("low", np.float32(-0.5)), ("high", np.float32(0.75))]

        def conv(at, c, out, size, groups=1, act=True, **attributes):
            n, window = len(nodes), (size, size) if isinstance(size, int) else size
            w = rng.standard_normal((out, c // groups, *window)) / np.sqrt(c // groups * np.prod(window))
            weights.extend([(f"w{n}", w), (f"b{n}", rng.standard_normal(out) / 2)])
            bias = [f"b{n}"] if self.bias or act else []
            nodes.append(helper.make_node("Conv", [at, f"w{n}", *bias], [f"c{n}"], group=groups, **attributes))
            if act:
                bounds = ["low", "high"] if self.act == "Clip" else []
                nodes.append(helper.make_node(self.act, [f"c{n}", *bounds], [f"a{n}"]))
            return f"a{n}" if act else f"c{n}"

        c = self.shape[1]
        edge = self.first // 2
        wide = conv("x", c, self.wide, self.first, self.groups, pads=[edge] * 4)
        at = conv(
            wide, self.wide, self.wide, self.size, self.wide,
            strides=[self.stride] * 2, dilations=[self.dilation] * 2, pads=list(self.pads),
        )  # fmt: skip
        if self.project:
            at = conv(at, self.wide, self.out, 1, act=False)
        if self.residual:
            nodes.append(helper.make_node("Add", ["x", at], ["sum"]))
            at = "sum"
        if self.then:
            at = conv(at, self.out, 4, 3, pads=list(self.then))
        nodes.append(helper.make_node("Identity", [at], ["y"]))
        outputs = ["y"]
        if self.shared:
            nodes.append(helper.make_node("GlobalAveragePool", [wide], ["z"]))
            outputs.append("z")
        graph = helper.make_graph(
            nodes, "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
            [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in weights],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CASES = {
    "plain": Case((1, 16, 12, 10), 32, 16),
    "no_bias": Case((2, 16, 12, 10), 32, 16, bias=False),
    "residual": Case((1, 8, 13, 9), 40, 8, residual=True),
    "odd": Case((1, 5, 11, 7), 19, 3, act="Relu"),
    "batch": Case((3, 6, 9, 8), 21, 10, residual=False),
    "batch_residual": Case((2, 7, 8, 8), 17, 7, residual=True),
    "stride": Case((1, 3, 17, 13), 24, 24, stride=2),
    "stride_even": Case((2, 4, 16, 16), 16, 5, stride=2, pads=(0, 0, 1, 1)),
    "stride_3": Case((1, 4, 19, 15), 18, 8, stride=3, pads=(1, 0, 2, 1)),
    "large": Case((1, 4, 15, 14), 20, 9, size=5, pads=(2, 2, 2, 2)),
    "dilated": Case((1, 4, 16, 12), 20, 9, dilation=2, pads=(2, 2, 2, 2)),
    "uneven": Case((1, 4, 12, 9), 12, 6, size=5, pads=(0, 3, 4, 1)),
    "no_border": Case((1, 4, 12, 9), 12, 6, pads=(0, 0, 0, 0)),
    "two_rows": Case((1, 4, 4, 9), 12, 6, pads=(0, 1, 0, 1)),
    # two blocks of the second may need the same rows of the first
    "two_depthwise": Case((2, 19, 16, 12), 19, 0, groups=19, first=3, project=False),
    "low_window": Case((1, 4, 9, 9), 12, 6, size=(1, 3), pads=(1, 1, 1, 1)),
    "lines": Case((2, 4, 9, 9), 12, 6, size=(1, 3), pads=(0, 1, 0, 1)),
    "no_projection": Case((2, 5, 12, 11), 23, 0, project=False),
    "no_expansion": Case((2, 5, 12, 11), 23, 9, pads=(0, 0, 0, 0), shared=True),
    "border": Case((1, 4, 12, 9), 17, 6, then=(1, 1, 1, 1)),
    "uneven_border": Case((2, 4, 13, 9), 17, 16, stride=2, then=(2, 0, 3, 1)),
    "stem": Case((1, 3, 14, 12), 16, 8, first=3),
    "panels": Case((2, 6, 13, 11), 48, 10, stride=2),
    "wide_panels": Case((1, 7, 12, 9), 96, 20, residual=False, then=(1, 1, 1, 1)),
    "large_panels": Case((1, 4, 15, 14), 64, 4, size=5, pads=(2, 2, 2, 2), residual=True),
}


@pytest.fixture(autouse=True)
def channels_last(monkeypatch):
    monkeypatch.setattr(CpuDescription, "image_lanes", 0)  # however short a chain is


@pytest.fixture
def joined(monkeypatch):
    """Kernels are joined wherever that is possible."""
    monkeypatch.setattr(stages, "worth_joining", lambda kernel, machine: not isinstance(row_chain(kernel), str))


def compiled(case):
    state, run = compile_state(case.model(), threads=1, cache=False, tuned=False)
    return run, [s.rule for s in state.schedules.values()]


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name, joined):
    case = CASES[name]
    x = np.random.default_rng(1).standard_normal(case.shape).astype(np.float32)
    expected = ReferenceEvaluator(case.model()).run(None, {"x": x})
    run, rules = compiled(case)
    assert rules.count("depthwise_chain") == 1
    found = run(x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())
    for threads in (2, 3):
        for a, b in zip(Executable(run._package, threads)(x), found, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_sum_that_is_the_result_stays_in_registers(joined):
    """Its row is a part of the result, which it does not make whole."""
    state, _ = compile_state(CASES["no_bias"].model(), threads=1, cache=False, tuned=False)
    (made,) = [s.schedule for s in state.schedules.values() if s.rule == "depthwise_chain"]
    assert {"row0_tile", "row1_tile", "row2_tile"} <= set(made.decisions)


def kernel_of(case):
    graph = compile_state(case.model(), stop_after="fuse")[1]
    with use():
        kernels = [read_kernel(f) for f in graph.functions()]
    (chain,) = [k for k in kernels if not isinstance(row_chain(k), str)]
    return chain


def replays(s, machine):
    assert str(Schedule.replay(s.kernel, str(s.trace), machine).nest()) == str(s.nest())


@pytest.mark.parametrize(
    "name", ["residual", "batch", "stride", "no_projection", "no_expansion", "uneven_border", "two_depthwise"]
)
def test_decisions_keep_the_meaning(name, joined):
    kernel, target = kernel_of(CASES[name]), find("cpu")
    space, rng = Space(kernel, target.describe()), random.Random(3)
    given = [np.random.default_rng(i).standard_normal(p.shape).astype(np.float32) for i, p in enumerate(kernel.inputs)]
    expected = BuiltKernel(space.default.nest, target, 1)(*given)
    assert {"rows", "bands", "row0_tile", "row1_tile"} <= space.default.decisions.keys()
    for _ in range(4):
        c = space.sample(rng)
        found = BuiltKernel(c.nest, target, 2)(*given)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=str(c.decisions))
        replays(c.schedule, target.describe())


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["panels", "wide_panels", "large_panels"])
def test_panels_of_channels(name, machine, joined):
    """A part of the channels at once through expansion and depthwise convolution, in any tiles: equal bits."""
    kernel, target = kernel_of(CASES[name]), find("cpu")
    space, rng = Space(kernel, machine), random.Random(5)
    given = [np.random.default_rng(i).standard_normal(p.shape).astype(np.float32) for i, p in enumerate(kernel.inputs)]
    widths = space.default.schedule.decisions["channels"].candidates
    lanes = machine.vector_bytes // 4
    assert widths[:2] == (0, lanes) and all(w % lanes == 0 for w in widths)
    expected = BuiltKernel(space.realize({"channels": 0}).nest, target, 1)(*given)
    for width in widths[1:]:
        for more in ({}, {"row0_tile": (2, 1, 3), "row1_tile": (2, 1, 2)}, space.sample(rng).decisions):
            c = space.realize({**more, "channels": width})
            assert c.rule == "depthwise_chain" and c.decisions["channels"] == width
            replays(c.schedule, machine)
            for run in teams(BuiltKernel(c.nest, target, 1)):
                found = run(*given)
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(c.decisions))


def test_panels_by_default(joined):
    """Where windows skip rows, as many channels as leave their rows in the first-level cache."""
    machine = replace(find("cpu").describe(), l1_bytes=32 << 10)
    kernel = kernel_of(Case((1, 16, 40, 80), 96, 24, stride=2))
    assert Space(kernel, machine).default.decisions["channels"] == 32  # 3 rows of 82 pixels
    kernel = kernel_of(Case((1, 16, 40, 80), 96, 24))
    assert Space(kernel, machine).default.decisions["channels"] == 0
    kernel = kernel_of(Case((1, 3, 40, 60), 32, 16, first=3))
    assert Space(kernel, machine).default.decisions["rows"] == 1  # what lies between stays in the first-level cache


def test_what_is_joined(joined):
    """What does not stay in the second-level caches, if the weights do, and the rows made twice are few."""
    kernel = kernel_of(Case((1, 16, 40, 28), 96, 24))
    machine = replace(find("cpu").describe(), l2_bytes=128 << 10, cores=2)
    assert depthwise_chain.worth_joining(kernel, machine)
    assert not depthwise_chain.worth_joining(kernel, replace(machine, l2_bytes=1 << 20))  # it stays in cache anyway
    assert not depthwise_chain.worth_joining(kernel, replace(machine, cores=7))  # too many rows made twice
    assert not depthwise_chain.worth_joining(kernel_of(Case((4, 256, 40, 28), 96, 96)), machine)  # large weights
    assert not depthwise_chain.worth_joining(kernel_of(Case((1, 16, 6, 99), 96, 24)), replace(machine, cores=4))


def test_a_chain_whose_members_do_too_much_is_not_joined(joined, monkeypatch):
    """Rows of a member are few, so that what is made again in each is told of no kernel alone."""
    kernel = kernel_of(Case((1, 16, 40, 28), 96, 24))
    machine = replace(find("cpu").describe(), l2_bytes=128 << 10, cores=2)
    parts = depthwise_chain.members(kernel, machine, {"rows": 2})
    assert len(parts) == 3
    assert all(m.executed is not None and m.executed.recomputation <= TOO_MUCH for m in parts)
    assert not depthwise_chain.members(parts[0].schedule.kernel, machine, {})  # that is no chain
    first = parts[0].executed
    assert first is not None
    twice = [replace(parts[0], executed=replace(first, operations=2 * first.own)), *parts[1:]]
    monkeypatch.setattr(depthwise_chain, "members", lambda *_: twice)
    assert not depthwise_chain.worth_joining(kernel, machine)


@pytest.mark.parametrize("features", [RULES_AVX512, RULES_AVX2], ids=["avx512", "avx2"])
@pytest.mark.parametrize("wide", [96, 104, 120, 128, 160, 200, 256])
def test_members_are_vectors_at_any_width(wide, features, joined):
    """A border beside the rows of a member is in no thread's way: one thread runs the row."""
    machine = describe_x86("x86_64-unknown-linux-gnu", features, l1_bytes=32 << 10, l2_bytes=1 << 20, cores=2)
    for side in (56, 47, 14):
        kernel = kernel_of(Case((1, 32, side, side), wide, 32, act="Relu"))
        made = schedule(kernel, machine)
        assert made.rule == "depthwise_chain"
        assert scalar_products(finish(made.schedule.nest()).body) == 0


def test_what_only_the_general_rule_takes_is_not_joined(joined, monkeypatch):
    kernel = kernel_of(Case((1, 16, 40, 28), 96, 24))
    machine = replace(find("cpu").describe(), l2_bytes=128 << 10, cores=2)
    assert depthwise_chain.worth_joining(kernel, machine)
    monkeypatch.setattr(contraction, "apply", lambda kernel, machine, decisions=None: "refused")
    depthwise_chain._kept.cache_clear()
    assert not depthwise_chain.worth_joining(kernel, machine)
    depthwise_chain._kept.cache_clear()


def test_rules_of_others_need_no_hash(joined, monkeypatch):
    found = [SimpleNamespace(NAME=r.NAME, PRIORITY=r.PRIORITY, apply=r.apply) for r in rules.rules()]
    monkeypatch.setattr(rules, "rules", lambda *_: found)
    machine = replace(find("cpu").describe(), l2_bytes=128 << 10, cores=2)
    assert depthwise_chain.worth_joining(kernel_of(Case((1, 16, 40, 28), 96, 24)), machine)


def test_what_is_no_chain(joined):
    def rules(case):
        return compiled(case)[1]

    assert "depthwise_chain" not in rules(Case((1, 4, 9, 9), 12, 6, size=1, stride=2, pads=(0, 0, 0, 0)))  # skips rows
    assert "depthwise_chain" not in rules(Case((1, 4, 9, 9), 12, 6, project=False, shared=True))
    assert "depthwise_chain" not in rules(Case((1, 4, 3, 9), 12, 6, pads=(0, 1, 0, 1)))  # a single row
