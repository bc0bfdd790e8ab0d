"""Rows that give a number each (sums, means, places of extreme elements): in a tree across lanes
(`tree_reduction.py` of schedule/rules/reduction), with a row in each lane (`transposed_rows.py`,
`cross_row_reduction.py`), and in one pass (`Schedule.one_pass`)."""

from __future__ import annotations

import numpy as np
import pytest
from support.machines import NARROW, has_avx2
from support.teams import teams

import tilewright as tw
from tilewright.driver.compiler import compile_state
from tilewright.driver.kernels import fused_kernels
from tilewright.lang import te
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.targets.base import find
from tilewright.targets.cpu import CpuTarget
from tilewright.targets.cpu.description import CpuDescription
from tilewright.tune.space import Space

MACHINE = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64, vector_registers=32, cores=1,
    l1_bytes=48 << 10, l2_bytes=1 << 20,
)  # fmt: skip
#: rows in whole and partial vectors, also of two and four rows, and longer than vectors; last groups that are not full
SHAPES = [
    (160, 2),
    (203, 3),
    (37, 5),
    (64, 8),
    (100, 14),
    (33, 16),
    (50, 23),
    (3, 70, 40),
    (20, 64),
    (19, 150),
    (5, 31),
]
FEW = [SHAPES[i] for i in (1, 4, 7)]
OTHERS = ("reduce_mean", "reduce_min", "reduce_prod", "reduce_l2", "reduce_log_sum_exp")
SUMS = [("reduce_sum", n) for n in SHAPES] + [("reduce_max", n) for n in SHAPES] + [(k, n) for k in OTHERS for n in FEW]
NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32, "i64": np.int64, "i8": np.int8}


def graph(kind: str, shape: tuple[int, ...], dtype: str = "f32", axis: int = -1, last: bool = False) -> str:
    axis %= len(shape)
    t = f"tensor<{'x'.join(map(str, shape))}x{dtype}>"
    kept = "".join(f"{n}x" for i, n in enumerate(shape) if i != axis)
    if kind.startswith("arg"):
        r, attributes = f"tensor<{kept}i64>", f"axis = {axis} : i64, last = {str(last).lower()}"
    else:
        r, attributes = f"tensor<{kept}{dtype}>", f"axes = array<i64: {axis}>"
    return f"""
func.func @main(%x: {t}) -> {r} {{
  %0 = "tw.{kind}"(%x) {{{attributes}}} : ({t}) -> {r}
  return %0 : {r}
}}
"""


def exact(kind: str, x: np.ndarray, axis: int = -1, last: bool = False) -> np.ndarray:
    if kind.startswith("arg"):
        find_ = np.argmax if kind == "arg_max" else np.argmin
        return x.shape[axis] - 1 - find_(np.flip(x, axis), axis) if last else find_(x, axis)
    x = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    if kind == "reduce_l2":
        return np.sqrt((x * x).sum(axis))
    if kind == "reduce_log_sum_exp":
        top = x.max(axis, keepdims=True)
        return np.log(np.exp(x - top).sum(axis)) + top.squeeze(axis)
    return getattr(x, kind.removeprefix("reduce_"))(axis)


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ties(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Few different numbers; of floats also infinities, both zeros, and in some rows one or more that are none."""
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, shape).astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(shape) < 0.1] = -0.0
        x[rng.random(shape) < 0.03] = np.inf
        x[rng.random(shape) < 0.03] = -np.inf
        x[rng.random(shape) < 0.03] = np.nan
        x[0] = -np.inf
        x[1, ..., 1:] = np.nan
    return x


def spaces(text: str, machine: CpuDescription = MACHINE) -> list[dict]:
    """Decisions that lead to each of the ways."""
    (kernel,) = fused_kernels(text)
    found = [{}]
    for name in ("together", "turned", "one_pass"):
        found = [{**d, name: v} for d in found for v in (False, True)]
    ways = {str(schedule(kernel, machine, d).schedule): d for d in found}
    return list(ways.values())


@pytest.mark.parametrize("kind, shape", SUMS, ids=str)
def test_a_number_a_row(kind, shape):
    x = numbers(shape)
    for run in teams(tw.compile(graph(kind, shape), threads=1)):
        y = run(x)[0]
        np.testing.assert_allclose(y, exact(kind, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind, last", [("arg_max", False), ("arg_min", True)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_places(kind, shape, last):
    x = ties(shape)
    for run in teams(tw.compile(graph(kind, shape, last=last), threads=1)):
        y = run(x)[0]
        np.testing.assert_array_equal(y, exact(kind, x, last=last))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape, axis", [((7, 5, 37), 1), ((40, 130), 0), ((2, 3, 300), 1)])
@pytest.mark.parametrize("kind", ["arg_max", "arg_min"])
def test_places_across_rows(kind, shape, axis, last):
    x = ties(shape)
    y = tw.compile(graph(kind, shape, axis=axis, last=last), threads=1)(x)[0]
    np.testing.assert_array_equal(y, exact(kind, x, axis, last))


@pytest.mark.parametrize("dtype", ["f64", "f16", "i32", "i64", "i8"])
@pytest.mark.parametrize("columns", [6, 14, 40])
@pytest.mark.parametrize("kind", ["reduce_sum", "reduce_max", "arg_max", "arg_min"])
def test_other_dtypes(kind, columns, dtype):
    x = ties((70, columns), NUMPY[dtype])
    if kind == "reduce_sum":
        x = np.nan_to_num(x, posinf=1, neginf=-1)
    y = tw.compile(graph(kind, x.shape, dtype), threads=1)(x)[0]
    np.testing.assert_array_equal(y, exact(kind, x).astype(y.dtype))


@pytest.mark.parametrize("columns", [3, 14, 16, 23, 150])
@pytest.mark.parametrize("kind", ["reduce_max", "reduce_min"])
def test_what_is_not_a_number_spreads(kind, columns):
    x = ties((90, columns))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(tw.compile(graph(kind, x.shape), threads=1)(x)[0], exact(kind, x))


@has_avx2
@pytest.mark.parametrize("shape", [(203, 3), (100, 14), (33, 20)], ids=str)
@pytest.mark.parametrize("kind", ["reduce_sum", "reduce_max", "arg_max"])
def test_on_eight_lanes(kind, shape, monkeypatch):
    monkeypatch.setattr(CpuTarget, "describe", lambda self: NARROW)
    x = ties(shape) if kind == "arg_max" else numbers(shape)
    _, run = compile_state(graph(kind, shape), threads=1)
    np.testing.assert_allclose(run(x)[0], exact(kind, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape, axis", [((45, 7), -1), ((37, 20), -1), ((3, 6, 33), 1)])
@pytest.mark.parametrize("kind", ["reduce_mean", "arg_max", "arg_min"])
def test_every_way_has_the_same_meaning(kind, shape, axis):
    """Compiled and in the interpreter."""
    text, machine = graph(kind, shape, axis=axis), find("cpu").describe()
    x = ties(shape) if kind != "reduce_mean" else numbers(shape)
    (kernel,) = fused_kernels(text)
    ways = spaces(text, machine)
    assert len(ways) > 1 or axis == 1
    for d in ways:
        s = schedule(kernel, machine, d).schedule
        want = exact(kind, x, axis).reshape(-1)
        given = x.reshape(kernel.inputs[0].shape)
        np.testing.assert_allclose(s.build(threads=1)(given).reshape(-1), want, rtol=1e-5, atol=1e-6)
        (got,) = interpret_nest(s.nest(), {kernel.inputs[0].name: given}).values()
        np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind, shape, name, chosen",
    [
        ("reduce_sum", (1000, 14), "together", True),
        ("reduce_mean", (1000, 40), "together", True),
        ("reduce_sum", (1000, 200), "together", False),  # the vectors of a row are most of the work
        ("reduce_max", (1000, 200), "together", True),
        ("reduce_max", (1000, 400), "together", False),
        ("arg_max", (1000, 14), "one_pass", True),
        ("arg_max", (1000, 14), "together", False),
        ("arg_max", (1000, 120), "together", True),
        ("arg_max", (9, 14), "turned", False),  # too few rows
    ],
)
def test_defaults(kind, shape, name, chosen):
    decisions = schedule(fused_kernels(graph(kind, shape))[0], MACHINE).schedule.decisions
    assert (name in decisions and decisions[name].chosen) is chosen


@pytest.mark.parametrize("rows, ahead", [(1000, 0), (50_000, 8192), (100_000, 8192)])
def test_far_rows_are_asked_for(rows, ahead):
    decisions = Space(fused_kernels(graph("reduce_sum", (rows, 14)))[0], MACHINE).default.decisions
    assert decisions.get("prefetch", 0) == ahead


# ---- one pass --------------------------------------------------------------------------------------------------------


def test_one_pass_on_the_kernel_of_an_operator():
    s = Schedule(fused_kernels(graph("arg_min", (3, 5), last=True))[0])
    s.one_pass("s0", "s1")
    assert str(s).count("reduce(") == 1 and "s0:" not in str(s)
    x = ties((3, 5))
    (got,) = interpret_nest(s.nest(), {s.kernel.inputs[0].name: x}).values()
    np.testing.assert_array_equal(got.reshape(-1), exact("arg_min", x, last=True))
    again = Schedule.replay(s.kernel, str(s.trace))
    assert str(again) == str(s)


MAXIMUM = """
def k(x: {t}[6, 5], y: out(i32[6])):
    m = local({t}[6])
    for i in serial(6):
        for k in serial(5):
            s0: m[i] = reduce({top}(x[i, k], m[i]), init={t}({init}), over=(k,))
    for j in serial({rows}):
        for l in serial(5):
            s1: y[j] = reduce(minsi(select(cmpi.eq({x}, m[j]), index_cast[i32](l), i32({none})), y[j]), init=i32({none}), over=(l,))
"""  # noqa: E501
GIVEN = {"t": "i32", "top": "maxsi", "init": -(1 << 31), "rows": 6, "x": "x[j, l]", "none": 5}


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({}, ""),
        ({"none": 4}, ""),  # the last place is as good for none
        ({"none": 3}, "s1 does not look for an extreme element"),  # places would be cut
        ({"x": "x[j, 4 - l]"}, "s1 does not look for what s0 finds"),
        ({"init": 0}, "s0 does not begin with nothing"),
        ({"top": "addi", "init": 0}, "s1 does not look for an extreme element"),
        ({"rows": 5}, "s1 does not follow s0 in the same loops"),
    ],
)
def test_one_pass_is_refused(changed, reason):
    kernel = te.from_nest(MAXIMUM.format(**{**GIVEN, **changed}))
    s, x = Schedule(kernel), np.random.default_rng(0).integers(-3, 3, (6, 5)).astype(np.int32)
    before = str(s)
    if reason:
        with pytest.raises(ScheduleError, match=reason):
            s.one_pass("s0", "s1")
        assert str(s) == before
        return
    want = interpret_nest(s.nest(), {"x": x})["y"]
    s.one_pass("s0", "s1")
    np.testing.assert_array_equal(interpret_nest(s.nest(), {"x": x})["y"], want)
    for args in (("s1", "s1"), ("s0", "s1")):
        with pytest.raises(ScheduleError):
            s.one_pass(*args)
