"""Open dimensions in a few sizes, and executables that compile nothing in a call."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from support.onnx_models import model as make
from support.onnx_models import node, value

import tilewright as tw
from tilewright.support.errors import InputError, ModelError, UsageError

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WIDTH = 16


def weight(*shape):
    return (np.random.default_rng(shape[0]).standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def attention(out=("batch", "seq", WIDTH)):
    """Tokens with a mask of those that count: an embedding, one head of attention over what the mask leaves, and the
    mean of its rows as a second output."""
    weights = {"words": weight(50, WIDTH), **{f"w{k}": weight(WIDTH + i, WIDTH)[:WIDTH] for i, k in enumerate("qkvo")}}
    weights |= {"one": np.array(1), "low": np.array(-1e9, np.float32), "middle": np.array([1]), "last": np.array([2])}
    nodes = [
        node("Gather", "words ids", "e"),
        *[node("MatMul", f"e w{k}", k) for k in "qkv"],
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "scores"),
        node("Sub", "mask one", "m0"),
        node("Neg", "m0", "m1"),
        node("Cast", "m1", "m2", to=F),
        node("Mul", "m2 low", "m3"),
        node("Unsqueeze", "m3 middle", "bias"),
        node("Add", "scores bias", "masked"),
        node("Softmax", "masked", "p", axis=-1),
        node("MatMul", "p v", "a"),
        node("MatMul", "a wo", "y"),
        node("Cast", "mask", "counts", to=F),
        node("Unsqueeze", "counts last", "c3"),
        node("Mul", "y c3", "counted"),
        node("ReduceSum", "counted middle", "sums", keepdims=0),
        node("ReduceSum", "counts middle", "number", keepdims=1),
        node("Div", "sums number", "mean"),
    ]
    inputs = [value("ids", ["batch", "seq"], I64), value("mask", ["batch", "seq"], I64)]
    return make(nodes, inputs, [value("y", out), value("mean", ["batch", WIDTH])], weights)


def texts(batch, seq):
    rng = np.random.default_rng(100 * batch + seq)
    mask = np.ones((batch, seq), np.int64)
    mask[0, seq - seq // 3 :] = 0
    return {"ids": rng.integers(0, 50, (batch, seq)), "mask": mask}


def agrees(run, made, feed):
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    results = run(feed)
    for got, want in zip(results, session.run(None, feed), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype and got.flags.c_contiguous
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    return results


def test_padding_does_not_matter(tmp_path):
    made = attention()
    run = tw.compile(made, buckets={"seq": [32, 8, 16]}, pad={"ids": 3}, threads=1)
    plain = tw.compile(made, threads=1)
    for seq in (1, 5, 8, 9, 16, 17, 31, 32, 7):
        for got, want in zip(agrees(run, made, texts(2, seq)), plain(texts(2, seq)), strict=True):
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    assert run.compiled == 3 and plain.compiled == 0
    assert "buckets seq: 8, 16, 32" in run.explain()
    run.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=1)
    for seq in (3, 12, 30):
        agrees(again, made, texts(2, seq))
    assert again.compiled == 0
    agrees(again, made, texts(1, 30))  # another batch is another program
    assert again.compiled == 1
    with pytest.raises(InputError, match="is 33, above the largest bucket: those of seq are 8, 16, 32"):
        again(texts(1, 33))


def test_buckets_of_two_dimensions_are_compiled_ahead(monkeypatch):
    made = attention()
    run = tw.compile(made, buckets={"batch": [1, 4], "seq": [8, 16]}, specialize="never", threads=1)
    with pytest.raises(
        InputError, match=r"no program for ids i64\[4, 8\], mask i64\[4, 8\], .* compiles none in a call"
    ):
        run(texts(3, 5))
    run.specialize_buckets()
    run.specialize({"ids": (2, 3), "mask": (2, 3)})
    assert run.compiled == 4
    for batch, seq in ((1, 8), (3, 5), (4, 16), (1, 12), (2, 9)):
        agrees(run, made, texts(batch, seq))
    for call in (lambda feed: run(**feed), lambda feed: run.run([feed["ids"], feed["mask"]])):
        np.testing.assert_array_equal(call(texts(3, 5))[0], run(texts(3, 5))[0])
    into = [np.empty((3, 5, WIDTH), np.float32), np.empty((3, WIDTH), np.float32)]
    run(texts(3, 5), out=into)
    np.testing.assert_array_equal(into[0], run(texts(3, 5))[0])
    assert run.compiled == 4 and run.profile(texts(3, 5), repeats=1)


def test_every_combination_is_kept_and_made_once():
    made = make([node("Relu", "x", "y")], [value("x", ["n"])], [value("y", ["n"])])
    run = tw.compile(made, buckets={"n": list(range(1, 25))}, threads=1)
    run.specialize_buckets()
    run.specialize_buckets()
    assert run.compiled == 24 == len(list(run.parts()))
    threads = [threading.Thread(target=run, args=(np.ones(n, np.float32),)) for n in range(1, 25)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert run.compiled == 24


def test_one_more_size_and_other_dimensions():
    made = attention()
    run = tw.compile(made, buckets={"seq": [8, 16]}, threads=1)
    with pytest.raises(UsageError, match=r"no buckets: batch of 'ids', batch of 'mask'"):
        run.specialize_buckets()
    run.specialize_buckets({"batch": 2})
    assert run.compiled == 2
    agrees(run, made, texts(2, 11))
    assert run.compiled == 2
    with pytest.raises(UsageError, match="without buckets"):
        tw.compile(made, threads=1).specialize_buckets()


def test_a_size_that_is_given_beside_buckets():
    """The shape of one input tells its dimensions wherever their names stand."""
    made = make(
        [node("Mul", "x scale", "y")],
        [value("x", ["batch", "n"]), value("scale", ["batch", 1])], [value("y", ["batch", "n"])],
    )  # fmt: skip
    run = tw.compile(made, inputs={"scale": (3, 1)}, buckets={"n": [4, 8]}, threads=1)
    assert [t.shape for t in run.inputs] == [(3, "n"), (3, 1)] and run.outputs[0].shape == (3, "n")
    run.specialize_buckets()
    x, scale = np.ones((3, 5), np.float32), np.array([[1], [2], [3]], np.float32)
    np.testing.assert_array_equal(run(x, scale)[0], x * scale)
    assert run.compiled == 2


@pytest.mark.parametrize(
    ("kind", "fill", "expected"),
    [(F, None, 0), (F, -1.5, -1.5), (I64, 7, 7), (BOOL, True, 1), (BOOL, None, 0)],
)
def test_what_is_padded_with(kind, fill, expected):
    nodes = [node("Cast", "x", "f", to=F), node("ReduceSum", "f", "y", keepdims=0)]
    made = make(nodes, [value("x", ["n"], kind)], [value("y", [])])
    run = tw.compile(made, buckets={"n": [8]}, pad=None if fill is None else {"x": fill}, threads=1)
    assert run(np.zeros(5, run.inputs[0].numpy_dtype))[0] == 3 * expected
    assert run(np.ones(8, run.inputs[0].numpy_dtype))[0] == 8


def relu(shape=("n",), out=("n",)):
    return make([node("Relu", "x", "y")], [value("x", shape)], [value("y", out)])


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        (relu(), {"buckets": {"m": [8]}}, "name a dimension 'm', and no input has one of this name"),
        (relu(), {"buckets": {"n": []}}, r"option 'buckets' has \[\] for 'n': expected a list of sizes"),
        (relu(), {"buckets": {"n": [0, 8]}}, "expected a list of sizes"),
        (relu(), {"buckets": {"n": 8}}, "expected a list of sizes"),
        (relu(), {"buckets": {"n": [8]}, "pad": {"y": 1}}, "'pad' is for 'y', and buckets pad no input of this name"),
        (relu(), {"buckets": {"n": [8]}, "pad": {"x": "0"}}, "'pad' has '0' for 'x': expected a number"),
        (relu(), {"pad": {"x": 0}}, "none is without option 'buckets'"),
        (relu(), {"buckets": {"n": [4, 8]}, "specializations": 1}, "2 combinations, specializations=1 keeps fewer"),
        (relu(out=(None,)), {"buckets": {"n": [8]}}, r"output y: f32\[\?\] has dimensions that no input names"),
        (relu(out=("k",)), {"buckets": {"n": [8]}}, r"output y: f32\[k\] has dimensions that no input names"),
        (relu(out=None), {"buckets": {"n": [8]}}, r"output y: f32\[...\] has dimensions that no input names"),
        (relu((4,), (4,)), {"buckets": {"n": [8]}}, "buckets are for open dimensions"),
        (relu(), {"buckets": {"n": [8]}, "inputs": {"x": (3,)}}, "buckets are for open dimensions"),
        (relu(), {"specialize": "sometimes"}, "option 'specialize' is 'sometimes'"),
    ],
)
def test_what_cannot_be(made, options, said):
    with pytest.raises(UsageError, match=said):
        tw.compile(made, **options)


def test_a_number_that_an_input_cannot_hold():
    made = make([node("Abs", "x", "y")], [value("x", ["n"], I64)], [value("y", ["n"], I64)])
    with pytest.raises(UsageError, match=r"'pad' has 0.5 for 'x', which x: i64\[n\] cannot hold"):
        tw.compile(made, buckets={"n": [8]}, pad={"x": 0.5})


def test_an_output_that_is_not_what_its_name_says():
    """The model says n of an output that has another size: an error, not a wrong cut."""
    made = make([node("Concat", "x x", "y", axis=0)], [value("x", ["n"])], [value("y", ["n"])])
    run = tw.compile(made, buckets={"n": [8]}, threads=1)
    with pytest.raises(ModelError, match=r"output y: f32\[n\] has the shape \[16\] where n is 8"):
        run(np.ones(5, np.float32))


# ---- specialize="never" --------------------------------------------------------------------------------------------


def test_never_lists_what_there_is(tmp_path):
    run = tw.compile(relu(), specialize="never", threads=1)
    with pytest.raises(InputError, match=r"no program for x f32\[3\].*\n.*\n.*there is none; compile ahead"):
        run(np.ones(3, np.float32))
    for n in range(1, 21):
        run.specialize({"x": (n,)})
    assert run.compiled == 20, "what is made ahead is not thrown out"
    for n in range(1, 21):
        assert run(np.full(n, -1, np.float32))[0].shape == (n,)
    run.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw")
    with pytest.raises(InputError, match=r"programs for x f32\[5\]; .*x f32\[20\]; 4 more"):
        again(np.ones(21, np.float32))
    assert again(np.ones(20, np.float32))[0].shape == (20,) and again.compiled == 0
    again.specialize({"x": (21,)})
    assert again(np.ones(21, np.float32))[0].shape == (21,)


def test_never_with_sizes_that_depend_on_data():
    """Arrays make all parts that a run with them needs; another count is refused."""
    nodes = [node("NonZero", "x", "at"), node("CumSum", "at one", "y")]
    made = make(nodes, [value("x", [6])], [value("y", [1, "k"], I64)], {"one": np.array(1)})
    run = tw.compile(made, specialize="never", threads=1)
    x = np.array([0, 1, 0, 1, 1, 0], np.float32)
    run.specialize({"x": x})
    made = run.compiled
    assert run(1 - x)[0].tolist() == [[0, 2, 7]]
    with pytest.raises(InputError, match=r"no program for at i64\[1, 2\], .*\n.*\n.*programs for at i64\[1, 3\]; comp"):
        run(np.array([1, 1, 0, 0, 0, 0], np.float32))
    assert run.compiled == made
