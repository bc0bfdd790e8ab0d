"""Runs generated C in this process: built with the system's C compiler to a shared library, called through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...program.package import Package
from ...support.aligned import address, aligned_empty
from ...support.errors import PackageError, UsageError
from ..base import Context, ProgramRunner
from .library import CInterface, files, layout

FLAGS = ("-std=c99", "-O2", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C compiler: the variable CC, else the first that is installed."""
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    return next((n for n in names if n and shutil.which(n.split()[0])), None)


class CRunner(ProgramRunner):
    """A package's C code; it is compiled when it is first run, so that code can be made where no C compiler is."""

    threads = 1

    def __init__(self, package: Package) -> None:
        self.package, self.layout = package, layout(package)
        self._function: Any = None

    def context(self) -> CContext:
        if self._function is None:
            self._function = build(self.package, self.layout)
        return CContext(self._function, self.layout)

    def timed(self) -> CRunner:
        raise UsageError(
            "C code has no clock: it cannot be profiled here", stage="run", hint="use the tools of your compiler"
        )


class CContext(Context):
    """An arena for one run at a time; `resize` says for which sizes of open dimensions."""

    def __init__(self, function: Callable[..., int], lay: CInterface) -> None:
        self.function, self.layout = function, lay
        self.sizes: list[int] = []
        self.size = lay.align if lay.open else lay.arena
        self.arena = aligned_empty(self.size, max(64, lay.align))

    def resize(self, table: int, arena: int) -> None:
        """The sizes are at the beginning of the table."""
        assert self.layout.open is not None
        count, align = len(self.layout.open.dims), self.layout.align
        self.sizes = list((ctypes.c_int64 * count).from_address(table))
        self.size = max(arena, align)
        if self.size > self.arena.nbytes:
            self.arena = aligned_empty(self.size, max(64, align))

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: object = None) -> None:
        code = self.function(address(self.arena), self.size, *self.sizes, *inputs, *outputs)
        if code:
            name, text = self.layout.errors[code]
            raise PackageError(f"the model returned {name}: {text}", stage="run")


def build(package: Package, lay: CInterface) -> Callable[..., int]:
    """The run function as a ctypes function; PackageError if there is no compiler or it fails."""
    cc = compiler()
    if cc is None:
        raise PackageError(
            "running this code needs a C compiler, and none was found",
            stage="load",
            hint="install gcc or clang, or name one in the environment variable CC",
        )
    folder = tempfile.mkdtemp(prefix="tilewright-c-")
    for name, data in files(package, {}).items():
        (Path(folder) / name).write_bytes(data)
    out = Path(folder) / "model.so"
    command = [*cc.split(), *FLAGS, "-o", str(out), f"{lay.name}.c", f"{lay.name}_weights.c", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise PackageError(
            f"the C compiler failed: {done.stderr.strip()[:2000]}", stage="load", hint=f"the files are in {folder}"
        )
    library = ctypes.CDLL(str(out))
    shutil.rmtree(folder)  # the loaded library stays mapped
    function = getattr(library, f"{lay.name}_run")
    count = len(lay.program.inputs) + len(lay.program.outputs)
    sizes = [ctypes.c_int32] * len(lay.open.dims if lay.open else ())
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *sizes, *[ctypes.c_void_p] * count]
    function.restype = ctypes.c_int
    weakref.finalize(function, lambda keep: None, library)
    return function
