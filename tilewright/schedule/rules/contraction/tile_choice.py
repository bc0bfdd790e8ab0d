"""Which register tile a sum of products gets, by a model of the processor's cycles."""

from __future__ import annotations

from math import prod

from ....tensor.analysis import is_contraction
from ....tensor.kernel import Stage
from ...machine import Machine
from ...schedule import Schedule
from ..common import load_strides
from .tiles import Tile, pieces

#: cycles for a number of a row that comes from beyond the second-level cache
FAR = 0.3
#: tiles of more rows than STREAMS take MANY times as long: what a kernel before left elsewhere comes in as many
#: streams, more than processors fetch ahead (measured in models, 14 rows against 7: 1 to 3%; alone, it is even)
STREAMS, MANY = 8, 1.03
#: tiles of several rows and more than FOUR vectors take WIDE times as long as the model says (measured: 2 to 10%)
FOUR, WIDE = 4, 1.06
ORDINARY = Machine()


def choose_tile(
    rows: list[int],
    columns: int,
    width: int,
    registers: int,
    depth: int = 1,
    machine: Machine = ORDINARY,
    most: int | None = None,
    far: bool = False,
    shared: bool = False,
    lane_load: float = 1.0,
) -> Tile:
    """The register tile with the fewest estimated cycles for the whole result; `depth` is the length of the reduction.
    Tiles of more than `most` rows are avoided; `far`: the rows come from beyond the second-level cache for every panel;
    `shared`: threads take columns each; `lane_load`: see `tile_cost`.

    A tile of r rows and v vectors issues r*v multiply-adds, v vector loads and r broadcasts, and cannot be faster than
    the latency of its accumulators. The small terms are measured: loop overhead, broadcasts, and vector loads, which
    cost more if the panel they walk (depth * v vectors) is larger than the first-level cache, and more again if it does
    not stay in the second.
    """
    best: tuple[float, Tile] | None = None
    for size in tile_candidates(rows, columns, width, registers):
        cost = tile_cost(rows, columns, width, Tile(*size), depth, machine, lane_load)
        if most is not None and size[0] * size[1] > most:
            cost *= 1.25
        if size[0] * size[1] > STREAMS:
            cost *= MANY
        if shared:
            cost *= uneven_columns(-(-columns // width), size[2])
        if far:  # wider panels read them less often (measured: 1 to 3%)
            cost += FAR * prod(rows) * -(-columns // (size[2] * width))
        if best is None or cost < best[0] - 1e-9:
            best = (cost, Tile(*size))
    assert best is not None
    return best[1]


def uneven_columns(vectors: int, panel: int) -> float:
    """The largest share of the vectors of a row over the mean one, where threads share panels of so many vectors: each
    has as many panels, one the last, which is smaller.

    >>> uneven_columns(64, 2), round(uneven_columns(64, 3), 3)
    (1.0, 1.031)
    """
    return -(-vectors // panel) * panel / vectors if vectors > panel else 1.0


def tile_cost(
    rows: list[int],
    columns: int,
    width: int,
    tile: Tile,
    depth: int,
    machine: Machine,
    lane_load: float = 1.0,
    near: int | None = None,
) -> float:
    """The estimated cycles of one step of the reduction with a register tile; see `choose_tile`. A vector of the
    operand along the lanes takes as many loads as `lane_load` says; a panel of up to `near` bytes stays in the
    first-level cache (by default: as many as it has)."""
    v = tile.vectors
    panel = depth * v * width * 4
    load = (
        0.1 if panel <= (machine.l1_bytes if near is None else near) else 0.5 if panel <= machine.l2_bytes // 2 else 1.0
    )
    write = (2 if v * width >= columns else 4) / depth  # results leave in whole rows, or in pieces of rows
    cost = 0.0
    for tv, tn in pieces(-(-columns // width), v):
        for tr, rn in pieces(rows[0] if rows else 1, tile.rows):
            for tq, qn in pieces(rows[1] if len(rows) > 1 else 1, tile.outer_rows):
                t = tr * tq
                step = max(machine.fma.cycles(t * tv), (t + lane_load * tv) * machine.access.load)
                cost += tn * rn * qn * (step + 0.15 + 0.05 * t + load * tv + write * t * tv)
    cost *= WIDE if v > FOUR and tile.rows * tile.outer_rows > 1 else 1.0
    return cost if tile.outer_rows == 1 else 1.05 * cost  # two rows of windows: more addresses to keep


def choose_window_tile(rows: int, columns: int, width: int, step: int, size: int, machine: Machine) -> Tile:
    """The register tile of a depthwise convolution: windows of `size` positions, `step` apart, along the rows.

    No operand is shared by the lanes. What neighbouring windows share is loaded once, if the positions that a tile
    touches stay in registers beside its accumulators: measured, spilling them makes the kernel twice as slow. More than
    two vectors, or two where windows do not overlap by much, are slower too, and so are partial tiles.
    """
    best: tuple[float, Tile] | None = None
    registers = machine.vector_registers
    for r, q, v in tile_candidates([rows], columns, width, registers):
        span = (r - 1) * step + size
        if q > 1 or v > (2 if step == 1 else 1) or (r > 1 and (r + span) * v > registers):
            continue
        cost = 0.0
        for tv, tn in pieces(-(-columns // width), v):
            for tr, rn in pieces(rows, r):
                loads = ((tr - 1) * step + size) * tv / size + tv
                partial = 0.0 if tr == r else 4.0  # measured
                work = max(machine.fma.cycles(tr * tv), loads * machine.access.load)
                cost += tn * rn * (work + 0.3 + 0.05 * tr + partial)
        if best is None or cost < best[0] - 1e-9:
            best = (cost, Tile(r, q, v))
    assert best is not None
    return best[1]


def tile_candidates(
    rows: list[int], columns: int, width: int, registers: int, most: int = 24, short: int = 8
) -> list[tuple[int, int, int]]:
    """Register tiles that fit: (rows, outer rows, vectors). They have `most` rows at most, and several outer rows only
    where they have all of up to `short` rows."""
    inner = rows[0] if rows else 1
    outer = rows[1] if len(rows) > 1 else 1
    found = []
    for v in range(1, 9):
        if v > 1 and (v - 1) * width >= columns:
            break
        for r in range(1, min(inner, most) + 1):
            for q in range(1, min(outer, 4) + 1) if r == inner and inner <= short else (1,):
                # one for the broadcast: a tile that takes all registers is spilled where windows overlap (measured)
                if r * q * v + v + 1 <= registers:
                    found.append((r, q, v))
    return found


def whole_rows(s: Schedule, anchor: Stage, columns: str, width: int, registers: int) -> tuple[int, int, int] | None:
    """The tile of a sum over rows (of a single operand, over one loop) that lie one after the other: all of a row, so
    that memory is read in order, if three quarters of the registers hold it; else, and of rows that lie further apart,
    equal parts of a row that do, of more than the 8 vectors that other tiles have.

    Measured: 0.9 to 1.9 times as fast as the best of two and more tiles a row; parts are 1.0 to 1.7 times as fast as
    such tiles, but not for sums of less than 9 rows.
    """
    if is_contraction(anchor) or len(anchor.reduction) != 1:
        return None
    n, store = anchor.extents[columns], s.store(anchor.name)
    vectors, most = -(-n // width), 3 * registers // 4
    loads = [c for _, c in load_strides(s, store, anchor.reduction[0])]
    if loads == [n] and vectors <= most:
        return 1, 1, vectors
    apart = len(loads) == 1 and loads[0] is not None and loads[0] >= n
    if not apart or vectors <= 8 or s.extent(anchor.reduction[0]) < 9:
        return None
    return 1, 1, -(-vectors // -(-vectors // most))
