"""LLVM's linkers, as distributions name them."""

from __future__ import annotations

import shutil

from ..support.errors import UsageError

_VERSIONS = (19, 18, 17, 16, 20, 21, 22)


def linker(name: str, needed_for: str, stage: str) -> str:
    """The path of ``ld.lld`` or ``wasm-ld``, plain or with a version; UsageError if it is not installed."""
    found = next((path for n in (name, *(f"{name}-{v}" for v in _VERSIONS)) if (path := shutil.which(n))), None)
    if found is None:
        why = f"{needed_for} needs the linker {name}, which was not found"
        raise UsageError(why, stage=stage, hint="install lld (apt install lld)")
    return found
