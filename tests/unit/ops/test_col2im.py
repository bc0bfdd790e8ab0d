"""Windows added up at their places (`tw.col2im`): as sums of shifted windows, without a test for every element."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.sampling import Col2im

#: image, block, strides, pads, dilations
CASES = [
    ((9, 8), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((7, 11), (2, 5), (3, 2), (2, 0, 1, 3), (1, 1)),
    ((8, 9), (3, 2), (1, 3), (2, 1, 0, 2), (2, 1)),
    ((13,), (4,), (2,), (3, 1), (3,)),
    ((4, 5, 6), (2, 3, 2), (1, 2, 2), (0, 1, 1, 1, 0, 1), (2, 1, 1)),
]


def module(case) -> tuple[str, tuple[int, ...]]:
    image, block, *_ = case
    shape = (2, 3 * int(np.prod(block)), int(np.prod(Col2im.places(*case))))
    names = ("image", "block", "strides", "pads", "dilations")
    attributes = ", ".join(f"{n} = array<i64: {', '.join(map(str, v))}>" for n, v in zip(names, case, strict=True))
    x, y = (f"tensor<{'x'.join(map(str, s))}xf32>" for s in (shape, (2, 3, *image)))
    body = f'%0 = "tw.col2im"(%x) {{{attributes}}} : ({x}) -> {y}\n  return %0 : {y}'
    return f"func.func @main(%x: {x}) -> {y} {{\n  {body}\n}}", shape


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_reference(case):
    text, shape = module(case)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    names = ("image", "block", "strides", "pads", "dilations")
    want = Col2im.reference(x, **dict(zip(names, case, strict=True)))
    np.testing.assert_allclose(tw.compile(text, threads=1)(x)[0], want, rtol=1e-5, atol=1e-5)
    # a comparison for every element only where strides and dilations meet
    tests = "select" in tw.compile(text, stop_after="lower").text()
    assert tests == any(s > 1 and d > 1 for s, d in zip(case[2], case[4], strict=True))
