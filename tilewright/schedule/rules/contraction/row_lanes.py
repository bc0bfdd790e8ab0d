"""Sums of products with few columns, or a few more than whole vectors: lanes run along rows instead.

    for batches, panels of rows:                     # divided among threads
      xt[k, rows] = x[rows, k]                       # turned round, see `turned`
      for tiles of columns:
        tile = the sum of w[k, columns] * xt[k, rows]    # columns are the rows of the register tile
        t[columns, rows] = tile                      # in cache
      y[rows, columns] = relu(t[columns, rows] + bias)   # turned back

17 columns fill 53% of two vectors, the pixels of an image fill nearly all of theirs. The price is turning what is read
and what is written, so it pays where both are small beside the products.
"""

from __future__ import annotations

from math import prod

from ....tensor.expr import Load, variables, walk
from ....tensor.kernel import Stage
from ...machine import Machine, lanes
from ...schedule import Schedule
from ..common import coefficient, store_stride
from .tile_choice import choose_tile, tile_cost
from .turned import Across, lying_across

#: cycles that turning a vector round costs on its way in and on its way out (measured: 3 to 5, and 3 to 8)
TURN_IN, TURN_OUT = 4.0, 8.0
#: the estimated gain from which lanes along rows may be tried, and from which they are the default
LITTLE, MUCH = 0.85, 1.05


def row_lanes(s: Schedule, anchor: Stage, n: str, row: str, x: Across, machine: Machine) -> bool:
    """Whether lanes run along the loop `row` instead of the columns `n`, for which operand `x` is turned round; asked
    only where it may pay and what is turned for a vector of rows stays in the second-level cache."""
    if anchor.extents[row] < lanes(machine, s.buffer(anchor.buffer).dtype):
        return False
    gain, turned = _gain(s, anchor, n, row, x, machine)
    if gain < LITTLE or turned > machine.l2_bytes // 2:
        return False
    return s.sample_choice("lanes", ("columns", "rows"), "rows" if gain > MUCH else "columns") == "rows"


def best_gain(s: Schedule, anchor: Stage, n: str, rows: list[str], machine: Machine) -> float:
    """How much faster lanes along rows are estimated to be; 1 where they are slower, or not possible."""
    found = lying_across(s, anchor, rows[0], 1) if rows else []
    if not found or anchor.extents[rows[0]] < lanes(machine, s.buffer(anchor.buffer).dtype):
        return 1.0
    return max(1.0, _gain(s, anchor, n, rows[0], found[0], machine)[0])


def _gain(s: Schedule, anchor: Stage, n: str, row: str, x: Across, machine: Machine) -> tuple[float, int]:
    """The estimated time with lanes along the columns over that with lanes along rows, and the bytes turned round for
    a vector of rows."""
    extents, registers = anchor.extents, machine.vector_registers
    width = lanes(machine, s.buffer(anchor.buffer).dtype)
    depth = prod(extents[k] for k in anchor.reduction)
    others = prod(e for v, e in anchor.parallel if v not in (n, row))

    def products(rows: int, columns: int) -> float:
        tile = choose_tile([rows], columns, width, registers, depth, machine)
        return tile_cost([rows], columns, width, tile, depth, machine) * depth * others

    loads = [y for y in walk(s.store(anchor.name).targets[0].value) if isinstance(y, Load) and y.buffer == x.buffer]
    index = loads[0].indices[x.lane]
    along = [k for k in anchor.reduction if k in variables(index)]
    span = extents[row] + sum((extents[k] - 1) * (coefficient(index, k) or 0) for k in along)
    numbers = prod(extents[k] for k in anchor.reduction if k not in along)
    read = numbers * -(-span // width)
    written = extents[row] * -(-extents[n] // width)
    turned = products(extents[n], extents[row]) + others * (TURN_IN * read + TURN_OUT * written)
    return products(extents[row], extents[n]) / turned, numbers * (width + span - extents[row]) * 4


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


__all__ = ["TURN_IN", "best_gain", "row_lanes", "stage_sums", "write_rows"]
