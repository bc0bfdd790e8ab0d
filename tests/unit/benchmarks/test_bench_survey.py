"""The survey of operators: its models, and its report."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule.ceilings import Ceilings, Level

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"
MACHINE = Ceilings("m", 1, {"f32": 100e9}, (Level("L3", None, 10e9, 5e9, 8e9),))


@pytest.fixture
def survey(monkeypatch):
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed: pip install tilewright[demo]")
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("bench_survey", FOLDER / "survey.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sizes_follow_from_the_seed(survey):
    a, b, c = (survey.cases(["softmax", "conv3x3"], seed, True) for seed in (3, 3, 4))
    assert [x.doc for x in a.values()] == [x.doc for x in b.values()] != [x.doc for x in c.values()]
    whole = survey.cases(list(survey.FAMILIES), 1, False)
    assert whole.keys() >= a.keys() and len(whole) == sum(count for count, _ in survey.FAMILIES.values())
    assert whole["conv3x3_0"].operations > 0


@pytest.mark.parametrize("name", ["gather_1", "topk_2", "cumsum_1", "reduction_3"])
def test_models_give_what_is_expected(survey, tmp_path, name):
    case = survey.cases([name.partition("_")[0]], 1, False)[name]
    path = survey.prepare(name, case, tmp_path)
    inputs, expected = (dict(np.load(tmp_path / f"{name}.{kind}.npz")) for kind in ("inputs", "expected"))
    got = tw.compile(str(path), threads=1).run(inputs)
    for y, want in zip(got, expected.values(), strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    seconds, limit = survey.ideal(case, path.with_suffix(".expected.npz"), MACHINE)
    assert seconds > 0 and limit == "L3"


def test_report(survey):
    def result(ours, theirs, error=1e-7):
        both = {"ours": {"median_ms": ours, "error": error}, "ort": {"median_ms": theirs, "error": 0.0}}
        return {"1": {"doc": "3 x 4", "ideal_ms": 1.0, "limit": "L3", **both, "ratio": ours / theirs, "of_limit": 0.5}}

    failed = {"doc": "d", "ideal_ms": 1.0, "limit": "L3", "ours": {"failed": "no answer"}, "ort": {"median_ms": 1.0}}
    results = {"softmax_0": result(2.0, 4.0), "softmax_1": result(4.0, 2.0), "topk_0": {"1": failed}}
    results["norm_0"] = result(1.0, 8.0, error=0.1)
    head = {"machine": survey.machine(), "versions": {"ort": "onnxruntime 1"}, "seed": 1}
    text = survey.markdown({**head, "ceilings": {"1": MACHINE.to_json()}, "results": results})
    lines = [line for line in text.split("Every operator:")[1].splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| topk_0", "| norm_0", "| softmax_1", "| softmax_0"]
    assert "no answer" in lines[2] and "WRONG by 1.0e-01" in lines[3]
    assert "| softmax | 2 | 1.00 | 2.00 | 50% |" in text
