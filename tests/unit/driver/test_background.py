"""Processes that compile for single sizes: from files and from memory, files that changed, processes that die, ends."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.open_models import MODELS, feeds

import tilewright as tw
from tilewright.driver import background
from tilewright.driver.background import ProcessMaker, _compile, _kept
from tilewright.driver.package_cache import ModelFiles
from tilewright.frontends import protocol
from tilewright.runtime.open_executable import OpenExecutable
from tilewright.support.errors import PackageError, UnsupportedError, UsageError
from tilewright.support.options import Options

MODEL = "mlp"
TEXT = """func.func @main(%x: tensor<?x8xf32> {tw.name = "x"}) -> (tensor<?x8xf32> {tw.name = "y"}) {
  %0 = "tw.softmax"(%x) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32> }"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")  # of this process


@pytest.fixture
def path(tmp_path):
    onnx.save(MODELS[MODEL][0](), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def compiled(source, **options) -> OpenExecutable:
    run = tw.compile(source, inputs=MODELS[MODEL][1], threads=1, specialize="background", **options)
    assert isinstance(run, OpenExecutable) and run.background is not None
    return run


def call(run: OpenExecutable, batch: int, times: int = 3) -> np.ndarray:
    given = feeds(MODEL, batch, 1)
    found = [run(given)[0] for _ in range(times)]
    assert run.background.wait(120)
    return found[0]


def left(folder: Path) -> list[str]:
    """Files that somebody did not finish."""
    return [str(p) for p in folder.rglob("*") if p.suffix == ".tmp"]


def test_a_file_leaves_its_programs_in_the_cache(path, tmp_path, monkeypatch):
    run = compiled(path)
    before = call(run, 5)
    assert run.background.sizes() == [{"batch": 5}]
    np.testing.assert_allclose(call(run, 5), before, rtol=1e-5, atol=1e-6)
    assert run.background.programs()[0].calls == 3
    kept = list((tmp_path / "cache" / "packages").glob("*.tw"))
    assert len(kept) == 2 and left(tmp_path) == []
    fixed = tw.compile(path, inputs={"x": (5, 24)}, threads=1)  # the same program
    np.testing.assert_array_equal(fixed(feeds(MODEL, 5, 1))[0], run(feeds(MODEL, 5, 1))[0])
    assert len(list((tmp_path / "cache" / "packages").glob("*.tw"))) == 2


def test_a_model_in_memory(tmp_path):
    run = compiled(MODELS[MODEL][0](), cache=False)
    before = call(run, 6)
    assert run.background.sizes() == [{"batch": 6}]
    np.testing.assert_allclose(call(run, 6), before, rtol=1e-5, atol=1e-6)
    assert left(tmp_path) == []


def unpickled(source):
    return pickle.loads(_kept(source, protocol.find(source)).tobytes())


def sent(package, folder):
    """The executable of a package that another process has written."""
    package.save(folder / "sent.tw")
    return tw.load(folder / "sent.tw", threads=1)


def fixed(batch: int, width: int = 24) -> Options:
    return Options(inputs={"x": (batch, width)}, threads=1, cache=False, jobs=1)


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "model", "text", "graph", "a file of text"])
def test_every_source(kind, tmp_path):
    """What another process is given says the same as the source."""
    model = MODELS[MODEL][0]()
    if kind in ("bytes", "bytearray", "model"):
        data = model.SerializeToString()
        source = {"bytes": data, "bytearray": bytearray(data), "model": model}[kind]
        x, options = feeds(MODEL, 3, 1)["x"], fixed(3)
        (want,) = tw.compile(source, inputs={"x": (3, 24)}, threads=1)(x)
    else:
        (tmp_path / "m.mlir").write_text(TEXT)
        source = {"text": TEXT, "a file of text": tmp_path / "m.mlir"}.get(kind)
        if kind == "graph":
            source = tw.compile(TEXT, inputs={"x": (3, 8)}, stop_after="import")
        x, options = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32), fixed(3, 8)
        want = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    run = sent(_compile(unpickled(source), options, None), tmp_path)
    np.testing.assert_allclose(run(x)[0], want, rtol=1e-5, atol=1e-6)


def test_a_text_of_mlir_with_open_dimensions(tmp_path):
    """In this process what the other one would do."""
    run = tw.compile(TEXT, inputs={"x": ("n:1..16", 8)}, threads=1, specialize="background")
    maker = run.background.maker
    assert isinstance(maker, ProcessMaker) and not maker._file
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    found = sent(_compile(unpickled(TEXT), replace(maker._options, inputs={"x": (3, 8)}), None), tmp_path)
    np.testing.assert_allclose(found(x)[0], run(x)[0], rtol=1e-5)


def test_a_file_that_is_another_model_now(path):
    files = ModelFiles.of([background.map_file(path)])
    options = replace(fixed(3), cache=True)
    assert isinstance(_compile(str(path), options, files), Path)
    assert isinstance(_compile(str(path), options, files), Path)  # which is there
    other = MODELS[MODEL][0]()
    other.graph.initializer[0].raw_data = bytes(len(other.graph.initializer[0].raw_data))
    path.unlink()
    onnx.save(other, path)
    for cache in (True, False):
        with pytest.raises(PackageError, match=r"m.onnx is not the model any more that was compiled"):
            _compile(str(path), replace(options, cache=cache), files)


def test_a_source_that_no_process_can_have():
    class Mine(bytes):
        def __reduce__(self):
            raise TypeError("cannot pickle this")

    with pytest.raises(UsageError, match="nothing can be compiled in the background: cannot pickle this"):
        compiled(Mine(MODELS[MODEL][0]().SerializeToString()))


@pytest.mark.parametrize(
    "does, said",
    [
        ("import os; os.abort()", "its process ended with SIGABRT"),
        ("import sys; print('no such thing', file=sys.stderr); sys.exit(3)", "ended with code 3\n    no such thing"),
        ("import os; os._exit(0)", "its process ended with code 0"),
    ],
)
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_process_that_dies(does, said, path, caplog, monkeypatch):
    monkeypatch.setattr(background, "_CALL", does)
    run = compiled(path)
    before = call(run, 4)
    assert run.background.sizes() == [] and said in caplog.text and len(caplog.records) == 1
    np.testing.assert_array_equal(call(run, 4), before)


def test_closed_while_a_process_works(path, caplog, monkeypatch):
    monkeypatch.setattr(background, "_CALL", "import time; time.sleep(600)")
    run = compiled(path)
    for _ in range(3):
        run(feeds(MODEL, 4, 1))
    thread = run.background._thread
    run.close()
    thread.join(60)
    assert not thread.is_alive() and not caplog.records


ENDS = """
import os, sys
from tilewright.driver import background
import tilewright as tw, numpy as np
background._CALL = "import os, time; open(%r, 'w').write(str(os.getpid())); os.rename(%r, %r); time.sleep(600)" % (
    sys.argv[2] + "0", sys.argv[2] + "0", sys.argv[2])
run = tw.compile(sys.argv[1], inputs={"x": ("batch:1..16", 24)}, threads=1, specialize="background")
for _ in range(3):
    run(np.ones((3, 24), np.float32))
while not (run.background.maker._child and os.path.exists(sys.argv[2])):
    pass
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_this_process_ends_while_another_works(path, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(tw.__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(ENDS), str(path), str(tmp_path / "pid")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert left(tmp_path) == []


def test_what_stays_out():
    model, shapes = MODELS[MODEL]
    with pytest.raises(UnsupportedError):
        tw.compile(model(), inputs=shapes, specialize="background", states={"x": "y0"})
