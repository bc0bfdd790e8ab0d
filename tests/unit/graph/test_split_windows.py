"""Convolutions whose windows lie outside of the image in part (`graph/clip_windows.py`)."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from support.machines import MACHINES

import tilewright as tw
from tilewright.graph import clip_windows
from tilewright.graph.interpret import interpret
from tilewright.graph.machine_costs import RegionCosts
from tilewright.graph.passes import make, run_pipeline
from tilewright.graph.rewrite import shape
from tilewright.ir import dialect
from tilewright.ir.context import parse
from tilewright.ir.graph import Graph
from tilewright.ops.conv import Conv

Case = tuple  # x (channels first), w, strides, pads, dilations, groups


def array(values) -> str:
    return f"array<i64: {', '.join(map(str, values))}>"


def tensor(dims) -> str:
    return f"tensor<{'x'.join(map(str, dims))}xf32>"


def conv(x, w, strides, pads, dilations, groups, bias=True, layout="nchw") -> str:
    r = len(strides)
    sizes = [(x[2 + i] + pads[i] + pads[r + i] - dilations[i] * (w[2 + i] - 1) - 1) // strides[i] + 1 for i in range(r)]
    x, y = (x, (x[0], w[0], *sizes)) if layout == "nchw" else ((x[0], *x[2:], x[1]), (x[0], *sizes, w[0]))
    names, types = ("%x, %w, %b", [x, w, w[:1]]) if bias else ("%x, %w", [x, w])
    arguments = ", ".join(f"{n}: {tensor(t)}" for n, t in zip(names.split(", "), types, strict=True))
    attributes = f"strides = {array(strides)}, pads = {array(pads)}, dilations = {array(dilations)}, "
    attributes += f'groups = {groups} : i64, layout = "{layout}", operandSegmentSizes = array<i32: 1, 1, {int(bias)}>'
    return f"""
func.func @main({arguments}) -> {tensor(y)} {{
  %0 = "tw.conv"({names}) {{{attributes}}} : ({", ".join(map(tensor, types))}) -> {tensor(y)}
  return %0 : {tensor(y)}
}}
"""


def draw(rng) -> Case:
    """A convolution with pads, dilations and strides that may leave any part of a window outside."""
    while True:
        r = int(rng.integers(1, 4))
        groups = int(rng.choice([1, 1, 2, 4]))
        channels, filters = groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 4))
        kernel, strides, dilations = (tuple(map(int, rng.integers(1, m, r))) for m in (5, 4, 9))
        sizes = tuple(map(int, rng.integers(1, 12 if r < 3 else 6, r)))
        pads = tuple(map(int, rng.integers(0, 14 if r < 3 else 8, 2 * r)))
        ends = [sizes[i] + pads[i] + pads[r + i] - dilations[i] * (kernel[i] - 1) for i in range(r)]
        if min(ends) > 0:
            return (2, channels, *sizes), (filters, channels // groups, *kernel), strides, pads, dilations, groups


def passed(text, passes, costs=MACHINES["zen4"].split_windows) -> Graph:
    graph = Graph(parse(text))
    given = {"split-windows": {"costs": costs}}
    run_pipeline(graph, [make(name, **given.get(name, {})) for name in passes.split(",")])
    return graph


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("passes", ["clip-windows", "split-windows", "clip-windows,split-windows"])
def test_random_convolutions_keep_their_results(passes, layout, monkeypatch):
    """Whatever is cut: here by a cost that counts nothing but products and padding."""
    monkeypatch.setattr(clip_windows, "WORTH", 1.0)
    costs = RegionCosts(lanes=1, tap=0, padded=1000, joined=0, kernel=0)
    rng, changed = np.random.default_rng(3), 0
    for _ in range(60):
        case = draw(rng)
        bias = bool(rng.integers(2))
        text = conv(*case, bias=bias, layout=layout)
        graph = passed(text, passes, costs)
        changed += sum(op.name == "tw.conv" for op in graph.operations()) != 1 or "slice" in str(graph.module)
        x, w, b = (rng.standard_normal(s).astype(np.float32) for s in (*case[:2], case[1][:1]))
        x = x if layout == "nchw" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
        given = dict(zip((n for n, _ in graph.inputs()), [x, w, b], strict=False))
        (got,), (want,) = (interpret(g, given).values() for g in (graph, Graph(parse(text))))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=text)
    assert changed >= 20


def products(graph) -> int:
    """Multiply-adds of the convolutions of a graph, padding included."""
    of = [op for op in graph.operations() if op.name == "tw.conv"]
    return sum(prod(shape(op.results[0])) * prod(shape(dialect.arguments(op)[1])[1:]) for op in of)


@pytest.mark.parametrize("dilation", [2, 6, 12, 13, 36])
@pytest.mark.parametrize("r", [2, 3])
def test_padding_is_not_multiplied(dilation, r):
    """Of 14 places a dimension; what is inside, counted by definition, with a quarter for what is not worth cutting."""
    n, d = 14, dilation
    own = sum(0 <= o + k * d < n for o in range(n) for k in (-1, 0, 1)) ** r * 256 * 512
    text = conv((1, 512, *[n] * r), (256, 512, *[3] * r), (1,) * r, (d,) * 2 * r, (d,) * r, 1, layout="nhwc")
    assert products(passed(text, "clip-windows,split-windows,dce")) <= 1.25 * own


def test_two_dimensions_pay_where_one_does_not():
    """A depthwise convolution: padding that stays in one dimension is copied for each piece of the other."""
    text = conv((1, 1024, 65, 65), (1024, 1, 5, 5), (1, 1), (60,) * 4, (30, 30), 1024)
    own = sum(0 <= o + k * 30 < 65 for o in range(65) for k in (-2, -1, 0, 1, 2)) ** 2 * 1024
    assert products(passed(text, "split-windows")) == own


def test_regions_are_few():
    """Each is a kernel to compile."""
    for r, kernel in ((1, 31), (2, 7), (3, 5)):
        n = 60 if r < 3 else 20
        text = conv((1, 64, *[n] * r), (256, 64, *[kernel] * r), (1,) * r, (kernel // 2 * 9,) * 2 * r, (9,) * r, 1)
        graph = passed(text, "split-windows")
        assert 1 < sum(op.name == "tw.conv" for op in graph.operations()) <= clip_windows.PIECES


def test_what_does_not_pay_stays():
    near = conv((1, 64, 56, 56), (64, 64, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1, layout="nhwc")
    assert (
        passed(near, "clip-windows,split-windows").main.operation.get_asm()
        == Graph(parse(near)).main.operation.get_asm()
    )


COMPILED = [
    ((1, 40, 14, 14), (32, 40, 3, 3), (1, 1), (12,) * 4, (12, 12), 1),
    ((2, 64, 9, 11), (64, 1, 3, 5), (1, 2), (7, 9, 7, 9), (7, 5), 64),
    ((1, 24, 300), (40, 12, 3), (1,), (256, 0), (128,), 2),
    ((1, 16, 6, 7, 5), (16, 16, 3, 3, 3), (1, 1, 1), (4,) * 6, (4, 4, 4), 1),
    ((1, 3, 5, 4), (8, 3, 3, 2), (2, 3), (40, 33, 21, 30), (9, 7), 1),
]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiled(case):
    rng = np.random.default_rng(5)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in (*case[:2], case[1][:1]))
    names = ("strides", "pads", "dilations", "groups")
    more = {"layout": "nchw", "dtype": None, "x_layout": None}
    wide = [v.astype(np.float64) for v in (x, w, b)]
    want = Conv.reference(*wide, **dict(zip(names, case[2:], strict=True)), **more)
    got = tw.compile(conv(*case), threads=1)(x, w, b)[0]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
