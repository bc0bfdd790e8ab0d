"""Reductions over vectors and lanes as the CPU target emits them."""

import numpy as np
import pytest

import tilewright as tw


def softmax(shape):
    t = "tensor<" + "x".join(map(str, shape)) + "xf32>"
    return f"""
func.func @main(%x: {t}) -> {t} {{
  %0 = "tw.softmax"(%x) {{axis = 1 : i64}} : ({t}) -> {t}
  return %0 : {t}
}}
"""


@pytest.mark.parametrize("columns", [5, 16, 64, 100])
def test_softmax_of_what_is_not_a_number(columns):
    x = np.linspace(-3, 3, 6 * columns, dtype=np.float32).reshape(6, columns)
    x[1, 0] = x[2, columns - 1] = x[3, :] = np.nan
    x[4, 2] = -np.inf
    x[5, 1] = np.inf
    y = tw.compile(softmax(x.shape), threads=1)(x)[0]
    assert np.isnan(y[[1, 2, 3, 5]]).all(axis=1)[:3].all()
    assert np.isnan(y[5, 1])
    exact = np.exp(x[[0, 4]].astype(float) - x[[0, 4]].max(axis=1, keepdims=True))
    assert np.allclose(y[[0, 4]], exact / exact.sum(axis=1, keepdims=True), rtol=1e-6)
