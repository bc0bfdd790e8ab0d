"""The benchmark of GPUs on a made-up result, and its kernels at small sizes on the processor."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def load(name, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"gpu_bench_{name}", FOLDER / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(ms, error=1e-6):
    return {"min_ms": ms, "runs": 3, "error": error, "load_s": 1.0, "first_run_s": 0.5}


def test_report(monkeypatch):
    gpu = load("gpu", monkeypatch)
    rows = [
        {"name": "matmul", "bound": "peer", "ours_us": 2.0, "torch_us": 1.0, "gflops": 5.0, "gbytes": 7.0, "part": 0.5},
        {"name": "attention", "bound": "memory", "failed": "UnsupportedError: no"},
    ]
    results = {
        "a": {"gpu_cuda": result(1.0), "gpu_torch": result(3.0), "gpu_torch_compile": result(2.0)},
        "b": {"gpu_cuda": result(1.0, 0.5), "gpu_torch": {"failed": "no"}, "gpu_torch_compile": {"failed": "no"}},
        "c": {"gpu_cuda": {"failed": "TilewrightError: no room\nhint"}},
    }
    results["c"] |= {"gpu_torch": {"failed": "no"}, "gpu_torch_compile": {"failed": "never"}}
    report = {
        "machine": gpu.bench.machine(),
        "devices": {"cuda": "a GPU"},
        "missing": {"opencl": "no driver"},
        "models": list(results),
        "results": results,
        "kernels": {"target": "cuda", "rows": rows},
    }
    text = gpu.markdown(report)
    assert "| a | 1 | 3 | 2 | 0.50 | 1.0 + 0.5 | 1e-06 |" in text
    assert "| b | 1 | – | – | – | 1.0 + 0.5 | 5e-01 WRONG |" in text
    assert "| c | failed: TilewrightError: no room | – | – | – | – | – |" in text
    assert text.count("- PyTorch: no\n") == 1 and "- torch.compile: never" in text
    assert "| matmul | 2 | 1 | 5 | 7 | peer | 0.50 |" in text and "failed: UnsupportedError: no" in text
    assert "There is no such device here: no driver. With one this measures" in text
    del report["devices"]["cuda"]
    report["missing"]["cuda"] = "no GPU"
    assert "cuBLAS (goal: at least 0.90 of its speed)" in gpu.markdown(report)


def test_devices_that_are_missing_are_told(monkeypatch):
    gpu = load("gpu", monkeypatch)
    from tilewright.targets.cuda import driver

    monkeypatch.setattr(driver, "_NAMES", ("libtilewright-no-such-driver.so",))
    there, missing = gpu.devices(["cuda"])
    assert not there and "none was found" in missing["cuda"]


def test_kernels_are_measured_in_turns(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")
    kernels = load("gpu_kernels", monkeypatch)
    monkeypatch.setattr(kernels, "TURNS", 1)
    monkeypatch.setattr(kernels, "RUNS", 2)
    cases = kernels.cases(128)
    assert [c.bound for c in cases] == ["peer"] * 3 + ["memory"] * 3
    for case in (cases[0], cases[2]):
        row = kernels.measure(case, "cpu", "cpu", 1e9)
        assert row["part"] > 0 and row["ours_us"] > 0 and row["gflops"] > 0
    assert row["error"] < 0.01
    monkeypatch.setattr(kernels, "TOLERANCE", 0.0)
    assert "the results differ by" in kernels.measure(cases[0], "cpu", "cpu", 1e9)["failed"]
    assert "no such target" in kernels.measure(cases[0], "no such target", "cpu", 1e9)["failed"]
