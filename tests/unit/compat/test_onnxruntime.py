"""Usual code for ONNX Runtime, on the look-alike: what it does, and what it refuses."""

from __future__ import annotations

import logging
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
import tilewright.compat.onnxruntime as ort
from tilewright.support.errors import InputError, UsageError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """y = -x and z = x + x for x: f32[n, 3], with metadata."""
    x, y, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xyz")
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Add", ["x", "x"], ["z"])]
    graph = helper.make_graph(nodes, "net", [x], [y, z], doc_string="two outputs")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name="me")
    model.model_version = 7
    helper.set_model_props(model, {"classes": "cat,dog"})
    file = tmp_path_factory.mktemp("ort") / "m.onnx"
    onnx.save(model, file)
    return file


@pytest.fixture(scope="module")
def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


X = np.array([[1, -2, 3]], np.float32)


def test_the_usual_beginning(path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads, options.inter_op_num_threads = 1, 1
    options.enable_mem_pattern = options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    session = ort.InferenceSession(path, sess_options=options, providers=ort.get_available_providers())
    name = session.get_inputs()[0].name
    (y,) = session.run([session.get_outputs()[0].name], {name: X})
    np.testing.assert_array_equal(y, -X)
    assert session.get_session_options() is options and session.get_providers() == ["CPUExecutionProvider"]
    assert logging.getLogger("tilewright").level == logging.ERROR
    logging.getLogger("tilewright").setLevel(logging.NOTSET)


def test_run_options_and_versions(session):
    run = ort.RunOptions()
    run.log_severity_level, run.only_execute_path_to_fetches = 2, True
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert len(session.run(None, {"x": X}, run)) == 2
    run.terminate = True
    with pytest.raises(UsageError, match="terminate"):
        session.run(None, {"x": X}, run)
    assert ort.__version__ == ort.get_version_string() == tw.__version__ and ort.get_device() == "CPU"
    assert (ort.GraphOptimizationLevel.ORT_ENABLE_ALL.name, ort.ExecutionMode(1).name) == (
        "ORT_ENABLE_ALL",
        "ORT_PARALLEL",
    )
    ort.disable_telemetry_events()


def test_metadata(session):
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.version) == ("me", "net", 7)
    assert meta.custom_metadata_map == {"classes": "cat,dog"} and meta.graph_description == "two outputs"


def test_values(session):
    value = ort.OrtValue.ortvalue_from_numpy(X.copy())
    assert (value.shape(), value.data_type(), value.device_name()) == ([1, 3], "tensor(float)", "cpu")
    assert value.element_type() == TensorProto.FLOAT and value.is_tensor() and value.has_value()
    y, z = session.run_with_ort_values(None, {"x": value})
    np.testing.assert_array_equal(y.numpy(), -X)
    value.update_inplace(2 * X)
    np.testing.assert_array_equal(session.run(["z"], {"x": value})[0], 4 * X)
    with pytest.raises(InputError, match="the value is float32"):
        value.update_inplace(np.zeros((2, 3), np.float32))
    made = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    assert made.shape() == [2, 3] and made.tensor_size_in_bytes() == 24
    assert ort.OrtValue.ortvalue_from_shape_and_type([1], TensorProto.INT64).data_type() == "tensor(int64)"
    assert not z.is_tensor_sequence()


def test_binding(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * X)
    out = np.zeros((1, 3), np.float32)
    binding.clear_binding_outputs()
    binding.bind_input("x", "cpu", 0, np.float32, (1, 3), X.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, (1, 3), out.ctypes.data)
    held = ort.OrtValue.ortvalue_from_shape_and_type([1, 3])
    binding.bind_ortvalue_output("z", held)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(out, -X)
    np.testing.assert_array_equal(held.numpy(), 2 * X)
    assert [v.shape() for v in binding.get_outputs()] == [[1, 3], [1, 3]]
    with pytest.raises(InputError, match="no input 'w'"):
        binding.bind_cpu_input("w", X)
    with pytest.raises(UsageError, match="no output 'w'"):
        binding.bind_output("w")
    with pytest.raises(UsageError, match="no device 'cuda'"):
        binding.bind_output("y", "cuda")


def test_async(session):
    done, got = threading.Event(), []
    session.run_async(["y"], {"x": X}, lambda *told: (got.append(told), done.set()), "mine")
    assert done.wait(300)
    ((results, mine, error),) = got
    np.testing.assert_array_equal(results[0], -X)
    assert (mine, error) == ("mine", "")


def test_packages_and_free_dimensions(path, tmp_path):
    for name, inputs, shape in (("fixed", {"x": (1, 3)}, [1, 3]), ("open", None, ["n", 3])):
        tw.compile(path, threads=1, inputs=inputs).save(tmp_path / f"{name}.tw")
        session = ort.InferenceSession(str(tmp_path / f"{name}.tw"))
        assert session.get_inputs() == [ort.NodeArg("x", "tensor(float)", shape)]
        np.testing.assert_array_equal(session.run(["y"], {"x": X})[0], -X)
        assert session.get_modelmeta().producer_name == "tilewright"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 1)
    session = ort.InferenceSession(path, options)
    assert [i.shape for i in session.get_inputs()] == [[1, 3]]
    with pytest.raises(InputError):
        session.run(None, {"x": np.zeros((2, 3), np.float32)})


def test_providers(path, session):
    with pytest.warns(UserWarning, match="CUDAExecutionProvider are not available"):
        providers = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
        ort.InferenceSession(path, providers=providers)
    for call in (lambda p: ort.InferenceSession(path, providers=p), session.set_providers):
        with pytest.raises(UsageError, match="'TensorrtExecutionProvider' is not available"):
            call(["TensorrtExecutionProvider"])


def test_what_is_refused(path, session):
    for name, value in (("enable_profiling", True), ("optimized_model_filepath", "o.onnx"), ("log_severity_level", 9)):
        options = ort.SessionOptions()
        setattr(options, name, value)
        with pytest.raises(UsageError):
            ort.InferenceSession(path, options)
    with pytest.raises(UsageError, match="custom operators"):
        ort.SessionOptions().register_custom_ops_library("ops.so")
    with pytest.raises(AttributeError):
        ort.SessionOptions().graph_optimisation_level = 1
    with pytest.raises(TypeError):
        ort.InferenceSession(path, no_such_option=1)
    with pytest.raises(UsageError, match="no output 'w'"):
        session.run(["w"], {"x": X})
    with pytest.raises(UsageError, match="profiles"):
        session.end_profiling()
    with pytest.raises(UsageError, match="no configuration entry"):
        ort.RunOptions().get_run_config_entry("absent")
