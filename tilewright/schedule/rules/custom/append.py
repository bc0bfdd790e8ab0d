"""Append: where the result takes the place of its operand the rows alone are written, else that is copied before."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....support.sizes import highest
from ....tensor.expr import Expr, Load
from ....tensor.kernel import Kernel
from ...inplace import COPIES
from ...machine import Machine, lanes
from ...nest import For, Stmt, seq, store, transform
from .. import direct
from .nests import Access, index, loops, variables, vector_loop


@direct("append")
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.append``, which one thread runs: a few rows are no work to divide."""
    s = Access(kernel)
    x, rows, out = s.operand(0), s.operand(1), s.opaque.results[0]
    if 0 in s.shape(out):
        return seq()
    axis = s.opaque.attributes["axis"] % len(s.shape(out))
    start, dtype = index(s.opaque.attributes["start"]), s.dtype(out)

    def over(names: str, source: str, first: Expr) -> Stmt:
        """All elements of `source`, written to places from `first` on."""

        def element(i: Expr) -> Stmt:
            at = (*variables(names, shape[:-1]), i)
            to = tuple(j + first if d == axis else j for d, j in enumerate(at))
            return store(out, to, Load(source, at, dtype), "copy" if source == x else "append")

        shape = s.shape(source)
        last = vector_loop(f"{names}l", index(shape[-1]), highest(shape[-1]), lanes(machine, dtype), element)
        return loops(names, shape[:-1], last)

    copy = over("c", x, index(0))
    if any(p.name == x for p in kernel.params):  # else there is nothing that the result could take the place of
        marked = transform(copy, lambda t: replace(t, notes=(*t.notes, (COPIES, x))) if isinstance(t, For) else t)
        assert marked is not None
        copy = marked
    return copy if prod(s.shape(rows)) == 0 else seq(copy, over("a", rows, start))
