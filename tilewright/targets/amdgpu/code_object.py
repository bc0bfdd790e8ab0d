"""Links the kernels of a package to one code object (``.hsaco``) with `ld.lld`, and writes the files of an export."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...program.package import Package
from ...support.errors import CompileError
from ..gpu.files import files
from ..linker import linker
from .stages import AmdgpuKernel

CODE = "model.hsaco"
#: the first LLVM that writes code objects of version 5 by itself; 14 does not know them
LEAST_LINKER = 18
POINTER_BYTES = 8


def exported(package: Package) -> dict[str, bytes]:
    """Every file by name. UsageError if there is no linker."""
    kernels = {s: AmdgpuKernel.from_bytes(package.objects[s]) for s in package.program.symbols}
    told: dict[str, dict[str, Any]] = {}
    for call in package.program.calls:
        if call.symbol in kernels:  # arguments are pointers, one behind the other
            places = [{"offset": i * POINTER_BYTES, "bytes": POINTER_BYTES} for i in range(len(call.args))]
            told[call.symbol] = {"file": CODE, **kernels[call.symbol].to_json(), "arguments": places}
    made = files(package, told)
    return {CODE: linked(k.code for k in kernels.values()), **made}


def linked(objects: Iterable[bytes]) -> bytes:
    """The code object; UsageError if there is no linker or an old one, CompileError for what it says."""
    path = linker("ld.lld", "code for AMD GPUs", "package", LEAST_LINKER)
    with tempfile.TemporaryDirectory(prefix="tilewright-amdgpu-") as name:
        folder, names = Path(name), []
        for i, data in enumerate(objects):
            names.append(f"kernel{i}.o")
            (folder / names[-1]).write_bytes(data)
        # an object's undefined symbols (functions of a library that there is none of) are errors
        command = [path, "-shared", "-z", "defs", "-o", CODE, *names]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"the linker failed: {done.stderr.strip()[:1500]}", stage="package")
        return (folder / CODE).read_bytes()
