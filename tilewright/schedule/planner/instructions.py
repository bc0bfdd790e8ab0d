"""Multiply-add instructions that a plan may use: f32 vectors, pairs of bf16, bytes, matrix registers. Each says which
tiles of sums its registers hold, and what a step of the reduction with one costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..machine import DotProduct, Machine, PairProduct, Rate, TileCosts, TileProduct, VectorAccess

#: loops of the reduction of up to so many steps are unrolled
SHORT_LOOP = 4
#: rows, outer rows, and vectors of columns of a tile of sums
Tile = tuple[int, int, int]


class Step(NamedTuple):
    """A step of the reduction in a tile: rows and outer rows, vectors of columns that are loaded, sums; `stores` are
    the vectors of results. `lane_loads` is the number of loads of a vector of columns, `panel` the extra cycles of
    each, by the level of memory that its panel is in."""

    rows: int
    outer: int
    vectors: int
    sums: int
    stores: int
    lane_loads: float = 1.0
    panel: float = 0.0


@dataclass(frozen=True)
class Instruction:
    """Multiplies and adds vectors of `lanes` sums, of factors of so many bytes, `group` neighbours of the reduction
    at once."""

    name: str = "fma"
    lanes: int = 1
    group: int = 1
    factor_bytes: int = 4
    rate: Rate = field(default_factory=lambda: Rate(4, 2))
    access: VectorAccess = field(default_factory=VectorAccess)
    registers: int = 16
    costs: TileCosts = field(default_factory=TileCosts)
    #: rows of tiles that are tried, at most; several outer rows only where a tile has all of up to so many rows
    max_rows: int = 24
    max_short: int = 8

    @property
    def neighbours(self) -> int:
        """How many numbers of the reduction lie beside each other in what is packed for it."""
        return self.group

    def cycles(self, steps: int, x: Step, whole_rows: bool) -> float:
        """Of so many steps of the reduction, with start and end."""
        loads = (x.rows * x.outer + x.lane_loads * x.vectors) * self.access.load
        step = max(self.rate.cycles(x.sums), loads) + self.costs.step
        step += self.costs.row * x.rows * x.outer + x.panel * x.vectors
        return steps * step + self.costs.around + self.costs.store[not whole_rows] * x.stores

    def factor(self, tile: Tile) -> float:
        """A correction: measured over counted cycles of such a tile."""
        wide = self.costs.wide if tile[2] > self.costs.wide_vectors and tile[0] * tile[1] > 1 else 1.0
        return wide * (self.costs.outer if tile[1] > 1 else 1.0)

    def tiles(self, rows: Sequence[int], columns: int, registers: int | None = None) -> list[Tile]:
        """Tiles of sums that stay in registers, with a vector of each column and one of a row."""
        inner, outer = (*rows, 1, 1)[:2]
        room, found = registers or self.registers, []
        for v in range(1, 9):
            if v > 1 and (v - 1) * self.lanes >= columns:
                break
            for r in range(1, min(inner, self.max_rows) + 1):
                for q in range(1, min(outer, 4) + 1) if r == inner and inner <= self.max_short else (1,):
                    # one for the row: a tile that takes all registers is spilled where windows overlap (measured)
                    if r * q * v + v + 1 <= room:
                        found.append((r, q, v))
        return found

    def unrolled(
        self, extents: Sequence[int], sums: int = 1, short: int = SHORT_LOOP, most: int = 4
    ) -> tuple[int, list[int], int]:
        """How many of the innermost loops of the reduction are unrolled whole: short ones, the innermost of up to
        `short` steps; in which parts the next may be unrolled, and (up to `most` steps) is."""
        loops = 0
        while loops < len(extents) and extents[-1 - loops] <= short:
            loops, short = loops + 1, min(short, SHORT_LOOP)
        n = [*extents, 1][len(extents) - 1 - loops]
        # factors that leave a tail were measured and bring nothing; 3, 5 and 6 make tiles of four vectors 40% slower
        factors = [f for f in (1, 2, 3, 4, 5, 6, 8) if n % f == 0]
        return loops, factors, max(f for f in (1, 2, 4) if f in factors and f <= most)


class Pairs(Instruction):
    """Products of pairs of bf16."""

    def unrolled(
        self, extents: Sequence[int], sums: int = 1, short: int = 2, most: int = 4
    ) -> tuple[int, list[int], int]:
        loops, factors, _ = super().unrolled(extents, sums, short, most)
        factors = [f for f in factors if f <= 4]
        return loops, factors, factors[-1]


@dataclass(frozen=True)
class Bytes(Instruction):
    """Sums of products of bytes (`machine.DotProduct`)."""

    dot: DotProduct = field(default_factory=lambda: DotProduct("", 1, 4, ("s", "s"), 1, 1))

    def cycles(self, steps: int, x: Step, whole_rows: bool) -> float:
        if self.dot.lanes:
            return super().cycles(steps, x, whole_rows)
        # the instructions that are emitted, one at a time: unpacking and loading of words, and the products
        t, v = x.rows * x.outer, x.vectors
        step = 3 * (t + v) + 2 * t * v + 2 if self.dot.depth == 4 else (t + v) + t * v + 1
        end = 12 * t * (v if self.dot.depth == 4 else 0.2 * v + -(-v // 4))
        return steps * step + self.costs.around + end

    def unrolled(
        self, extents: Sequence[int], sums: int = 1, short: int = SHORT_LOOP, most: int = 4
    ) -> tuple[int, list[int], int]:
        """Few steps: code stays small where there are no vectors."""
        most, loops = most if self.dot.lanes else max(1, 8 // sums), 0
        while loops < len(extents) and 1 < extents[-1 - loops] <= most:
            most //= extents[-1 - loops]
            loops += 1
        n = [*extents, 1][len(extents) - 1 - loops]
        factors = [f for f in (1, 2, 3, 4) if n % f == 0]
        return loops, factors, max(f for f in factors if f <= most)

    def tiles(self, rows: Sequence[int], columns: int, registers: int | None = None) -> list[Tile]:
        inner, outer = (*rows, 1, 1)[:2]
        room, found = self.dot.rows * self.dot.columns, []
        for v in range(1, max(self.dot.columns, 4) + 1):
            if v > 1 and (v - 1) * self.lanes >= columns:
                break
            for r in range(1, min(inner, room) + 1):
                for q in range(1, min(outer, 4) + 1) if r == inner else (1,):
                    if r * q * v <= room:
                        found.append((r, q, v))
        return found


#: registers of rows and of columns in a tile that are tried, at most; which of them fit, `TileProduct.registers` says
MAX_MATRICES = 3


@dataclass(frozen=True)
class Matrices(Instruction):
    """Registers that hold matrices (`machine.TileProduct`); a "vector" of columns is a row of one."""

    product: TileProduct = field(default_factory=lambda: TileProduct("", "bf16", ("f", "f")))

    @property
    def neighbours(self) -> int:
        return self.product.group

    def cycles(self, steps: int, x: Step, whole_rows: bool) -> float:
        p, lines, tiles = self.product, x.outer * x.rows, x.outer * -(-x.rows // self.product.rows)
        # a product takes cycles for every row of its registers; short ones are not as fast as they look
        multiply = x.vectors * p.row_cycles * (p.short_part * lines + (1 - p.short_part) * p.rows * tiles)
        load = lines + x.vectors * p.rows
        # start and end of a tile pass each row of its sums through memory
        ends = p.end_cycles + p.sum_row_cycles * x.vectors * lines
        return steps * max(multiply, load * self.access.load) + ends + p.line_cycles * steps * load

    def tiles(self, rows: Sequence[int], columns: int, registers: int | None = None) -> list[Tile]:
        inner, outer = (*rows, 1, 1)[:2]
        most, found = self.product.rows, []
        whole = {most * i for i in range(1, MAX_MATRICES + 1)} | {inner}
        even = {-(-inner // i) for i in range(1, inner + 1) if inner % i == 0}
        sizes = sorted(r for r in whole | even if r <= min(inner, MAX_MATRICES * most))
        for c in range(1, min(MAX_MATRICES, -(-columns // self.lanes)) + 1):
            for q in range(1, min(outer, MAX_MATRICES) + 1):
                for r in sizes:
                    tiles = q * -(-r // most)
                    if (q == 1 or r == inner) and tiles * c + tiles + c <= self.product.registers:
                        found.append((r, q, c))
        return found


def vectors(machine: Machine, width: int) -> Instruction:
    """Multiply-adds of f32 vectors, of so many lanes."""
    return Instruction(
        "fma", width, rate=machine.fma, access=machine.access, registers=machine.vector_registers, costs=machine.tile
    )


def pairs(found: PairProduct, machine: Machine) -> Instruction:
    """Multiply-adds of pairs of bf16."""
    return Pairs(
        found.name, found.lanes, 2, 2, found.rate, machine.access, machine.vector_registers, found.costs,
        max_rows=28, max_short=5,
    )  # fmt: skip


def dots(found: DotProduct, machine: Machine) -> Instruction:
    """Sums of products of bytes."""
    return Bytes(
        found.name, max(found.lanes, 1), found.depth, 1, found.rate, machine.access, machine.vector_registers,
        found.costs, dot=found,
    )  # fmt: skip


def matrices(found: TileProduct, step: int, machine: Machine) -> Instruction:
    """Products of matrices in registers, `step` numbers of the reduction at once."""
    return Matrices(
        found.name, found.columns, step, found.size, access=machine.access, registers=found.registers, product=found
    )


__all__ = [
    "SHORT_LOOP", "Bytes", "Instruction", "Matrices", "Pairs", "Step", "Tile", "dots", "matrices", "pairs", "vectors",
]  # fmt: skip
