"""Loop nests with sizes that are known at run time only: primitives, rules, and what is computed at sizes that are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.machines import NARROW, WIDE
from support.open_nests import POINTS, ROWS, SEQ, WIDE8, computes, product, rows_by_columns, softmax, total, transposed

from tilewright.schedule import finish
from tilewright.schedule.nest import For, walk_stmts
from tilewright.schedule.open_nest import kernel_at, nest_at, typical_sizes
from tilewright.schedule.rules import schedule
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest
from tilewright.support import sizes
from tilewright.support.sizes import Size, Sizes, Undecided
from tilewright.tensor.expr import variables


@pytest.fixture
def known() -> Iterator[Sizes]:
    with sizes.open_sizes([ROWS, SEQ, WIDE8]) as found:
        assert found is not None
        yield found


def test_a_nest_at_sizes_has_none_left(known):
    kernel = rows_by_columns(known)
    nest = Schedule(kernel).nest()
    assert "serial(rows)" in format_nest(nest)
    at = {"rows": 3, "seq": 5, "wide": 8}
    assert not any(isinstance(n, Size) for s in kernel_at(kernel, at).stages for _, n in s.dims)
    assert [(p.name, p.shape) for p in nest_at(nest, at).params] == [("x", (3, 5)), ("s", (5,)), ("y", (3, 5))]
    assert [s.trip for s in walk_stmts(nest_at(nest, at).body) if isinstance(s, For)] == [3, 5]
    assert typical_sizes() == {"rows": 4, "seq": 6, "wide": 16}


def test_where_all_sizes_are_known_there_is_nothing_to_do():
    assert typical_sizes() == {}


@pytest.mark.parametrize("factor", [1, 4, 16, 64])
@pytest.mark.parametrize("loop", ["i_y", "j_y"])
def test_split(known, loop, factor):
    kernel = rows_by_columns(known)
    s = Schedule(kernel)
    s.split(loop, factor)
    computes(s.nest(), kernel)


@pytest.mark.parametrize("lanes", [4, 16])
def test_vectors_along_an_open_dimension(known, lanes):
    kernel = rows_by_columns(known)
    s = Schedule(kernel)
    s.vectorize(s.split("j_y", lanes)[1])
    computes(s.nest(), kernel)


def test_a_divisor_leaves_no_rest(known):
    """Vectors of 8 along a dimension of multiples of 8: no last vector of less."""
    wide = known.symbols[2]
    kernel = transposed(4, wide)
    s = Schedule(kernel)
    outer, inner = s.split("i_y", 8)
    s.reorder(outer, "j_y", inner)
    s.vectorize(inner)
    computes(s.nest(), kernel)
    assert "min(" not in format_nest(s.nest())


def test_threads_and_order(known):
    kernel = rows_by_columns(known)
    s = Schedule(kernel)
    o, i = s.split("i_y", 4)
    s.parallel(o)
    jo, _ = s.split("j_y", 8)
    s.reorder(o, jo, i)
    computes(s.nest(), kernel)


@pytest.mark.parametrize("primitive", ["vectorize", "unroll"])
def test_an_open_loop_has_no_fixed_number_of_lanes(known, primitive):
    """It is refused, or it stays right: no number of iterations is made up."""
    kernel = rows_by_columns(known)
    s = Schedule(kernel)
    try:
        getattr(s, primitive)("j_y")
        computes(s.nest(), kernel)
    except (ScheduleError, Undecided):
        return


def _kernels(known: Sizes):
    rows, seq, wide = known.symbols
    return {
        "elementwise": lambda: rows_by_columns(known),
        "elementwise of known columns": lambda: rows_by_columns(known, 48),
        "product of open rows": lambda: product(rows, 10, 40),
        "product of open columns": lambda: product(9, 10, seq),
        "product over an open dimension": lambda: product(9, seq, 32),
        "product of all open": lambda: product(rows, seq, wide),
        "product of open groups of columns": lambda: product(rows, 8, wide),
        "softmax of known columns": lambda: softmax(rows, 33),
        "softmax of open columns": lambda: softmax(5, seq),
        "softmax of all open": lambda: softmax(rows, seq),
        "sums of columns": lambda: total(rows, 40),
        "sums of open columns": lambda: total(12, seq),
        "transposed": lambda: transposed(rows, seq),
        "rows of two dimensions": lambda: product(rows * 2, 6, 20),
    }


@pytest.mark.parametrize("machine", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", list(_kernels(Sizes([ROWS, SEQ, WIDE8]))))
def test_what_rules_make(known, name, machine):
    """The nest that the rules choose for all sizes is right at each."""
    kernel = _kernels(known)[name]()
    computes(schedule(kernel, machine).schedule.nest(), kernel)


def test_a_shared_tail_of_rows_of_two_dimensions(known):
    rows, seq, _ = known.symbols
    kernel = product(rows * seq, 2, 20)
    computes(schedule(kernel, WIDE).schedule.nest(), kernel)


def test_a_product_with_open_columns_stays_in_registers(known):
    """How many vectors the last tile of columns has decides what is laid out: tiles have one, or as many as surely
    divide. Before, such a product went to another rule."""
    _, seq, wide = known.symbols
    for m, k, n in ((16, 12, seq), (seq, 12, 4), (16, 12, wide)):
        for machine in (NARROW, WIDE):
            kernel = product(m, k, n)
            made = schedule(kernel, machine)
            assert made.rule == "contraction", dict(made.refused).get("contraction")
            computes(made.nest, kernel)


def test_an_expression_is_simplified_once_for_a_nest(known, monkeypatch):
    """However often it stands in laid-out loops and tiles (25 times each in a U-Net, before)."""
    seq = known.symbols[1]
    made, asked, simplified = schedule(product(seq, 12, 8), WIDE).schedule, [], finish._simplified

    def counted(e, ranges):
        asked.append((e, *[ranges.get(v) for v in sorted(variables(e))]))
        return simplified(e, ranges)

    monkeypatch.setattr(finish, "_simplified", counted)
    finish.finish(made.nest())
    assert len(asked) == len(set(asked)) > 0


def test_the_points_are_in_range():
    for at in POINTS:
        for dim in (ROWS, SEQ, WIDE8):
            assert dim.low <= at[dim.name] <= dim.high and at[dim.name] % dim.divisor == 0
