"""Rows written into pages: threads share the columns, of which each copies all rows and then writes the new ones, so
that nothing waits. A result that takes the place of the pages is not copied."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....support.sizes import highest
from ....tensor.expr import Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...inplace import COPIES
from ...machine import Machine, lanes
from ...nest import For, If, Stmt, loop, seq, store, transform
from .. import direct
from .nests import Access, at_least, both, divide, index, less, unflatten


@direct("write_pages", typical_sizes=True)
def build(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.write_pages``."""
    s = Access(kernel)
    pages, rows, slots, out = s.operand(0), s.operand(1), s.operand(2), s.opaque.results[0]
    shape, (tokens, *row) = s.shape(out), s.shape(rows)
    if 0 in shape:
        return seq()
    columns = row[-1] if row else 1
    width = min(lanes(machine, s.dtype(rows)), 1 << max(highest(columns) - 1, 0).bit_length())
    vectors = (*row[:-1], -(-columns // width))  # of a row
    tasks = divide(prod(vectors), tokens * prod(row), machine)
    *outer, last = unflatten(tasks.first + Var("v"), vectors)

    def over(at: tuple[Expr, ...], source: str, first: tuple[Expr, ...], block: str) -> Stmt:
        """Row `first` of `source` written to row `at` of a page, in the task's columns."""

        def element(column: tuple[Expr, ...]) -> Stmt:
            value: Expr = Load(source, (*first, *column), s.dtype(source))
            if value.dtype != s.dtype(out):
                value = s.narrow(out, value)
            return store(out, (*at, *column), value, block)

        if not row:
            return element(())
        there = index(width) if columns % width == 0 else minimum(width, columns - last * width)
        column = (*outer, last * width + Var("lane"))
        if width == 1:
            return loop("v", tasks.extent, element((*outer, last)))
        return loop("v", tasks.extent, For("lane", there, element(column), "vector", width))

    old = Var("page"), Var("old")
    copy = copied(kernel, pages, loop("page", shape[0], loop("old", shape[1], over(old, pages, old, "copy"))))
    if 0 in (tokens, *row):
        return copy
    write = over(place(s, slots, shape), rows, (Var("t"),), "write")
    return tasks.parallel(seq(copy, loop("t", tokens, If(there(s, slots, shape), write))))


def copied(kernel: Kernel, pages: str, copy: Stmt) -> Stmt:
    """Loops that copy pages, marked as such if the result may take their place."""
    if all(p.name != pages for p in kernel.params):
        return copy
    marked = transform(copy, lambda x: replace(x, notes=(*x.notes, (COPIES, pages))) if isinstance(x, For) else x)
    assert marked is not None
    return marked


def place(s: Access, slots: str, shape: tuple[int, ...]) -> tuple[Expr, Expr]:
    """The page of row t, and the row in it."""
    slot = Op("index_cast", (Load(slots, (Var("t"),), "i32"),), "index")
    return slot // shape[1], slot % shape[1]


def there(s: Access, slots: str, shape: tuple[int, ...]) -> Expr:
    """Whether row t goes anywhere."""
    slot = Op("index_cast", (Load(slots, (Var("t"),), "i32"),), "index")
    return both(at_least(slot, 0), less(slot, index(shape[0] * shape[1])))
