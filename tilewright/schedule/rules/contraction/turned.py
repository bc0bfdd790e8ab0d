"""Operands that lie across the lanes of a sum of products (a matrix product whose right operand is given transposed):
the part that a panel of columns needs is turned round once, into cache, and all rows pass over it there.

    for batches, panels of columns:                  # divided among threads
      bt[k, columns] = b[columns, k]                 # tiles transposed in registers
      for tiles of rows:
        tile = the sum of a[rows, k] * bt[k, columns]

Without it the lanes of every vector are gathered, for every tile of rows again. What is summed need not be a product:
distances of points are sums of (a[row, k] - b[column, k])**2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....tensor.expr import Op, simplify, variables, walk
from ....tensor.kernel import Stage
from ...machine import Machine, lanes
from ...region import all_ranges
from ...schedule import Schedule
from ..common import coefficient, load_strides, reads, store_stride

#: so many rows must pass over what was turned (measured: with fewer, gathering is as fast)
ROWS = 4
#: tiles of at least so many rows and columns are transposed in registers
LEAST = 4


@dataclass(frozen=True)
class Across:
    """An operand that lies across: its buffer, and the dimension along which the lanes run."""

    buffer: str
    lane: int


def lying_across(s: Schedule, anchor: Stage, n: str, near: int) -> list[Across]:
    """Operands that are no constants, whose elements for neighbouring lanes of loop `n` lie more than `near` apart, and
    for neighbouring steps of a loop of the reduction side by side."""
    store = s.store(anchor.name)
    if any(isinstance(x, Op) and x.op == "guard" for x in walk(store.targets[0].value)):
        return []
    found, ranges = [], all_ranges(s.body)
    for x, step in load_strides(s, store, n):
        moved = {str(y) for y, c in load_strides(s, store, n) if y.buffer == x.buffer and c != 0}
        along = {v: {str(y): c for y, c in load_strides(s, store, v)}[str(x)] for v in anchor.reduction}
        indices = [simplify(i, ranges) for i in x.indices]  # without what a reshape of the operand left behind
        own = [d for d, i in enumerate(indices) if n in variables(i)]
        plain = len(own) == 1 and coefficient(indices[own[0]], n) == 1 and None not in along.values()
        variable = x.buffer in s.params and x.buffer not in s.kernel.constants and x.buffer not in s.kernel.outputs
        if step is not None and step > near and 1 in along.values() and plain and variable and len(moved) == 1:
            found.append(Across(x.buffer, own[0]))
    return found


def turn(s: Schedule, anchor: Stage, found: Sequence[Across], at: str, machine: Machine) -> None:
    """Copy what one iteration of loop `at` needs of operands that lie across, with the lanes last; an operand that is
    also read along rows (a matrix times its own transpose) stays where it is for those."""
    lanes_loop = s.loops(anchor.name)[-1]
    for x in found:
        buffer = s.buffer(x.buffer)
        others = [d for d in range(len(buffer.shape)) if d != x.lane]
        again = reads(s, x.buffer) > 1
        block = s.cache_read(
            anchor.name, x.buffer, at, order=(*others, x.lane), **({"moving": lanes_loop} if again else {})
        )
        store = s.store(block)
        loops = [v for v in s.loops(block) if v != at]
        column = next((v for v in loops if store_stride(s, store, v) == 1), None)
        run = next((v for v in loops if v != column and any(c == 1 for _, c in load_strides(s, store, v))), None)
        if column is None:
            continue
        width = lanes(machine, buffer.dtype)
        column_o, column_i = s.split(column, width)
        inner = [column_i]
        if run is not None and s.extent_or_zero(run) >= LEAST:
            run_o, run_i = s.split(run, width)
            s.unroll(run_i)
            inner, loops = [run_i, column_i], [run_o if v == run else v for v in loops]
        s.reorder(*[v for v in loops if v != column], column_o, *inner)
        s.vectorize(column_i)


__all__ = ["ROWS", "Across", "lying_across", "turn"]
