"""Loads and stores of attention's operands by rows: a row is one query of one head. Heads that share keys
(grouped-query attention) can have their rows in one range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ...nest import Alloc, Stmt, Store, seq, store
from ..custom.attention import Reader, Shape
from ..custom.nests import add, index, mul, wrapped
from .thread_binding import all_of, on, within

#: loops over the grid
BATCH, HEAD = Var("batch"), Var("head")
#: the largest score so far begins here and not at -inf: differences of two of these are numbers
LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class Operands:
    """Of batch `b` and head `head`, which is one of the keys' heads if rows are `together`: the queries of all heads
    that share its keys, one head's after the other's. Else it is one of the queries' heads.

    Keys are counted from the first one of their `part`; of all parts together there are `total`.
    """

    s: Shape
    read: Reader
    together: bool
    b: Expr = BATCH
    head: Expr = HEAD
    part: Expr | None = None
    total: int = 0

    @staticmethod
    def of(s: Shape, read: Reader, *, together: bool) -> Operands:
        """Those of an attention; its keys become those of a part, at most."""
        if s.parts == 1:
            return Operands(s, read, together, total=s.keys)
        one = replace(s, keys=-(-s.keys // s.parts))
        return Operands(one, read, together, head=HEAD // s.parts, part=HEAD % s.parts, total=s.keys)

    @property
    def rows(self) -> int:
        return self.s.queries * (self.s.group if self.together else 1)

    @property
    def heads(self) -> int:
        return self.s.heads // (self.s.group if self.together else 1)

    @property
    def blocks(self) -> int:
        """Heads of all batches, once for each part of the keys."""
        return self.heads * self.s.batch * self.s.parts

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

    # ---- keys

    @property
    def length(self) -> Expr | None:
        """How many keys the sequence has, where memory says that."""
        p = self.s.pages
        return None if p is None or p.lengths is None else self._integer(p.lengths, self.b)

    @property
    def run(self) -> Expr:
        """Keys of a part."""
        length = self.length
        return index(self.s.keys) if length is None else (length + (self.s.parts - 1)) // self.s.parts

    def position(self, j: Expr) -> Expr:
        """Key j of the part among all keys."""
        return j if self.part is None else self.part * self.run + j

    def at(self, j: Expr) -> Expr:
        """The same, or the last key there is for those beyond it."""
        length = self.length
        if length is not None:
            return minimum(self.position(j), Op("maxsi", (length - 1, index(0)), "index"))
        beyond = self.s.keys * self.s.parts > self.total
        return minimum(self.position(j), self.total - 1) if beyond else self.position(j)

    def _integer(self, buffer: str, *at: Expr) -> Expr:
        return Op("index_cast", (Load(buffer, at, self.read.kernel.buffer(buffer).dtype),), "index")

    def _of_key(self, buffer: str, j: Expr, d: Expr) -> Expr:
        p, at = self.s.pages, self.at(j)
        if p is None:
            return self.read(buffer, self.b, self.key_head, at, d)
        page = wrapped(self._integer(p.table, self.b, at // p.length), p.count)
        return self.read(buffer, page, at % p.length, self.key_head, d)

    def query(self, row: Expr, d: Expr) -> Expr:
        return self.read(self.s.q, self.b, *self.place(row), d)

    def key(self, j: Expr, d: Expr) -> Expr:
        return self._of_key(self.s.k, j, d)

    def value(self, j: Expr, e: Expr) -> Expr:
        return self._of_key(self.s.v, j, e)

    # ---- scores

    @property
    def offset(self) -> Expr | int | None:
        """How much further than its own number a query sees; None if it sees all keys."""
        if self.length is not None:
            return self.length - self.s.queries
        return self.s.offset if self.s.causal else None

    def score(self, value: Expr, row: Expr, key: Expr, tiles: tuple[int, int]) -> Expr:
        """A product of query and key with the mask, and -inf where the query does not see the key. Rows and keys come
        in `tiles`, of which some may lie beyond the last ones."""
        s, offset = self.s, self.offset
        if s.mask is not None:
            inner = minimum(row, self.rows - 1) if self.rows % tiles[0] else row
            of = (self.b, *self.place(inner), self.at(minimum(key, s.keys - 1) if s.keys % tiles[1] else key))
            pairs = zip(s.mask_shape, of[4 - len(s.mask_shape) :], strict=True)
            value = add(value, self.read(s.mask, *(index(0) if n == 1 else x for n, x in pairs)))
        seen = [within(key, s.keys, tiles[1])]
        if self.length is not None and self.part is not None:
            seen = [Op("cmpi.slt", (key, self.run), "i1")]
        elif s.keys * s.parts > self.total:
            seen.append(Op("cmpi.slt", (self.position(key), index(self.total)), "i1"))
        if offset is not None:
            seen.append(Op("cmpi.sle", (self.position(key), self.place(row)[1] + offset), "i1"))
        sees = all_of(seen)
        return value if sees is None else Op("select", (sees, value, s.number(float("-inf"))), s.dtype)

    def reached(self, first_key: Expr, first_row: Expr, rows: int) -> Expr | None:
        """Whether any of some rows sees any key from the first one on; None if that is not asked."""
        s, offset = self.s, self.offset
        if offset is None:
            return None
        last: Expr = index(s.queries - 1)
        if not self.together or s.group == 1:
            last = minimum(first_row + (rows - 1), s.queries - 1) if self.rows % rows else first_row + (rows - 1)
        sees = Op("cmpi.sle", (self.position(first_key), last + offset), "i1")
        mine = self.length is not None and self.part is not None
        return all_of([sees, Op("cmpi.slt", (first_key, self.run), "i1") if mine else None])

    # ---- results

    def write(self, row: Expr, e: Expr, value: Expr) -> Store:
        head, query = self.place(row)
        at = (self.b, head, query, e) if self.part is None else (self.b, head, self.part, query, e)
        return self.read.write(self.s.out, at, value, "out")

    def tell(self, row: Expr, *values: Expr) -> Stmt:
        """What is written of a row beside the results of a part: its largest score, and the sum of its weights."""
        assert self.part is not None
        head, query = self.place(row)
        at = (self.b, head, self.part, query)
        return seq(*(self.read.write(n, at, v, f"out_{n}") for n, v in zip(self.s.partials, values, strict=True)))

    def grid(self, name: str, parts: int, body: Stmt) -> Stmt:
        """`body` for all batches, heads with parts of the keys, and parts of a head's work."""
        inner = on("grid.x", name, parts, body)
        return on("grid.z", "batch", self.s.batch, on("grid.y", "head", self.heads * self.s.parts, inner))


def own(name: str, dtype: str, *shape: int) -> Buffer:
    """Numbers that threads keep for themselves: the first index is the thread."""
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


__all__ = ["LOWEST", "Operands", "add", "exp_of", "folded", "index", "inverse", "larger", "mul", "own", "unrolled"]
