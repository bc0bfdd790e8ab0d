"""Memory for large arrays: huge pages for constants; files for very large ones that are needed for a moment; release
(`madvise`) of the pages that memory-mapped files were read into."""

from __future__ import annotations

import contextlib
import mmap
import tempfile

import numpy as np

from .options import get

#: bytes copied before their pages are given back
CHUNK = 4 << 20

#: a huge page of x86 and of most others; the smallest region that a `HugePagePool` takes from the system
HUGE, REGION = 2 << 20, 64 << 20
#: constants lie at multiples of this
ALIGN = 64
#: bytes from which an array that is needed for a moment is in a file, whose pages the system can write out
LARGE = 96 << 20


class HugePagePool:
    """Memory for arrays that live equally long, in huge pages where the system has them.

    Reading weights goes through many pages, each of which the processor must find first: with pages of 2 MB instead of
    4 KB it has them at hand. What of a region is not used is never touched, and takes no memory. With `reused` there is
    memory for one array at a time: each lies where the one before it was; very large ones as in `scratch_region`.

    >>> a, b = (HugePagePool().empty((3, 5), np.float32) for _ in range(2))
    >>> a.shape, a.ctypes.data % 64
    ((3, 5), 0)
    """

    def __init__(self, reused: bool = False) -> None:
        self._free = np.empty(0, np.uint8)
        self._reused = reused

    def empty(self, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """An uninitialized array, aligned to 64 bytes."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        size = -(-max(nbytes, 1) // ALIGN) * ALIGN
        if size > self._free.size:
            self._free = scratch_region(size) if self._reused else zeroed_region(max(size, REGION))[0]
        taken = self._free[:nbytes]
        if not self._reused:
            self._free = self._free[size:]
        return taken.view(dtype).reshape(shape)


def zeroed_region(size: int) -> tuple[np.ndarray, mmap.mmap]:
    """Zeroed bytes that begin at a huge page, and their map; OSError, OverflowError if there is no room."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, size + HUGE, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.__array_interface__["data"][0] % HUGE
    return whole[start : start + size], memory


def scratch_region(size: int) -> np.ndarray:
    """Zeroed bytes for a moment; many of them in a file without a name, beside the cache, where that is possible."""
    if size >= LARGE:
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=_folder()) as file:
            file.truncate(size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    return zeroed_region(max(size, REGION))[0]


def scratch_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array for a moment, its elements unspecified; see `scratch_region`."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return np.empty(shape, dtype) if size < LARGE else scratch_region(size).view(dtype).reshape(shape)


def _folder() -> str | None:
    folder = get("TILEWRIGHT_CACHE")
    return str(folder) if folder.is_dir() else None


def release_pages(array: np.ndarray) -> None:
    """Give back the memory in which an array of a memory-mapped file was read; it is read again when it is used again.

    Weights are looked at one after another: without this, all of a large file would count as memory of the process.
    Does nothing for arrays that are not from a file, and where the system has no ``madvise``.
    """
    owner: object = array
    while isinstance(owner, np.ndarray) and not isinstance(getattr(owner, "_mmap", None), mmap.mmap):
        owner = owner.base
    if not isinstance(owner, np.memmap) or not hasattr(mmap, "MADV_DONTNEED") or not array.nbytes:
        return
    whole = owner
    while isinstance(whole.base, np.memmap):  # a view has the map of the whole; only that one's address is its own
        whole = whole.base
    map_begin = whole.__array_interface__["data"][0] - whole.offset % mmap.ALLOCATIONGRANULARITY
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low = array.__array_interface__["data"][0] + sum(r for r in reach if r < 0) - map_begin
    high = low + sum(map(abs, reach)) + array.itemsize
    first, last = -(-low // mmap.PAGESIZE) * mmap.PAGESIZE, high // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        whole._mmap.madvise(mmap.MADV_DONTNEED, first, last - first)  # type: ignore[attr-defined]


def copy_released(array: np.ndarray, to: np.ndarray) -> None:
    """``to[...] = array``, giving back the pages of `array` piece by piece."""
    step = max(1, CHUNK // max(array[:1].nbytes, 1)) if array.ndim else 1
    if array.ndim == 0 or not array.flags.c_contiguous:
        to[...] = array
        release_pages(array)
        return
    for i in range(0, len(array), step):
        to[i : i + step] = array[i : i + step]
        release_pages(array[i : i + step])
