"""Programs with open dimensions: one compilation, then any size against ONNX Runtime; files; what is refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_models import model, node, value
from support.open_models import BATCH, MODELS, SEQ, feeds

import tilewright as tw
from tilewright.driver import compiler
from tilewright.runtime.open_executable import OpenExecutable
from tilewright.support.errors import InputError, TilewrightError, UnsupportedError, UsageError
from tilewright.support.sizes import open_sizes
from tilewright.targets.cpu import entry

ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")


@cache
def compiled(name: str, threads: int = 1) -> OpenExecutable:
    make, shapes = MODELS[name]
    run = tw.compile(make(), inputs=shapes, threads=threads)
    assert isinstance(run, OpenExecutable)
    return run


@cache
def session(name: str):
    return ort.InferenceSession(MODELS[name][0]().SerializeToString(), providers=["CPUExecutionProvider"])


def right(name: str, run, batch: int, seq: int, seed: int = 0) -> None:
    given = feeds(name, batch, seq, seed)
    for want, got in zip(session(name).run(None, given), run(given), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(
            got, want, rtol=0, atol=1e-4 * max(abs(want).max(), 1e-9), err_msg=f"{batch} x {seq}"
        )


def sizes(name: str) -> list[tuple[int, int]]:
    """The ends of the ranges, and eight between."""
    rng = random.Random(name)
    return [(1, 1), (16, 64), *((rng.randint(1, 16), rng.randint(1, 64)) for _ in range(8))]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_size(name, threads, monkeypatch):
    run = compiled(name, threads)
    monkeypatch.setattr(compiler, "_run_stage", None)  # nothing is compiled any more
    for batch, seq in sizes(name):
        right(name, run, batch, seq)


@pytest.mark.parametrize("name", ["exp", "softmax"])
def test_loops_along_an_open_dimension_run_in_vectors(name):
    """The last tile of several vectors is a loop over vectors: that there are fewer is no reason to have none."""
    source = MODELS["softmax"][0]()
    if name == "exp":
        source = model([node("Exp", "x", "y")], [value("x", ["n", "m"])], [value("y", ["n", "m"])], {})
    run = tw.compile(source, inputs={"x": ("n:1..16", "m:1..1024")}, threads=1)
    assert all(k["kind"] != "general" for k in run.package.report["kernels"])
    for n, m in ((1, 1), (3, 17), (5, 64), (2, 100), (7, 1000), (16, 63)):
        x = np.random.default_rng(m).standard_normal((n, m)).astype(np.float32)
        want = np.exp(x)
        want = want / want.sum(-1, keepdims=True) if name == "softmax" else want
        np.testing.assert_allclose(run(x)[0], want, rtol=1e-5, atol=1e-7)


def test_it_says_what_it_takes():
    run = compiled("encoder")
    assert str(run.inputs[0]) == "ids: i64[batch, seq]" and str(run.outputs[1]) == "y1: f32[batch, seq, 32]"
    assert run.sizes.dims == (BATCH, SEQ)
    assert "(ids: i64[batch, seq]; mask: i64[batch, seq])" in repr(run)


def test_texts_and_dims_and_divisors():
    given = model([node("Relu", "x", "y")], [value("x", ["n", "m"])], [value("y", ["n", "m"])], {})
    run = tw.compile(given, inputs={"x": ("rows:2..9", "wide:8..64:8")}, threads=1)
    assert str(run.inputs[0]) == "x: f32[rows, wide]"
    for shape in ((2, 8), (9, 64), (3, 24)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(run(x)[0], np.maximum(x, 0))
    with pytest.raises(InputError, match=r"wide is 12 in input 'x', it has to be 8 to 64 and a multiple of 8"):
        run(np.zeros((2, 12), np.float32))


def test_arguments_by_name_and_results_into_arrays():
    run = compiled("mlp")
    given = feeds("mlp", 5, 1)
    (want,) = run(given)
    np.testing.assert_array_equal(run(**given)[0], want)
    np.testing.assert_array_equal(run(given["x"])[0], want)
    y = np.empty((5, 10), np.float32)
    assert run(given, out=[y])[0] is y
    np.testing.assert_array_equal(y, want)
    with pytest.raises(InputError):
        run(given, out=[np.empty((4, 10), np.float32)])


def test_the_same_size_gives_the_same_bits():
    run = compiled("encoder", 2)
    given = feeds("encoder", 3, 17)
    first = [y.tobytes() for y in run(given)]
    run(feeds("encoder", 16, 64))  # the arena grows
    run(feeds("encoder", 1, 1))
    assert [y.tobytes() for y in run(given)] == first


def test_more_sizes_than_are_kept(monkeypatch):
    from tilewright.runtime import open_executable

    monkeypatch.setattr(open_executable, "KEPT", 3)
    run = compiled("elementwise")
    for _ in range(2):
        for batch in range(1, 7):
            right("elementwise", run, batch, 5)
    assert len(run._bound) <= 3


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_call_different_sizes_at_once(threads):
    run = compiled("encoder", threads)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(right, "encoder", run, 1 + i % 7, 1 + 5 * i % 60, i) for i in range(24)]
        for call in calls:
            call.result()


IDS = np.zeros((2, 8), np.int64)


@pytest.mark.parametrize(
    "ids, mask, message",
    [
        (np.zeros((17, 8), np.int64), np.zeros((17, 8), np.int64), "batch is 17 in input 'ids', it has to be 1 to 16"),
        (np.zeros((2, 65), np.int64), np.zeros((2, 65), np.int64), "seq is 65 in input 'ids', it has to be 1 to 64"),
        (np.zeros((2, 0), np.int64), np.zeros((2, 0), np.int64), "seq is 0 in input 'ids', it has to be 1 to 64"),
        (IDS, np.zeros((2, 9), np.int64), "dimension 1 of input 'mask' .* is 9, but seq is 8 in 'ids'"),
        (IDS, np.zeros((2, 8, 1), np.int64), r"input 'mask' has shape \(2, 8, 1\), the model takes \[batch, seq\]"),
        (np.zeros(8, np.int64), IDS, r"input 'ids' has shape \(8,\), the model takes \[batch, seq\]"),
        (IDS.astype(np.int32), IDS, r"input 'ids' has i32\[2, 8\], the model takes i64\[2, 8\]"),
    ],
)
def test_inputs_that_do_not_fit(ids, mask, message):
    with pytest.raises(InputError, match=message):
        compiled("encoder")(ids, mask)
    right("encoder", compiled("encoder"), 2, 3)


def test_inputs_that_are_missing_or_too_many():
    run = compiled("mlp")
    with pytest.raises(InputError):
        run()
    with pytest.raises(InputError):
        run({"x": np.zeros((1, 24), np.float32), "z": np.zeros(1)})
    with pytest.raises(InputError, match="24"):
        run(np.zeros((1, 23), np.float32))


@pytest.mark.parametrize(
    "inputs, message",
    [
        (
            {"ids": (BATCH, SEQ), "mask": (BATCH, tw.Dim("seq", 1, 32))},
            r"dimension seq:1\.\.32 is seq:1\.\.64 elsewhere",
        ),
        ({"ids": (BATCH, "seq:5..4"), "mask": (BATCH, SEQ)}, r"seq: 5\.\.4 is no range of sizes"),
        ({"ids": (BATCH, "seq:1-4"), "mask": (BATCH, SEQ)}, "'seq:1-4' is no open dimension"),
    ],
)
def test_ranges_that_contradict_each_other(inputs, message):
    with pytest.raises(UsageError, match=message):
        tw.compile(MODELS["encoder"][0](), inputs=inputs)


LOADS = """
import sys, numpy as np
for name in ("onnx", "torch_mlir", "torch", "onnxruntime"):
    sys.modules[name] = None
import tilewright as tw
run = tw.load(sys.argv[1], threads=2)
given = np.load(sys.argv[2])
for i in range(3):
    y0, y1 = run({"ids": given[f"ids{i}"], "mask": given[f"mask{i}"]})
    assert abs(y0 - given[f"y{i}"]).max() < 1e-4, i
    assert y1.shape == (*given[f"ids{i}"].shape, 32)
print(run)
"""


def test_a_saved_program_runs_without_the_compiler(tmp_path):
    run = compiled("encoder")
    run.save(tmp_path / "m.tw")
    arrays = {}
    for i, (batch, seq) in enumerate([(1, 1), (5, 33), (16, 64)]):
        given = feeds("encoder", batch, seq)
        arrays |= {f"{n}{i}": a for n, a in given.items()} | {f"y{i}": session("encoder").run(None, given)[0]}
    np.savez(tmp_path / "x.npz", **arrays)
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    environment = {**os.environ, "PYTHONPATH": str(Path(tw.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, script, tmp_path / "m.tw", tmp_path / "x.npz"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "ids: i64[batch, seq]" in done.stdout
    again = tw.load(tmp_path / "m.tw", threads=1)
    assert again.sizes == run.sizes
    right("encoder", again, 4, 21)
    with pytest.raises(InputError, match="seq is 65"):
        again({n: np.zeros((1, 65), np.int64) for n in ("ids", "mask")})


def test_the_package_cache_knows_ranges(tmp_path, monkeypatch):
    """The same model with another range is another program."""
    import onnx

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    onnx.save(MODELS["elementwise"][0](), tmp_path / "m.onnx")
    small = tw.compile(tmp_path / "m.onnx", inputs={"x": ("batch:1..2", "seq:1..4", 20)}, threads=1)
    large = tw.compile(tmp_path / "m.onnx", inputs={"x": ("batch:1..2", "seq:1..8", 20)}, threads=1)
    again = tw.compile(tmp_path / "m.onnx", inputs={"x": (tw.Dim("batch", 1, 2), tw.Dim("seq", 1, 4), 20)}, threads=1)
    x = np.ones((2, 6, 20), np.float32)
    assert large(x)[0].shape == (2, 6, 20)
    for run in (small, again):
        with pytest.raises(InputError, match="seq is 6"):
            run(x)


def _refused() -> dict[str, tuple]:
    """Models that cannot be compiled for all sizes at once: what decides a structure is not known."""
    half = model([node("Split", "x", "y z", axis=0, num_outputs=2)], [value("x", ["n", 4])], [value("y", None)], {})
    top = model(
        [node("TopK", "x k", "v i", axis=0)], [value("x", ["n", 4])], [value("v", ["k", 4])], {"k": np.array([3])}
    )
    return {"TopK of more rows than there may be": (top, "n:1..8"), "Split of an unknown number": (half, "n:1..9")}


@pytest.mark.parametrize("name", list(_refused()))
def test_a_model_that_needs_to_know_a_size_is_refused_or_right(name):
    given, dim = _refused()[name]
    try:
        run = tw.compile(given, inputs={"x": (dim, 4)}, threads=1)
    except TilewrightError as e:
        assert str(e) and "Traceback" not in str(e)
        return
    wanted = ort.InferenceSession(given.SerializeToString())
    for n in (3, 4, 7, 8):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        np.testing.assert_allclose(run(x)[0], wanted.run(None, {"x": x})[0])


def test_a_model_with_the_number_of_a_symbol_is_refused():
    """Sizes are numbers of their own while a model is compiled; one that has such a number itself is not mistaken."""
    with open_sizes([tw.Dim("s", 1, 8)]) as known:
        number = int(known.symbols[0])
    node = [helper.make_node("Gather", ["x", "i"], ["y"], axis=1)]
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, ["s", k])] for n, k in (("x", 3 * number), ("y", 2))]
    for index, width in ((number, 60_000), (3, 3 * number)):
        graph = helper.make_graph(node, "m", *ends, [numpy_helper.from_array(np.array([index, 1]), "i")])
        graph.input[0].type.tensor_type.shape.dim[1].dim_value = width
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        with pytest.raises(UnsupportedError, match="stands for an open"):
            tw.compile(model, inputs={"x": ("s:1..8", width)})


def test_a_call_that_does_not_fit_is_told_the_names_of_sizes():
    """Not the sizes that the program is planned for."""
    made = model([node("Relu", "x", "y")], [value("x", ["rows", 4])], [value("y", None)])
    run = tw.compile(made, inputs={"x": (tw.Dim("rows", 1, 64), 4)})
    for call in (lambda: run(), lambda: run(other=np.zeros((2, 4), "f4")), lambda: run({})):
        with pytest.raises(InputError, match=r"missing input 'x'|0 were given|unknown input") as e:
            call()
        assert "x: f32[rows, 4]" in e.value.hint


def test_attention_asks_how_many_queries_there_are():
    """Blocks of many queries and single ones are both there: typical sizes decided for all before."""
    text = compiled("attention").package.levels["schedule"]
    assert text.count("qt = local") == 2 and text.count("for few in serial") == 1  # whole blocks, and the last one


def test_a_size_that_was_called_before_goes_straight_to_native_code(monkeypatch):
    if not entry.usable():
        pytest.skip("this interpreter's arrays are looked at in Python")
    run = compiled("encoder")
    for batch, seq in ((2, 9), (1, 5)):
        right("encoder", run, batch, seq)
    monkeypatch.setattr(run, "run_all", None)
    for batch, seq in ((2, 9), (1, 5), (2, 9)):
        right("encoder", run, batch, seq)
    given = feeds("encoder", 2, 9)
    assert len(run(*given.values())) == len(run.outputs)
    monkeypatch.undo()
    strided = {n: np.repeat(a, 2, axis=1)[:, ::2] for n, a in given.items()}
    for want, got in zip(run(given), run(strided), strict=True):
        np.testing.assert_array_equal(want, got)
    with pytest.raises(InputError, match="i32"):
        run({n: a.astype(np.int32) for n, a in given.items()})


def test_a_profile_has_times_of_any_size_and_work_of_typical_ones():
    run = compiled("encoder")
    found = run.profile(feeds("encoder", 2, 9), repeats=2)
    assert found.seconds > 0 and len(found.calls) == len(run.package.program.calls)
    assert all(c.operations in (None, 0) and c.ideal is None and not c.bytes for c in found.calls)
    assert "total" in str(found)
    typical = {d.name: d.typical for d in run.sizes.dims}
    found = run.profile(feeds("encoder", *typical.values()), repeats=2)
    assert sum(c.operations or 0 for c in found.calls) > 0 and any(c.bytes for c in found.calls)
    right("encoder", run, 3, 4)


def test_a_transposition_along_an_open_dimension_gathers_nothing():
    """Rows of the last tile that are not there stand for the last one; vectors are no longer than the machine's."""
    made = model([node("Transpose", "x", "y", perm=[1, 0])], [value("x", ["n", 64])], [value("y", [64, "n"])])
    run = tw.compile(made, inputs={"x": (tw.Dim("n", 1, 64), 64)}, threads=1)
    assert "vector.gather" not in run.package.levels["emit"]
    for n in (1, 2, 3, 7, 15, 16, 17, 31, 64):
        x = np.random.default_rng(n).random((n, 64), np.float32)
        np.testing.assert_array_equal(run(x)[0], x.T)
