"""Which results of a kernel may take the place of an operand."""

from __future__ import annotations

from tilewright.schedule.inplace import inplace_pairs
from tilewright.schedule.parse import parse_nest


def pairs(text):
    return inplace_pairs(parse_nest(text))


def test_an_elementwise_result_takes_the_place_of_an_operand():
    assert pairs("""def k(p0: f32[4], p1: out(f32[4])):
    for i in serial(4):
        s0: p1[i] = exp(p0[i])
""") == [("p1", "p0")]


def test_not_where_another_element_is_read():
    assert not pairs("""def k(p0: f32[4], p1: out(f32[4])):
    for i in serial(4):
        s0: p1[i] = exp(p0[3 - i])
""")


def test_not_where_a_first_statement_overwrites_what_the_second_reads():
    assert not pairs("""def k(p0: f32[1], p1: f32[1], p2: out(f32[1])):
    s0.init: p2[0] = f32(0.0)
    s0: p2[0] = addf(p2[0], mulf(p0[0], p1[0]))
""")


def test_not_where_a_sum_reads_the_operand_twice():
    assert not pairs("""def k(p0: f32[4], p1: out(f32[4])):
    for i in serial(4):
        s0: p1[i] = exp(p0[i])
        s1: p1[i] = addf(p1[i], p0[i])
""")
