"""Names of dimensions are any text: no parser reads them, in no formula of a program, a package or a report."""

import numpy as np
import pytest
from onnx import TensorProto, helper, save

import tilewright as tw
from tilewright.cli import main

#: one name each for Python's parser, for which the first two are one, and the others no names
NAMES = ("s", "\u017f", "min", "and", "past-len", "a*b // d0", "d0")


def model():
    """Each output joins two neighbours: its size is the sum of theirs."""
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [n]) for i, n in enumerate(NAMES)]
    pairs = [(f"x{i}", f"x{(i + 1) % len(NAMES)}") for i in range(len(NAMES))]
    nodes = [helper.make_node("Concat", pair, [f"y{i}"], axis=0) for i, pair in enumerate(pairs)]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [None]) for i in range(len(NAMES))]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def check(run):
    xs = [np.full(5 * i % 7 + 1, i, np.float32) for i in range(len(NAMES))]
    for i, y in enumerate(run(*xs)):
        np.testing.assert_array_equal(y, np.concatenate([xs[i], xs[(i + 1) % len(NAMES)]]))


@pytest.fixture(scope="module")
def ranges():
    return {f"x{i}": (tw.Dim(n, 1, 16),) for i, n in enumerate(NAMES)}


def test_a_program_for_all_sizes(ranges, tmp_path):
    run = tw.compile(model(), inputs=ranges, threads=1)
    check(run)
    assert run.outputs[0].shape == ("(s + \u017f)",) and run.outputs[3].shape == ("(and + past-len)",)
    assert "(past-len + a*b // d0)" in run.explain()
    run.save(tmp_path / "m.tw")
    check(tw.load(tmp_path / "m.tw"))
    with pytest.raises(tw.errors.InputError, match="past-len is 17"):
        run(*[np.zeros(17 if n == "past-len" else 2, np.float32) for n in NAMES])


def test_c_source_has_names_of_its_own(ranges, tmp_path):
    run = tw.compile(model(), inputs=ranges, threads=1, target="c")
    run.export(tmp_path)
    header = (tmp_path / "model.h").read_text()
    assert "int32_t past_len" in header and "int32_t a_b_d0" in header
    check(run)


def test_the_command_line(tmp_path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch size"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch size"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--shape", "x=batch size:1..9", "--threads", "1"]) == 0
