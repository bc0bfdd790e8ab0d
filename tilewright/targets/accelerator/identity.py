"""Cache key of a measured program time: a hash of the chip's description and of the code that makes and times
programs."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from ... import __version__
from .describe import Chip

#: the modules of a chip's folder, and for each file that describes chips those that it imports, by the module's name
_SIBLINGS: dict[str, Path] = {}
_IMPORTED: dict[str, set[Path]] = {}


@contextlib.contextmanager
def with_siblings(path: Path, module: str) -> Iterator[None]:
    """While a chip's file runs it can import other files of its folder; another folder's of that name are forgotten."""
    folder = path.resolve().parent
    for name, file in list(_SIBLINGS.items()):
        if file.parent != folder:
            sys.modules.pop(name, None)
            del _SIBLINGS[name]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        for name, found in list(sys.modules.items()):
            place = Path(getattr(found, "__file__", None) or "/").resolve()
            if name != module and "." not in name and place.parent == folder:
                _SIBLINGS[name] = place
        _IMPORTED[module] = {f for f in _SIBLINGS.values() if f.parent == folder}


def files_of(kind: type) -> set[Path]:
    """The files that describe a chip: its own, those of what it inherits, and those that they import from their
    folder."""
    files = {Path(f) for k in kind.__mro__ if k.__module__ != "builtins" and (f := inspect.getsourcefile(k))}
    return files | {f for k in kind.__mro__ for f in _IMPORTED.get(k.__module__, ())}


def digest_of(kind: type) -> str:
    """A digest of the files that describe a chip."""
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in sorted(files_of(kind)))).hexdigest()


def design_of(chip: Chip) -> str:
    """A chip's parameters, and a digest of its description."""
    parameters = {f.name: getattr(chip, f.name) for f in fields(chip)}
    return f"{json.dumps(parameters, sort_keys=True, default=str)}|{digest_of(type(chip))[:24]}"


@lru_cache(1)
def version() -> str:
    """A digest of the code in this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()
    return f"tilewright {__version__}, chips {digest[:12]}"
