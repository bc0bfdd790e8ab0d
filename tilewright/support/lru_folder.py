"""Size-limited cache folders with LRU eviction."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

#: seconds in which a program that begins to write does not look at a folder that another one has looked at: to look is
#: to read the sizes of all files in it
AGAIN = 600
#: a program looks again after it has written this part of the limit
PART = 16
#: bytes that this process has written to a folder since it looked
_written: dict[Path, int] = {}


def bound(folder: Path, depth: int, limit: int, written: int) -> None:
    """`trim` a folder of folders (`depth` 2) to which so many bytes have been written, now and then. When it was looked
    at last stands in the time of its last change: a new folder in it, of which there are few, counts as well."""
    seen = _written.get(folder)
    total = (seen or 0) + written
    if (seen is None and _looked_at(folder)) or (seen is not None and total < limit // PART):
        _written[folder] = total
        return
    _written[folder] = 0
    with contextlib.suppress(OSError):
        os.utime(folder)
    trim(folder, depth, limit)


def _looked_at(folder: Path) -> bool:
    """Whether anybody has looked at a folder a short while ago."""
    try:
        return 0 <= time.time() - folder.stat().st_mtime < AGAIN
    except OSError:
        return False


def trim(folder: Path, depth: int, limit: int) -> int:
    """If the files in `folder` (`depth` 1) or in its folders (`depth` 2) take more than `limit` bytes, delete the ones
    used longest ago (by their time stamps) until nine tenths of it are kept; returns the bytes that remain.

    >>> import tempfile
    >>> trim(Path(tempfile.mkdtemp()), 1, 100)
    0
    """
    files = []
    for entry in _files(folder, depth):
        try:
            info = entry.stat()
        except OSError:  # another process was faster
            continue
        files.append((info.st_atime_ns, info.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return total
    for _, size, path in sorted(files):
        if total <= limit * 9 // 10:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
    return total


def _files(folder: str | os.PathLike[str], depth: int) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            for e in entries:
                if depth > 1 and e.is_dir(follow_symlinks=False):
                    yield from _files(e.path, depth - 1)
                elif depth == 1 and e.is_file(follow_symlinks=False):
                    yield e
    except OSError:  # it is not there, or gone
        return


def used(path: Path) -> None:
    """Note that a file is used now, in its access time; that of its last change stays. A folder that cannot be written
    is no error: then nothing is removed either."""
    with contextlib.suppress(OSError):
        info = path.stat()
        os.utime(path, ns=(time.time_ns(), info.st_mtime_ns))
