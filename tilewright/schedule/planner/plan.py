"""`Plan`: how a sum of products runs. The fields are what a tuner may change (docs/tuning.md has its decisions)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .instructions import Tile

Along = Literal["M", "N", "K"]
Brought = Literal["direct", "packed", "transposed", "gathered"]


@dataclass(frozen=True)
class Plan:
    """How a sum of products runs.

    vector: the loop along which lanes run: M (rows), N (columns), K (the reduction).
    tile: rows, outer rows and vectors of columns whose sums stay in registers; with K the results along the two loops.
    remainder: columns beyond whole vectors are a partial vector ("mask"), `share` rows have a vector of them together
        ("share"), or lanes run along the reduction for them, `share` rows at a time ("peel").
    operands: those of the columns are read as they lie ("direct"), packed at compile time ("packed"), copied with the
        lanes last ("transposed"), or gathered ("gathered").
    k_blocks: the parts of the reduction between which sums wait in memory; k_pieces: the same on matrix registers.
    interleaved: products of a batch that are summed beside each other.
    rows_inside, row_runs: rows pass inside a panel of columns, in so many runs that threads share.
    unroll_loops, unroll: the innermost loops of the reduction that are unrolled, and the steps of the next one.
    prefetch: how far ahead packed operands are asked for, in numbers; 1: the next panel while rows pass over this one.

    >>> print(Plan(tile=(6, 1, 2), operands="packed", unroll=4))
    vectorize N with fma, tile 6 x 2 vectors, mask the remainder, packed, rows inside, unroll 4
    """

    vector: Along = "N"
    tile: Tile | tuple[int, ...] = (1, 1, 1)
    remainder: Literal["mask", "share", "peel"] = "mask"
    share: int = 1
    operands: Brought = "direct"
    k_blocks: int = 1
    k_pieces: bool = False
    interleaved: int = 1
    rows_inside: bool = True
    row_runs: int = 1
    unroll_loops: int = 0
    unroll: int = 1
    prefetch: int = 0
    instruction: str = "fma"

    def __str__(self) -> str:
        *rows, columns = self.tile or (1,)
        size = " x ".join(str(n) for n in rows if n > 1 or rows == [n])
        unit = "results" if self.vector == "K" else "vectors" if columns > 1 else "vector"
        remainder = {"mask": "mask the remainder", "share": f"{self.share} rows share the remainder"}
        parts = [
            f"vectorize {self.vector} with {self.instruction}",
            f"tile {size or 1} x {columns} {unit}",
            remainder.get(self.remainder, f"peel the remainder, {self.share} rows at a time"),
            self.operands,
            f"{self.k_blocks} blocks of K" if self.k_blocks > 1 else "pieces of K" if self.k_pieces else "",
            f"{self.interleaved} products interleaved" if self.interleaved > 1 else "",
            "rows inside" if self.rows_inside else "columns inside",
            f"rows in {self.row_runs} runs" if self.row_runs > 1 else "",
            f"unroll {self.unroll_loops} loops of K" if self.unroll_loops else "",
            f"unroll {self.unroll}" if self.unroll > 1 else "",
            f"prefetch {self.prefetch}" if self.prefetch else "",
        ]
        return ", ".join(p for p in parts if p)


__all__ = ["Along", "Brought", "Plan"]
