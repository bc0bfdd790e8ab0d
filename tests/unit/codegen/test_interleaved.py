"""Tensors stacked along their last dimension: one loop writes whole vectors of elements that take turns."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.machines import AVX512F as MACHINE
from support.machines import LANES16
from support.teams import teams

import tilewright as tw
from tilewright.lang import te
from tilewright.schedule.rules import schedule
from tilewright.schedule.text import parse_nest
from tilewright.targets.cpu.emit import emit


def stacked(count, shape, kind=TensorProto.FLOAT, last=1):
    """Concatenation of tensors with a last dimension of `last`."""
    names = "abcdefgh"[:count]
    inputs = [helper.make_tensor_value_info(n, kind, (*shape, last)) for n in names]
    node = helper.make_node("Concat", list(names), ["y"], axis=-1)
    graph = helper.make_graph(
        [node], "stack", inputs, [helper.make_tensor_value_info("y", kind, (*shape, count * last))]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(3,), (16,), (7, 23), (40, 16), (2, 5, 33)])
def test_stacks(count, shape):
    rng = np.random.default_rng(count)
    given = [rng.standard_normal((*shape, 1)).astype(np.float32) for _ in range(count)]
    for run in teams(tw.compile(stacked(count, shape), threads=1)):
        found = run(*given)[0]
        np.testing.assert_array_equal(found, np.concatenate(given, -1))


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT16", "INT64", "INT32", "INT8", "UINT8", "BOOL"])
@pytest.mark.parametrize("count", [2, 3])
def test_dtypes(kind, count):
    kind = getattr(TensorProto, kind)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    given = [(np.arange(101) * (i + 3) % 7).reshape(101, 1).astype(dtype) for i in range(count)]
    found = tw.compile(stacked(count, (101,), kind), threads=2)(*given)[0]
    np.testing.assert_array_equal(found, np.concatenate(given, -1))


def test_rotated_pairs():
    """A rotary embedding of neighbours: both results of a pair from the same loads."""
    rng = np.random.default_rng(0)
    x, c, s = (rng.standard_normal(n).astype(np.float32) for n in ((3, 19, 12, 2), (19, 12, 1), (19, 12, 1)))
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=-1, num_outputs=2),
        *(
            helper.make_node("Mul", i.split(), [o])
            for i, o in (("a c", "ac"), ("b s", "bs"), ("a s", "as"), ("b c", "bc"))
        ),
        helper.make_node("Sub", ["ac", "bs"], ["e"]),
        helper.make_node("Add", ["as", "bc"], ["o"]),
        helper.make_node("Concat", ["e", "o"], ["y"], axis=-1),
    ]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in "xy"]
    graph = helper.make_graph(
        nodes, "rope", value[:1], value[1:], [numpy_helper.from_array(c, "c"), numpy_helper.from_array(s, "s")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    a, b = x[..., :1], x[..., 1:]
    want = np.concatenate([a * c - b * s, a * s + b * c], -1)
    for run in teams(tw.compile(model, threads=1)):
        np.testing.assert_allclose(run(x)[0], want, rtol=1e-5, atol=1e-5)


NEST = """
def k(a: f32[32], b: f32[32], y: out(f32[64])):
    for i in vector(TRIP, lanes=16):
        s0: y[i * 2 + FIRST] = a[i]
        s1: y[i * 2 + SECOND] = b[i]
"""


@pytest.mark.parametrize("first, second", [(0, 1), (1, 0), (7, 6)])
@pytest.mark.parametrize("trip", [16, 9, 8, 2])
def test_vectors_are_written_whole(trip, first, second):
    text = NEST.replace("TRIP", str(trip)).replace("FIRST", str(first)).replace("SECOND", str(second))
    code = emit(parse_nest(text), LANES16).text
    assert "scatter" not in code and code.count("vector.shuffle") == -(-2 * trip // 16)


@pytest.mark.parametrize("second", ["i * 2 + 2", "i * 2", "i * 3 + 1"])
def test_others_are_scattered(second):
    nest = NEST.replace("TRIP", "16").replace("i * 2 + FIRST", "i * 2").replace("i * 2 + SECOND", second)
    assert "scatter" in emit(parse_nest(nest), LANES16).text


def test_one_loop():
    nest = te.from_nest("""
def k(a: f32[30, 20], b: f32[30, 20], c: f32[30, 20], y: out(f32[30, 20, 3])):
    for i0 in serial(30):
        for j0 in serial(20):
            s0: y[i0, j0, 0] = a[i0, j0]
    for i1 in serial(30):
        for j1 in serial(20):
            s1: y[i1, j1, 1] = b[i1, j1]
    for i2 in serial(30):
        for j2 in serial(20):
            s2: y[i2, j2, 2] = negf(c[i2, j2])
""")
    given = [np.random.default_rng(i).standard_normal((30, 20)).astype(np.float32) for i in range(3)]
    want = np.stack([given[0], given[1], -given[2]], -1)
    for stack in (True, False):
        s = schedule(nest, MACHINE, {"stack_s0": stack}).schedule
        assert str(s).count("thread(") == (1 if stack else 3)
        for run in teams(s.build(threads=1)):
            assert (run(*given) == want).all()
