"""The cache of compiled kernels on disk.

One file a kernel, named by the hash of everything that decides its content. Files are written under a temporary name
and renamed, so any number of processes can share the folder; a file that does not check is dropped, one that another
user wrote or could write is not used. When the folder grows over its bound, the files used longest ago go.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...support.files import own_folder, replacing, trusted
from ...support.lru_folder import bound, trim, used
from ...support.options import get
from .assemble import toolchain
from .machine import LlvmMachine, code_key

MAGIC = b"TWKERN1\n"
_HEAD = struct.Struct("<8sI32s")  # magic, length of the JSON part, SHA-256 of what follows


@dataclass
class CacheStats:
    hits: int = 0
    misses: int = 0
    dropped: int = 0


class KernelCache:
    """Objects by key under ``folder/kernels``; `limit` bounds their bytes.

    >>> import tempfile
    >>> cache = KernelCache(Path(tempfile.mkdtemp()))
    >>> cache.put("00ff", b"object", {"bytes": 6})
    >>> cache.get("00ff")
    (b'object', {'bytes': 6})
    >>> cache.get("1234") is None
    True
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | None = None) -> None:
        self.folder = Path(folder if folder is not None else get("TILEWRIGHT_CACHE")) / "kernels"
        self.limit = get("TILEWRIGHT_CACHE_SIZE") if limit is None else limit
        self.stats = CacheStats()

    @staticmethod
    def key(mlir_text: str, machine: LlvmMachine) -> str:
        """The name of a kernel: its text without trailing blanks, the toolchain, and the machine it is for."""
        lines = "\n".join(line.rstrip() for line in mlir_text.splitlines() if line.strip())
        parts = (lines, toolchain(tuple(machine.sources())), code_key(machine))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.o"

    def get(self, key: str) -> tuple[bytes, dict[str, Any]] | None:
        """The object and its statistics, None if it is not there (or was damaged, and is now deleted)."""
        path = self._path(key)
        try:
            data = path.read_bytes() if trusted(path, self.folder.parent) else None
        except OSError:
            data = None
        if data is None:
            self.stats.misses += 1
            return None
        try:
            magic, length, digest = _HEAD.unpack_from(data)
            rest = data[_HEAD.size :]
            if magic != MAGIC or hashlib.sha256(rest).digest() != digest:
                raise ValueError
            found = rest[length:], json.loads(rest[:length])
        except (ValueError, struct.error):
            self.stats.misses += 1
            self.stats.dropped += 1
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        self.stats.hits += 1
        used(path)
        return found

    def put(self, key: str, data: bytes, stats: Mapping[str, object]) -> None:
        """Store an object. A cache that cannot be written (read-only, full disk) is no error: the result exists."""
        head = json.dumps(stats).encode()
        rest = head + data
        path = self._path(key)
        try:
            if not own_folder(path.parent, self.folder.parent):
                return
            with replacing(path, private=True) as f:
                f.write(_HEAD.pack(MAGIC, len(head), hashlib.sha256(rest).digest()) + rest)
        except OSError:
            return
        bound(self.folder, 2, self.limit, len(rest) + _HEAD.size)

    def trim(self) -> int:
        """Delete the files used longest ago if all together exceed the limit; returns the bytes that remain."""
        return trim(self.folder, 2, self.limit)
