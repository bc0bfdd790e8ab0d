"""Rows rotated, cut to 8 or 4 bits and written into pages, a scale for each row of a head: threads share the heads, of
which each copies all rows and then writes the new ones. Results that take the place of the pages are not copied."""

from __future__ import annotations

from collections.abc import Callable

from ....ops.write_quantized_pages import NOTHING, rotation
from ....support.dtypes import wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, If, Stmt, loop, seq, store
from .. import direct
from .nests import Access, divide, mul, select, vector_loop
from .rotation import rotate
from .write_pages import copied, place, there

#: operations on a number that is rotated and cut to a few bits
COST = 8


class QuantizedRows:
    """The nest of ``tw.write_quantized_pages``; threads share the heads."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self.kernel, self.read = kernel, Access(kernel)
        self.pages, self.scales, self.rows, self.slots = (self.read.operand(i) for i in range(4))
        self.out, self.out_scales = self.read.opaque.results
        self.shape, (self.tokens, self.heads, self.depth) = self.read.shape(self.pages), self.read.shape(self.rows)
        self.dtype = wide(self.read.dtype(self.rows))
        self.bits = 8 * self.shape[3] // self.depth
        self.lanes = lanes(machine, self.dtype)
        self.tasks = divide(self.heads, self.tokens * self.heads * self.depth * COST, machine)

    def build(self) -> Stmt:
        head, old = self.tasks.first + Var("head"), (Var("page"), Var("old"))
        bytes_ = vector_loop("byte", self.shape[3], self.shape[3], 4 * self.lanes, lambda i: self.copy((*old, head, i)))
        copies = [
            copied(self.kernel, x, loop("page", self.shape[0], loop("old", self.shape[1], body)))
            for x, body in ((self.pages, bytes_), (self.scales, self.copy((*old, head))))
        ]
        write = loop("t", self.tokens, If(there(self.read, self.slots, self.shape), self.row(head)))
        parts = seq(*copies, write if self.tokens != 0 else None)
        return self.tasks.parallel(loop("head", self.tasks.extent, parts))

    def copy(self, at: tuple[Expr, ...]) -> Stmt:
        source, to = (self.pages, self.out) if len(at) == 4 else (self.scales, self.out_scales)
        return store(to, at, Load(source, at, self.read.dtype(source)), "copy")

    def row(self, head: Expr) -> Stmt:
        """Row t of a head."""
        page, dtype, most = place(self.read, self.slots, self.shape), self.dtype, Load("most", (), self.dtype)
        largest = float((1 << self.bits - 1) - 1)

        def over(name: str, size: int, body: Callable[[Expr], Stmt]) -> Stmt:
            return vector_loop(name, size, size, self.lanes, body)

        def number(d: Expr) -> Expr:
            return Op(
                "fptosi", (Op("roundeven", (mul(Load("x", (d,), dtype), Load("ratio", (), dtype)),), dtype),), "i32"
            )

        def byte(d: Expr) -> Stmt:
            value = number(d)
            if self.bits == 4:
                low, high = (Op("addi", (number(i), Const(8, "i32")), "i32") for i in (d, d + self.shape[3]))
                value = Op("ori", (low, Op("shli", (high, Const(4, "i32")), "i32")), "i32")
            return store(self.out, (*page, head, d), Op("trunci", (value,), "i8"), "bytes")

        def brought(d: Expr) -> Stmt:
            x = mul(self.read.read(self.rows, (Var("t"), head, d)), Const(rotation(self.depth) ** -0.5, dtype))
            return store("x", (d,), x, "row")

        def compared(d: Expr) -> Stmt:
            return store(
                "most", (), Op("maximumf", (most, Op("absf", (Load("x", (d,), dtype),), dtype)), dtype), "most"
            )

        empty = Op("cmpf.olt", (most, Const(NOTHING, dtype)), "i1")
        ratio = select(empty, Const(0.0, dtype), Op("divf", (Const(largest, dtype), most), dtype))
        scale = mul(most, Const(1 / largest, dtype))
        body = seq(
            over("d", self.depth, brought),
            rotate("turned", lambda i: ("x", (i,)), self.depth, dtype, self.lanes),
            store("most", (), Const(0.0, dtype), "most.begin"),
            over("m", self.depth, compared),
            store("ratio", (), ratio, "ratio"),
            over("b", self.shape[3], byte),
            self.read.write(self.out_scales, (*page, head), scale, "scale"),
        )
        for buffer in (
            Buffer("most", (), dtype, "register"), Buffer("ratio", (), dtype, "register"),
            Buffer("x", (self.depth,), dtype, "local"),
        ):  # fmt: skip
            body = Alloc(buffer, body)
        return body


@direct("write_quantized_pages", typical_sizes=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.write_quantized_pages``."""
    made = QuantizedRows(kernel, machine)
    return seq() if 0 in made.shape else made.build()
