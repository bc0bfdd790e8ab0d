"""No number that stands for a size while a model is compiled may reach code: other numbers, the same code."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.onnx_models import model, node, value
from support.open_models import BATCH, MODELS, SEQ, Writer, feeds

import tilewright as tw
from tilewright.driver.compiler import compile_state
from tilewright.support import size_encoding


def last(operator: str) -> onnx.ModelProto:
    """The last row of a text, which stands at a place that is made of a size."""
    w = Writer()
    if operator == "Gather":
        y = w.op("Gather", "x", w.ints(-1), axis=1)
    else:
        y = w.op("Slice", "x", w.ints(-1), w.ints(1 << 40), w.ints(1))
    return w.model([value("x", ["batch", "seq", 20])], {y: ["batch", 1, 20]})


def positions() -> onnx.ModelProto:
    """Numbers that are made of sizes: the length as a float, positions, the mean by hand."""
    w = Writer()
    seq = w.op("Gather", w.op("Shape", "x"), w.constant(np.array(1)))
    places = w.op("Range", w.constant(np.array(0)), seq, w.constant(np.array(1)))
    x = w.op("Add", "x", w.op("Unsqueeze", w.op("Cast", places, to=TensorProto.FLOAT), w.ints(1)))
    y = w.op("Div", w.op("ReduceSum", x, w.ints(1), keepdims=0), w.op("Cast", seq, to=TensorProto.FLOAT))
    return w.model([value("x", ["batch", "seq", 20])], {y: ["batch", 20]})


def floats() -> onnx.ModelProto:
    """Every third position as a float, of a range of floats whose end is a size."""
    w = Writer()
    seq = w.op("Cast", w.op("Gather", w.op("Shape", "x"), w.constant(np.array(1))), to=TensorProto.FLOAT)
    places = w.op("Range", w.number(0), seq, w.number(3))
    y = w.op("Add", w.op("ReduceMax", "x", axes=[1]), w.op("ReduceSum", places, w.ints(0)))
    return w.model([value("x", ["batch", "seq", 20])], {y: ["batch", 1, 20]})


def cache() -> onnx.ModelProto:
    """A row of keys, which are the values too, behind those that are there."""
    w = Writer()
    w.nodes.append(node("Concat", "past x", "present", axis=2))
    scores = w.op("Mul", w.op("MatMul", "x", w.op("Transpose", "present", perm=[0, 1, 3, 2])), w.number(0.25))
    w.nodes.append(node("MatMul", f"{w.op('Softmax', scores, axis=-1)} present", "y"))
    outputs = [value("y", [1, 2, 1, 16]), value("present", [1, 2, "present", 16])]
    return model(
        w.nodes, [value("x", [1, 2, 1, 16]), value("past", [1, 2, "past", 16])], outputs, w.constants, opset=17
    )


def causal() -> onnx.ModelProto:
    """Attention to a past and to what comes with it: query i sees the keys up to i + past."""
    made = helper.make_node("Attention", ["q", "k", "v", "", "past_k", "past_v"], ["y", "pk", "pv"], is_causal=1)
    inputs = [value(n, [1, 2, "seq", 16]) for n in "qkv"] + [value(f"past_{n}", [1, 2, "past", 16]) for n in "kv"]
    outputs = [value("y", [1, 2, "seq", 16]), *(value(f"p{n}", [1, 2, "total", 16]) for n in "kv")]
    return model([made], inputs, outputs, opset=23)


TEXT = {"x": (BATCH, SEQ, 20)}
CASES = {
    **MODELS,
    "last by Gather": (lambda: last("Gather"), TEXT),
    "last by Slice": (lambda: last("Slice"), TEXT),
    "positions": (positions, TEXT),
    "a range of floats": (floats, TEXT),
}
CACHE = {"x": (1, 2, 1, 16), "past": (1, 2, "past:0..50", 16)}
CAUSAL = {n: (1, 2, "past:1..50" if n.startswith("past") else SEQ, 16) for n in ("q", "k", "v", "past_k", "past_v")}
#: name -> (model, shapes of its inputs, states)
ALL = {
    **{name: (*case, None) for name, case in CASES.items()},
    "cache": (cache, CACHE, None),
    "cache that stays": (cache, CACHE, {"past": "present"}),
    "causal after a past": (causal, CAUSAL, None),
}


def made(name: str, target: str = "cpu") -> tuple[str, list[str], object]:
    """The nests, the code of the kernels, and what the package says of sizes."""
    make, shapes, states = ALL[name]
    how = {"inputs": shapes, "states": states, "threads": 1, "cache": False, "target": target}
    _, stopped = compile_state(make(), **how, stop_after="schedule")
    nests = plain(stopped.text())
    state, run = compile_state(make(), **how)
    emitted = [plain(text) for text in state.emitted.values()]
    return nests, emitted, (run.sizes, [(c.args, c.scratch, c.sizes) for c in run.package.program.calls])


def plain(text: str) -> str:
    """Without the hash at the end of kernels' names, which is that of the text of level 3."""
    return re.sub(r"_[0-9a-f]{10}\b", "", text)


@pytest.mark.parametrize("name", list(ALL))
def test_other_numbers_for_symbols_make_the_same_program(name, monkeypatch):
    same_with_other_numbers(name, "cpu", monkeypatch)


@pytest.mark.parametrize(("name", "target"), [("encoder", "opencl"), ("causal after a past", "cuda")])
def test_the_same_on_gpus(name, target, monkeypatch):
    same_with_other_numbers(name, target, monkeypatch)


def same_with_other_numbers(name: str, target: str, monkeypatch) -> None:
    first = made(name, target)
    monkeypatch.setattr(size_encoding, "_FIRST", 70_001)
    monkeypatch.setattr(size_encoding, "_APART", 7_000)
    second = made(name, target)
    for a, b, what in zip(first, second, ("nests", "kernels", "program"), strict=True):
        assert a == b, what


@pytest.mark.parametrize("name", [n for n in CASES if n not in MODELS])
def test_what_is_made_of_sizes_is_right(name):
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")
    made = CASES[name][0]()
    run = tw.compile(made, inputs=TEXT, threads=1)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch, seq in ((1, 1), (3, 17), (16, 64)):
        given = feeds("elementwise", batch, seq)
        np.testing.assert_allclose(run(given)[0], session.run(None, given)[0], rtol=1e-5, atol=1e-5)


def windows() -> onnx.ModelProto:
    """A transposed convolution whose weights are an input of any size: no table of its windows is made ahead."""
    w = Writer()
    w.nodes.append(node("ConvTranspose", "x w", "y", strides=[2]))
    return model(w.nodes, [value("x", [1, 16, 9]), value("w", [16, 16, "k"])], [value("y", [1, 16, "n"])])


def test_weights_of_an_open_size_are_refused_by_what_asks_for_it():
    inputs = {"x": (1, 16, 9), "w": (16, 16, tw.Dim("k", 1, 8))}
    with pytest.raises(tw.errors.UnsupportedError, match=r"of k at once: whether .* depends on sizes"):
        tw.compile(windows(), inputs=inputs, threads=1)
