"""Programs of several devices: where buffers lie, copies between them, a memory plan for each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.program.memory import table
from tilewright.program.plan import CallEffects, StorageValue, plan_memory
from tilewright.program.program import COPY, BufferRef, Call, DeviceInfo, Program, TensorInfo
from tilewright.targets import base
from tilewright.targets.cpu import CpuTarget


class TwoDevices(CpuTarget):
    """This processor, taken for two devices with memory of their own: products run on the second."""

    name = "two"
    device_names = ("host", "second")

    def place_call(self, symbol, names):
        return int("matmul" in symbol)


@pytest.fixture
def two():
    base.register(TwoDevices())
    yield "two"
    base._TARGETS.remove("two")


def value(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes, inputs, outputs, **constants):
    weights = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(
        [helper.make_node(*n[:3], **(n[3:] or ({},))[0]) for n in nodes], "m", inputs, outputs, weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def network():
    """Products and other kernels in turn; what one product gives is read on both devices."""
    rng = np.random.default_rng(0)
    nodes = [
        ("Softmax", ["x"], ["a"], {"axis": -1}),
        ("MatMul", ["a", "w0"], ["b"]),
        ("Softmax", ["b"], ["c"], {"axis": -1}),
        ("MatMul", ["b", "w1"], ["d"]),
        ("MatMul", ["d", "w0"], ["e"]),
        ("ReduceMax", ["e", "last"], ["f"], {"keepdims": 1}),
        ("MatMul", ["c", "e"], ["y"]),
    ]
    weights = {f"w{i}": rng.standard_normal((24, 24)).astype(np.float32) for i in range(2)}
    inputs, outputs = [value("x", 24, 24)], [value("y", 24, 24), value("f", 24, 1), value("d", 24, 24)]
    return model(nodes, inputs, outputs, last=np.array([1]), **weights)


def test_results_are_those_of_one_device(two, tmp_path):
    x = np.random.default_rng(1).standard_normal((24, 24)).astype(np.float32)
    one = tw.compile(network(), threads=1)(x)
    run = tw.compile(network(), target=two, threads=1)
    program = run.package.program
    assert [d.name for d in program.devices] == ["host", "second"] and all(d.arena_size for d in program.devices)
    assert program.arena_size == sum(d.arena_size for d in program.devices) == run.memory.arena
    copies = [c for c in program.calls if c.symbol == COPY]
    assert [c.device for c in copies].count(1) == 2 and len(copies) == 6  # a and c there; b, d, e and y back
    for got in (run, tw.compile(network(), target=two, threads=2)):
        for a, b, want in zip(got(x), one, ReferenceEvaluator(network()).run(None, {"x": x}), strict=True):
            assert np.array_equal(a, b)
            np.testing.assert_allclose(a, want, rtol=1e-4, atol=1e-4)
    run.save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw", threads=1)
    assert loaded.package.program == program and np.array_equal(loaded(x)[0], one[0])
    assert run.time_calls([x], 2).shape == (2, len(program.calls))
    text = str(program)
    assert "device 1: second, arena " in text and "arena1[" in text and "# device 1" in text
    assert f"arena {program.arena_size} bytes" in table(program)
    assert [t.device for t in program.constants if t.name.startswith("w")] == [1] * 2


def test_verified(two):
    tw.compile(network(), target=two, threads=2, verify=True)


def test_states_lie_where_they_are_read(two):
    made = model(
        [("MatMul", ["past", "x"], ["present"]), ("Softmax", ["present"], ["y"], {"axis": -1})],
        [value("x", 8, 8), value("past", 8, 8)],
        [value("y", 8, 8), value("present", 8, 8)],
    )
    states = {"past": "present"}
    run, one = (tw.compile(made, states=states, target=t, threads=1) for t in (two, "cpu"))
    assert run.package.program.states[0].tensor.device == 1
    for target in (run, one):
        target.states["past"] = np.eye(8, dtype=np.float32)
    for step in range(3):
        x = np.random.default_rng(step).standard_normal((8, 8)).astype(np.float32)
        assert np.array_equal(run(x)[0], one(x)[0])
    assert np.array_equal(run.states["past"], one.states["past"])


def test_one_device_says_nothing_of_devices():
    program = tw.compile(network(), threads=1).package.program
    assert program.devices == () and "device" not in str(program)
    data = program.to_json()
    del data["devices"]
    for call in data["calls"]:
        del call["device"]
    for t in (*data["inputs"], *data["outputs"], *data["constants"]):
        del t["device"]
    assert Program.from_json(data) == program  # as packages of before have it


# ---- by hand ----

X, Y = TensorInfo("x", (16,), "f32"), TensorInfo("y", (16,), "f32")
HERE, THERE = BufferRef("arena", 0, 0, 64), BufferRef("arena", 1, 0, 64)
CALLS = (
    Call(COPY, (BufferRef("input", 0, 0, 64), THERE), (1,), device=1),
    Call("k", (THERE, BufferRef("arena", 1, 64, 64)), (1,), device=1),
    Call(COPY, (BufferRef("arena", 1, 64, 64), BufferRef("output", 0, 0, 64)), (1,)),
)
PROGRAM = Program((X,), (Y,), (), CALLS, 192, devices=(DeviceInfo("host", 64), DeviceInfo("gpu", 128)))


def test_the_text():
    PROGRAM.check()
    assert str(PROGRAM).splitlines()[2:] == [
        "arena: 192 bytes (no plan needs less than 0)",
        "device 0: host, arena 64 bytes",
        "device 1: gpu, arena 128 bytes",
        "  tw.copy(input0[0:64], &arena1[0:64])  # device 1",
        "  k(arena1[0:64], &arena1[64:128])  # device 1",
        "  tw.copy(arena1[64:128], &output0[0:64])",
    ]
    assert Program.from_json(PROGRAM.to_json()) == PROGRAM
    assert str(replace(X, device=1)) == "x: f32[16] on device 1"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Call("k", (HERE, THERE), (1,), device=1), r"call 0 \(k\) runs on device 1: arena\[0:64\]"),
        (Call("k", (THERE, BufferRef("output", 0, 0, 64)), (1,), device=1), r"output0\[0:64\] is on device 0"),
        (Call("k", (THERE, HERE), (1,)), r"call 0 \(k\) runs on device 0: arena1\[0:64\] is on device 1"),
        (Call("k", (HERE,), (0,), scratch=THERE), r"arena1\[0:64\] is on device 1"),
        (Call(COPY, (HERE, THERE), (1,)), r"call 0 \(tw.copy\) runs on device 0: arena1\[0:64\] is on device 1"),
        (Call("k", (BufferRef("arena", 2, 0, 64),), ()), "is outside of its buffer"),
        (Call("k", (BufferRef("arena", 0, 64, 64),), ()), r"is outside of its buffer \(64 bytes\)"),
    ],
)  # fmt: skip
def test_what_the_verifier_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        replace(PROGRAM, calls=(call,)).check()


def test_each_device_has_a_plan_of_its_own():
    values = [
        StorageValue(64, ("input", 0)),
        StorageValue(640, device=1),
        StorageValue(320, device=1),
        StorageValue(64),
        StorageValue(64, device=1),
    ]
    steps = [
        CallEffects((0,), (1,)),
        CallEffects((1,), (2,)),
        CallEffects((2,), (3,)),
        CallEffects((3,), (4,)),
        CallEffects((4,), (0,)),
    ]
    plan = plan_memory(values, steps[:4], outputs=[])
    assert plan.arenas == (64, 960) and plan.arena_size == 1024 and plan.bound == 1024
    assert [(r.space, r.index) for r in plan.refs] == [("input", 0), *(("arena", d) for d in (1, 1, 0, 1))]
