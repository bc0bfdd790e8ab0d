"""``out=``: what is given is checked alike, whether the sizes of a model are fixed or open."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.support.errors import InputError


def two_outputs():
    vi = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 4])  # noqa: E731
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    graph = helper.make_graph(nodes, "g", [vi("x")], [vi("y"), vi("z")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


KINDS = {
    "fixed": {"inputs": {"x": (2, 4)}},
    "dynamic": {},
    "open": {"inputs": {"x": ("b:1..4", 4)}},
    "background": {"specialize": "background"},
    "buckets": {"buckets": {"b": [4]}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_all_kinds_of_models_are_checked_alike(kind):
    run = tw.compile(two_outputs(), threads=1, **KINDS[kind])
    x = np.arange(8, dtype=np.float32).reshape(2, 4) - 3
    memory, fixed = np.zeros(32, np.float32), np.zeros((2, 4), np.float32)
    fixed.flags.writeable = False
    y, z, part = memory[:8].reshape(2, 4), memory[8:16].reshape(2, 4), memory[4:12].reshape(2, 4)
    before = x.copy()
    wrong = [
        {"y": y, "z": part}, [y, y], [fixed, z], [[1], z], {"y": y}, {"y": y, "z": z, "q": part}, 5, "yz", y,
        [y.T, z], [y[:1], z], [y.astype("f8"), z], [memory[:16].reshape(2, 8)[:, ::2], z], [x, z], [y, x[::-1]],
        [y, memory.view(np.uint8)[33:65].view(np.float32).reshape(2, 4)], [y, z, z], [], [y, None],
    ]  # fmt: skip
    for out in wrong:
        with pytest.raises(InputError):
            run(x, out=out)
    np.testing.assert_array_equal(x, before)
    for out in ([y, z], {"z": z, "y": y}):
        memory[:] = 7
        got = run(x, out=out)
        assert got[0] is y and got[1] is z
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        np.testing.assert_array_equal(z, -x)
