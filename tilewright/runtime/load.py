"""`tilewright.load`: an executable from a file, without a compiler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..program.package import MAIN, load_entries, open_package, readable
from ..support import providers
from ..targets import base
from .dynamic_package import load as load_dynamic
from .executable import Executable
from .open_executable import make

if TYPE_CHECKING:
    from .dynamic import DynamicExecutable
    from .entries import MultiExecutable


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    copy: bool = False,
    sha256: str | None = None,
    chip: str | os.PathLike[str] | None = None,
) -> Executable | DynamicExecutable | MultiExecutable:
    """Load a package that `save` wrote; a `MultiExecutable` if it has several entries. Needs no model and no
    compilation, but for new shapes of dynamic models.

    `threads`: None takes those that it was compiled with, no more than there are here (TILEWRIGHT_THREADS, else the
    usable cores).

    A package is native code that runs with your rights, like a program: load only what comes from where you trust. With
    `sha256`, the hexadecimal SHA-256 of the file as it was made, other bytes are refused before anything of them is
    used.

    Weights stay in the file, memory-mapped, and processes share them. So a file in use must not be overwritten: write
    another one and rename it over the old one (`save` does). With `copy`, and with `sha256`, the file is read into
    memory and not used any more.

    What was made for a chip that a Python file describes holds a digest of that file and never runs one: where the
    chip has a part in the program, give the file as `chip`.

    PackageError: not a package, damaged, not for this machine, not the file with that `sha256`, or for a chip that is
    not given.

        model = tw.load("model.tw", sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    """
    if chip is not None:
        providers.ask("chip_from_file")(os.fspath(chip))
    file = open_package(path, copy=copy, sha256=sha256)
    dynamic = load_dynamic(file, threads, base.check)
    if dynamic is not None:
        return dynamic
    packages = load_entries(file, base.check)
    with readable(file.path):
        if list(packages) == [MAIN]:
            return make(packages[MAIN], threads)
        from .entries import MultiExecutable

        return MultiExecutable(packages, threads)
