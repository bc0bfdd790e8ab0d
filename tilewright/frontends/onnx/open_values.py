"""Integers of a model that are sizes not known yet: how they are computed with, and how they become tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch_mlir import ir

from ...ir import dialect
from ...support.sizes import SMALLEST, Size, Undecided, current, decode, is_open, larger, smaller, surely


def holds_sizes(array: np.ndarray) -> bool:
    """Whether an integer array has elements that stand for sizes."""
    known = current()
    return known is not None and any(isinstance(known.decode(v), Size) for v in np.unique(_large(array)).tolist())


def stands_for_size(array: np.ndarray) -> bool:
    """Whether an array of a model has an extent, or an integer, that stands for a size in this compilation: it is a
    multiple of a symbol's number. No model is expected to have one."""
    if (known := current()) is None:
        return False
    numbers = [int(s) // d.divisor for s, d in zip(known.symbols, known.dims, strict=True)]
    if any(n >= SMALLEST and n % p == 0 for n in array.shape for p in numbers):
        return True
    large = _large(array)
    return any(bool((large % p == 0).any()) for p in numbers)


def _large(array: np.ndarray) -> np.ndarray:
    """The elements that could stand for sizes."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 4:
        return np.empty(0, np.int64)
    return array[(array >= SMALLEST) | (array <= -SMALLEST)]


def open_array(array: np.ndarray | None) -> Any:
    """An array that NumPy computes with sizes in it: of Python integers where some of them are sizes."""
    if array is None or not holds_sizes(array):
        return array
    made = np.empty(array.shape, object)
    made.reshape(-1)[:] = [decode(v) for v in array.reshape(-1).tolist()]
    return made


def fixed(array: np.ndarray, name: str) -> np.ndarray:
    """An array of the model itself; Undecided if its numbers would be taken for sizes."""
    if stands_for_size(array):
        raise Undecided(f"{name!r} has a number that stands for an open dimension in this compilation")
    return array


def sizes_as_tensor(array: np.ndarray, location: ir.Location) -> ir.Value:
    """Append the operators that make an integer array whose elements are sizes.

    [batch, 12]  ->  concat(arange(count=1, start=batch), arange(count=1, start=12))
    """
    dtype = f"i{8 * array.dtype.itemsize}"
    parts = [
        dialect.create("arange", count=1, start=int(v), step=0, dtype=dtype, location=location)[0]
        for v in array.reshape(-1).tolist()
    ]
    whole = parts[0] if len(parts) == 1 else dialect.create("concat", *parts, axis=0, location=location)[0]
    return dialect.create("reshape", whole, shape=array.shape, location=location)[0]


def open_slice(n: Any, start: int, end: int, step: int, size: int) -> tuple[int, int, int]:
    """First element, number and step of a slice where one of these is a size: ends that are too far are those of the
    dimension. Undecided where it is not known from which end one counts, or for a step backwards."""
    if is_open(step) or step < 0:
        raise Undecided(f"{n.label} takes a size that is not known in steps of {step}")

    def place(x: int) -> int:
        return larger(smaller(x + size if x < 0 else x, size), 0)

    first, last = place(start), place(end)
    return first, larger((last - first + step - 1) // step, 0), step  # a number of a type: not below 0


def open_equal(x: Any, y: Any) -> Any:
    """``x == y`` of arrays with sizes in them. Undecided where two may be equal for some sizes and not for others."""

    def same(a: int, b: int) -> bool:
        if a == b:
            return True
        if surely(lambda: a < b) or surely(lambda: b < a):
            return False
        raise Undecided(f"whether {a} is {b} depends on sizes that are not known when the model is compiled")

    return np.frompyfunc(same, 2, 1)(x, y).astype(bool)
