"""Memory that is zeros at first, and takes none of the machine's until it is written."""

from __future__ import annotations

import mmap
import sys

from .aligned import aligned_empty
from .errors import TilewrightError
from .huge_pages import zeroed_region

#: bytes: less is not worth pages of its own
LEAST = 1 << 20


class ZeroedMemory:
    """Bytes that are zeros, aligned to 64. The system brings their pages one by one, where they are written first: huge
    ones where it has them, as a cache is read from many places (attention to 512 positions took twice as long).

    >>> memory = ZeroedMemory(1 << 22)
    >>> memory.array[5] = 7
    >>> memory.clear()
    >>> memory.array.shape, int(memory.array[5])
    ((4194304,), 0)
    """

    def __init__(self, nbytes: int) -> None:
        self._mapped: mmap.mmap | None = None
        if nbytes < LEAST:
            self.array = aligned_empty(nbytes)
            self.array[:] = 0
            return
        try:
            self.array, self._mapped = zeroed_region(nbytes)
        except (OSError, OverflowError):
            raise TilewrightError(f"there is no room for {nbytes:,} bytes that are kept between runs") from None

    def clear(self) -> None:
        """Zeros again; the memory is given back where the system can do that."""
        if self._mapped is not None and sys.platform == "linux":  # elsewhere what then is read need not be zeros
            self._mapped.madvise(mmap.MADV_DONTNEED)
        else:
            self.array[:] = 0


__all__ = ["ZeroedMemory"]
