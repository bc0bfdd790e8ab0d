"""Initializations of reductions: where they may stand, and what they take along."""

import pytest

from tilewright import te
from tilewright.schedule.finish import finish
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.tensor.expr import Const, Var


def test_an_initialization_prefetches_nothing():
    """What the update asks for may depend on loops that the initialization does not have."""
    s = Schedule(
        te.from_nest("""
def k(x: f32[4, 8], y: out(f32[8])):
    for k in serial(4):
        for i in serial(8):
            s0: y[i] = reduce(addf(y[i], x[k, i]), init=f32(0.0), over=(k,))""")
    )
    s.prefetch("i", "x", [Var("k") * 8 + Const(8, "index")])
    done = finish(s.nest())
    assert parse_nest(format_nest(done)) == done
    assert format_nest(done).count("prefetch") == 1


def test_a_double_buffer_is_not_initialized_in_advance():
    x, j = te.placeholder((4, 6), "x"), te.reduce_axis(6, "j")
    top = te.compute((4,), lambda i: te.max(x[i, j], j), "top")
    s = Schedule(te.kernel(te.compute((4, 6), lambda i, k: x[i, k] - top[i], "y")))
    columns = s.loops("y")[-1]
    outer, _ = s.split(columns, 3)
    s.compute_at("top", outer)
    s.pipeline(outer, "top")
    with pytest.raises(ScheduleError, match="runs under a condition inside"):
        s.decompose_reduction("top", outer)


def test_a_double_buffer_is_not_divided_among_threads():
    """Each iteration reads what the one before it has put there, which another thread may have run."""
    x = te.placeholder((3, 4), "x")
    s = Schedule(te.kernel(te.compute((3, 4), lambda i, k: x[i, k] * 2.0, "y")))
    rows = s.loops("y")[0]
    copy = s.cache_read("y", "x", rows)
    s.pipeline(rows, copy)
    with pytest.raises(ScheduleError, match="each other's elements"):
        s.parallel(rows)
