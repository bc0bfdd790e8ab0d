"""Several entries in one executable: shared constants, code and states, against the models one by one."""

from __future__ import annotations

import json
import os
import struct
import threading

import numpy as np
import pytest
from onnx import TensorProto, save
from onnx.reference import ReferenceEvaluator
from support.onnx_models import model, node, value

import tilewright as tw
from tilewright.cli import main
from tilewright.program import package as container
from tilewright.support.errors import PackageError, UnsupportedError, UsageError

LENGTH, WIDTH = 8, 32
STATES = {"past_k": "present_k", "past_v": "present_v"}


def weights(seed=1):
    rng = np.random.default_rng(seed)
    return {f"w{c}": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 6 for c in "qkvo"}


def decode(**names):
    """One token: reads the cache, writes its row of it, and attends to all rows up to there."""
    nodes = [
        *(node("MatMul", f"x w{c}", c) for c in "qkv"),
        node("Expand", "position row", "rows"),
        *(node("ScatterElements", f"past_{c} rows {c}", f"present_{c}", axis=0) for c in "kv"),
        node("Transpose", "present_k", "keys", perm=[1, 0]),
        node("MatMul", "q keys", "scores"),
        node("Greater", "places position", "later"),
        node("Reshape", "later flat", "masked"),
        node("Where", "masked low scores", "seen"),
        node("Softmax", "seen", "shares", axis=-1),
        node("MatMul", "shares present_v", "found"),
        node("MatMul", "found wo", "y"),
    ]
    caches = [value(f"{when}_{c}", [LENGTH, WIDTH]) for when in ("past", "present") for c in "kv"]
    return model(
        nodes,
        [value("x", [1, WIDTH]), value("position", [1, 1], TensorProto.INT64), *caches[:2]],
        [value("y", [1, WIDTH]), *caches[2:]],
        {"places": np.arange(LENGTH)[:, None], "row": np.array([1, WIDTH]), "flat": np.array([1, LENGTH]),
         "low": np.float32(-1e9), **weights()},
    )  # fmt: skip


def prefill(length=LENGTH):
    """A prompt: fills the whole cache, of which what lies behind the prompt is overwritten later."""
    nodes = [
        *(node("MatMul", f"x w{c}", c) for c in "qkv"),
        node("Identity", "k", "present_k"),
        node("Identity", "v", "present_v"),
        node("Transpose", "k", "keys", perm=[1, 0]),
        node("MatMul", "q keys", "scores"),
        node("Add", "scores mask", "seen"),
        node("Softmax", "seen", "shares", axis=-1),
        node("MatMul", "shares v", "found"),
        node("MatMul", "found wo", "y"),
    ]
    return model(
        nodes,
        [value("x", [length, WIDTH])],
        [value("y", [length, WIDTH]), *(value(f"present_{c}", [length, WIDTH]) for c in "kv")],
        {"mask": np.triu(np.full((length, length), -1e9, np.float32), 1), **weights()},
    )


def close(got, expected):
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-5 * max(1.0, np.abs(expected).max()))


def compiled(**options):
    return tw.compile({"prefill": prefill(), "decode": decode()}, states=STATES, **{"threads": 1, **options})


def tokens(count, seed=5):
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def padded(prompt):
    return np.concatenate([prompt, np.zeros((LENGTH - len(prompt), WIDTH), np.float32)])


def test_what_one_entry_writes_another_goes_on_from():
    run, x = compiled(), tokens(6)
    assert list(run.entries) == ["prefill", "decode"] and run["decode"] is run.entry("decode")
    assert [t.name for t in run["prefill"].inputs] == ["x"]
    assert [t.name for t in run["decode"].inputs] == ["x", "position"]
    whole = ReferenceEvaluator(prefill()).run(None, {"x": padded(x)})[0]
    close(run["prefill"](padded(x[:3]))[0][:3], whole[:3])
    for step in range(3, 6):
        (y,) = run["decode"](x=x[step : step + 1], position=np.array([[step]]))
        close(y[0], whole[step])
    told = {n: [str(s) for s in e.package.program.states] for n, e in run.entries.items()}
    shape = f"f32[{LENGTH}, {WIDTH}]"
    assert told == {
        "prefill": [f"past_{c}: {shape} <- present_{c}, only written" for c in "kv"],
        "decode": [f"past_{c}: {shape} <- present_{c}, in place" for c in "kv"],
    }
    run.reset()
    assert not any(run.states[name].any() for name in STATES)


def test_states_are_one_buffer():
    run = compiled()
    run["prefill"](tokens(LENGTH))
    kept = run.states["past_k"].copy()
    assert kept.any() and np.array_equal(run["decode"].states["past_k"], kept)
    assert run.states["past_k"].ctypes.data == run["prefill"].states["past_k"].ctypes.data
    run.states["past_k"] = np.zeros_like(kept)
    assert not run["decode"].states["past_k"].any()
    assert run.facts()["memory"]["states"] == 2 * 4 * LENGTH * WIDTH


def window(rows):
    """The last inputs: the next value needs a second buffer. With another entry that writes it in place."""
    shift = model(
        [node("Slice", "past one end zero", "rest"), node("Concat", "rest x", "present", axis=0)],
        [value("x", [1, 4]), value("past", [rows, 4])],
        [value("present", [rows, 4])],
        {"one": np.array([1]), "end": np.array([rows]), "zero": np.array([0])},
    )  # fmt: skip
    fill = model([node("Relu", "x", "present")], [value("x", [rows, 4])], [value("present", [rows, 4])])
    look = model([node("ReduceMax", "past", "y", keepdims=0)], [value("past", [rows, 4])], [value("y", [])])
    return {"shift": shift, "fill": fill, "look": look}


def test_two_buffers_that_others_write_and_read():
    """Where the two buffers change places, the other entries find the value all the same."""
    run = tw.compile(window(3), states={"past": "present"}, threads=1)
    how = [str(e.package.program.states[0]).partition("4]")[2] for e in run.entries.values()]
    assert how == [" <- present, two buffers", " <- present, only written", ", only read"]
    expected = np.zeros((3, 4), np.float32)
    for step in range(5):
        x = np.full((1, 4), step, np.float32)
        if step == 3:
            expected = np.full((3, 4), 9, np.float32)
            run["fill"](expected)
        run["shift"](x)
        expected = np.concatenate([expected[1:], x])
        assert np.array_equal(run.states["past"], expected)
        assert run["look"]()[0] == expected.max()


def test_calls_of_entries_with_states_run_one_after_the_other():
    add = model([node("Add", "n x", "m")], [value("x", [300]), value("n", [300])], [value("m", [300])])
    more = model(
        [node("Add", "n x", "h"), node("Add", "h x", "m")], [value("x", [300]), value("n", [300])], [value("m", [300])]
    )
    run = tw.compile({"add": add, "more": more}, states={"n": "m"}, threads=1)
    one = np.ones(300, np.float32)

    def work(name):
        for _ in range(50):
            run[name](one)

    workers = [threading.Thread(target=work, args=(n,)) for n in ("add", "more") * 3]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert np.array_equal(run.states["n"], np.full(300, 450, np.float32))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_calls_entries():
    """Whoever had the turn in the parent is not there in the child."""
    run, x = compiled(), tokens(LENGTH)
    run["prefill"](x)
    with run._turn.lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                held = threading.Thread(target=lambda: run["prefill"](x))
                held.start()
                held.join(20)
                code = int(held.is_alive())
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- what is shared ----


def trunk(head, names="w"):
    """Two models that share all but their last layer: 95% of their weights; `names` calls them differently."""
    rng = np.random.default_rng(0)
    shared = {f"{names}{i}": rng.standard_normal((128, 128)).astype(np.float32) for i in range(6)}
    nodes = [node("MatMul", f"{'x' if i == 0 else f'h{i}'} {names}{i}", f"h{i + 1}") for i in range(6)]
    last = np.random.default_rng(head).standard_normal((128, 32)).astype(np.float32)
    return model(
        [*nodes, node("MatMul", "h6 last", "y")],
        [value("x", [4, 128])],
        [value("y", [4, 32])],
        {**shared, "last": last},
    )


def test_weights_are_held_once(tmp_path):
    """Equal weights of two files are one array and once in the package, whatever they are called."""
    alone = tw.compile(trunk(1), threads=1)
    alone.save(tmp_path / "one.tw")
    both = tw.compile({"a": trunk(1), "b": trunk(2, "weight")}, threads=1)
    both.save(tmp_path / "two.tw")
    one, two = ((tmp_path / f"{n}.tw").stat().st_size for n in ("one", "two"))
    assert two < 1.15 * one, (one, two)
    loaded = tw.load(tmp_path / "two.tw", threads=1)
    for run in (both, loaded):
        a, b = (sorted(c.ctypes.data for c in e.package.constants) for e in run.entries.values())
        assert len(set(a) & set(b)) == 6 and len(a) == len(b) == 7
        assert run.facts()["memory"]["weights"] == sum(t.nbytes for t in alone.package.program.constants) + 4 * 128 * 32
    x = np.random.default_rng(3).standard_normal((4, 128)).astype(np.float32)
    for name, head in (("a", 1), ("b", 2)):
        want = tw.compile(trunk(head), threads=1)(x)[0]
        assert np.array_equal(both[name](x)[0], want) and np.array_equal(loaded[name](x)[0], want)


def test_kernels_are_stored_and_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    save(trunk(1), tmp_path / "a.onnx")
    save(trunk(2), tmp_path / "b.onnx")

    def compiled_kernels():
        return {p.name for p in (tmp_path / "cache" / "kernels").rglob("*.o")}

    tw.compile(tmp_path / "a.onnx", threads=1)
    known = compiled_kernels()
    both = tw.compile({"a": tmp_path / "a.onnx", "b": tmp_path / "b.onnx"}, threads=1)
    first, second = (e.package.program.symbols for e in both.entries.values())
    assert first == second and known and compiled_kernels() == known
    both.save(tmp_path / "m.tw")
    told = container._manifest(tmp_path / "m.tw", memoryview((tmp_path / "m.tw").read_bytes()))["entries"]
    assert [told["a"]["objects"][s] for s in first] == [told["b"]["objects"][s] for s in first]
    size = sum({at: n for e in told.values() for at, n in e["objects"].values()}.values())
    assert size < 1.5 * sum(n for _, n in told["a"]["objects"].values())


# ---- files ----


def test_saved_and_loaded(tmp_path):
    run, x = compiled(), tokens(6)
    run.save(tmp_path / "m.tw")
    head = (tmp_path / "m.tw").read_bytes()[: len(container.MAGIC) + 4]
    assert struct.unpack("<I", head[-4:]) == (container.FORMAT_WITH_ENTRIES,)
    loaded = tw.load(tmp_path / "m.tw", threads=1)
    assert list(loaded.entries) == ["prefill", "decode"]
    run["prefill"](padded(x[:5]))
    assert not loaded.states["past_k"].any()  # states of its own, zeros at first
    loaded["prefill"](padded(x[:5]))
    step = {"x": x[5:], "position": np.array([[5]])}
    assert np.array_equal(run["decode"](step)[0], loaded["decode"](step)[0])
    with pytest.raises(PackageError, match="holds the entries prefill, decode"):
        container.Package.load(tmp_path / "m.tw")


def test_packages_of_one_entry_and_of_newer_versions(tmp_path):
    run = tw.compile(prefill(), threads=1)
    assert list(run.entries) == ["main"] and run["main"] is run and run.entry() is run
    with pytest.raises(UsageError, match=r"there is no entry 'man'\n.*\n.*entries: main"):
        run.entry("man")
    run.save(tmp_path / "m.tw")
    data = (tmp_path / "m.tw").read_bytes()
    assert "entries" not in container._manifest(tmp_path / "m.tw", memoryview(data))  # as older versions read it
    assert list(tw.load(tmp_path / "m.tw").entries) == ["main"]
    at = len(container.MAGIC)
    (tmp_path / "new.tw").write_bytes(data[:at] + struct.pack("<I", 9) + data[at + 4 :])
    with pytest.raises(PackageError, match=r"has package format 9, .* reads format 3, 4 with states, 5 with several"):
        tw.load(tmp_path / "new.tw")


def test_a_damaged_package_of_entries(tmp_path):
    tw.compile({"a": trunk(1), "b": trunk(2)}, threads=1).save(tmp_path / "m.tw")
    data = bytearray((tmp_path / "m.tw").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m.tw").write_bytes(data)
    with pytest.raises(PackageError, match="is damaged"):
        tw.load(tmp_path / "m.tw")


# ---- what is said ----


def test_explained_and_profiled():
    run = compiled()
    text = run.explain()
    assert text.startswith("entry prefill\n") and "\nentry decode\n" in text and "\nall entries\n" in text
    facts = run.facts()
    assert list(facts["entries"]) == ["prefill", "decode"]
    # equal only where the entries want every weight in another layout, as wide vectors do for one row and for several
    assert facts["memory"]["weights"] <= sum(e["memory"]["weights"] for e in facts["entries"].values())
    assert repr(run).startswith("<MultiExecutable prefill: <Executable (x: f32[8, 32])")
    run["prefill"](tokens(LENGTH))
    kept = run.states["past_k"].copy()
    profile = run["decode"].profile({"x": tokens(1), "position": np.array([[0]])}, repeats=2)
    assert len(profile.calls) == len(run["decode"].package.program.calls)
    assert np.array_equal(run.states["past_k"], kept)
    run.close()


def test_verified():
    run = compiled(verify=True, threads=2)
    assert all(e.package.report["notes"][-1].startswith("verified") for e in run.entries.values())


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ({}, {}, "there is no model to compile"),
        ({"a b": prefill}, {}, "'a b' cannot be the name of an entry"),
        ({"a": prefill}, {"stop_after": "fuse"}, "stop_after shows one model"),
        ({"a": prefill}, {"start_after": "fuse"}, "start_after continues with one model"),
        ({"a": prefill}, {"states": {"past_k": "present_k"}}, "no entry has an input 'past_k'"),
        ({"a": decode}, {"states": {"past_k": "later_k"}}, "no entry has an output 'later_k'"),
        ({"a": decode}, {"states": {"x": "present_k"}}, "input 'x' is tensor<1x32xf32>, and output 'present_k'"),
        ({"a": lambda: prefill(4), "b": decode}, {"states": STATES}, "state 'past_k' is not the same in all"),
    ],
)
def test_what_does_not_fit(models, options, message):
    with pytest.raises(UsageError, match=message):
        tw.compile({n: make() for n, make in models.items()}, **{"threads": 1, **options})


def test_what_cannot_be():
    for target in ("c", "cortex-m4"):
        with pytest.raises(UnsupportedError, match=rf"target '{target}' has one entry a package.*\n.*\n.*entries: cpu"):
            tw.compile({"a": prefill(), "b": decode()}, target=target)
    run = compiled()
    with pytest.raises(UsageError, match=r"has several entries: prefill, decode\n.*\n.*run\['prefill'\]"):
        run(tokens(LENGTH))
    with pytest.raises(UsageError, match=r"there is no entry 'decod'\n.*\n.*entries: prefill, decode"):
        run["decod"]


def test_shapes_of_one_entry():
    made = trunk(1)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    with pytest.raises(UnsupportedError, match="entry 'a' leaves shapes open"):
        tw.compile({"a": made, "b": trunk(2)}, threads=1)
    run = tw.compile({"a": made, "b": made}, inputs={"a:x": (2, 128), "b:x": (3, 128)}, threads=1)
    assert [e.inputs[0].shape for e in run.entries.values()] == [(2, 128), (3, 128)]


def test_dumped_by_entry(tmp_path):
    compiled(dump=str(tmp_path))
    assert {p.parent.name for p in tmp_path.rglob("*-fuse.mlir")} == {"prefill", "decode"}


# ---- the command line ----


def test_command_line(tmp_path, capsys):
    save(prefill(), tmp_path / "p.onnx")
    save(decode(), tmp_path / "d.onnx")
    package, states = str(tmp_path / "m.tw"), [a for p in STATES.items() for a in ("--state", "=".join(p))]
    models = [f"prefill={tmp_path / 'p.onnx'}", f"decode={tmp_path / 'd.onnx'}"]
    assert main(["compile", *models, *states, "-o", package, "--threads", "1"]) == 0
    x = tokens(LENGTH)
    np.savez(tmp_path / "x.npz", x=x)
    want = ReferenceEvaluator(prefill()).run(None, {"x": x})[0]
    np.savez(tmp_path / "want.npz", y=want)
    given = ["--input", str(tmp_path / "x.npz"), "--check", str(tmp_path / "want.npz")]
    assert main(["run", package, "--entry", "prefill", *given]) == 0
    assert "check passed: y" in capsys.readouterr().err
    assert main(["run", package]) == 2
    assert "has several entries: prefill, decode\n" in (said := capsys.readouterr().err) and "--entry" in said
    assert main(["run", package, "--entry", "decode", "--repeat", "3"]) == 0
    assert main(["profile", package, "--entry", "decode", "--repeats", "2"]) == 0
    assert "scatter_elements" in capsys.readouterr().out
    assert main(["explain", package]) == 0
    assert "entry prefill" in (said := capsys.readouterr().out) and "all entries" in said
    assert main(["explain", package, "--entry", "decode"]) == 0
    assert "entry prefill" not in capsys.readouterr().out
    assert main(["explain", package, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["entries"]) == ["prefill", "decode"]
    assert main(["compile", models[0], str(tmp_path / "d.onnx"), "-o", package]) == 2
    assert "several models need names" in capsys.readouterr().err
    assert main(["compile", models[0], models[0], "-o", package]) == 2
    assert "name each model once" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "p.onnx"), "--entry", "decode"]) == 2
    assert "there is no entry 'decode'" in capsys.readouterr().err
