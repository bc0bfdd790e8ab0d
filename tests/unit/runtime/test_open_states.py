"""Decoders whose cache has an open length: as inputs and outputs, and as states that grow in place."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from support.onnx_models import model, node, value
from support.open_models import Writer

import tilewright as tw
from tilewright.support.errors import InputError, UnsupportedError, UsageError

ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")

HEADS, SHARED, DEPTH, WORDS = 4, 2, 8, 40
ROOM = 24
PAST = tw.Dim("past", 0, ROOM)
CACHE = (1, SHARED, PAST, DEPTH)
STATES = {"past_k": "present_k", "past_v": "present_v"}


@cache
def decoder():
    """One layer: ids [1, seq], mask [1, past + seq] -> y [1, seq, WORDS]; positions by a table, two heads a key."""
    w, width = Writer(), HEADS * DEPTH
    at = [w.constant(np.array(i, np.int64)) for i in range(4)]
    seq = w.op("Gather", w.op("Shape", "ids"), at[1])
    past = w.op("Gather", w.op("Shape", "past_k"), at[2])
    total = w.op("Add", past, seq)
    places = w.op("Range", past, total, at[1])
    x = w.op("Add", w.op("Gather", w.weights(WORDS, width), "ids"), w.op("Gather", w.weights(64, width), places))
    numbers = {n: w.op("Unsqueeze", n, w.ints(0)) for n in (seq, total)}
    for c in "qkv":
        heads = HEADS if c == "q" else SHARED
        shape = w.op("Concat", w.ints(1), numbers[seq], w.ints(heads, DEPTH), axis=0)
        split = w.op("Reshape", w.op("MatMul", x, w.weights(width, heads * DEPTH)), shape)
        w.nodes.append(node("Transpose", split, c, perm=[0, 2, 1, 3]))
    repeated = w.op("Concat", w.ints(1, SHARED, HEADS // SHARED), numbers[total], w.ints(DEPTH), axis=0)
    merged = w.op("Concat", w.ints(1, HEADS), numbers[total], w.ints(DEPTH), axis=0)
    found = {}
    for c in "kv":
        w.nodes.append(node("Concat", f"past_{c} {c}", f"present_{c}", axis=2))
        wide = w.op("Expand", w.op("Unsqueeze", f"present_{c}", w.ints(2)), repeated)
        found[c] = w.op("Reshape", wide, merged)
    keys = w.op("Range", at[0], total, at[1])
    seen = w.op("LessOrEqual", keys, w.op("Unsqueeze", places, w.ints(1)))
    seen = w.op("And", seen, w.op("Cast", "mask", to=TensorProto.BOOL))
    scores = w.op("Mul", w.op("MatMul", "q", w.op("Transpose", found["k"], perm=[0, 1, 3, 2])), w.number(DEPTH**-0.5))
    scores = w.op("Where", seen, scores, w.number(np.finfo(np.float32).min))
    y = w.op("Transpose", w.op("MatMul", w.op("Softmax", scores, axis=-1), found["v"]), perm=[0, 2, 1, 3])
    y = w.op("Reshape", y, w.op("Concat", w.ints(1), numbers[seq], w.ints(width), axis=0))
    w.nodes.append(node("MatMul", f"{y} {w.weights(width, WORDS)}", "y"))
    caches = [(f"{when}_{c}", [1, SHARED, when, DEPTH]) for when in ("past", "present") for c in "kv"]
    inputs = [value("ids", [1, "seq"], TensorProto.INT64), value("mask", [1, "present"], TensorProto.INT64)]
    inputs += [value(*c) for c in caches[:2]]
    return model(
        w.nodes, inputs, [value("y", [1, "seq", WORDS]), *(value(*c) for c in caches[2:])], w.constants, opset=17
    )


@cache
def expected():
    return ort.InferenceSession(decoder().SerializeToString(), providers=["CPUExecutionProvider"])


def shapes(seq, **more) -> dict:
    total = "past+1" if seq == 1 else "past+seq"
    return {"ids": (1, seq), "mask": (1, total), "past_k": CACHE, "past_v": CACHE, **more}


@cache
def compiled(seq, states=False, threads=1):
    return tw.compile(decoder(), inputs=shapes(seq), states=STATES if states else None, threads=threads)


class Text:
    """A text as it is decoded: the tokens of a step, with the cache that ONNX Runtime has then."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.cache = {n: np.zeros((1, SHARED, 0, DEPTH), np.float32) for n in STATES}

    @property
    def length(self) -> int:
        return self.cache["past_k"].shape[2]

    def step(self, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """What goes in but for the cache, and what comes out."""
        mask = np.ones((1, self.length + count), np.int64)
        mask[:, : self.length // 3] = 0
        given = {"ids": self.rng.integers(0, WORDS, (1, count)), "mask": mask}
        y, *caches = expected().run(None, {**given, **self.cache})
        self.cache = dict(zip(STATES, caches, strict=True))
        return given, y

    def compare(self, run) -> None:
        """The states of a program are what ONNX Runtime has."""
        for name, array in self.cache.items():
            assert run.states[name].shape == array.shape
            np.testing.assert_allclose(run.states[name], array, atol=1e-5)


def close(got, want) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * abs(want).max())


@pytest.mark.parametrize("seq", [1, tw.Dim("seq", 1, 9)], ids=str)
def test_a_cache_of_any_length(seq):
    run, rng = compiled(seq), np.random.default_rng(1)
    for past in (0, 1, 2, 7, 8, 15, 16, 23, ROOM):
        for count in (1,) if seq == 1 else (1, 4, 9):
            given = {n: rng.standard_normal((1, SHARED, past, DEPTH), np.float32) for n in STATES}
            given |= {"ids": rng.integers(0, WORDS, (1, count)), "mask": np.ones((1, past + count), np.int64)}
            for got, want in zip(run(given), expected().run(None, given), strict=True):
                close(got, want)


def test_a_derived_size_is_checked():
    given = {n: np.zeros((1, SHARED, 3, DEPTH), np.float32) for n in STATES}
    given |= {"ids": np.zeros((1, 1), np.int64), "mask": np.ones((1, 5), np.int64)}
    with pytest.raises(InputError, match=r"dimension 1 of input 'mask' .* is 5, but \(past \+ 1\) is 4"):
        compiled(1)(given)
    for wrong in ("past+other", "past+", "__import__"):
        with pytest.raises(UsageError, match="is no formula of open dimensions"):
            tw.compile(decoder(), inputs=shapes(1, mask=(1, wrong)))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_state_grows_in_place(threads):
    run = compiled(tw.Dim("seq", 1, 9), True, threads)
    run.reset()
    begins = set()
    for seed in range(2):
        text = Text(seed)
        for count in (5, 1, 1, 9, 1, 7):  # as much as there is room for
            given, want = text.step(count)
            close(run(given)[0], want)
            text.compare(run)
            begins.add(run.states["past_k"].ctypes.data)
        assert text.length == ROOM
        run.reset()
        assert run.states["past_k"].shape == (1, SHARED, 0, DEPTH)
    assert len(begins) == 1 and "past_k: f32[1, 2, 24, 8] <- present_k, in place, dimension 2 grows" in str(run)


def test_what_is_in_the_cache_is_not_written_again():
    run, text = compiled(1, True), Text()
    run.reset()
    run(text.step(1)[0])
    kept = run.states["past_k"]
    kept[...] = 7
    run(text.step(1)[0])
    assert (run.states["past_k"][:, :, 0] == 7).all() and (run.states["past_k"][:, :, 1] != 7).any()


def test_no_room_is_an_error_and_nothing_is_written():
    run, text = compiled(tw.Dim("seq", 1, 9), True), Text()
    run.reset()
    for count in (9, 9):
        run(text.step(count)[0])
    before = run.states["past_k"].copy()
    ids, mask = np.zeros((1, 7), np.int64), np.ones((1, 25), np.int64)
    with pytest.raises(InputError, match="state 'past_k' has room for 24 rows, and this call would make them 25"):
        run(ids, mask)
    np.testing.assert_array_equal(run.states["past_k"], before)
    given, want = text.step(6)
    close(run(given)[0], want)


def test_states_are_assigned_at_any_length():
    run, text = compiled(1, True), Text()
    for _ in range(5):
        text.step(1)
    for name, array in text.cache.items():
        run.states[name] = array
    given, want = text.step(1)
    close(run(given)[0], want)
    text.compare(run)
    with pytest.raises(InputError, match="state 'past_k'"):
        run.states["past_k"] = np.zeros((1, SHARED, ROOM + 1, DEPTH), np.float32)
    with pytest.raises(InputError):
        run.states["past_k"] = np.zeros((SHARED, 3, DEPTH), np.float32)
    text.compare(run)
    run.states["past_v"] = text.cache["past_v"][:, :, :2]
    with pytest.raises(InputError, match="state 'past_v' has 2 rows, but past is 6 in 'past_k'"):
        run(text.step(1)[0])
    run.reset()


LOADS = """
import sys, numpy as np
for name in ("onnx", "torch_mlir", "torch", "onnxruntime"):
    sys.modules[name] = None
import tilewright as tw
run = tw.load(sys.argv[1], threads=1)
given = np.load(sys.argv[2])
for i in range(int(given["count"])):
    ids, mask = given[f"ids{i}"], given[f"mask{i}"]
    (y,) = run["decode" if ids.shape[1] == 1 else "prefill"](ids, mask)
    assert abs(y - given[f"y{i}"]).max() < 1e-4, i
assert run.states["past_k"].shape[2] == mask.shape[1]
"""


def test_a_prompt_and_steps_share_a_cache_in_one_package(tmp_path):
    inputs = {"prefill:ids": (1, "seq:2..16"), "prefill:mask": (1, "past+seq")}
    inputs |= {"decode:ids": (1, 1), "decode:mask": (1, "past+1"), "past_k": CACHE, "past_v": CACHE}
    run = tw.compile({"prefill": decoder(), "decode": decoder()}, inputs=inputs, states=STATES, threads=1)
    run.save(tmp_path / "m.tw")
    arrays, text = {}, Text()
    for i, count in enumerate((11, 1, 1, 3, 1)):
        given, want = text.step(count)
        close(run["decode" if count == 1 else "prefill"](given)[0], want)
        text.compare(run)
        arrays |= {**{f"{n}{i}": a for n, a in given.items()}, f"y{i}": want, "count": i + 1}
    np.savez(tmp_path / "x.npz", **arrays)
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    environment = {**os.environ, "PYTHONPATH": str(Path(tw.__file__).parents[1])}
    command = [sys.executable, script, tmp_path / "m.tw", tmp_path / "x.npz"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def small(nodes, present="present", rest=(), **constants):
    """x [n, 4] and past [past, 4] -> what is read of them."""
    outputs = [value(present, None), *(value(r, None) for r in rest)]
    return model(nodes, [value("x", ["n", 4]), value("past", ["past", 4])], outputs, constants)


def test_the_old_value_is_read_after_the_new_one_is_written():
    """Then there are two buffers."""
    nodes = [
        node("Concat", "past x", "present", axis=0),
        node("ReduceSum", "present zero", "sum", keepdims=1),
        node("Add", "past sum", "y"),
    ]
    given = small(nodes, rest=["y"], zero=np.array([0]))
    run = tw.compile(given, inputs={"x": ("n:1..3", 4), "past": ("past:0..9", 4)}, states={"past": "present"})
    before = np.zeros((0, 4), np.float32)
    for n in (2, 1, 3, 1):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        after = np.concatenate([before, x])
        np.testing.assert_allclose(run(x)[0], before + after.sum(0), atol=1e-5)
        np.testing.assert_array_equal(run.states["past"], after)
        before = after


@pytest.mark.parametrize(
    "nodes, past, error, message",
    [
        ([node("Concat", "past x", "present", axis=0)], "past:1..9", UsageError, "is empty at first"),
        ([node("Concat", "x past", "present", axis=0)], "past:0..9", UnsupportedError, "rows behind it"),
        ([node("Concat", "past past", "present", axis=0)], "past:0..9", UnsupportedError, "rows behind it"),
        ([node("Relu", "past", "present")], "past:0..9", UnsupportedError, "rows behind it"),
        ([node("Transpose", "past", "present", perm=[1, 0])], "past:0..9", UnsupportedError, "along which it grows"),
    ],
)
def test_states_that_cannot_grow(nodes, past, error, message):
    with pytest.raises(error, match=message):
        tw.compile(small(nodes), inputs={"x": ("n:1..3", 4), "past": (past, 4)}, states={"past": "present"})


def test_a_state_of_known_size_beside_open_dimensions():
    nodes = [node("ReduceSum", "x zero", "s", keepdims=1), node("Add", "past s", "present")]
    given = small(nodes, zero=np.array([0]))
    run = tw.compile(given, inputs={"x": ("n:0..6", 4), "past": (1, 4)}, states={"past": "present"}, threads=1)
    for n in (3, 0, 6):
        run(np.ones((n, 4), np.float32))
    np.testing.assert_array_equal(run.states["past"], np.full((1, 4), 9))


def test_numbers_that_only_a_run_can_tell():
    """An element of a table at an open place, and a comparison of an open length, as data."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape first", "n"),
        node("Gather", "table n", "element"),
        node("Less", "n four", "few"),
        node("Cast", "few", "flag", to=TensorProto.INT64),
        node("Add", "element flag", "present"),
    ]
    table = np.arange(10) ** 2
    numbers = {"first": np.array(0), "table": table, "four": np.array(4)}
    given = model(nodes, [value("x", ["n", 4])], [value("present", [], TensorProto.INT64)], numbers)
    run = tw.compile(given, inputs={"x": ("n:0..9", 4)}, threads=1)
    for n in range(10):
        assert run(np.ones((n, 4), np.float32))[0] == table[n] + (n < 4)


def test_a_cache_that_no_attention_kernel_reads():
    """Of two dimensions: products, a transposition and a softmax read the filled part of the buffer."""
    w = Writer()
    weights = {c: w.weights(16, 16) for c in "qkv"}
    nodes = [
        *(node("MatMul", f"x {weights[c]}", c) for c in "qkv"),
        *(node("Concat", f"past_{c} {c}", f"present_{c}", axis=0) for c in "kv"),
        node("Transpose", "present_k", "keys", perm=[1, 0]),
        node("MatMul", "q keys", "scores"),
        node("Softmax", "scores", "shares"),
        node("MatMul", "shares present_v", "y"),
    ]
    caches = [value(f"{when}_{c}", [when, 16]) for when in ("past", "present") for c in "kv"]
    given = model(nodes, [value("x", [1, 16]), *caches[:2]], [value("y", [1, 16]), *caches[2:]], w.constants, opset=17)
    shape = ("past:0..70", 16)
    run = tw.compile(given, inputs={"past_k": shape, "past_v": shape}, states=STATES, threads=1)
    numbers = {c: w.constants[name].astype(np.float64) for c, name in weights.items()}
    seen, rng = [], np.random.default_rng(0)
    for _ in range(70):
        x = rng.standard_normal((1, 16)).astype(np.float32)
        seen.append(x[0])
        q, k, v = x @ numbers["q"], np.array(seen) @ numbers["k"], np.array(seen) @ numbers["v"]
        shares = np.exp(q @ k.T - (q @ k.T).max())
        close(run(x)[0], shares @ v / shares.sum())
    np.testing.assert_allclose(run.states["past_v"], v, atol=1e-5)
