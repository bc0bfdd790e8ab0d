"""Control flow, sequences, optionals and sizes that depend on the data, run natively.

ONNX's own operator tests, then models of our own against ONNX Runtime.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import onnx_models
from support.onnx_cases import load_cases
from support.onnx_models import graph, node, value

import tilewright as tw
from tilewright.support.errors import InputError, TilewrightError

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
PATTERNS = (
    "test_if*", "test_loop*", "test_scan*", "test_sequence_*", "test_optional_*", "test_split_to_sequence*",
    "test_identity_*", "test_nonzero_*", "test_unique_*", "test_compress_*", "test_nonmaxsuppression_*",
    "test_range_*", "test_reshape_negative_dim", "test_slice_start_out_of_bounds", "test_constantofshape_*",
)  # fmt: skip

CASES = sorted({c.name: c for kind in ("simple", "node") for c in load_cases(kind)}.values(), key=lambda c: c.name)
CASES = [c for c in CASES if any(fnmatchcase(c.name, p) for p in PATTERNS)]


def read(case):
    """Model and data sets; those of kind simple lie in files."""
    if case.data_sets is not None:
        return case.model, case.data_sets
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    constants = {t.name for t in model.graph.initializer}
    lists = (("input", [i for i in model.graph.input if i.name not in constants]), ("output", model.graph.output))
    sets = [
        tuple([_read(data / f"{what}_{i}.pb", info) for i, info in enumerate(infos)] for what, infos in lists)
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    return model, sets


def _read(path, info):
    if info.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def close(got, want, rtol=1e-4, atol=1e-5):
    if want is None:
        assert got is None
    elif isinstance(want, (list, tuple)):
        assert isinstance(got, list) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            close(g, w, rtol, atol)
    else:
        want = np.asarray(want)
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_onnx(case):
    model, sets = read(case)
    executable = tw.compile(model, threads=1)
    constants = {t.name for t in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in constants]
    for inputs, expected in sets:
        feed = {n: x if x is None or isinstance(x, list) else np.asarray(x) for n, x in zip(names, inputs, strict=True)}
        close(executable.run(feed), list(expected), case.rtol, max(case.atol, 1e-6))


# ---- models of our own ---------------------------------------------------------------------------------------------

model = partial(onnx_models.model, domains=["own"])


def compare(proto, *feeds):
    """Run on all feeds and compare with ONNX Runtime; the executable."""
    executable = tw.compile(proto, threads=1)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        close(executable.run(feed), session.run(None, feed))
    return executable


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_only_the_branch_that_is_taken_is_compiled():
    weights = {"w": random(6, 6), "limit": np.array(0, np.float32)}
    yes = graph([node("MatMul", "x w", "t"), node("Relu", "t", "a")], [], [value("a")])
    no = graph([node("ReduceSum", "x", "b", keepdims=1)], [], [value("b")])
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s limit", "c"),
        node("If", "c", "h", then_branch=yes, else_branch=no),
        node("Exp", "h", "y"),
    ]
    proto = model(nodes, [value("x", [4, 6])], [value("y")], weights)
    executable = compare(proto, {"x": np.ones((4, 6), np.float32)}, {"x": 2 * np.ones((4, 6), np.float32)})
    made = {stage.body.info.id for stage, _, _ in executable.parts()}
    assert made == {"main", "main/2.then_branch"}
    close(executable.run({"x": -np.ones((4, 6), np.float32)}), [np.exp(np.full((1, 1), -24, np.float32))])
    assert {stage.body.info.id for stage, _, _ in executable.parts()} == {*made, "main/2.else_branch"}


def test_cheap_branches_are_both_computed():
    yes, no = graph([node("Add", "x x", "a")], [], [value("a")]), graph([node("Neg", "x", "b")], [], [value("b")])
    proto = model(
        [node("If", "c", "y", then_branch=yes, else_branch=no)], [value("c", [], BOOL), value("x", [3])], [value("y")]
    )
    executable = compare(proto, *[{"c": np.array(c), "x": random(3)} for c in (True, False)])
    assert isinstance(executable, tw.Executable)


def loop_body():
    """v <- v @ w; scan output: the sum; goes on while the sum is below `limit`."""
    return graph(
        [
            node("MatMul", "v w", "v2"),
            node("ReduceSum", "v2", "sum", keepdims=0),
            node("Less", "sum limit", "again"),
            node("Slice", "w i1 i2", "row"),
            node("ReduceMean", "row", "scan", keepdims=0),
        ],
        [value("i", [], I64), value("go", [], BOOL), value("v", [4, 4])],
        [value("again", [], BOOL), value("v2", [4, 4]), value("sum", []), value("scan", [])],
        {"i1": np.array([1]), "i2": np.array([2])},
    )


def test_while_loop_with_captured_weights():
    weights = {"w": np.eye(4, dtype=np.float32) * 1.5, "limit": np.array(40, np.float32), "true": np.array(True)}
    proto = model(
        [node("Loop", "n true x", "y sums rows", body=loop_body())],
        [value("n", [], I64), value("x", [4, 4])],
        [value("y"), value("sums"), value("rows")],
        weights,
    )
    x = np.abs(random(4, 4))
    executable = compare(proto, *[{"n": np.array(n), "x": x} for n in (3, 100, 1)])
    bodies = [part for stage, _, part in executable.parts() if stage.body.info.id == "main/0.body"]
    assert len(bodies) == 1, "the body is compiled once for all iterations"


def test_loop_without_iterations():
    weights = {"w": np.eye(4, dtype=np.float32), "limit": np.array(40, np.float32), "true": np.array(True)}
    proto = model(
        [node("Loop", "n true x", "y sums rows", body=loop_body())],
        [value("n", [], I64), value("x", [4, 4])],
        [value("y"), value("sums"), value("rows")],
        weights,
    )
    executable, x = tw.compile(proto, threads=1), random(4, 4)
    got = executable(np.array(0), x)
    close(got, [x, np.zeros(0, np.float32), np.zeros(0, np.float32)])


def test_nested_loops_and_branches():
    """for i < n: for j < i: v += x if the sum is positive, else v *= 2"""
    yes, no = (
        graph([node("Add", "u x", "a")], [], [value("a")]),
        graph([node("ReduceMax", "u", "b0"), node("Mul", "u b0", "b")], [], [value("b")]),
    )
    inner = graph(
        [
            node("Identity", "go2", "again2"),
            node("ReduceSum", "u", "us", keepdims=0),
            node("Greater", "us zero", "pos"),
            node("If", "pos", "u2", then_branch=yes, else_branch=no),
        ],
        [value("j", [], I64), value("go2", [], BOOL), value("u", [5])],
        [value("again2", [], BOOL), value("u2", [5])],
    )
    outer = graph(
        [node("Identity", "go", "again"), node("Loop", "i true v", "v2", body=inner)],
        [value("i", [], I64), value("go", [], BOOL), value("v", [5])],
        [value("again", [], BOOL), value("v2", [5])],
    )
    weights = {"true": np.array(True), "zero": np.array(0, np.float32)}
    proto = model(
        [node("Loop", "n true x", "y", body=outer)], [value("n", [], I64), value("x", [5])], [value("y")], weights
    )
    compare(proto, {"n": np.array(4), "x": random(5)}, {"n": np.array(3), "x": -random(5)})


def test_long_loop_is_not_unrolled():
    body = graph(
        [
            node("Identity", "go", "again"),
            node("Tanh", "v", "t"),
            node("Add", "t x", "v2"),
            node("Identity", "v2", "s"),
        ],
        [value("i", [], I64), value("go", [], BOOL), value("v", [8])],
        [value("again", [], BOOL), value("v2", [8]), value("s", [8])],
    )
    weights = {"true": np.array(True), "n": np.array(500)}
    proto = model(
        [node("Loop", "n true x", "y all", body=body)], [value("x", [8])], [value("y"), value("all")], weights
    )
    executable = compare(proto, {"x": random(8)})
    assert sum(1 for _ in executable.parts()) <= 3


def test_scan_over_a_dynamic_axis():
    body = graph(
        [node("Add", "h x", "a"), node("Tanh", "a", "h2"), node("Mul", "h2 two", "o")],
        [value("h", [3]), value("x", [3])],
        [value("h2", [3]), value("o", [3])],
        {"two": np.array(2, np.float32)},
    )
    scan = node(
        "Scan", "h0 xs", "h os", body=body, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[1],
    )  # fmt: skip
    proto = model([scan], [value("h0", [3]), value("xs", [3, "steps"])], [value("h"), value("os")])
    compare(proto, *[{"h0": random(3), "xs": random(3, n, seed=n)} for n in (2, 300)])


def test_growing_sequence_in_a_loop():
    seq = helper.make_tensor_sequence_value_info
    body = graph(
        [
            node("Identity", "go", "again"),
            node("Cast", "i", "f", to=F),
            node("Mul", "x f", "item"),
            node("SequenceInsert", "s item", "s2"),
        ],
        [value("i", [], I64), value("go", [], BOOL), seq("s", F, None)],
        [value("again", [], BOOL), seq("s2", F, None)],
    )
    nodes = [
        node("SequenceEmpty", "", "s0"),
        node("Loop", "n true s0", "s", body=body),
        node("SequenceLength", "s", "count"),
        node("ConcatFromSequence", "s", "y", axis=0, new_axis=1),
        node("ReduceSum", "y", "total", keepdims=0),
        node("SequenceAt", "s one", "second"),
        node("Exp", "second", "e"),
    ]
    inputs, weights = [value("n", [], I64), value("x", [3])], {"true": np.array(True), "one": np.array(1)}
    proto = model(nodes, inputs, [value("count", None, I64), value("y"), value("total"), value("e")], weights)
    executable = compare(proto, *[{"n": np.array(n), "x": random(3)} for n in (2, 6)])
    assert sum(1 for stage, _, _ in executable.parts() if stage.body.info.id.endswith("body")) <= 2


def test_sequence_outputs_and_inputs():
    seq = helper.make_tensor_sequence_value_info
    proto = model([node("SplitToSequence", "x", "s", axis=0, keepdims=0)], [value("x", ["n", 2])], [seq("s", F, None)])
    compare(proto, {"x": random(3, 2)}, {"x": random(1, 2)})
    inside = model(
        [node("SequenceAt", "s i", "a"), node("Neg", "a", "y")], [seq("s", F, None), value("i", [], I64)], [value("y")]
    )
    compare(inside, {"s": [random(2), random(3)], "i": np.array(1)}, {"s": [random(2)], "i": np.array(-1)})
    executable = tw.compile(inside, threads=1)
    with pytest.raises(InputError, match="position 5 is outside of a sequence of 1"):
        executable.run({"s": [random(2)], "i": np.array(5)})
    with pytest.raises(InputError, match="'s' is a list of arrays, not a ndarray"):
        executable.run({"s": random(2), "i": np.array(0)})


def test_optional_inputs():
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, [3]))
    has = graph([node("OptionalGetElement", "o", "g"), node("Mul", "g x", "a")], [], [value("a", [3])])
    hasnt = graph([node("Neg", "x", "b")], [], [value("b", [3])])
    nodes = [node("OptionalHasElement", "o", "h"), node("If", "h", "y", then_branch=has, else_branch=hasnt)]
    proto = model(nodes, [helper.make_value_info("o", kind), value("x", [3])], [value("y", [3])])
    executable, x = tw.compile(proto, threads=1), random(3)
    close(executable.run({"o": random(3, seed=1), "x": x}), [random(3, seed=1) * x])
    close(executable.run({"x": x}), [-x])


def test_sizes_that_depend_on_the_data():
    nodes = [
        node("NonZero", "x", "i"),
        node("Unique", "x", "u first inverse counts", sorted=1),
        node("Compress", "x c", "k", axis=0),
        node("Mul", "k k", "k2"),
        node("Add", "u u", "u2"),
    ]
    outputs = [
        value(n, None, t)
        for n, t in (("i", I64), ("u2", F), ("first", I64), ("inverse", I64), ("counts", I64), ("k2", F))
    ]
    proto = model(nodes, [value("x", ["n", 3]), value("c", ["m"], BOOL)], outputs)
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(0, 3, (n, 3)).astype(np.float32), "c": rng.integers(0, 2, n) > 0} for n in (4, 7, 1)]
    executable = compare(proto, *feeds, {"x": np.zeros((2, 3), np.float32), "c": np.array([False, False])})
    assert "then Unique" in executable.explain()


def test_detection():
    """Boxes are chosen, gathered and scaled: the part after the choice is native again."""
    weights = {"most": np.array([3]), "iou": np.array([0.5], np.float32), "least": np.array([0.1], np.float32)}
    weights |= {"two": np.array(2), "flat": np.array([-1]), "size": np.array(32, np.float32)}
    nodes = [
        node("NonMaxSuppression", "boxes scores most iou least", "chosen"),
        node("Gather", "chosen two", "at", axis=1),
        node("Squeeze", "boxes zero", "b"),
        node("Gather", "b at", "picked"),
        node("Mul", "picked size", "y"),
    ]
    weights["zero"] = np.array([0])
    proto = model(
        nodes,
        [value("boxes", [1, "n", 4]), value("scores", [1, 2, "n"])],
        [value("chosen", None, I64), value("y")],
        weights,
    )
    rng = np.random.default_rng(1)
    feeds = []
    for n in (20, 6):
        low = rng.random((1, n, 2)).astype(np.float32)
        boxes = np.concatenate([low, low + rng.random((1, n, 2)).astype(np.float32)], -1)
        feeds.append({"boxes": boxes, "scores": rng.random((1, 2, n)).astype(np.float32)})
    compare(proto, *feeds)


def test_function_with_a_loop():
    """A model-local function that waits runs as a body of its own."""
    body = [
        node("NonZero", "a", "i"),
        node("Gather", "i z", "r"),
        node("Size", "r", "c"),
        node("Cast", "c", "f", to=F),
        node("Mul", "a f", "b"),
    ]
    function = helper.make_function("own", "Scaled", ["a", "z"], ["b"], body, [helper.make_opsetid("", 18)])
    nodes = [node("Relu", "x", "h"), node("Scaled", "h z", "s", domain="own"), node("Exp", "s", "y")]
    proto = model(nodes, [value("x", [6])], [value("y")], {"z": np.array(0)}, functions=[function])
    compare(proto, {"x": random(6)}, {"x": random(6, seed=3)})


def test_errors_name_the_node():
    proto = model(
        [
            helper.make_node(
                "If",
                ["c"],
                ["y"],
                "pick",
                then_branch=graph([node("Exp", "x", "a")], [], [value("a")]),
                else_branch=graph([node("Compress", "x m", "b")], [], [value("b")]),
            )
        ],
        [value("c", [1], BOOL), value("x", [3]), value("m", ["k"], BOOL)],
        [value("y")],
    )
    executable = tw.compile(proto, threads=1)
    with pytest.raises(TilewrightError, match="Compress"):
        executable.run({"c": np.array([False]), "x": random(3), "m": np.ones(9, bool)})
