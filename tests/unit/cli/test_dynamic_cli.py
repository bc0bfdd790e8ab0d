"""The command line on models with open shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.cli import main


@pytest.fixture
def model(tmp_path):
    """y = exp(x), and the positions of the numbers that are not zero."""
    nodes = [helper.make_node("Exp", ["x"], ["y"]), helper.make_node("NonZero", ["x"], ["at"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    outputs += [helper.make_tensor_value_info("at", TensorProto.INT64, [2, "k"])]
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    path = tmp_path / "exp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


def data(folder, n):
    np.savez(folder / f"in{n}.npz", x=np.eye(n, 3, dtype=np.float32))
    return str(folder / f"in{n}.npz")


def test_run_with_data(model, tmp_path, capsys):
    out = tmp_path / "out.npz"
    assert main(["run", str(model), "--input", data(tmp_path, 2), "--output", str(out), "--threads", "1"]) == 0
    assert "2x3" in capsys.readouterr().out
    with np.load(out) as found:
        np.testing.assert_allclose(found["y"], np.exp(np.eye(2, 3)), rtol=1e-6)
        assert found["at"].tolist() == [[0, 1], [0, 1]]


def test_run_needs_data_or_a_shape(model, capsys):
    assert main(["run", str(model)]) == 3
    said = capsys.readouterr().err
    assert "leaves the shape of 1 input open: x: [n, 3]" in said and "--input" in said and "--shape x=1x" in said
    assert main(["run", str(model), "--shape", "x=4x3", "--threads", "1"]) == 0
    assert "4x3" in capsys.readouterr().out


def test_package(model, tmp_path, capsys):
    package = str(tmp_path / "m.tw")
    assert main(["compile", str(model), "-o", package]) == 0
    for n in (2, 3):
        assert main(["run", package, "--input", data(tmp_path, n)]) == 0
        assert f"{n}x3" in capsys.readouterr().out
    assert main(["compile", str(model), "-o", package, "--shape", "x=2x3"]) == 0
    capsys.readouterr()
    assert main(["explain", package]) == 0
    assert "for x f32[2, 3]" in capsys.readouterr().out, "compiled ahead"
    assert main(["run", package, "--input", data(tmp_path, 3)]) == 5, "and fixed to this shape"


def test_buckets(tmp_path, capsys):
    """A package with a program for every bucket, which makes no others."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "e.onnx")
    package, out = str(tmp_path / "m.tw"), str(tmp_path / "out.npz")
    flags = ["--buckets", "n=2,4", "--pad", "x=-1", "--specialize", "never"]
    assert main(["compile", str(tmp_path / "e.onnx"), "-o", package, *flags]) == 0
    capsys.readouterr()
    assert main(["explain", package]) == 0
    said = capsys.readouterr().out
    assert "buckets n: 2, 4" in said and "2 parts" in said
    assert main(["run", package, "--input", data(tmp_path, 3), "--output", out]) == 0
    with np.load(out) as found:
        np.testing.assert_allclose(found["y"], np.exp(np.eye(3)), rtol=1e-6)
    assert main(["run", package, "--input", data(tmp_path, 5)]) == 5
    assert "above the largest bucket: those of n are 2, 4" in capsys.readouterr().err
    for wrong in (["--buckets", "n=2,x"], ["--pad", "x=one", "--buckets", "n=2"], ["--specialize", "later"]):
        assert main(["compile", str(tmp_path / "e.onnx"), "-o", package, *wrong]) == 2


def test_verify_checks_every_part(model):
    executable = tw.compile(model, verify=True, threads=1)
    executable(np.ones((2, 3), np.float32))
    notes = [n for _, _, p in executable.parts() if p.executable for n in p.executable.package.report["notes"]]
    assert any("verified" in n for n in notes)
