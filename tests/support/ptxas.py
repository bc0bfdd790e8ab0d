"""NVIDIA's assembler, where it is installed: what a kernel takes on a GPU that is not here."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Taken:
    """Registers of a thread; bytes that were spilled, of its stack, and of shared memory that the kernel declares;
    whether the assembler runs products of groups of warps one after the other, or waits for them on its own account."""

    registers: int
    spilled: int
    stack: int
    shared: int
    serialized: bool = False


@lru_cache(maxsize=1)
def find() -> str | None:
    """``ptxas`` on the path, or in a package ``nvidia-cuda-nvcc``."""
    if found := shutil.which("ptxas"):
        return found
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return str(path)
    return None


def assembled(ptx: str, sm: str, folder: Path) -> Taken:
    """What ``ptxas`` says of a kernel; skips the test where there is none."""
    program = find()
    if program is None:
        pytest.skip("ptxas is not installed: pip install nvidia-cuda-nvcc")
    path = folder / f"kernel.{sm}.ptx"
    path.write_text(ptx)
    command = [program, "-v", f"-arch={sm}", str(path), "-o", str(path.with_suffix(".cubin"))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"ptxas does not accept the kernel:\n{done.stderr}\n{ptx}")

    def number(pattern: str) -> int:
        found = re.search(pattern, done.stderr)
        return int(found[1]) if found else 0

    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    stack, shared = number(r"(\d+) bytes stack frame"), number(r"(\d+) bytes smem")
    serialized = any(x in done.stderr for x in ("wgmma.mma_async instructions are serialized", "is injected in around"))
    return Taken(number(r"Used (\d+) registers"), spilled, stack, shared, serialized)
