"""Rows by the threads of blocks and warps: random kernels with random teams, against NumPy, and free of races."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.machine import Machine
from tilewright.schedule.nest import Barrier, transform
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import rows
from tilewright.targets.cuda.description import SM_80
from tilewright.targets.gpu.describe import GpuDescription

GPU = GpuDescription(block_threads=16, vector_registers=8, shared_bytes=2048, cores=16)

#: rows i, each of n numbers; {x}: x of the row, which may lie across
SOFTMAX = """
def f(x: f32[{shape}], y: out(f32[{shape}])):
    top = local(f32[{m}, 1])
    e = local(f32[{m}, {n}])
    total = local(f32[{m}, 1])
    for i0 in serial({m}):
        for j0 in serial({n}):
            s0: top[i0, 0] = reduce(maximumf(x[{at0}], top[i0, 0]), init=f32(-inf), over=(j0,))
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: e[i1, j1] = exp(subf(x[{at1}], top[i1, 0]))
    for i2 in serial({m}):
        for j2 in serial({n}):
            s2: total[i2, 0] = reduce(addf(e[i2, j2], total[i2, 0]), init=f32(0.0), over=(j2,))
    for i3 in serial({m}):
        for j3 in serial({n}):
            s3: y[{at3}] = divf(e[i3, j3], total[i3, 0])
"""
PLACES = """
def f(x: i32[{m}, {n}], w: i32[{n}], first: out(i32[{m}]), sums: out(i32[{m}]), y: out(i32[{m}, {n}])):
    top = local(i32[{m}])
    for i0 in serial({m}):
        for j0 in serial({n}):
            s0: top[i0] = reduce(maxsi(x[i0, j0], top[i0]), init=i32(-2147483648), over=(j0,))
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: first[i1] = reduce(minsi(select(cmpi.eq(x[i1, j1], top[i1]), index_cast[i32](j1), i32({n})), first[i1]), init=i32({n}), over=(j1,))
    for i2 in serial({m}):
        for j2 in serial({n}):
            s2: sums[i2] = reduce(addi(muli(x[i2, j2], w[j2]), sums[i2]), init=i32(7), over=(j2,))
    for i3 in serial({m}):
        for j3 in serial({n}):
            s3: y[i3, j3] = addi(muli(x[i3, j3], sums[i3]), first[i3])
"""  # noqa: E501


def checked(text: str, machine: Machine, decisions=None):
    """A kernel's schedule by the rule, and its finished nest, which must be free of races."""
    made = rows.apply(te.from_nest(text), machine, decisions)
    assert not isinstance(made, str), made
    nest = finish(made.nest())
    assert illegal(nest.body, nest.buffers(), lambda: machine) is None, nest
    return made, nest


def others(made, draw: random.Random) -> dict:
    """Other decisions than the default ones."""
    return {d.name: draw.choice(d.candidates) for d in made.decisions.values()}


@pytest.mark.parametrize("seed", range(4))
def test_softmax_along_and_across(seed):
    draw = random.Random(seed)
    m, n, across = draw.randint(1, 5), draw.randint(2, 30), seed % 2 == 1
    at = {f"at{k}": f"j{k}, i{k}" if across else f"i{k}, j{k}" for k in (0, 1, 3)}
    text = SOFTMAX.format(m=m, n=n, shape=f"{n}, {m}" if across else f"{m}, {n}", **at)
    x = np.random.default_rng(seed).standard_normal((n, m) if across else (m, n)).astype("f4")
    e = np.exp(x - x.max(1 - across, keepdims=True))
    want = e / e.sum(1 - across, keepdims=True)
    made, nest = checked(text, GPU)
    for _ in range(2):
        np.testing.assert_allclose(interpret_nest(nest, {"x": x}, GPU)["y"], want, rtol=1e-5)
        nest = checked(text, GPU, others(made, draw))[1]


@pytest.mark.parametrize("seed", range(3))
def test_several_results_of_a_row(seed):
    """The first place of the largest number, a sum that does not begin with nothing, and what is made of both."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    m, n = draw.randint(1, 4), draw.randint(1, 24)
    text = PLACES.format(m=m, n=n)
    x, w = (numbers.integers(-5, 6, s).astype("i4") for s in ((m, n), (n,)))
    first, sums = x.argmax(1), x @ w + 7
    made, nest = checked(text, GPU)
    for _ in range(2):
        got = interpret_nest(nest, {"x": x, "w": w}, GPU)
        assert (got["first"] == first).all() and (got["sums"] == sums).all()
        assert (got["y"] == x * sums[:, None] + first[:, None]).all()
        nest = checked(text, GPU, others(made, draw))[1]


def test_a_row_a_warp():
    text = SOFTMAX.format(m=2, n=72, shape="2, 72", at0="i0, j0", at1="i1, j1", at3="i3, j3")
    _, nest = checked(text, SM_80, {"team": (2, 32)})
    assert "barrier(warp)" in str(nest) and "barrier(block)" not in str(nest) and "in lane(32)" in str(nest)
    x = np.random.default_rng(0).standard_normal((2, 72)).astype("f4")
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(interpret_nest(nest, {"x": x}, SM_80)["y"], e / e.sum(1, keepdims=True), rtol=1e-5)
    assert "barrier(block)" in str(checked(text, SM_80, {"team": (2, 32), "warps": False})[1])


def test_a_row_stays_where_it_fits():
    def kept(n: int, **other) -> str:
        text = SOFTMAX.format(m=512, n=n, shape=f"512, {n}", at0="i0, j0", at1="i1, j1", at3="i3, j3")
        return rows.apply(te.from_nest(text), GpuDescription(**other)).plan

    assert "kept in registers" in kept(1024)
    assert "kept in shared memory" in kept(1024, vector_registers=2)
    assert "read at each level" in kept(50000)


def test_more_rows_than_a_grid_is_wide():
    text = SOFTMAX.format(m=13, n=9, shape="13, 9", at0="i0, j0", at1="i1, j1", at3="i3, j3")
    machine = replace(GPU, grid_side=3)
    nest = checked(text, machine, {"team": (2, 4)})[1]
    assert "grid.x(3)" in str(nest) and "grid.y(3)" in str(nest)
    x = np.random.default_rng(0).standard_normal((13, 9)).astype("f4")
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(interpret_nest(nest, {"x": x}, machine)["y"], e / e.sum(1, keepdims=True), rtol=1e-5)


def test_a_forgotten_barrier_is_found():
    text = SOFTMAX.format(m=2, n=40, shape="2, 40", at0="i0, j0", at1="i1, j1", at3="i3, j3")
    _, nest = checked(text, GPU, {"team": (1, 16)})
    broken = transform(nest.body, lambda s: None if isinstance(s, Barrier) else s)
    assert "without a barrier between" in (illegal(broken, nest.buffers(), lambda: GPU) or "")


def test_processors_and_other_kernels_are_left_to_other_rules():
    text = SOFTMAX.format(m=4, n=8, shape="4, 8", at0="i0, j0", at1="i1, j1", at3="i3, j3")
    assert rows.apply(te.from_nest(text), Machine()) == "the machine has no grid of blocks"
    pool = """
def f(x: f32[2, 4096], y: out(f32[4096])):
    for i in serial(4096):
        for k in serial(2):
            s0: y[i] = reduce(addf(x[k, i], y[i]), init=f32(0.0), over=(k,))
"""
    assert rows.apply(te.from_nest(pool), GPU) == "one thread for each row is as fast"
    assert schedule(te.from_nest(text), GPU).rule == "block_rows"
    two = """
def f(x: f32[4, 8], y: out(f32[4])):
    t = local(f32[4, 2])
    for i in serial(4):
        for j in serial(2):
            for k in serial(4):
                s0: t[i, j] = reduce(addf(x[i, j * 4 + k], t[i, j]), init=f32(0.0), over=(k,))
    for i1 in serial(4):
        for j1 in serial(2):
            s1: y[i1] = reduce(addf(t[i1, j1], y[i1]), init=f32(0.0), over=(j1,))
"""
    assert rows.apply(te.from_nest(two), GPU) == "stage s1 has other rows"
