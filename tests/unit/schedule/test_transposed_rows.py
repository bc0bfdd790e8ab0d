"""Short rows, turned so that every lane of a vector has a row of its own (`transposed_rows.py`)."""

from __future__ import annotations

import numpy as np
import pytest
from support.machines import NARROW, WIDE, has_avx2
from support.teams import teams

import tilewright as tw
from tilewright.driver.compiler import compile_state
from tilewright.driver.kernels import fused_kernels
from tilewright.schedule.rules import schedule
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.cpu.description import CpuDescription

MACHINE = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64, vector_registers=32, cores=1
)
#: whole and partial vectors of rows, columns of less, of one, and of more than one vector; rows in two dimensions
SHAPES = [(217, 2), (160, 3), (203, 4), (1000, 7), (129, 9), (200, 16), (333, 31), (150, 61), (3, 70, 5)]


def graph(kind: str, shape: tuple[int, ...], dtype: str = "f32") -> str:
    t = f"tensor<{'x'.join(map(str, shape))}x{dtype}>"
    r = f"tensor<{'x'.join(map(str, shape[:-1]))}x{dtype}>" if kind.startswith("reduce") else t
    axis = len(shape) - 1
    attributes = {
        "layer_norm": f"axis = {axis} : i64, epsilon = 1.0e-5 : f64, operandSegmentSizes = array<i32: 1, 0, 0>",
        "reduce_sum": f"axes = array<i64: {axis}>",
        "reduce_max": f"axes = array<i64: {axis}>",
    }.get(kind, f"axis = {axis} : i64")
    return f"""
func.func @main(%x: {t}) -> {r} {{
  %0 = "tw.{kind}"(%x) {{{attributes}}} : ({t}) -> {r}
  return %0 : {r}
}}
"""


def exact(kind: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    if kind == "reduce_sum":
        return x.sum(-1)
    if kind == "reduce_max":
        return x.max(-1)
    if kind == "layer_norm":
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    return np.log(y) if kind == "log_softmax" else y


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 3).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["softmax", "log_softmax", "layer_norm", "reduce_sum", "reduce_max"])
def test_short_rows(kind, shape):
    x = numbers(shape)
    for run in teams(tw.compile(graph(kind, shape), threads=1)):
        y = run(x)[0]
        np.testing.assert_allclose(y, exact(kind, x), rtol=1e-5, atol=5e-6)


@has_avx2
@pytest.mark.parametrize("shape", [(203, 4), (1000, 7), (150, 31)], ids=str)
@pytest.mark.parametrize("kind", ["softmax", "layer_norm", "reduce_sum"])
def test_on_eight_lanes(kind, shape, monkeypatch):
    monkeypatch.setattr(CpuTarget, "describe", lambda self: NARROW)
    x = numbers(shape)
    _, run = compile_state(graph(kind, shape), threads=1)
    np.testing.assert_allclose(run(x)[0], exact(kind, x), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("dtype, numpy", [("f16", np.float16), ("f64", np.float64)])
def test_other_dtypes(dtype, numpy):
    x = numbers((300, 7)).astype(numpy)
    y = tw.compile(graph("softmax", x.shape, dtype), threads=1)(x)[0]
    assert y.dtype == numpy
    np.testing.assert_allclose(y, exact("softmax", x), rtol=2e-3 if dtype == "f16" else 1e-6, atol=1e-6)


def test_infinities_and_not_a_number():
    x = numbers((200, 7))
    x[3, 2], x[5], x[7, 1], x[9, :6] = np.nan, -np.inf, np.inf, -np.inf
    y = tw.compile(graph("softmax", x.shape), threads=1)(x)[0]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, exact("softmax", x), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "kind, shape, turned",
    [
        ("softmax", (1000, 7), True),
        ("softmax", (1000, 300), False),  # of many vectors
        ("layer_norm", (1000, 20), True),
        ("layer_norm", (1000, 96), False),
        ("reduce_sum", (1000, 7), False),  # in a tree across lanes (added_rows)
        ("softmax", (20, 7), False),  # too few rows
    ],
)
def test_where_it_is_the_default(kind, shape, turned):
    made = schedule(fused_kernels(graph(kind, shape))[0], MACHINE).schedule
    assert ("turned" in made.decisions and made.decisions["turned"].chosen) is turned


def test_it_is_a_decision():
    (kernel,) = fused_kernels(graph("softmax", (1000, 300 // 2)))
    made = schedule(kernel, WIDE, {"turned": True, "turned_vectors": 2}).schedule
    assert made.decisions["turned_vectors"].chosen == 2
    assert "local(f32[150, " in str(made)
