"""The table of cases that `make test` leaves out names tests that there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.thinned import EVERY

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("name", EVERY)
def test_every_name_is_that_of_a_test(name):
    file, _, function = name.partition("::")
    found = list(TESTS.rglob(f"{file}.py"))
    assert any(f"def {function}(" in path.read_text(encoding="utf-8") for path in found), name
