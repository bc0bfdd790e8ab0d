"""Windows visit only what lies inside of the image (`ops/windows.py`)."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.ops.pool import AvgPool, LpPool, MaxPool, output_size
from tilewright.ops.windows import clip
from tilewright.tensor.fuse import fuse
from tilewright.tensor.lower import lower
from tilewright.tensor.read import read_kernel


def reads(n, out, kernel, stride, low, dilation):
    """What each result reads, by its definition."""
    taps = [[o * stride + k * dilation - low for k in range(kernel)] for o in range(out)]
    return [[at for at in row if 0 <= at < n] for row in taps]


def test_clipping_leaves_what_is_read():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        n, kernel, stride, dilation = (int(rng.integers(1, m)) for m in (20, 8, 9, 12))
        low, out = int(rng.integers(0, 25)), int(rng.integers(1, 9))
        want, c = reads(n, out, kernel, stride, low, dilation), clip(n, out, kernel, stride, low, dilation)
        if not c.taps:
            assert not any(want)
            continue
        size = c.stop - c.start
        got = reads(size, out, len(c.taps), stride, c.low, dilation * c.taps.step)
        assert [[at + c.start for at in row] for row in got] == want
        # nothing at either end is never read, and a convolution of this size has `out` results
        span = c.low + size + c.high - (len(c.taps) - 1) * c.taps.step * dilation - 1
        assert span // stride + 1 == out and min(c.low, c.high) >= 0


def array(values) -> str:
    return f"array<i64: {', '.join(map(str, values))}>"


def tensor(shape) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def pool(name, shape, kernel, strides, pads, dilations, ceil, layout, more="") -> str:
    n, *sizes, c = shape
    r = len(kernel)
    out = [output_size(m, kernel[i], strides[i], pads[i], pads[r + i], dilations[i], ceil) for i, m in enumerate(sizes)]
    x, y = ([n, *s, c] if layout == "nhwc" else [n, c, *s] for s in (sizes, out))
    attributes = f"kernel = {array(kernel)}, strides = {array(strides)}, pads = {array(pads)}, "
    attributes += f'dilations = {array(dilations)}, ceil_mode = {str(ceil).lower()}, layout = "{layout}"{more}'
    return f"""
func.func @main(%x: {tensor(x)}) -> {tensor(y)} {{
  %0 = "tw.{name}"(%x) {{{attributes}}} : ({tensor(x)}) -> {tensor(y)}
  return %0 : {tensor(y)}
}}
"""


#: shape (channels last), kernel, strides, pads, dilations, ceil mode
POOLS = [
    ((1, 7, 7, 20), (1280, 1280), (1280, 1280), (0, 0, 0, 0), (1, 1), True),
    ((2, 5, 6, 3), (40, 31), (3, 2), (20, 17, 30, 16), (1, 1), False),
    ((1, 9, 4, 17), (3, 3), (1, 1), (7, 5, 7, 5), (7, 5), False),
    ((1, 6, 11), (5,), (4,), (9, 9), (3,), True),
]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        (MaxPool, {}),
        (AvgPool, {"count_include_pad": False}),
        (AvgPool, {"count_include_pad": True}),
        (LpPool, {"p": 2}),
    ],
    ids=str,
)
def test_pools_of_windows_beyond_the_image(kind, case, layout):
    op, more = kind
    rng = np.random.default_rng(1)
    shape = case[0] if layout == "nhwc" else (case[0][0], case[0][-1], *case[0][1:-1])
    x = rng.standard_normal(shape).astype(np.float32)
    names = ("kernel", "strides", "pads", "dilations", "ceil_mode", "layout")
    want = op.reference(x, **dict(zip(names, (*case[1:], layout), strict=True)), **more)
    text = "".join(f", {k} = {str(v).lower()}" for k, v in more.items())
    name = {MaxPool: "max_pool", AvgPool: "avg_pool", LpPool: "lp_pool"}[op]
    got = tw.compile(pool(name, *case, layout, text), threads=1)(x)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def steps(text) -> int:
    """Iterations of all stages of the kernels of a level-2 graph."""
    fused, _ = fuse(lower(Graph(parse(text))))
    return sum(prod(n for _, n in s.dims) for f in fused.functions() for s in read_kernel(f).stages)


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "lp_pool"])
def test_work_does_not_grow_with_the_window(name):
    """A window of 1280 x 1280 over 7 x 7 costs what one of 7 x 7 does; a padded one no more than the image twice."""
    shape = (1, 7, 7, 20)
    far = pool(name, shape, (1280, 1280), (1280, 1280), (0, 0, 0, 0), (1, 1), True, "nhwc")
    near = pool(name, shape, (7, 7), (7, 7), (0, 0, 0, 0), (1, 1), True, "nhwc")
    assert steps(far) <= steps(near)
    beyond = pool(name, shape, (3, 3), (1, 1), (90, 90, 90, 90), (90, 90), False, "nhwc")
    assert steps(beyond) <= 4 * prod(shape)
