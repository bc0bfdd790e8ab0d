"""Digests of what decides the outcome of a compilation."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from .files import own_folder, replacing, trusted
from .lru_folder import trim
from .options import get

#: a file that was written fewer seconds before may be written once more without another time
SETTLED = 2.0
#: bytes of digests kept
KEPT = 1 << 16
#: a file: its path, device, number, size, and the times in ns of the last change of its bytes and of anything about it
Stamp = tuple[str, int, int, int, int, int]


def stamp(path: str, info: os.stat_result) -> Stamp:
    return path, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def remembered(stamps: Sequence[Stamp], compute: Callable[[], str]) -> str:
    """The digest that `compute` makes of files with these stamps, or has made in an earlier process: it stands in a
    folder of the cache. A change of a file changes the second of its times, which no program can set; where there is no
    such time (Windows), and of files that were written just now, nothing is remembered.
    """
    cache: Path = get("TILEWRIGHT_CACHE")
    now = time.time()
    if os.name != "posix" or any(max(s[4:]) > (now - SETTLED) * 1e9 for s in stamps):
        return compute()
    path = cache / "digests" / hashlib.sha256(repr(stamps).encode(errors="surrogateescape")).hexdigest()
    with contextlib.suppress(OSError):
        if trusted(path, cache):
            return path.read_text(encoding="ascii")
    found = compute()
    with contextlib.suppress(OSError):
        if own_folder(path.parent, cache):
            with replacing(path, private=True) as f:
                f.write(found.encode())
            trim(path.parent, 1, KEPT)
    return found


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of all of this package's source."""
    root = Path(__file__).resolve().parents[1]
    files = sorted(_sources(os.fspath(root)))

    def compute() -> str:
        digest = hashlib.sha256()
        for path, *_ in files:
            digest.update(f"{os.path.relpath(path, root)}\0".encode())
            digest.update(Path(path).read_bytes())
        return digest.hexdigest()

    return remembered(files, compute)


def _sources(folder: str) -> Iterator[Stamp]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                yield stamp(entry.path, entry.stat())
