"""Transpositions through shared memory: random ones with random tiles, against NumPy, and free of races."""

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
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import transpose
from tilewright.targets.gpu.describe import GpuDescription

GPU = GpuDescription(block_threads=32, shared_bytes=2048)

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


PADDED = """
def f(x: f32[16, 16], y: out(f32[16, 20])):
    for i in serial(16):
        for j in serial(20):
            s0: y[i, j] = guard(cmpi.slt(j, index(16)), x[j, i], f32(0.0))
"""
#: results with neighbours of two loops, of an array with those of two others; and its border by itself
PAIRS = """
def f(x: f32[5, 3, 6, 4], y: out(f32[6, 6, 5, 3])):
    for a in serial(6):
        for b in serial(4):
            for c in serial(5):
                for d in serial(3):
                    s0: y[a, b, c, d] = addf(x[c, d, a, b], f32(1.0))
    for a1 in serial(6):
        for b1 in serial(2):
            for c1 in serial(5):
                for d1 in serial(3):
                    s1: y[a1, b1 + 4, c1, d1] = f32(7.0)
"""


@pytest.mark.parametrize("text", [PADDED, PAIRS], ids=["guarded", "several loops and a border"])
def test_what_is_read_across(text):
    kernel = te.from_nest(text)
    shape = kernel.inputs[0].shape
    x = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    if len(shape) == 2:
        want = np.concatenate([x.T, np.zeros((16, 4), "f4")], axis=1)
    else:
        want = np.concatenate([x.transpose(2, 3, 0, 1) + 1, np.full((6, 2, 5, 3), 7, "f4")], axis=1)
    made = transpose.apply(kernel, GPU)
    assert not isinstance(made, str), made
    for tile in made.decisions["tile"].candidates:
        nest = finish(transpose.apply(kernel, GPU, {"tile": tile}).nest())
        assert illegal(nest.body, nest.buffers(), lambda: GPU) is None
        assert (interpret_nest(nest, {kernel.inputs[0].name: x}, GPU)["y"] == want).all()
