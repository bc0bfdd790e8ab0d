"""Top-k of many short lines, one line in each SIMD lane: every lane keeps a sorted list in registers (insertion sort).

for groups of 16 lines:
  for j in the length of a line:
    new = x[lines, j]
    for the places of the list, last first:
      place = its forerunner if new stands before that, else new if it stands before its own, else its own
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ....support.dtypes import FLOATS
from ....support.sizes import surely
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, minimum
from ...machine import Machine
from ...nest import Alloc, For, Stmt, Store, loop, seq, store
from .nests import divide, either, index, select

if TYPE_CHECKING:
    from .top_k import TopKKernel

#: a list takes two registers a place of the least that the vector form asks for (`top_k.LEAST_REGISTERS`); longer lines
#: are faster one by one, if they lie in memory so: they need less comparisons the longer they are
PLACES, LONGEST = 8, 96


def lanes_pay(t: TopKKernel, machine: Machine) -> bool:
    """Whether there are lines for all lanes, and lists that stay in registers."""
    width, beside = t.lanes(machine, t.key), t.axis != len(t.lead)
    fit = width > 1 and surely(lambda: width <= prod(t.lead))
    return fit and t.k <= PLACES and (t.size < LONGEST or beside) and t.key != "i1"


def lists(t: TopKKernel, machine: Machine) -> Stmt:
    """The loop nest. The last group begins earlier where lines do not fill it: some lines are then done twice."""
    width, count = t.lanes(machine, t.key), prod(t.lead)
    groups = -(-count // width)
    tasks = divide(groups, count * t.size * 4, machine)
    lane, j = Var("l"), Var("j")
    line = minimum((tasks.first + Var("group")) * width, count - width) + lane
    new = Load("new", (lane,), t.key)

    def vector(body: Stmt) -> Stmt:
        return For("l", index(width), body, "vector", width)

    def kept(place: int) -> tuple[Load, Load]:
        at = index(place * width) + lane
        return Load("best", (at,), t.key), Load("where", (at,), "i32")

    def keep(place: int, value: Expr, position: Expr, block: str) -> Stmt:
        at = (index(place * width) + lane,)
        return vector(Store((Target("best", at, value), Target("where", at, position)), block))

    def beats(place: int) -> Expr:
        value, position = kept(place)
        return either(Op("cmpi.slt", (position, Const(0, "i32")), "i1"), t.ahead(new, value))

    steps = [vector(store("new", (lane,), t.read(t.x, t.at(line, j)), "take"))]
    for place in reversed(range(t.k)):
        pairs = zip((new, Op("index_cast", (j,), "i32")), kept(place), strict=True)
        value, position = (select(beats(place), n, own) for n, own in pairs)
        if place:
            moved = zip(kept(place - 1), (value, position), strict=True)
            value, position = (select(beats(place - 1), before, other) for before, other in moved)
        steps.append(keep(place, value, position, "insert"))
    empty, none = Const(0.0 if t.key in FLOATS else 0, t.key), Const(-1, "i32")
    results = []
    for place in range(t.k):
        value, position = kept(place)
        results.append(vector(t.result(line, index(place), value, Op("extsi", (position,), "i64"))))
    body = seq(*[keep(place, empty, none, "empty") for place in range(t.k)], loop("j", t.size, seq(*steps)), *results)
    for name, size, dtype in (("new", width, t.key), ("best", t.k * width, t.key), ("where", t.k * width, "i32")):
        body = Alloc(Buffer(name, (size,), dtype, "register"), body)
    return tasks.parallel(loop("group", tasks.extent, body))


__all__ = ["lanes_pay", "lists"]
