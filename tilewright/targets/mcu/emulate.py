"""Runs a package on a simulated board in QEMU: its outputs, and the instructions of every kernel call."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...program.package import Package
from ...program.program import Program
from ...support.errors import CheckError, UsageError
from ...support.options import get
from ..base import CallCount, Emulated
from ..c.library import ERRORS, layout
from .image import MARKER, build
from .machines import McuDescription


def simulator(machine: McuDescription) -> str:
    """The path of the simulator; UsageError if it is not installed."""
    name = machine.board.command[0]
    found = shutil.which(name)
    if found is None:
        package = {"qemu-system-arm": "qemu-system-arm"}.get(
            name, "qemu-system-misc" if "system" in name else "qemu-user"
        )
        raise UsageError(
            f"emulation of {machine.name} needs {name}, which was not found",
            stage="emulate",
            hint=f"apt install {package}",
        )
    return found


def emulate(package: Package, machine: McuDescription, runs: Sequence[Sequence[np.ndarray]]) -> Emulated:
    """Run the model once for each list of inputs; instructions are those of the last run."""
    program_path = simulator(machine)
    lay = layout(package)
    with tempfile.TemporaryDirectory(prefix="tilewright-emulate-") as name:
        folder = Path(name)
        image, sections = build(package, machine, lay, folder)
        given = struct.pack("<I", len(runs)) + b"".join(np.ascontiguousarray(a).tobytes() for run in runs for a in run)
        (folder / "inputs").write_bytes(given)
        command = [program_path, *machine.board.command[1:], image.name]
        limit = get("TILEWRIGHT_TIMEOUT")
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            raise CheckError(
                f"the emulated program did not end within {limit} s (TILEWRIGHT_TIMEOUT)", stage="emulate"
            ) from None
        results = folder / "outputs"
        data = results.read_bytes() if results.exists() else b""
    if len(data) < 4 or struct.unpack("<I", data[-4:])[0] != MARKER:
        words = done.stderr.strip()[:500] or f"exit code {done.returncode}"
        raise CheckError(f"the emulated program ended early: {words}", stage="emulate")
    return _results(package.program, machine, data[:-4], len(runs), sections)


def _results(program: Program, machine: McuDescription, data: bytes, runs: int, sections: dict[str, int]) -> Emulated:
    stamps = len(program.calls) + 1
    at, outputs, ticks = 0, [], np.zeros(stamps, np.int64)
    for _ in range(runs):
        code = struct.unpack_from("<i", data, at)[0]
        if code:
            raise CheckError(f"the model returned {ERRORS[code][0]}: {ERRORS[code][1]}", stage="emulate")
        ticks = np.frombuffer(data, np.uint32, stamps, at + 4).astype(np.int64)
        at += 4 + 4 * stamps
        run = []
        for t in program.outputs:
            run.append(np.frombuffer(data, t.numpy_dtype, int(np.prod(t.shape)), at).reshape(t.shape).copy())
            at += t.nbytes
        outputs.append(run)
    board = machine.board
    if not board.clock or not runs:
        return Emulated(outputs, machine.name, sections=sections)
    wrap = 1 << 24 if board.clock == "systick" else 1 << 32
    counts = [round(int(d) % wrap * board.tick) for d in np.diff(ticks)]
    calls = tuple(CallCount(c.symbol, c.names, n) for c, n in zip(program.calls, counts, strict=True))
    return Emulated(outputs, machine.name, sum(counts), calls, sections)
