"""Memory-mapped files, with a check of whether they were modified since.

A file that is replaced (written under another name, then renamed) stays what it was for those who have it mapped. One
that is overwritten in place changes under them, and one that is cut short ends the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .digests import remembered, stamp
from .errors import TilewrightError
from .huge_pages import HugePagePool, release_pages
from .limits import usable_cores

#: bytes hashed at a time
CHUNK = 16 << 20
HINT = "load it again; a new file that is renamed over the old one leaves what has the old one open as it is"


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file's bytes, and its size and times when they were mapped; `stamp` None: they were copied."""

    path: Path
    data: np.ndarray
    stamp: tuple[int, ...] | None

    @property
    def changed(self) -> bool:
        """Whether the mapped file was written to since. One that was replaced or deleted stays what it was."""
        if self.stamp is None:
            return False
        try:
            now = _stamp(os.stat(self.path))
        except OSError:
            return False
        return now[:2] == self.stamp[:2] and now != self.stamp

    @property
    def view(self) -> memoryview:
        """The bytes without copying them."""
        return self.data.data

    def digest(self) -> str:
        """As `digest` of the mapped bytes, which may not be those that the path leads to now."""
        with contextlib.suppress(OSError):
            info = os.stat(self.path)
            if _stamp(info) == self.stamp:
                return remembered([stamp(str(self.path), info)], lambda: digest(self.data))
        return digest(self.data)


def map_file(path: str | os.PathLike[str], *, copy: bool = False) -> MappedFile:
    """Map a file, or with `copy` read it into memory; OSError if that is not possible, or it is no regular file."""
    path = Path(os.path.abspath(path))
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with open(path, "rb") as f:
        info = os.fstat(f.fileno())
        if copy:
            data = HugePagePool().empty((info.st_size,), np.uint8)
            done = 0
            while done < len(data) and (count := f.readinto(data[done:].data)):
                done += count
            return MappedFile(path, data[:done], None)
        data = np.memmap(f, np.uint8, "r") if info.st_size else np.zeros(0, np.uint8)
        return MappedFile(path, data, _stamp(info))


def _stamp(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def check(files: Iterable[MappedFile], stage: str, error: type[TilewrightError]) -> None:
    """Raise `error` if one of the files was overwritten since it was mapped."""
    for file in files:
        if file.changed:
            raise error(f"{file.path} was overwritten while it is in use", stage=stage, hint=HINT)


def digest(data: np.ndarray) -> str:
    """SHA-256 of the SHA-256 of each 16 MiB of some bytes; all cores hash at the same time."""
    pieces = [data[i : i + CHUNK] for i in range(0, data.size, CHUNK)]

    def hashed(piece: np.ndarray) -> bytes:
        found = hashlib.sha256(piece.data).digest()
        release_pages(piece)
        return found

    if len(pieces) < 2:
        digests = list(map(hashed, pieces))
    else:
        from concurrent.futures import ThreadPoolExecutor  # with what it imports it takes longer than a small file

        with ThreadPoolExecutor(usable_cores()) as pool:
            digests = list(pool.map(hashed, pieces))
    return hashlib.sha256(b"".join(digests)).hexdigest()
