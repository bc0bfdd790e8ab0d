"""The number of threads of a run follows what waiting they had; the result does not depend on it."""

import random
import threading
from itertools import pairwise

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.cpu import active_threads as module
from tilewright.targets.cpu.active_threads import FIRST, LAST, STRIKES, Team

MODEL = """
func.func @main(%x: tensor<67x96xf32>, %w: tensor<96x160xf32>) -> (tensor<67x160xf32>, tensor<67xf32>) {
  %0 = "tw.matmul"(%x, %w) : (tensor<67x96xf32>, tensor<96x160xf32>) -> tensor<67x160xf32>
  %1 = "tw.softmax"(%0) {axis = 1 : i64} : (tensor<67x160xf32>) -> tensor<67x160xf32>
  %2 = "tw.reduce_sum"(%1) {axes = array<i64: 1>, keepdims = false} : (tensor<67x160xf32>) -> tensor<67xf32>
  %3 = "tw.relu"(%0) : (tensor<67x160xf32>) -> tensor<67x160xf32>
  return %3, %2 : tensor<67x160xf32>, tensor<67xf32>
}
"""


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [0.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


def slow(team, runs=1):
    return [team.after(100, 100 * (team.size - 1)) for _ in range(runs)]


def good(team, runs=1):
    return [team.after(100, 0) for _ in range(runs)]


def test_rare_slow_runs_change_nothing(clock):
    team = Team(4)
    for _ in range(100):
        assert [*slow(team), *good(team), *slow(team), *good(team)] == [4] * 4
        assert not team.busy


def test_short_waits_are_no_slow_runs():
    team = Team(4)  # a thread that stands for a quarter of the run makes three wait for a quarter
    assert [team.after(100, 75) for _ in range(10)] == [4] * 10
    assert [team.after(100, 76) for _ in range(STRIKES)] == [4] * (STRIKES - 1) + [3]


def test_a_neighbour_that_stays_and_goes(clock):
    team = Team(2)
    slow(team, STRIKES)
    assert team.size == 1 and team.busy
    patience, tries = FIRST, []
    for _ in range(1000):  # the neighbour stays: tried in vain, ever more rarely
        clock[0] += 0.01
        if team.after(0, 0) == 2:
            tries.append(clock[0])
            assert slow(team, 2) == [2, 1]
    gaps = np.diff([0.0, *tries])
    assert gaps[0] == pytest.approx(patience, abs=0.011) and gaps[-1] == pytest.approx(LAST, abs=0.02)
    assert all(b >= a for a, b in pairwise(gaps))
    clock[0] += LAST  # it has gone
    assert good(team, 3) == [2] * 3
    assert not team.busy
    slow(team, STRIKES)
    clock[0] += FIRST
    assert good(team) == [2]


def test_long_trials_are_rare(clock):
    """Runs of 0.1 s beside a neighbour that stays: at most about a tenth of the time goes into trials."""
    team, tried = Team(2), 0
    slow(team, STRIKES)
    for _ in range(100):
        clock[0] += 0.1
        tried += team.size == 2
        (slow if team.size == 2 else good)(team)
    assert team.busy and tried <= 2 * (1 + 10 / 2)


def test_waking_up_is_not_held_against_a_thread(clock):
    team = Team(2)
    slow(team, STRIKES)
    clock[0] += FIRST
    assert [*good(team), *slow(team), *good(team, 10)] == [2] * 12
    assert not team.busy


def test_a_single_thread_stays():
    assert [Team(1).after(0, 0) for _ in range(5)] == [1] * 5


@pytest.fixture(scope="module")
def model():
    return tw.compile(MODEL, threads=5)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(np.float32) for s in ((67, 96), (96, 160))]


def in_teams(model, sizes, inputs):
    """The outputs with teams of these sizes, one run after the other in one context."""
    context = model._take()
    try:
        for size in sizes:
            results, addresses = model._outputs(None, inputs, [])
            context._size.value = size
            context.run([a.ctypes.data for a in inputs], addresses)
            yield [r.tobytes() for r in results]
    finally:
        context._size.value = context.runner.threads
        model._give(context)


def test_every_team_gives_the_same_bits(model, inputs):
    expected = [r.tobytes() for r in model(*inputs)]
    assert list(in_teams(model, range(1, 6), inputs)) == [expected] * 5


def test_teams_that_change_all_the_time(model, inputs):
    expected = [r.tobytes() for r in model(*inputs)]
    failed = []

    def work(seed):
        sizes = random.Random(seed).choices(range(1, 6), k=300)
        failed.extend(r for r in in_teams(model, sizes, inputs) if r != expected)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=300)
        assert not t.is_alive()
    assert not failed


def test_runs_report_long_waits(model, inputs):
    context = model._take()
    try:
        results, addresses = model._outputs(None, inputs, [])
        context.run([a.ctypes.data for a in inputs], addresses)
        del results
        assert context._ran.value > 0
        assert 0 <= context._waited.value <= 5 * context._ran.value
    finally:
        model._give(context)
