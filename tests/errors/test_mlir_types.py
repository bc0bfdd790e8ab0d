"""Types and ranks that no array has: one clear error each."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.cli import data
from tilewright.support.errors import ModelError, TilewrightError, UnsupportedError, UsageError

HUGE = "9223372036854775807"
TYPES = {
    f"tensor<{HUGE}x{HUGE}xf32>": "more than a machine can address",
    "tensor<4611686018427387904x4xf32>": "more than a machine can address",
    "tensor<4611686018427387904xf32>": "more than a machine can address",
    f"tensor<0x{HUGE}x{HUGE}xf32>": "more than a machine can address",
    f"tensor<?x{HUGE}x4xf32>": "more than a machine can address",
    f"tensor<{'1x' * 70}f32>": "a tensor of 70 dimensions",
    "tensor<4xi1000000>": "@main takes tensor<4xi1000000>",
    "tensor<4xi7>": "@main takes tensor<4xi7>",
    "tensor<4xindex>": "@main takes tensor<4xindex>",
    "tensor<4xcomplex<f32>>": "@main takes tensor<4xcomplex<f32>>",
    "tensor<4xvector<4xf32>>": "@main takes",
    "tensor<4xtf32>": "@main takes tensor<4xtf32>",
    "tensor<*xf32>": r"@main takes tensor<\*xf32>",
    "memref<4xf32>": "@main takes memref<4xf32>",
    "vector<4xf32>": "@main takes vector<4xf32>",
    "tuple<>": "@main takes tuple<>",
    "tuple<tensor<4xf32>, f32>": "@main takes tuple",
    "f32": "@main takes f32",
    "index": "@main takes index",
    "none": "@main takes none",
}


@pytest.mark.parametrize("kind", TYPES, ids=range(len(TYPES)))
@pytest.mark.parametrize("dialect", ["linalg", "stablehlo"])
def test_types_that_models_do_not_have(kind, dialect):
    other = "%c = stablehlo.constant dense<1> : tensor<i32>\n" if dialect == "stablehlo" else ""
    text = f"func.func @main(%a: {kind}) -> {kind} {{\n{other}return %a : {kind}\n}}"
    if dialect == "linalg":
        with pytest.raises((ModelError, UnsupportedError), match=TYPES[kind].replace("+", r"\+")):
            tw.compile(text, threads=1)
        return
    try:  # complex numbers are something there
        run = tw.compile(text, threads=1)
        assert "complex" in kind or "?" in kind, run
    except TilewrightError as e:
        assert "Error:" not in e.message


def test_a_function_without_a_body():
    with pytest.raises(ModelError, match="@main is declared and has no body"):
        tw.compile("func.func private @main(tensor<4xf32>) -> tensor<4xf32>\n", threads=1)


def onnx_model(nodes, shape, constants=()):
    x, y = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), helper.make_tensor_value_info("y", 1, None)
    made = [numpy_helper.from_array(np.array(a), n) for n, a in constants]
    graph = helper.make_graph(nodes, "g", [x], [y], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_ranks_that_arrays_do_not_have():
    relu = helper.make_node("Relu", ["r"], ["y"])
    for nodes, shape, constants in (
        ([helper.make_node("Relu", ["x"], ["y"])], [1] * 70, ()),
        ([helper.make_node("Reshape", ["x", "s"], ["r"]), relu], [4], [("s", [1] * 69 + [4])]),
        ([helper.make_node("Unsqueeze", ["x", "s"], ["r"]), relu], [4], [("s", list(range(69)))]),
    ):
        with pytest.raises(ModelError, match="a tensor of 70 dimensions, and arrays have"):
            tw.compile(onnx_model(nodes, shape, constants), threads=1)


def test_functions_of_one_name():
    model = onnx_model([helper.make_node("F", ["x"], ["y"], domain="d")], [3])
    model.opset_import.append(helper.make_opsetid("d", 1))
    for kind in ("Relu", "Neg"):
        body = [helper.make_node(kind, ["a"], ["b"])]
        model.functions.append(helper.make_function("d", "F", ["a"], ["b"], body, [helper.make_opsetid("", 18)]))
    with pytest.raises(ModelError, match="two functions are called 'F'"):
        tw.compile(model, threads=1)


def test_what_no_dimension_is_and_no_file_holds(tmp_path):
    model = onnx_model([helper.make_node("Relu", ["x"], ["y"])], ["b"])
    with pytest.raises(UsageError, match="expected a list of sizes"):
        tw.compile(model, buckets={"b": [2**70]}, threads=1)
    with pytest.raises(UsageError, match="an npz file has no name of 100,000 characters"):
        data.write_npz(tmp_path / "y.npz", {"y" * 100_000: np.zeros(1)})
    assert not list(tmp_path.iterdir())
