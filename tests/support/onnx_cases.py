"""The backend tests of the installed onnx package. Those of operators are computed by onnx's reference, which takes
seconds: once for all processes of a run, kept in the folder of the kernel cache."""

from __future__ import annotations

import fcntl
import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any


def load_cases(kind: str) -> list[Any]:
    """The test cases of a kind: node, simple, pytorch-converted or pytorch-operator."""
    return _node_cases() if kind == "node" else _made(kind)


def _made(kind: str) -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite makes its data with NumPy code that overflows
        return load_model_tests(kind=kind)


_kept: list[Any] = []


def _node_cases() -> list[Any]:
    if not _kept:
        folder = os.environ.get("TILEWRIGHT_CACHE")
        _kept.extend(_made("node") if folder is None else _shared(Path(folder)))
    return _kept


def _shared(folder: Path) -> list[Any]:
    """What another process of this run has made, or made now and kept for the others."""
    import numpy
    import onnx

    python = "".join(map(str, sys.version_info[:2]))
    path = folder / f"onnx-{onnx.__version__}-numpy-{numpy.__version__}-python{python}.pickle"
    folder.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return pickle.loads(path.read_bytes())
        made = _made("node")
        new = path.with_suffix(".new")
        new.write_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
        new.replace(path)
        return made
