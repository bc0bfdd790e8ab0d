"""Rows of weights in blocks of a few bits (`ops/block_quantized.py`), from the layout that products read."""

from __future__ import annotations

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import Alloc, loop, seq, store
from .. import Direct, direct
from .block_matmul import tile
from .block_weights import PackedWeights
from .nests import Access, add, mul

F32 = "f32"


@direct("block_lookup")
def block_lookup(kernel: Kernel, machine: Machine) -> Direct:
    """The loop nest of ``tw.block_lookup``: a row after the other, number by number."""
    read = Access(kernel)
    w, out = PackedWeights(read, 1), read.opaque.results[0]
    n = Op("index_cast", (Load(read.operand(0), (Var("t"),), "i32"),), "index")
    b, unit = Var("b"), Var("i")
    raised: Expr = Const(float(1 << w.byte_bits), F32)
    values = {
        "zero": add(w.zeros(n, b) if w.zero is not None else Const(float(w.centre), F32), raised),
        "scale": w.scales(n, b),
    }
    if w.minimum is not None:
        values["least"] = w.minima(n, b)
    zero, scale, least = (Load(name, (), F32) for name in ("zero", "scale", "least"))

    def number(i: int) -> Expr:
        value: Expr = mul(Op("subf", (w.raised(n, b, unit, i), zero), F32), scale)
        return Op("subf", (value, least), F32) if w.minimum is not None else value

    place = b * w.block + unit * w.unit
    row = seq(*[store(out, (Var("t"), place + i), number(i), f"number{i}") for i in range(w.unit)])
    body = seq(*[store(name, (), x, name) for name, x in values.items()], loop("i", w.block // w.unit, row))
    for name in values:
        body = Alloc(Buffer(name, (), F32, "register"), body)
    nest = loop("t", read.shape(out)[0], loop("b", w.blocks, body), "thread")
    return Direct(nest, w.packs(tile(machine, w.columns)))
