"""Random numbers: other ones in every run unless the node has a seed, whatever is compiled how; and what is part of a
specialization: sizes, not the values that they were computed from.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper
from support import onnx_models
from support.onnx_models import value

import tilewright as tw
from tilewright.runtime import random_seed

F, INT = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, outputs, weights=None):
    """Inputs and outputs are (name, element type, shape)."""
    ends = ([value(n, s, t) for n, t, s in some] for some in (inputs, outputs))
    return onnx_models.model(nodes, *ends, weights)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"/{op}/{outputs[0]}", **attributes)


DRAWS = {
    "RandomNormalLike": ([node("RandomNormalLike", ["x"], ["y"])], F),
    "RandomUniformLike": ([node("RandomUniformLike", ["x"], ["y"])], F),
    "RandomNormal": ([node("RandomNormal", [], ["r"], shape=[40, 50]), node("Add", ["r", "x"], ["y"])], F),
    "RandomUniform": ([node("RandomUniform", [], ["y"], shape=[40, 50])], F),
    "Bernoulli": ([node("Sigmoid", ["x"], ["p"]), node("Bernoulli", ["p"], ["y"])], F),
    "Multinomial": ([node("Multinomial", ["x"], ["y"], sample_size=30)], TensorProto.INT32),
    "Dropout": ([node("Dropout", ["x", "half", "training"], ["y"])], F),
}
WEIGHTS = {"half": np.float32(0.5), "training": np.array(True)}


def seeded(nodes):
    for n in nodes:
        if n.op_type in DRAWS:
            n.attribute.append(helper.make_attribute("seed", 3 if n.op_type == "Dropout" else 3.0))
    return nodes


@pytest.mark.parametrize("op, dynamic", [*((op, False) for op in DRAWS), ("RandomNormalLike", True), ("Dropout", True)])
def test_every_run_draws_anew(op, dynamic):
    nodes, kind = DRAWS[op]
    shape = ["n", 50] if dynamic else [40, 50]
    made = model(nodes, [("x", F, shape)], [("y", kind, None)], WEIGHTS)
    run = tw.compile(made, threads=1)
    assert [t.name for t in run.inputs] == ["x"]
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    tw.set_seed(5)
    first = [run(x)[0] for _ in range(3)]
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first[1], first[2])
    tw.set_seed(5)
    assert all(np.array_equal(run({"x": x})[0], a) for a in first)
    tw.set_seed(6)
    assert not np.array_equal(run(x)[0], first[0])


@pytest.mark.parametrize("op", DRAWS)
def test_seeds(op):
    nodes = [type(n).FromString(n.SerializeToString()) for n in DRAWS[op][0]]
    run = tw.compile(model(seeded(nodes), [("x", F, [40, 50])], [("y", DRAWS[op][1], None)], WEIGHTS), threads=1)
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    assert np.array_equal(run(x)[0], run(x)[0])


def test_the_distribution_and_the_reference():
    nodes = [node("RandomNormal", [], ["y"], shape=[100, 1000], mean=1.0, scale=2.0), node("Add", ["y", "x"], ["z"])]
    run = tw.compile(model(nodes, [("x", F, [1])], [("z", F, None)]), threads=1, verify=True)
    runs = np.stack([run(np.zeros(1, np.float32))[0].ravel() for _ in range(4)]).astype(np.float64)
    assert abs(runs.mean() - 1) < 0.02 and abs(runs.std() - 2) < 0.02
    assert np.abs(np.corrcoef(runs) - np.eye(4)).max() < 0.02
    assert np.abs(np.corrcoef(runs[0, :-1], runs[1, 1:])[0, 1]) < 0.02


def test_nodes_that_are_alike_draw_apart_and_files_keep_it(tmp_path):
    nodes = [node("RandomUniform", [], [o], shape=[64]) for o in ("y", "z")]
    for n in nodes:
        n.name = "same"
    tw.compile(model(nodes, [], [("y", F, [64]), ("z", F, [64])]), threads=1).save(tmp_path / "m.tw")
    run = tw.load(tmp_path / "m.tw")
    y, z = run()
    assert not np.array_equal(y, z)
    assert not np.array_equal(y, run()[0])
    key = {random_seed.KEY: np.array(9, np.int32)}  # who gives the key gets what belongs to it
    assert np.array_equal(run(key)[0], run(key)[0])


def speech():
    """A small text-to-speech model: embedding, durations, expansion to frames, noise, a vocoder of convolutions."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.standard_normal((30, 8)).astype(np.float32),
        "wd": rng.standard_normal((8, 1)).astype(np.float32),
        "w1": rng.standard_normal((8, 8, 3)).astype(np.float32),
        "w2": rng.standard_normal((1, 8, 3)).astype(np.float32),
        "zero": np.int64(0),
        "one": np.int64(1),
        "minus1": np.int64([-1]),
        "last": np.int64([1]),
        "first": np.int64([0]),
        "half": np.float32(0.1),
    }
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),  # [t, 8]
        node("MatMul", ["e", "wd"], ["d0"]),
        node("Sigmoid", ["d0"], ["d1"]),
        node("Reshape", ["d1", "minus1"], ["d2"]),
        node("Add", ["d2", "d2"], ["d3"]),
        node("Ceil", ["d3"], ["d4"]),
        node("Cast", ["d4"], ["d"], to=INT),  # frames of every token
        node("CumSum", ["d", "zero"], ["ends"]),
        node("ReduceMax", ["ends"], ["frames"], keepdims=0),
        node("Range", ["zero", "frames", "one"], ["at"]),
        node("Unsqueeze", ["at", "last"], ["at1"]),
        node("GreaterOrEqual", ["at1", "ends"], ["past"]),
        node("Cast", ["past"], ["past1"], to=INT),
        node("ReduceSum", ["past1", "last"], ["token"], keepdims=0),
        node("Gather", ["e", "token"], ["f"]),  # [frames, 8]
        node("RandomNormalLike", ["f"], ["r"]),
        node("Mul", ["r", "half"], ["r1"]),
        node("Add", ["f", "r1"], ["f1"]),
        node("Transpose", ["f1"], ["f2"], perm=[1, 0]),
        node("Unsqueeze", ["f2", "first"], ["f3"]),
        node("Conv", ["f3", "w1"], ["c1"], pads=[1, 1]),
        node("Relu", ["c1"], ["c2"]),
        node("Conv", ["c2", "w2"], ["audio"], pads=[1, 1]),
    ]
    return model(nodes, [("ids", INT, ["t"])], [("audio", F, None), ("frames", INT, [])], weights)


def test_a_new_text_of_the_same_sizes_compiles_nothing():
    run = tw.compile(speech(), threads=1)
    rng = np.random.default_rng(1)
    compiled = {}
    for _ in range(16):
        ids = rng.integers(0, 30, 12)
        before = run.compiled
        audio, frames = run(ids)
        assert audio.shape == (1, 1, int(frames))
        compiled.setdefault(int(frames), []).append(run.compiled - before)
    assert len(compiled) < 13  # some lengths come again
    assert all(count == 0 for counts in compiled.values() for count in counts[1:])
    assert run.compiled <= 1 + 2 * len(compiled)
    again = run(ids)[0]
    assert again.shape == audio.shape and not np.array_equal(again, audio)


def test_values_that_are_shapes_are_still_compiled_in():
    nodes = [node("Mul", ["shape", "two"], ["s"]), node("Expand", ["x", "s"], ["y"])]
    run = tw.compile(model(nodes, [("x", F, [1]), ("shape", INT, [2])], [("y", F, None)], {"two": np.int64(2)}))
    x = np.ones(1, np.float32)
    for shape in ([1, 2], [3, 4], [1, 2]):
        assert run(x, np.int64(shape))[0].shape == (2 * shape[0], 2 * shape[1])
    assert run.compiled == 2
