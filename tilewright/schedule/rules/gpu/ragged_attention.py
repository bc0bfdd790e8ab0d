"""Attention of the tokens of several sequences to keys and values in pages (``tw.ragged_attention``): a block takes one
token with the query heads that share a key head, and its threads divide the keys among them (`attention_keys`).

Which sequence the token is of, and where it stands in it, is looked up once a block and kept in shared memory. Of
``tw.ragged_attention_parts`` a block takes a part of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....ops.ragged_attention import part_length
from ....support.dtypes import wide
from ....support.sizes import highest, is_open, lowest
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import Alloc, Barrier, If, Stmt, Store, loop, seq, store
from ...schedule import Schedule
from ..custom.attention import Reader, Shape
from ..custom.nests import index, less, mul
from ..custom.ragged_attention import larger
from . import attention_keys
from .attention_operands import BATCH, HEAD, Operands
from .tactics import in_turn, operator_rule
from .thread_binding import BLOCK, WarpAxes, all_of, fits_axis, on, only_if, shared

NAME = "ragged_attention"
PRIORITY = 7
I32 = "i32"
#: in shared memory: the token's sequence and its position
PLACE = "place"


@dataclass(frozen=True)
class RaggedOperands(Operands):
    """Of token `b`, whose keys are those of its sequence."""

    table: str = ""
    starts: str = ""
    lengths: str = ""
    softcap: float = 0.0
    window: int = 0
    #: threads of a block, in warps where there are some, and the keys that they take in a step
    threads: int = 1
    step: int = 1
    memory: str = "shared"
    warps: WarpAxes | None = None

    @property
    def sequence(self) -> Expr:
        return Op("index_cast", (Load(PLACE, (index(0),), I32),), "index")

    @property
    def last(self) -> Expr:
        """The last key that the token sees."""
        return Op("index_cast", (Load(PLACE, (index(1),), I32),), "index")

    @property
    def run(self) -> Expr:
        run: Expr = part_length(larger(self._integer(self.lengths, self.sequence), 1), self.s.parts)
        return run

    def sizes(self, buffer: str) -> tuple[int, ...]:
        return self.read.kernel.buffer(buffer).shape

    def _of_key(self, buffer: str, j: Expr, d: Expr) -> Expr:
        """An element of key j, or of the last one that the token sees."""
        (pages, length, *_), (_, most) = self.sizes(buffer), self.sizes(self.table)
        at = minimum(self.position(j), self.last)
        page = self._integer(self.table, self.sequence, minimum(at // length, most - 1))
        return self.read(buffer, larger(minimum(page, pages - 1), 0), at % length, self.key_head, d)

    def query(self, row: Expr, d: Expr) -> Expr:
        return self.read(self.s.q, self.b, self.place(row)[0], d)

    def score(self, value: Expr, row: Expr, key: Expr, tiles: tuple[int, int]) -> Expr:
        if self.softcap:
            value = mul(Op("tanh", (value,), self.s.dtype), self.s.number(self.softcap))
        at = self.position(key)
        behind = less(self.last, at + self.window) if self.window else None
        sees = all_of([Op("cmpi.sle", (at, self.last), "i1"), behind, self.of_part(key)])
        assert sees is not None
        return Op("select", (sees, value, self.s.number(float("-inf"))), self.s.dtype)

    def reached(self, first_key: Expr, first_row: Expr, rows: int) -> Expr | None:
        at = self.position(first_key)
        behind = less(self.last, at + (self.step + self.window - 1)) if self.window else None
        return all_of([Op("cmpi.sle", (at, self.last), "i1"), behind, self.of_part(first_key)])

    def of_part(self, key: Expr) -> Expr | None:
        return None if self.part is None else Op("cmpi.slt", (key, self.run), "i1")

    def write(self, row: Expr, e: Expr, value: Expr) -> Store:
        if self.part is not None:
            return super().write(row, e, value)
        return self.read.write(self.s.out, (self.b, self.place(row)[0], e), value, "out")

    def grid(self, name: str, parts: int, body: Stmt) -> Stmt:
        count, b = self.sizes(self.table)[0], Var("b")
        begun = Op("cmpi.sle", (self._integer(self.starts, b), self.b), "i1")
        ends = self._integer(self.starts, self.sequence + 1)
        at = larger(self._integer(self.lengths, self.sequence) - ends + self.b, 0)

        def put(number: int, value: Expr) -> Stmt:
            return store(PLACE, (index(number),), value, "look")

        looked = seq(
            put(0, Const(0, I32)),
            loop("b", count, If(begun, put(0, Op("index_cast", (b,), I32)))),
            put(1, Op("index_cast", (at,), I32)),
        )
        w, u = self.warps, Var("u_look")
        if w is None:
            look = on("block.x", u.name, self.threads, only_if(_first(u), looked))
        else:
            one = only_if(all_of([_first(Var("w")), _first(u)]), looked)
            look = on(w.outer, "w", self.threads // w.lanes, on(w.inner, u.name, w.lanes, one))
        whole = Alloc(Buffer(PLACE, (2,), I32, self.memory), seq(look, Barrier(BLOCK), body))
        return super().grid(name, parts, whole)


def _first(i: Expr) -> Expr:
    return Op("cmpi.eq", (i, index(0)), "i1")


def operands_of(kernel: Kernel, machine: Machine) -> RaggedOperands | str:
    assert kernel.opaque is not None
    names, a = (*kernel.opaque.operands, *[None] * 9)[:9], kernel.opaque.attributes
    q, k, v, table, starts, lengths, *more = (n or "" for n in names)
    if any(more):
        return "it has sinks, or pages with scales"
    (tokens, heads, depth), (_, length, few, _) = kernel.buffer(q).shape, kernel.buffer(k).shape
    out, *partials = kernel.opaque.results
    width, softcap, parts = kernel.buffer(out).shape[-1], float(a["softcap"]), int(a.get("parts", 1))
    most = kernel.buffer(table).shape[1] * length
    shape = Shape(
        tokens, heads, heads // few, 1, part_length(most, parts), depth, width, q, k, v or k, None, out,
        float(a["scale"]) / (softcap or 1.0), False, 0, (), wide(kernel.buffer(q).dtype), parts, tuple(partials),
    )  # fmt: skip
    memory = shared(machine)
    assert memory is not None
    head, part = (HEAD, None) if parts == 1 else (HEAD // parts, HEAD % parts)
    return RaggedOperands(
        shape, Reader(kernel), True, BATCH, head, part, most, table=table, starts=starts, lengths=lengths,
        softcap=softcap, window=int(a["window"]), memory=memory.name,
    )  # fmt: skip


def write(s: Schedule, machine: Machine) -> Stmt | str:
    found_operands = in_turn(machine) or operands_of(s.kernel, machine)
    if isinstance(found_operands, str):
        return found_operands
    o, shape = found_operands, found_operands.s
    if is_open(shape.heads, shape.depth, shape.width) or shape.dtype != "f32":
        return f"how large its heads are is known at run time only, or it computes in {shape.dtype}"
    if not all(lowest(n) for n in (shape.batch, shape.heads, shape.keys, shape.depth, shape.width)):
        return "it may have no elements"
    if not (fits_axis(machine, "grid.z", shape.batch) and fits_axis(machine, "grid.y", o.heads * shape.parts)):
        return f"a grid has fewer blocks than {highest(shape.batch)} tokens or {o.heads * shape.parts} parts of heads"
    found = attention_keys.shares(o, machine)
    if not found:
        return "the threads of no block have room for its queries"
    best = min(found, key=lambda t: attention_keys.cost(attention_keys.with_warps(t, machine), o, machine))
    share = attention_keys.KeySplit(*s.sample_choice("share", [t.numbers for t in found], best.numbers))
    share = attention_keys.with_warps(share, machine)
    s.plan = f"one token, {share}"
    o = replace(o, threads=share.threads, step=share.teams * share.keys, warps=share.warps)
    return attention_keys.Shared(o, share, machine).nest()


apply = operator_rule(
    NAME, write, ("ragged_attention", "ragged_attention_parts"), "it is no attention to keys in pages"
)

__all__ = ["NAME", "PRIORITY", "apply"]
