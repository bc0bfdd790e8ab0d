"""Whether rows begin at many places of a first-level cache: what decides how tiles are walked (`elementwise.py`)."""

import pytest
from support.machines import AVX512F as MACHINE

from tilewright.schedule.rules.elementwise.elementwise import _spread
from tilewright.support.dims import Dim
from tilewright.support.sizes import open_sizes


@pytest.mark.parametrize("apart", [4, 96, 4096, 4100, 12288, 1 << 20])
@pytest.mark.parametrize("rows", [1, 3, 64, 1000, 100_000])
def test_as_counted_one_by_one(rows, apart):
    sets = MACHINE.same_set_bytes // MACHINE.line_bytes
    places = len({row * apart // MACHINE.line_bytes % sets for row in range(rows)})
    assert _spread(rows, apart, MACHINE) == (4 * places >= min(rows, sets))


def test_very_many_rows_are_not_counted_one_by_one():
    """The number that stands for an open size is large, and products of such numbers are larger."""
    assert _spread(1 << 60, 96, MACHINE)
    with open_sizes([Dim("rows", 1, 1 << 20)]) as known:
        assert _spread(known.symbols[0] * 1000, 96, MACHINE)
