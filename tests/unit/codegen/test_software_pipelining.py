"""Rows whose stages run beside those of other rows: the primitives `pad` and `stagger`, what the CPU makes of them, and
functions of several vectors side by side."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from support.machines import NARROW, WIDE
from support.primitive_cases import kernel, outcome, refuses
from support.teams import teams

import tilewright as tw
from tilewright.codegen.vector.interleaved import interleaved
from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules.reduction import rows
from tilewright.schedule.schedule import Schedule
from tilewright.targets.cpu.description import CpuDescription
from tilewright.targets.cpu.emit import emit

STAGES = """
def k(x: f32[7, 21], y: out(f32[7, 21])):
    t = local(f32[7, 21])
    r = local(f32[7])
    for i in serial(7):
        for j in serial(21):
            s0: t[i, j] = exp(x[i, j])
    for m in serial(7):
        for n in serial(21):
            s1: r[m] = reduce(addf(r[m], t[m, n]), init=f32(0.0), over=(n,))
    for p in serial(7):
        for q in serial(21):
            s2: y[p, q] = divf(t[p, q], r[p])
"""
erf = np.vectorize(math.erf)
REFERENCE = {
    "tanh": np.tanh,
    "erf": erf,
    "gelu": lambda x: 0.5 * x * (1 + erf(x * 0.5**0.5)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log": np.log,
}
AVX512 = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f", "avx512dq"), vector_bytes=64, vector_registers=32
)


def softmax(*shape: int):
    t = f"tensor<{'x'.join(map(str, shape))}xf32>"
    op = f'%0 = "tw.softmax"(%x) {{axis = -1 : i64}} : ({t}) -> {t}'
    return f"func.func @main(%x: {t}) -> {t} {{ {op} return %0 : {t} }}"


def softmax_kernel(m: int, n: int):
    x, k, k2 = te.placeholder((m, n), "x"), te.reduce_axis(n, "k"), te.reduce_axis(n, "k2")
    top = te.compute((m,), lambda i: te.max(x[i, k], k), "top")
    e = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    total = te.compute((m,), lambda i: te.sum(e[i, k2], k2), "total")
    return te.kernel(te.compute((m, n), lambda i, j: e[i, j] / total[i], "y"), name="softmax")


# ---- primitives ----------------------------------------------------------------------------------------------------


def test_pad():
    s = Schedule(kernel(STAGES))
    refuses(s, "x is no temporary", "pad", "x", 16)
    refuses(s, "a multiple of 0", "pad", "t", 0)
    before = outcome(s)
    s.pad("t", 16)
    assert s.buffer("t").shape == (7, 32)
    s.pad("t", 16)
    assert s.buffer("t").shape == (7, 32)
    np.testing.assert_array_equal(outcome(s)["y"], before["y"])


def test_stagger_says_so_by_notes():
    s = Schedule(kernel(STAGES))
    before = outcome(s)
    s.stagger(["i", "m", "p"], [0, 1, 3])
    assert [s.loop(v).note("lag") for v in "imp"] == [0, 1, 3]
    np.testing.assert_array_equal(outcome(s)["y"], before["y"])


def test_stagger_refuses():
    s = Schedule(kernel(STAGES))
    refuses(s, "cannot have the lags", "stagger", ["i", "m"], [0])
    refuses(s, "cannot have the lags", "stagger", ["i", "m"], [1, 2])
    refuses(s, "cannot have the lags", "stagger", ["i", "m", "p"], [0, 2, 1])
    refuses(s, "do not follow each other", "stagger", ["i", "p"], [0, 1])
    s.split("p", 2)
    refuses(s, "the same iterations", "stagger", ["m", "p_o"], [0, 1])
    crossing = kernel("""
def k(x: f32[8], y: out(f32[8])):
    t = local(f32[8])
    for i in serial(8):
        s0: t[i] = exp(x[i])
    for j in serial(8):
        s1: y[j] = negf(t[7 - j])
""")
    refuses(Schedule(crossing), "would touch what another one of i does to t", "stagger", ["i", "j"], [0, 1])


# ---- what the CPU makes of them -------------------------------------------------------------------------------------


def test_rows_of_a_kernel_that_is_staggered():
    s = rows.apply(softmax_kernel(300, 61), AVX512)
    assert isinstance(s, Schedule)
    assert s.buffer("e").shape[-1] == 64
    lags = [f.note("lag") for f in map(s.loop, s.loops("e")) if f.note("lag") is not None]
    assert lags == [2]


@pytest.mark.parametrize("columns, lag", [(16, 0), (17, 2), (128, 2), (129, 0)])
def test_only_short_rows(columns, lag):
    s = rows.apply(softmax_kernel(400, columns), AVX512, {"turned": False})
    assert isinstance(s, Schedule)
    found = {f.note("lag") for f in map(s.loop, s.loops("e"))} - {None}
    assert found == ({lag} if lag else set())


@pytest.mark.parametrize("n, rows_, lag", [(17, 8, 2), (40, 4, 3), (33, 8, 0)])
def test_interpreted(n, rows_, lag):
    """The nest means the same whatever the lag is: it is run loop by loop."""
    k = softmax_kernel(43, n)
    s = rows.apply(k, AVX512, {"rows": rows_, "lag": lag, "turned": False})
    assert isinstance(s, Schedule)
    x = np.random.default_rng(n).normal(0, 3, (43, n)).astype(np.float32)
    y = interpret_nest(s.nest(), {k.inputs[0].name: x})["y"]
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1357, 106), (33, 61), (5, 130), (300, 33), (3, 70, 47), (129, 64), (140, 17)])
def test_softmax(shape):
    x = np.random.default_rng(1).normal(0, 4, shape).astype(np.float32)
    some = x.reshape(-1, shape[-1])
    some[0, 0], some[1, :3], some[2], some[3, -1] = np.nan, -np.inf, -np.inf, np.inf
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        e = np.exp(wide - wide.max(-1, keepdims=True))
        e /= e.sum(-1, keepdims=True)
    for run in teams(tw.compile(softmax(*shape), threads=1)):
        np.testing.assert_allclose(run(x)[0], e, rtol=3e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("n, rows_, lag", [(45, 8, 2), (19, 4, 3), (33, 16, 0)])
def test_built(machine, n, rows_, lag):
    s = rows.apply(softmax_kernel(301, n), machine, {"rows": rows_, "lag": lag, "turned": False})
    assert isinstance(s, Schedule)
    x = np.random.default_rng(n).normal(0, 3, (301, n)).astype(np.float32)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    for run in teams(s.build(threads=1)):
        np.testing.assert_allclose(run(x), e / e.sum(1, keepdims=True), rtol=3e-6)


# ---- side by side --------------------------------------------------------------------------------------------------


def test_lines_take_turns_but_wait_for_what_they_need():
    first = ["%v1 = load a", "%v2 = exp %v1", "store %v2"]
    second = ["%v3 = load b", "%v4 = add %v3, %v2", "store %v4"]
    assert interleaved([first, second]) == [
        "%v1 = load a", "%v3 = load b", "%v2 = exp %v1", "%v4 = add %v3, %v2", "store %v2", "store %v4",
    ]  # fmt: skip
    late = ["%v5 = add %v6, %v6", "store %v5"]
    early = ["%v6 = load c"]
    assert interleaved([late, early]) == ["%v6 = load c", "%v5 = add %v6, %v6", "store %v5"]


@pytest.mark.parametrize("op", ["tanh", "erf", "gelu", "sigmoid", "exp", "log"])
@pytest.mark.parametrize("n", [200, 1031])
def test_functions_side_by_side(op, n):
    t = f"tensor<{n}xf32>"
    x = np.abs(np.random.default_rng(n).normal(0, 3, n)).astype(np.float32)
    f = tw.compile(f'func.func @main(%x: {t}) -> {t} {{ %0 = "tw.{op}"(%x) : ({t}) -> {t} return %0 : {t} }}')
    np.testing.assert_allclose(f(x)[0], REFERENCE[op](x.astype(np.float64)), rtol=2e-6, atol=1e-7)


def test_vectors_side_by_side_are_loaded_before_one_is_stored():
    k = te.from_nest("""
def k(x: f32[256], y: out(f32[256])):
    for i in serial(4):
        for j in serial(4):
            for l in serial(16):
                s0: y[i * 64 + j * 16 + l] = tanh(x[i * 64 + j * 16 + l])
""")
    s = Schedule(k)
    s.unroll("j")
    s.vectorize("l")
    kinds = re.findall(r"vector\.(load|store)", emit(finish(s.nest()), AVX512).text)
    assert kinds == ["load"] * 4 + ["store"] * 4
