"""Bounds checks of indices in ONNX models: constant indices out of range are errors, others are clamped by the kernels.

A constant one that is outside is an error, unless its operator is one that the outputs do not need, or part of a branch
that may not be taken. Those that only a run knows are looked at where the importer has `checks` (the option
``check_indices``): their smallest and largest become an output of the graph (`runtime.indices`).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from torch_mlir import ir

from ...ir import dialect
from ...runtime import indices as checked
from ...support.sizes import Undecided, at_most, current, decode, less, value_at
from ..open_values import holds_sizes, open_array


def within(n, indices, *sizes) -> None:
    """Every index is to be in [-size, size). With several sizes, the last dimension of the indices has one for each.

    ModelError for a constant that is not."""
    if 0 in indices.shape or indices.dtype not in ("i32", "i64"):  # other dtypes: an error of the operator
        return
    array = indices.known()
    if array is not None and holds_sizes(array):
        array = _that_are_outside(n, open_array(array), sizes)
    if array is None:
        if len(sizes) == 1:
            _ask(n, indices, sizes[0])
        if n.importer.check_indices and n.scope.reached:
            n.importer.checks.append((n.label, sizes, _range(n, indices, len(sizes))))
        return
    columns = array.reshape(-1, len(sizes))
    extents = np.array(sizes, np.int64)
    wrong = (columns < -extents) | (columns >= extents)
    if wrong.any() and n.scope.condition is None and n.scope.reached:
        row, k = np.argwhere(wrong)[0]
        message = checked.outside(int(columns[row, k]), sizes[k])
        raise n.error(message, "the model reads or writes outside of a tensor")


def _ask(n, indices, size) -> None:
    """Undecided where indices count up to an open size, which may be beyond the end of a table, and ranges can be
    narrowed: positions in a text."""
    known, value = current(), indices.ssa
    if known is None or not known.narrow or n.scope.condition is not None or not n.scope.reached:
        return
    while value is not None and not isinstance(value.owner, ir.Block):
        name = dialect.mnemonic(value.owner)
        if name == "arange":
            of = {k: decode(v) if type(v) is int else v for k, v in dialect.attributes(value.owner).items()}
            last = of["start"] + (of["count"] - 1) * of["step"]
            if not less(last, size):
                raise Undecided(
                    f"whether position {last} is in a table of {size} depends on sizes",
                    partial(_is_less, last, size),
                )
        if name not in _MOVES:
            return
        value = value.owner.operands[0]


def _is_less(a, b, sizes) -> bool:
    return value_at(a, sizes) < value_at(b, sizes)


#: operators whose elements are those of their first operand
_MOVES = ("reshape", "cast", "expand", "transpose", "slice", "tile")


def _that_are_outside(n, array, sizes):
    """Indices that are sizes: none of them if all are within for all sizes, None if a run has to tell; ModelError for
    one that is outside for all sizes."""
    pairs = [(i, size) for row in array.reshape(-1, len(sizes)) for i, size in zip(row, sizes, strict=True)]
    for i, size in pairs:
        if (at_most(size, i) or less(i, -size)) and n.scope.condition is None and n.scope.reached:
            raise n.error(checked.outside(i, size), "the model reads or writes outside of a tensor")
    inside = all(at_most(-size, i) and less(i, size) for i, size in pairs)
    return np.zeros((0, len(sizes)), np.int64) if inside else None


def _range(n, indices, count):
    """i64[2, count]: the smallest and the largest index; 0 and -1 where they do not count."""
    rows = n.reshape(n.cast(indices, "i64"), (indices.type.size // count, count))
    ends = n.concat([n(f"reduce_{end}", rows, axes=(0,), keepdims=True) for end in ("min", "max")], 0)
    if n.scope.condition is None:
        return ends
    return n("where", n.scope.condition, ends, n.constant([[0] * count, [-1] * count], "i64"))
