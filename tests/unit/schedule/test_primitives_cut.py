"""`Schedule.cut`: its before -> after examples, executed, and the reasons of its refusals."""

from __future__ import annotations

from support.primitive_cases import CHAIN, COPY, DENSE, MATRIX, SUM, becomes, body, kernel, refuses

from tilewright.schedule.schedule import Schedule


def test_cut():
    s = Schedule(kernel(MATRIX))
    assert s.cut("j", 5) == ("j_2", "s0_2")
    becomes(
        s,
        """
        for i in serial(4):
            for j in serial(5):
                s0: y[i, j] = negf(x[i, j])
            for j_2 in serial(3):
                s0_2: y[i, j_2 + 5] = negf(x[i, j_2 + 5])
        """,
    )
    assert s.cut("i", 1) == ("i_2", "j_21", "j_2_2", "s0_21", "s0_2_2")
    refuses(s, "i has 1 iterations: it cannot be cut after 1", "cut", "i", 1)
    refuses(s, "j has 5 iterations: it cannot be cut after 0", "cut", "j", 0)
    refuses(s, "there is no loop n", "cut", "n", 1)
    s.vectorize("j_2_2")
    refuses(s, "j_2_2 is vectorized already", "cut", "j_2_2", 1)
    s = Schedule(kernel(COPY))
    outer, inner = s.split("i", 32)
    refuses(s, "the extent of i_i is not constant", "cut", inner, 1)
    s.cut(outer, 3)
    assert (s.extent(inner), s.extent("i_i_2")) == (32, 4)  # no tile is partial any more


def test_cut_of_a_sum():
    s = Schedule(kernel(SUM))
    refuses(s, "block s0 reduces over k", "cut", "k", 16)
    s.decompose_reduction("s0")
    assert s.cut("k", 30) == ("k_2", "s0_2")
    becomes(
        s,
        """
        for i in serial(5):
            s0_init: y[i] = f32(0.0)
            for k in serial(30):
                s0: y[i] = reduce(addf(y[i], x[i, k]), init=None, over=(k,))
            for k_2 in serial(2):
                s0_2: y[i] = reduce(addf(y[i], x[i, k_2 + 30]), init=None, over=(k_2,))
        """,
    )
    s = Schedule(kernel(SUM))
    s.reorder("k", "i")
    s.cut("i", 2)  # other elements may be summed beside those of s0
    becomes(
        s,
        """
        for k in serial(32):
            for i in serial(2):
                s0: y[i] = reduce(addf(y[i], x[i, k]), init=f32(0.0), over=(k,))
            for i_2 in serial(3):
                s0_2: y[i_2 + 2] = reduce(addf(y[i_2 + 2], x[i_2 + 2, k]), init=f32(0.0), over=(k,))
        """,
    )


def test_cut_of_tiles():
    """What lives during one iteration each loop has for itself; what is shared stays so."""
    s = Schedule(kernel(DENSE))
    s.split("n", 5)
    s.reorder("n_o", "m", "n_i", "k")
    s.reverse_compute_at("s1", "n_o")
    assert s.cut("n_o", 1) == ("n_o_2", "m_2", "n_i_2", "k_2", "i_a_2", "j_a_2", "s0_2", "s1_2")
    assert (s.extent("n_i"), s.extent("n_i_2")) == (5, 3)
    assert [b for b in s.temporaries if b.startswith("c")] == ["c", "c_2"]
    s.parallel("n_o")
    s.parallel("n_o_2")
    becomes(Schedule.replay(s.kernel, str(s.trace)), body(s))
    s = Schedule(kernel(CHAIN))
    s.cut("i", 25)
    assert list(s.temporaries) == ["t"]
    refuses(s, "t is also written by", "inline", "s0")


def test_cut_of_an_instruction():
    s = Schedule(kernel(MATRIX))
    s.annotate("j", "dot", "vnni")
    refuses(s, "j stands for an instruction", "cut", "j", 4)
