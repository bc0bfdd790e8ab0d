"""Models without ranges: one program for all sizes serves the calls, and is there when the model is compiled."""

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
from tilewright.compat.onnxruntime import InferenceSession
from tilewright.driver import compiler
from tilewright.driver.background import ProcessMaker, _compile
from tilewright.frontends import protocol
from tilewright.runtime.dynamic import DynamicExecutable
from tilewright.runtime.executable import Executable
from tilewright.support.errors import InputError, UsageError
from tilewright.support.options import Options

ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")


def compiled(source, **options) -> DynamicExecutable:
    run = tw.compile(source, threads=1, **options)
    assert isinstance(run, DynamicExecutable) and run.open_versions is not None
    return run


def right(run, name: str, batch: int, seq: int = 1) -> None:
    given = feeds(name, batch, seq)
    session = ort.InferenceSession(MODELS[name][0]().SerializeToString(), providers=["CPUExecutionProvider"])
    for want, got in zip(session.run(None, given), run(given), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * max(abs(want).max(), 1e-9))


def dims(run) -> list[str]:
    """Of the program that was made last."""
    return [str(d) for d in run.open_versions.programs[0].sizes.dims]


@pytest.fixture
def no_compiler(monkeypatch):
    """From a call of this on nothing is compiled any more."""

    def end():
        monkeypatch.setattr(compiler, "_run_stage", None)

    return end


def test_nothing_is_left_to_calls(no_compiler, tmp_path):
    """How long a text may be the table of positions says. What is saved and loaded has the program too."""
    source = MODELS["encoder"][0]()
    run = compiled(source)
    run.save(tmp_path / "m.tw")
    session = InferenceSession(source.SerializeToString())
    no_compiler()
    assert dims(run) == ["batch:1..64", "seq:1..128"] and "one program for batch:1..64, seq:1..128" in run.explain()
    loaded = tw.load(tmp_path / "m.tw", threads=1)
    for i, (batch, seq) in enumerate(((1, 1), (1, 128), (2, 33), (64, 3), (7, 96), (3, 70))):
        right([run, loaded, lambda given: session.run(None, given)][i % 3], "encoder", batch, seq)
        right(run, "encoder", batch, seq)
    assert run.compiled == loaded.compiled == 0 and len(run.open_versions.programs) == 1


def test_ranges_that_are_outgrown():
    run = compiled(MODELS["mlp"][0](), specialize="background")
    right(run, "mlp", 2)
    (before,) = run.open_versions.programs
    right(run, "mlp", 64)
    assert run.open_versions.programs == [before] and dims(run) == ["batch:1..64"]
    right(run, "mlp", 65)
    assert dims(run) == ["batch:1..1040"] and before.background._stopped and len(run.open_versions.programs) == 1
    for batch in (1040, 1, 3):
        right(run, "mlp", batch)


def test_all_ways_of_a_call():
    run = compiled(MODELS["mlp"][0]())
    given = feeds("mlp", 5, 1)
    (want,) = run(given)
    out = np.empty_like(want)
    for got in (run(given["x"]), run(x=given["x"]), run.run(given), run(given, out=[out]), run(given, out={"y0": out})):
        np.testing.assert_array_equal(got[0], want)
    other = feeds("mlp", 6, 1)
    run(other, out=[fresh := np.empty((6, 10), np.float32)])  # the first call of a size, into an array
    np.testing.assert_array_equal(fresh, run(other)[0])
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


def test_a_branch_on_a_size():
    """Each branch has a program for the sizes that take it."""
    run = compiled(branch())
    for n in (2, 5, 2, 3, 4):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        np.testing.assert_array_equal(run(x)[0], np.maximum(x, 0) if n > 3 else -x)
    assert [[str(d) for d in p.sizes.dims] for p in run.open_versions.programs] == [["n:1..3"], ["n:4..64"]]


def test_a_model_that_cannot_be_compiled_for_all_sizes(caplog):
    """A size is where no formula can have it, in a type of floats: a program for each, which is said once."""
    caplog.set_level(logging.WARNING, "tilewright")
    nodes = [
        node("Shape", "x", "s"),
        node("Cast", "s", "f", to=1),
        node("Mul", "f two", "g"),
        node("Cast", "g", "i", to=7),
    ]
    nodes += [node("Expand", "one i", "y")]
    made = model(
        nodes, [value("x", ["n"])], [value("y", ["m"])], {"two": np.float32(1.5), "one": np.ones(1, np.float32)}
    )
    run = compiled(made)
    for n in (2, 5, 2):
        np.testing.assert_array_equal(run(np.zeros(n, np.float32))[0], np.ones(int(n * 1.5), np.float32))
    said = [r.message for r in caplog.records]
    assert len(said) == 1 and "each new size is compiled in its call" in said[0]
    assert run.compiled == 2 and "no program for all sizes: each is compiled in its call" in run.explain()


def test_sizes_that_no_range_has():
    run = compiled(MODELS["mlp"][0]())
    assert run(np.zeros((0, 24), np.float32))[0].shape == (0, 10)
    assert dims(run) == ["batch:1..64"] and run.compiled == 1
    right(run, "mlp", 3)
    assert run.compiled == 1


def test_a_size_that_is_0_beside_others():
    run = compiled(MODELS["elementwise"][0]())
    for seq in (5, 9):
        assert run(np.zeros((0, seq, 20), np.float32))[0].shape == (0, seq, 20)
    assert dims(run) == ["seq:1..4096"] and run.compiled == 0 and len(run.open_versions.programs) == 2
    right(run, "elementwise", 3, 4)


def test_caches_that_are_empty_at_first(no_compiler):
    """And a mask whose length is a sum of others, as exporters write it."""
    caches = [value(n, ["batch", 2, "past", 4]) for n in ("key", "value")]
    nodes = [node("Concat", f"{n} new", f"{n}2", axis=2) for n in ("key", "value")]
    nodes += [node("Add", "key2 value2", "sum"), node("Add", "sum mask", "y")]
    inputs = [*caches, value("new", ["batch", 2, "seq", 4]), value("mask", ["past + seq", 1])]
    run = compiled(model(nodes, inputs, [value("y", None)], {}))
    no_compiler()
    for past, seq in ((0, 3), (3, 1), (4, 1), (7, 9), (0, 1)):
        old, new = np.full((2, 2, past, 4), 2, np.float32), np.ones((2, 2, seq, 4), np.float32)
        (got,) = run(old, old, new, np.zeros((past + seq, 1), np.float32))
        np.testing.assert_array_equal(got, np.concatenate([old, new], 2) * 2)
    assert sorted(dims(run)) == ["batch:1..64", "past:0..4096", "seq:1..4096"] and len(run.open_versions.programs) == 1


def test_an_image_that_is_halved_and_doubled(no_compiler):
    """A size that the model takes is a multiple, which is found."""
    nodes = [
        node("MaxPool", "x", "a", kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxPool", "a", "b", kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", "b w", "c", kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", "a c", "d", axis=1),
        node("ConvTranspose", "d v", "e", kernel_shape=[2, 2], strides=[2, 2]),
        node("Add", "x e", "y"),
    ]
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("w", (2, 2, 2, 2)), ("v", (4, 2, 2, 2)))}
    made = model(nodes, [value("x", ["n", 2, "h", "w_"])], [value("y", ["n", 2, "h", "w_"])], weights)
    run = compiled(made)
    assert dims(run) == ["n:1..64", "h:4..1024:4", "w_:4..1024:4"]
    no_compiler()
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, h, w in ((1, 4, 4), (2, 8, 20), (3, 36, 16)):
        x = rng.standard_normal((n, 2, h, w)).astype(np.float32)
        np.testing.assert_allclose(run(x)[0], session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)


def test_names_that_have_to_be_one():
    """The program is for equal sizes; a size that is 1 is broadcast by another one."""
    made = model([node("Add", "a b", "y")], [value("a", ["n", 4]), value("b", ["m", 4])], [value("y", None)], {})
    run = compiled(made)
    assert dims(run) == ["m:1..64"]
    for n, m in ((3, 3), (1, 5), (1, 7), (9, 1), (64, 64)):
        a, b = np.full((n, 4), 2, np.float32), np.arange(m, dtype=np.float32)[:, None] * np.ones(4, np.float32)
        np.testing.assert_array_equal(run(a, b)[0], a + b)
    assert run.compiled == 0 and len(run.open_versions.programs) == 3
    with pytest.raises(tw.errors.TilewrightError, match="broadcast"):
        run(np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32))


def test_dimensions_without_names_and_with_odd_ones():
    made = model([node("Add", "a b", "y")], [value("a", [None, "2*n"]), value("b", [1, "2*n"])], [value("y", None)], {})
    run = compiled(made)
    for n, m in ((3, 4), (9, 7), (1, 1)):
        a, b = np.full((n, m), 2, np.float32), np.arange(m, dtype=np.float32)[None]
        np.testing.assert_array_equal(run(a, b)[0], a + b)
    assert dims(run) == ["a_0:1..64", "_2_n:1..4096"] and run.compiled == 0


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


def test_a_saved_model_that_specializes_in_the_background(tmp_path):
    run = compiled(MODELS["mlp"][0](), specialize="background")
    run.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=1)
    right(again, "mlp", 5)
    right(again, "mlp", 3)
    assert dims(again) == ["batch:1..64"] and again.compiled == 0
    maker = again.open_versions.programs[0].background.maker
    assert isinstance(maker, ProcessMaker)
    source = protocol.compilable(again.store())  # what another process is given
    found = _compile(source, Options(inputs={"x": (2, 24)}, threads=1, jobs=1), None)
    right(Executable(found, 1), "mlp", 2)


def test_a_file_that_is_another_model_at_a_later_call(tmp_path, caplog):
    """What was read is what runs."""
    caplog.set_level(logging.INFO, "tilewright")
    path = tmp_path / "m.onnx"
    onnx.save(MODELS["mlp"][0](), path)
    run = compiled(path)
    other = MODELS["mlp"][0]()
    for t in other.graph.initializer:
        t.raw_data = bytes(len(t.raw_data))
    onnx.save(other, tmp_path / "other")
    (tmp_path / "other").replace(path)
    right(run, "mlp", 3)
    right(run, "mlp", 70)
    assert run.compiled == 1 and "is not the model any more" in caplog.text


def test_threads_that_outgrow_a_range():
    run, count, compile = compiled(MODELS["mlp"][0]()), [], None
    compile = run.open_versions.compile
    run.open_versions.compile = lambda inputs: (count.append(threading.get_ident()), compile(inputs))[1]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(right, run, "mlp", 65 + i % 5) for i in range(16)]:
            done.result()
    assert len(count) == 1


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
