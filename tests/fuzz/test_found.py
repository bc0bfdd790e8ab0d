"""One small model for each bug that comparing random models with ONNX Runtime found."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import tilewright as tw


def check(text, **inputs):
    model = parser.parse_model(text).SerializeToString()
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)
    for a, b in zip(tw.compile(model).run(inputs), want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3])
def test_a_sum_of_products_does_not_start_in_the_place_of_its_operand(size):
    """The planner let a matrix product of one element share memory with a factor, which its initial 0 overwrote."""
    check(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[1,{size},1] x, float[1,1,1] z) => (float[1,{size},1] y) {{
            f = Floor(z)
            y = MatMul(x, f)
        }}""",
        x=np.full((1, size, 1), -28.2, np.float32),
        z=np.full((1, 1, 1), 3.5, np.float32),
    )
