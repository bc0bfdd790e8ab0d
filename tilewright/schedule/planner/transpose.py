"""Operands and results that are transposed on their way in and out.

An operand that lies across the lanes (a matrix product whose right operand is given transposed): the part that a panel
of columns needs is transposed once, into cache, and all rows pass over it there.

    for batches, panels of columns:                  # divided among threads
      bt[k, columns] = b[columns, k]                 # tiles transposed in registers
      for tiles of rows:
        tile = the sum of a[rows, k] * bt[k, columns]

Without it the lanes of every vector are gathered, for every tile of rows again. What is summed need not be a product:
distances of points are sums of (a[row, k] - b[column, k])**2.

With lanes along the rows, for few columns or a few more than whole vectors, the operand of the rows is transposed, and
so is the result:

    for batches, panels of rows:                     # divided among threads
      xt[k, rows] = x[rows, k]
      for tiles of columns:
        tile = the sum of w[k, columns] * xt[k, rows]    # columns are the rows of the register tile
        t[columns, rows] = tile                      # in cache
      y[rows, columns] = relu(t[columns, rows] + bias)   # transposed back

17 columns fill 53% of two vectors, the pixels of an image fill nearly all of theirs. The price is transposing what is
read and what is written, so it pays where both are small beside the products.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...tensor.kernel import Stage
from ..machine import Machine, lanes
from ..rules.common import load_strides, reads, store_stride
from ..schedule import Schedule
from .product import Across

#: tiles of at least so many rows and columns are transposed in registers
MIN_TRANSPOSED_TILE = 4


def transpose_operands(s: Schedule, anchor: Stage, found: Sequence[Across], at: str, machine: Machine) -> None:
    """Copy what one iteration of loop `at` needs of operands that lie across, with the lanes last; an operand that is
    also read along rows (a matrix times its own transpose) stays where it is for those."""
    lanes_loop = s.loops(anchor.name)[-1]
    for x in found:
        buffer = s.buffer(x.buffer)
        others = [d for d in range(len(buffer.shape)) if d != x.lane]
        again = reads(s, x.buffer) > 1
        order = (*others, x.lane)
        if again:
            block = s.cache_read(anchor.name, x.buffer, at, order=order, moving=lanes_loop)
        else:
            block = s.cache_read(anchor.name, x.buffer, at, order=order)
        store = s.store(block)
        loops = [v for v in s.loops(block) if v != at]
        column = next((v for v in loops if store_stride(s, store, v) == 1), None)
        run = next((v for v in loops if v != column and any(c == 1 for _, c in load_strides(s, store, v))), None)
        if column is None:
            continue
        width = lanes(machine, buffer.dtype)
        column_o, column_i = s.split(column, width)
        inner = [column_i]
        if run is not None and s.extent_or_zero(run) >= MIN_TRANSPOSED_TILE:
            run_o, run_i = s.split(run, width)
            s.unroll(run_i)
            inner, loops = [run_i, column_i], [run_o if v == run else v for v in loops]
        s.reorder(*[v for v in loops if v != column], column_o, *inner)
        s.vectorize(column_i)


def stage_sums(s: Schedule, anchor: Stage, n: str) -> str:
    """Let a sum pass through cache with the columns (the loop `n`) first and lanes last; returns the block that copies
    a tile there."""
    target = s.store(anchor.name).targets[0]
    names = [str(i) for i in target.indices]
    at = names.index(n)
    copy = s.cache_write(anchor.name, order=(at, *(d for d in range(len(names)) if d != at)))
    s.inline(copy)
    return s.cache_write(anchor.name, scope="register")


def write_rows(s: Schedule, last: str, at: str, machine: Machine) -> None:
    """Write what was summed up in an iteration of `at`, transposed in registers."""
    new = [v for v in s.reverse_compute_at(last, at) if v in s.loops()]
    store = s.store(last)
    width = lanes(machine, s.buffer(store.targets[0].buffer).dtype)
    column = next(v for v in new if store_stride(s, store, v) == 1)
    run = next((v for v in reversed(new) if v != column), None)
    column_o, column_i = s.split(column, width)
    if run is None:  # a single column
        s.vectorize(column_i)
        return
    run_o, run_i = s.split(run, width)
    s.reorder(*[v for v in new if v not in (column, run)], run_o, column_o, run_i, column_i)
    s.unroll(run_i)
    s.vectorize(column_i)


__all__ = ["stage_sums", "transpose_operands", "write_rows"]
