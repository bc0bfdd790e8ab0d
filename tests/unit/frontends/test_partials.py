"""Operators after results of unknown size: some go on in the program that found them, others wait for the size."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from support.onnx_models import model as make
from support.onnx_models import node, value

import tilewright as tw

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
CONSTANTS = {
    "one": np.array(1), "two": np.array([2]), "row": np.array([[3], [5]]), "three": np.array(3), "zero": np.array([0]),
    "last": np.array([-1]), "rows": np.array([-1, 2]), "split": np.array([1, 1]), "flat": np.array([-1]),
    "ones": np.array([1]), "wide": np.array([-1, 2, 1]), "keep": np.array([0, 2]), "first": np.array([0]),
    "many": np.ones((2, 3), np.int64), "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "table": np.arange(24, dtype=np.float32).reshape(6, 4), "pick": np.array([1, 0, 1]),
}  # fmt: skip


def run_all(nodes, outputs, counts=(5, 0, 1, 9, 24)):
    """The results at several counts of `at` = NonZero(x), i64 [2, count], and `rows_` = its transpose, against ONNX
    Runtime; how many parts were made for them."""
    first = [node("NonZero", "x", "at"), node("Transpose", "at", "rows_", perm=[1, 0])]
    used = {n for made in nodes for n in made.input}
    ends = [value(n, None, kind) for n, kind in outputs.items()]
    made = make(
        [*first, *nodes], [value("x", [6, 4])], ends, {n: a for n, a in CONSTANTS.items() if n in used}, opset=18
    )
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run, rng = tw.compile(made, threads=1), np.random.default_rng(0)
    for count in counts:
        x = np.zeros(24, np.float32)
        x[rng.permutation(24)[:count]] = 1 + rng.random(count, np.float32)
        for got, want in zip(run(x.reshape(6, 4)), session.run(None, {"x": x.reshape(6, 4)}), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-6)
    return run.compiled


FOLLOW = {
    "one operand": ([node("Cast", "at", "y", to=F)], F),
    "with a number": ([node("Mul", "at three", "y")], I64),
    "with a column": ([node("Add", "at row", "y")], I64),
    "with itself": ([node("Sub", "rows_ two", "a"), node("Mul", "a rows_", "y")], I64),
    "divided by a number": ([node("Div", "at three", "y")], I64),
    "a choice": ([node("Greater", "at three", "c"), node("Neg", "at", "n"), node("Where", "c at n", "y")], I64),
    "one column": ([node("Gather", "rows_ one", "y", axis=1)], I64),
    "some rows of the other dimension": ([node("Gather", "at pick", "y", axis=0)], I64),
    "read from a table": ([node("Gather", "at one", "r", axis=0), node("Gather", "table r", "y", axis=1)], F),
    "read at places": ([node("GatherND", "x rows_", "y")], F),
    "a new dimension in front": ([node("Unsqueeze", "at zero", "y")], I64),
    "a new dimension at the end": ([node("Unsqueeze", "at last", "y")], I64),
    "a dimension less": ([node("Gather", "rows_ ones", "c", axis=1), node("Squeeze", "c ones", "y")], I64),
    "joined": ([node("Concat", "at at", "y", axis=0)], I64),
    "cut": ([node("Split", "at split", "a b", axis=0), node("Sub", "a b", "y")], I64),
    "a part": ([node("Slice", "rows_ zero ones ones", "y")], I64),
    "the first dimension stays": ([node("Reshape", "rows_ wide", "y")], I64),
    "the first dimension stays by 0": ([node("Reshape", "rows_ keep", "y")], I64),
    "along the other dimension": ([node("ReduceMax", "rows_ ones", "y", keepdims=0)], I64),
    "the largest of the other": ([node("ArgMax", "at", "y", axis=0, keepdims=0)], I64),
    "softmax of the other": ([node("Cast", "rows_", "f", to=F), node("Softmax", "f", "y", axis=-1)], F),
}


@pytest.mark.parametrize("case", FOLLOW)
def test_one_program_for_all_counts(case):
    nodes, kind = FOLLOW[case]
    assert run_all(nodes, {"y": kind}) == 1


WAIT = {
    "the sum over what was found": ([node("ReduceSum", "at ones", "y", keepdims=1)], I64),
    "joined one after the other": ([node("Concat", "at at", "y", axis=1)], I64),
    "how many": ([node("Shape", "at", "y")], I64),
    "softmax over what was found": ([node("Cast", "at", "f", to=F), node("Softmax", "f", "y", axis=-1)], F),
    "all in one dimension": ([node("Reshape", "rows_ flat", "y")], I64),
    "a part of what was found": ([node("Slice", "rows_ first two first", "y")], I64),
    "a sum of some that follows": ([node("Add", "at three", "a"), node("ReduceMin", "a zero", "b", keepdims=0),
                                    node("CumSum", "b one0", "y")], I64),
    "divided by what was found": ([node("Add", "at three", "a"), node("Div", "a a", "y")], I64),
}  # fmt: skip
CONSTANTS["one0"] = np.array(0)


@pytest.mark.parametrize("case", WAIT)
def test_a_size_that_matters_is_waited_for(case):
    nodes, kind = WAIT[case]
    assert run_all(nodes, {"y": kind}, (5, 1, 9)) > 1


def test_what_was_found_and_the_results_of_it_together():
    """Outputs of both kinds, one of them by way of an operator that waits."""
    nodes = [node("Mul", "at three", "y"), node("ReduceSum", "y ones", "z", keepdims=0), node("Neg", "rows_", "u")]
    run_all(nodes, {"at": I64, "y": I64, "z": I64, "u": I64})


def test_two_counts_do_not_mix():
    """Sizes that are equal by chance: the operator waits for both."""
    nodes = [node("Abs", "x", "a"), node("NonZero", "a", "other"), node("Add", "at other", "y")]
    run_all(nodes, {"y": I64})


def test_large_results_are_left_to_a_program_of_their_size():
    """What is looked up at the positions of a large buffer is looked up where something was found only."""
    nodes = [node("NonZero", "x", "at"), node("Gather", "table at", "y", axis=0)]
    table = np.arange(4096, dtype=np.float32).reshape(4, 1024)
    made = make(nodes, [value("x", [1000])], [value("y", [1, "k", 1024])], {"table": table})
    run = tw.compile(made, threads=1)
    x = np.zeros(1000, np.float32)
    x[[1, 3]] = 1
    np.testing.assert_array_equal(run(x)[0], table[[[1, 3]]])
    assert run.compiled == 2


def detector(most):
    """Boxes and scores of 64 places, non-maximum suppression, and rows of box, score and class of what is kept."""
    weights = {
        "most": np.array([most]), "iou": np.array([0.5], np.float32), "low": np.array([0.5], np.float32),
        "i0": np.array(0), "i1": np.array(1), "i2": np.array(2), "one": np.array([1]),
    }  # fmt: skip
    nodes = [
        node("Sigmoid", "logits", "scores"),
        node("Exp", "corners", "boxes"),
        node("NonMaxSuppression", "boxes scores most iou low", "kept"),
        node("Gather", "kept i2", "at", axis=1),
        node("Gather", "kept i1", "class", axis=1),
        node("Gather", "boxes i0", "all", axis=0),
        node("Gather", "all at", "box", axis=0),
        node("GatherND", "scores kept", "score"),
        node("Cast", "class", "classes", to=F),
        node("Unsqueeze", "classes one", "c"),
        node("Unsqueeze", "score one", "s"),
        node("Concat", "box s c", "found", axis=1),
    ]
    inputs = [value("corners", [1, 64, 4]), value("logits", [1, 4, 64])]
    return make(nodes, inputs, [value("found", ["k", 6])], weights)


@pytest.mark.parametrize("most", [3, 20, 1 << 40])
def test_a_detector_is_one_program(most, tmp_path):
    made = detector(most)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run, rng, counts = tw.compile(made, threads=1), np.random.default_rng(most % 7), set()
    for i in range(10):
        feed = {
            "corners": rng.standard_normal((1, 64, 4)).astype(np.float32),
            "logits": (rng.standard_normal((1, 4, 64)) - 0.4 * i).astype(np.float32),
        }
        want = session.run(None, feed)[0]
        np.testing.assert_allclose(run(feed)[0], want, rtol=1e-5)
        counts.add(len(want))
    assert run.compiled == 1 and len(counts) > 3
    run.save(tmp_path / "m.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "m.tw", threads=1)(feed)[0], run(feed)[0])
