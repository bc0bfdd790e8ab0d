"""Deterministic scatter without atomics: every element of the result belongs to one thread, which copies it and then
applies its updates in their order. So the result is the same in every run: of several updates to one element the last
one wins, and sums are added up from front to back.

    elements   of ``scatter_elements``: a thread an element, which goes along the indices that may name it
    lines      of ``scatter_elements``: a thread a line along the axis, which goes along its updates
    slices     of ``scatter_nd``: threads a slice that an index names. The numbers of the slices that updates go to are
               loaded into shared memory in pieces; where the last one wins, the threads of a slice divide the search

Copies are loops of their own (`COPIES`): where the result takes the place of its data they are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import prod

from ....support.sizes import is_open
from ....tensor.expr import Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...inplace import COPIES
from ...machine import Machine
from ...nest import For, If, Stmt, Store, loop, seq, store, transform
from ...schedule import Schedule
from ..custom.nests import Access, both, flatten, index, less, select, unflatten, wrapped
from ..custom.scatter import Scatter
from .block_scans import BlockRows, Scanned
from .row_mapping import at_once
from .tactics import operator_rule
from .thread_binding import BLOCK, all_of, axis, block_sizes, only_if, shared, spread_out, within

NAME = "block_scatter"
PRIORITY = 7
#: elements of a slice that a thread has at most, and the numbers of slices that lie in shared memory at once
EACH, PIECE = 8, 512
#: so many times as many operations as a processor's form has are worth it: its accesses do not coalesce
WORTH = 8
_NUMBER = "i32"


def write(s: Schedule, machine: Machine) -> Stmt | str:
    kernel, operator = s.kernel, s.kernel.opaque
    assert operator is not None
    open_start = is_open(operator.attributes.get("start", 0))
    if open_start or any(is_open(n) for p in kernel.params for n in p.shape):
        return "its sizes are open"
    if prod(kernel.buffer(operator.results[0]).shape) == 0:
        return "it has no elements"
    return _FORMS[operator.mnemonic](kernel, machine, s)


def _marked(kernel: Kernel, x: str, copy: Stmt) -> Stmt:
    """Loops that copy x, marked as such, if the result may take its place."""
    if all(p.name != x for p in kernel.params):
        return copy
    made = transform(copy, lambda s: replace(s, notes=(*s.notes, (COPIES, x))) if isinstance(s, For) else s)
    assert made is not None
    return made


# ---- append --------------------------------------------------------------------------------------------------------


def _append(kernel: Kernel, machine: Machine, asking: Schedule) -> Stmt | str:
    """Rows are written by threads of their own, all else is copied."""
    s = Access(kernel)
    x, rows, out = s.operand(0), s.operand(1), s.opaque.results[0]
    sizes, more = s.shape(out), s.shape(rows)
    axis_, start = s.opaque.attributes["axis"] % len(sizes), s.opaque.attributes["start"]
    threads = asking.sample_choice("threads", *block_sizes(machine))
    dtype = s.dtype(out)

    def copy(number: Expr) -> Stmt:
        at = unflatten(number, sizes)
        put = store(out, at, Load(x, at, dtype), "copy")
        end = min(start + more[axis_], sizes[axis_])
        if prod(more) == 0:
            return put
        before, behind = less(at[axis_], start), Op("cmpi.sge", (at[axis_], index(end)), "i1")
        return If(Op("ori", (before, behind), "i1"), put)

    def append(number: Expr) -> Stmt:
        at = unflatten(number, more)
        to = tuple(i + start if d == axis_ else i for d, i in enumerate(at))
        return store(out, to, Load(rows, at, dtype), "append")

    parts = [_marked(kernel, x, spread_out(prod(sizes), threads, "copy", machine, copy))]
    if prod(more):
        parts.append(spread_out(prod(more), threads, "row", machine, append))
    asking.plan = f"blocks of {threads} threads, an element each"
    return seq(*parts)


# ---- scatter_elements ----------------------------------------------------------------------------------------------


def _elements(kernel: Kernel, machine: Machine, asking: Schedule) -> Stmt | str:
    s = Scatter(kernel, machine)
    if not s.data:
        return "it has a single element"
    axis_ = s.opaque.attributes["axis"] % len(s.data)
    chosen = s.shape(s.indices)
    lines, updates = prod(s.data) // s.data[axis_], chosen[axis_]
    beside = prod(s.data[axis_ + 1 :])  # neighbouring lines
    spread = min(max(machine.line_bytes // 4 // beside, 1), 8)
    far, threads_busy = machine.thread_costs.far, machine.thread_costs.hiding * at_once(machine)
    costs = {  # a thread of a line waits for each element, those of elements for each other's
        "elements": -(-prod(s.data) // threads_busy) * (updates * 4 + 2 * far),
        "lines": -(-lines // threads_busy) * (s.data[axis_] * 2 + updates * 3) * far * spread,
    }
    form = asking.sample_choice("form", tuple(costs), min(costs, key=lambda f: costs[f]))
    threads = asking.sample_choice("threads", *block_sizes(machine))
    asking.plan = f"blocks of {threads} threads, {'an element' if form == 'elements' else 'a line'} each"
    return (_by_elements if form == "elements" else _by_lines)(s, axis_, threads, machine)


def _by_elements(s: Scatter, axis_: int, threads: int, machine: Machine) -> Stmt:
    chosen = s.shape(s.indices)

    def copy(number: Expr) -> Stmt:
        return s.copy(unflatten(number, s.data))

    def update(number: Expr) -> Stmt:
        at = unflatten(number, s.data)
        source = (*at[:axis_], Var("u"), *at[axis_ + 1 :])
        named = wrapped(Load(s.indices, source, s.dtype(s.indices)), s.data[axis_])
        mine = If(Op("cmpi.eq", (named, at[axis_]), "i1"), s.update(at, source))
        return only_if(_inside(at, chosen, s.data, axis_), loop("u", chosen[axis_], mine))

    return _copied(s, prod(s.data), threads, machine, copy, update)


def _by_lines(s: Scatter, axis_: int, threads: int, machine: Machine) -> Stmt:
    chosen = s.shape(s.indices)
    lead = (*s.data[:axis_], *s.data[axis_ + 1 :])

    def element(number: Expr, i: Expr) -> tuple[Expr, ...]:
        at = unflatten(number, lead)
        return (*at[:axis_], i, *at[axis_:])

    def copy(number: Expr) -> Stmt:
        return loop("c", s.data[axis_], s.copy(element(number, Var("c"))))

    def update(number: Expr) -> Stmt:
        source = element(number, Var("u"))
        named = wrapped(Load(s.indices, source, s.dtype(s.indices)), s.data[axis_])
        body = loop("u", chosen[axis_], s.update(element(number, named), source))
        return only_if(_inside(source, chosen, s.data, axis_), body)

    return _copied(s, prod(lead), threads, machine, copy, update)


def _copied(
    s: Scatter, count: int, threads: int, machine: Machine, copy: Callable[[Expr], Stmt], update: Callable[[Expr], Stmt]
) -> Stmt:
    """First the copies, then the updates, each by the thread that made the copy."""
    copies = _marked(s.kernel, s.x, spread_out(count, threads, "copy", machine, copy))
    if prod(s.shape(s.indices)) == 0:
        return copies
    return seq(copies, spread_out(count, threads, "element", machine, update))


def _inside(at: tuple[Expr, ...], chosen: tuple[int, ...], data: tuple[int, ...], axis_: int) -> Expr | None:
    """Whether there are indices for an element: there may be fewer than elements along the other axes."""
    rest = [d for d in range(len(data)) if d != axis_ and chosen[d] < data[d]]
    return reduce(both, [less(at[d], chosen[d]) for d in rest]) if rest else None


# ---- scatter_nd ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScatterPlan:
    """`rows` slices, or parts of such, of a block, on `threads` threads each; each thread has `each` elements."""

    rows: int
    threads: int
    each: int

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.rows, self.threads, self.each


def _slices(kernel: Kernel, machine: Machine, asking: Schedule) -> Stmt | str:
    s = Scatter(kernel, machine)
    if not s.data:
        return "it has a single element"
    *lead, depth = s.shape(s.indices)
    slices, size, count = prod(s.data[:depth]), prod(s.data[depth:]), prod(lead)
    block, memory = axis(machine, BLOCK), shared(machine)
    assert block is not None and memory is not None
    found, far = [], machine.thread_costs.far
    threads = 1
    while threads <= min(block.limit or 1, 256) and (threads == 1 or threads < 2 * size):
        rows = max(min(block.limit or 1, 256) // threads, 1)
        found.append(ScatterPlan(rows, threads, min(-(-size // threads), EACH)))
        threads *= 2
    found = [p for p in found if 4 * (min(count, PIECE) + 3 * p.rows * p.threads) <= memory.bytes]
    if not found:
        return "no block fits the machine"

    def cost(p: ScatterPlan) -> float:
        blocks = -(-slices * -(-size // (p.threads * p.each)) // p.rows)
        search = count // p.threads if s.reduction == "none" else count
        spread = max(machine.line_bytes // 4 // min(p.threads, size) / (p.rows if size == 1 else 1), 1.0)
        one = 3 * search + count / (p.rows * p.threads) * far + 2 * p.each * far * spread + far
        return one * blocks * p.rows * p.threads / at_once(machine) + one

    best = min(found, key=cost)
    tasks = min(slices * (s.data[-1] if size > 1 else 1), at_once(machine))
    alone = count * far + 8 * far * -(-prod(s.data) // tasks)
    if cost(best) > WORTH * alone and not asking.fixed_decisions:
        return "looking for the updates of each slice takes longer than to go through them"
    plan = ScatterPlan(*asking.sample_choice("slices", [p.numbers for p in found], best.numbers))
    asking.plan = f"{plan.rows} slices of a block on {plan.threads} threads each"
    return _Slices(s, plan, machine, slices, size, count).nest()


class _Slices:
    """Threads a slice, or a part of one."""

    def __init__(self, s: Scatter, plan: ScatterPlan, machine: Machine, slices: int, size: int, count: int) -> None:
        self.s, self.plan, self.size, self.count, self.slices = s, plan, size, count, slices
        self.parts = -(-size // (plan.threads * plan.each))
        self.team = BlockRows(machine, -(-slices * self.parts // plan.rows), plan.rows, plan.threads, along=size > 1)
        number = self.team.number
        self.inside = within(number, slices * self.parts, self.team.blocks * plan.rows)
        self.slice = number // self.parts if self.parts > 1 else number
        self.part = number % self.parts if self.parts > 1 else index(0)
        self.piece = min(count, PIECE)
        self.pieces = -(-count // self.piece) if count else 0
        self.depth = s.shape(s.indices)[-1]
        self.targets = self.team.new("targets", (max(self.piece, 1),), _NUMBER, "shared")
        self.last, self.found = (self.team.own(n, _NUMBER) for n in ("last", "found"))

    @property
    def takes_last(self) -> bool:
        return bool(self.s.reduction == "none")

    def nest(self) -> Stmt:
        t = self.team
        copies = _marked(self.s.kernel, self.s.x, t.around(t.each(self.copy)))
        parts: list[Stmt] = []
        if self.count:
            look = seq(
                t.each(self.bring), *self.meet(), t.each(self.search if self.takes_last else self.add),
                *(self.meet() if self.pieces > 1 else []),
            )  # fmt: skip
            if self.takes_last:
                parts.append(t.each(lambda x: store(self.last.name, (t.row, x), Const(-1, _NUMBER), "none")))
            parts.append(loop("piece", self.pieces, look) if self.pieces > 1 else look)
            if self.takes_last:
                largest = Scanned("update", _NUMBER, lambda a, b: Op("maxsi", (a, b), _NUMBER), Const(-1, _NUMBER))
                parts += [t.total([(largest, self.last)], [self.found]), t.each(self.write)]
        return seq(copies, t.nest(seq(*parts))) if parts else copies

    def meet(self) -> list[Stmt]:
        """All threads of a block wait for each other: rows share the numbers."""
        return self.team.meet()

    def over(self, x: Expr, body: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Stmt], var: str) -> Stmt:
        """``body(indices of the slice, indices in it)`` for each of a thread's elements."""
        p = self.plan
        e = Var(var) if p.each > 1 else index(0)
        place = (self.part * p.each + e) * p.threads + x
        cond = within(place, self.size, self.parts * p.each * p.threads)
        first = unflatten(self.slice, self.s.data[: self.depth])
        one = only_if(cond, body(first, unflatten(place, self.s.data[self.depth :])))
        return loop(var, p.each, one, "unroll") if p.each > 1 else one

    def copy(self, x: Expr) -> Stmt:
        return only_if(self.inside, self.over(x, lambda first, rest: self.s.copy((*first, *rest)), "c"))

    @property
    def first(self) -> Expr:
        return Var("piece") * self.piece if self.pieces > 1 else index(0)

    def bring(self, x: Expr) -> Stmt:
        """The numbers of the slices that a piece of the updates goes to."""
        s, p = self.s, self.plan
        all_ = p.rows * p.threads
        steps = -(-self.piece // all_)
        mine = self.team.row * p.threads + x
        j = Var("step") * all_ + mine if steps > 1 else mine
        u = unflatten(self.first + j, s.shape(s.indices)[:-1])
        at = [
            wrapped(Load(s.indices, (*u, index(d)), s.dtype(s.indices)), s.data[d]) for d in range(self.depth)
        ]  # fmt: skip
        number = Op("index_cast", (flatten(tuple(at), s.data[: self.depth]),), _NUMBER)
        ends = within(j, self.piece, steps * all_)
        beyond = within(self.first + j, self.count, self.pieces * self.piece)
        put = only_if(all_of([ends, beyond]), store(self.targets.name, (j,), number, "bring"))
        return loop("step", steps, put) if steps > 1 else put

    def goes_here(self, j: Expr) -> Expr:
        here = Op("index_cast", (self.slice,), _NUMBER)
        return Op("cmpi.eq", (Load(self.targets.name, (j,), _NUMBER), here), "i1")

    def left(self) -> Expr:
        """The updates of a piece."""
        if self.count % self.piece == 0:
            return index(self.piece)
        return minimum(index(self.piece), self.count - self.first)

    def search(self, x: Expr) -> Stmt:
        """The last update of a piece to the slice, of every so many that a thread looks at."""
        p, last = self.plan, Load(self.last.name, (self.team.row, x), _NUMBER)
        steps = -(-self.piece // p.threads)
        j = Var("s") * p.threads + x
        cond = None if self.count % self.piece == 0 and self.piece % p.threads == 0 else less(j, self.left())
        number = Op("index_cast", (self.first + j,), _NUMBER)
        here = self.goes_here(j) if cond is None else Op("guard", (cond, self.goes_here(j), Const(False, "i1")), "i1")
        return loop("s", steps, store(last.buffer, last.indices, select(here, number, last), "search"))

    def write(self, x: Expr) -> Stmt:
        """The elements of the last update, if there is one."""
        found = Load(self.found.name, (self.team.row, x), _NUMBER)
        u = unflatten(Op("index_cast", (found,), "index"), self.s.shape(self.s.indices)[:-1])
        cond = all_of([self.inside, Op("cmpi.sge", (found, Const(0, _NUMBER)), "i1")])
        return only_if(cond, self.over(x, partial(self.update, u), "w"))

    def add(self, x: Expr) -> Stmt:
        """All updates of a piece to the slice, in their order."""
        u = unflatten(self.first + Var("s"), self.s.shape(self.s.indices)[:-1])
        one = If(self.goes_here(Var("s")), self.over(x, partial(self.update, u), "w"))
        return only_if(self.inside, loop("s", self.left(), one))

    def update(self, u: tuple[Expr, ...], first: tuple[Expr, ...], rest: tuple[Expr, ...]) -> Store:
        return self.s.update((*first, *rest), (*u, *rest))


_FORMS = {"scatter_elements": _elements, "scatter_nd": _slices, "append": _append}
apply = operator_rule(NAME, write, tuple(_FORMS), "it is no scatter")

__all__ = ["ScatterPlan"]
