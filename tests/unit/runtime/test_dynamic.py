"""Models with open shapes: they specialize themselves, keep a bounded number of programs, agree with ONNX Runtime."""

from __future__ import annotations

import logging
import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.onnx_models import model as make
from support.onnx_models import node, value

import tilewright as tw
from tilewright.program.versions import Limits
from tilewright.runtime import staged
from tilewright.support.errors import InputError, ModelError, UsageError

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def agrees(executable, model, feed, tolerance=1e-4):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(executable.run(feed), session.run(None, feed), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def encoder(layers=1, width=32, heads=4, words=50):
    """A small BERT as exporters write it: the sizes of batch and sequence come from Shape nodes."""
    rng = np.random.default_rng(0)

    def weight(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    weights = {"words": weight(words, width), "places": weight(64, width)}
    weights |= {"zero": np.array(0), "one": np.array(1), "h": np.array([heads]), "d": np.array([width // heads])}
    weights |= {"w": np.array([width]), "scale": np.array(np.sqrt(width // heads), np.float32), "axis": np.array([0])}
    nodes = [
        node("Shape", "ids", "shape"),
        node("Gather", "shape zero", "b0"),
        node("Gather", "shape one", "s0"),
        node("Unsqueeze", "b0 axis", "b"),
        node("Unsqueeze", "s0 axis", "s"),
        node("Concat", "b s h d", "split", axis=0),
        node("Concat", "b s w", "joined", axis=0),
        node("Range", "zero s0 one", "at"),
        node("Gather", "words ids", "e"),
        node("Gather", "places at", "p"),
        node("Add", "e p", "x0"),
    ]
    for i in range(layers):
        weights |= {f"w{k}{i}": weight(width, width) for k in "qkvo"}
        weights |= {f"up{i}": weight(width, 2 * width), f"down{i}": weight(2 * width, width)}
        weights |= {f"g{i}": 1 + 0.1 * weight(width), f"c{i}": 0.1 * weight(width)}
        for k in "qkv":
            nodes += [
                node("MatMul", f"x{i} w{k}{i}", f"{k}a{i}"),
                node("Reshape", f"{k}a{i} split", f"{k}b{i}"),
                node("Transpose", f"{k}b{i}", f"{k}{i}", perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3]),
            ]
        nodes += [
            node("MatMul", f"q{i} k{i}", f"qk{i}"),
            node("Div", f"qk{i} scale", f"sc{i}"),
            node("Softmax", f"sc{i}", f"pr{i}", axis=-1),
            node("MatMul", f"pr{i} v{i}", f"m{i}"),
            node("Transpose", f"m{i}", f"mt{i}", perm=[0, 2, 1, 3]),
            node("Reshape", f"mt{i} joined", f"mj{i}"),
            node("MatMul", f"mj{i} wo{i}", f"o{i}"),
            node("Add", f"o{i} x{i}", f"r{i}"),
            node("LayerNormalization", f"r{i} g{i} c{i}", f"n{i}", axis=-1),
            node("MatMul", f"n{i} up{i}", f"u{i}"),
            node("Relu", f"u{i}", f"a{i}"),
            node("MatMul", f"a{i} down{i}", f"dn{i}"),
            node("Add", f"dn{i} n{i}", f"x{i + 1}"),
        ]
    nodes.append(node("Identity", f"x{layers}", "y"))
    return make(nodes, [value("ids", ["batch", "seq"], I64)], [value("y", ["batch", "seq", width])], weights)


def network():
    """A small CNN for images of any size."""
    rng = np.random.default_rng(1)
    weights = {
        n: rng.standard_normal(s).astype(np.float32) * 0.2 for n, s in (("w1", (8, 3, 3, 3)), ("w2", (8, 8, 3, 3)))
    }
    weights |= {"b1": np.ones(8, np.float32), "fc": rng.standard_normal((8, 5)).astype(np.float32)}
    weights["scales"] = np.array([1, 1, 2, 2], np.float32)
    nodes = [
        node("Conv", "image w1 b1", "c1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1, 1, 1, 1]),
        node("Add", "c2 r1", "a"),
        helper.make_node("Resize", ["a", "", "scales"], ["up"], mode="nearest"),
        node("GlobalAveragePool", "a", "g"),
        node("Flatten", "g", "f"),
        node("MatMul", "f fc", "y"),
    ]
    outputs = [value("y", ["n", 5]), value("up", ["n", 8, "a", "b"])]
    return make(nodes, [value("image", ["n", 3, "height", "width"])], outputs, weights)


def small():
    """y = relu(x @ w) for any number of rows."""
    weights = {"w": np.random.default_rng(2).standard_normal((16, 8)).astype(np.float32)}
    return make(
        [node("MatMul", "x w", "h"), node("Relu", "h", "y")], [value("x", ["n", 16])], [value("y", ["n", 8])], weights
    )


def rows(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 16)).astype(np.float32)


# ---- against ONNX Runtime ----


def test_encoder_for_several_shapes():
    model = encoder()
    executable = tw.compile(model, threads=2, specialize="now")
    rng = np.random.default_rng(3)
    for shape in ((1, 7), (2, 16), (1, 1), (1, 7)):
        agrees(executable, model, {"ids": rng.integers(0, 50, shape)})
    assert executable.compiled == 3
    assert all(part.following is None and not part.actions for _, _, part in executable.parts()), "one program a shape"
    shared = executable.memory.weights
    one = next(part.executable for _, _, part in executable.parts()).memory.weights
    assert shared < 2 * one, "weights packed in the same way are there once"


def test_network_for_several_sizes():
    model = network()
    executable = tw.compile(model, threads=2)
    rng = np.random.default_rng(4)
    for shape in ((1, 3, 16, 16), (2, 3, 9, 20)):
        agrees(executable, model, {"image": rng.standard_normal(shape).astype(np.float32)})


def test_level_two_text():
    text = """func.func @main(%x: tensor<?x8xf32> {tw.name = "x"}) -> (tensor<?x8xf32> {tw.name = "y"}) {
      %0 = "tw.softmax"(%x) : (tensor<?x8xf32>) -> tensor<?x8xf32>
      return %0 : tensor<?x8xf32> }"""
    executable = tw.compile(text, threads=1)
    assert executable.inputs[0].shape == (None, 8)
    for n in (1, 3):
        x = np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)
        want = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        np.testing.assert_allclose(executable(x)[0], want, rtol=1e-5)


# ---- specializing ----


def test_ahead_of_time():
    model = small()
    fixed = tw.compile(model, inputs={"x": (4, 16)}, threads=1)
    assert isinstance(fixed, tw.Executable)
    executable = tw.compile(model, threads=1)
    executable.specialize({"x": (4, 16)})
    assert executable.compiled == 1
    np.testing.assert_array_equal(executable(rows(4))[0], fixed(rows(4))[0])
    assert executable.compiled == 1
    with pytest.raises(UsageError, match="needs a shape for 'x'"):
        executable.specialize({})
    with pytest.raises(InputError, match=r"the model takes x: f32\[n, 16\]"):
        executable.specialize({"x": (4, 15)})


def test_it_says_so(caplog):
    executable = tw.compile(small(), threads=1, specialize="now")
    with caplog.at_level(logging.INFO, "tilewright"):
        executable(rows(3))
        executable(rows(3))
    assert [r.message.split(" in ")[0] for r in caplog.records] == ["model: specialized for x f32[3, 16]"]
    text = executable.explain()
    assert "for x f32[3, 16]" in text and "run 2 times" in text and "x: f32[n, 16]" in text


def test_the_least_recently_used_goes():
    executable = tw.compile(small(), threads=1, specialize="now", specializations=2)
    for n in (1, 2, 1, 3):
        executable(rows(n))
    kept = [key[1][1] for _, key, _ in executable.parts()]
    assert kept == [(1, 16), (3, 16)]
    before = executable.compiled
    executable(rows(1))
    assert executable.compiled == before
    executable(rows(2))
    assert executable.compiled == before + 1


def test_more_sizes_than_are_kept(caplog, monkeypatch):
    monkeypatch.setattr(staged, "KEPT", 2)
    monkeypatch.setattr(staged, "MOST_KEPT", 4)
    executable = tw.compile(small(), threads=1, specialize="now")
    for n in (1, 2, 3, 4, 5):
        executable(rows(n))
    assert [key[1][1] for _, key, _ in executable.parts()] == [(2, 16), (3, 16), (4, 16), (5, 16)]
    assert not caplog.records
    for n in (1, 2, 3):
        executable(rows(n))
    assert [r.levelname for r in caplog.records] == ["WARNING"], "once"
    assert "compiled again for x f32[1, 16]" in caplog.text and "4 kept" in caplog.text
    executable.staged.bodies["main"].first.parts.limits = Limits(2, 4, 0)
    executable(rows(6))
    assert [key[1][1] for _, key, _ in executable.parts()] == [(3, 16), (6, 16)], "large parts: those kept in any case"


@pytest.mark.parametrize("shape", [(1, None), (-1, 16), ("n", 16)])
def test_a_shape_has_sizes_only(shape):
    with pytest.raises(UsageError, match="every dimension needs a size") as e:
        tw.compile(small(), inputs={"x": shape})
    assert "leave this input out" in e.value.hint


def test_threads():
    executable = tw.compile(small(), threads=2, specialize="now")
    want = {n: np.maximum(rows(n) @ onnx.numpy_helper.to_array(small().graph.initializer[0]), 0) for n in (2, 3, 4)}
    wrong: list = []

    def work(n):
        for _ in range(20):
            if not np.allclose(executable(rows(n))[0], want[n], atol=1e-5):
                wrong.append(n)

    team = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4, 2)]
    for t in team:
        t.start()
    for t in team:
        t.join()
    assert not wrong
    assert executable.compiled == 3


def test_out_and_profile_and_close():
    executable = tw.compile(small(), threads=1)
    out = np.zeros((2, 8), np.float32)
    assert executable(rows(2), out=[out])[0] is out
    np.testing.assert_array_equal(out, executable(rows(2))[0])
    with pytest.raises(InputError, match="out for 'y'"):
        executable(rows(2), out=[np.zeros((3, 8), np.float32)])
    profile = executable.profile({"x": rows(2)}, 2)
    assert profile.calls[0].names and profile.timeline is not None  # of the program for all sizes
    assert sum(c.share for c in profile.calls) <= 1.01 and "total" in str(profile) and "<svg" in profile.html()
    executable.close()
    executable(rows(2))


# ---- values that decide shapes ----


def test_inputs_by_keyword_and_in_one_argument():
    model = make([node("Add", "a b", "y")], [value("a", ["n"]), value("b", ["n"])], [value("y", ["n"])])
    executable = tw.compile(model, threads=1)
    a, b = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    for got in (executable(a=a, b=b), executable(a, b=b), executable.run([a, b]), executable.run({"a": a, "b": b})):
        assert np.array_equal(got[0], [1, 2, 3])
    with pytest.raises(InputError, match="input 'a' is given twice, by position and by keyword"):
        executable(a, a=a)
    with pytest.raises(InputError, match="missing input 'b'"):
        executable(a=a)
    assert np.array_equal(tw.compile(small(), threads=1).run(rows(2)), tw.compile(small(), threads=1)(x=rows(2)))


def test_reshape_by_an_input():
    nodes = [node("Relu", "x", "h"), node("Reshape", "h shape", "y")]
    model = make(nodes, [value("x", [4, 6]), value("shape", [2], I64)], [value("y", ["a", "b"])])
    executable = tw.compile(model, threads=1)
    x = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)
    for shape in ([2, 12], [24, -1], [2, 12]):
        agrees(executable, model, {"x": x, "shape": np.array(shape)})
    assert executable.compiled == 2
    assert "shape i64[2] = [2, 12]" in executable.explain()


def test_shape_computed_from_inputs():
    """The target depends on a small integer input and on a symbolic dimension."""
    weights = {"rest": np.array([-1])}
    nodes = [node("Concat", "k rest", "target", axis=0), node("Reshape", "x target", "y")]
    model = make(nodes, [value("x", ["n"]), value("k", [1], I64)], [value("y", ["a", "b"])], weights)
    executable = tw.compile(model, threads=1)
    for n, k in ((12, 3), (12, 4), (20, 5)):
        agrees(executable, model, {"x": np.arange(n, dtype=np.float32), "k": np.array([k])})


def test_slice_at_a_position_does_not_compile_again():
    nodes = [node("Slice", "x start end", "s"), node("Exp", "s", "y")]
    model = make(nodes, [value("x", [10, 4]), value("start", [1], I64), value("end", [1], I64)], [value("y", ["k", 4])])
    executable = tw.compile(model, threads=1)
    x = np.random.default_rng(6).standard_normal((10, 4)).astype(np.float32)
    for i in range(5):
        agrees(executable, model, {"x": x, "start": np.array([i]), "end": np.array([i + 2])})
    assert executable.compiled == 2


def test_the_caller_may_change_its_arrays():
    nodes = [node("Expand", "x shape", "y")]
    model = make(nodes, [value("x", [1]), value("shape", [2], I64)], [value("y", ["a", "b"])])
    executable, x, shape = tw.compile(model, threads=1), np.ones(1, np.float32), np.array([2, 3])
    assert executable(x, shape)[0].shape == (2, 3)
    shape[:] = 4
    assert executable(x, shape)[0].shape == (4, 4)


# ---- errors ----


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ({"a": np.zeros((2, 3), np.float32), "b": np.zeros((4, 3), np.float32)}, "is 4, but n is 2 in 'a'"),
        ({"a": np.zeros((2, 4), np.float32), "b": np.zeros((2, 3), np.float32)}, r"the model takes a: f32\[n, 3\]"),
        ({"a": np.zeros(3, np.float32), "b": np.zeros((2, 3), np.float32)}, r"has f32\[3\], the model takes a: f32"),
        ({"a": np.zeros((2, 3)), "b": np.zeros((2, 3), np.float32)}, "astype"),
        ({"a": np.zeros((2, 3), np.float32)}, "missing input 'b'"),
        ({"a": 1, "b": 2, "c": 3}, "unknown input 'c'"),
        ({"a": "x", "b": np.zeros((2, 3), np.float32)}, "is a str, not an array"),
    ],
)
def test_wrong_inputs(feed, said):
    model = make([node("Add", "a b", "y")], [value("a", ["n", 3]), value("b", ["n", 3])], [value("y", ["n", 3])])
    executable = tw.compile(model, threads=1)
    with pytest.raises(InputError, match=said):
        executable(feed)
    assert executable.compiled == 0


def test_shapes_that_do_not_go_together():
    model = make([node("MatMul", "a b", "y")], [value("a", ["n", "k"]), value("b", ["m", "p"])], [value("y", None)])
    executable = tw.compile(model, threads=1)
    with pytest.raises(ModelError, match="MatMul"):
        executable(np.zeros((2, 3), np.float32), np.zeros((4, 5), np.float32))
    executable(np.zeros((2, 3), np.float32), np.zeros((3, 5), np.float32))


def test_stages_need_shapes():
    with pytest.raises(ModelError, match="leaves the shape of 1 input open"):
        tw.compile(small(), stop_after="fuse")


def test_unknown_input_name():
    with pytest.raises(InputError, match="no input named 'q'"):
        tw.compile(small(), inputs={"q": (1, 2)})


def test_calls_of_the_same_shapes_go_straight_to_the_program(monkeypatch):
    """What the last call needed is asked for once; other shapes, dtypes and names are looked at as ever."""
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "y")]
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    model = make(nodes, [value("x", ["n", 4])], [value("y", ["n", 3])], {"w": weight})
    run = tw.compile(model, threads=1)
    for rows in (2, 2, 5, 2, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        for y in (*run(x), *run(x=x), *run({"x": x}), *run.run([x])):
            np.testing.assert_allclose(y, np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)
    with monkeypatch.context() as patch:
        patch.setattr(run, "_bind", None)  # not asked for again
        np.testing.assert_allclose(run(x)[0], run({"x": x})[0])
        np.testing.assert_allclose(run(x[:1].repeat(5, 0))[0][0], run(x)[0][0])  # of another size that was called
    for wrong in ((x.astype(np.float64),), ({"z": x},), ({"x": x, "z": x},), (x, x), (x[:, :3],)):
        with pytest.raises(InputError):
            run(*wrong)


def test_values_that_decide_shapes_are_looked_at_in_every_call():
    model = make([node("Expand", "x shape", "y")], [value("x", [1]), value("shape", [1], I64)], [value("y", ["n"])])
    run = tw.compile(model, threads=1)
    for n in (3, 3, 4, 3):
        assert run(np.ones(1, np.float32), np.array([n]))[0].shape == (n,)
