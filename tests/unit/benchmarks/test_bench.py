"""The benchmark harness on a made-up result: tables, errors, peers that are missing."""

import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench():
    return load("bench")


@pytest.fixture(scope="module")
def worker():
    return load("worker")


def result(median, error=1e-7):
    load = {"load_s": 0.375, "first_run_s": 0.125, "warm_load_s": 0.125, "warm_first_run_s": 0.125}
    return {"median_ms": median, "error": error, **load, "peak_mb": 80, "warm_peak_mb": 60}


@pytest.fixture
def report(bench):
    peers = ["ort", "tilewright", "other"]
    fast = {"ort": result(2.0), "tilewright": result(1.0), "other": {"failed": "package 'other' is not installed"}}
    slow = {"ort": result(1.0), "tilewright": result(4.0, 0.5), "other": {"failed": "package 'other' is not installed"}}
    return {
        "machine": bench.machine(),
        "versions": {"ort": "onnxruntime 1"},
        "peers": peers,
        "results": {"a": {"1": fast}, "b": {"1": slow}},
    }


def test_speed_table_has_ratios_and_marks_wrong_results(bench, report):
    lines = bench.speed(report, 1)
    assert lines[2] == "| a | 2 (1.00) | 1 (0.50) | – |"
    assert lines[3] == "| b | 1 (1.00) | 4 (4.00) WRONG | – |"
    assert lines[4] == "| geometric mean of ratios | 1.00 | 1.41 | – |"


def test_markdown_says_what_was_not_measured(bench, report):
    text = bench.markdown(report)
    assert "- other: package 'other' is not installed (a with 1, b with 1)" in text
    assert "| a | 0.50 / 0.25 | 0.50 / 0.25 | – |" in text
    assert "cores" in text and "onnxruntime 1" in text
    assert "code, KB" not in text
    report["results"]["a"]["1"]["tilewright"]["sizes"] = {"code": 12345, "weights": 2_500_000, "arena": 640_000}
    assert "| a | – | 12 / 2.5 / 0.6 | – |" in bench.markdown(report)


def test_report_files_are_written_whole(bench, report, tmp_path):
    bench.store(report, tmp_path / "new", "x")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["x.json", "x.md", "x.svg"]
    picture = ElementTree.fromstring((tmp_path / "new" / "x.svg").read_text())
    texts = [t.text for t in picture.iter() if t.tag.endswith("text")]
    assert {"ort", "tilewright", "a", "b", "0.50", "4.00"} <= set(texts)


@pytest.mark.parametrize(
    ("outputs", "error"),
    [
        ([np.array([1.0, 2.0])], 0.0),
        ([np.array([1.0, 1.0])], 0.5),
        ([np.array([1.0])], float("inf")),
        ([np.array([1.0, np.nan])], float("inf")),
        ([], float("inf")),
    ],
)
def test_error_of(worker, outputs, error):
    assert worker.error_of(outputs, [np.array([1.0, 2.0])]) == error


@pytest.mark.parametrize("peer", sorted(p.stem for p in (FOLDER / "peers").glob("*.py")))
def test_every_peer_keeps_the_protocol(peer):
    text = (FOLDER / "peers" / f"{peer}.py").read_text()
    assert "\ndef version() -> str:" in text
    assert "\ndef load(onnx_path, threads" in text or "\nload = bound.load\n" in text
