"""Primitives on memory, reductions and instructions: before -> after, executed, and the reasons of refusals."""

# ruff: noqa: E501 (kernels as text)
from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.primitive_cases import ARGMAX, CHAIN, DENSE, MATRIX, becomes, body, kernel, outcome, refuses

from tilewright.schedule.legality import _distinct_enumerated, distinct
from tilewright.schedule.nest import For, Store
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.targets.cpu.description import CpuDescription, host
from tilewright.tensor.evaluate import evaluate
from tilewright.tensor.expr import Const, Var, variables


def test_cache_read():
    s = Schedule(kernel(DENSE))
    outer, inner = s.split("n", 4)
    s.reorder(outer, "m", inner, "k")
    assert s.cache_read("s0", "b", outer, order=(1, 0)) == "s0_b"
    becomes(
        s,
        """
        c = local(f32[6, 8])
        for n_o in serial(2):
            b_c = local(f32[4, 5])
            for m_b_c in serial(5):
                for n_b_c in serial(4):
                    s0_b: b_c[n_b_c, m_b_c] = b[m_b_c, n_o * 4 + n_b_c]
            for m in serial(6):
                for n_i in serial(4):
                    for k in serial(5):
                        s0: c[m, n_o * 4 + n_i] = reduce(addf(c[m, n_o * 4 + n_i], mulf(a[m, k], b_c[n_i, k])), init=f32(0.0), over=(k,))
        for i in serial(6):
            for j in serial(8):
                s1: y[i, j] = maximumf(c[i, j], f32(0.0))
        """,
    )
    refuses(s, "c is what block s0 writes", "cache_read", "s0", "c", "m")
    refuses(s, "block s0 does not read y", "cache_read", "s0", "y")
    refuses(s, "there is no buffer z", "cache_read", "s0", "z")
    refuses(s, "block s0 is not inside i", "cache_read", "s0", "a", "i")
    s = Schedule(kernel(CHAIN))
    outer, _ = s.split("j", 16)
    s.compute_at("s0", outer)
    refuses(s, "t is written inside j_o", "cache_read", "s1", "t", outer)
    refuses(s, "it cannot be shown that all of t has been written", "cache_read", "s1", "t")


def test_cache_read_for_several_blocks():
    text = """
    def k(x: f32[8, 3], y: out(f32[8, 3])):
        t = local(f32[8])
        for i in serial(8):
            for k in serial(3):
                s0: t[i] = reduce(addf(t[i], x[i, k]), init=f32(0.0), over=(k,))
        for m in serial(8):
            for n in serial(3):
                s1: y[m, n] = mulf(x[m, n], t[m])
    """
    s = Schedule(kernel(text))
    outer, _ = s.split("m", 4)
    s.compute_at("s0", outer)
    refuses(s, "a copy for 2 blocks wants a loop around them", "cache_read", ("s0", "s1"), "x")
    assert s.cache_read(("s0", "s1"), "x", outer, order=(1, 0)) == "s0_x"
    assert str(s).count("x_c[") == 3 and "local(f32[3, 4])" in str(s)


def test_set_order():
    s = Schedule(kernel(DENSE))
    refuses(s, "a is no temporary", "set_order", "a", (1, 0))
    refuses(s, "(0, 0) is not an order", "set_order", "c", (0, 0))
    s.set_order("c", (1, 0))
    assert "c = local(f32[8, 6])" in str(s) and "maximumf(c[j, i]" in str(s)


def test_cache_read_of_a_partial_tile_and_a_window():
    s = Schedule(
        kernel(
            """
            def k(x: f32[12], w: f32[3], y: out(f32[10])):
                for i in serial(10):
                    for r in serial(3):
                        s0: y[i] = reduce(addf(y[i], mulf(x[i + r], w[r])), init=f32(0.0), over=(r,))
            """
        )
    )
    outer, _ = s.split("i", 4)
    s.cache_read("s0", "x", outer)
    becomes(
        s,
        """
        for i_o in serial(3):
            x_c = local(f32[6])
            for m_x_c in serial(min(6, i_o * -4 + 12)):
                s0_x: x_c[m_x_c] = x[i_o * 4 + m_x_c]
            for i_i in serial(min(4, i_o * -4 + 10)):
                for r in serial(3):
                    s0: y[i_o * 4 + i_i] = reduce(addf(y[i_o * 4 + i_i], mulf(x_c[i_i + r], w[r])), init=f32(0.0), over=(r,))
        """,
    )


def test_cache_write_with_a_layout():
    s = Schedule(kernel(MATRIX))
    assert s.cache_write("s0", scope="register", order=(1, 0)) == "s0_w"
    becomes(
        s,
        """
        y_c = register(f32[8, 4])
        for i in serial(4):
            for j in serial(8):
                s0: y_c[j, i] = negf(x[i, j])
        for m_y_c in serial(4):
            for n_y_c in serial(8):
                s0_w: y[m_y_c, n_y_c] = y_c[n_y_c, m_y_c]
        """,
    )
    with pytest.raises(ScheduleError, match="there is no scope shared"):
        Schedule(kernel(MATRIX)).cache_write("s0", scope="shared")
    with pytest.raises(ScheduleError, match="not an order of the 2 dimensions"):
        Schedule(kernel(MATRIX)).cache_write("s0", order=(0, 0))


def test_decompose_reduction():
    s = Schedule(kernel(DENSE))
    s.reorder("m", "k", "n")
    assert s.decompose_reduction("s0", "m") == "s0_init"
    becomes(
        s,
        """
        c = local(f32[6, 8])
        for m_n in serial(6):
            for n_n in serial(8):
                s0_init: c[m_n, n_n] = f32(0.0)
        for m in serial(6):
            for k in serial(5):
                for n in serial(8):
                    s0: c[m, n] = reduce(addf(c[m, n], mulf(a[m, k], b[k, n])), init=None, over=(k,))
        for i in serial(6):
            for j in serial(8):
                s1: y[i, j] = maximumf(c[i, j], f32(0.0))
        """,
    )
    refuses(s, "block s0 is no reduction, or decomposed already", "decompose_reduction", "s0")
    refuses(s, "c is also written by s0_init", "reverse_compute_at", "s1", "m")
    refuses(s, "c is also written by s0_init", "compute_at", "s0", "j")
    s = Schedule(kernel(DENSE))
    s.reorder("k", "m", "n")
    refuses(s, "k, which is reduced over, is outside m", "decompose_reduction", "s0", "m")
    s = Schedule(kernel(DENSE))
    s.reverse_compute_at("s1", "m")
    refuses(s, "each iteration of m would need c anew", "decompose_reduction", "s0", "m")
    s.decompose_reduction("s0")
    becomes(s, body(s))
    s = Schedule(kernel(ARGMAX))
    s.decompose_reduction("s0", "i")
    becomes(s, body(s))
    refuses(s, "block s0 depends on the order of its iterations", "reorder", "l", "k")


def test_pipeline():
    s = Schedule(kernel(CHAIN))
    outer, _ = s.split("j", 16)
    s.compute_at("s0", outer)
    assert s.pipeline(outer, "s0", stages=3) == ["s0_p"]
    becomes(
        s,
        """
        t = local(f32[3, 16])
        for j_o_p in serial(2):
            for i_a_p in serial(min(16, j_o_p * -16 + 40)):
                s0_p: t[j_o_p % 3, i_a_p] = exp(x[j_o_p * 16 + i_a_p])
        for j_o in serial(3):
            if j_o + 2 < 3:
                for i_a in serial(min(16, j_o * -16 + 8)):
                    s0: t[(j_o + 2) % 3, i_a] = exp(x[j_o * 16 + 32 + i_a])
            for j_i in serial(min(16, j_o * -16 + 40)):
                s1: y[j_o * 16 + j_i] = addf(t[j_o % 3, j_i], f32(1.0))
        """,
    )
    x = np.linspace(0, 1, 40, dtype=np.float32)
    np.testing.assert_allclose(s.build(threads=1)(x), np.exp(x) + 1, rtol=1e-6)
    refuses(s, "t is also written by s0_p", "pipeline", "j_o", "s0")
    s = Schedule(kernel(CHAIN))
    outer, _ = s.split("j", 8)
    s.compute_at("s0", outer)
    refuses(s, "block s1 reads t, which j_o writes", "pipeline", outer, "s1")
    refuses(s, "wants at least two stages and one block", "pipeline", outer)
    s.set_scope("t", "register")
    refuses(s, "t is no buffer in memory of its own", "pipeline", outer, "s0")
    s.set_scope("t", "local")
    refuses(s, "block s0 does not stand alone directly inside i_a", "pipeline", "i_a", "s0")
    s.parallel(outer)
    refuses(s, "j_o is no serial loop with a constant extent", "pipeline", outer, "s0")


def test_whether_iterations_collide_is_decided_exactly():
    """Against all pairs of iterations, for random indices."""
    rng = np.random.default_rng(0)
    names, answers = ["i", "j", "l"], set()
    for _ in range(300):
        trips = dict(zip(names, rng.integers(1, 6, 3).tolist(), strict=True))
        ranges = {v: (0, n - 1) for v, n in trips.items()}

        def index(trips=trips):
            e = sum((Var(v) * int(rng.integers(-2, 4)) for v in trips), Const(int(rng.integers(0, 3)), "index"))
            return [e, e // int(rng.integers(2, 4)), e % int(rng.integers(2, 5))][rng.integers(3)]

        indices = [index() for _ in range(rng.integers(1, 4))]
        places: dict[tuple, set] = {}
        for i, j, k in itertools.product(*[range(n) for n in trips.values()]):
            env = {"i": np.array([i]), "j": np.array([j]), "l": np.array([k])}
            at = tuple(int(np.ravel(evaluate(e, {v: env[v] for v in variables(e)}))[0]) for e in indices)
            places.setdefault(at, set()).add(i)
        apart = all(len(found) == 1 for found in places.values())
        loop = For("i", Const(trips["i"], "index"), Store(()))
        assert _distinct_enumerated(list(indices), loop, ranges) == apart
        assert distinct(tuple(indices), loop, ranges) == apart
        answers.add(apart)
    assert answers == {True, False}


BYTES = """
def k(x: i8[3, 8], w: i8[32, 8], y: out(i32[3, 32])):
    for m in serial(3):
        for n in serial(32):
            for k in serial(8):
                s0: y[m, n] = reduce(addi(muli(extsi[i32](w[n, k]), extui[i32](x[m, k])), y[m, n]), init=i32(0), over=(k,))
"""


class WithDots:
    """A target whose processor multiplies bytes."""

    name = "board"

    def describe(self):
        return CpuDescription("x86_64-unknown-linux-gnu", "", ("avx512f", "avx512vnni"), vector_bytes=64)


def tiled_bytes(target="cpu") -> Schedule:
    s = Schedule(kernel(BYTES, constants=("w",)), target)
    outer, _ = s.split("n", 16)
    k_o, k_i = s.split("k", 4)
    s.reorder("m", outer, k_o, "n_i", k_i)
    return s


def test_tensorize():
    s = tiled_bytes(WithDots())
    refuses(s, "the target has no instruction 'amx'", "tensorize", "n_i", "amx")
    refuses(s, "w moves by 8 along n_i, not by 4", "tensorize", "n_i", "vnni512_us")
    refuses(s, "k_o has 2 iterations, not 16", "tensorize", "k_o", "vnni512_us")
    s.pack("w", ((16,), (4,)), (0, 2, 1, 3))
    before = outcome(s)
    s.tensorize("n_i", "vnni512_us")
    assert body(s).splitlines()[3:5] == [
        "            for n_i in vector(16, lanes=16):",
        "                for k_i in unroll(4, notes={'dot': 'vnni512_us'}):",
    ]
    np.testing.assert_array_equal(outcome(s)["y"], before["y"])
    signed = Schedule(kernel(BYTES.replace("extui", "extsi"), constants=("w",)), WithDots())
    outer, _ = signed.split("n", 16)
    k_o, k_i = signed.split("k", 4)
    signed.reorder("m", outer, k_o, "n_i", k_i)
    signed.pack("w", ((16,), (4,)), (0, 2, 1, 3))
    refuses(signed, "block s0 computes something else", "tensorize", "n_i", "vnni512_us")


def test_tensorized_code_uses_the_instruction():
    if "vnni512_us" not in {d.name for d in host().dot_products}:
        pytest.skip("this processor has no AVX-512 VNNI")
    s = tiled_bytes()
    s.pack("w", ((16,), (4,)), (0, 2, 1, 3))
    s.tensorize("n_i", "vnni512_us")
    assert "vpdpbusd" in s.source("asm")
    rng = np.random.default_rng(0)
    x, w = rng.integers(-128, 128, (3, 8), np.int8), rng.integers(-128, 128, (32, 8), np.int8)
    want = x.view(np.uint8).astype(np.int32) @ w.astype(np.int32).T
    np.testing.assert_array_equal(s.build(threads=1)(x, w), want)
