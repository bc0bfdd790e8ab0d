"""Arrays that are computed at the first read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class LazyArray:
    """An array whose shape and dtype are known, and whose elements are computed each time it is read (`np.asarray`).

    Many of them take no memory while they are written to a file one after the other. `make` may use the memory of what
    was read last: who keeps an array copies it (`aligned.aligned_copy` does).

    >>> a = LazyArray((2, 2), np.dtype(np.float32), lambda: np.eye(2, dtype=np.float32))
    >>> a.nbytes, np.asarray(a).tolist()
    (16, [[1.0, 0.0], [0.0, 1.0]])
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        made = self.make()
        return made if dtype is None else made.astype(dtype, copy=False)
