"""Initializations of reductions: where they may stand, and what they take along."""

import numpy as np
import pytest

from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
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


def test_a_copy_waits_until_all_is_there():
    """In a loop that holds writer and reader only one row is written when the copy would read all of them."""
    x = te.placeholder((4, 6), "x")
    t = te.compute((4, 6), lambda i, k: x[i, k] * 2.0, "t")
    r = te.reduce_axis(6, "r")
    s = Schedule(te.kernel(te.compute((4,), lambda i: te.sum(t[i, r] * t[i, r], r), "y")))
    (rows, _), (first, _) = s.loops("t"), s.loops("y")
    s.merge(rows, first)
    with pytest.raises(ScheduleError, match="cannot be shown that all of t"):
        s.cache_read("y", "t")


def test_a_reader_joins_tiles_that_end_inside_of_others_as_far_as_they_go():
    """The tiles of 2 in tiles of 5 end at 5, not where the buffer does."""
    x = te.placeholder((3, 8), "x")
    t = te.compute((3, 8), lambda i, k: x[i, k] * 2.0, "t")
    s = Schedule(te.kernel(te.compute((3, 8), lambda i, k: t[i, k] + 1.0, "y")))
    column = s.loops("t")[-1]
    _, inside = s.split(column, 5)
    outer, _ = s.split(inside, 2)
    s.reverse_compute_at("y", outer)
    given = np.arange(24, dtype=np.float32).reshape(3, 8)
    found = interpret_nest(s.nest(), {"x": given})
    np.testing.assert_array_equal(found["y"], given * 2 + 1)


def test_a_reader_does_not_join_several_loops_that_write_less_than_they_could():
    """Two tiles of 2 in a tile of 3 write 3 columns, not the 4 that their product says."""
    x = te.placeholder((3, 7), "x")
    t = te.compute((3, 7), lambda i, k: x[i, k] * 2.0, "t")
    s = Schedule(te.kernel(te.compute((3, 7), lambda i, k: t[i, k] + 1.0, "y")))
    outer, inside = s.split(s.loops("t")[-1], 3)
    s.split(inside, 2)
    with pytest.raises(ScheduleError, match="end inside of other tiles"):
        s.reverse_compute_at("y", outer)
