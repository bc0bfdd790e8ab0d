"""Values of inputs are part of a specialization only where a shape depends on them, and then only what decides it.

Ten calls with the same shapes and other values: how many parts are made for them.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.onnx_models import model as make
from support.onnx_models import node, value

import tilewright as tw

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
CALLS = 10


def weight(*shape):
    return (np.random.default_rng(len(shape)).standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def i64(*values):
    return np.array(values, np.int64)


WEIGHTS = {
    "w": weight(16, 16), "table": weight(50, 16), "places": weight(64, 16), "speakers": weight(10, 16),
    "zero": np.array(0), "one": np.array(1), "zeros": i64(0), "ones": i64(1), "two": i64(2), "three": i64(3),
    "pads": i64(0, 1, 0, 1), "yes": np.array(True), "one_f": np.array(1, np.float32),
}  # fmt: skip


def tokens(rng, *shape):
    return rng.integers(0, 50, shape)


def rows(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def built(nodes, inputs, outputs):
    used = {n for made in nodes for n in made.input}
    return make(nodes, inputs, outputs, {n: a for n, a in WEIGHTS.items() if n in used})


IDS, IDS_TO = value("ids", ["b", "s"], I64), value("y", ["b", "s", 16])
X, X_TO = value("x", ["n", 16]), value("y", ["m", "k"])
LENGTHS = value("lengths", ["b"], I64)


def mask(limit):
    """Which positions below `limit` (a name) are below the lengths, and the sum of them added to x."""
    return [
        node("Range", f"zero {limit} one", "r"),
        node("Unsqueeze", "lengths ones", "l"),
        node("Less", "r l", "m"),
        node("Cast", "m", "mf", to=F),
        node("ReduceSum", "mf ones", "q", keepdims=1),
        node("MatMul", "x w", "xw"),
        node("Add", "xw q", "y"),
    ]


#: nodes, inputs, output, what a call gets (of a generator and the number of the call), parts made in ten calls
CASES = {
    "embedding": (
        [node("Gather", "table ids", "e"), node("MatMul", "e w", "y")],
        [IDS], IDS_TO, lambda rng, i: {"ids": tokens(rng, 1, 12)}, 1,
    ),
    "mask of pad tokens": (
        [
            node("Equal", "ids zero", "pad"), node("Not", "pad", "m"), node("Cast", "m", "mf", to=F),
            node("Unsqueeze", "mf two", "mu"), node("Gather", "table ids", "e"), node("Mul", "e mu", "y"),
        ],
        [IDS], IDS_TO, lambda rng, i: {"ids": rng.integers(0, 3, (1, 12))}, 1,
    ),
    "positions of tokens": (
        [
            node("Equal", "ids zero", "pad"), node("Not", "pad", "m"), node("Cast", "m", "mi", to=I64),
            node("CumSum", "mi one", "c"), node("Mul", "c mi", "p"), node("Gather", "table ids", "e"),
            node("Gather", "places p", "pe"), node("Add", "e pe", "y"),
        ],
        [IDS], IDS_TO, lambda rng, i: {"ids": rng.integers(0, 3, (1, 12))}, 1,
    ),
    "speaker and scales": (
        [
            node("Gather", "speakers speaker", "g"), node("Gather", "table ids", "e"), node("Add", "e g", "a"),
            node("Gather", "scales zero", "s0"), node("Mul", "a s0", "c"), node("Gather", "scales one", "s1"),
            node("Div", "c s1", "y"),
        ],
        [IDS, value("speaker", ["b"], I64), value("scales", [3])], IDS_TO,
        lambda rng, i: {"ids": tokens(rng, 1, 12), "speaker": i64(i % 10), "scales": 1 + rows(rng, 3) ** 2},
        1,
    ),
    "lengths below a known size": (
        [node("Shape", "x", "s1", end=1), node("Squeeze", "s1 zeros", "s"), *mask("s")],
        [X, LENGTHS], X_TO, lambda rng, i: {"x": rows(rng, 4, 16), "lengths": rng.integers(1, 5, 4)}, 1,
    ),
    "lengths below their maximum": (
        [node("ReduceMax", "lengths", "s", keepdims=0), *mask("s")],
        [X, LENGTHS], X_TO, lambda rng, i: {"x": rows(rng, 3, 16), "lengths": i64(i, 12, i)}, 2,
    ),
    "lengths below one of them": (
        [node("Gather", "lengths one", "s"), *mask("s")],
        [X, LENGTHS], X_TO, lambda rng, i: {"x": rows(rng, 3, 16), "lengths": i64(i, 12, i)}, 2,
    ),
    "places that move on": (
        [
            node("Shape", "ids", "shape"), node("Gather", "shape one", "s"), node("Add", "past s", "end"),
            node("Range", "past end one", "r"), node("Gather", "places r", "p"), node("Gather", "table ids", "e"),
            node("Add", "e p", "y"),
        ],
        [IDS, value("past", [], I64)], IDS_TO, lambda rng, i: {"ids": tokens(rng, 1, 4), "past": np.array(i)}, 2,
    ),
    "steps that move on": (
        [
            node("Sub", "past three", "start"), node("Squeeze", "start zeros", "begin"), node("Squeeze", "past", "end"),
            node("Range", "end begin minus2", "y"),
        ],
        [value("past", [1], I64)], value("y", ["k"], I64), lambda rng, i: {"past": i64(i)}, 2,
    ),
    "size from a factor": (
        [
            node("Shape", "x", "n1", end=1), node("Cast", "n1", "nf", to=F), node("Gather", "scales ones", "s1"),
            node("Mul", "nf s1", "size"), node("Ceil", "size", "up"), node("Cast", "up", "to", to=I64),
            node("Expand", "one_f to", "e"), node("Gather", "scales zero", "s0"), node("Mul", "e s0", "y"),
        ],
        [X, value("scales", [3])], value("y", ["k"]),
        lambda rng, i: {"x": rows(rng, 4, 16), "scales": np.array([i, 1.1 + i / 100, 5], np.float32)}, 2,
    ),
    "sizes beside a token": (
        [
            node("Slice", "meta ones three", "d"), node("Reshape", "x d", "a"), node("MatMul", "a w", "c"),
            node("Gather", "meta zero", "token"), node("Gather", "table token", "e"), node("Add", "c e", "y"),
        ],
        [value("x", ["n"]), value("meta", [3], I64)], value("y", ["a", 16]),
        lambda rng, i: {"x": rows(rng, 64), "meta": i64(i, 4, 16)}, 2,
    ),
    "a diagonal": (
        [node("MatMul", "x w", "a"), node("Trilu", "a k", "y")],
        [X, value("k", [], I64)], X_TO, lambda rng, i: {"x": rows(rng, 16, 16), "k": np.array(i - 5)}, 1,
    ),
    "what is around": (
        [node("MatMul", "x w", "a"), node("Pad", "a pads v", "y")],
        [X, value("v", [])], X_TO, lambda rng, i: {"x": rows(rng, 4, 16), "v": np.array(i / 3, np.float32)}, 1,
    ),
    "steps of a loop": (
        [
            node("Gather", "lengths zero", "count"),
            node("Loop", "count yes x", "y", body=helper.make_graph(
                [node("Identity", "c", "again"), node("Add", "a one_f", "more")], "body",
                [value("i", [], I64), value("c", [], BOOL), value("a", [4, 16])],
                [value("again", [], BOOL), value("more", [4, 16])],
            )),
        ],
        [X, LENGTHS], X_TO, lambda rng, i: {"x": rows(rng, 4, 16), "lengths": i64(i, 12)}, 2,
    ),
}  # fmt: skip
WEIGHTS["minus2"] = np.array(-2)


def compared(run, session, feed):
    for got, want in zip(run.run(feed), session.run(None, feed), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_parts_for_ten_calls(case, tmp_path):
    nodes, inputs, output, feed, parts = CASES[case]
    made = built(nodes, inputs, [output])
    if case == "steps of a loop":
        made.graph.initializer.append(helper.make_tensor("one_f", F, [], [1.0]))
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run, rng = tw.compile(made, threads=1, specialize="now"), np.random.default_rng(0)
    for i in range(CALLS):
        compared(run, session, feed(rng, i))
    assert getattr(run, "compiled", 1) == parts
    run.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw", threads=1)
    compared(again, session, feed(rng, CALLS))
    assert getattr(again, "compiled", 0) == 0, "the value is one that no part was made for"


def test_the_number_decides():
    """Other numbers need one more program, which is for all of them; the explanation says which."""
    nodes, inputs, output, _, _ = CASES["lengths below one of them"]
    made = built(nodes, inputs, [output])
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run, rng = tw.compile(made, threads=1), np.random.default_rng(0)
    for last in (5, 7, 5, 9, 7):
        compared(run, session, {"x": rows(rng, 3, 16), "lengths": i64(3, last, last + 1)})
    assert run.compiled == 1 + 2
    assert "s i64[] = [5]" in run.explain() and "s i64[] = [d0]" in run.explain()
    assert "= [3, 5, 6]" not in run.explain()


def test_sizes_that_many_others_are_made_of():
    """A height and a width stand beside another number; each level of the model asks for sizes made of the two."""
    sizes = {f"c{i}": i64(i + 1) for i in range(4)} | {"zero": np.array(0), "one": np.array(1)}
    nodes = [
        node("Gather", "size zero", "h0"), node("Gather", "size one", "w0"),
        node("Unsqueeze", "h0 axis", "h"), node("Unsqueeze", "w0 axis", "w"),
    ]  # fmt: skip
    for i in range(4):
        nodes += [
            node("Mul", f"h c{i}", f"h{i}_"), node("Mul", f"w c{i}", f"w{i}_"),
            node("Concat", f"front h{i}_ w{i}_", f"s{i}", axis=0),
            helper.make_node("Resize", [f"x{i}", "", "", f"s{i}"], [f"r{i}"], mode="nearest"),
            node("Shape", f"r{i}", f"shape{i}"), node("Reshape", f"r{i} shape{i}", f"x{i + 1}"),
        ]  # fmt: skip
    inputs = [value("x0", [1, 2, "a", "b"]), value("size", [3], I64)]
    made = make(nodes, inputs, [value("x4", None)], {**sizes, "axis": i64(0), "front": i64(1, 2)})
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run, rng = tw.compile(made, threads=1), np.random.default_rng(0)
    for i in range(6):
        compared(run, session, {"x0": rows(rng, 1, 2, 4, 4), "size": i64(3 + i // 3, 5, i)})
    assert run.compiled == 1 + 2


def test_dropout_by_a_ratio_of_the_call():
    nodes = [node("Dropout", "x ratio yes", "y m")]
    run = tw.compile(built(nodes, [X, value("ratio", [])], [X_TO, value("m", ["n", 16], BOOL)]), threads=1)
    x = np.ones((400, 16), np.float32)
    for ratio in (0.0, 0.25, 0.5, 0.9):
        y, kept = run(x, np.array(ratio, np.float32))
        assert abs(kept.mean() - (1 - ratio)) < 0.03
        np.testing.assert_allclose(y, np.where(kept, 1 / (1 - np.float32(ratio)), 0), rtol=1e-6)
    assert run.compiled == 0
    off = tw.compile(
        make([node("Dropout", "x ratio", "y")], [value("x", [4, 16]), value("ratio", [])], [X_TO]), threads=1
    )
    assert np.array_equal(off(x[:4], np.array(0.7, np.float32))[0], x[:4])


@pytest.mark.parametrize("seed", [None, 3.0])
def test_random_numbers_beside_a_derived_size(seed):
    """The shape of what is drawn comes of a value; what is drawn is in no program."""
    given = {} if seed is None else {"seed": seed}
    nodes = [
        node("Gather", "meta one", "s"), node("Range", "zero s one", "r"), node("Cast", "r", "rf", to=F),
        node("RandomNormalLike", "rf", "y", **given),
    ]  # fmt: skip
    run = tw.compile(built(nodes, [value("meta", [2], I64)], [value("y", ["k"])]), threads=1)
    first, second, third = (run(i64(i, 8))[0] for i in range(3))
    assert first.shape == second.shape == (8,) and run.compiled == 2
    assert np.array_equal(first, second) == np.array_equal(second, third) == (seed is not None)


def test_a_drawn_size():
    """A size that is drawn is another one in every run, and part of a program only while it is this one."""
    nodes = [
        node("RandomUniform", "", "u", shape=[1], low=1.0, high=30.0), node("Cast", "u", "n", to=I64),
        node("Expand", "x n", "y"),
    ]  # fmt: skip
    run = tw.compile(make(nodes, [value("x", ["one"])], [value("y", ["k"]), value("n", [1], I64)]), threads=1)
    tw.set_seed(3)
    found = [run(np.ones(1, np.float32)) for _ in range(8)]
    assert all(y.shape == tuple(n) for y, n in found) and len({int(n[0]) for _, n in found}) > 2


def test_a_region_that_nothing_reads():
    """Resize takes a region for one of its modes only."""
    made = make(
        [helper.make_node("Resize", ["x", "roi", "", "to"], ["y"], mode="linear")],
        [value("x", [1, 1, "h", "w"]), value("roi", [8])], [value("y", None)], {"to": i64(1, 1, 5, 7)},
    )  # fmt: skip
    run = tw.compile(made, threads=1)
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)
    first, second = (run(x, np.full(8, i, np.float32))[0] for i in range(2))
    assert np.array_equal(first, second) and run.compiled == 0


def test_a_step_into_a_cache_with_room():
    """The total length of GroupQueryAttention is a number of the call where the cache has room for more."""
    heads, width, room = 2, 8, 16
    ends = [value(n, ["b", 1, heads * width]) for n in "qkv"]
    ends += [value(n, ["b", heads, "p", width]) for n in ("pk", "pv")]
    ends += [value("last", ["b"], TensorProto.INT32), value("total", [1], TensorProto.INT32)]
    attend = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", "pk", "pv", "last", "total"], ["y", "nk", "nv"],
        num_heads=heads, kv_num_heads=heads, domain="com.microsoft",
    )  # fmt: skip
    outputs = [value("y", ["b", 1, heads * width]), *[value(n, ["b", heads, "p", width]) for n in ("nk", "nv")]]
    made = make([attend], ends, outputs, domains=["com.microsoft"])
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    run, rng = tw.compile(made, threads=1), np.random.default_rng(0)
    ours = theirs = [np.zeros((1, heads, room, width), np.float32)] * 2
    for i in range(6):
        feed = {n: rows(rng, 1, 1, heads * width) for n in "qkv"}
        feed |= {"last": np.array([i], np.int32), "total": np.array([i + 1], np.int32)}
        y, *ours = run.run({**feed, "pk": ours[0], "pv": ours[1]})
        want, *theirs = session.run(None, {**feed, "pk": theirs[0], "pv": theirs[1]})
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours[0][:, :, : i + 1], theirs[0][:, :, : i + 1], rtol=1e-6)
    assert run.compiled == 2


def test_parts_made_anew_lead_to_the_parts_there_are():
    """A constant that one part hands to the next is the same whichever part it came from."""
    nodes = [
        node("Shape", "x", "n", end=1), node("Concat", "n n", "nn", axis=0), node("NonZero", "mask", "at"),
        node("Transpose", "at", "at2", perm=[1, 0]), node("Cast", "nn", "nf", to=F),
        node("CumSum", "at2 zero", "sums"), node("Cast", "sums", "f", to=F), node("Add", "f nf", "y"),
    ]  # fmt: skip
    ends = [value("x", ["n", "k"]), value("mask", [2, 4], BOOL)]
    made = make(nodes, ends, [value("y", ["m", 2])], {"zero": WEIGHTS["zero"]})
    run = tw.compile(made, threads=1, specializations=1)
    hit = np.array([[1, 0, 0, 1], [0, 1, 0, 0]], bool)
    for width in (3, 5, 3, 5):
        y = run(np.zeros((7, width), np.float32), hit)[0]
        np.testing.assert_array_equal(y, np.cumsum(np.stack(np.nonzero(hit), 1), 0) + 7.0)
    later = [p for s, _, p in run.parts() if not s.first]
    assert len(later) == 1 and later[0].runs == 4
