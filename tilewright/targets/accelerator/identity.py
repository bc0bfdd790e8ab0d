"""What the time of a program depends on: the chip's description, and the code that makes and times programs."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from ... import __version__
from .describe import Chip


def digest_of(kind: type) -> str:
    """A digest of the files that describe a chip: its own, and those of what it inherits."""
    files = {inspect.getsourcefile(k) for k in kind.__mro__ if k.__module__ != "builtins"}
    return hashlib.sha256(b"\0".join(Path(f).read_bytes() for f in sorted(f for f in files if f))).hexdigest()


def design_of(chip: Chip) -> str:
    """A chip's parameters, and a digest of its description."""
    parameters = {f.name: getattr(chip, f.name) for f in fields(chip)}
    return f"{json.dumps(parameters, sort_keys=True, default=str)}|{digest_of(type(chip))[:24]}"


@lru_cache(1)
def version() -> str:
    """Of the code in this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()
    return f"tilewright {__version__}, chips {digest[:12]}"
