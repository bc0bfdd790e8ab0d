"""Launch parameters of a kernel, and those that the host computes at run time with dynamic shapes (`open_sizes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...support.dtypes import LOOP_TYPES
from ...support.errors import UnsupportedError
from ...support.sizes import typical

#: what indices are computed in ends before this
LARGEST = 1 << 31
#: of an element in memory; booleans take a byte
BYTES = {n: 4 if n == "index" else t.nbytes for n, t in LOOP_TYPES.items()}
Formula = str | int


@dataclass(frozen=True)
class Launch:
    """On how many threads a kernel runs: blocks of a grid and threads of a block, along x, y and z. Of a kernel whose
    loops share their iterations out (`thread`) any number is right."""

    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)

    @staticmethod
    def from_json(data: Mapping[str, Sequence[int]]) -> Launch:
        """The inverse of `dataclasses.asdict`."""
        (x, y, z), (i, j, k) = data["grid"], data["block"]
        return Launch((x, y, z), (i, j, k))

    @property
    def threads(self) -> int:
        """Of a block."""
        return prod(self.block)

    @property
    def all_threads(self) -> int:
        """The threads of all blocks."""
        return self.threads * prod(self.grid)

    def extent(self, axis: str) -> int:
        """Of ``block.x`` and the like: how many threads there are."""
        name, _, dim = axis.partition(".")
        return (self.block if name == "block" else self.grid)["xyz".index(dim)]


ONE_THREAD = Launch()


@dataclass(frozen=True)
class OpenLaunch:
    """What the host computes for a kernel at each size: the numbers of its table, elements of its other arguments with
    the bytes of one, and blocks along the axes of the grid."""

    table: tuple[Formula, ...]
    arguments: tuple[tuple[Formula, int], ...]
    grid: tuple[Formula, Formula, Formula] = (1, 1, 1)

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """All of them: the table, the arguments, the grid."""
        return (*self.table, *(f for f, _ in self.arguments), *self.grid)

    @staticmethod
    def from_json(data: Any) -> OpenLaunch | None:
        """The inverse of `dataclasses.asdict`, also of None."""
        if data is None:
            return None
        x, y, z = data["grid"]
        return OpenLaunch(tuple(data["table"]), tuple((f, n) for f, n in data["arguments"]), (x, y, z))

    def at(self, numbers: Sequence[int], kernel: str) -> LaunchAt:
        """Everything for a size, of what the formulas are then; UnsupportedError for a number of more than 32 bits."""
        first, last = len(self.table), len(self.table) + len(self.arguments)
        table, counts, (x, y, z) = tuple(numbers[:first]), numbers[first:last], numbers[last:]
        if large := [n for n in (*table, *counts) if not -LARGEST <= n < LARGEST]:
            raise UnsupportedError(
                f"kernel {kernel} would compute with {large[0]:,} at these sizes, which is too large for 32 bits",
                stage="run",
                hint="call it with smaller sizes",
            )
        nbytes = tuple(n * each for n, (_, each) in zip(counts, self.arguments, strict=True))
        return LaunchAt(table, nbytes, (x, y, z))


@dataclass(frozen=True)
class LaunchAt:
    """An `OpenLaunch` at known sizes: the table, bytes of the arguments, blocks."""

    table: tuple[int, ...]
    nbytes: tuple[int, ...]
    grid: tuple[int, int, int]


def typical_grid(grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Blocks at typical sizes."""
    x, y, z = map(typical, grid)
    return x, y, z


__all__ = ["LARGEST", "Formula", "LaunchAt", "OpenLaunch", "typical_grid"]
