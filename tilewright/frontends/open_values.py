"""Shape arithmetic on symbolic sizes during import, and conversion of symbolic sizes to tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..support.sizes import SMALLEST, Size, Undecided, current, decode, is_open, larger, smaller, surely, value_at


def holds_sizes(array: np.ndarray) -> bool:
    """Whether an integer array has elements that encode sizes."""
    known = current()
    return known is not None and any(isinstance(known.decode(v), Size) for v in np.unique(_large(array)).tolist())


def stands_for_size(array: np.ndarray) -> bool:
    """Whether an array of a model has an extent, or an integer, that encodes a size in this compilation: it is a
    multiple of the number of one. No model is expected to have one; sizes that come later get other numbers."""
    if (known := current()) is None:
        return False
    large = np.unique(_large(array))
    known.numbers.plain.update(large.tolist())
    if any(n >= SMALLEST and n % p == 0 for n in array.shape for p in known.divides()):
        return True
    return any(bool((large % p == 0).any()) for p in known.divides())


def made_of_sizes(array: np.ndarray) -> bool:
    """Whether an array has an extent, or an integer, that is a size in this compilation: the number that
    encodes it was taken for a known one."""
    if current() is None:
        return False
    return is_open(*map(decode, array.shape)) or stands_for_size(array) or holds_sizes(array)


def _large(array: np.ndarray) -> np.ndarray:
    """The elements that could encode sizes."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize < 4:
        return np.empty(0, np.int64)
    return array[(array >= SMALLEST) | (array <= -SMALLEST)]


def open_array(array: np.ndarray | None) -> np.ndarray | None:
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


#: operators whose references compute with Python's integers, so with sizes too; others convert them, and would take the
#: numbers that encode sizes for known ones
_ON_SIZES = frozenset(
    [
        "abs",
        "add",
        "arange",
        "concat",
        "cumsum",
        "div",
        "equal",
        "expand",
        "greater",
        "greater_equal",
        "less",
        "less_equal",
        "max",
        "min",
        "mod",
        "mul",
        "neg",
        "pow",
        "reduce_max",
        "reduce_min",
        "reduce_prod",
        "reduce_sum",
        "relu",
        "reshape",
        "slice",
        "split",
        "sub",
        "tile",
        "transpose",
        "where",
    ]
)
#: those that do so with their first operand
_ON_FIRST = frozenset(("gather", "gather_elements", "gather_nd", "pad"))


def check_computed(mnemonic: str, arrays: Sequence[np.ndarray | None], attributes: Mapping[str, Any]) -> None:
    """Undecided if an operator on arrays with sizes in them is not computed ahead."""
    holds = [a is not None and a.dtype == object for a in arrays]
    fits = mnemonic in _ON_SIZES or (mnemonic in _ON_FIRST and not any(holds[1:]))
    if not (fits or (mnemonic == "cast" and attributes["to"] in ("i32", "i64"))):
        raise Undecided(f"what {mnemonic} gives for a size that is not known is left to a run")


def open_slice(n: Any, start: int, end: int, step: int, size: int) -> tuple[int, int, int]:
    """First element, number and step of a slice where one of these is a size: ends that are too far are those of the
    dimension. Undecided where it is not known from which end one counts, or for a step backwards."""
    if is_open(step) or step < 0:
        raise Undecided(f"{n.label} takes a size that is not known in steps of {step}")

    def place(x: int) -> int:
        return larger(smaller(x + size if x < 0 else x, size), 0)

    first, last = place(start), place(end)
    return first, larger((last - first + step - 1) // step, 0), step  # a number of a type: not below 0


def same(a: int, b: int) -> bool:
    """Whether two sizes are equal; Undecided where they are for some sizes and not for others.

    >>> same(3, 4)
    False
    """
    if a == b:
        return True
    if surely(lambda: a < b) or surely(lambda: b < a):
        return False
    raise Undecided(
        f"whether {a} is {b} depends on sizes that are not known when the model is compiled",
        lambda at: value_at(a, at) == value_at(b, at),
    )


def open_equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``x == y`` of arrays with sizes in them. Undecided where two may be equal for some sizes and not for others."""
    return np.frompyfunc(same, 2, 1)(x, y).astype(bool)


def open_div(x: np.ndarray, y: np.ndarray) -> Any:
    """Quotients without what is behind the point, of arrays with sizes in them. Undecided where a sign is not known."""

    def quotient(a: int, b: int) -> int:
        if b == 0:
            return 0
        if (a >= 0) == (b > 0):
            return a // b
        return -(-a // b)

    return np.frompyfunc(quotient, 2, 1)(x, y)


#: what operators compute of arrays with sizes in them, where NumPy would ask what is not known
REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "equal": open_equal,
    "div": open_div,
    "max": np.frompyfunc(larger, 2, 1),
    "min": np.frompyfunc(smaller, 2, 1),
}
