"""The interpreter of loop nests: results, and an error for everything undefined."""

# ruff: noqa: E501 (kernels as text)
from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tilewright.schedule.interpret import NestError, interpret_nest
from tilewright.schedule.text import parse_nest


def run(text: str, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    return interpret_nest(parse_nest(textwrap.dedent(text).strip()), arrays)


EXTENTS = {"i": 3, "k": 4}
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("order", [("i", "k"), ("k", "i")])
def test_a_reduction_in_any_loop_order(order):
    a, b = order
    text = f"""
    def k(x: f32[3, 4], y: out(f32[3])):
        for {a} in serial({EXTENTS[a]}):
            for {b} in serial({EXTENTS[b]}):
                s0: y[i] = reduce(addf(y[i], x[i, k]), init=f32(10.0), over=(k,))
    """
    np.testing.assert_array_equal(run(text, x=X)["y"], X.sum(1) + 10)


def test_a_reduction_over_nothing_is_its_initial_value():
    text = """
    def k(x: f32[3, 4], y: out(f32[3])):
        for i in serial(3):
            for k in serial(0):
                s0: y[i] = reduce(addf(y[i], x[i, k]), init=f32(10.0), over=(k,))
    """
    np.testing.assert_array_equal(run(text, x=X)["y"], [10, 10, 10])


def test_iterations_that_depend_on_each_other_run_in_order():
    text = """
    def k(x: f32[5], y: out(f32[5])):
        s0: y[0] = x[0]
        for i in serial(4):
            s1: y[i + 1] = addf(y[i], x[i + 1])
    """
    np.testing.assert_array_equal(run(text, x=np.ones(5, np.float32))["y"], [1, 2, 3, 4, 5])


def test_partial_tiles_conditions_and_allocations():
    text = """
    def k(x: f32[10], y: out(f32[10])):
        for o in serial(3):
            t = local(f32[4])
            for i in vector(min(4, 10 - o * 4), lanes=4):
                s0: t[i] = x[o * 4 + i]
            if o < 2:
                for j in unroll(4):
                    s1: y[o * 4 + j] = t[3 - j]
            else:
                for l in serial(2):
                    s2: y[o * 4 + l] = t[l]
    """
    x = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(run(text, x=x)["y"], [3, 2, 1, 0, 7, 6, 5, 4, 8, 9])


def test_two_targets_see_the_old_values_of_both():
    text = """
    def k(x: f32[4], m: out(f32[1]), at: out(i64[1])):
        for k in serial(4):
            s0: (m[0], at[0]) = reduce(maximumf(m[0], x[k]), select(cmpf.ogt(x[k], m[0]), index_cast[i64](k), at[0]), init=(f32(-inf), i64(-1)), over=(k,))
    """
    got = run(text, x=np.array([3, 9, 2, 9], np.float32))
    assert got["m"].tolist() == [9] and got["at"].tolist() == [1]


def test_guard_computes_only_the_branch_that_is_taken():
    text = """
    def k(x: f32[3], y: out(f32[5])):
        for i in serial(5):
            s0: y[i] = guard(andi(i >= 1, i < 4), x[i - 1], f32(-1.0))
    """
    np.testing.assert_array_equal(run(text, x=np.ones(3, np.float32))["y"], [-1, 1, 1, 1, -1])


def test_indices_read_from_memory():
    text = """
    def k(x: f32[3], i: i32[4], y: out(f32[4])):
        for j in serial(4):
            s0: y[j] = x[index_cast[index](i[j])]
    """
    x, i = np.array([5, 6, 7], np.float32), np.array([2, 0, 1, 2], np.int32)
    np.testing.assert_array_equal(run(text, x=x, i=i)["y"], [7, 5, 6, 7])
    with pytest.raises(NestError, match=r"x\[-1\] is outside its shape \[3\] in dimension 0, in block s0 \(loops j\)"):
        run(text, x=x, i=i - 1)


SIZES = "def k(x: f32[3, 4], y: out(f32[3, 4])):"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "for i in serial(3):\n  for j in serial(5):\n    s0: y[i, j] = f32(0.0)",
            r"y\[0, 4\] is outside its shape \[3, 4\] in dimension 1",
        ),
        (
            "for i in serial(3):\n  for j in serial(4):\n    s0: y[i, j] = x[i, j - 1]",
            r"x\[0, -1\] is outside its shape",
        ),
        (
            "for i in serial(3):\n  for j in serial(3):\n    s0: y[i, j] = x[i, j]",
            r"y\[0, 3\] is a result that no statement writes",
        ),
        (
            "for i in serial(3):\n  for j in serial(4):\n    s0: y[i, j] = y[i, j]",
            r"y\[0, 0\] is read before it is written, in block s0",
        ),
        (
            "t = local(f32[4])\ns0: t[0] = x[0, 0]\ns1: y[0, 0] = t[1]",
            r"t\[1\] is read before it is written, in block s1",
        ),
        ("s0: x[0, 0] = y[0, 0]", r"y\[0, 0\] is read before"),
        ("s0: x[0, 0] = f32(1.0)", "x is an input and is written"),
    ],
)
def test_undefined_behaviour_is_an_error(body, message):
    with pytest.raises(NestError, match=message):
        run(SIZES + "\n" + textwrap.indent(body, "  "), x=X)


def test_locals_are_fresh_each_time():
    text = """
    def k(x: f32[3, 4], y: out(f32[3])):
        for i in serial(3):
            t = local(f32[1])
            if i < 1:
                s0: t[0] = x[0, 0]
            s1: y[i] = t[0]
    """
    with pytest.raises(NestError, match=r"t\[0\] is read before it is written, in block s1 \(loops i\)"):
        run(text, x=X)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            """
            def k(x: f32[4], y: out(f32[2])):
                for i in thread(4):
                    s0: y[i % 2] = x[i]
            """,
            r"y\[0\] is written by i=2 and by i=0 without a barrier between, in block s0 \(loops i\)",
        ),
        (
            """
            def k(x: f32[4], y: out(f32[4])):
                s0: y[0] = x[0]
                for i in thread(3):
                    s1: y[i + 1] = y[i]
            """,
            r"y\[0\] is read by i=0 though thread=0 may be writing it",
        ),
        (
            """
            def k(x: f32[4], y: out(f32[4])):
                t = local(f32[4])
                for i in thread(4):
                    s0: t[i] = x[i]
                for j in thread(4):
                    s1: y[j] = t[j]
            """,
            r"t\[0\] is read by j=0 though i=0 may be writing it",
        ),
        (
            """
            def k(x: f32[4], y: out(f32[4])):
                for i in serial(2):
                    for j in thread(2):
                        s0: y[i * 2 + j] = x[i]
            """,
            "loop j of threads is not outermost",
        ),
    ],
)
def test_races_are_errors(text, message):
    with pytest.raises(NestError, match=message):
        run(text, x=np.ones(4, np.float32))


def test_memory_that_every_thread_fills_for_itself_is_no_race():
    text = """
    def k(x: f32[4], y: out(f32[4])):
        t = local(f32[4])
        for i in serial(4):
            s0: t[i] = negf(x[i])
        for j in thread(4):
            s1: y[j] = t[3 - j]
    """
    np.testing.assert_array_equal(run(text, x=np.arange(4, dtype=np.float32))["y"], [-3, -2, -1, 0])


def test_arrays_that_do_not_fit():
    text = "def k(x: f32[3, 4], y: out(f32[3])):\n    s0: y[0] = x[0, 0]"
    with pytest.raises(NestError, match="k takes arrays x, not z"):
        run(text, z=X)
    with pytest.raises(NestError, match=r"x of k is f32\[3, 4\], the array is float32\[4, 3\]"):
        run(text, x=X.T)
    with pytest.raises(NestError, match=r"the array is float64\[3, 4\]"):
        run(text, x=X.astype(np.float64))
