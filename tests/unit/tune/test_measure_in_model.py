"""Races of candidates in the model: what wins there is kept, what wins only alone is not."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.tuning_database import Database
from tilewright.support.options import Options
from tilewright.targets.base import find
from tilewright.tune import measure_in_model as inplace
from tilewright.tune.measure import Meter
from tilewright.tune.measure_in_model import InModel
from tilewright.tune.tasks import extract_tasks
from tilewright.tune.tuner import Tuner

pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install tilewright[tune]")

MATMUL = """
func.func @main(%x: tensor<16x32xf32>, %w: tensor<32x48xf32>) -> tensor<16x48xf32> {
  %0 = "tw.matmul"(%x, %w) : (tensor<16x32xf32>, tensor<32x48xf32>) -> tensor<16x48xf32>
  return %0 : tensor<16x48xf32>
}
"""
OPTIONS = {"target": "cpu", "threads": 1, "inputs": None}


@pytest.fixture
def tuner(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    tasks = extract_tasks(MATMUL, tuned=False, **OPTIONS)
    meter = Meter(find("cpu"), 1, jobs=1, seconds=0.01)
    made = Tuner(tasks, Options(threads=1, jobs=1), None, Database(tmp_path / "t.sqlite"), 3, meter=meter)
    monkeypatch.setattr(Tuner, "_promote", lambda *_: None)  # who wins alone, and when, is a matter of times
    made.run(8)
    # whatever the times alone were: the first is the most promising
    search = made.searches[0]
    for n, (_, c) in enumerate(search.ranked[:]):
        search.correct(c, 0.9 + 0.01 * n)
    yield made
    made.meter.close()


def pretend(monkeypatch, ratio):
    """Races in which the tuned kernels take `ratio(number of the race)` times as long."""
    seen = []

    def rounds(plain, tuned):
        seen.append(ratio(len(seen)))
        return {c.symbol: np.full(9, seen[-1]) for c in tuned.package.program.calls}, 1.0, seen[-1]

    monkeypatch.setattr(inplace, "by_round", rounds)
    return seen


def test_what_wins_in_the_model_is_kept(tuner, monkeypatch):
    seen = pretend(monkeypatch, lambda n: 0.8)
    best = next(c for _, c in tuner.searches[0].ranked if c is not tuner.searches[0].space.default)
    InModel(MATMUL, OPTIONS, tuner).run(inf, most=1)
    assert len(seen) == 2  # once, and once more to be sure
    result = tuner.database.result(tuner.tasks[0].key.kernel, tuner.machine)
    assert result is not None and result.digest == best.digest and result.speedup == pytest.approx(1.25)
    assert tuner.report.tasks[0].ratio == pytest.approx(0.8) and tuner.incumbents[0] is best
    monkeypatch.setenv("TILEWRIGHT_DB", str(tuner.database.path))
    assert "tuned 1.25x" in tw.compile(MATMUL, threads=1).explain()


def test_what_does_not_win_twice_is_not_kept(tuner, monkeypatch):
    seen = pretend(monkeypatch, lambda n: 0.8 if n == 0 else 1.1)
    before = tuner.database.result(tuner.tasks[0].key.kernel, tuner.machine)
    InModel(MATMUL, OPTIONS, tuner).run(inf, most=1)
    assert len(seen) == 2
    assert tuner.database.result(tuner.tasks[0].key.kernel, tuner.machine) == before


def test_the_search_learns_what_candidates_take_in_the_model(tuner, monkeypatch):
    pretend(monkeypatch, lambda n: 1.0 + 0.1 * n)
    races = InModel(MATMUL, OPTIONS, tuner)
    races.run(inf, most=3)
    assert len(races.ratios) == 3
    search = tuner.searches[0]
    for r, c in search.ranked:
        if (0, c.digest) in races.ratios:
            assert r == pytest.approx(races.ratio(0, c))
            kept = next(m for m in tuner.database.measurements(tuner.numbers[0]) if m.digest == c.digest)
            assert kept.ratio == pytest.approx(r)
