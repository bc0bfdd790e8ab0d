"""Folders of files that together may take so many bytes: those used longest ago go."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def trim(folder: Path, pattern: str, limit: int) -> int:
    """If the files in `folder` that match `pattern` take more than `limit` bytes, delete the ones used longest ago (by
    their time stamps) until nine tenths of it are kept; returns the bytes that remain.

    >>> import tempfile
    >>> trim(Path(tempfile.mkdtemp()), "*.o", 100)
    0
    """
    files = []
    for path in folder.glob(pattern):
        try:
            info = path.stat()
        except OSError:  # another process was faster
            continue
        files.append((info.st_atime_ns, info.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return total
    for _, size, path in sorted(files, key=lambda f: f[0]):
        if total <= limit * 9 // 10:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size
    return total


def used(path: Path) -> None:
    """Note that a file is used now, in its access time; that of its last change stays. A folder that cannot be written
    is no error: then nothing is removed either."""
    with contextlib.suppress(OSError):
        info = path.stat()
        os.utime(path, ns=(time.time_ns(), info.st_mtime_ns))
