"""What a loop nest executes, beside what its kernel asks (`schedule.executed`); most nests are written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.lang import te
from tilewright.report.explain import fallen
from tilewright.schedule.executed import Executed, executed
from tilewright.schedule.finish import finish
from tilewright.schedule.machine import lanes
from tilewright.schedule.parse import parse_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import Schedule
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tensor.kernel import Opaque

MACHINE = CpuDescription("x86_64-unknown-linux-gnu", "x86-64-v3", ("avx2",), vector_bytes=32, vector_registers=16)
WIDE = replace(MACHINE, cpu="x86-64-v4", vector_bytes=64, vector_registers=32)


def matmul(m: int, n: int, k: int, scale: bool = False):
    x, w = te.placeholder((m, k), "x"), te.placeholder((k, n), "w", constant=True)
    r = te.reduce_axis(k, "r")
    y = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], r), "y")
    return te.kernel(te.compute((m, n), lambda i, j: y[i, j] * 2.0, "z") if scale else y)


@pytest.mark.parametrize("machine", [MACHINE, WIDE], ids=["avx2", "avx512"])
def test_default_schedules_execute_what_the_kernel_asks(machine):
    rng = np.random.default_rng(15)
    for m, n, k in rng.integers(1, 150, (8, 3)).tolist():
        kernel = matmul(m, n, k)
        found = executed(finish(schedule(kernel, machine).schedule.nest()), kernel, machine)
        assert found.own == 2 * m * n * k
        assert 1 <= found.recomputation < 1.2, (m, n, k)  # sums of several lanes are added up at the end
        assert not found.reasons(machine), (m, n, k)


def test_a_producer_that_every_task_computes_whole_is_counted_as_often():
    kernel = matmul(64, 64, 64, scale=True)
    s = Schedule(kernel)
    nest = finish(s.nest())
    assert executed(nest, kernel).recomputation == 1
    text = """
def again(x: f32[64, 64], w: f32[64, 64], z: out(f32[64, 64])):
    for t in thread(64):
        y = local(f32[64, 64])
        for i in serial(64):
            for j in vector(64, lanes=8):
                y[i, j] = f32(0.0)
            for r in serial(64):
                for j in vector(64, lanes=8):
                    y[i, j] = addf(y[i, j], mulf(x[i, r], w[r, j]))
        for j in vector(64, lanes=8):
            z[t, j] = mulf(y[t, j], f32(2.0))
"""
    found = executed(parse_nest(text), kernel, MACHINE)
    own = 2 * 64**3 + 64**2
    assert (found.operations, found.own) == (64 * 2 * 64**3 + 64**2, own)
    assert found.private == 4 * 64 * 64
    (reason,) = found.reasons(MACHINE)
    assert reason == f"it computes {found.operations / own:.3g} times what the kernel asks"
    assert len(found.reasons(replace(MACHINE, l2_bytes=8 << 10))) == 2


def test_branches_count_as_often_as_they_are_taken():
    """Most of all where the condition is a remainder: full tiles, and the last one."""
    text = """
def cut(x: f32[24, 40], z: out(f32[24, 40])):
    for f in thread(72):
        if f // 8 % 3 < 2:
            for j in vector(16, lanes=16):
                z[f // 24 * 8 + f % 8, f // 8 % 3 * 16 + j] = mulf(x[f % 8, f // 8 % 3 * 16 + j], f32(2.0))
        else:
            for j in vector(8, lanes=16):
                z[f // 24 * 8 + f % 8, j + 32] = mulf(x[f // 24 * 8 + f % 8, j + 32], f32(2.0))
"""
    x = te.placeholder((24, 40), "x")
    kernel = te.kernel(te.compute((24, 40), lambda i, j: x[i, j] * 2.0, "z"))
    assert executed(parse_nest(text), kernel).recomputation == 1
    both = text.replace("f // 8 % 3 < 2", "f < 80").replace("f // 8 % 3 * 16 + j", "j")
    assert executed(parse_nest(both), kernel).recomputation == 72 * 16 / (24 * 40)


def test_extents_that_depend_on_outer_loops_are_tried_one_by_one():
    text = """
def triangle(x: f32[600, 600], z: out(f32[600])):
    for i in thread(600):
        for j in serial(i + 1):
            z[i] = addf(z[i], x[i, j])
"""
    x = te.placeholder((600, 600), "x")
    kernel = te.kernel(te.compute((600,), lambda i: x[i, 0] + 1.0, "z"))
    assert executed(parse_nest(text), kernel).operations == pytest.approx(600 * 601 / 2, rel=0.02)


def test_a_large_loop_without_vectors_counts_where_a_row_could_be_one():
    kernel = matmul(64, 64, 64)
    plain = executed(finish(Schedule(kernel).nest()), kernel, MACHINE)
    assert plain.scalar > 0.9 * plain.cycles
    (reason,) = plain.reasons(MACHINE)
    assert reason == "100% of its time is spent without vectors where a row would do"
    none = replace(MACHINE, vector_bytes=4)
    assert lanes(none) == 1 and not executed(finish(Schedule(kernel).nest()), kernel, none).reasons(none)
    small = matmul(4, 8, 8)
    assert not executed(finish(Schedule(small).nest()), small, MACHINE).reasons(MACHINE)


def test_what_needs_the_element_before_has_no_row():
    text = """
def scan(x: f32[512, 512], z: out(f32[512, 512])):
    for j in serial(512):
        z[0, j] = x[0, j]
    for i in serial(511):
        for j in serial(512):
            z[i + 1, j] = addf(z[i, j], x[i + 1, j])
"""
    x = te.placeholder((512, 512), "x")
    kernel = te.kernel(te.compute((512, 512), lambda i, j: x[i, j] + 1.0, "z"))
    assert executed(parse_nest(text), kernel, MACHINE).scalar < 1e4


def test_vectors_that_are_gathered_count_where_another_loop_runs_along_the_row():
    """But not a transpose, of which one side is never in a row."""
    text = """
def turned(x: f32[512, 512], z: out(f32[512, 512])):
    for j in thread(512):
        for i in vector(512, lanes=8):
            z[i, j] = mulf(x[i, j], f32(2.0))
"""
    x = te.placeholder((512, 512), "x")
    kernel = te.kernel(te.compute((512, 512), lambda i, j: x[i, j] * 2.0, "z"))
    found = executed(parse_nest(text), kernel, MACHINE)
    assert found.gathered == found.cycles
    assert found.reasons(MACHINE) == ["100% of its time is spent in vectors that are gathered where a row would do"]
    transpose = executed(parse_nest(text.replace("x[i, j]", "x[j, i]")), kernel, MACHINE)
    assert not transpose.reasons(MACHINE)


def test_an_operator_with_a_nest_of_its_own_is_what_its_nest_does():
    kernel = matmul(4, 4, 4)
    opaque = replace(kernel, stages=(), opaque=Opaque("mine", {}, ("x", "w"), ("y",), ("f32", "f32")))
    assert executed(finish(Schedule(kernel).nest()), opaque).recomputation == 1


def centered(rows: int, columns: int):
    """x + y is read by the sum and by the difference: so cheap that rules compute it twice."""
    x, y = te.placeholder((rows, columns), "x"), te.placeholder((rows, columns), "y")
    r = te.reduce_axis(columns, "r")
    a = te.compute((rows, columns), lambda i, j: x[i, j] + y[i, j], "a")
    total = te.compute((rows,), lambda i: te.sum(a[i, r], r), "total")
    mean = te.compute((rows,), lambda i: total[i] * (1 / columns), "mean")
    return te.kernel(te.compute((rows, columns), lambda i, j: (a[i, j] - mean[i]) * 3.0, "z"))


def test_a_little_arithmetic_counts_once_for_each_reader():
    kernel = centered(64, 96)
    found = executed(finish(schedule(kernel, MACHINE).schedule.nest()), kernel, MACHINE)
    assert found.own == 64 * 96 * (2 + 3) + 64
    assert 0.9 < found.recomputation < 1.2


def test_what_is_the_same_in_all_iterations_of_an_inner_loop_is_computed_before_it():
    text = """
def scaled(x: f32[8, 64], s: f32[8], z: out(f32[8, 64])):
    for i in thread(8):
        for j in vector(64, lanes=8):
            z[i, j] = mulf(x[i, j], mulf(s[i], s[i]))
"""
    x, s = te.placeholder((8, 64), "x"), te.placeholder((8,), "s")
    kernel = te.kernel(te.compute((8, 64), lambda i, j: x[i, j] * (s[i] * s[i]), "z"))
    assert executed(parse_nest(text), kernel).operations == 8 * 64 + 8
    moving = text.replace("mulf(s[i], s[i])", "mulf(x[i, j], s[i])")
    assert executed(parse_nest(moving), kernel).operations == 2 * 8 * 64


def test_the_last_rows_of_a_task_count_as_they_are():
    """Tasks of 16 rows out of every 20: of the second are only four rows left."""
    text = """
def rows(x: f32[224, 16, 64], z: out(f32[224, 16, 64])):
    for t in thread(224):
        for i in serial(min(16, t % 2 * -16 + 20)):
            for j in vector(64, lanes=8):
                z[t, i, j] = mulf(x[t, i, j], f32(2.0))
"""
    x = te.placeholder((224, 16, 64), "x")
    kernel = te.kernel(te.compute((224, 16, 64), lambda t, i, j: x[t, i, j] * 2.0, "z"))
    assert executed(parse_nest(text), kernel).operations == 112 * (16 + 4) * 64


@pytest.mark.parametrize("columns", [17, 24, 48, 64])
def test_parts_of_sums_are_no_second_computation(columns):
    x, r = te.placeholder((700, columns), "x"), te.reduce_axis(columns, "r")
    kernel = te.kernel(te.compute((700,), lambda i: te.sum(x[i, r], r), "z"))
    made = schedule(kernel, WIDE)
    assert made.rule == "rows" and executed(made.nest, kernel, WIDE).recomputation == 1


def test_what_is_inlined_into_a_cheap_stage_counts_when_it_has_several_readers():
    """x + erf(x) is cheap on top of erf(x), but not to be made again by the sum and the difference."""
    x, r = te.placeholder((300, 140), "x"), te.reduce_axis(140, "r")
    y = te.compute((300, 140), lambda i, j: te.erf(x[i, j] * 0.7), "y")
    a = te.compute((300, 140), lambda i, j: y[i, j] + x[i, j], "a")
    total = te.compute((300,), lambda i: te.sum(a[i, r], r), "total")
    kernel = te.kernel(te.compute((300, 140), lambda i, j: a[i, j] - total[i], "z"))
    nest = schedule(kernel, WIDE).nest
    assert executed(nest, kernel, WIDE).recomputation < 1.1


def test_a_little_that_is_made_again_is_told_too():
    few = Executed(operations=9000, own=3000, stored=1, own_stored=1)
    assert few.remark == "it computes 3 times what the kernel asks: 6000 operations more, too few to matter"
    assert not few.reasons(WIDE)
    many = replace(few, operations=9e6, own=3e6)
    assert not many.remark and many.reasons(WIDE) == ["it computes 3 times what the kernel asks"]
    facts = {"does": "reduction", "kind": "rows", "fell": "", "slow": [], "remark": few.remark}
    lines = fallen(["a", "b"], {"a": facts, "b": {**facts, "remark": ""}})
    assert lines == ["", "1 kernel with a little work done again", f"  a: {few.remark}"]
