"""AlgorithmRaces to compute convolutions: what wins in the model is kept, and compilation uses it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver.kernel_key import layer_key
from tilewright.driver.tuning_database import Database, Result
from tilewright.graph.choose_winograd import Layer, choose
from tilewright.graph.passes import parse_pipeline
from tilewright.schedule.machine import Machine
from tilewright.support.errors import UsageError
from tilewright.targets.base import find
from tilewright.tune import recheck as recheck_module
from tilewright.tune.algorithm_choice import AlgorithmRaces
from tilewright.tune.measure import machine_of
from tilewright.tune.recheck import recheck

CONV = """
func.func @main(%x: tensor<1x16x8x8xf32>) -> tensor<1x16x8x8xf32> {
  %w = "tw.constant"() {value = dense<0.125> : tensor<16x16x3x3xf32>} : () -> tensor<16x16x3x3xf32>
  %0 = "tw.conv"(%x, %w) {groups = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>,
       dilations = array<i64: 1, 1>, layout = "nchw"}
       : (tensor<1x16x8x8xf32>, tensor<16x16x3x3xf32>) -> tensor<1x16x8x8xf32>
  return %0 : tensor<1x16x8x8xf32>
}
"""
LAYER = Layer(1, 8, 8, 16, 16)
OPTIONS = {"target": "cpu", "threads": 1, "inputs": None}
OTHER = next(w for w in ("2", "4") if w != choose(LAYER, Machine().winograd_costs))


@pytest.fixture
def ways(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_JOBS", "1")
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "t.sqlite"))
    target = find("cpu")
    return AlgorithmRaces(CONV, OPTIONS, Database(tmp_path / "t.sqlite"), machine_of(target, target.describe(), 1))


def layout_text(**options) -> str:
    return tw.compile(CONV, stop_after="layout", threads=1, **options).text()


def pretend(monkeypatch, times):
    """Races in which a way takes `times[way]` (one number a race) of the estimated one's time."""
    left = {way: list(numbers) for way, numbers in times.items()}
    monkeypatch.setattr(AlgorithmRaces, "_race", lambda self, layer, way: (left[way].pop(0), 1e-3))


def test_a_way_that_wins_twice_is_what_compilation_uses(ways, monkeypatch):
    others = {w: [1.2] for w in ("direct", "2", "4") if w not in (choose(LAYER, Machine().winograd_costs), OTHER)}
    pretend(monkeypatch, {OTHER: [0.8, 0.9], **others})
    (report,) = ways.run(None, None)
    assert (report.way, report.ratio, ways.found) == (OTHER, 0.9, {str(LAYER): OTHER})
    assert f"tile = {OTHER}" in layout_text() and f"tile = {OTHER}" not in layout_text(tuned=False)
    assert report.layer.described(OTHER) in str(tw.compile(CONV, threads=1).explain())
    again = AlgorithmRaces(CONV, OPTIONS, ways.database, ways.machine)  # nothing is raced a second time
    assert [r.way for r in again.run(None, None)] == [OTHER] and again.trials == 0


def test_a_way_that_wins_once_is_not(ways, monkeypatch):
    pretend(monkeypatch, {w: [0.9, 0.99] for w in ("direct", "2", "4")})
    assert ways.run(None, None) == [] and ways.found == {}
    assert layout_text() == layout_text(tuned=False)


def test_races_measure_and_keep_to_their_number(ways):
    ways.run(1, None)
    task = ways.database.task(layer_key(LAYER), "conv3x3 way", ways.machine)
    (measured,) = ways.database.measurements(task)
    assert ways.trials == 1 and measured.ratio > 0 and measured.status == "ok"
    assert ways.database.samples(ways.machine) == []  # nothing for the cost model


def test_ways_that_make_the_model_slower_are_taken_back(ways, monkeypatch):
    task = ways.database.task(layer_key(LAYER), "conv3x3 way", ways.machine)
    ways.database.record(task, Result({"way": OTHER}, OTHER, "", 1e-3, 2e-3))
    monkeypatch.setattr(recheck_module, "by_round", lambda plain, tuned: ({"": np.full(9, 1.2)}, 1.0, 1.2))
    assert recheck(CONV, OPTIONS, ways.database, ways.machine).withdrawn == [LAYER.described(OTHER)]
    assert ways.database.result(layer_key(LAYER).kernel, ways.machine) is None


def test_a_model_whose_calls_are_slower_is_taken_back(ways, monkeypatch):
    """Each kernel seems as fast as untuned, but whole calls are 1% slower, in other executables again: that is more
    than their noise."""
    task = ways.database.task(layer_key(LAYER), "conv3x3 way", ways.machine)
    for one, again, withdrawn in ((1.01, 1.01, [LAYER.described(OTHER)]), (1.01, 0.99, []), (1.003, 1.01, [])):
        found = iter((one, again))
        ways.database.record(task, Result({"way": OTHER}, OTHER, "", 1e-3, 2e-3))
        monkeypatch.setattr(recheck_module, "by_round", lambda plain, tuned: ({"": np.ones(9)}, 1.0, 1.0))
        monkeypatch.setattr(recheck_module, "whole_calls", lambda plain, tuned, f=found: np.full(9, next(f)))
        assert recheck(CONV, OPTIONS, ways.database, ways.machine).withdrawn == withdrawn


def test_all_ways_give_the_same_numbers(ways):
    from tilewright.driver.compiler import compile_state

    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)
    found = []
    for way in ("direct", "2", "4"):
        _, model = compile_state(CONV, algorithms={str(LAYER): way}, **OPTIONS)
        found.append(model(x)[0])
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5)


@pytest.mark.parametrize("text", ["1x7x7x512x512:3", "1x7x7:2", "direct"])
def test_a_wrong_way_is_one_clear_error(text):
    with pytest.raises(UsageError, match="no way for a layer"):
        parse_pipeline(f"winograd{{algorithms={text}}}")[0].run(tw.compile(CONV, stop_after="simplify"))
