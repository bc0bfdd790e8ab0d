"""Models without ranges whose sizes are compiled in the background: one program for all sizes serves the calls."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_models import model, node, value
from support.open_models import MODELS, feeds

import tilewright as tw
from tilewright.driver import compiler
from tilewright.driver.background import ProcessMaker, _compile
from tilewright.frontends import protocol
from tilewright.runtime.dynamic import DynamicExecutable
from tilewright.runtime.executable import Executable
from tilewright.support.dims import Dim
from tilewright.support.errors import InputError, UsageError
from tilewright.support.options import Options

ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")


def compiled(source, **options) -> DynamicExecutable:
    run = tw.compile(source, threads=1, specialize="background", **options)
    assert isinstance(run, DynamicExecutable) and run.opening is not None
    return run


def right(run, name: str, batch: int, seq: int = 1) -> None:
    given = feeds(name, batch, seq)
    session = ort.InferenceSession(MODELS[name][0]().SerializeToString(), providers=["CPUExecutionProvider"])
    for want, got in zip(session.run(None, given), run(given), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * max(abs(want).max(), 1e-9))


def dims(run) -> list[str]:
    return [str(d) for d in run.opening.program.sizes.dims]


def test_the_first_call_compiles_for_all_sizes(monkeypatch):
    """In wide ranges, of which some once ended in a question that no size answers."""
    run = compiled(MODELS["encoder"][0]())
    assert "no program for all sizes yet" in run.explain()
    right(run, "encoder", 3, 70)
    assert dims(run) == ["batch:1..64", "seq:1..1120"]
    monkeypatch.setattr(compiler, "_run_stage", None)  # nothing is compiled any more
    for batch, seq in ((1, 1), (1, 128), (2, 33), (64, 3), (7, 96), (3, 70)):
        right(run, "encoder", batch, seq)
    assert "one program for batch:1..64, seq:1..1120" in run.explain() and run.compiled == 0


def test_ranges_that_are_outgrown():
    run = compiled(MODELS["mlp"][0]())
    right(run, "mlp", 2)
    before = run.opening.program
    right(run, "mlp", 64)
    assert run.opening.program is before and dims(run) == ["batch:1..64"]
    right(run, "mlp", 65)
    assert dims(run) == ["batch:1..1040"] and before.background._stopped
    for batch in (1040, 1, 3):
        right(run, "mlp", batch)


def test_all_ways_of_a_call():
    run = compiled(MODELS["mlp"][0]())
    given = feeds("mlp", 5, 1)
    (want,) = run(given)
    out = np.empty_like(want)
    for got in (run(given["x"]), run(x=given["x"]), run.run(given), run(given, out=[out]), run(given, out={"y0": out})):
        np.testing.assert_array_equal(got[0], want)
    fresh = compiled(MODELS["mlp"][0]())
    fresh(given, out=[out])  # the first call, into an array
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
    for wrong in (given["x"].astype(np.float64), np.zeros((5, 23), np.float32), np.zeros(24, np.float32)):
        with pytest.raises(InputError):
            run(wrong)


def branch():
    """A model in which a length decides what is computed."""
    long, short = (
        helper.make_graph([node(op, "x", f"{op}_y")], op, [], [value(f"{op}_y", ["n", 4])]) for op in ("Relu", "Neg")
    )
    nodes = [
        node("Shape", "x", "s", end=1),
        node("Squeeze", "s", "n"),
        node("Greater", "n three", "c"),
        helper.make_node("If", ["c"], ["y"], then_branch=long, else_branch=short),
    ]
    return model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], {"three": np.array(3, np.int64)})


def test_a_model_that_cannot_be_compiled_for_all_sizes(caplog):
    run = compiled(branch())
    for n in (2, 5, 2, 3):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        np.testing.assert_array_equal(run(x)[0], np.maximum(x, 0) if n > 3 else -x)
    said = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 1 and "each new size is compiled in its call" in said[0]
    assert run.compiled == 3 and "no program for all sizes: each is compiled in its call" in run.explain()


def test_sizes_that_no_range_has():
    run = compiled(MODELS["mlp"][0]())
    assert run(np.zeros((0, 24), np.float32))[0].shape == (0, 10)
    assert run.opening.program is None and run.compiled == 1
    right(run, "mlp", 3)
    assert run.opening.program is not None and run.compiled == 1


def test_dimensions_without_names_and_with_odd_ones():
    made = model([node("Add", "a b", "y")], [value("a", [None, "2*n"]), value("b", [1, "2*n"])], [value("y", None)], {})
    run = compiled(made)
    for n, m in ((3, 4), (9, 7), (1, 1)):
        a, b = np.full((n, m), 2, np.float32), np.arange(m, dtype=np.float32)[None]
        np.testing.assert_array_equal(run(a, b)[0], a + b)
    assert dims(run) == ["a_0:1..64", "_2_n:1..64"] and run.compiled == 0


def test_what_is_compiled_ahead_comes_first():
    run = compiled(MODELS["mlp"][0]())
    right(run, "mlp", 3)
    run.specialize({"x": (3, 24)})
    assert run.compiled == 1
    right(run, "mlp", 3)
    (part,) = [p for _, _, p in run.parts()]
    assert part.runs == 1
    right(run, "mlp", 4)
    assert part.runs == 1 and run.compiled == 1


def test_a_saved_model_begins_anew(tmp_path):
    run = compiled(MODELS["mlp"][0]())
    right(run, "mlp", 3)
    run.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=1)
    right(again, "mlp", 5)
    right(again, "mlp", 3)
    assert dims(again) == ["batch:1..80"] and again.compiled == 0
    maker = again.opening.program.background.maker
    assert isinstance(maker, ProcessMaker)
    source = protocol.compilable(again.store())  # what another process is given
    found = _compile(source, Options(inputs={"x": (2, 24)}, threads=1, jobs=1), None)
    right(Executable(found, 1), "mlp", 2)


def test_a_file_that_is_another_model_at_the_first_call(tmp_path, caplog):
    """What was read is what runs."""
    path = tmp_path / "m.onnx"
    onnx.save(MODELS["mlp"][0](), path)
    run = compiled(path)
    other = MODELS["mlp"][0]()
    for t in other.graph.initializer:
        t.raw_data = bytes(len(t.raw_data))
    onnx.save(other, tmp_path / "other")
    (tmp_path / "other").replace(path)
    right(run, "mlp", 3)
    assert run.compiled == 1 and "is not the model any more" in caplog.text


def test_threads_that_call_first():
    run, count, compile = compiled(MODELS["mlp"][0]()), [], None
    compile = run.opening.compile
    run.opening.compile = lambda inputs: (count.append(threading.get_ident()), compile(inputs))[1]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(right, run, "mlp", 1 + i % 5) for i in range(16)]:
            done.result()
    assert len(count) == 1


def test_ranges():
    run = compiled(MODELS["encoder"][0]())
    found = run.opening._ranges(((3, 17), (3, 17)))
    assert found == dict.fromkeys(("ids", "mask"), (Dim("batch", 1, 64), Dim("seq", 1, 272)))


def test_what_does_not_go_together():
    source = MODELS["mlp"][0]()
    with pytest.raises(UsageError, match="nothing is left for the background"):
        tw.compile(source, specialize="background", buckets={"batch": [1, 8]})
    with pytest.raises(UsageError, match="target 'cortex-m4' has no open dimensions"):
        tw.compile(source, specialize="background", target="cortex-m4")


def test_shapes_that_are_known():
    fixed = model([node("Relu", "x", "y")], [value("x", [2, 4])], [value("y", [2, 4])], {})
    run = tw.compile(fixed, threads=1, specialize="background")
    assert type(run) is Executable
    np.testing.assert_array_equal(run(np.ones((2, 4), np.float32))[0], np.ones((2, 4)))
