"""Every module imports, and the command line helps, on each Python that is found and has what the core needs.

Others than the one that runs the tests: those called ``python3.10`` and so on, and paths in TILEWRIGHT_TEST_PYTHONS,
with colons between them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

VERSIONS = range(10, 15)
GIVEN = [p for p in os.environ.get("TILEWRIGHT_TEST_PYTHONS", "").split(os.pathsep) if p]
CODE = """
import contextlib, importlib, io, pkgutil, sys
import tilewright
from tilewright.support.errors import TilewrightError
missing = set()
for m in pkgutil.walk_packages(tilewright.__path__, "tilewright."):
    try:
        importlib.import_module(m.name)
    except ModuleNotFoundError as e:
        assert not e.name.startswith("tilewright"), e
        missing.add(e.name)
assert missing <= {"torch", "sympy", "jax", "scipy"}, missing
import typer
from tilewright.cli import main
from tilewright.cli.app import app
for command in ["", *typer.main.get_command(app).commands]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*command.split(), "--help"]) == 0
    assert "Usage" in out.getvalue(), command
"""
NEEDS = "import numpy, onnx, ml_dtypes, llvmlite, torch_mlir, typer, rich"


@pytest.mark.parametrize("name", ["this", *(f"python3.{v}" for v in VERSIONS), *GIVEN])
def test_all_modules_import(name, tmp_path):
    found = sys.executable if name == "this" else shutil.which(name)
    if found is None or (name != "this" and name == f"python3.{sys.version_info[1]}"):
        pytest.skip("not found, or the one that runs the tests")
    env = {**os.environ, "PYTHONPATH": str(Path(tilewright.__file__).parents[1]), "TILEWRIGHT_CACHE": str(tmp_path)}
    env.pop("PYTHONHOME", None)
    if name != "this" and (there := _run(found, NEEDS, env)).returncode:
        pytest.skip(f"{found}: {there.stderr.strip().splitlines()[-1]}")
    done = _run(found, CODE, env)
    assert done.returncode == 0, done.stderr[-3000:]


def _run(python, code, env):
    """What is said to be gone in a later Python is an error in our own modules."""
    flags = ["-W", "error::SyntaxWarning", "-W", "error::DeprecationWarning:tilewright"]
    return subprocess.run([python, *flags, "-c", code], env=env, capture_output=True, text=True, timeout=300)
