"""Elementwise kernels by blocks: several results of several sizes, in neighbours of a thread, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.machine import Machine
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import elementwise
from tilewright.targets.cuda.description import SM_80
from tilewright.targets.gpu.describe import GpuDescription

GPU = GpuDescription()

PARTS = """
def f(x: f32[{m}, {n}], z: f32[{n}], y: out(f32[{m}, {w}]), q: out(f32[{n}, {m}])):
    for i in serial({m}):
        for j in serial({n}):
            s0: y[i, j] = mulf(x[i, j], z[j])
    for i1 in serial({m}):
        for j1 in serial(3):
            s1: y[i1, j1 + {n}] = f32(1.0)
    for i2 in serial({n}):
        for j2 in serial({m}):
            s2: q[i2, j2] = negf(x[j2, i2])
"""


@pytest.mark.parametrize(("m", "n"), [(3, 8), (5, 33), (1, 64)])
@pytest.mark.parametrize("machine", [GPU, replace(GPU, grid_side=3), SM_80], ids=["gpu", "narrow", "cuda"])
def test_parts_of_results(m, n, machine):
    made = elementwise.apply(te.from_nest(PARTS.format(m=m, n=n, w=n + 3)), machine, {"threads": 32})
    assert not isinstance(made, str), made
    nest = finish(made.nest())
    x, z = (np.random.default_rng(0).integers(-8, 8, s).astype("f4") for s in ((m, n), n))
    got = interpret_nest(nest, {"x": x, "z": z}, machine)
    assert (got["y"] == np.concatenate([x * z, np.ones((m, 3))], axis=1)).all() and (got["q"] == -x.T).all()


def test_neighbours_go_to_one_unit_where_accesses_are_longer():
    text = """
def f(x: f32[6, 64], y: out(f32[6, 64])):
    for i in serial(6):
        for j in serial(64):
            s0: y[i, j] = negf(x[i, j])
"""
    found = schedule(te.from_nest(text), SM_80)
    assert found.rule == "block_elementwise" and "vector(4, lanes=4)" in str(found.nest)
    assert illegal(found.nest.body, found.nest.buffers(), lambda: SM_80) is None
    assert "vector" not in str(schedule(te.from_nest(text), GpuDescription(vector_bytes=4)).nest)


def test_processors_are_left_to_other_rules():
    kernel = te.from_nest(PARTS.format(m=3, n=8, w=11))
    assert elementwise.apply(kernel, Machine()) == "the machine has no grid of blocks"
