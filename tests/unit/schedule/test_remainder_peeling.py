"""Sums of products whose columns are cut after those that fill vectors (rules/cut_columns.py), against NumPy in
float64."""

from __future__ import annotations

import numpy as np
import pytest
from support.machines import NARROW, WIDE
from support.products import convolution, product, product_of, right

from tilewright.lang import te
from tilewright.tune.space import Space


def check(kernel, machine, reference, decisions=None, threads=(2,)):
    """Build the kernel for so many threads: equal bits, and close to the reference. Returns what was chosen."""
    chosen = Space(kernel, machine).realize({"halves": False, "cut": True, **(decisions or {})})
    assert chosen is not None and chosen.decisions["cut"]
    return right(chosen, kernel, reference, threads)


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    "m, k, n, constant, turned",
    [(301, 100, 35, True, False), (200, 64, 17, False, False), (97, 37, 18, False, True), (61, 301, 49, True, False)],
)
def test_matmul(m, k, n, constant, turned, machine):
    kernel = product(m, k, n, constant, turned)
    if "cut" in Space(kernel, machine).realize({"halves": False}).options:
        check(kernel, machine, product_of(turned), threads=(1, 2, 3))
    else:
        assert machine is NARROW


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("turned", [False, True])
def test_batches(batch, turned):
    check(product(61, 48, 18, False, turned, batch), WIDE, product_of(turned))


@pytest.mark.parametrize(
    "shape", [(14, 19, 64, 17, 1, 1), (9, 30, 20, 18, 3, 1), (11, 33, 32, 34, 1, 2), (1, 50, 48, 17, 3, 1)]
)
def test_convolution(shape):
    size, stride = shape[-2:]

    def reference(x):
        windows = np.lib.stride_tricks.sliding_window_view(x["x"], (size, size), (0, 1))[::stride, ::stride]
        return np.einsum("ijcyx,yxcf->ijf", windows, x["w"])

    check(convolution(*shape), WIDE, reference)


def test_every_tile():
    kernel = product(75, 37, 18)
    sizes = Space(kernel, WIDE).realize({"halves": False, "cut": True}).options["cut_tile"].candidates
    assert len(sizes) > 20
    for size in sizes[:: len(sizes) // 5]:
        assert check(kernel, WIDE, product_of(), {"cut_tile": size}).decisions["cut_tile"] == size


def test_where_it_is_the_default():
    """One column is left of long sums in many rows; not where columns fill vectors, nearly do, or sums are short."""
    chosen = Space(product(1000, 64, 17), WIDE).default.decisions
    assert chosen["cut"] and "sum_lanes" not in chosen
    for size in ((1000, 64, 16), (1000, 64, 31), (1000, 20, 22), (1000, 64, 5), (1000, 64, 500)):
        assert not Space(product(*size), WIDE).default.decisions.get("cut")


def test_what_it_does_not_take():
    """Rows that do not lie along the sum, other dtypes."""
    a, b, r = te.placeholder((64, 100), "a"), te.placeholder((64, 17), "b"), te.reduce_axis(64, "r")
    across = te.kernel(te.compute((100, 17), lambda i, j: te.sum(a[r, i] * b[r, j], r)))
    a, b, r = te.placeholder((100, 64), "a", "f64"), te.placeholder((64, 17), "b", "f64"), te.reduce_axis(64, "r")
    double = te.kernel(te.compute((100, 17), lambda i, j: te.sum(a[i, r] * b[r, j], r)))
    assert not any("cut" in Space(k, WIDE).default.options for k in (across, double))
