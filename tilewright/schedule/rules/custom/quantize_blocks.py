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
#: vectors that are laid out
UNROLLED = 16


@direct("quantize_blocks")
def quantize_blocks(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.quantize_blocks``: for each block its largest absolute value, then its bytes and their
    sum."""
    a = Access(kernel)
    x, (q, scale, sums) = a.operand(0), a.opaque.results
    (rows, k), blocks, parts = a.shape(q), a.shape(scale)[1], a.shape(sums)[1] // a.shape(scale)[1]
    size = k // (blocks * parts)
    width = min(lanes(machine), size)
    row, b = (Var("rb") // blocks, Var("rb") % blocks) if blocks > 1 else (Var("rb"), index(0))

    def over(name: str, body: Stmt, part: bool = False) -> Stmt:
        count = (size if part else size * parts) // width
        kind = "unroll" if count <= UNROLLED else "serial"
        return loop(f"{name}o", count, For(name, index(width), body, "vector", width), kind)

    def place(name: str) -> Expr:
        return Var(f"{name}o") * width + Var(name)

    def number(at: Expr) -> Expr:
        return a.read(x, (row, b * (parts * size) + at))

    most, inverse, total = (Load(n, (), d) for n, d in (("most", F32), ("inverse", F32), ("total", I32)))
    found = Op("maximumf", (most, Op("absf", (number(place("v")),), F32)), F32)
    empty = Op("cmpf.olt", (most, Const(NOTHING, F32)), "i1")
    ratio = Op("select", (empty, Const(0.0, F32), Op("divf", (Const(MOST, F32), most), F32)), F32)
    at = Var("p") * size + place("w")
    whole = Op("fptosi", (Op("roundeven", (mul(number(at), inverse),), F32),), I32)
    made = over("w", seq(
        store("total", (), Op("addi", (total, whole), I32), "sum"),
        store(q, (row, b * (parts * size) + at), Op("trunci", (whole,), "i8"), "bytes"),
    ), part=True)  # fmt: skip
    summed = seq(
        store("total", (), Const(0, I32), "sum.start"),
        made,
        store(sums, (row, b * parts + Var("p")), total, "sums"),
    )
    body = seq(
        store("most", (), Const(0.0, F32), "most.start"),
        over("v", store("most", (), found, "most")),
        store("inverse", (), ratio, "inverse"),
        loop("p", parts, summed, "unroll" if parts * size <= UNROLLED * width else "serial"),
        store(scale, (row, b), mul(most, Const(1 / MOST, F32)), "scale"),
    )
    for name, dtype in (("most", F32), ("inverse", F32), ("total", I32)):
        body = Alloc(Buffer(name, (), dtype, "register"), body)
    kind = "thread" if typical(rows * k) >= machine.thread_work else "serial"
    return loop("rb", rows * blocks, body, kind)
