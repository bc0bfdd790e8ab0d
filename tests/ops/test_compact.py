"""The native nests of NonZero and NonMaxSuppression against their NumPy meaning, on random and on odd data."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tilewright.support import host_operators as host


def compiled(operator, inputs, **attributes):
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(d), s) for n, (d, s) in inputs.items()]
    nodes = [helper.make_node(operator, list(inputs), ["y"], **attributes)]
    graph = helper.make_graph(nodes, "net", infos, [helper.make_tensor_value_info("y", 7, None)])
    return tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), threads=2)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int8", "uint8", "bool"])
def test_non_zero(dtype):
    rng = np.random.default_rng(0)
    executable = compiled("NonZero", {"x": (np.dtype(dtype), ["a", "b", "c"])})
    for shape in ((3, 4, 5), (1, 1, 1), (2, 0, 3)):
        x = rng.integers(0, 2, shape).astype(dtype)
        np.testing.assert_array_equal(executable(x)[0], host.non_zero("", x)[0])
    assert not any(part.actions for _, _, part in executable.parts()), "nothing runs on the host"


def test_non_zero_of_odd_numbers():
    x = np.array([0.0, -0.0, np.nan, np.inf, 1e-45, -1], np.float32)
    assert compiled("NonZero", {"x": (x.dtype, ["n"])})(x)[0].tolist() == [[2, 3, 4, 5]]
    scalar = compiled("NonZero", {"x": (x.dtype, [])})
    assert scalar(np.array(2, np.float32))[0].tolist() == [[0]]
    assert scalar(np.array(0, np.float32))[0].shape == (1, 0)


@pytest.mark.parametrize("center", [0, 1])
def test_non_max_suppression(center):
    rng = np.random.default_rng(center)
    f, i = np.dtype(np.float32), np.dtype(np.int64)
    kinds = {"boxes": (f, ["b", "n", 4]), "scores": (f, ["b", "c", "n"]), "most": (i, [1])}
    kinds |= {"overlap": (f, [1]), "least": (f, [1])}
    executable = compiled("NonMaxSuppression", kinds, center_point_box=center)
    for batch, classes, n, most, overlap, least in (
        (2, 3, 12, 4, 0.3, 0.2),
        (1, 1, 1, 5, 0.5, 2.0),
        (1, 2, 30, 9, 0.0, -1.0),
    ):
        low = rng.random((batch, n, 2))
        boxes = np.concatenate([low, rng.random((batch, n, 2))], -1).astype(f)  # corners in any order
        scores = rng.integers(0, 10, (batch, classes, n)).astype(f) / 10  # many are equal
        values = [boxes, scores, np.array([most]), np.array([overlap], f), np.array([least], f)]
        want = host.non_max_suppression("", *values, center)[0]
        np.testing.assert_array_equal(executable(*values)[0], want)
    assert executable.compiled == 2, "limits are numbers, not shapes; sizes change, and have one program then"
