"""CPU cost records: cycles of vector operations and memory accesses, as fields of `machine.Machine`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VectorAccess:
    """Cycles that a vector takes from and to the first-level cache: in the best case, and where it lies across two
    cache lines; `picked` is a load of numbers a few apart in one row, `scattered_loads` how many loads one takes of
    numbers that lie anywhere in a window."""

    load: float = 0.5
    split_load: float = 1.0
    store: float = 1.0
    split_store: float = 1.4
    picked: float = 3.0
    scattered_loads: float = 5.0


@dataclass(frozen=True)
class Shuffles:
    """Cycles of what moves numbers between the lanes of vectors (measured with AVX-512).

    `transpose_in` and `transpose_out`: to transpose a vector on its way into registers (3 to 5) and out of them (3 to
    8); `transpose_number`: a number of a few columns; `gather`: a vector of numbers that lie apart in memory (64 where
    each lies in a page of its own); `add_lanes`: to add up the lanes of one."""

    transpose_in: float = 4.0
    transpose_out: float = 8.0
    transpose_number: float = 1.0
    gather: float = 16.0
    add_lanes: float = 2.5


@dataclass(frozen=True)
class FarAccess:
    """What it costs that numbers come from beyond the first-level cache, in cycles where nothing else is said.

    `l2_vector`, `l3_vector`: a vector of rows in the second-level cache that are read `l2_rows` at a time, and of rows
    further away, `l3_rows` at a time; `row_doubling` is the part of it that every doubling of these rows adds, where
    rows are `stream_lines` cache lines long. `shared_l2_vector`: a vector of a panel in the second-level cache that
    rows share. `number`: one of a row beyond that cache. `streams`: rows that hardware fetches ahead at a time.

    Factors: how many times as long a tile takes of more rows than `streams` (`crowded_streams`) or than the sets of the
    first-level cache hold (`crowded_sets`), and blocks of a reduction whose rows do not stay in the second-level cache
    (`far_block`). `bytes_per_cycle`: what a core exchanges with the memory behind its caches."""

    l2_vector: float = 1.4
    l2_rows: int = 2
    l3_vector: float = 2.3
    l3_rows: int = 4
    row_doubling: float = 0.1
    stream_lines: int = 6
    shared_l2_vector: float = 0.25
    number: float = 0.3
    streams: int = 8
    crowded_streams: float = 1.03
    crowded_sets: float = 1.25
    far_block: float = 1.1
    bytes_per_cycle: float = 8.0


@dataclass(frozen=True)
class Prefetch:
    """How many bytes ahead software asks for memory: for rows of a few vectors, and for packed weights that are read
    once."""

    row_bytes: int = 8192
    weight_bytes: int = 16384


@dataclass(frozen=True)
class Blocking:
    """When a reduction is worth taking in blocks (measured, with weights from memory): from `long_sum` steps on if at
    most `few_rows` rows pass over a panel of weights; from `medium_sum` steps on for any number of rows if a panel of
    two vectors takes more than `l2_share` of the second-level cache."""

    long_sum: int = 768
    few_rows: int = 200
    medium_sum: int = 256
    l2_share: float = 5 / 16


@dataclass(frozen=True)
class WindowCosts:
    """Cycles of a tile of a depthwise convolution: `next_row`, `next_column`: for a number that registers do not hold,
    there and back, which the next row needs (where windows move by one row, and by more) or the next column; `around`:
    around the tile. `exposed` is how much of the smaller one of arithmetic and memory operations is not hidden."""

    next_row: tuple[float, float] = (2.0, 1.0)
    next_column: float = 1.5
    around: float = 8.0
    exposed: float = 0.3


@dataclass(frozen=True)
class OperationCycles:
    """Cycles of a vector operation; `simple` is an addition, multiplication or comparison, `function` exp and the
    like."""

    divide: float = 4
    sqrt: float = 6
    rsqrt: float = 10
    divide_integers: float = 20
    function: float = 12
    simple: float = 0.5


__all__ = [
    "Blocking",
    "FarAccess",
    "OperationCycles",
    "Prefetch",
    "Shuffles",
    "VectorAccess",
    "WindowCosts",
]
