"""Sums of products whose lanes run along the sum (rules/sum_lanes.py), against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from support.machines import NARROW, WIDE
from support.teams import teams

from tilewright.driver.build_program import pack_array
from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.targets.base import find
from tilewright.tune.space import Space


def product(m: int, k: int, n: int, constant: bool = True, turned: bool = False, relu: bool = True):
    """[m, k] times [k, n], or [n, k] `turned`; then a bias and ReLU."""
    a, r = te.placeholder((m, k), "a"), te.reduce_axis(k, "r")
    b = te.placeholder((n, k) if turned else (k, n), "b", constant=constant)
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * (b[j, r] if turned else b[r, j]), r), "c")
    if not relu:
        return te.kernel(c)
    bias = te.placeholder((n,), "bias", constant=True)
    return te.kernel(te.compute((m, n), lambda i, j: te.maximum(c[i, j] + bias[j], 0.0), "y"))


def convolution(height: int, width: int, channels: int, filters: int, size: int, stride: int = 1, groups: int = 1):
    h, w = ((n - 1) * stride + size for n in (height, width))
    x = te.placeholder((h, w, groups, channels), "x")
    weights = te.placeholder((size, size, groups, channels, filters), "w", constant=True)
    ry, rx, rc = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx"), te.reduce_axis(channels, "rc")
    return te.kernel(
        te.compute(
            (height, width, groups, filters),
            lambda y, z, g, f: te.sum(
                x[y * stride + ry, z * stride + rx, g, rc] * weights[ry, rx, g, rc, f], ry, rx, rc
            ),
            "y",
        )
    )


def check(kernel, machine, reference, decisions=None) -> dict:
    """Build the kernel for 1, 2 and 3 threads: equal bits, and close to the reference. Returns the decisions."""
    space = Space(kernel, machine)
    chosen = space.realize({"halves": False, "sum_lanes": True, **(decisions or {})})
    assert chosen is not None and chosen.decisions["sum_lanes"]
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.inputs}
    expected = reference({n: a.astype(np.float64) for n, a in arrays.items()})
    found = [run(*arrays.values()) for run in teams(BuiltKernel(chosen.nest, find("cpu"), 1), 1, 2, 3)]
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=3e-6 * abs(expected).max())
    return chosen.decisions


def product_of(turned: bool = False, relu: bool = True):
    def reference(x):
        c = x["a"] @ (x["b"].T if turned else x["b"])
        return np.maximum(c + x["bias"], 0) if relu else c

    return reference


SIZES = [(1, 64, 1000), (100, 64, 1), (101, 71, 1), (33, 52, 3), (100, 48, 2), (3, 17, 3), (61, 500, 9), (2, 1536, 16)]


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("m, k, n", SIZES)
def test_matmul(m, k, n, machine):
    for turned in (False, True):
        for relu in (False, True):
            if n > 1 or m > 1:
                kernel = product(m, k, n, constant=not turned, turned=turned, relu=relu)
                if "sum_lanes" in Space(kernel, machine).realize({"halves": False}).options:
                    check(kernel, machine, product_of(turned, relu))


@pytest.mark.parametrize(
    "shape",
    [(9, 11, 32, 1, 3), (8, 8, 20, 3, 3, 2), (14, 20, 48, 19, 5, 3), (5, 7, 64, 2, 1), (6, 5, 16, 2, 3, 1, 3)],
)
def test_convolution(shape):
    height, width, channels, filters, size, stride, groups = (*shape, 1, 1)[:7]
    kernel = convolution(height, width, channels, filters, size, stride, groups)

    def reference(x):
        windows = np.lib.stride_tricks.sliding_window_view(x["x"], (size, size), (0, 1))[::stride, ::stride]
        return np.einsum("ijgcyx,yxgcf->ijgf", windows, x["w"])

    check(kernel, WIDE, reference)


def test_every_tile_of_results():
    kernel = product(23, 37, 5)
    space = Space(kernel, WIDE)
    tiles = space.default.options["results"].candidates
    assert space.default.decisions["sum_lanes"] and len(tiles) > 20
    for tile in tiles[:: len(tiles) // 8]:
        assert check(kernel, WIDE, product_of(), {"results": tile})["results"] == tile


def test_what_it_does_not_take():
    """Operands that lie across the sum and are no constants, short sums, other dtypes, many results."""
    across = te.placeholder((64, 100), "a"), te.placeholder((64, 3), "b")
    r = te.reduce_axis(64, "r")
    kernels = [
        te.kernel(te.compute((100, 3), lambda i, j: te.sum(across[0][r, i] * across[1][r, j], r))),
        product(100, 5, 3),
        product(100, 64, 320),
    ]
    assert not any("sum_lanes" in Space(k, WIDE).default.decisions for k in kernels)


def test_weights_are_laid_out_along_the_sum():
    chosen = Space(product(100, 64, 3), WIDE).default
    pack = chosen.nest.packs["b"]
    assert pack.order == (1, 0)
    assert pack_array(np.arange(192, dtype=np.float32).reshape(64, 3), pack).shape == (3, 64)
