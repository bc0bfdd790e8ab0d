"""Some of ONNX's node tests with open dimensions; `make conformance-open` runs all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from open_suite import Result, reason

pytest.importorskip("onnxruntime", reason="it computes what the reference evaluator does not")


def test_every_ninetieth_node_test_with_all_dimensions_open():
    script = Path(__file__).with_name("run_open.py")
    command = [sys.executable, script, "--sample", "90", "--modes", "all", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    (passed,) = re.findall(r"all: \d+ tests: (\d+) pass", done.stdout)
    assert int(passed) >= 10, done.stdout


def test_tests_that_need_what_open_dimensions_once_lacked():
    """Tables of open length, parts that the last one is smaller of, updates anywhere, numbers that are no integers."""
    names = "eyelike_with_dtype tril_neg split_1d_uneven_split_opset18 scatter_elements_with_axis constant_pad and4d"
    script = Path(__file__).with_name("run_open.py")
    command = [sys.executable, script, *(f"test_{n}" for n in names.split()), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert "first: 6 tests: 6 pass" in done.stdout, done.stdout + done.stderr[-2000:]
    assert "all: 6 tests: 6 pass" in done.stdout, done.stdout


def test_reasons_have_no_numbers_and_names():
    text = "UnsupportedError: the model cannot be compiled for all sizes of d0 at once: whether d0 > 1\n  stage: import"
    assert reason(Result("test_x", "X", "all", "refused", text)) == "whether SIZE > N"
