"""Attention in parts of the keys, and to keys in pages, one query a thread: what runs where no rule for machines with
blocks takes them. And what joins the parts.

    for each result: top is the largest of the parts' scores
                     result = sum of exp(top of part - top) * values of part / sum of exp(top of part - top) * total
"""

from __future__ import annotations

from functools import reduce
from math import prod

from ....support.sizes import highest
from ....tensor.expr import Buffer, Const, Expr, Load, Var
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, Stmt, loop, seq, store, substitute_vars
from .. import direct
from ..gpu.attention_operands import (
    BATCH,
    HEAD,
    LOWEST,
    Operands,
    add,
    exp_of,
    folded,
    inverse,
    larger,
    mul,
    within_buffers,
)
from .attention import Reader, shape_of
from .nests import Access, divide, index, unflatten, vector_loop

F32 = "f32"
#: so many parts are written out, one after the other
UNROLL = 16


@direct("attention_parts", "paged_attention_parts")
def parts(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.attention_parts``."""
    return _queries(kernel)


@direct("paged_attention", writes_once=True)
def paged_attention(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.paged_attention``."""
    return _queries(kernel)


def _queries(kernel: Kernel) -> Stmt:
    o = Operands.of(shape_of(kernel), Reader(kernel), together=False)
    s, row, j = o.s, Var("row"), Var("j")
    one, top, total, best, shrink = (
        Buffer(n, (1,), F32, "register") for n in ("one", "top", "total", "best", "shrink")
    )
    sums, at, zero = Buffer("sums", (s.width,), F32, "local"), (Const(0, "index"),), Const(0.0, F32)

    def now(b: Buffer) -> Load:
        return Load(b.name, at, F32)

    def columns(body: Stmt) -> Stmt:
        return loop("e", s.width, body)

    e = (Var("e"),)
    sum_e = Load("sums", e, F32)
    product = mul(o.query(row, Var("d")), o.key(j, Var("d")))
    weighted = add(mul(sum_e, now(shrink)), mul(now(one), o.value(j, Var("e"))))
    each = seq(
        store("one", at, zero, "clear"),
        loop("d", s.depth, folded("one", at, add, product, "multiply")),
        store("one", at, o.score(mul(now(one), s.number(s.scale)), row, j, (1, 1)), "score"),
        store("best", at, larger(now(top), now(one)), "larger"),
        store("shrink", at, exp_of(now(top), now(best)), "shrink"),
        store("top", at, now(best), "grow"),
        store("one", at, exp_of(now(one), now(best)), "weight"),
        store("total", at, add(mul(now(total), now(shrink)), now(one)), "add"),
        columns(store("sums", e, weighted, "sum")),
    )
    result = sum_e if s.partials else mul(sum_e, inverse(now(total)))
    body = seq(
        store("top", at, Const(LOWEST, F32), "begin_top"),
        store("total", at, zero, "begin_total"),
        columns(store("sums", e, zero, "begin")),
        loop("j", s.keys, each),
        columns(o.write(row, Var("e"), result)),
        o.tell(row, now(top), now(total)) if s.partials else None,
    )
    body = within_buffers([sums, one, top, total, best, shrink], body)
    heads = o.heads * s.parts
    task = unflatten(Var("task"), (s.batch, heads, o.rows))
    body = substitute_vars(body, dict(zip((BATCH.name, HEAD.name, row.name), task, strict=True)))
    return loop("task", s.batch * heads * o.rows, body, "thread")


# ---- joining -------------------------------------------------------------------------------------------------------


class Join:
    """What puts parts together: so many elements, each on its own."""

    def __init__(self, kernel: Kernel) -> None:
        self.read = Access(kernel)
        self.values, self.top, self.total = (self.read.operand(i) for i in range(3))
        self.out = self.read.opaque.results[0]
        self.shape = self.read.shape(self.out)
        self.parts = self.read.shape(self.top)[2]

    @property
    def count(self) -> int:
        return prod(self.shape)

    def over_parts(self, body: Stmt) -> Stmt:
        """`body` for each part; what several of them read is on its way at once."""
        some, rest = divmod(self.parts, UNROLL)

        def several(first: Expr, count: int) -> Stmt:
            return loop("near", count, substitute_vars(body, {"part": first + Var("near")}), "unroll")

        whole = loop("some", some, several(Var("some") * UNROLL, UNROLL)) if some else None
        return seq(whole, several(Const(some * UNROLL, "index"), rest) if rest else None)

    def element(self, number: Expr) -> Stmt:
        """Of a number among all."""
        b, h, q, e = unflatten(number, self.shape)
        at, zero, part = (Const(0, "index"),), Const(0.0, F32), Var("part")
        best, share, total, sums = (Buffer(n, (1,), F32, "register") for n in ("best", "share", "total", "sum"))

        def now(x: Buffer) -> Load:
            return Load(x.name, at, F32)

        def of(name: str, *more: Expr) -> Load:
            return Load(name, (b, h, part, q, *more), F32)

        each = seq(
            store("share", at, exp_of(of(self.top), now(best)), "weigh"),
            folded("total", at, add, mul(of(self.total), now(share)), "add_total"),
            folded("sum", at, add, mul(of(self.values, e), now(share)), "add"),
        )
        result = mul(now(sums), inverse(now(total)))
        body: Stmt = seq(
            store("best", at, Const(LOWEST, F32), "begin_best"),
            store("total", at, zero, "begin_total"),
            store("sum", at, zero, "begin"),
            self.over_parts(folded("best", at, larger, of(self.top), "larger")),
            self.over_parts(each),
            self.read.write(self.out, (b, h, q, e), result, "out"),
        )
        for x in (best, share, total, sums):
            body = Alloc(x, body)
        return body


@direct("attention_join", writes_once=True, typical_sizes=True)
def join(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.attention_join``: rows in vectors, the parts' shares of a row are computed once."""
    made = Join(kernel)
    batch, heads, queries, depth = made.shape
    if 0 in made.shape:
        return seq()
    tasks = divide(batch * heads * queries, made.count * made.parts, machine)
    b, h, q = unflatten(tasks.first + Var("row"), (batch, heads, queries))
    part = Var("part")

    def of(name: str, p: Expr, *more: Expr) -> Load:
        return Load(name, (b, h, p, q, *more), F32)

    best, total, share = (Load(n, (), F32) for n in ("best", "total", "share"))
    shares = Load("shares", (part,), F32)

    def column(e: Expr) -> Stmt:
        parts = [mul(of(made.values, index(p), e), Load("shares", (index(p),), F32)) for p in range(made.parts)]
        return made.read.write(made.out, (b, h, q, e), mul(reduce(add, parts), share), "out")

    row = seq(
        store("best", (), Const(LOWEST, F32), "begin_best"),
        loop("part", made.parts, store("best", (), larger(best, of(made.top, part)), "larger")),
        store("total", (), Const(0.0, F32), "begin_total"),
        loop("part", made.parts, seq(
            store("shares", (part,), exp_of(of(made.top, part), best), "weigh"),
            store("total", (), add(total, mul(of(made.total, part), shares)), "add_total"),
        )),
        store("share", (), inverse(total), "share"),
        vector_loop("e", depth, highest(depth), lanes(machine), column),
    )  # fmt: skip
    for x in (*(Buffer(n, (), F32, "register") for n in ("best", "total", "share")),
              Buffer("shares", (made.parts,), F32, "local")):  # fmt: skip
        row = Alloc(x, row)
    return tasks.parallel(loop("row", tasks.extent, row))


__all__ = ["Join", "join", "paged_attention", "parts"]
