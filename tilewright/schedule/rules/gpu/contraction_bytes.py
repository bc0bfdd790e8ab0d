"""int8 matrix products on dp4a-like instructions, sums of four byte products (`machine.DotProduct`): a form of
`block_contraction`.

Pieces lie in rows along the sum, whatever their layout in global memory, so that four consecutive bytes are a word;
rows are padded by a word, which puts neighbouring rows into other banks.
"""

from __future__ import annotations

from math import prod

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ...machine import DotProduct, Machine, lanes
from ...nest import For, If, Stmt, store
from ...schedule import Schedule
from .contraction import Contraction, ContractionTile
from .contraction_vectors import VectorWriter
from .thread_binding import all_of, guarded, on, only_if, within

#: bytes of a word
WORD = 4
_EXTENDS = {"extsi": "s", "extui": "u"}
_LANE = Var("q")


def instruction(p: Contraction, machine: Machine) -> DotProduct | None:
    """The one that multiplies the factors of a product, if there is one."""
    ext = [f for f in p.factors if isinstance(f, Op) and f.op in _EXTENDS and f.dtype == "i32"]
    if len(ext) != 2 or any(f.args[0].dtype != "i8" for f in ext):
        return None
    signs = tuple(_EXTENDS[f.op] for f in ext)
    able = (d for d in machine.dot_products if not d.lanes and d.depth == WORD and lanes(machine, "i32") == WORD)
    return next((d for d in able if d.signs == signs), None)


class ByteWriter(VectorWriter):
    """Writes the nest of a product of bytes with a tile."""

    def __init__(self, s: Schedule, p: Contraction, t: ContractionTile, dot: DotProduct) -> None:
        super().__init__(s, p, t)
        self.dot = dot
        a, b = (
            Buffer(x.name, (n, t.depth + WORD), "i8", "shared")
            for x, n in zip(self.pieces, (t.rows, t.columns), strict=True)
        )
        self.pieces = a, b

    def piece(self, which: int) -> Stmt:
        """A thread loads words of a factor's bytes; those beyond the sum are zeros."""
        p, t = self.p, self.t
        group, tile, base = (p.rows, t.rows, self.row) if which == 0 else (p.columns, t.columns, self.column)
        name, words = "ab"[which], t.depth // WORD
        u, e = Var(f"u_{name}"), Var(f"e_{name}")
        place, count = e * t.threads + u, tile * words
        if self.along_depth(which):
            i, first = place // words, place % words * WORD
        else:  # neighbours are rows, or columns
            i, first = place % tile, place // tile * WORD
        position, depth = base * tile + i, self.step * t.depth + first + _LANE
        whole = p.size("depth") % WORD == 0
        ends = depth if not whole else self.step * t.depth + first
        inside = all_of([within(position, prod(n for _, n in group), tile), within(ends, p.size("depth"), t.depth)])
        zero = Const(0, "i8")
        value = self.byte(which, position, depth)
        at = (i, first + _LANE)

        def put(x: Expr) -> Stmt:
            return on("vector", _LANE.name, WORD, store(self.pieces[which].name, at, x, self.s.fresh(f"bring_{name}")))

        if inside is None or not whole:
            body = put(guarded(inside, value, zero))
        else:
            body = If(inside, put(value), put(zero))
        body = only_if(within(place, count, t.threads), body)
        return self.thread(u.name, on("serial", e.name, -(-count // t.threads), body))

    def byte(self, which: int, position: Expr, depth: Expr) -> Expr:
        """An element of a factor before it is extended."""
        value = self.factor(which, position, depth)
        assert isinstance(value, Op)
        return value.args[0]

    def multiply(self) -> Stmt:
        t, u, k, r, c = self.t, Var("u"), Var("k"), Var("r"), Var("c")
        row = u // (t.columns // t.thread_columns) * t.thread_rows + r
        rows = (row, self.column_of(u, c))
        words = [Load(b.name, (i, k * WORD + _LANE), "i8") for b, i in zip(self.pieces, rows, strict=True)]
        wide = [Op(f.op, (x,), "i32") for f, x in zip(self.p.factors, words, strict=True)]  # type: ignore[attr-defined]
        product = For(
            _LANE.name, Const(WORD, "index"), self.multiply_add(u, *wide), "unroll", notes=(("dot", self.dot.name),)
        )
        return self.thread("u", on("serial", "k", t.depth // WORD, self.own(product, "r", "c")))


__all__ = ["ByteWriter", "instruction"]
