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
from tilewright.driver import compiler
from tilewright.driver import out_of_process as apart
from tilewright.driver import package_cache as kept
from tilewright.driver.request import CompileRequest
from tilewright.frontends.onnx import registry
from tilewright.runtime.dynamic import DynamicExecutable
from tilewright.schedule import rules
from tilewright.support import persistent_process
from tilewright.support.errors import CompileError, ModelError, UnsupportedError
from tilewright.support.lazy_array import LazyArray
from tilewright.support.options import Options
from tilewright.targets.cpu.description import host

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


def refuse(*_):
    raise AssertionError("compiled again")


@pytest.fixture
def no_compilation(path, monkeypatch):
    monkeypatch.setattr(compiler, "_run_stage", refuse)
    monkeypatch.setattr(apart, "_ask", refuse)


def check(model, weight=WEIGHT):
    np.testing.assert_allclose(model(X)[0], X @ weight, rtol=1e-5, atol=1e-5)


def packages(path):
    return sorted((path.parent / "cache" / "packages").glob("*.tw"))


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
assert not {{"torch_mlir", "onnx", "tilewright.driver.compiler"}} & set(sys.modules), sorted(sys.modules)
assert targets(sys.modules) == {{"cpu"}}
assert not {{"fractions", "html", "difflib", "tilewright.schedule.nest", "tilewright.tensor"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", TARGETS + code], check=True, timeout=300)


#: the targets whose folders were imported
TARGETS = """
def targets(modules):
    import os, tilewright.targets as all
    folders = set(os.listdir(all.__path__[0]))
    return {m.split(".")[2] for m in modules if m.startswith("tilewright.targets.")} & folders
"""


def test_a_compilation_imports_what_it_asks_for(path):
    """The other targets, rules for GPUs, the tuner and its database, other front ends' libraries: it does not."""
    code = f"""
import os, sys, tilewright
os.environ["TILEWRIGHT_COMPILE"] = "inprocess"
tilewright.compile({str(path)!r}, cache=False, threads=1, target="cpu")
assert targets(sys.modules) <= {{"cpu", "multi_device", "mcu", "wasm"}}, targets(sys.modules)
gpu = {{m for m in sys.modules if m.startswith("tilewright.schedule.rules.gpu.")}}
assert {{m.rpartition(".")[2] for m in gpu}} <= {{"thread_binding", "attention_operands"}}, gpu
others = ("tune", "lang", "report", "compat", "cli", "quantize", "train", "distributed", "llm")
assert not {{m for m in sys.modules if m.split(".")[:2] in [["tilewright", o] for o in others]}}
assert not {{"torch", "jax", "sqlite3"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", TARGETS + code], check=True, timeout=300)


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


def test_of_models_with_open_shapes_the_program_for_all_sizes_is_kept(path, monkeypatch):
    before = packages(path)
    onnx.save(make_model(rows="n"), path)
    for i in range(2):
        if i:  # known by now
            monkeypatch.setattr(apart, "_ask", refuse)
        model = tw.compile(path)
        assert isinstance(model, DynamicExecutable)
        check(model)
    assert [p.suffix for p in packages(path) if p not in before] == [".tw"]
    monkeypatch.undo()
    check(tw.compile(path, inputs={"x": (3, 4)}))


def test_the_bound(path, monkeypatch):
    size = packages(path)[0].stat().st_size
    monkeypatch.setenv("TILEWRIGHT_PACKAGES_SIZE", str(int(2.5 * size)))
    os.utime(packages(path)[0], (0, 0))
    for factor in (2, 3):
        onnx.save(make_model(factor * WEIGHT), path)
        check(tw.compile(path), factor * WEIGHT)
    assert len(packages(path)) == 2
    assert all(p.stat().st_mtime > 0 for p in packages(path))
    for limit, left in (("0", 2), ("4000", 0)):
        monkeypatch.setenv("TILEWRIGHT_PACKAGES_SIZE", limit)
        onnx.save(make_model(5 * WEIGHT), path)
        check(tw.compile(path), 5 * WEIGHT)
        assert len(packages(path)) == left


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_no_error(path):
    folder = path.parent / "cache" / "packages"
    folder.chmod(0o500)
    onnx.save(make_model(2 * WEIGHT), path)
    check(tw.compile(path), 2 * WEIGHT)
    folder.chmod(0o700)


# ---- in another process ----


def test_the_first_time_it_is_compiled_in_another_process(path):
    onnx.save(make_model(2 * WEIGHT), path)
    code = f"""
import sys, tilewright
tilewright.compile({str(path)!r})
assert not {{"torch_mlir", "onnx", "llvmlite", "tilewright.driver.compiler"}} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    assert len(packages(path)) == 2


def test_here_on_request(path, monkeypatch):
    onnx.save(make_model(2 * WEIGHT), path)
    monkeypatch.setattr(apart, "_ask", refuse)
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    check(tw.compile(path), 2 * WEIGHT)
    assert len(packages(path)) == 2


def test_an_interrupted_process_leaves_nothing(path, monkeypatch):
    """It is killed wherever it is, perhaps while it writes the package."""
    onnx.save(make_model(2 * WEIGHT), path)
    cache = path.parent / "cache"
    before = sorted(p for p in cache.rglob("*") if p.is_file())
    folder = str(cache / "packages")
    writes = (
        f"import os, time; from tilewright.support.files import replacing\nwith replacing({folder!r} + '/x.tw') as f:\n"
        " os.write(1, b'.'); time.sleep(60)"
    )
    monkeypatch.setattr(apart, "_CALL", writes)

    def interrupted(stream):
        stream.read(1)
        assert list(cache.rglob("*.tmp"))
        raise KeyboardInterrupt

    monkeypatch.setattr(apart.persistent_process, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tw.compile(path)
    assert sorted(p for p in cache.rglob("*") if p.is_file()) == before


def test_two_compilations_use_one_process_each_with_its_own_environment(path, monkeypatch):
    child, _ = apart.persistent_process._kept[apart._CALL]
    for name in "ab":
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(path.parent / name))
        check(tw.compile(path))
        assert list((path.parent / name / "packages").iterdir())
    after, _ = apart.persistent_process._kept[apart._CALL]
    assert after is child and child.poll() is None


def test_errors_come_back(path):
    model = make_model(2 * WEIGHT)
    model.graph.node[0].op_type = "Nothing"
    onnx.save(model, path)
    with pytest.raises(UnsupportedError, match="Nothing") as e:
        tw.compile(path)
    assert e.value.stage == "import"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError):
        tw.compile(path)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os._exit(3)", "code 3"),
        (
            "from tilewright.driver import compiler, out_of_process as o; compiler.run = None; o.serve()",
            "TypeError",
        ),
    ],
    ids=["signal", "code", "exception"],
)
def test_faults_are_reported(path, monkeypatch, capfd, fault, message):
    onnx.save(make_model(2 * WEIGHT), path)
    monkeypatch.setattr(apart, "_CALL", fault)
    with pytest.raises(CompileError, match=message) as e:
        tw.compile(path)
    assert "inprocess" in e.value.hint
    assert len(packages(path)) == 1
    assert ("Traceback" in capfd.readouterr().err) == (message == "TypeError")


def test_where_no_process_can_be_started(path, monkeypatch):
    onnx.save(make_model(2 * WEIGHT), path)
    monkeypatch.setattr(sys, "executable", str(path.parent / "nothing"))
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    persistent_process.close()
    entry = kept.CacheEntry.of(path, Options())
    request = CompileRequest(path, Options())
    assert apart._ask(entry, request) is False
    monkeypatch.setattr(sys, "executable", "")
    assert apart._ask(entry, request) is False


def test_weights_that_are_only_written_are_packed_as_they_are_written(path):
    """They lie in the file as a compilation in this process lays them out, and take no memory before."""
    entry = kept.CacheEntry.of(path, Options())
    state, package = compiler.compile_state(path, keep=False, unloaded=True)
    lazy = [c for c in package.constants if isinstance(c, LazyArray)]
    assert lazy and entry.write(package, state.files)
    written, (_, loaded) = entry.load(written=True), compiler.compile_state(path)
    for a, b in zip(written.constants, loaded.package.constants, strict=True):
        np.testing.assert_array_equal(a, b)
    check(tw.compile(path))
