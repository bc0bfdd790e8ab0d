"""Atomic file writes, file locks, and folders that only this user can write."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO

from .errors import UsageError

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be deleted: no lock is needed
    fcntl = None  # type: ignore[assignment]

_TEMPORARY = ".tilewright-{}.tmp"
#: bits of others that may write
_OPEN = stat.S_IWGRP | stat.S_IWOTH
log = logging.getLogger("tilewright")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` at the end, unless there was an error. OSError if that is impossible.

    It has the mode and owner of the file that it replaces; a new one has the usual mode, or 0600 if it is `private`. Of
    a symbolic link the file is replaced that it leads to. What killed processes left in the folder is deleted.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x"
    >>> with replacing(path) as f:
    ...     _ = f.write(b"content")
    >>> path.read_bytes()
    b'content'
    """
    path = Path(os.path.realpath(path))
    old = _existing(path)
    sweep(path.parent)
    fd, temporary = _create(path.parent, 0o600 if private or old is not None else 0o666)
    try:
        with os.fdopen(fd, "w+b") as f:
            if old is not None and hasattr(os, "fchown"):
                with contextlib.suppress(OSError):  # another user's file becomes ours
                    os.fchown(fd, old.st_uid, old.st_gid)
                os.fchmod(fd, 0o600 if private else stat.S_IMODE(old.st_mode) & 0o777)
            yield f
            if (
                fcntl is not None
            ):  # open, and so locked, until it has its name: no other process takes it for a stale one
                f.flush()
                os.replace(temporary, path)
        if fcntl is None:
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def written(path: str | os.PathLike[str], stage: str) -> Iterator[None]:
    """An OSError in here is a UsageError of a stage: the place cannot be written.

    >>> with written("/", "dump"):
    ...     raise PermissionError(13, "Permission denied")
    Traceback (most recent call last):
    tilewright.support.errors.UsageError: cannot write /: Permission denied
      stage: dump
    """
    try:
        yield
    except OSError as e:
        raise UsageError(f"cannot write {path}: {e.strerror or e}", stage=stage) from None


def make_folder(folder: Path, stage: str) -> Path:
    """The folder, made if it is not there; UsageError of a stage if it cannot be."""
    with written(folder, stage):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _existing(path: Path) -> os.stat_result | None:
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return info


def _create(folder: Path, mode: int) -> tuple[int, Path]:
    """A new file, locked, so that `sweep` of other processes leaves it alone."""
    while True:
        path = folder / _TEMPORARY.format(secrets.token_hex(4))
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), mode)
        if not _lock(fd) or os.fstat(fd).st_nlink:
            return fd, path
        os.close(fd)  # swept between the two steps


def _lock(fd: int) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process holds it, or the file system has no locks
        return False
    return True


def sweep(folder: Path, *, below: bool = False) -> None:
    """Delete files that `replacing` of processes that were killed has left in a folder (and in those `below` it)."""
    with contextlib.suppress(OSError):
        for path in list((folder.rglob if below else folder.glob)(_TEMPORARY.format("*"))):
            with contextlib.suppress(OSError):
                if fcntl is None:
                    path.unlink()
                    continue
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    if _lock(fd):
                        path.unlink()
                finally:
                    os.close(fd)


# ---- whose files ---------------------------------------------------------------------------------------------------


def own_folder(folder: Path, within: Path) -> bool:
    """Make a folder of caches, `within` or below it, that only this user can write; False if others can write it."""
    missing = [p for p in _chain(folder, within) if not p.is_dir()]
    within.parent.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        path.mkdir(0o700, exist_ok=True)
    return trusted(folder, within)


def trusted(path: Path, within: Path) -> bool:
    """Whether a file or folder and the folders around it, up to `within`, belong to this user (or to the system's
    administrator) and nobody else can write them. A folder of this user's loses their right to.

    What is in a cache is run, so what others can write there could be anything. OSError if there is no such path.
    """
    if not hasattr(os, "geteuid"):
        return True
    return all(_trusted(p) for p in _chain(path, within))


def _chain(path: Path, within: Path) -> list[Path]:
    """The path and the folders around it, up to `within`."""
    return [path, *(p for p in path.parents if p == within or within in p.parents)]


def _trusted(path: Path) -> bool:
    info = os.stat(path)
    folder = stat.S_ISDIR(info.st_mode)
    if info.st_uid not in (os.geteuid(), 0):
        if folder:
            _warn(path, info.st_uid)
        return False
    if not info.st_mode & _OPEN or (folder and info.st_mode & stat.S_ISVTX):  # there, others cannot rename what is ours
        return True
    if folder and info.st_uid == os.geteuid():
        with contextlib.suppress(OSError):
            os.chmod(path, stat.S_IMODE(info.st_mode) & ~_OPEN)
            return True
    return False


@lru_cache(maxsize=16)
def _warn(path: Path, owner: int) -> None:
    log.warning(
        "the cache %s is not used: it belongs to user %d (set TILEWRIGHT_CACHE to a folder of your own)", path, owner
    )
