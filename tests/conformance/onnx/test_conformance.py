"""Every tenth test of ONNX's own suite, natively compiled; `make conformance` runs all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conformance_suite import cases
from conformance_table import KNOWN_FAILURES, KNOWN_ON, NOT_COMPARABLE, fnmatchcase


def test_every_tenth_test_of_the_suite():
    script = Path(__file__).with_name("run.py")
    done = subprocess.run(
        [sys.executable, script, "--sample", "10", "--jobs", "1"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_every_pattern_of_the_tables_is_used():
    names = [case.name for _, case in cases()]
    tables = (KNOWN_FAILURES, NOT_COMPARABLE, *KNOWN_ON.values())
    assert not [p for table in tables for p in table if not any(fnmatchcase(n, p) for n in names)]
