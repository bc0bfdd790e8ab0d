"""The exported models, made on demand by benchmarks/models.py and kept in benchmarks/models (ignored by git)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / "benchmarks" / "models"
#: models that tests asked for when they were collected, in their order
_wanted: dict[str, None] = {}


class Case:
    """One model on disk: its ONNX file, inputs by name, and PyTorch's outputs by name. It is exported first where it is
    missing, and with it all others that the tests of this session want: PyTorch takes longer to load than one takes."""

    def __init__(self, name: str) -> None:
        self.name, self.path = name, MODELS / f"{name}.onnx"
        if not self.path.exists():
            for package in ("torch", "transformers", "onnxscript"):
                pytest.importorskip(package, reason="exporting models needs the `models` extra")
            _export(name)
        self.inputs = dict(np.load(MODELS / f"{name}.inputs.npz"))
        self.expected = dict(np.load(MODELS / f"{name}.expected.npz"))


def note_wanted(items: list[pytest.Item]) -> None:
    """Remember the models that are parameters of these tests."""
    for item in items:
        if isinstance(item, pytest.Function) and "case" in item.fixturenames and hasattr(item, "callspec"):
            _wanted.update(dict.fromkeys(v for k, v in item.callspec.params.items() if k == "name"))


def _export(name: str) -> None:
    """Run the exporter in a process of its own: PyTorch stays out of the test process. One at a time: it is large."""
    from filelock import FileLock, Timeout  # comes with torch

    MODELS.mkdir(parents=True, exist_ok=True)
    path = MODELS / f"{name}.onnx"
    while not path.exists():  # or it is made by another test process meanwhile
        try:
            with FileLock(MODELS / ".lock", timeout=0.5):
                if not path.exists():
                    _run_exporter([n for n in dict.fromkeys((name, *_wanted)) if not (MODELS / f"{n}.onnx").exists()])
        except Timeout:
            continue


def _run_exporter(names: list[str]) -> None:
    script = [sys.executable, str(REPOSITORY / "benchmarks" / "models.py"), "--models", ",".join(names)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*script, "--out", str(MODELS)], capture_output=True, text=True, env=environment)
    if not (MODELS / f"{names[0]}.onnx").exists():
        pytest.fail(f"exporting {names[0]} failed:\n{done.stderr}", pytrace=False)
