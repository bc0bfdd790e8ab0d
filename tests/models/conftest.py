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


class Case:
    """One model on disk: its ONNX file, inputs by name, and PyTorch's outputs by name."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.path = name, folder / f"{name}.onnx"
        self.inputs = dict(np.load(folder / f"{name}.inputs.npz"))
        self.expected = dict(np.load(folder / f"{name}.expected.npz"))


def export(name: str) -> None:
    """Run the exporter in a process of its own: PyTorch stays out of the test process. One at a time: it is large."""
    from filelock import FileLock  # comes with torch

    MODELS.mkdir(parents=True, exist_ok=True)
    script = [sys.executable, str(REPOSITORY / "benchmarks" / "models.py"), "--models", name, "--out", str(MODELS)]
    with FileLock(MODELS / ".lock"):
        if (MODELS / f"{name}.onnx").exists():  # made by another test process meanwhile
            return
        done = subprocess.run(script, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        pytest.fail(f"exporting {name} failed:\n{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def case():
    """``case(name)`` gives the `Case` of a model, exporting it first where needed."""

    def get(name: str) -> Case:
        if not (MODELS / f"{name}.onnx").exists():
            for package in ("torch", "transformers", "onnxscript"):
                pytest.importorskip(package, reason="exporting models needs the `models` extra")
            export(name)
        return Case(name, MODELS)

    return get
