"""Products whose columns are stored by heads, on a chip without a host."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.support.errors import UnsupportedError

RNG = np.random.default_rng(0)


def product(tokens, depth, heads, size, permutation, channels):
    """A quantized product whose result [tokens, heads * size] is stored in another order; a scale for each channel, or
    one for all."""
    n = heads * size
    arrays = {
        "w": RNG.integers(-127, 128, (depth, n)).astype(np.int8),
        "ws": RNG.uniform(1e-3, 2e-3, n).astype(np.float32) if channels else np.full(n, 2e-3, np.float32),
        "wz": np.zeros(n, np.int8),
        "shape": np.int64([tokens, heads, size]),
    } | {"xs": np.float32(0.02), "ys": np.float32(0.05), "z": np.int8(0)}
    nodes = [
        helper.make_node("QLinearMatMul", ["x", "xs", "z", "w", "ws", "wz", "ys", "z"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=permutation),
    ]
    out = [[tokens, heads, size][p] for p in permutation]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT8, [tokens, depth])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, out)],
        [numpy_helper.from_array(np.asarray(a), k) for k, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model, RNG.integers(-128, 128, (tokens, depth), dtype=np.int8)


def cycles(run):
    return int(re.search(r" runs on \w+: (\d+) cycles", str(run.explain()))[1])


@pytest.mark.parametrize("channels", [True, False], ids=["channels", "one scale"])
@pytest.mark.parametrize(("heads", "size"), [(4, 16), (2, 24), (2, 32), (2, 48), (3, 5)])
def test_heads_are_stored_apart_without_a_host(heads, size, channels):
    """An instruction takes as many columns of a head as it can, not one."""
    model, x = product(40, 40, heads, size, [1, 0, 2], channels)
    run = tw.compile(model, target="systolic32", threads=1)
    np.testing.assert_array_equal(run(x)[0], tw.compile(model, target="cpu", threads=1)(x)[0])
    plain = product(40, 40, heads, size, [0, 1, 2], channels)[0]
    instructions = heads * -(-size // 32) / -(-heads * size // 32)
    assert cycles(run) <= (1 + instructions) * cycles(tw.compile(plain, target="systolic32", threads=1))


def test_what_copies_cannot_turn_around_is_left_to_a_host():
    model, x = product(40, 40, 4, 16, [1, 2, 0], True)
    with pytest.raises(UnsupportedError, match="transpose"):
        tw.compile(model, target="systolic32")
    run = tw.compile(model, target="cpu+systolic32", threads=1)
    np.testing.assert_array_equal(run(x)[0], tw.compile(model, target="cpu", threads=1)(x)[0])
