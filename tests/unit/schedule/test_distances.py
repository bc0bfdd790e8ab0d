"""Matrices times their own transposes and distances of points: what lies across the lanes is turned round once, also
where the same matrix is read along rows, and where what is summed is no product."""

import numpy as np
import pytest
from support.machines import AVX512F as MACHINE
from support.teams import teams

from tilewright.lang import te
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import Schedule, ScheduleError

FORMS = {
    "product": lambda a, b: a * b,
    "square": lambda a, b: (a - b) * (a - b),
    "absolute": lambda a, b: te.absf(a - b),
}
WANTED = {"product": lambda a, b: a * b, "square": lambda a, b: (a - b) ** 2, "absolute": lambda a, b: abs(a - b)}


def pairs(form, rows, columns, depth, batch=None):
    """``y[i, j]`` is a sum over rows i of a and j of b; with `columns` None b is a."""
    lead = () if batch is None else (batch,)
    a, k = te.placeholder((*lead, rows, depth), "a"), te.reduce_axis(depth, "k")
    b = a if columns is None else te.placeholder((*lead, columns, depth), "b")
    f, shape = FORMS[form], (*lead, rows, columns or rows)
    if batch is None:
        return te.kernel(te.compute(shape, lambda i, j: te.sum(f(a[i, k], b[j, k]), k), "y"), name="pairs")
    return te.kernel(te.compute(shape, lambda q, i, j: te.sum(f(a[q, i, k], b[q, j, k]), k), "y"), name="pairs")


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("columns", [None, 37, 64])
@pytest.mark.parametrize("rows, depth, batch", [(20, 3, None), (33, 7, None), (40, 64, 2), (21, 5, 3), (5, 130, None)])
def test_values(form, rows, columns, depth, batch):
    kernel = pairs(form, rows, columns, depth, batch)
    rng, lead = np.random.default_rng(depth), () if batch is None else (batch,)
    a = rng.standard_normal((*lead, rows, depth)).astype(np.float32)
    b = a if columns is None else rng.standard_normal((*lead, columns, depth)).astype(np.float32)
    want = WANTED[form](a[..., :, None, :].astype(np.float64), b[..., None, :, :]).sum(-1)
    for run in teams(schedule(kernel, MACHINE).schedule.build(threads=1)):
        found = run(*([a] if columns is None else [a, b]))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("columns", [None, 60])
def test_one_operand_is_turned(form, columns):
    made = schedule(pairs(form, 80, columns, 32), MACHINE)
    assert made.rule == "contraction" and made.schedule.decisions["turn"].default is True
    turned = [b for b in made.schedule.temporaries if b.endswith("_c") and b[0] in "ab"]
    assert turned == ["a_c" if columns is None else "b_c"]


def test_what_moves_with_the_rows_is_not_turned():
    """Its elements are read once: turning them round is for nothing."""
    x, t, k = te.placeholder((20, 40, 32), "x"), te.placeholder((40, 32), "t"), te.reduce_axis(32, "k")
    kernel = te.kernel(te.compute((20, 40), lambda b, i: te.sum(te.absf(x[b, i, k] - t[i, k]), k), "y"), name="rows")
    assert schedule(kernel, MACHINE).rule == "rows"


def test_copy_of_what_a_loop_selects():
    s = Schedule(pairs("product", 8, None, 4))
    assert s.cache_read("y", "a", "i_y", moving="j_y") == "y_a"
    assert "a[i_y, k], a_c[j_y, k]" in str(s)
    a = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    np.testing.assert_allclose(s.build(threads=1)(a), a @ a.T, rtol=1e-5, atol=1e-6)
    with pytest.raises(ScheduleError, match="block y does not read b along i_y"):
        Schedule(pairs("product", 8, 5, 4)).cache_read("y", "b", "i_y", moving="i_y")
