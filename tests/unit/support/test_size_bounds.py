"""Bounds of what divisions and extrema make of sizes, against all sizes of their ranges; the numbers that stand for
them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tilewright.frontends.open_values import REFERENCES
from tilewright.support import sizes
from tilewright.support.sizes import Dim, Sizes, decode, larger, smaller, too_large

DIMS = (Dim("d", 1, 14), Dim("e", 3, 9))


@pytest.fixture
def known() -> Iterator[Sizes]:
    with sizes.open_sizes(DIMS) as space:
        assert space is not None
        yield space


EXPRESSIONS = {
    "the last part of four": lambda d, e: d - 3 * -(-d // 4),
    "a smaller half": lambda d, e: d - (d + 1) // 2,
    "what is missing": lambda d, e: larger(d, 10) - d,
    "half of what is missing": lambda d, e: (larger(d, 10) - d) // 2,
    "what is too much": lambda d, e: d - smaller(d, e),
    "both": lambda d, e: larger(d, e) - smaller(d, e),
    "three quarters": lambda d, e: 3 * (d // 4) - d,
    "a rest": lambda d, e: 5 * ((d + e) // 3) - 2 * d,
    "products of differences": lambda d, e: (2 * d - 1) * (4 * e - 1),
    "less than a square": lambda d, e: d * d - 3 * d * e + e,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_bounds_hold_for_all_sizes(known, name):
    size = EXPRESSIONS[name](*known.symbols)
    low, high = size.range
    values = [size.at({"d": d, "e": e}) for d, e in itertools.product(range(1, 15), range(3, 10))]
    assert low <= min(values) <= max(values) <= high
    plain = [EXPRESSIONS[name](d, e) for d, e in itertools.product(range(1, 15), range(3, 10))]
    assert values == plain


def test_differences_that_are_not_negative_are_known_to_be(known):
    d, e = known.symbols
    for size in (d - (d + 1) // 2, larger(d, 10) - d, (larger(d, 10) - d) // 2, d - smaller(d, e)):
        assert size >= 0


def test_places_in_windows_are_positive(known):
    d, e = known.symbols
    rows = (2 * d - 1) * (4 * e - 1)
    assert rows.range == (11, 27 * 35)
    assert (rows * e - 1) // rows == e - 1  # the last of e images


def test_what_stands_for_parts_is_positive(known):
    d, _ = known.symbols
    for parts in (2, 3, 4):
        assert int(-(-d // parts)) > 0
        assert int(d - (parts - 1) * -(-d // parts)) > 0


def test_numbers_that_are_no_integers_stand_for_nothing(known):
    assert decode(0.5) == 0.5
    assert decode(float("-inf")) == float("-inf")


def test_products_of_many_sizes_are_too_large_for_a_type(known):
    d, e = known.symbols
    assert not too_large(d * e * e)
    assert too_large(d * d * d * e * e)
    assert not too_large(1 << 64)  # a number of its own


def test_numbers_of_a_model_are_not_taken_for_later_sizes(known):
    d, _ = known.symbols
    first = int(d // 2)
    with sizes.open_sizes(DIMS) as other:
        assert other is not None
        other.numbers.plain.add(3 * first)
        again = other.symbols[0] // 2
        assert 3 * first % int(again)


def test_quotients_and_extrema_of_arrays(known):
    d, e = known.symbols
    x, y = np.empty(2, object), np.empty(2, object)
    x[:], y[:] = [d, 12], [d, e]
    assert list(REFERENCES["div"](x, y)) == [1, 12 // e]
    assert list(REFERENCES["max"](x, y)) == [d, larger(12, e)]
    assert list(REFERENCES["min"](x, y)) == [d, smaller(12, e)]
