"""A note of a loop that the emitter cannot carry out is said, in what it emits and in `explain`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.machines import AVX512F, LANES16, NARROW, has_avx2

import tilewright as tw
from tilewright.schedule.parse import parse_nest
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.cpu.emit import emit

ROWS = """
def k(x: f32[64, 16], y: out(f32[64, 16])):
    for i in serial(64, notes={'lag': 0, NOTES}):
        for j in vector(16):
            y[i, j] = negf(x[i, j])
"""
BYTES = """
def k(x: i8[3], w: i8[3], y: out(i32[1])):
    acc = register(i32[1])
    acc[0] = i32(0)
    for q in unroll(TRIP, notes={'dot': 'smlad_ss'}):
        acc[0] = addi(acc[0], muli(extsi[i32](x[q]), extsi[i32](w[q])))
    y[0] = acc[0]
"""


def test_a_loop_with_a_lag_and_nothing_to_lag_behind():
    (line,) = emit(parse_nest(ROWS.replace("'lag': 0, NOTES", "'lag': 2")), AVX512F).refused
    assert line == "loop i asks for lag, which it does not get: it does not stand among such loops only"


@pytest.mark.parametrize(
    "machine, index, why",
    [(AVX512F, "i, j", None), (LANES16, "i, j", "no stores past the caches"), (AVX512F, "j, i", "not aligned")],
)
def test_stores_past_the_caches(machine, index, why):
    text = ROWS.replace("'lag': 0, NOTES", "'uncached': True").replace("64", "16").replace("y[i, j] =", f"y[{index}] =")
    made = emit(parse_nest(text), machine)
    assert ("nontemporal" in made.text) == (why is None)
    assert [f"{why}" in line for line in made.refused] == ([] if why is None else [True])


def test_too_few_bytes_for_an_instruction():
    (line,) = emit(parse_nest(BYTES.replace("TRIP", "3")), LANES16).refused
    assert line == "loop q asks for dot, which it does not get: 3 products are too few for the instruction to pay"
    made = emit(parse_nest(BYTES.replace("TRIP", "4").replace("[3]", "[4]")), LANES16)
    assert "tw_dot_smlad_ss" in made.text and not made.refused


@has_avx2
def test_explain_says_so(monkeypatch):
    """Rows that a small cache cannot hold, on a processor without stores past it."""
    monkeypatch.setenv("TILEWRIGHT_COMPILE", "inprocess")
    monkeypatch.setattr(CpuTarget, "describe", lambda self: replace(NARROW, l3_bytes=4096))
    t = "tensor<64x96xf32>"
    body = f'%0 = "tw.softmax"(%x) {{axis = -1 : i64}} : ({t}) -> {t}'
    compiled = tw.compile(f"func.func @main(%x: {t}) -> {t} {{ {body} return %0 : {t} }}", cache=False)
    x = np.random.default_rng(0).normal(size=(64, 96)).astype(np.float32)
    e = np.exp(x - x.max(-1, keepdims=True))
    np.testing.assert_allclose(compiled(x)[0], e / e.sum(-1, keepdims=True), rtol=1e-5)
    assert "1 kernel not emitted in all as scheduled" in compiled.explain()
    assert "asks for uncached, which it does not get: the machine has no stores past the caches" in compiled.explain()
