"""Sums over rows of a few columns: every dtype and way, rows that no step divides, several sums in one kernel."""

import numpy as np
import pytest
from support.machines import AVX512F as MACHINE
from support.teams import teams

from tilewright.ir.types import NUMPY
from tilewright.lang import te
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.reduction import narrow_reduction as few_columns

NAMES = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def reduced(shape, axes, kind="sum", dtype="f32"):
    """A reduction of some dimensions; the last one stays."""
    x = te.placeholder(shape, "x", dtype)
    inner = {d: te.reduce_axis(shape[d], f"k{d}") for d in axes}
    kept = [d for d in range(len(shape)) if d not in axes]

    def element(*own):
        found = dict(zip(kept, own, strict=True))
        return getattr(te, kind)(
            x[tuple(inner[d] if d in inner else found[d] for d in range(len(shape)))], *inner.values()
        )

    body = (lambda a: element(a)) if len(kept) == 1 else lambda a, b: element(a, b)
    return te.kernel(te.compute(tuple(shape[d] for d in kept), body, "y"), name="reduced")


def ways(kernel):
    """The default schedule, and those with the lanes the other way and with a single sum."""
    default = schedule(kernel, MACHINE)
    assert default.rule == "few_columns"
    lanes = [n for n in default.schedule.decisions if n.startswith("lanes")]
    sums = [n for n in default.schedule.decisions if n.startswith("sums")]
    for way in ("rows", "columns"):
        for count in (1, 2):
            wanted = dict.fromkeys(lanes, way) | dict.fromkeys(sums, count)
            yield schedule(kernel, MACHINE, wanted).schedule
    yield default.schedule


@pytest.mark.parametrize("columns", [2, 3, 4, 5, 7, 8, 13, 16])
@pytest.mark.parametrize("rows", [64, 131, 1000])
def test_every_number_of_columns(rows, columns):
    x = np.random.default_rng(columns).standard_normal((rows, columns)).astype(np.float32)
    for s in ways(reduced((rows, columns), (0,))):
        for run in teams(s.build(threads=1)):
            np.testing.assert_allclose(run(x), x.astype(np.float64).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_dtypes(dtype, kind):
    x = np.random.default_rng(0).uniform(-1.2, 1.2, (77, 3)).astype(NUMPY[dtype])
    x[5, 1] = -3
    for s in ways(reduced(x.shape, (0,), kind, dtype)):
        np.testing.assert_allclose(s.build(threads=2)(x), NAMES[kind](x, 0), rtol=1e-4)


@pytest.mark.parametrize("shape, axes", [((9, 11, 3), (0, 1)), ((5, 9, 15, 3), (1, 2)), ((70, 2, 6), (0,))])
def test_images(shape, axes):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for s in ways(reduced(shape, axes)):
        for run in teams(s.build(threads=1)):
            np.testing.assert_allclose(run(x), x.sum(axes), rtol=1e-4, atol=1e-4)


def test_nan_spreads_and_the_largest_is_negative():
    x = -1 - np.random.default_rng(0).random((99, 3), np.float32)
    for s in ways(reduced(x.shape, (0,), "max")):
        np.testing.assert_array_equal(s.build(threads=1)(x), x.max(0))
    x[57, 2] = np.nan
    for s in ways(reduced(x.shape, (0,), "max")):
        np.testing.assert_array_equal(s.build(threads=1)(x), x.max(0))


@pytest.mark.parametrize("rows, columns", [(113, 3), (64, 4), (200, 9)])
def test_variance(rows, columns):
    """Two sums, the second of which takes in the first."""
    a, k, k2 = te.placeholder((rows, columns), "x"), te.reduce_axis(rows, "k"), te.reduce_axis(rows, "k2")
    total = te.compute((columns,), lambda c: te.sum(a[k, c], k), "total")
    mean = te.compute((columns,), lambda c: total[c] * (1.0 / rows), "mean")
    square = te.compute((columns,), lambda c: te.sum((a[k2, c] - mean[c]) * (a[k2, c] - mean[c]), k2), "square")
    kernel = te.kernel(te.compute((columns,), lambda c: square[c] * (1.0 / rows), "y"), name="variance")
    x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32) + 10
    for s in ways(kernel):
        for run in teams(s.build(threads=1)):
            np.testing.assert_allclose(run(x), x.astype(np.float64).var(0), rtol=1e-4)


def refused(kernel):
    why = few_columns.apply(kernel, MACHINE)
    return why if isinstance(why, str) else None


def test_what_is_not_for_it():
    assert refused(reduced((300, 40), (0,))) == "its results are no few columns"
    assert "many rows" in refused(reduced((20, 3), (0,)))
    x, w, k = te.placeholder((100, 3), "x"), te.placeholder((100,), "w"), te.reduce_axis(100, "k")
    weighted = te.kernel(te.compute((3,), lambda c: te.sum(x[k, c] * w[k], k), "y"), name="weighted")
    assert "many rows" in refused(weighted)
