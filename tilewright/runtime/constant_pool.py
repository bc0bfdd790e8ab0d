"""Deduplication of constants: the programs of one model share the arrays with the same content."""

from __future__ import annotations

import weakref

import numpy as np

from ..support.aligned import address, aligned_copy


class ConstantPool:
    """Interns arrays by content: weak references, so that unused ones are freed."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[weakref.ref[np.ndarray]]] = {}

    def share(self, name: str, array: np.ndarray) -> np.ndarray:
        """An array with this content, aligned; one that is there already if possible."""
        if array.nbytes < 256:
            return aligned_copy(array)
        found = self.find(name, array)
        if found is not None:
            return found
        array = aligned_copy(array)
        self._known[self._key(name, array)] = [weakref.ref(a) for a in (*self._there(name, array), array)]
        return array

    def find(self, name: str, array: np.ndarray) -> np.ndarray | None:
        """The array with this content that is there already, None if there is none."""
        return next((a for a in self._there(name, array) if a is array or _same_bytes(a, array)), None)

    def _there(self, name: str, array: np.ndarray) -> list[np.ndarray]:
        return [a for r in self._known.get(self._key(name, array), ()) if (a := r()) is not None]

    @staticmethod
    def _key(name: str, array: np.ndarray) -> tuple[object, ...]:
        return name, array.dtype, array.shape


def _same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    if address(a) == address(b):
        return True
    x, y = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (a, b))
    return all(np.array_equal(x[i : i + (1 << 20)], y[i : i + (1 << 20)]) for i in range(0, len(x), 1 << 20))


__all__ = ["ConstantPool"]
