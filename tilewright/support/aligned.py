"""Aligned allocation of arrays, and their addresses."""

from __future__ import annotations

import ctypes

import numpy as np

from .errors import TilewrightError
from .huge_pages import copy_released
from .lazy_array import Stored

#: bytes: the arena, the constants, the scratch and all but small outputs that we allocate begin at a multiple of this
ALIGN = 64
_BYTE = np.dtype(np.uint8)
_CHAR = ctypes.c_char


def aligned_empty(nbytes: int, align: int = ALIGN) -> np.ndarray:
    """Uninitialized bytes whose address is a multiple of `align`; the pages are not touched.

    >>> aligned_empty(100).ctypes.data % 64, aligned_empty(100).shape
    (0, (100,))
    """
    raw = uninitialized(nbytes + align)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]


def uninitialized(size: int) -> np.ndarray:
    """So many bytes anywhere; TilewrightError if there is no memory for them."""
    try:
        return np.empty(size, _BYTE)
    except MemoryError:
        raise TilewrightError(f"a run needs {size:,} bytes at once, which this machine does not have") from None


def aligned_copy(array: Stored) -> np.ndarray:
    """The array itself if it is C-contiguous and aligned to 64 bytes, else such a copy; also of a `LazyArray`."""
    computed = not isinstance(array, np.ndarray)  # in memory that the next one may take
    array = np.asarray(array)
    if not computed and array.flags.c_contiguous and address(array) % ALIGN == 0:
        return array
    new = aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
    copy_released(array, new)
    return new


def address(array: np.ndarray) -> int:
    """The address of an array's first element."""
    try:
        return ctypes.addressof(_CHAR.from_buffer(array))  # type: ignore[arg-type]  # a third of the time of what follows
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a dtype that has no buffer
        return int(array.__array_interface__["data"][0])


__all__ = ["ALIGN", "address", "aligned_copy", "aligned_empty", "uninitialized"]
