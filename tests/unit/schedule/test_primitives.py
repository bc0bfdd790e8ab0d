"""Every primitive on loops and blocks: its before -> after example, executed, and the reasons of its refusals."""

# ruff: noqa: E501 (kernels as text)
from __future__ import annotations

import numpy as np
import pytest
from support.primitive_cases import ARGMAX, CHAIN, COPY, DENSE, MATRIX, SUM, becomes, body, kernel, refuses

from tilewright.lang import te
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.legality import check
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.tensor.expr import Var


def test_split():
    s = Schedule(kernel(COPY))
    assert s.split("i", 32) == ("i_o", "i_i")
    becomes(
        s,
        """
        for i_o in serial(4):
            for i_i in serial(min(32, i_o * -32 + 100)):
                s0: y[i_o * 32 + i_i] = negf(x[i_o * 32 + i_i])
        """,
    )
    assert s.split("i_o", 2) == ("i_o_o", "i_o_i")
    refuses(s, "split factor 0 of i_i is not positive", "split", "i_i", 0)
    refuses(s, "there is no loop i", "split", "i", 2)
    s.vectorize("i_i")
    refuses(s, "i_i is vectorized already", "split", "i_i", 2)


def test_fuse():
    s = Schedule(kernel(MATRIX))
    assert s.fuse("i", "j") == "i_j"
    becomes(
        s,
        """
        for i_j in serial(32):
            s0: y[i_j // 8, i_j % 8] = negf(x[i_j // 8, i_j % 8])
        """,
    )
    refuses(Schedule(kernel(MATRIX)), "i is not directly inside j", "fuse", "j", "i")
    refuses(Schedule(kernel(SUM)), "would both sum over and select the element", "fuse", "i", "k")
    s = Schedule(kernel(COPY))
    refuses(s, "no constant extent", "fuse", *s.split("i", 32))


def test_fuse_of_partial_tiles():
    """The extent of the outer loop may vary; the lanes of what is vectorized then are bounded."""
    s = Schedule(kernel(MATRIX))
    _, rows = s.split("i", 3)
    s.vectorize(s.fuse(rows, "j"))
    becomes(
        s,
        """
        for i_o in serial(2):
            for i_i_j in vector(min(24, i_o * -24 + 32), lanes=32):
                s0: y[i_o * 3 + i_i_j // 8, i_i_j % 8] = negf(x[i_o * 3 + i_i_j // 8, i_i_j % 8])
        """,
    )


def test_reorder():
    s = Schedule(kernel(MATRIX))
    s.reorder("j", "i")
    becomes(
        s,
        """
        for j in serial(8):
            for i in serial(4):
                s0: y[i, j] = negf(x[i, j])
        """,
    )
    refuses(s, "reorder wants different loops", "reorder", "i", "i")
    refuses(s, "reorder wants different loops", "reorder")
    refuses(s, "there is no loop n", "reorder", "n", "i")
    refuses(Schedule(kernel(CHAIN)), "j is not perfectly nested in i", "reorder", "j", "i")
    s = Schedule(kernel(COPY))
    outer, inner = s.split("i", 32)
    refuses(s, "the extent of i_i depends on i_o", "reorder", inner, outer)
    refuses(Schedule(kernel(ARGMAX)), "block s0 depends on the order of its iterations", "reorder", "l", "k")


def test_parallel():
    s = Schedule(kernel(MATRIX))
    s.parallel("i")
    becomes(
        s,
        """
        for i in thread(4):
            for j in serial(8):
                s0: y[i, j] = negf(x[i, j])
        """,
    )
    refuses(Schedule(kernel(MATRIX)), "j is not an outermost loop", "parallel", "j")
    s = Schedule(kernel(SUM))
    s.reorder("k", "i")
    refuses(s, "block s0 reduces over k", "parallel", "k")
    refuses(Schedule(kernel(CHAIN)), "t is memory of each thread", "parallel", "i")
    s = Schedule(
        kernel("def k(x: f32[8], y: out(f32[4])):\n    for i in serial(8):\n        s0: y[i % 4] = x[i]"),
    )
    refuses(s, "iterations of i cannot be shown to write different elements of y", "parallel", "i")


def test_parallel_loops_must_not_need_each_other():
    s = Schedule(
        kernel(
            """
            def k(x: f32[8], y: out(f32[8]), z: out(f32[8])):
                for i in serial(8):
                    s0: y[i] = exp(x[i])
                for j in serial(8):
                    s1: z[j] = y[7 - j]
            """
        )
    )
    refuses(s, "a thread would use elements of y that another thread writes in another loop", "parallel", "i")


@pytest.mark.parametrize(
    ("column", "reason"), [("7 - i", "would read or write each other's elements of y"), ("i", None)]
)
def test_parallel_stores_to_one_result_need_a_part_of_their_own(column, reason):
    """Neither store writes an element twice, and nothing reads them; but iterations 0 and 7 write the same."""
    nest = parse_nest(f"""def k(x: f32[4, 8], y: out(f32[4, 8])):
    for i in thread(8):
        for j in serial(4):
            s0: y[j, i] = x[j, i]
        for k in serial(4):
            s1: y[k, {column}] = negf(x[k, i])""")
    found = check(nest.body, {p.name: p for p in nest.params}, {})
    assert found is None if reason is None else reason in str(found)


def test_unroll():
    s = Schedule(kernel(MATRIX))
    s.unroll("j")
    becomes(
        s,
        """
        for i in serial(4):
            for j in unroll(8):
                s0: y[i, j] = negf(x[i, j])
        """,
    )
    refuses(s, "there is no loop n", "unroll", "n")


def test_vectorize():
    s = Schedule(kernel(COPY))
    _, inner = s.split("i", 32)
    s.vectorize(inner)
    becomes(
        s,
        """
        for i_o in serial(4):
            for i_i in vector(min(32, i_o * -32 + 100), lanes=32):
                s0: y[i_o * 32 + i_i] = negf(x[i_o * 32 + i_i])
        """,
    )
    refuses(Schedule(kernel(MATRIX)), "i is not innermost", "vectorize", "i")
    s = Schedule(kernel(ARGMAX))
    refuses(
        s, "lanes of l would write one element of y, and block s0 has no known way to combine them", "vectorize", "l"
    )
    s = Schedule(kernel(SUM))
    s.vectorize("k")
    becomes(s, body(s))


def test_inline():
    s = Schedule(kernel(CHAIN))
    s.inline("s0")
    becomes(
        s,
        """
        for j in serial(40):
            s1: y[j] = addf(exp(x[j]), f32(1.0))
        """,
    )
    refuses(s, "y is a result of the kernel", "inline", "s1")
    refuses(s, "there is no block s0", "inline", "s0")
    refuses(Schedule(kernel(DENSE)), "block s0 is a reduction", "inline", "s0")
    s = Schedule(kernel(CHAIN))
    s.split("i", 8)
    refuses(s, "not at a plain loop variable", "inline", "s0")


def test_reindex():
    s = Schedule(
        kernel(
            """
            def k(x: f32[3, 8], y: out(f32[2, 3, 4])):
                t = local(f32[3, 8])
                for i in serial(3):
                    for j in serial(8):
                        s0: t[i, j] = exp(x[i, j])
                for h in serial(2):
                    for a in serial(3):
                        for d in serial(4):
                            s1: y[h, a, d] = negf(t[a, h * 4 + d])
            """
        )
    )
    s.reindex("s1", "s0")
    becomes(
        s,
        """
        t = local(f32[3, 8])
        for i in serial(3):
            for j in serial(8):
                s0: t[i, j] = exp(x[i, j])
        for m_s1 in serial(3):
            for n_s1 in serial(8):
                s1: y[n_s1 // 4, m_s1, n_s1 % 4] = negf(t[m_s1, n_s1])
        """,
    )
    refuses(s, "s0 does not read y element for element", "reindex", "s0", "s1")
    refuses(Schedule(kernel(SUM)), "block s0 is a reduction", "reindex", "s0", "s0")


def test_cache_write():
    s = Schedule(kernel(SUM))
    assert s.cache_write("s0") == "s0_w"
    becomes(
        s,
        """
        y_c = local(f32[5])
        for i in serial(5):
            for k in serial(32):
                s0: y_c[i] = reduce(addf(y_c[i], x[i, k]), init=f32(0.0), over=(k,))
        for m_y_c in serial(5):
            s0_w: y[m_y_c] = y_c[m_y_c]
        """,
    )
    s = Schedule(
        kernel(
            """
            def k(x: f32[4], y: out(f32[8])):
                for i in serial(4):
                    s0: y[i] = x[i]
                for j in serial(4):
                    s1: y[j + 4] = x[j]
            """
        )
    )
    refuses(s, "y is also written by s1", "cache_write", "s0")


def test_compute_at():
    s = Schedule(kernel(CHAIN))
    outer, _ = s.split("j", 8)
    assert s.compute_at("s0", outer) == ["i_a"]
    becomes(
        s,
        """
        for j_o in serial(5):
            t = local(f32[8])
            for i_a in serial(8):
                s0: t[i_a] = exp(x[j_o * 8 + i_a])
            for j_i in serial(8):
                s1: y[j_o * 8 + j_i] = addf(t[j_i], f32(1.0))
        """,
    )
    refuses(s, "s0 is already inside j_o", "compute_at", "s0", "j_o")
    refuses(Schedule(kernel(CHAIN)), "y is not read inside i", "compute_at", "s1", "i")
    s = Schedule(
        kernel(
            """
            def k(x: f32[4], y: out(f32[4]), z: out(f32[4])):
                t = local(f32[4])
                for i in serial(4):
                    s0: t[i] = exp(x[i])
                for j in serial(4):
                    s1: y[j] = negf(t[j])
                for l in serial(4):
                    s2: z[l] = absf(t[l])
            """
        )
    )
    refuses(s, "t is also read outside j", "compute_at", "s0", "j")


def test_compute_at_of_a_partial_tile():
    s = Schedule(kernel(CHAIN))
    outer, _ = s.split("j", 16)
    s.compute_at("s0", outer)
    becomes(
        s,
        """
        for j_o in serial(3):
            t = local(f32[16])
            for i_a in serial(min(16, j_o * -16 + 40)):
                s0: t[i_a] = exp(x[j_o * 16 + i_a])
            for j_i in serial(min(16, j_o * -16 + 40)):
                s1: y[j_o * 16 + j_i] = addf(t[j_i], f32(1.0))
        """,
    )


def test_reverse_compute_at():
    s = Schedule(kernel(DENSE))
    outer, inner = s.split("n", 4)
    s.reorder("m", outer, "k", inner)
    assert s.reverse_compute_at("s1", outer) == ["j_a"]
    becomes(
        s,
        """
        for m in serial(6):
            for n_o in serial(2):
                c = local(f32[1, 4])
                for k in serial(5):
                    for n_i in serial(4):
                        s0: c[0, n_i] = reduce(addf(c[0, n_i], mulf(a[m, k], b[k, n_o * 4 + n_i])), init=f32(0.0), over=(k,))
                for j_a in serial(4):
                    s1: y[m, n_o * 4 + j_a] = maximumf(c[0, j_a], f32(0.0))
        """,
    )
    s = Schedule(kernel(DENSE))
    refuses(s, "block s1 would use c before block s0 has finished it", "reverse_compute_at", "s1", "k")
    refuses(s, "s0 reads 0 buffers written inside i, not one", "reverse_compute_at", "s0", "i")


def test_rfactor():
    s = Schedule(kernel(SUM))
    _, inner = s.split("k", 16)
    assert s.rfactor("s0", inner) == "s0_r"
    becomes(
        s,
        """
        for i in serial(5):
            y_r = local(f32[16])
            for k_o in serial(2):
                for k_i in serial(16):
                    s0: y_r[k_i] = reduce(addf(y_r[k_i], x[i, k_o * 16 + k_i]), init=f32(0.0), over=(k_o,))
            for k_i_r in serial(16):
                s0_r: y[i] = reduce(addf(y[i], y_r[k_i_r]), init=f32(0.0), over=(k_i_r,))
        """,
    )
    refuses(Schedule(kernel(SUM)), "i are not the innermost reduction loops of s0", "rfactor", "s0", "i")
    refuses(Schedule(kernel(ARGMAX)), "s0 is not a reduction with a known combiner", "rfactor", "s0", "l")
    s = Schedule(kernel(SUM))
    s.split("k", 20)
    becomes(s, body(s))
    s.rfactor("s0", "k_i")
    becomes(s, body(s))
    s = Schedule(kernel(SUM))
    s.reorder("k", "i")
    s.unroll("i")
    refuses(s, "other loops or blocks stand between the reduction loops of s0", "rfactor", "s0", "k")


def test_rfactor_around_a_tile():
    s = Schedule(kernel(SUM))
    (_, inner), (_, tile) = s.split("k", 16), s.split("i", 2)
    s.reorder("i_o", "k_o", tile, inner)
    assert s.rfactor("s0", inner) == "s0_r"
    becomes(
        s,
        """
        for i_o in serial(3):
            y_r = local(f32[2, 16])
            for k_o in serial(2):
                for i_i in serial(min(2, i_o * -2 + 5)):
                    for k_i in serial(16):
                        s0: y_r[i_i, k_i] = reduce(addf(y_r[i_i, k_i], x[i_o * 2 + i_i, k_o * 16 + k_i]), init=f32(0.0), over=(k_o,))
            for i_i_r in serial(min(2, i_o * -2 + 5)):
                for k_i_r in serial(16):
                    s0_r: y[i_o * 2 + i_i_r] = reduce(addf(y[i_o * 2 + i_i_r], y_r[i_i_r, k_i_r]), init=f32(0.0), over=(k_i_r,))
        """,
    )


def test_partial_sums():
    s = Schedule(kernel(DENSE))
    (outer, _), (tile, _) = s.split("k", 2), s.split("m", 4)
    s.reorder(outer, tile, "k_i", "m_i", "n")
    assert s.partial_sums("s0", tile, scope="register") == "s0_p"
    becomes(
        s,
        """
        c = local(f32[6, 8])
        for k_o in serial(3):
            for m_o in serial(2):
                c_p = register(f32[4, 8])
                for k_i in serial(min(2, k_o * -2 + 5)):
                    for m_i in serial(min(4, m_o * -4 + 6)):
                        for n in serial(8):
                            s0: c_p[m_i, n] = reduce(addf(c_p[m_i, n], mulf(a[m_o * 4 + m_i, k_o * 2 + k_i], b[k_o * 2 + k_i, n])), init=f32(0.0), over=(k_i,))
                for m_c_p in serial(min(4, m_o * -4 + 6)):
                    for n_c_p in serial(8):
                        s0_p: c[m_o * 4 + m_c_p, n_c_p] = reduce(addf(c[m_o * 4 + m_c_p, n_c_p], c_p[m_c_p, n_c_p]), init=f32(0.0), over=(k_o,))
        for i in serial(6):
            for j in serial(8):
                s1: y[i, j] = maximumf(c[i, j], f32(0.0))
        """,
    )
    refuses(s, "c_p inside m_o too", "partial_sums", "s0", "m_o")
    s = Schedule(kernel(SUM))
    refuses(s, "s0 does not sum over loops inside k alone", "partial_sums", "s0", "k")
    refuses(s, "there is no loop z", "partial_sums", "s0", "z")
    with pytest.raises(ScheduleError, match="there is no scope far"):
        s.partial_sums("s0", "i", scope="far")
    s.partial_sums("s0", "i")
    becomes(s, body(s))
    refuses(Schedule(kernel(CHAIN)), "s0 is not a reduction with a known combiner", "partial_sums", "s0", "i")
    refuses(Schedule(kernel(ARGMAX)), "s0 is not a reduction with a known combiner", "partial_sums", "s0", "i")
    s = Schedule(kernel(DENSE))
    s.reorder("m", "k", "n")
    s.split("n", 2)
    refuses(s, "one iteration of m does not write a rectangle of c", "partial_sums", "s0", "m")


def test_pack():
    s = Schedule(kernel(DENSE, constants=("b",)))
    s.pack("b", ((), (4,)), (1, 0, 2))
    assert s.nest().buffers()["b"].shape == (2, 5, 4)
    becomes(
        s,
        """
        c = local(f32[6, 8])
        for m in serial(6):
            for n in serial(8):
                for k in serial(5):
                    s0: c[m, n] = reduce(addf(c[m, n], mulf(a[m, k], b[n // 4, k, n % 4])), init=f32(0.0), over=(k,))
        for i in serial(6):
            for j in serial(8):
                s1: y[i, j] = maximumf(c[i, j], f32(0.0))
        """,
    )
    refuses(s, "b is packed already", "pack", "b", ((), ()), (0, 1))
    refuses(s, "a is not a constant parameter", "pack", "a", ((), ()), (0, 1))
    s = Schedule(kernel(DENSE, constants=("b",)))
    refuses(s, "splits ((),) do not fit b, which has shape [5, 8]", "pack", "b", ((),), (0,))
    refuses(s, "(0, 0) is not an order of the 2 dimensions", "pack", "b", ((), ()), (0, 0))


def test_set_scope():
    s = Schedule(kernel(CHAIN))
    s.set_scope("t", "register")
    assert "t = register(f32[40])" in body(s)
    becomes(s, body(s))
    refuses(s, "cannot put x into local", "set_scope", "x", "local")
    refuses(s, "there is no scope shared", "set_scope", "t", "shared")


def test_the_trace_records_what_was_accepted():
    s = Schedule(kernel(COPY))
    s.split("i", 32)
    with pytest.raises(ScheduleError):
        s.split("i", 32)
    assert len(s.trace) == 1


def test_tile():
    s = Schedule(kernel(MATRIX))
    assert s.tile(("i", "j"), (2, 4)) == ("i_o", "j_o", "i_i", "j_i")
    becomes(
        s,
        """
        for i_o in serial(2):
            for j_o in serial(2):
                for i_i in serial(2):
                    for j_i in serial(4):
                        s0: y[i_o * 2 + i_i, j_o * 4 + j_i] = negf(x[i_o * 2 + i_i, j_o * 4 + j_i])
        """,
    )
    refuses(s, "tile wants one size for each loop", "tile", ("i_o",), (2, 2))
    refuses(s, "split factor 0 of j_o is not positive", "tile", ("i_o", "j_o"), (2, 0))
    refuses(Schedule(kernel(CHAIN)), "j_o is not perfectly nested in i_o", "tile", ("i", "j"), (2, 2))


def test_bind():
    s = Schedule(kernel(MATRIX))
    s.bind("i", "threads")
    s.bind("j", "lanes")
    becomes(
        s,
        """
        for i in thread(4):
            for j in vector(8, lanes=8):
                s0: y[i, j] = negf(x[i, j])
        """,
    )
    refuses(s, "the target has no axis 'block_x'", "bind", "i", "block_x")
    refuses(Schedule(kernel(MATRIX), "c"), "the target has no axis 'thread'", "bind", "i", "threads")
    refuses(Schedule(kernel(MATRIX)), "j is not an outermost loop", "bind", "j", "threads")


MERGED = """
def k(x: f32[4, 6], y: out(f32[4, 6]), z: out(f32[4])):
    t = local(f32[4, 6])
    for i in serial(4):
        for j in serial(6):
            s0: t[i, j] = exp(x[i, j])
    for m in serial(4):
        for n in serial(6):
            s1: z[m] = reduce(addf(z[m], t[m, n]), init=f32(0.0), over=(n,))
    for p in serial(4):
        for q in serial(6):
            s2: y[p, q] = divf(t[p, 5 - q], z[p])
"""


def test_merge():
    s = Schedule(te.from_nest(MERGED))
    nest = s.nest()
    assert s.merge("i", "m") == "i"
    assert s.merge("j", "n") == "j"
    assert s.store("s1").reduction == ("j",)
    s.merge("i", "p")  # the sum of a row is finished before s2
    refuses(s, "an iteration of q would touch what another one of j does to t", "merge", "j", "q")
    refuses(s, "j does not follow i directly", "merge", "i", "j")
    x = {"x": np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)}
    for a, b in zip(interpret_nest(s.nest(), x).values(), interpret_nest(nest, x).values(), strict=True):
        np.testing.assert_array_equal(a, b)
    s = Schedule(te.from_nest(MERGED))
    s.split("j", 3)
    refuses(s, "p does not follow i directly", "merge", "i", "p")
    s.vectorize("j_i")
    s.split("m", 2)
    refuses(s, "do not have the same iterations", "merge", "i", "m_o")


def test_annotate_and_prefetch():
    s = Schedule(kernel(COPY))
    s.annotate("i", "unroll_count", 4)
    s.annotate("i", "gone", "x")
    s.annotate("i", "gone", None)
    s.prefetch("i", "x", [Var("i") + 16])
    becomes(
        s,
        """
        for i in serial(100, prefetch=(x[i + 16],), notes={'unroll_count': 4}):
            s0: y[i] = negf(x[i])
        """,
    )
    assert parse_nest(format_nest(s.nest())) == s.nest()
    refuses(s, "must be a name", "annotate", "i", "two words", 1)
    refuses(s, "must be plain", "annotate", "i", "key", object())
    refuses(s, "there is no buffer t", "prefetch", "i", "t", [Var("i")])
    refuses(s, "k is no loop around what i prefetches", "prefetch", "i", "x", [Var("k")])
    s.vectorize("i")
    refuses(s, "only a loop that stays a loop can prefetch", "prefetch", "i", "x", [Var("i")])


def test_an_unroll_note_reaches_llvm():
    s = Schedule(kernel(SUM))
    once = s.source("ll").count("fadd")
    s.annotate("k", "unroll_count", 4)
    assert s.source("ll").count("fadd") == 4 * once
    s.annotate("k", "unroll_count", None)
    s.annotate("k", "no_unroll", True)
    assert "llvm.loop.unroll.disable" in s.source("ll")
    x = np.arange(160, dtype=np.float32).reshape(5, 32)
    np.testing.assert_allclose(s.build(threads=1)(x), x.sum(1))


def test_what_one_thread_makes_others_do_not_read():
    """A block that writes a result runs on one thread; what it puts into a local buffer only that thread has."""
    s = Schedule(
        kernel("""
def k(x: f32[4], y: out(f32[4]), z: out(f32[4])):
    t = local(f32[4])
    u = local(f32[4])
    for i in serial(4):
        s0: y[i] = negf(x[i])
    for h in serial(4):
        s1: t[h] = exp(x[h])
    for j in serial(4):
        s2: u[j] = negf(t[j])
    for m in serial(4):
        s3: z[m] = negf(u[m])
""")
    )
    s.merge("i", "h")
    refuses(s, "t is memory of each thread", "parallel", "m")
