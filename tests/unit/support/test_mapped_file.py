"""Model files and packages that change while they are in use, and those that are not what they should be."""

import hashlib
import os
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.driver import compiler, stages
from tilewright.driver import out_of_process as apart
from tilewright.driver import package_cache as kept
from tilewright.support.errors import ModelError, PackageError, TilewrightError, UsageError
from tilewright.support.mapped_file import map_file

WEIGHT = np.arange(4096, dtype=np.float32).reshape(8, 512) / 4096
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
LONG_AGO = (10**9, 10**9)


def save(path, factor=1, rows=3, external=None):
    """y = x @ (factor * WEIGHT), relu; with `external` its weight in that file beside it. All have the same size."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 512])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "mm"), helper.make_node("Relu", ["h"], ["y"], "relu")]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(factor * WEIGHT, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    if external:
        (path.parent / external).unlink(missing_ok=True)  # `save` would append to it
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)
    os.utime(path.parent / (external or path.name), LONG_AGO)
    return path.parent / (external or path.name)


def check(model, factor=1, x=X):
    np.testing.assert_allclose(model(x)[0], np.maximum(x @ (factor * WEIGHT), 0), rtol=1e-5, atol=1e-5)


def overwrite(path, by):
    """As `cp` does: the same file gets other bytes."""
    with open(path, "r+b") as f:
        f.write(by.read_bytes())
        f.truncate()


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_THREADS", "1")
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")


# ---- the cache of packages -----------------------------------------------------------------------------------------

#: what the process that compiles does: while it reads, another file lies in the place of the real one
SWAP = """
import os
from tilewright.driver import compiler
real = compiler.compile_state
def swapped(source, **options):
    os.rename({path!r}, {path!r} + ".old"); os.rename({path!r} + ".other", {path!r})
    try:
        return real(source, **options)
    finally:
        os.rename({path!r}, {path!r} + ".other"); os.rename({path!r} + ".old", {path!r})
compiler.compile_state = swapped
"""


@pytest.mark.parametrize("where", ["here", "apart"])
@pytest.mark.parametrize("external", [None, "w.bin"], ids=["the model", "its data"])
def test_a_file_that_is_swapped_while_it_is_compiled_poisons_no_cache(tmp_path, monkeypatch, where, external):
    file = save(tmp_path / "m.onnx", 2, external=external)
    file.rename(tmp_path / "other")
    assert save(tmp_path / "m.onnx", external=external) == file
    (tmp_path / "other").rename(f"{file}.other")
    code = SWAP.format(path=str(file))
    with monkeypatch.context() as patch:
        if where == "here":
            patch.setenv("TILEWRIGHT_COMPILE", "inprocess")
            patch.setattr(compiler, "compile_state", compiler.compile_state)
            exec(code, {})
        else:
            patch.setattr(apart, "_CALL", f"{code}\n{apart._CALL}")
        tw.compile(tmp_path / "m.onnx")
    for _ in range(2):
        check(tw.compile(tmp_path / "m.onnx"))
    os.replace(f"{file}.other", file)
    check(tw.compile(tmp_path / "m.onnx"), 2)


def test_what_is_overwritten_while_it_is_compiled_is_an_error(tmp_path, monkeypatch):
    path, other = save(tmp_path / "m.onnx"), save(tmp_path / "other.onnx", 2)
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    real = stages.lower

    def lower(*arguments):
        overwrite(path, other)
        return real(*arguments)

    monkeypatch.setattr(stages, "lower", lower)
    with pytest.raises(ModelError, match=r"m\.onnx was overwritten while it is in use") as e:
        tw.compile(path)
    assert "rename" in e.value.hint
    assert not list((tmp_path / "cache").glob("packages/*"))


def test_what_is_overwritten_before_it_is_stored_is_not_stored(tmp_path, monkeypatch):
    path, other = save(tmp_path / "m.onnx"), save(tmp_path / "other.onnx", 2)
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    real = kept.CacheEntry.write

    def write(*arguments):
        overwrite(path, other)
        return real(*arguments)

    monkeypatch.setattr(kept.CacheEntry, "write", write)
    tw.compile(path)
    assert not list((tmp_path / "cache").glob("packages/*.tw"))


# ---- models with open shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [None, "w.bin"], ids=["the model", "its data"])
def test_a_live_model_whose_file_is_overwritten_makes_no_new_part(tmp_path, external):
    (tmp_path / "new").mkdir()
    file, other = (save(p / "m.onnx", f, "n", external) for p, f in ((tmp_path, 1), (tmp_path / "new", 2)))
    model = tw.compile(tmp_path / "m.onnx", specialize="now")
    check(model)
    os.replace(other, file)  # replaced: what has it open keeps the old content
    check(model, x=X[:2])
    model = tw.compile(tmp_path / "m.onnx", specialize="now")
    check(model, 2)
    overwrite(file, save(tmp_path / "new" / "m.onnx", 3, "n", external))
    for again in (lambda: model(X[:1]), lambda: model.specialize({"x": (5, 8)}), lambda: model.save(tmp_path / "m.tw")):
        with pytest.raises(ModelError, match="was overwritten while it is in use"):
            again()
    assert not (tmp_path / "m.tw").exists()


# ---- packages ------------------------------------------------------------------------------------------------------


@pytest.fixture
def packages(tmp_path):
    """A function that saves models with one and two times the weights to files."""

    def make(rows):
        for name, factor in (("one", 1), ("two", 2)):
            model = tw.compile(save(tmp_path / f"{name}.onnx", factor, rows), specialize="now")
            check(model, factor)
            model.save(tmp_path / f"{name}.tw")
            os.utime(tmp_path / f"{name}.tw", LONG_AGO)
        return tmp_path / "one.tw", tmp_path / "two.tw"

    return make


def test_a_package_that_is_overwritten(packages):
    one, two = packages("n")
    model, copy = tw.load(one), tw.load(one, copy=True)
    check(model)
    before = one.read_bytes()
    overwrite(one, two)
    with pytest.raises(TilewrightError, match=r"one\.tw was overwritten while it is in use"):
        model(X[:2])
    check(copy)
    check(copy, x=X[:2])
    copy.save(one)
    check(tw.load(one), x=X[:2])
    assert before


def test_a_copy_does_not_need_the_file_any_more(packages):
    one, two = packages(3)
    model, copy = tw.load(one), tw.load(one, copy=True)
    check(model)
    overwrite(one, two)
    check(copy)
    with pytest.raises(PackageError, match="was overwritten"):
        model.save(one.with_name("again.tw"))
    os.truncate(one, 100)
    check(copy)
    copy.save(one)
    check(tw.load(one))


def test_the_expected_digest(packages):
    one, two = packages(3)
    right = hashlib.sha256(one.read_bytes()).hexdigest()
    model = tw.load(one, sha256=right.upper())
    overwrite(one, two)  # what was checked is what is used
    check(model)
    with pytest.raises(PackageError, match="is not the file that is expected: its SHA-256 is") as e:
        tw.load(one, sha256=right)
    assert hashlib.sha256(two.read_bytes()).hexdigest() in str(e.value)
    one.write_bytes(b"anything")
    with pytest.raises(PackageError, match="is not the file that is expected"):
        tw.load(one, sha256=right)
    for wrong in ("", "abc", right + "0", right[:-1] + "g", 7):
        with pytest.raises(UsageError, match="64 hexadecimal digits"):
            tw.load(two, sha256=wrong)


# ---- files ---------------------------------------------------------------------------------------------------------


def test_what_counts_as_a_change(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    os.utime(path, LONG_AGO)
    file = map_file(path)
    path.chmod(0o600)
    os.utime(path, (5, LONG_AGO[1]))
    assert not file.changed and file.data.tobytes() == b"abc"
    path.rename(tmp_path / "moved")
    assert not file.changed
    path.write_bytes(b"other")
    assert not file.changed
    (tmp_path / "moved").rename(path)
    assert not file.changed
    path.write_bytes(b"abc")
    assert file.changed
    assert not map_file(path, copy=True).changed
    assert map_file(path, copy=True).digest() == map_file(path).digest()
    path.write_bytes(b"")
    assert map_file(path).data.size == map_file(path, copy=True).data.size == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_regular_files_are_mapped(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="regular"):
            map_file(path)
        with pytest.raises(PackageError, match=re.escape(str(path))):
            tw.load(path)
