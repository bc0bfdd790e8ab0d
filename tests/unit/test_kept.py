"""A model file that was compiled before is loaded from the packages kept; whatever differs is compiled."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import compiler, kept
from tilewright.frontends.onnx import registry
from tilewright.runtime.dynamic import DynamicExecutable
from tilewright.schedule import rules
from tilewright.targets.cpu.host import host

WEIGHT = np.arange(2048, dtype=np.float32).reshape(4, 512) / 512
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def make_model(weight=WEIGHT, rows=3):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, weight.shape[1]])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "mm")
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A model file that was compiled once, with an empty cache."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_THREADS", "1")
    path = tmp_path / "model.onnx"
    onnx.save(make_model(), path)
    check(tw.compile(path))
    return path


@pytest.fixture
def no_compilation(path, monkeypatch):
    def refuse(*_):
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_run_stage", refuse)


def check(model, weight=WEIGHT):
    np.testing.assert_allclose(model(X)[0], X @ weight, rtol=1e-5, atol=1e-5)


def packages(path):
    return sorted((path.parent / "cache" / "packages").iterdir())


def test_the_second_time_it_is_loaded(path, no_compilation):
    again = tw.compile(path)
    check(again)
    check(tw.compile(str(path), jobs=1))
    assert again.package.report["model"] == "model"
    assert "matmul" in again.explain()


def test_loading_needs_no_compiler(path):
    code = f"""
import sys, numpy, tilewright
tilewright.compile({str(path)!r})
assert not {{"torch_mlir", "onnx", "tilewright.compiler"}} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    "options",
    [{"threads": 2}, {"cache": False}, {"winograd": False}, {"verify": True}, {"precision": "bf16"}, {"time": True},
     {"stop_after": "fuse"}, {"arena_limit": 1 << 20}, {"inputs": {"x": (3, 4)}}],
    ids=lambda o: next(iter(o)),
)  # fmt: skip
def test_other_options_compile(path, no_compilation, options):
    with pytest.raises(AssertionError, match="compiled again"):
        tw.compile(path, **options)


def test_another_model_in_the_file(path):
    onnx.save(make_model(2 * WEIGHT), path)
    check(tw.compile(path), 2 * WEIGHT)
    assert len(packages(path)) == 2


def test_other_machines_versions_and_sources_compile(path, no_compilation, monkeypatch):
    for name, changed in (("source_digest", lambda: "x"), ("_versions", lambda: ("onnx 0",))):
        with monkeypatch.context() as m:
            m.setattr(kept, name, changed)
            with pytest.raises(AssertionError, match="compiled again"):
                tw.compile(path)
    other = replace(host(), l2_bytes=host().l2_bytes * 2)
    monkeypatch.setattr("tilewright.targets.cpu.CpuTarget.describe", lambda _: other)
    with pytest.raises(AssertionError, match="compiled again"):
        tw.compile(path)


def test_a_changed_tuning_database_compiles(path, no_compilation):
    (path.parent / "cache" / "tuning.sqlite").write_bytes(b"something")
    with pytest.raises(AssertionError, match="compiled again"):
        tw.compile(path)


def test_what_others_add_compiles(path, no_compilation, monkeypatch):
    monkeypatch.setitem(registry._FUNCTIONS, ("mine", "Op"), {1: check})
    with pytest.raises(AssertionError, match="compiled again"):
        tw.compile(path)
    monkeypatch.delitem(registry._FUNCTIONS, ("mine", "Op"))
    check(tw.compile(path))
    monkeypatch.setattr(rules, "all_ours", lambda: False)
    with pytest.raises(AssertionError, match="compiled again"):
        tw.compile(path)


@pytest.mark.parametrize("damage", ["truncated", "weights", "no package"])
def test_damaged_packages_are_made_anew(path, damage):
    (package,) = packages(path)
    data = bytearray(package.read_bytes())
    if damage == "weights":
        data[data.index(WEIGHT[0, :8].tobytes())] ^= 1
    package.write_bytes({"truncated": data[:5000], "weights": data, "no package": b"x" * 9000}[damage])
    check(tw.compile(path))
    assert packages(path) == [package]
    check(tw.load(package))


def test_data_files_beside_the_model(path):
    def save(folder, weight):
        folder.mkdir(exist_ok=True)
        (folder / "w.bin").unlink(missing_ok=True)  # `save` would append to it
        onnx.save(
            make_model(weight), folder / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
        )
        return folder / "model.onnx"

    one = save(path.parent / "one", WEIGHT)
    check(tw.compile(one))
    check(tw.compile(one))
    before = one.read_bytes()
    save(path.parent / "one", 2 * WEIGHT)
    assert one.read_bytes() == before
    check(tw.compile(one), 2 * WEIGHT)
    two = save(path.parent / "two", 3 * WEIGHT)
    assert two.read_bytes() == before
    check(tw.compile(two), 3 * WEIGHT)
    (path.parent / "two" / "w.bin").unlink()
    with pytest.raises(tw.TilewrightError, match=r"w\.bin"):
        tw.compile(two)


def test_models_with_open_shapes_are_not_kept(path):
    onnx.save(make_model(rows="n"), path)
    for _ in range(2):
        model = tw.compile(path)
        assert isinstance(model, DynamicExecutable)
        check(model)
    assert len(packages(path)) == 1
    check(tw.compile(path, inputs={"x": (3, 4)}))
    assert len(packages(path)) == 2


def test_the_bound(path, monkeypatch):
    size = packages(path)[0].stat().st_size
    monkeypatch.setenv("TILEWRIGHT_PACKAGES_SIZE", str(int(2.5 * size)))
    os.utime(packages(path)[0], (0, 0))
    for factor in (2, 3):
        onnx.save(make_model(factor * WEIGHT), path)
        check(tw.compile(path), factor * WEIGHT)
    assert len(packages(path)) == 2
    assert all(p.stat().st_mtime > 0 for p in packages(path))
    for limit in ("0", "4000"):
        monkeypatch.setenv("TILEWRIGHT_PACKAGES_SIZE", limit)
        onnx.save(make_model(5 * WEIGHT), path)
        check(tw.compile(path), 5 * WEIGHT)
        assert len(packages(path)) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_no_error(path):
    folder = path.parent / "cache" / "packages"
    folder.chmod(0o500)
    onnx.save(make_model(2 * WEIGHT), path)
    check(tw.compile(path), 2 * WEIGHT)
    folder.chmod(0o700)
