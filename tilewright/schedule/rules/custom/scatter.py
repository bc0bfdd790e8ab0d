"""Scatter: the data is copied, then updates are written in order, so that of several to one element the last one wins.

Both are divided among the threads by the element written, never by the update: every element belongs to one task, which
copies it and applies all its updates in their order. So nothing waits, and the result does not depend on the number of
threads. A result that takes the place of its data is not copied (`COPIES`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod

from ....support.sizes import at_most, typically
from ....tensor.expr import Buffer, Expr, Load, Var
from ....tensor.kernel import Kernel
from ...inplace import COPIES
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Stmt, Store, loop, seq, store, transform
from .. import direct
from .nests import (
    Access,
    Split,
    add,
    both,
    divide,
    extreme,
    flatten,
    index,
    less,
    loops,
    mul,
    unflatten,
    variables,
    vector_loop,
    wrapped,
)


class Scatter(Access):
    """The parts that both operators share: x is copied to out, then updated."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        super().__init__(kernel)
        self.x, self.indices, self.updates = (self.operand(i) for i in range(3))
        self.out = self.opaque.results[0]
        self.data = self.shape(self.x)
        self.machine = machine
        self.lanes = lanes(machine, self.dtype(self.x))
        self.reduction = self.opaque.attributes["reduction"]

    @property
    def work(self) -> int:
        return prod(self.data) + prod(self.shape(self.updates))

    def copy(self, indices: tuple[Expr, ...]) -> Store:
        return store(self.out, indices, Load(self.x, indices, self.dtype(self.x)), "copy")

    def unless_in_place(self, copy: Stmt) -> Stmt:
        """Loops that copy x, marked as such; every one is, as those of one iteration are left out later. Where this
        kernel computes x itself there is nothing that the result could take the place of."""
        if all(p.name != self.x for p in self.kernel.params):
            return copy

        def mark(s: Stmt) -> Stmt:
            return replace(s, notes=(*s.notes, (COPIES, self.x))) if isinstance(s, For) else s

        marked = transform(copy, mark)
        assert marked is not None
        return marked

    def update(self, at: tuple[Expr, ...], source: tuple[Expr, ...]) -> Store:
        """Combine element `at` of the result with element `source` of the updates."""
        if self.reduction == "none":
            return store(self.out, at, Load(self.updates, source, self.dtype(self.updates)), "update")
        old, new = self.read(self.out, at), self.read(self.updates, source)
        if self.reduction in ("add", "mul"):
            value = (add if self.reduction == "add" else mul)(old, new)
        else:
            value = extreme(old, new, largest=self.reduction == "max", unsigned=self.unsigned(0))
        return self.write(self.out, at, value, "update")

    def copy_rows(
        self, first: tuple[Expr, ...], shape: tuple[int, ...], column: Expr, columns: Expr | int, most: int
    ) -> Stmt:
        """Copy ``x[*first, :, ..., column : column + columns]``; `shape` is that of the dimensions in between."""

        def body(i: Expr) -> Stmt:
            return self.copy((*first, *variables("c", shape), column + i))

        return loops("c", shape, vector_loop("cl", columns, most, self.lanes, body))


# ---- scatter_elements ----------------------------------------------------------------------------------------------


@direct("scatter_elements")
def build_elements(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.scatter_elements``: coordinates other than `axis` are independent of each other."""
    s = Scatter(kernel, machine)
    if prod(s.data) == 0:
        return seq()
    axis = s.opaque.attributes["axis"] % len(s.data)
    outer = prod(s.data[:axis])
    with typically():
        enough = outer >= machine.cores or s.work < machine.thread_work
    if axis == len(s.data) - 1 or enough:
        return _elements_by_slab(s, axis)
    return _elements_by_column(s, axis)


def _elements_by_slab(s: Scatter, axis: int) -> Stmt:
    """A task has some of the leading coordinates, with all elements below them."""
    lead, chosen = s.data[:axis], s.shape(s.indices)
    tasks = divide(prod(lead), s.work, s.machine)
    first = unflatten(tasks.first + Var("slab"), lead)
    copy = s.copy_rows(first, s.data[axis:-1], index(0), s.data[-1], s.data[-1])
    j = (*first, *variables("u", chosen[axis:]))
    at = (*j[:axis], wrapped(Load(s.indices, j, s.dtype(s.indices)), s.data[axis]), *j[axis + 1 :])
    update: Stmt = loops("u", chosen[axis:], s.update(at, j))
    inside = [less(i, n) for i, n, whole in zip(first, chosen, lead, strict=False) if not at_most(whole, n)]
    if inside:
        update = If(reduce(both, inside), update)
    return tasks.parallel(loop("slab", tasks.extent, seq(s.unless_in_place(copy), update)))


def _elements_by_column(s: Scatter, axis: int) -> Stmt:
    """A task has some values of the last coordinate, with all elements that have them."""
    chosen = s.shape(s.indices)
    tasks = divide(s.data[-1], s.work, s.machine, multiple=s.lanes)
    copy = s.copy_rows((), s.data[:-1], tasks.first, tasks.extent, tasks.chunk)
    column = tasks.first + Var("col")
    j = (*variables("u", chosen[:-1]), column)
    at = (*j[:axis], wrapped(Load(s.indices, j, s.dtype(s.indices)), s.data[axis]), *j[axis + 1 :])
    update: Stmt = s.update(at, j)
    if not at_most(s.data[-1], chosen[-1]):
        update = If(less(column, chosen[-1]), update)
    return tasks.parallel(seq(s.unless_in_place(copy), loops("u", chosen[:-1], loop("col", tasks.extent, update))))


# ---- scatter_nd ----------------------------------------------------------------------------------------------------


@direct("scatter_nd")
def build_nd(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.scatter_nd``: every task looks at all updates and applies those to its elements."""
    s = Scatter(kernel, machine)
    if prod(s.data) == 0:
        return seq()
    if not s.data:
        updates = s.shape(s.updates)
        return seq(s.copy(()), loops("u", updates, s.update((), variables("u", updates))))
    rows = prod(s.data[:-1])
    # few tasks, because each of them reads all indices
    tasks = divide(rows, s.work, machine, rounds=1)
    with typically():
        enough = tasks.tasks >= machine.cores or rows >= s.data[-1]
    if enough:
        return _nd(s, tasks, Split(s.data[-1], s.data[-1]))
    return _nd(s, Split(rows, rows), divide(s.data[-1], s.work, machine, rounds=1, multiple=s.lanes))


def _nd(s: Scatter, rows: Split, columns: Split) -> Stmt:
    """`rows` divides the leading coordinates (flattened), `columns` the last one; one of the two has a single task."""
    lead = s.data[:-1]
    first = unflatten(rows.first + Var("row"), lead)
    copy = loop("row", rows.extent, s.copy_rows(first, (), columns.first, columns.extent, columns.chunk))
    count, depth = s.shape(s.indices)[:-1], s.shape(s.indices)[-1]
    u = variables("u", count)
    targets = [Buffer(f"at{d}", (), "index", "register") for d in range(depth)]
    at = tuple(Load(b.name, (), "index") for b in targets)
    found = [
        store(b.name, (), wrapped(Load(s.indices, (*u, index(d)), s.dtype(s.indices)), s.data[d]), "target")
        for d, b in enumerate(targets)
    ]
    body: Stmt
    if depth == len(s.data):
        body = columns.owns(at[-1], s.update(at, u))
        body = rows.owns(flatten(at[:-1], lead), body)
    else:
        rest = lead[depth:]
        inner = variables("q", rest)

        def write(i: Expr) -> Stmt:
            column = columns.first + i
            return s.update((*at, *inner, column), (*u, *inner, column))

        body = vector_loop("w", columns.extent, columns.chunk, s.lanes, write)
        body = loops("q", rest, rows.owns(flatten((*at, *inner), lead), body))
    body = seq(*found, body)
    for b in reversed(targets):
        body = Alloc(b, body)
    nest = seq(s.unless_in_place(copy), loops("u", count, body))
    return (rows if rows.tasks > 1 else columns).parallel(nest)
