"""Maxima of large windows, along one dimension after the other (`tw.max_pool`)."""

from __future__ import annotations

import numpy as np
import pytest
from support.teams import teams

import tilewright as tw
from tilewright.ops.pool import MaxPool, output_size, worth_dividing

#: shape (channels last), kernel, strides, pads, dilations, ceil mode
CASES = [
    ((1, 13, 11, 5), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), False),
    ((2, 16, 9, 3), (6, 7), (1, 2), (0, 3, 1, 2), (1, 1), True),
    ((1, 20, 21, 4), (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), False),
    ((1, 23, 19, 20), (5, 5), (1, 1), (1, 0, 4, 2), (2, 3), False),
    ((1, 30, 6, 6, 2), (9, 1, 5), (1, 1, 1), (4, 0, 2, 4, 0, 2), (1, 1, 1), False),
    ((1, 9, 8, 7, 3), (4, 4, 4), (1, 1, 1), (1, 2, 1, 2, 1, 2), (1, 1, 1), False),
]


def graph(shape, kernel, strides, pads, dilations, ceil, layout) -> str:
    n, *sizes, c = shape
    r = len(kernel)
    out = [output_size(m, kernel[i], strides[i], pads[i], pads[r + i], dilations[i], ceil) for i, m in enumerate(sizes)]

    def tensor(spatial) -> str:
        dims = (n, *spatial, c) if layout == "nhwc" else (n, c, *spatial)
        return f"tensor<{'x'.join(map(str, dims))}xf32>"

    def array(values) -> str:
        return f"array<i64: {', '.join(map(str, values))}>"

    attributes = (
        f"kernel = {array(kernel)}, strides = {array(strides)}, pads = {array(pads)}, dilations = {array(dilations)}, "
        f'ceil_mode = {str(ceil).lower()}, layout = "{layout}"'
    )
    return f"""
func.func @main(%x: {tensor(sizes)}) -> {tensor(out)} {{
  %0 = "tw.max_pool"(%x) {{{attributes}}} : ({tensor(sizes)}) -> {tensor(out)}
  return %0 : {tensor(out)}
}}
"""


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_large_windows(case, layout):
    shape, kernel, strides = case[:3]
    assert worth_dividing(kernel, strides)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape if layout == "nhwc" else (shape[0], shape[-1], *shape[1:-1])).astype(np.float32)
    x[rng.random(x.shape) < 0.01] = np.nan
    x[rng.random(x.shape) < 0.1] = -np.inf
    names = ("kernel", "strides", "pads", "dilations", "ceil_mode", "layout")
    want = MaxPool.reference(x, **dict(zip(names, (*case[1:], layout), strict=True)))
    for run in teams(tw.compile(graph(*case, layout), threads=1)):
        np.testing.assert_array_equal(run(x)[0], want)


def test_small_windows_and_those_of_one_dimension_stay_whole():
    assert not any(worth_dividing(k, (1, 1)) for k in ((3, 3), (4, 4), (1, 9), (2, 2)))
    assert not worth_dividing((3, 3), (2, 2)) and not worth_dividing((5, 5), (2, 2)) and not worth_dividing((9,), (1,))
    assert worth_dividing((5, 5), (1, 1)) and worth_dividing((13, 13), (1, 1))
