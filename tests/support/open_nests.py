"""Kernels with open sizes, and what their nests compute at sizes that are known."""

from __future__ import annotations

import numpy as np

from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import Nest
from tilewright.schedule.open_nest import kernel_at, nest_at
from tilewright.schedule.schedule import Schedule
from tilewright.support.sizes import Dim, Size, Sizes
from tilewright.tensor.kernel import Kernel

ROWS, SEQ, WIDE8 = Dim("rows", 1, 20), Dim("seq", 1, 36), Dim("wide", 8, 40, 8)
#: the ends of the ranges, and sizes around those of tiles and vectors
POINTS = (
    {"rows": 1, "seq": 1, "wide": 8},
    {"rows": 6, "seq": 2, "wide": 16},
    {"rows": 7, "seq": 17, "wide": 24},
    {"rows": 20, "seq": 36, "wide": 40},
)


def rows_by_columns(known: Sizes, columns: int | None = None) -> Kernel:
    """y[i, j] = x[i, j] * s[j] + 1, of `rows` x `columns` (`seq` if there are none)."""
    rows, seq, _ = known.symbols
    n = seq if columns is None else columns
    x, s = te.placeholder((rows, n), "x"), te.placeholder((n,), "s")
    return te.kernel(te.compute((rows, n), lambda i, j: x[i, j] * s[j] + 1.0, "y"))


def product(m: int | Size, k: int | Size, n: int | Size) -> Kernel:
    """y[i, j] = max(sum over r of x[i, r] * w[r, j] + b[j], 0)"""
    x, w, b = te.placeholder((m, k), "x"), te.placeholder((k, n), "w"), te.placeholder((n,), "b")
    r = te.reduce_axis(k, "r")
    c = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], r), "c")
    return te.kernel(te.compute((m, n), lambda i, j: te.maximum(c[i, j] + b[j], 0.0), "y"))


def softmax(m: int | Size, n: int | Size) -> Kernel:
    """Rows of exp(x - max) / sum."""
    x = te.placeholder((m, n), "x")
    k, q = te.reduce_axis(n, "k"), te.reduce_axis(n, "q")
    top = te.compute((m,), lambda i: te.max(x[i, k], k), "top")
    e = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    total = te.compute((m,), lambda i: te.sum(e[i, q], q), "total")
    return te.kernel(te.compute((m, n), lambda i, j: e[i, j] / total[i], "y"))


def total(m: int | Size, n: int | Size) -> Kernel:
    """The sums of columns."""
    x = te.placeholder((m, n), "x")
    k = te.reduce_axis(m, "k")
    return te.kernel(te.compute((n,), lambda j: te.sum(x[k, j], k), "y"))


def transposed(m: int | Size, n: int | Size) -> Kernel:
    x = te.placeholder((m, n), "x")
    return te.kernel(te.compute((n, m), lambda i, j: te.exp(x[j, i]), "y"))


def computes(nest: Nest, kernel: Kernel) -> None:
    """The nest, finished for all sizes and then taken at some, gives what the kernel does by plain loops."""
    done = finish(nest)
    for sizes in POINTS:
        plain = finish(Schedule(kernel_at(kernel, sizes)).nest())
        rng = np.random.default_rng(7)
        arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in plain.params if p.name != "y"}
        at = nest_at(done, sizes)
        want, got = interpret_nest(plain, arrays), interpret_nest(at, arrays)
        np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=1e-5, err_msg=str(sizes))
