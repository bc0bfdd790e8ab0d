"""Every way in which an ONNX model can be wrong: one clear error that names the place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import value

from tilewright.frontends.onnx import load
from tilewright.support.errors import InputError, ModelError, UnsupportedError

F = TensorProto.FLOAT


def make(nodes, inputs=None, outputs=None, opset=18, initializers=()):
    inputs = [value("x", [2, 3])] if inputs is None else inputs
    outputs = [value("y", None)] if outputs is None else outputs
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(operator, inputs, outputs=("y",), name="here", **attributes):
    return helper.make_node(operator, list(inputs), list(outputs), name, **attributes)


def refused(error, source, **kwargs) -> str:
    with pytest.raises(error) as caught:
        load(source, **kwargs)
    return str(caught.value)


# ---- files ----


@pytest.fixture
def good():
    weight = numpy_helper.from_array(np.ones((3, 400), np.float32), "w")
    return make([node("MatMul", ["x", "w"])], initializers=[weight])


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.97, 0.999])
def test_truncated_file(tmp_path, good, keep):
    data = good.SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(len(data) * keep)])
    message = refused(ModelError, path)
    assert "cut.onnx is not a valid ONNX file" in message
    assert "truncated" in message


@pytest.mark.parametrize("content", [b"PK\x03\x04 this is a zip", b"\xff" * 300, b"hello\n", bytes(range(256))])
def test_foreign_file(tmp_path, content):
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    assert "other.onnx is not a valid ONNX file" in refused(ModelError, path)


def test_missing_file_and_folder(tmp_path):
    assert "cannot read" in refused(ModelError, tmp_path / "absent.onnx")
    assert "cannot read" in refused(ModelError, tmp_path)


def test_wrong_kind_of_source():
    assert "a path, bytes or a ModelProto, not int" in refused(ModelError, 5)


def external(tmp_path, **entries):
    tensor = TensorProto(name="w", data_type=F, dims=[3, 4], data_location=TensorProto.EXTERNAL)
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    path = tmp_path / "net" / "m.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(make([node("MatMul", ["x", "w"])], initializers=[tensor]).SerializeToString())
    return path


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin", "", "C:\\data.bin", "..\\secret.bin"]
)
def test_external_data_outside_of_the_folder(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    message = refused(ModelError, external(tmp_path, location=location))
    assert "'w'" in message
    assert "not a path inside of the model's folder" in message or "cannot read" in message


def test_external_data_through_a_link(tmp_path):
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    path = external(tmp_path, location="w.bin")
    (path.parent / "w.bin").symlink_to(tmp_path / "secret.bin")
    assert "links out of the model's folder" in refused(ModelError, path)


def test_external_data_missing_or_short(tmp_path):
    path = external(tmp_path, location="w.bin", offset="16", length="48")
    assert "cannot read" in refused(ModelError, path)
    (path.parent / "w.bin").write_bytes(bytes(40))
    assert "has 40 bytes, the model needs 64" in refused(ModelError, path)


def test_external_data_of_a_proto(tmp_path):
    proto = onnx.load(external(tmp_path, location="w.bin"), load_external_data=False)
    assert "load the model from its path" in refused(ModelError, proto)


def test_data_of_the_wrong_size():
    tensor = TensorProto(name="w", data_type=F, dims=[3, 400], raw_data=bytes(100))
    message = refused(ModelError, make([node("MatMul", ["x", "w"])], initializers=[tensor]).SerializeToString())
    assert "tensor 'w' is damaged: 100 bytes of data" in message


# ---- graphs ----


def test_undefined_name():
    message = refused(ModelError, make([node("Add", ["x", "w"])]))
    assert "'w' is not an input, an initializer or the output of a node" in message
    assert 'Add "here"' in message


def test_cycle():
    nodes = [node("Add", ["x", "b"], ["a"], "one"), node("Relu", ["a"], ["b"], "two"), node("Relu", ["b"])]
    message = refused(ModelError, make(nodes))
    assert "'b' is used before the node that defines it" in message
    assert 'Add "one"' in message


def test_duplicate_names():
    assert "'y' of an output of Exp" in refused(ModelError, make([node("Relu", ["x"]), node("Exp", ["x"], name="two")]))
    twice = [numpy_helper.from_array(np.ones(3, np.float32), "w")] * 2
    assert "two initializers are named 'w'" in refused(ModelError, make([node("Add", ["x", "w"])], initializers=twice))
    inputs = [value("x", [2]), value("x", [2])]
    assert "two inputs are named 'x'" in refused(ModelError, make([node("Relu", ["x"])], inputs))


def test_missing_output():
    assert "'y' is not an input" in refused(ModelError, make([node("Relu", ["x"], ["z"])]))


def test_wrong_attribute():
    message = refused(ModelError, make([node("Softmax", ["x"], axis=1.5)]))
    assert "axis" in message and 'Softmax "here"' in message
    message = refused(ModelError, make([node("Softmax", ["x"], colour=1)]))
    assert "colour" in message and 'Softmax "here"' in message


def test_missing_input_and_attribute():
    assert "input 'B' is missing" in refused(ModelError, make([node("Add", ["x"])]))
    message = refused(ModelError, make([node("Concat", ["x", "x"])]))
    assert "axis" in message and 'Concat "here"' in message


def test_shapes_that_do_not_fit():
    weight = numpy_helper.from_array(np.ones((4, 5), np.float32), "w")
    message = refused(ModelError, make([node("MatMul", ["x", "w"])], initializers=[weight]))
    assert "inner dimensions differ: 3 in tensor<2x3xf32> and 4 in tensor<4x5xf32>" in message
    assert 'MatMul "here"' in message


def test_dtypes_that_do_not_fit():
    weight = numpy_helper.from_array(np.ones(3, np.int64), "w")
    message = refused(ModelError, make([node("Add", ["x", "w"])], initializers=[weight]))
    assert "different dtypes" in message and 'Add "here"' in message


def test_a_function_that_calls_itself():
    function = helper.make_function(
        "local", "F", ["a"], ["b"], [node("F", ["a"], ["b"], domain="local")], [helper.make_opsetid("local", 1)]
    )
    model = make([node("F", ["x"], domain="local")])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    assert "functions call each other more than" in refused(ModelError, model)


# ---- inputs ----


def test_open_dimensions():
    inputs = [value("ids", ["batch", 4]), value("mask", ["batch", None])]
    message = refused(ModelError, make([node("Add", ["ids", "mask"])], inputs))
    assert "ids: [batch, 4]; mask: [batch, ?]" in message
    assert "inputs={'ids': (1, ...)}" in message


def test_inputs_that_do_not_fit():
    model = make([node("Relu", ["x"])], [value("x", ["n", 3, "n"])])
    message = refused(InputError, model, inputs={"z": (1,)})
    assert "no input named 'z'" in message and "its inputs are x" in message
    assert "has 3 dimensions [n, 3, n], the given shape is (2,)" in refused(InputError, model, inputs={"x": (2,)})
    assert "dimension 1 of input 'x'" in refused(InputError, model, inputs={"x": (2, 4, 2)})
    assert "dimension 2 of input 'x'" in refused(InputError, model, inputs={"x": (2, 3, 5)})
    assert "negative" in refused(InputError, model, inputs={"x": (-2, 3, 2)})
    assert "a tuple of ints, not 'abc'" in refused(InputError, model, inputs={"x": "abc"})
    wrong = np.zeros((2, 3, 2), np.int64)
    assert "has dtype f32, the given array i64" in refused(InputError, model, inputs={"x": wrong})


# ---- what is not supported ----


def test_all_unsupported_operators_at_once():
    branch = helper.make_graph([node("Dizzle", ["x"], ["t"], "inside")], "b", [], [value("t", None)])
    other = helper.make_graph([node("Relu", ["x"], ["t"], "fine")], "o", [], [value("t", None)])
    nodes = [
        node("Frobnicate", ["x"], ["a"], "first"),
        node("Frobnicate", ["a"], ["b"], "second"),
        helper.make_node("Bogus", ["b"], ["c"], "third", domain="com.example"),
        node("If", ["c"], ["d"], "choice", then_branch=branch, else_branch=other),
        node("Relu", ["d"]),
    ]
    model = make(nodes)
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    message = refused(UnsupportedError, model)
    assert "net uses 3 operators that cannot be imported" in message
    assert "Frobnicate (opset 18): 2 nodes (first, second)" in message
    assert "com.example.Bogus (opset 1): 1 node (third)" in message
    assert "Dizzle (opset 18): 1 node (inside)" in message


def test_operator_unknown_to_onnx():
    assert "Rellu (opset 18): 1 node (here)" in refused(UnsupportedError, make([node("Rellu", ["x"])]))


@pytest.mark.parametrize("rows", [2, "n"])
def test_all_that_is_not_supported_is_listed_beside_an_input_of_strings(rows):
    nodes = [helper.make_node("Sinn", ["x"], ["t"]), helper.make_node("Rellu", ["t"], ["y"])]
    message = refused(UnsupportedError, make(nodes, [value("x", [rows], TensorProto.STRING)]))
    for part in ("uses 3 operators", "input: 1 node (x)", "Sinn (opset 18)", "Rellu (opset 18)"):
        assert part in message


def test_shape_from_data():
    inputs = [value("x", [2, 3]), value("s", [2], TensorProto.INT64)]
    message = refused(UnsupportedError, make([node("Reshape", ["x", "s"])], inputs))
    assert "shape is computed from the model's inputs, but has to be constant" in message


def test_types_that_tilewright_does_not_have():
    assert "input: 1 node (x): it has element type STRING" in refused(
        UnsupportedError, make([node("Identity", ["x"])], [value("x", [2], TensorProto.STRING)])
    )
    sequence = helper.make_tensor_sequence_value_info("x", F, None)
    assert "input 'x' is a sequence_type, not a tensor" in refused(
        UnsupportedError, make([node("Identity", ["x"])], [sequence])
    )
    assert "output 'y' is not a tensor" in refused(UnsupportedError, make([node("SequenceConstruct", ["x"])]))
