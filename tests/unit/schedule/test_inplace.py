"""Which results of a kernel may take the place of an operand."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.schedule.inplace import inplace_pairs
from tilewright.schedule.parse import parse_nest


def pairs(text):
    return inplace_pairs(parse_nest(text))


def test_an_elementwise_result_takes_the_place_of_an_operand():
    assert pairs("""def k(p0: f32[4], p1: out(f32[4])):
    for i in serial(4):
        s0: p1[i] = exp(p0[i])
""") == [("p1", "p0")]


def test_not_where_another_element_is_read():
    assert not pairs("""def k(p0: f32[4], p1: out(f32[4])):
    for i in serial(4):
        s0: p1[i] = exp(p0[3 - i])
""")


def test_not_where_a_first_statement_overwrites_what_the_second_reads():
    assert not pairs("""def k(p0: f32[1], p1: f32[1], p2: out(f32[1])):
    s0.init: p2[0] = f32(0.0)
    s0: p2[0] = addf(p2[0], mulf(p0[0], p1[0]))
""")


def test_not_where_a_sum_reads_the_operand_twice():
    assert not pairs("""def k(p0: f32[4], p1: out(f32[4])):
    for i in serial(4):
        s0: p1[i] = exp(p0[i])
        s1: p1[i] = addf(p1[i], p0[i])
""")


COPY = """def k(p0: f32[4], p1: i64[1], p2: f32[1], p3: out(f32[4])):
    for i in serial(4NOTE):
        copy: p3[i] = p0[PLACE]
    update: p3[min(max(index_cast[index](p1[0]), 0), 3)] = p2[0]
"""


def test_a_result_that_begins_as_a_copy_takes_the_place_of_what_is_copied():
    text = COPY.replace("PLACE", "i")
    assert pairs(text.replace("NOTE", ", notes={'copies': 'p0'}")) == [("p3", "p0")]
    assert not pairs(text.replace("NOTE", ""))


def test_not_where_the_copy_moves_elements():
    assert not pairs(COPY.replace("PLACE", "3 - i").replace("NOTE", ", notes={'copies': 'p0'}"))


def test_not_where_the_update_reads_what_is_copied():
    text = COPY.replace("PLACE", "i").replace("NOTE", ", notes={'copies': 'p0'}").replace("= p2[0]", "= p0[1]")
    assert not pairs(text)


SCATTER = """func.func @main(%x: tensor<6x40xf32>, %i: tensor<2x40xi64>, %u: tensor<2x40xf32>) -> tensor<6x40xf32> {
  %r = "tw.matmul"(%x, %w) : (tensor<6x40xf32>, tensor<40x40xf32>) -> tensor<6x40xf32>
  %s = "tw.scatter_elements"(%r, %i, %u) {axis = 0 : i64} : (tensor<6x40xf32>, tensor<2x40xi64>, tensor<2x40xf32>) ->
    tensor<6x40xf32>
  %y = "tw.matmul"(%s, %w) : (tensor<6x40xf32>, tensor<40x40xf32>) -> tensor<6x40xf32>
  return %y : tensor<6x40xf32>
}
""".replace("%x: tensor<6x40xf32>,", "%x: tensor<6x40xf32>, %w: tensor<40x40xf32>,")


@pytest.mark.parametrize("target", ["cpu", "c"])
def test_within_a_model(target):
    """What is scattered to is needed no more: the result lies in its place, and only the updates are written."""
    rng = np.random.default_rng(0)
    x, w, u = (rng.standard_normal(s).astype(np.float32) for s in ((6, 40), (40, 40), (2, 40)))
    i = np.stack([rng.permutation(6)[:2] for _ in range(40)], axis=1)
    run = tw.compile(SCATTER, target=target, threads=1)
    (call,) = (c for c in run.package.program.calls if c.symbol.startswith("scatter"))
    assert call.args[0] == call.args[-1]
    r = x @ w
    np.put_along_axis(r, i, u, axis=0)
    np.testing.assert_allclose(run(x, w, i, u)[0], r @ w, rtol=1e-4, atol=1e-4)


def test_a_scatter_into_what_its_kernel_computes_copies_nothing_that_is_there():
    """The transposition of x is part of the scatter's kernel: there is no input whose place the result could take."""
    make = Maker([("x", Type((5, 4, 6), "f32")), ("at", Type((2, 1), "i64")), ("new", Type((2, 5, 6), "f32"))])
    x, at, new = make.inputs
    turned = make("transpose", x, permutation=(1, 0, 2))
    run = tw.compile(make.finish([("y", make("scatter_nd", turned, at, new, reduction="add"))]), threads=1)
    rng = np.random.default_rng(0)
    x, new = (rng.standard_normal(s).astype(np.float32) for s in ((5, 4, 6), (2, 5, 6)))
    want = x.transpose(1, 0, 2).copy()
    np.add.at(want, [3, 3], new)
    np.testing.assert_allclose(run(x, np.array([[3], [3]]), new)[0], want, rtol=1e-6)
