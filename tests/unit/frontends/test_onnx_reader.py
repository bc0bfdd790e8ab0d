"""Reading ONNX files: weights stay outside of the parsed message, in every form they are stored in."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reader import read
from tilewright.graph.interpret import interpret


def model(weight: np.ndarray, *, name="w", rows=2) -> onnx.ModelProto:
    """y = x @ w"""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, weight.shape[0]])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MatMul", ["x", name], ["y"], "product")
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, name)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture
def weight():
    return np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


def run(graph, weight):
    x = np.random.default_rng(1).standard_normal((2, weight.shape[0])).astype(np.float32)
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], x @ weight, rtol=1e-5)


def is_mapped(array: np.ndarray) -> bool:
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def test_weights_are_views_of_the_file(tmp_path, weight):
    path = tmp_path / "m.onnx"
    onnx.save(model(weight), path)
    read_model = read(path)
    assert not read_model.proto.graph.initializer[0].HasField("raw_data")
    graph = load(path)
    assert list(graph.constants) == ["w"]
    assert is_mapped(graph.constants["w"])
    run(graph, weight)


def test_bytes_and_proto(weight):
    proto = model(weight)
    run(load(proto.SerializeToString()), weight)
    run(load(proto), weight)


def test_external_data(tmp_path, weight):
    path = tmp_path / "m.onnx"
    onnx.save(model(weight), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = load(path)
    assert is_mapped(graph.constants["w"])
    run(graph, weight)


def test_external_data_of_a_linked_model(tmp_path, weight):
    """A cache that keeps models and their data as links into one folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    onnx.save(model(weight), blobs / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    for name in ("m.onnx", "w.bin"):
        (snapshot / name).symlink_to(blobs / name)
    run(load(snapshot / "m.onnx"), weight)


def test_more_than_two_gigabytes(tmp_path):
    """The wire format is walked: a (sparse) file larger than protobuf's limit imports without being read."""
    rows, columns = 1 << 16, (1 << 13) + 1  # 2.1 GB of float32
    small = model(np.zeros((1, 1), np.float32), rows=1)
    small.graph.input[0].type.tensor_type.shape.dim[1].dim_value = rows
    del small.graph.initializer[:]
    size = rows * columns * 4
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, columns]).SerializeToString()
    raw_header = bytes([9 << 3 | 2]) + varint(size)
    graph = small.graph.SerializeToString()
    small.ClearField("graph")
    entry = bytes([5 << 3 | 2]) + varint(len(tensor) + len(raw_header) + size)
    head = small.SerializeToString() + bytes([7 << 3 | 2])
    head += varint(len(graph) + len(entry) + len(tensor) + len(raw_header) + size) + graph + entry + tensor + raw_header
    path = tmp_path / "big.onnx"
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + size)
    loaded = load(path)
    assert loaded.constants["w"].shape == (rows, columns)
    assert loaded.outputs()[0][1].dims == (1, columns)


def varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "bool"])
@pytest.mark.parametrize("raw", [True, False])
def test_every_storage_of_tensors(dtype, raw):
    values = np.array([[0, 1, 2, 3], [5, 1, 0, 7]]).astype(dtype)
    element = helper.np_dtype_to_tensor_dtype(values.dtype)
    content = values.tobytes() if raw else values.reshape(-1).tolist()
    tensor = helper.make_tensor("c", element, values.shape, content, raw=raw)
    y = helper.make_tensor_value_info("y", element, [2, 4])
    graph = helper.make_graph([helper.make_node("Identity", ["c"], ["y"])], "g", [], [y], [tensor])
    out = interpret(load(helper.make_model(graph, ir_version=8)), {})["y"]
    assert out.dtype == values.dtype
    np.testing.assert_array_equal(out, values)


def test_unused_initializers_are_not_kept(weight):
    proto = model(weight)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((9, 9), np.float32), "unused"))
    assert list(load(proto).constants) == ["w"]


def test_initializers_that_are_inputs_too_are_constants(weight):
    proto = model(weight)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, list(weight.shape)))
    graph = load(proto)
    assert [name for name, _ in graph.inputs()] == ["x"]
    run(graph, weight)
