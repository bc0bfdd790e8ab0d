"""Front ends: how they are found, which takes a source, and what is said where none does."""

import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.errors import ModelError, UsageError
from tilewright.frontends import protocol
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.support import discovery


class Lines:
    """Every line is a unary operator."""

    name, doc = "lines", "a .lines file"

    def accepts(self, source):
        path = protocol.path_of(source)
        return path is not None and path.suffix == ".lines"

    def load(self, source, wanted):
        make = Maker([("x", Type((None, 4), "f32"))])
        value = make.inputs[0]
        for line in protocol.path_of(source).read_text().splitlines():
            value = make(line, value)
        return make.finish([("y", value)])


@pytest.fixture
def lines():
    front_end = Lines()
    protocol.register(front_end)
    yield front_end
    protocol._FRONT_ENDS.remove("lines")


def model():
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_listing_imports_nothing_that_reads():
    code = """
import sys
from tilewright.frontends import protocol
assert set(protocol.front_ends()) >= {"onnx", "mlir"}
for source in ("m.onnx", "m.mlir", "module {}", b"...", 3):
    [f.accepts(source) for f in protocol.front_ends().values()]
assert not {"torch_mlir", "onnx", "torch", "tilewright.ir.graph"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_who_takes_what(tmp_path):
    (tmp_path / "weights").write_bytes(model().SerializeToString())
    graph = tw.compile(model(), stop_after="import")
    taken = {
        "onnx": ["m.onnx", "M.ONNX", tmp_path / "weights", b"\x08\x08", b"", model()],
        "mlir": ["m.mlir", "m.mlirbc", "module {}", "x\ny", b"ML\xefR", graph, graph.module],
    }
    for name, sources in taken.items():
        assert [protocol.find(source).name for source in sources] == [name] * len(sources)


@pytest.mark.parametrize("source", [3, None, ["m.onnx"], "m.txt"])
def test_what_nobody_takes(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.txt").write_text("hello")
    with pytest.raises(ModelError if source == "m.txt" else UsageError, match="no front end takes") as e:
        tw.compile(source)
    for front_end in protocol.front_ends().values():
        assert f"{front_end.name}: {front_end.doc}" in e.value.hint


def test_missing_and_compiled_files(tmp_path):
    for name in ("m.onnx", "m.mlir", "m"):
        with pytest.raises(UsageError, match="there is no file"):
            tw.compile(tmp_path / name)
    with pytest.raises(UsageError, match="compiled already"):
        tw.compile(tmp_path / "m.tw")


def test_one_that_was_added(lines, tmp_path):
    path = tmp_path / "m.lines"
    path.write_text("neg\nrelu\n")
    x = np.array([[1, -2, 3, -4]], np.float32)
    run = tw.compile(path, threads=1)
    assert run.name == "m"
    np.testing.assert_array_equal(run(x)[0], [[0, 2, 0, 4]])
    run.save(tmp_path / "m.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "m.tw", threads=1)(np.tile(x, (3, 1)))[0], [[0, 2, 0, 4]] * 3)
    fixed = tw.compile(path, inputs={"x": (1, 4)}, stop_after="import")
    assert fixed.inputs() == [("x", Type((1, 4), "f32"))]
    with pytest.raises(UsageError, match="in ONNX models only"):
        tw.compile(path, inputs={"x": (1, 4)}, check_indices=True)


def test_names_are_taken_once(lines):
    protocol.register(lines)
    with pytest.raises(UsageError, match="'lines' already"):
        protocol.register(Lines())
    with pytest.raises(UsageError, match="no front end") as e:
        protocol.register(object())
    assert "accepts, load" in e.value.hint


def test_installed_ones(monkeypatch):
    class Entry:
        name, value = "lines", "package:FRONT_END"

        def __init__(self, loaded):
            self.load = lambda: loaded

    def install(loaded):
        entries = {"tilewright.frontends": [Entry(loaded)]}
        monkeypatch.setattr(discovery, "entry_points", lambda group: entries.get(group, []))
        monkeypatch.setattr(protocol._FRONT_ENDS, "_found", None)

    for loaded in (Lines(), sys.modules[__name__]):
        install(loaded)
        assert protocol.find("m.lines").name == "lines"
    install(3)
    with pytest.raises(UsageError, match="is no front end"):
        protocol.front_ends()


FRONT_END = Lines()


def test_saved_models_of_a_front_end_that_is_gone():
    from tilewright.runtime.parts import StoredSource

    with pytest.raises(UsageError, match="needs front end 'lines'"):
        protocol.restore(StoredSource("lines", b"", {}, []))
