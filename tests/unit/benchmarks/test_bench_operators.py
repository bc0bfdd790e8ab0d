"""The benchmark of single operators: its models, what it expects of them, and its report."""

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
def operators(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("bench_operators", FOLDER / "operators.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["matmul", "conv", "depthwise", "first", "layer_norm", "softmax", "attention"])
def test_models_give_what_is_expected(operators, tmp_path, monkeypatch, name):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")
    small = {
        "matmul": lambda: operators.matmul(3, 8, 16, ""),
        "conv": lambda: operators.conv(4, 6, 5, 3, ""),
        "depthwise": lambda: operators.conv(4, 4, 5, 3, "", group=4),
        "first": lambda: operators.conv(3, 4, 8, 7, "", stride=2),
        "layer_norm": lambda: operators.layer_norm(3, 16),
        "softmax": lambda: operators.softmax(3, 16),
        "attention": lambda: operators.attention(2, 6, 4),
    }
    monkeypatch.setitem(operators.OPERATORS, name, small[name]())
    path = operators.prepare(name, tmp_path)
    inputs, expected = (dict(np.load(tmp_path / f"{name}.{kind}.npz")) for kind in ("inputs", "expected"))
    (got,) = tw.compile(str(path), threads=1).run(inputs)
    np.testing.assert_allclose(got, expected["y"], rtol=1e-4, atol=1e-4)
    read, written = operators.traffic(name, tmp_path)
    assert written == got.nbytes and read >= sum(v.nbytes for v in inputs.values())


def test_report(operators):
    peers = {
        "tilewright_bound": {"median_ms": 2.0, "of_ceiling": 0.5, "error": 1e-7},
        "ort_bound": {"median_ms": 4.0, "of_ceiling": 0.25, "error": 1e-7},
        "openvino": {"failed": "package 'openvino' is not installed"},
    }
    result = {"ideal_ms": 1.0, "limit": "f32 arithmetic", "peers": peers}
    kernel = {"symbol": "k", "names": ["n"], "calls": 2, "seconds": 0.001, "share": 0.5, "gflops": 7.0}
    kernels = [kernel | {"efficiency": 0.5, "limit": "L2"}, kernel | {"share": 0.001, "efficiency": None, "limit": ""}]
    report = {
        "machine": operators.machine(),
        "versions": {"ort_bound": "onnxruntime 1"},
        "peers": list(peers),
        "ceilings": {"1": MACHINE.to_json()},
        "results": {"matmul_1024": {"1": result}},
        "networks": {"net": {"1": {"seconds": 0.002, "kernels": kernels}}},
    }
    text = operators.markdown(report)
    assert "| matmul_1024 | 1024 x 1024 x 1024 | f32 arithmetic | 1 | 2 | 50% | 92% | 4 (0.50) | – |" in text
    assert "Peak 100.0 GFLOP/s; GB/s reading / copying: L3 10 / 8." in text
    assert "| k | n | 2 | 1.000 | 50.0% | 7 | 50% | L2 |" in text and text.count("| k |") == 1


def test_typical_takes_medians(operators):
    probes = [
        Ceilings("m", 1, {"f32": f}, (Level("L3", None, f, 2 * f, 3 * f),), quiet)
        for f, quiet in ((1, 1), (9, 1), (2, 0))
    ]
    found = operators.typical(probes)
    assert found.compute["f32"] == 2 and found.levels[0] == Level("L3", None, 2, 4, 6) and not found.quiet
