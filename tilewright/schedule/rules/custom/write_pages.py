"""Rows written into pages: threads share the rows; a result that takes the place of the pages is not copied before."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....support.sizes import highest
from ....tensor.expr import Expr, Load, Op, Var
from ....tensor.kernel import Kernel
from ...inplace import COPIES
from ...machine import Machine, lanes
from ...nest import For, If, Stmt, seq, store, transform
from .. import direct
from .nests import Access, at_least, both, divide, index, less, loops, unflatten, variables, vector_loop


@direct("write_pages", typical_sizes=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.write_pages``."""
    s = Access(kernel)
    pages, rows, slots, out = s.operand(0), s.operand(1), s.operand(2), s.opaque.results[0]
    shape, (tokens, *row) = s.shape(out), s.shape(rows)
    if 0 in shape:
        return seq()
    copy = _copy(s, pages, out, machine)
    if 0 in (tokens, *row):
        return copy
    tasks = divide(tokens, tokens * prod(row), machine)
    t = tasks.first + Var("row")
    slot = Op("index_cast", (Load(slots, (t,), "i32"),), "index")

    def written(at: tuple[Expr, ...]) -> Stmt:
        value: Expr = Load(rows, (t, *at), s.dtype(rows))
        if value.dtype != s.dtype(out):
            value = s.narrow(out, value)
        return store(out, (slot // shape[1], slot % shape[1], *at), value, "write")

    write = written(())
    if row:
        outer, width = tuple(row[:-1]), lanes(machine, s.dtype(rows))
        inner = vector_loop("rl", row[-1], highest(row[-1]), width, lambda i: written((*variables("r", outer), i)))
        write = loops("r", outer, inner)
    there = both(at_least(slot, 0), less(slot, index(shape[0] * shape[1])))
    return seq(copy, tasks.parallel(For("row", tasks.extent, If(there, write))))


def _copy(s: Access, pages: str, out: str, machine: Machine) -> Stmt:
    """All pages copied, in loops that are left out where the result takes their place."""
    shape = s.shape(out)
    tasks = divide(prod(shape[:-1]), prod(shape), machine)
    first = unflatten(tasks.first + Var("old"), shape[:-1])

    def element(i: Expr) -> Stmt:
        return store(out, (*first, i), Load(pages, (*first, i), s.dtype(pages)), "copy")

    width = lanes(machine, s.dtype(pages))
    copy = tasks.parallel(For("old", tasks.extent, vector_loop("ol", shape[-1], highest(shape[-1]), width, element)))
    if all(p.name != pages for p in s.kernel.params):
        return copy
    marked = transform(copy, lambda x: replace(x, notes=(*x.notes, (COPIES, pages))) if isinstance(x, For) else x)
    assert marked is not None
    return marked
