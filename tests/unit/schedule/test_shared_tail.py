"""Sums of products in which rows share the vectors of the columns that whole ones leave over (`schedule.planner`),
against NumPy in float64; and the emission of such vectors (codegen/vector/shared_tail.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.machines import AVX512F, LANES16, NARROW, WIDE
from support.products import convolution, product, product_of, right

from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.planner import candidates
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError
from tilewright.targets.base import find
from tilewright.targets.cpu.emit import emit
from tilewright.tune.space import Space


def check(kernel, machine, reference, decisions=None, threads=(1, 2)):
    """Build the kernel for so many threads: equal bits, and close to the reference. Returns what was chosen."""
    chosen = Space(kernel, machine).realize({"halves": True, **(decisions or {})})
    assert chosen is not None and chosen.decisions["halves"]
    return right(chosen, kernel, reference, threads)


@pytest.fixture(autouse=True)
def everywhere(request, monkeypatch):
    """The decision may be taken whatever it is estimated to gain; not in tests of where it is the default."""
    if "default" not in request.function.__name__:
        always = tuple(replace(f, tried_gain=0.0) if f.decision == "halves" else f for f in candidates.FORMS)
        monkeypatch.setattr(candidates, "FORMS", always)


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    "m, k, n, constant",
    [
        (301, 100, 24, True),
        (200, 64, 40, False),
        (97, 37, 23, True),
        (61, 7, 28, True),
        (50, 81, 60, True),
        (2, 9, 52, 1),
    ],
)
def test_matmul(m, k, n, constant, machine):
    kernel, width = product(m, k, n, bool(constant)), machine.vector_bytes // 4
    if 0 < n % width <= width // 2:
        check(kernel, machine, product_of(), threads=(1, 2, 3))
    else:
        assert "halves" not in Space(kernel, machine).default.options


@pytest.mark.parametrize("batch", [1, 7])
def test_batches(batch):
    check(product(61, 48, 24, False, False, batch), WIDE, product_of())


@pytest.mark.parametrize(
    "shape",
    [(14, 19, 64, 24, 1, 1), (9, 30, 20, 23, 3, 1), (7, 7, 32, 40, 1, 2), (1, 50, 48, 20, 3, 1), (5, 5, 9, 72, 3, 2)],
)
def test_convolution(shape):
    size, stride = shape[-2:]

    def reference(x):
        windows = np.lib.stride_tricks.sliding_window_view(x["x"], (size, size), (0, 1))[::stride, ::stride]
        return np.einsum("ijcyx,yxcf->ijf", windows, x["w"])

    kernel = convolution(*shape)
    if "halves" in Space(kernel, WIDE).default.options:
        check(kernel, WIDE, reference)
    else:
        assert size == 1


@pytest.mark.parametrize("m, n", [(75, 24), (49, 20), (31, 71)])
def test_every_tile(m, n):
    """Among them tiles that leave over one row, two and three."""
    kernel = product(m, 17, n)
    sizes = Space(kernel, WIDE).realize({"halves": True}).options["halves_tile"].candidates
    for size in sizes[:: len(sizes) // 6 or 1]:
        chosen = check(kernel, WIDE, product_of(), {"halves_tile": size})
        assert chosen.decisions["halves_tile"] == size
        assert not any(x in emit(chosen.nest, LANES16).text for x in ("vector.gather", "vector.scatter"))


@pytest.mark.parametrize("left", [8, 7, 3, 1])
def test_the_nest(left):
    """As it is interpreted, and as C."""
    kernel = product(19, 6, 16 + left, False)
    chosen = Space(kernel, WIDE).realize({"halves": True, "halves_tile": (8, 2)})
    assert chosen is not None and chosen.decisions["halves_tile"] == (8, 2)
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.inputs}
    (found,) = interpret_nest(chosen.nest, arrays).values()
    np.testing.assert_allclose(found, product_of()(arrays), rtol=1e-5, atol=1e-5)
    assert "%" not in chosen.schedule.source("c")


def test_the_sums_read_again():
    """What follows the sum adds another tensor to it, which lies like the result."""
    a, b, c = te.placeholder((50, 30), "a"), te.placeholder((30, 24), "b", constant=True), te.placeholder((50, 24), "c")
    r = te.reduce_axis(30, "r")
    y = te.compute((50, 24), lambda i, j: te.sum(a[i, r] * b[r, j], r), "y")
    kernel = te.kernel(te.compute((50, 24), lambda i, j: y[i, j] + c[i, j], "z"))
    check(kernel, WIDE, lambda x: x["a"] @ x["b"] + x["c"])


def test_what_it_does_not_take():
    """Other dtypes, columns that fill their vectors or more than half of the last one, a single row."""
    a, b, r = te.placeholder((100, 64), "a", "f64"), te.placeholder((64, 24), "b", "f64"), te.reduce_axis(64, "r")
    kernels = [te.kernel(te.compute((100, 24), lambda i, j: te.sum(a[i, r] * b[r, j], r)))]
    kernels += [product(100, 64, n) for n in (8, 16, 25, 31, 32, 300)] + [product(1, 64, 24), product(100, 5, 24)]
    assert not any("halves" in Space(k, WIDE).default.options for k in kernels)


def test_where_it_is_the_default():
    for size in ((1000, 64, 24), (1000, 32, 40), (784, 144, 24)):
        assert Space(product(*size), WIDE).default.decisions["halves"]
    for size in ((1000, 64, 16), (1000, 300, 17), (1000, 64, 30)):
        assert not Space(product(*size), WIDE).default.decisions.get("halves")


# ---- emission ----

SHARED = """
def k(x: f32[400], w: f32[16], y: out(f32[400])):
    acc = register(f32[{rows}, {columns}])
    for j in vector({lanes}, lanes=16):
        s0: acc[j // {columns}, j % {columns}] = f32(0.0)
    for k in serial(10):
        for j2 in vector({lanes}, lanes=16):
            s1: acc[j2 // {columns}, j2 % {columns}] = addf(acc[j2 // {columns}, j2 % {columns}],
                mulf(x[j2 // {columns} * 100 + k], w[j2 % {columns}]))
    for j3 in vector({lanes}, lanes=16):
        s2: y[j3 // {columns} * 50 + j3 % {columns}] = acc[j3 // {columns}, j3 % {columns}]
"""


@pytest.mark.parametrize("columns, rows", [(8, 2), (7, 2), (5, 3), (4, 4), (3, 4)])
def test_emission(columns, rows):
    text = SHARED.replace("\n                mulf", " mulf").format(columns=columns, rows=rows, lanes=columns * rows)
    nest = parse_nest(text)
    mlir = emit(nest, AVX512F).text
    assert not any(x in mlir for x in ("vector.gather", "vector.scatter"))
    assert mlir.count("memref.load") == rows
    x, w = np.arange(400, dtype=np.float32), np.arange(16, dtype=np.float32)
    y = BuiltKernel(nest, find("cpu"), 1)(x, w)
    for r in range(rows):
        np.testing.assert_array_equal(y[r * 50 : r * 50 + columns], x[r * 100 : r * 100 + 10].sum() * w[:columns])


def test_lanes_of_another_order_are_refused():
    """An element in a register is used in the lanes that it was made in."""
    nest = parse_nest("""
def k(x: f32[16], y: out(f32[16])):
    acc = register(f32[2, 8])
    for j in vector(16, lanes=16):
        s0: acc[j // 8, j % 8] = x[j]
    for j2 in vector(16, lanes=16):
        s1: y[j2] = acc[j2 % 2, j2 // 2]
""")
    with pytest.raises(CompileError, match="lanes of different orders"):
        emit(nest, LANES16)
