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


def test_softmax_over_one_element():
    """The rule that turns short rows looked for the columns of rows that have none."""
    check(
        """<ir_version: 8, opset_import: ["" : 13]>
        g (float[1,42,19] x) => (bool[1,42,19] y, float[1,42,19] z) {
            s = Softmax<axis=0>(x)
            y = Greater(s, x)
            z = Add(s, x)
        }""",
        x=np.linspace(-2, 2, 42 * 19, dtype=np.float32).reshape(1, 42, 19),
    )


def test_arg_max_whose_places_are_read_through_a_reshape():
    """Rows beside each other: the last stage reads (i + (j * 19 + k) // 209) % 36, so all rows were in registers."""
    check(
        """<ir_version: 8, opset_import: ["" : 13]>
        g (double[2,36,11,19] x) => (int64[36,11,19] y) {
            p = ArgMax<axis=0, keepdims=0>(x)
            y = Sub(p, p)
        }""",
        x=np.linspace(-2, 2, 2 * 36 * 209).reshape(2, 36, 11, 19) ** 2,
    )
