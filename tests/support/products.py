"""Products and convolutions with te, their references, and whether a candidate of theirs is right."""

from __future__ import annotations

import numpy as np

from support.teams import teams
from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.targets.base import find


def product(m: int, k: int, n: int, constant: bool = True, turned: bool = False, batch: int = 0):
    """[m, k] times [k, n], or [n, k] `turned`, a bias and ReLU; or so many products alone."""
    front, r = (batch,) if batch else (), te.reduce_axis(k, "r")
    a = te.placeholder((*front, m, k), "a")
    b = te.placeholder((*front, n, k) if turned else (*front, k, n), "b", constant=constant)
    if batch:
        return te.kernel(
            te.compute(
                (batch, m, n), lambda q, i, j: te.sum(a[q, i, r] * (b[q, j, r] if turned else b[q, r, j]), r), "c"
            )
        )
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * (b[j, r] if turned else b[r, j]), r), "c")
    bias = te.placeholder((n,), "bias", constant=True)
    return te.kernel(te.compute((m, n), lambda i, j: te.maximum(c[i, j] + bias[j], 0.0), "y"))


def product_of(turned: bool = False):
    def reference(x):
        c = x["a"] @ (np.swapaxes(x["b"], -1, -2) if turned else x["b"])
        return np.maximum(c + x["bias"], 0) if "bias" in x else c

    return reference


def convolution(height: int, width: int, channels: int, filters: int, size: int, stride: int):
    h, w = ((n - 1) * stride + size for n in (height, width))
    x = te.placeholder((h, w, channels), "x")
    weights = te.placeholder((size, size, channels, filters), "w", constant=True)
    ry, rx, rc = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx"), te.reduce_axis(channels, "rc")
    return te.kernel(
        te.compute(
            (height, width, filters),
            lambda y, z, f: te.sum(x[y * stride + ry, z * stride + rx, rc] * weights[ry, rx, rc, f], ry, rx, rc),
            "y",
        )
    )


def right(chosen, kernel, reference, threads):
    """A candidate, if what it computes is right."""
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.inputs}
    expected = reference({n: a.astype(np.float64) for n, a in arrays.items()})
    found = [run(*arrays.values()) for run in teams(BuiltKernel(chosen.nest, find("cpu"), 1), *threads)]
    assert len({x.tobytes() for x in found}) == 1
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=3e-6 * abs(expected).max())
    return chosen
