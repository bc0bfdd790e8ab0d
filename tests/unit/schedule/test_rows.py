"""Row kernels (softmax, normalizations): rows that go through their stages together, rests of rows and of vectors, what
is asked for ahead, and results that are written past the caches; on processors with and without AVX-512."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.machines import MACHINES, NARROW, WIDE, has_avx2, has_avx512
from support.teams import teams

import tilewright as tw
from tilewright.driver.compiler import compile_state
from tilewright.schedule.interpret import interpret_nest
from tilewright.targets.cpu import CpuTarget

LONE = "epsilon = 1.0e-5 : f64, operandSegmentSizes = array<i32: 1, 0, 0>"


def graph(kind: str, shape: tuple[int, ...], axis: int = -1) -> str:
    t = f"tensor<{'x'.join(map(str, shape))}xf32>"
    attributes = {"softmax": f"axis = {axis} : i64", "layer_norm": f"axis = {axis} : i64, {LONE}"}[kind]
    return f"""
func.func @main(%x: {t}) -> {t} {{
  %0 = "tw.{kind}"(%x) {{{attributes}}} : ({t}) -> {t}
  return %0 : {t}
}}
"""


def exact(kind: str, x: np.ndarray, axis: int = -1) -> np.ndarray:
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if kind == "softmax":
            e = np.exp(x - x.max(axis=axis, keepdims=True))
            return e / e.sum(axis=axis, keepdims=True)
        centred = x - x.mean(axis=axis, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=axis, keepdims=True) + 1e-5)


SHAPES = [(1, 7), (3, 16), (4, 33), (8, 64), (64, 100), (128, 197), (96, 512), (16, 1000), (20, 4099), (3, 5, 48)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["softmax", "layer_norm"])
def test_rows(kind, shape):
    x = (np.random.default_rng(0).standard_normal(shape) * 3 + 1).astype(np.float32)
    for run in teams(tw.compile(graph(kind, shape), threads=1)):
        y = run(x)[0]
        np.testing.assert_allclose(y, exact(kind, x), rtol=1e-5, atol=2e-6 if kind == "layer_norm" else 0)


@has_avx2
@pytest.mark.parametrize("shape", [(8, 64), (64, 100), (16, 1000)], ids=str)
@pytest.mark.parametrize("kind", ["softmax", "layer_norm"])
def test_rows_without_avx512(kind, shape, monkeypatch):
    monkeypatch.setattr(CpuTarget, "describe", lambda self: NARROW)
    x = (np.random.default_rng(0).standard_normal(shape) * 3).astype(np.float32)
    state, run = compile_state(graph(kind, shape), threads=1)
    assert "avx512" not in "".join(state.emitted.values())
    np.testing.assert_allclose(run(x)[0], exact(kind, x), rtol=1e-5, atol=2e-6 if kind == "layer_norm" else 0)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_along_other_axes(axis):
    x = np.random.default_rng(0).standard_normal((24, 20, 32)).astype(np.float32)
    y = tw.compile(graph("softmax", x.shape, axis), threads=1)(x)[0]
    np.testing.assert_allclose(y, exact("softmax", x, axis), rtol=1e-5)


@pytest.mark.parametrize("narrow", [False, pytest.param(True, marks=has_avx2)])
@pytest.mark.parametrize("columns", [64, 100, 512])
def test_softmax_of_extremes(columns, narrow, monkeypatch):
    """Far below the largest the result is a denormal number and then 0; infinities and NaN keep to their rows."""
    if narrow:
        monkeypatch.setattr(CpuTarget, "describe", lambda self: NARROW)
    x = np.tile(np.linspace(-120, 5, columns, dtype=np.float32), (16, 1))
    x[1] *= 1e36
    x[2] += 1e5
    x[3, ::2] = -np.inf
    x[4, 5] = np.inf
    x[5] = -np.inf
    x[6, columns - 1] = np.nan
    x[7] = -3e38
    x[8] = 3e38
    y, wanted = tw.compile(graph("softmax", x.shape), threads=1)(x)[0], exact("softmax", x)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1.5e-45)
    assert (y[3, ::2] == 0).all()


def test_layer_norm_of_far_means():
    """The mean is taken off before squares are summed."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((32, 768)) + rng.choice([0, 1e3, -1e4], (32, 1))).astype(np.float32)
    x[3] = 7
    x[4, 0] = 1e6
    y, wanted = tw.compile(graph("layer_norm", x.shape), threads=1)(x)[0], exact("layer_norm", x)
    # what the mean loses by its own rounding: 1e-7 of it, 0.5e-3 for 1e4
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=np.abs(x).max(axis=1, keepdims=True).max() * 2e-7)


def test_rows_go_together_and_ask_ahead(monkeypatch):
    machine = replace(WIDE, l1_bytes=MACHINES["zen5"].l1_bytes)
    monkeypatch.setattr(CpuTarget, "describe", lambda self: machine)
    state, _ = compile_state(graph("softmax", (4096, 512)), threads=1)
    (nest,) = state.nests.values()
    text = str(nest)
    assert "thread(1024)" in text
    assert "prefetch=(" in text
    x = np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)
    state, run = compile_state(graph("softmax", x.shape), threads=1)
    (nest,) = state.nests.values()
    names = [p.name for p in nest.params]
    result = interpret_nest(nest, {names[0]: x})[names[1]]
    np.testing.assert_allclose(run(x)[0], result, rtol=2e-6)
    assert "prefetch" not in str(nest)  # it is in a cache anyway


@pytest.mark.parametrize("columns", [64, 80, 100, 512])
@pytest.mark.parametrize("kind", ["softmax", "layer_norm"])
def test_large_results_go_past_the_caches(kind, columns, monkeypatch):
    """Those of whole vectors."""
    machine = replace(MACHINES["zen4"], l2_bytes=1 << 13, l3_bytes=1 << 14)
    monkeypatch.setattr(CpuTarget, "describe", lambda self: machine)
    state, _ = compile_state(graph(kind, (128, columns)), threads=1, stop_after="emit")
    text = "".join(state.emitted.values())
    assert ("nontemporal" in text) == (columns % 16 == 0)
    assert ("sfence" in text) == ("nontemporal" in text)


@has_avx512
@pytest.mark.parametrize("columns", [64, 100])
@pytest.mark.parametrize("kind", ["softmax", "layer_norm"])
def test_what_goes_past_the_caches_arrives(kind, columns, monkeypatch):
    """Whatever the alignment of the caller's memory."""
    monkeypatch.setattr(CpuTarget, "describe", lambda self: replace(WIDE, l2_bytes=1 << 13, l3_bytes=1 << 14))
    shape = (128, columns)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for run in teams(compile_state(graph(kind, shape), threads=1)[1]):
        memory = np.zeros(x.size + 32, np.float32)
        first = -memory.ctypes.data % 64 // 4
        for offset in (0, 1, 4):
            memory[:] = 0
            out = memory[first + offset :][: x.size].reshape(shape)
            run(x, out=[out])
            np.testing.assert_allclose(out, exact(kind, x), rtol=1e-5, atol=2e-6)
            assert not memory[: first + offset].any() and not memory[first + offset + x.size :].any()


def far_text(kind, shape, monkeypatch):
    """The nest of a row kernel on a machine whose caches do not hold it."""
    monkeypatch.setattr(CpuTarget, "describe", lambda self: replace(WIDE, l2_bytes=1 << 13, l3_bytes=1 << 30))
    x = (np.random.default_rng(0).standard_normal(shape) * 3).astype(np.float32)
    state, made = compile_state(graph(kind, shape), threads=1)
    for run in teams(made):
        np.testing.assert_allclose(run(x)[0], exact(kind, x), rtol=1e-5, atol=2e-6)
    (nest,) = state.nests.values()
    return [line for line in str(nest).splitlines() if "prefetch=(" in line], str(nest)


@pytest.mark.parametrize("shape", [(200, 106), (333, 200), (70, 1000), (9, 2249), (50, 61)], ids=str)
def test_exponentials_ask_for_the_next_rows_and_the_results(shape, monkeypatch):
    lines, text = far_text("softmax", shape, monkeypatch)
    assert len(lines) == 1 and "p0[" in lines[0] and "p1[" in lines[0]
    assert text.index(lines[0]) < text.index("exp(")


@pytest.mark.parametrize("shape", [(333, 200), (70, 1000)], ids=str)
def test_sums_ask_for_the_next_rows_alone(shape, monkeypatch):
    lines, _ = far_text("layer_norm", shape, monkeypatch)
    assert len(lines) == 1 and "p0[" in lines[0] and "p1[" not in lines[0]
