"""How much code a model passes through: files and lines of the package that compiling and running it imports.

    python -m tests.support.way_of_a_model examples/digits/digits.onnx

Prints both for that model, and then for the whole package.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import tilewright as tw

PACKAGE = Path(tw.__file__).parent


def counted(files: list[Path]) -> str:
    lines = sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)
    return f"{len(files)} files {lines} lines"


def way(model: str) -> list[Path]:
    """The files that one process imports in which everything is done."""
    os.environ.update(TILEWRIGHT_COMPILE="inprocess", TILEWRIGHT_JOBS="1")
    run = tw.compile(model, cache=False)
    run(*(np.zeros([1 if isinstance(d, str) else d for d in i.shape], "f4") for i in run.inputs))
    modules = [m for name, m in list(sys.modules.items()) if name.split(".")[0] == "tilewright"]
    return sorted({Path(m.__file__) for m in modules if getattr(m, "__file__", None)})


if __name__ == "__main__":
    print(counted(way(sys.argv[1])))
    print(counted(sorted(PACKAGE.rglob("*.py"))))
