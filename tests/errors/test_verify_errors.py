"""verify=True finds a wrong kernel, pass, lowering or memory plan, and says which."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.cli import main
from tilewright.driver import stages as pipeline
from tilewright.ir.context import parse
from tilewright.ops.activation import Relu
from tilewright.support.errors import CheckError
from tilewright.targets.cpu import device, stages


@pytest.fixture
def model():
    """softmax(relu(x @ w + b)) and its argmax: the contraction is one kernel, the softmax another."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((16, 8)), "b": random.standard_normal(8)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], name="/fc/Gemm"),
        helper.make_node("Relu", ["g"], ["r"], name="/fc/Relu"),
        helper.make_node("Softmax", ["r"], ["p"], name="/head/Softmax"),
        helper.make_node("ArgMax", ["p"], ["k"], name="/head/ArgMax", axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])
    p = helper.make_tensor_value_info("p", TensorProto.FLOAT, [4, 8])
    k = helper.make_tensor_value_info("k", TensorProto.INT64, [4, 1])
    constants = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "small", [x], [p, k], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def failure(model, **more) -> str:
    with pytest.raises(CheckError) as e:
        tw.compile(model, verify=True, **more)
    return str(e.value)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_right_compilation_says_what_was_checked(model, threads):
    executable = tw.compile(model, verify=True, threads=threads)
    (line,) = [n for n in executable.package.report["notes"] if n.startswith("verified ")]
    assert "kernel calls: largest error of a kernel " in line and "of an output " in line
    assert line in executable.explain()


@pytest.mark.parametrize(("operation", "names"), [("maximumf", "/fc/Gemm, /fc/Relu"), ("divf", "/head/Softmax")])
def test_a_wrong_kernel_is_named(model, operation, names, monkeypatch):
    """The emitter writes another operation than the IR says: the first kernel that is wrong is the one named."""
    original = stages.emit

    def emit(nest, *machine):
        made = original(nest, *machine)
        return dataclasses.replace(made, text=made.text.replace(f"arith.{operation}", "arith.addf"))

    monkeypatch.setattr(stages, "emit", emit)
    text = failure(model)
    assert "kernel " in text and " is wrong: it differs by " in text and "of its largest value from its IR" in text
    assert "stage: verify" in text
    assert f"operator: {names}" in text
    assert "kernels before it are right" in text


def test_a_wrong_level_2_pass(model, monkeypatch):
    def layout(state):
        pipeline._passes(state, pipeline.LAYOUT)
        state.module.module = parse(state.module.text().replace('"tw.relu"', '"tw.sigmoid"'))

    front = [
        s if s.name != "layout" else pipeline.Stage(s.name, s.level, s.doc, layout, s.show) for s in pipeline.FRONT
    ]
    monkeypatch.setattr(pipeline, "FRONT", tuple(front))
    text = failure(model)
    assert "output 'p' is wrong" in text and "and so does level 2 after its passes" in text


def test_a_wrong_lowering(model, monkeypatch):
    monkeypatch.setattr(Relu, "lower", lambda b, x: b.elementwise(lambda v: v + v, x))
    text = failure(model)
    assert "output 'p' is wrong" in text and "though every kernel does what its IR says" in text
    assert "the error is in the lowering to linalg or in fusion" in text


def test_a_wrong_memory_plan(model, monkeypatch):
    """The second kernel runs before the first has written what it reads."""
    build, empty = pipeline.build_program, device.aligned_empty

    def poisoned(nbytes, *align):  # else an arena that was used before may hold what is missing
        memory = empty(nbytes, *align)
        memory[:] = 0xFF
        return memory

    monkeypatch.setattr(device, "aligned_empty", poisoned)

    def wrong(graph, infos, **more):
        program, constants = build(graph, infos, **more)
        first, second, *rest = program.calls
        return dataclasses.replace(program, calls=(second, first, *rest)), constants

    monkeypatch.setattr(pipeline, "build_program", wrong)
    assert "though every kernel is right: the memory plan or the order of calls" in failure(model, threads=1)


def test_the_command_line(model, tmp_path, capsys, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert main(["compile", str(path), "--verify", "-o", str(tmp_path / "m.tw")]) == 0
    assert "verified " in capsys.readouterr().err
    monkeypatch.setattr(Relu, "lower", lambda b, x: b.elementwise(lambda v: v + v, x))
    assert main(["compile", str(path), "--verify", "-o", str(tmp_path / "n.tw")]) == 8
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: output 'p' is wrong")
    assert not (tmp_path / "n.tw").exists()
