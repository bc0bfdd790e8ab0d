"""Arrays that are computed when they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class LazyArray:
    """An array whose shape and dtype are known, and whose elements are computed each time it is read (`np.asarray`).

    Many of them take no memory while they are written to a file one after the other. `make` may use the memory of what
    was read last: who keeps an array copies it (`aligned.aligned_copy` does). base: where this is another view of an
    array, that array, with the same bytes in the same order.

    >>> a = LazyArray((2, 2), np.dtype(np.float32), lambda: np.eye(2, dtype=np.float32))
    >>> a.nbytes, np.asarray(a).tolist(), a.reshape((4,)).whole is a
    (16, [[1.0, 0.0], [0.0, 1.0]], True)
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray] = field(repr=False)
    base: LazyArray | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def whole(self) -> LazyArray:
        """The array that this is a view of; itself if it is none."""
        return self if self.base is None else self.base

    def reshape(self, shape: Sequence[int]) -> LazyArray:
        """The same elements in another shape, none of whose sizes is left open."""
        return LazyArray(tuple(shape), self.dtype, lambda: self.make().reshape(shape), self.whole)

    def view(self, dtype: npt.DTypeLike) -> LazyArray:
        """The same bytes as another type of that size."""
        return LazyArray(self.shape, np.dtype(dtype), lambda: self.make().view(dtype), self.whole)

    def transpose(self, axes: Sequence[int]) -> LazyArray:
        """The axes in another order."""
        return LazyArray(tuple(self.shape[a] for a in axes), self.dtype, lambda: self.make().transpose(axes))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        made = self.make()
        return made if dtype is None else made.astype(dtype, copy=False)


#: an array, or what computes it
Stored = np.ndarray | LazyArray

__all__ = ["LazyArray", "Stored"]
