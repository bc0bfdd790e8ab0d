"""Operators whose dimensions are all open, over wide ranges: rows may be longer or shorter than a vector."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_models import model, node, value

import tilewright as tw

ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")

NODES = {
    "softmax": [node("Softmax", "x", "y", axis=-1)],
    "log_softmax": [node("LogSoftmax", "x", "y", axis=-1)],
    "sum": [node("ReduceSum", "x last", "y", keepdims=1)],
    "largest": [node("ReduceMax", "x last", "y", keepdims=0)],
    "norm": [node("LpNormalization", "x", "y", axis=-1)],
    "turned": [node("Transpose", "x", "t", perm=[1, 2, 0]), node("Softmax", "t", "y", axis=-1)],
}


@pytest.mark.parametrize("name", NODES)
def test_rows_of_any_length(name):
    last = {"last": np.array([-1], np.int64)} if name in ("sum", "largest") else {}
    rank = 2 if name == "largest" else 3
    given = model(NODES[name], [value("x", ["a", "b", "c"])], [value("y", [f"y{i}" for i in range(rank)])], last)
    run = tw.compile(given, inputs={"x": ("a:1..64", "b:1..512", "c:1..4096")}, threads=1)
    reference = ort.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for shape in ((1, 1, 1), (3, 7, 5), (2, 9, 8), (1, 30, 37), (17, 4, 3), (2, 3, 1001)):
        x = rng.standard_normal(shape).astype(np.float32)
        (want,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(run(x)[0], want, rtol=1e-5, atol=1e-5, err_msg=str(shape))
