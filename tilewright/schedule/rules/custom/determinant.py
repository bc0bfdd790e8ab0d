"""Determinants by elimination with row exchange, each matrix in a local copy."""

from __future__ import annotations

from math import prod

from ....support.dtypes import wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import Alloc, Stmt, Store, loop, seq, store
from .. import direct
from .nests import Access, divide, index, mul, select, unflatten


@direct("det", writes_once=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.det``."""
    a = Access(kernel)
    x, out = a.operand(0), a.opaque.results[0]
    *lead, size, _ = a.shape(x)
    key = wide(a.dtype(x))
    if prod(lead) == 0:
        return seq()
    matrices = divide(prod(lead), prod(lead) * size**3, machine)
    at = unflatten(matrices.first + Var("matrix"), tuple(lead))
    one, zero = Const(1.0, key), Const(0.0, key)
    k, i, c = Var("k"), Var("i"), Var("c")
    best, where, det, factor = (
        Load(n, (), t) for n, t in (("best", key), ("where", "index"), ("det", key), ("factor", key))
    )

    def m(row: Expr, column: Expr) -> Load:
        return Load("m", (row, column), key)

    copy = loop("i", size, loop("c", size, store("m", (i, c), a.read(x, (*at, i, c)), "copy")))
    value = m(k + i, k)
    length = Op("maximumf", (value, Op("negf", (value,), key)), key)
    better = Op("cmpf.ogt", (length, best), "i1")
    search = loop(
        "i",
        size - k,
        Store(
            (Target("best", (), select(better, length, best)), Target("where", (), select(better, k + i, where))),
            "pivot",
        ),
    )
    sign = select(Op("cmpi.eq", (where, k), "i1"), one, Const(-1.0, key))
    turn = store("det", (), mul(mul(det, sign), m(where, k)), "turn")
    swap = loop("c", size, Store((Target("m", (k, c), m(where, c)), Target("m", (where, c), m(k, c))), "swap"))
    quotient = select(Op("cmpf.oeq", (m(k, k), zero), "i1"), zero, Op("divf", (m(k + 1 + i, k), m(k, k)), key))
    row, column = k + 1 + i, k + 1 + c
    less = Op("subf", (m(row, column), mul(factor, m(k, column))), key)
    below = size - 1 - k
    update = loop("c", below, store("m", (row, column), less, "eliminate"))
    eliminate = loop(
        "i", below, Alloc(Buffer("factor", (), key, "register"), seq(store("factor", (), quotient, "factor"), update))
    )
    start = seq(store("best", (), Const(-1.0, key), "none"), store("where", (), k, "first"))
    step: Stmt = seq(start, search, turn, swap, eliminate)
    for name, kind in (("where", "index"), ("best", key)):
        step = Alloc(Buffer(name, (), kind, "register"), step)
    body: Stmt = seq(
        copy, store("det", (), one, "start"), loop("k", index(size), step), a.write(out, at, det, "result")
    )
    body = Alloc(Buffer("m", (size, size), key, "local"), Alloc(Buffer("det", (), key, "register"), body))
    return matrices.parallel(loop("matrix", matrices.extent, body))
