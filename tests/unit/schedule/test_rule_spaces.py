"""The spaces of the default rules: whatever is decided, a kernel keeps its meaning, in the interpreter and compiled.

The machine described here has tiny caches, so that small kernels are asked all there is to decide."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright.driver.build_program import pack_array
from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.schedule import Schedule
from tilewright.targets.base import find
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tune.space import Space

MACHINE = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v3", ("avx2", "fma"), vector_bytes=32, vector_registers=16, cores=2,
    l1_bytes=1 << 10, l2_bytes=8 << 10,
)  # fmt: skip


def matmul(m: int, k: int, n: int):
    a, b, r = te.placeholder((m, k), "a"), te.placeholder((k, n), "b", constant=True), te.reduce_axis(k, "r")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"))


def conv(height: int, channels: int, filters: int, size: int):
    n = height + size - 1
    x, w = te.placeholder((n, n, channels), "x"), te.placeholder((size, size, channels, filters), "w", constant=True)
    ry, rx, rc = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx"), te.reduce_axis(channels, "rc")
    out = te.compute(
        (height, height, filters), lambda y, z, f: te.sum(x[y + ry, z + rx, rc] * w[ry, rx, rc, f], ry, rx, rc), "s"
    )
    return te.kernel(te.compute((height, height, filters), lambda y, z, f: te.maximum(out[y, z, f], 0.0), "y"))


def depthwise(height: int, channels: int, size: int):
    n = height + size - 1
    x, w = te.placeholder((n, n, channels), "x"), te.placeholder((size, size, channels), "w", constant=True)
    ry, rx = te.reduce_axis(size, "ry"), te.reduce_axis(size, "rx")
    return te.kernel(
        te.compute((height, height, channels), lambda y, z, f: te.sum(x[y + ry, z + rx, f] * w[ry, rx, f], ry, rx))
    )


def batch_matmul(batch: int, m: int, k: int, n: int):
    a, b, r = te.placeholder((batch, m, k), "a"), te.placeholder((batch, k, n), "b"), te.reduce_axis(k, "r")
    return te.kernel(te.compute((batch, m, n), lambda q, i, j: te.sum(a[q, i, r] * b[q, r, j], r)))


def turned_matmul(batch: int, m: int, k: int, n: int):
    """The right operand lies across the lanes of the result."""
    a, b, r = te.placeholder((batch, m, k), "a"), te.placeholder((batch, n, k), "b"), te.reduce_axis(k, "r")
    return te.kernel(te.compute((batch, m, n), lambda q, i, j: te.sum(a[q, i, r] * b[q, j, r], r)))


def transpose(rows: int, columns: int):
    x = te.placeholder((rows, columns), "x")
    return te.kernel(te.compute((columns, rows), lambda i, j: x[j, i]))


def softmax(rows: int, columns: int):
    x, k, k2 = te.placeholder((rows, columns), "x"), te.reduce_axis(columns, "k"), te.reduce_axis(columns, "k2")
    top = te.compute((rows,), lambda i: te.max(x[i, k], k), "top")
    e = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    total = te.compute((rows,), lambda i: te.sum(e[i, k2], k2), "total")
    return te.kernel(te.compute((rows, columns), lambda i, j: e[i, j] / total[i], "y"))


def layer_norm(rows: int, n: int):
    x, g = te.placeholder((rows, n), "x"), te.placeholder((n,), "g", constant=True)
    k, k2 = te.reduce_axis(n, "k"), te.reduce_axis(n, "k2")
    mean = te.compute((rows,), lambda i: te.sum(x[i, k] * (1.0 / n), k), "mean")
    square = te.compute((rows,), lambda i: te.sum((x[i, k2] - mean[i]) * (x[i, k2] - mean[i]), k2), "square")
    scale = te.compute((rows,), lambda i: te.rsqrt(square[i] * (1.0 / n) + 1e-5), "scale")
    return te.kernel(te.compute((rows, n), lambda i, j: (x[i, j] - mean[i]) * scale[i] * g[j], "y"))


def sums(rows: int, columns: int):
    x, k = te.placeholder((rows, columns), "x"), te.reduce_axis(columns, "k")
    return te.kernel(te.compute((rows,), lambda i: te.sum(x[i, k], k)))


def sums_over_rows(images: int, rows: int, columns: int):
    x, k = te.placeholder((images, rows, columns), "x"), te.reduce_axis(rows, "k")
    return te.kernel(te.compute((images, columns), lambda i, j: te.sum(x[i, k, j], k)))


KERNELS = {
    "matmul": lambda: matmul(12, 22, 40),
    "tall": lambda: matmul(61, 7, 11),
    "vector": lambda: matmul(1, 40, 37),
    "conv": lambda: conv(4, 5, 19, 3),
    "depthwise": lambda: depthwise(6, 13, 5),
    "batch_matmul": lambda: batch_matmul(3, 7, 5, 11),
    "turned_matmul": lambda: turned_matmul(3, 7, 21, 19),
    "one_turned_matmul": lambda: turned_matmul(1, 21, 6, 35),
    "few_filters": lambda: conv(8, 16, 9, 3),
    "few_products": lambda: matmul(61, 5, 43),
    "few_columns": lambda: matmul(27, 41, 3),
    "one_column": lambda: matmul(45, 35, 1),
    "one_filter": lambda: conv(5, 17, 1, 3),
    "few_rows_of_turned": lambda: turned_matmul(3, 2, 35, 29),
    "tall_transpose": lambda: transpose(37, 5),
    "wide_transpose": lambda: transpose(5, 37),
    "transpose": lambda: transpose(19, 27),
    "softmax": lambda: softmax(77, 5),
    "long_softmax": lambda: softmax(67, 21),
    "layer_norm": lambda: layer_norm(75, 11),
    "sums": lambda: sums(91, 7),
    "sums_over_rows": lambda: sums_over_rows(3, 9, 77),
}


def arrays_of(kernel) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in kernel.inputs}


@pytest.mark.parametrize("name", KERNELS)
def test_candidates_keep_the_meaning(name):
    kernel = KERNELS[name]()
    arrays = arrays_of(kernel)
    expected = interpret_nest(Schedule(kernel).nest(), arrays)
    space, rng = Space(kernel, MACHINE), random.Random(1)
    for c in [space.default, *(space.sample(rng) for _ in range(12))]:
        packed = {n: pack_array(a, c.nest.packs[n]) if n in c.nest.packs else a for n, a in arrays.items()}
        found = interpret_nest(c.nest, packed)
        for out in kernel.outputs:
            np.testing.assert_allclose(found[out], expected[out], rtol=1e-4, atol=1e-4, err_msg=str(c.decisions))


@pytest.mark.parametrize("name", KERNELS)
def test_candidates_compile_to_the_same(name):
    kernel = KERNELS[name]()
    arrays = arrays_of(kernel)
    target = find("cpu")
    space, rng = Space(kernel, target.describe()), random.Random(2)
    inputs = [arrays[p.name] for p in kernel.inputs]
    expected = BuiltKernel(space.default.nest, target, 1)(*inputs)
    for _ in range(3):
        c = space.sample(rng)
        found = BuiltKernel(c.nest, target, 2)(*inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=str(c.decisions))


def test_what_a_contraction_leaves_open():
    open_ = Space(matmul(64, 64, 96), MACHINE).decisions
    assert {"tile", "rows_inside", "row_blocks", "unroll", "prefetch"} <= open_.keys()
    assert 0 in open_["prefetch"].candidates and 1024 in open_["prefetch"].candidates
    assert len(open_["row_blocks"].candidates) > 1 and open_["row_blocks"].default == 1


#: as MACHINE, with the registers and caches of a large processor
LARGE = replace(MACHINE, vector_registers=32, l1_bytes=48 << 10, l2_bytes=1 << 20)


def test_lanes_run_along_rows_where_columns_fill_few_of_them():
    """9 columns fill 56% of two vectors of 8; turning a few operands round costs less."""
    few, full = (Space(conv(16, 32, n, 3), LARGE).realize({"sum_lanes": False}) for n in (9, 16))
    assert few is not None and full is not None
    assert few.options["lanes"].default == "rows" and full.decisions.get("lanes", "columns") == "columns"
    one = Space(conv(16, 32, 9, 1), LARGE).realize({"sum_lanes": False})
    assert one is not None and "lanes" not in one.decisions  # one product for each number turned


def test_lanes_run_along_sums_where_results_fill_few_of_them():
    """Of one to three columns a vector of 8 holds little; along a sum of 64 it is full. With many columns it is too."""
    few = [
        Space(k, LARGE)
        for k in (matmul(100, 64, 1), matmul(100, 64, 3), conv(16, 32, 2, 3), turned_matmul(3, 1, 64, 90))
    ]
    assert all(space.default.decisions["sum_lanes"] for space in few)
    many = [Space(k, LARGE) for k in (matmul(100, 64, 96), matmul(1, 64, 96), conv(16, 32, 32, 3), matmul(100, 5, 3))]
    assert not any(space.default.decisions.get("sum_lanes") for space in many)
    assert few[0].realize({"sum_lanes": False}) is not None
    assert few[1].default.nest.packs["b"].order == (1, 0)  # columns that lie along the sum


def test_short_sums_are_laid_out_whole():
    kernel = matmul(61, 5, 27)
    space, rng, arrays = Space(kernel, LARGE), random.Random(3), arrays_of(kernel)
    assert space.default.decisions["lay_out"] is True and "serial(5)" not in str(space.default.plain)
    expected = interpret_nest(Schedule(kernel).nest(), arrays)
    for c in [space.default, *(space.sample(rng) for _ in range(5))]:
        packed = {n: pack_array(a, c.nest.packs[n]) if n in c.nest.packs else a for n, a in arrays.items()}
        np.testing.assert_allclose(interpret_nest(c.nest, packed)["c"], expected["c"], rtol=1e-4, atol=1e-4)


def test_operands_that_lie_across_are_turned_round():
    space = Space(turned_matmul(3, 7, 6, 19), MACHINE)
    assert space.default.decisions["turn"] is True
    gathered = space.realize({"turn": False})
    assert gathered is not None and "local(" in str(space.default.plain) and "local(" not in str(gathered.plain)
    assert Space(turned_matmul(3, 2, 6, 19), MACHINE).default.decisions["turn"] is False  # too few rows
    assert "turn" not in Space(batch_matmul(3, 7, 5, 11), MACHINE).decisions


def test_sums_over_whole_rows():
    """Rows that lie one after the other are read in order, if the registers hold the sums of one."""
    machine = CpuDescription(
        "x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64, vector_registers=32
    )  # fmt: skip
    tiles = [Space(sums_over_rows(3, 9, n), machine).default.decisions["tile"] for n in (143, 384, 400)]
    assert tiles == [(1, 1, 9), (1, 1, 24), (1, 1, 13)]  # or in equal parts
    assert Space(sums_over_rows(3, 5, 400), machine).default.decisions["tile"][2] <= 8


def test_rows_a_page_apart_are_few():
    """Rows of the left operand that are 4096 bytes apart share the places of one set of the first-level cache."""
    machine = CpuDescription(
        "x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64, vector_registers=32,
        l1_bytes=48 << 10, l2_bytes=1 << 20,
    )  # fmt: skip
    near, far = (Space(matmul(140, k, 256), machine).default.decisions["tile"] for k in (1000, 1024))
    assert near[0] > 10 >= far[0]


def test_long_windows_are_laid_out():
    """A window of five is read once for all its neighbours."""
    text = str(Space(depthwise(14, 32, 5), find("cpu").describe()).default.plain)
    assert "unroll(5)" in text
