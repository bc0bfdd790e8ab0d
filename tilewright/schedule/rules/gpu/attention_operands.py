"""What attention reads and writes, by rows: a row is a query of a head. Rows of heads that share keys can lie in one
range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ...nest import Alloc, Stmt, Store, seq, store
from ..custom.attention import Reader, Shape
from ..custom.nests import add, index, mul
from .units import all_of, on, within

#: loops over the grid
BATCH, HEAD = Var("batch"), Var("head")
#: the largest score so far begins here and not at -inf: differences of two of these are numbers
LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class Operands:
    """Of batch `b` and head `head`, which is one of the keys' heads if rows are `together`: the queries of all heads
    that share its keys, one head's after the other's. Else it is one of the queries' heads."""

    s: Shape
    read: Reader
    together: bool
    b: Expr = BATCH
    head: Expr = HEAD

    @property
    def rows(self) -> int:
        return self.s.queries * (self.s.group if self.together else 1)

    @property
    def heads(self) -> int:
        return self.s.heads // (self.s.group if self.together else 1)

    @property
    def key_head(self) -> Expr:
        return self.head if self.together or self.s.group == 1 else self.head // self.s.group

    def place(self, row: Expr) -> tuple[Expr, Expr]:
        """The head and the query of a row."""
        s = self.s
        if not self.together or s.group == 1:
            return self.head, row
        if s.queries == 1:
            return self.head * s.group + row, index(0)
        return self.head * s.group + row // s.queries, row % s.queries

    def query(self, row: Expr, d: Expr) -> Expr:
        return self.read(self.s.q, self.b, *self.place(row), d)

    def key(self, j: Expr, d: Expr) -> Expr:
        return self.read(self.s.k, self.b, self.key_head, j, d)

    def value(self, j: Expr, e: Expr) -> Expr:
        return self.read(self.s.v, self.b, self.key_head, j, e)

    def write(self, row: Expr, e: Expr, value: Expr) -> Store:
        return self.read.write(self.s.out, (self.b, *self.place(row), e), value, "out")

    def score(self, value: Expr, row: Expr, key: Expr, tiles: tuple[int, int]) -> Expr:
        """A product of query and key with the mask, and -inf where the query does not see the key. Rows and keys come
        in `tiles`, of which some may lie beyond the last ones."""
        s = self.s
        if s.mask is not None:
            inner = minimum(row, self.rows - 1) if self.rows % tiles[0] else row
            of = (self.b, *self.place(inner), minimum(key, s.keys - 1) if s.keys % tiles[1] else key)
            pairs = zip(s.mask_shape, of[4 - len(s.mask_shape) :], strict=True)
            value = add(value, self.read(s.mask, *(index(0) if n == 1 else x for n, x in pairs)))
        sees = None
        if s.causal:
            sees = Op("cmpi.sle", (key, self.place(row)[1] + s.offset), "i1")
        seen = all_of([within(key, s.keys, tiles[1]), sees])
        return value if seen is None else Op("select", (seen, value, s.number(float("-inf"))), s.dtype)

    def reached(self, first_key: Expr, first_row: Expr, rows: int) -> Expr | None:
        """Whether any of some rows sees any key from the first one on; None if that is not asked."""
        s = self.s
        if not s.causal:
            return None
        last: Expr = index(s.queries - 1)
        if not self.together or s.group == 1:
            last = minimum(first_row + (rows - 1), s.queries - 1) if self.rows % rows else first_row + (rows - 1)
        return Op("cmpi.sle", (first_key, last + s.offset), "i1")

    def grid(self, name: str, parts: int, body: Stmt) -> Stmt:
        """`body` for all batches, heads and parts of a head's work."""
        inner = on("grid.x", name, parts, body)
        return on("grid.z", "batch", self.s.batch, on("grid.y", "head", self.heads, inner))


def own(name: str, dtype: str, *shape: int) -> Buffer:
    """Numbers that units keep for themselves: the first index is the unit."""
    return Buffer(name, shape, dtype, "register")


def within_buffers(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for b in buffers[::-1]:
        body = Alloc(b, body)
    return body


def exp_of(x: Expr, shift: Expr) -> Expr:
    return Op("exp", (Op("subf", (x, shift), "f32"),), "f32")


def larger(a: Expr, b: Expr) -> Expr:
    """The larger one; of a number and none the first."""
    return Op("select", (Op("cmpf.ogt", (b, a), "i1"), b, a), "f32")


def inverse(total: Expr) -> Expr:
    """One over the sum of the exponentials; of a query that sees nothing the sum is 0, and so is all that is
    weighted."""
    one = Const(1.0, "f32")
    nothing = Op("cmpf.oeq", (total, Const(0.0, "f32")), "i1")
    return Op("divf", (one, Op("select", (nothing, one, total), "f32")), "f32")


def unrolled(loops: Sequence[tuple[str, int]], *body: Stmt) -> Stmt:
    made = seq(*body)
    for name, n in reversed(loops):
        made = on("unroll", name, n, made)
    return made


def folded(name: str, at: tuple[Expr, ...], by: Callable[[Expr, Expr], Expr], value: Expr, block: str) -> Store:
    """``name[at] = by(name[at], value)``."""
    return store(name, at, by(Load(name, at, "f32"), value), block)


__all__ = ["LOWEST", "Operands", "add", "exp_of", "folded", "inverse", "larger", "mul", "own", "unrolled"]
