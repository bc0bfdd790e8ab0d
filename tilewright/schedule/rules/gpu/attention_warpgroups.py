"""Fused attention by warpgroup matrix instructions (``wgmma``), whose factors lie in shared memory (see
`attention_warps`).

A warpgroup has 64 rows. Scores are products of queries and keys, both in shared memory in rows of 64 numbers along the
depth; results are products of the weights, which the warpgroup holds as it holds accumulators, and of the values, whose
rows of 64 numbers go along the columns of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ...machine import Machine, WarpProduct
from ...nest import Stmt, seq, store
from ...producers import PRODUCER
from .attention_operands import Operands, unrolled
from .attention_warps import (
    Brought,
    Instructions,
    WarpAttentionPlan,
    WarpAttentionWriter,
    factors_dtype,
    fits,
    together,
)
from .thread_binding import on, shared

#: what is tried: groups of a block, and keys of a tile
GROUPS, KEYS = (2, 1), (128, 64)
#: numbers of 16 bits in a row of a factor, and in a piece of it that changes places with the row
_ROW, _PIECE = 64, 8


class Panels(Brought):
    """A matrix in panels of 64 columns, in rows of 128 bytes whose 8 pieces are swizzled."""

    def __init__(
        self, name: str, dtype: str, memory: str, rows: int, columns: int, stages: int, w: WarpAttentionWriter
    ) -> None:
        super().__init__(name, dtype, memory, rows, columns, stages, w)
        self.buffer = Buffer(name, (stages, columns // _ROW, rows, _ROW), dtype, memory)

    def place(self, stage: Expr, row: Expr, piece: Expr, x: Expr) -> tuple[Expr, ...]:
        pieces = _ROW // _PIECE
        turned = Op("xori", (piece % pieces, row % pieces), "index")
        return stage, piece // pieces, row, turned * _PIECE + x

    def boxes(self, stage: Expr, source: Callable[[Expr, Expr], Expr]) -> Stmt:
        copied = []
        for panel in range(self.columns // _ROW):
            row, x = Var("row"), Var("x")
            turned = Op("xori", (x // _PIECE, row % (_ROW // _PIECE)), "index") * _PIECE + x % _PIECE
            place = (stage, Const(panel, "index"), row, turned)
            put = store(self.name, place, source(row, x + panel * _ROW), f"bring_{self.name}_{panel}")
            copied.append(on("serial", "row", self.rows, on("serial", "x", _ROW, put)))
        return seq(*copied)


def instructions(o: Operands, keys: int, machine: Machine) -> Instructions | None:
    """The widest ones for so many keys, and for the columns of the values."""
    memory, s = shared(machine), o.s
    products = [
        p
        for p in machine.warp_products
        if memory is not None and p.operands == memory.name and p.dtype == factors_dtype(o)
    ]

    def widest(columns: int, first: str) -> WarpProduct | None:
        found = [p for p in products if p.first == first and columns % p.columns == 0]
        return max(found, key=lambda p: p.columns) if found else None

    scores = widest(keys, "")
    results = widest(s.width, scores.memory) if scores is not None else None
    if scores is None or results is None or s.depth % _ROW:
        return None
    return together(scores, results, None, machine)


def plans(o: Operands, machine: Machine) -> list[WarpAttentionPlan]:
    """Those that fit the machine, the best first."""
    made = []
    for groups in GROUPS:
        for keys in KEYS:
            own = instructions(o, keys, machine)
            if own is not None and fits(WarpAttentionPlan(groups, keys), o, own, 0, machine):
                made.append(WarpAttentionPlan(groups, keys))
    return made


class WarpgroupAttentionWriter(WarpAttentionWriter):
    """Writes the nest."""

    tile = Panels

    def computed(self, *parts: Stmt) -> Stmt:
        """Where an engine copies, a group of its own begins that: the others do not wait for each other."""
        if self.way != "bulk":
            return super().computed(*parts)
        return replace(on("serial", "turn", 1, *parts), notes=((PRODUCER, True),))

    def held_queries(self) -> list[Buffer]:
        return []

    def load_queries(self) -> None:
        return None

    def scores(self) -> list[Stmt]:
        p, stage, zero = self.p, self.step % 2, Const(0, "index")
        d, c = Var("d") * p.depth, Var("c") * p.columns
        x = self.queries.at(zero, self.mine(Var("m")), d + Var("k"))
        product = self.multiply(p, "scores", x, lambda k, n: self.keys.at(stage, c + n, d + k), c, "multiply")
        loops = [("c", self.plan.keys // p.columns), ("d", self.s.depth // p.depth)]
        return [self.clear(), unrolled(loops, product)]

    def weighted(self) -> list[Stmt]:
        p, stage = self.own.results, self.step % 2
        d, c = Var("d") * p.depth, Var("c") * p.columns
        x = Load("weights", (self.mine(Var("m")), d + Var("k")), self.dtype)
        product = self.multiply(p, "results", x, lambda k, n: self.values.at(stage, d + k, c + n), c, "sum")
        return [unrolled([("c", self.s.width // p.columns), ("d", self.plan.keys // p.depth)], product)]


__all__ = ["WarpgroupAttentionWriter", "instructions", "plans"]
