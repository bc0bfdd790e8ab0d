"""Which device computes what: minimal cuts against all assignments."""

from __future__ import annotations

import itertools
import random
from math import inf

import pytest

from tilewright.program.partition import Crossing, partition, total


def copy(a: int, b: int, nbytes: int) -> float:
    """Dearer one way than the other; between two devices it goes by the host."""
    return (0.5 if 0 in (a, b) else 1.0) + nbytes + 0.25 * (a < b)


def drawn(seed: int, devices: int):
    """Tasks of which some cannot run everywhere, and values with several readers."""
    rng = random.Random(seed)
    n = rng.randint(1, 8)
    tasks = [
        [inf if rng.random() < 0.15 else rng.choice([0.0, 1, 2, 3, 5, 8]) for _ in range(devices)] for _ in range(n)
    ]
    tasks = [t if min(t) < inf else [1.0] * devices for t in tasks]
    readers = [tuple(rng.sample(range(n), rng.randint(1, min(n, 3)))) for _ in range(n)]
    return tasks, [Crossing(maker, r, rng.randint(0, 3)) for maker, r in enumerate(readers)]


def least(tasks, values) -> float:
    every = itertools.product(*(range(len(t)) for t in tasks))
    return min(total(tasks, values, copy, p) for p in every)


@pytest.mark.parametrize("seed", range(60))
def test_of_two_devices_the_best_is_found(seed):
    tasks, values = drawn(seed, 2)
    assert total(tasks, values, copy, partition(tasks, values, copy)) == pytest.approx(least(tasks, values))


def test_of_three_devices_nearly_always():
    worse = []
    for seed in range(40):
        tasks, values = drawn(seed, 3)
        worse.append(total(tasks, values, copy, partition(tasks, values, copy)) / max(least(tasks, values), 1e-9))
    assert sum(w > 1 + 1e-9 for w in worse) <= 4 and max(worse) < 1.3


def test_a_value_is_copied_once_for_all_readers():
    values = [Crossing(0, (1, 2, 3), 2)]
    tasks = [(0.0, inf), (9.0, 8.0), (9.0, 8.0), (9.0, 8.0)]
    assert partition(tasks, values, copy) == [0, 1, 1, 1]  # 3 gained, 2.75 for the copy
    assert partition(tasks[:3], [Crossing(0, (1, 2), 2)], copy) == [0, 0, 0]


def test_long_chains_need_no_deep_stack():
    count = 3000
    tasks = [(0.0, inf), *((2.0, 1.0) for _ in range(count)), (0.0, inf)]
    values = [Crossing(i, (i + 1,), 1) for i in range(count + 1)]
    assert partition(tasks, values, copy) == [0, *[1] * count, 0]


def test_what_can_run_nowhere():
    with pytest.raises(ValueError, match="task 1 can run nowhere"):
        partition([(0.0, 1.0), (inf, inf)], [], copy)
    assert partition([], [], copy) == []
