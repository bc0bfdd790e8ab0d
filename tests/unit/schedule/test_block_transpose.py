"""Transpositions through shared memory: random ones with random tiles, against NumPy, and free of races."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.concurrent import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.machine import Machine
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import transpose
from tilewright.targets.gpu.describe import GpuDescription

GPU = GpuDescription(block_units=32, shared_bytes=2048)

TURNED = """
def f(x: f32[{b}, {m}, {n}], z: f32[{b}, {n}, {m}], w: f32[{m}, {n}], y: out(f32[{b}, {n}, {m}])):
    t = local(f32[{b}, {m}, {n}])
    for h in serial({b}):
        for i in serial({m}):
            for j in serial({n}):
                s0: t[h, i, j] = mulf(x[h, i, j], w[i, j])
    for h1 in serial({b}):
        for j1 in serial({n}):
            for i1 in serial({m}):
                s1: y[h1, j1, i1] = addf(t[h1, i1, j1], z[h1, j1, i1])
"""


@pytest.mark.parametrize("seed", range(4))
def test_random_transpositions(seed):
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    b, m, n = draw.randint(1, 2), draw.randint(8, 13), draw.randint(8, 13)
    m, n = (m, n) if seed < 3 else (12, 20)  # which long accesses fit
    machine = GPU if seed else replace(GPU, grid_side=2)
    kernel = te.from_nest(TURNED.format(b=b, m=m, n=n))
    arrays = {"x": (b, m, n), "z": (b, n, m), "w": (m, n)}
    given = {k: numbers.integers(-8, 8, s).astype("f4") for k, s in arrays.items()}
    want = (given["x"] * given["w"]).swapaxes(1, 2) + given["z"]
    made = transpose.apply(kernel, machine)
    assert not isinstance(made, str), made
    for _ in range(2):
        nest = finish(made.nest())
        assert illegal(nest.body, nest.buffers(), lambda: machine) is None
        assert (interpret_nest(nest, given, machine)["y"] == want).all()
        made = transpose.apply(kernel, machine, {"tile": draw.choice(made.decisions["tile"].candidates)})


def test_rows_of_a_tile_lie_in_different_banks():
    text = str(schedule(te.from_nest(TURNED.format(b=1, m=64, n=64)), GpuDescription()).nest)
    assert "shared(f32[32, 33])" in text and "barrier(block)" in text


def test_what_is_no_transposition_is_left_to_other_rules():
    kernel = te.from_nest(TURNED.format(b=1, m=64, n=3))
    assert transpose.apply(kernel, GPU) == "nothing is read across, or rows are short"
    assert transpose.apply(kernel, Machine()) == "the machine has no grid of blocks"
    padded = """
def f(x: f32[16, 16], y: out(f32[16, 20])):
    for i in serial(16):
        for j in serial(20):
            s0: y[i, j] = guard(cmpi.slt(j, index(16)), x[j, i], f32(0.0))
"""
    assert transpose.apply(te.from_nest(padded), GPU) == "nothing is read across, or rows are short"
