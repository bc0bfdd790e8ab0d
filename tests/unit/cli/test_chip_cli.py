"""The command `chip`."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from tilewright.cli import main


@pytest.fixture
def dense(tmp_path):
    """The path of a product and a ReLU."""
    w = numpy_helper.from_array(np.ones((16, 12), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Relu", ["xw"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 12])
    graph = helper.make_graph(nodes, "dense", [x], [y], [w])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "dense.onnx")
    return str(tmp_path / "dense.onnx")


def test_layers_and_their_page(dense, tmp_path, capsys):
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    files = ["--html", str(page), "--svg", str(picture)]
    assert main(["chip", dense, "--target", "cpu+outer4", "--placed", *files]) == 0
    shown = capsys.readouterr().out
    assert "matmul_relu" in shown and "1,536" in shown  # 8 x 16 x 12 multiply-adds
    layer, *_, source = next(line for line in shown.splitlines() if line.startswith("matmul_relu")).split()
    assert f"{layer} runs on outer4" in shown, "one name in all tables"
    assert source.startswith("MatMul") or "Relu" in source, "and the nodes that it is made of"
    assert "<svg" in page.read_text(encoding="utf-8")
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_levels_of_a_chip(dense, capsys):
    assert main(["compile", dense, "--target", "outer4", "--stop-after", "emit"]) == 0
    assert '"outer4.mma"' in capsys.readouterr().out
    assert main(["compile", dense, "--target", "cpu+outer4", "--stop-after", "assemble"]) == 0
    assert "array: mma" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "message"),
    [("cpu", "has no chip"), ("cpu+systolic32", "runs nothing of the model"), ("cpu+nothing", "unknown target")],
)
def test_what_has_no_layers(dense, target, message, capsys):
    assert main(["chip", dense, "--target", target]) == 2
    assert message in capsys.readouterr().err
