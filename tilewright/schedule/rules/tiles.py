"""What the rules with a register tile share: its form, the stages around a sum of products, and its loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...tensor.kernel import Kernel, Stage
from ..schedule import Schedule


@dataclass(frozen=True)
class Tile:
    """Rows of the register tile along the innermost and the next row loop, and vectors along `n`."""

    rows: int
    outer_rows: int
    vectors: int


def pieces(total: int, size: int) -> list[tuple[int, int]]:
    """(tile size, how many of them): the full tiles and the partial one.

    >>> pieces(10, 4)
    [(4, 2), (2, 1)]
    """
    found = [(size, total // size)]
    if total % size:
        found.append((total % size, 1))
    return found


def around(kernel: Kernel, anchor: Stage) -> tuple[Sequence[Stage], Sequence[Stage], Sequence[Stage]]:
    """The stages before a sum, those after it that read something, and the borders of a padded result."""
    at = kernel.stages.index(anchor)
    later = kernel.stages[at + 1 :]
    return kernel.stages[:at], [x for x in later if x.reads], [x for x in later if not x.reads]


def join_readers(s: Schedule, anchor: Stage, after: Sequence[Stage]) -> str:
    """Make one block of what follows a sum, with the sum's own loops; returns its name. ScheduleError if it cannot be.

    Without readers, or if the sum is itself a result, the block copies the sum out of its accumulators.
    """
    for e in after[:-1]:
        s.inline(e.name)
    if after and after[-1].buffer in s.kernel.outputs and anchor.buffer not in s.kernel.outputs:
        s.reindex(after[-1].name, anchor.name)
        return after[-1].name
    return s.cache_write(anchor.name)


def registers(s: Schedule, loops: list[str], width: int) -> None:
    """The loops over the tile: rows unrolled, the last one in vectors."""
    *rows, n = loops
    for m in rows:
        s.unroll(m)
    vector, lane = s.split(n, width)
    s.unroll(vector)
    s.vectorize(lane)
