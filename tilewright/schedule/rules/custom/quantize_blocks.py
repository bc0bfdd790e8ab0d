"""Rows cut into blocks of signed bytes with a scale each (`ops/block_quantized.py`)."""

from __future__ import annotations

from ....ops.block_quantized import LARGEST, NOTHING
from ....support.sizes import typical
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, Stmt, loop, seq, store
from .. import direct
from .nests import Access, index, mul

F32, I32 = "f32", "i32"
#: the largest of a block's bytes
MOST = float(LARGEST)


@direct("quantize_blocks")
def quantize_blocks(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.quantize_blocks``: for each block its largest absolute value, then its bytes and their
    sum."""
    a = Access(kernel)
    x, (q, scale, sums) = a.operand(0), a.opaque.results
    rows, blocks, parts, size = a.shape(q)
    width = min(lanes(machine), size)
    row, b = (Var("rb") // blocks, Var("rb") % blocks) if blocks > 1 else (Var("rb"), index(0))

    def over(name: str, body: Stmt) -> Stmt:
        return loop(f"{name}o", size // width, For(name, index(width), body, "vector", width), "unroll")

    def place(name: str) -> Expr:
        return Var(f"{name}o") * width + Var(name)

    def number(name: str, part: int) -> Expr:
        return a.read(x, (row, b * (parts * size) + place(name) * parts + part))

    most, inverse, total = (Load(n, (), d) for n, d in (("most", F32), ("inverse", F32), ("total", I32)))
    largest = [
        over("v", store("most", (), Op("maximumf", (most, Op("absf", (number("v", p),), F32)), F32), "most"))
        for p in range(parts)
    ]
    empty = Op("cmpf.olt", (most, Const(NOTHING, F32)), "i1")
    ratio = Op("select", (empty, Const(0.0, F32), Op("divf", (Const(MOST, F32), most), F32)), F32)
    made = []
    for p in range(parts):
        whole = Op("fptosi", (Op("roundeven", (mul(number("w", p), inverse),), F32),), I32)
        at = (row, b, index(p), place("w"))
        made.append(over("w", seq(
            store("total", (), Op("addi", (total, whole), I32), "sum"),
            store(q, at, Op("trunci", (whole,), "i8"), "bytes"),
        )))  # fmt: skip
    body = seq(
        store("most", (), Const(0.0, F32), "most.start"),
        *largest,
        store("inverse", (), ratio, "inverse"),
        store("total", (), Const(0, I32), "sum.start"),
        *made,
        store(scale, (row, b), mul(most, Const(1 / MOST, F32)), "scale"),
        store(sums, (row, b), total, "sums"),
    )
    for name, dtype in (("most", F32), ("inverse", F32), ("total", I32)):
        body = Alloc(Buffer(name, (), dtype, "register"), body)
    kind = "thread" if typical(rows * blocks * parts * size) >= machine.thread_work else "serial"
    return loop("rb", rows * blocks, body, kind)
