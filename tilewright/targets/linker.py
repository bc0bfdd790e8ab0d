"""Finds LLVM's linkers (``ld.lld``, ``wasm-ld``) under the names that distributions give them."""

from __future__ import annotations

import re
import shutil
import subprocess

from ..support.errors import UsageError

_VERSIONS = (19, 18, 17, 16, 20, 21, 22)


def linker(name: str, needed_for: str, stage: str, least: int = 0) -> str:
    """The path of ``ld.lld`` or ``wasm-ld``, plain or with a version; UsageError if none is installed, or none of LLVM
    `least` or newer."""
    found = [path for n in (name, *(f"{name}-{v}" for v in _VERSIONS)) if (path := shutil.which(n))]
    old = {}
    for path in found:
        version = version_of(path) if least else None
        if version is None or version >= least:
            return path
        old[path] = version
    if not old:
        why, package = f"{needed_for} needs the linker {name}, which was not found", "lld"
    else:
        here = ", ".join(f"{path} is of LLVM {version}" for path, version in old.items())
        why, package = f"{needed_for} needs the linker {name} of LLVM {least} or newer; {here}", f"lld-{_VERSIONS[0]}"
    raise UsageError(why, stage=stage, hint=f"install {package} (apt install {package})")


def version_of(path: str) -> int | None:
    """LLVM's major version of a linker, as it says itself; None if it does not."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    told = re.search(r"\bLLD (\d+)\.", done.stdout)
    return int(told[1]) if told else None
