"""The caches on disk of this user: their kinds, sizes and how they are cleared."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..support.errors import UsageError
from ..support.options import get


@dataclass(frozen=True)
class CacheKind:
    """One kind of thing that is kept: its place below the cache folder, what it is, and whether making it again costs
    more than time (results of tuning do, so they go only when they are named)."""

    name: str
    place: str
    doc: str
    precious: bool = False

    @property
    def path(self) -> Path:
        return get("TILEWRIGHT_DB") if self.precious else get("TILEWRIGHT_CACHE") / self.place


PARTS = (
    CacheKind("kernels", "kernels", "compiled kernels"),
    CacheKind("packages", "packages", "compiled model files"),
    CacheKind("ceilings", "ceilings", "what the machine can do, measured for profiles"),
    CacheKind("digests", "digests", "digests of model files, by their time"),
    CacheKind("repro", "repro", "kernels whose compilation failed"),
    CacheKind("tuning", "tuning.sqlite", "results of `tilewright tune`", precious=True),
)


def files(part: CacheKind) -> list[Path]:
    """All files of a part; none if it does not exist."""
    if part.path.is_dir():
        return sorted(p for p in part.path.rglob("*") if p.is_file() and not p.is_symlink())
    beside = [part.path.with_name(part.path.name + end) for end in ("", "-wal", "-shm")]
    return [p for p in beside if p.is_file()]


def size(part: CacheKind) -> int:
    """Bytes that a part takes."""
    total = 0
    for path in files(part):
        with contextlib.suppress(OSError):  # another process was faster
            total += path.stat().st_size
    return total


def named(names: list[str]) -> list[CacheKind]:
    """The parts with these names, in the order of `PARTS`; UsageError for a name that none has."""
    known = {p.name for p in PARTS}
    unknown = [n for n in names if n not in known]
    if unknown:
        raise UsageError(
            f"nothing called {unknown[0]!r} is kept", hint=f"there are: {', '.join(p.name for p in PARTS)}"
        )
    return [p for p in PARTS if p.name in names]


def clear(parts: list[CacheKind]) -> int:
    """Delete parts; returns the bytes that were freed. UsageError if a file cannot be deleted."""
    freed = 0
    for part in parts:
        freed += size(part)
        try:
            if part.path.is_dir() and not part.path.is_symlink():
                shutil.rmtree(part.path)
            else:
                for path in files(part):
                    os.unlink(path)
        except FileNotFoundError:  # another process was faster
            continue
        except OSError as e:
            raise UsageError(f"cannot delete {str(part.path)!r}: {e.strerror or e}", stage="cache") from None
    return freed


__all__ = ["PARTS", "CacheKind", "clear", "files", "named", "size"]
