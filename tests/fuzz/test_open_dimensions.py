"""Random graphs with open dimensions give what ONNX Runtime gives; `open_dimensions.py` draws more."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the results are compared with ONNX Runtime's")
sys.path.insert(0, str(Path(__file__).parent))
from open_dimensions import GOOD, compare, judged, reason
from open_graphs import Graph


@pytest.mark.parametrize("first", [1, 5, 9])
def test_random_graphs_with_open_dimensions_are_right(first):
    found = [compare(seed) for seed in range(first, first + 4)]
    assert not [o for o in found if o.outcome not in GOOD]
    assert any(o.outcome == "equal" for o in found)


def graph(*shape) -> Graph:
    g = Graph(random.Random(1), {"batch": (1, 9, 1), "seq": (4, 64, 4)}, shape)
    g.input(shape)
    return g


def test_indices_that_count_from_both_ends():
    g = graph("batch", "seq", 8)
    g.op("Gather", ("batch", 2, 8), g.numbers(-2, 1), axis=1)
    assert judged(g, 1) == ("equal", "")


def test_every_other_element_of_an_open_dimension():
    g = graph("batch", "seq", 8)
    g.op("Slice", ("((batch+1)//2)", "seq", 8), *map(g.numbers, (0, 2**63 - 1, 0, 2)))
    assert judged(g, 1) == ("equal", "")


def test_the_place_of_the_largest_along_an_open_dimension():
    g = graph("batch", "seq", 8)
    g.more.append((g.node("ArgMax", g.name, axis=1, keepdims=0), ("batch", 8), "int64"))
    g.op("Relu", g.shape)
    assert judged(g, 1) == ("equal", "")


def test_a_result_that_nobody_reads():
    g = graph("batch", "seq", 8)
    g.name, g.shape = g.node("Split", g.name, g.numbers(3, 5), axis=2, outputs=2), ("batch", "seq", 3)
    g.op("Erf", g.shape)
    assert judged(g, 1) == ("equal", "")


def test_reasons_have_no_numbers_and_names():
    assert reason("Undecided: whether 12*seq < 5 is not known | relu->[seq]") == (
        "Undecided: whether ... < N is not known"
    )
