"""Bulk copies (TMA): the loops that are one copy of a box by an engine of the machine (`machine.BulkCopy`).

`read_copies` says what the loops of an `AsyncCopy` with `bulk` copy, or raises CompileError because the engine cannot;
the check of a nest, primitives and code generators ask. A box is one loop along each of its dimensions, and what lies
beyond the parameter is zero:

    with bulk_copy(t):
        for m in serial(64): for n in serial(32):
            s0: tile[m, n] = guard(i * 64 + m < 100, x[i * 64 + m, k * 32 + n], bf16(0.0))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..support.dtypes import LOOP_TYPES
from ..support.errors import CompileError
from ..support.sizes import is_open
from ..tensor.analysis import flat
from ..tensor.evaluate import evaluate
from ..tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, from_linear, linear, simplify, variables
from .machine import BulkCopy, Machine, find_axis
from .nest import AsyncCopy, For, If, Seq, Stmt, Store, Wait, reads, stores, writes
from .region import all_ranges

#: a swizzle repeats its order of pieces by lines of so many bytes
_LINE = 128
Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Box:
    """A box of a parameter, which has `shape` to the engine: where it begins along each dimension, its sides, the
    element of `target` (a flat index) where it goes, and bytes of the rows that are swizzled there, 0 if they are not.
    `conditions`: when it is copied."""

    source: Buffer
    shape: tuple[int, ...]
    start: tuple[Expr, ...]
    sides: tuple[int, ...]
    target: Buffer
    place: Expr
    swizzle: int
    conditions: tuple[Expr, ...] = ()

    @property
    def nbytes(self) -> int:
        return prod(self.sides) * LOOP_TYPES[self.source.dtype].nbytes


def read_copies(s: AsyncCopy, bulk: BulkCopy, buffers: Mapping[str, Buffer], ranges: Ranges) -> list[Box]:
    """What is copied; CompileError if the engine cannot."""
    return [
        _Reader(bulk, buffers, ranges, tuple(loops), x).box(conditions)
        for conditions, loops, x in _copies(s.body, (), ())
    ]


def _copies(
    s: Stmt, conditions: tuple[Expr, ...], loops: tuple[For, ...]
) -> Iterator[tuple[tuple[Expr, ...], tuple[For, ...], Store]]:
    """The stores of a body with the conditions and loops around each."""
    if isinstance(s, Seq):
        for x in s.stmts:
            yield from _copies(x, conditions, loops)
    elif isinstance(s, If) and s.otherwise is None and not loops:
        yield from _copies(s.then, (*conditions, s.cond), loops)
    elif isinstance(s, For) and s.kind == "serial" and s.trip is not None:
        yield from _copies(s.body, conditions, (*loops, s))
    elif isinstance(s, Store) and len(s.targets) == 1:
        yield conditions, loops, s
    else:
        what = f"loop {s.var} on {s.kind}" if isinstance(s, For) else "a condition or something else"
        raise CompileError(
            f"a bulk copy is loops with constant extents around one statement, not {what}", stage="schedule"
        )


@dataclass
class _Reader:
    """Of one box."""

    bulk: BulkCopy
    buffers: Mapping[str, Buffer]
    ranges: Ranges
    loops: tuple[For, ...]
    store: Store

    def refuse(self, why: str, hint: str | None = None) -> CompileError:
        return CompileError(f"block {self.store.block} is no bulk copy: {why}", stage="schedule", hint=hint)

    def box(self, conditions: tuple[Expr, ...]) -> Box:
        t = self.store.targets[0]
        source = self.loaded(t)
        into, of = self.buffers[t.buffer], self.buffers[source.buffer]
        if of.scope != "param" or into.scope != self.bulk.memory or of.dtype != into.dtype:
            raise self.refuse(f"it does not go from a parameter to {self.bulk.memory}, as what it is")
        seen, indices = joined(of, source.indices)
        index = [simplify(i, dict(self.ranges)) for i in indices]
        self.guards(t.value, seen, index)
        start, sides = self.along(seen, index)
        self.sizes(seen, sides)
        place, swizzle = self.place(into, t, seen, index, sides)
        return Box(of, seen.shape, start, sides, into, place, swizzle, conditions)

    def loaded(self, t: Target) -> Load:
        e = t.value
        if isinstance(e, Op) and e.op == "guard" and isinstance(e.args[2], Const) and e.args[2].value == 0:
            e = e.args[1]
        if not isinstance(e, Load):
            raise self.refuse(f"it computes {t.value}", "copy, or zero where a guard does not hold")
        return e

    def guards(self, value: Expr, of: Buffer, index: list[Expr]) -> None:
        """A guard keeps elements beyond the parameter out, and no others."""
        if not isinstance(value, Op):
            return
        rest, inside = [value.args[0]], []
        for i, n in zip(index, of.shape, strict=True):
            inside += [linear(i - n), linear(i * -1 - 1)]  # what is below zero for an element that there is
        while rest:
            e = rest.pop()
            if isinstance(e, Op) and e.op == "andi":
                rest += e.args
            elif not (isinstance(e, Op) and _below(e, dict(self.ranges)) in inside):
                raise self.refuse(f"a guard leaves out elements of {of.name} that there are, or others: {e}")

    def along(self, of: Buffer, index: list[Expr]) -> tuple[tuple[Expr, ...], tuple[int, ...]]:
        """Where the box begins, and its sides: each loop runs along one dimension in steps of one."""
        start, sides = list(index), [1] * len(index)
        for f in self.loops:
            used = [d for d, i in enumerate(index) if f.var in variables(i)]
            terms, constant = linear(start[used[0]]) if used else ({}, 0)
            if len(used) != 1 or sides[used[0]] != 1 or terms.pop(Var(f.var), 0) != 1:
                raise self.refuse(f"loop {f.var} does not run along one dimension of {of.name}, in steps of one")
            start[used[0]], sides[used[0]] = from_linear(terms, constant), f.trip or 0
            if f.var in variables(start[used[0]]):
                raise self.refuse(f"loop {f.var} does not run along a dimension of {of.name} in steps of one")
        return tuple(start), tuple(sides)

    def sizes(self, of: Buffer, sides: tuple[int, ...]) -> None:
        b, size = self.bulk, LOOP_TYPES[of.dtype].nbytes
        if not 1 <= len(sides) <= b.dims:
            raise self.refuse(f"{of.name} has {len(sides)} dimensions, the engine takes 1 to {b.dims}")
        if max(sides) > b.side:
            raise self.refuse(
                f"a side of the box has {max(sides)} elements, the engine takes {b.side}", "split its loop"
            )
        if sides[-1] * size % b.unit:
            raise self.refuse(f"a row of the box has {sides[-1] * size} bytes, no multiple of {b.unit}")
        for d in range(1, len(sides)):
            if (step := prod(of.shape[d:]) * size) % b.unit:
                raise self.refuse(
                    f"a step along dimension {d - 1} of {of.name} is {step} bytes, no multiple of {b.unit}",
                    "copy it element by element (asynchronous=True), or pad the parameter",
                )

    def place(self, into: Buffer, t: Target, of: Buffer, index: list[Expr], sides: tuple[int, ...]) -> tuple[Expr, int]:
        """Where the box goes, and how its rows are swizzled there."""
        names, size = {f.var for f in self.loops}, LOOP_TYPES[of.dtype].nbytes
        terms, constant = linear(simplify(flat(into, t.indices), dict(self.ranges)))
        own = {e: c for e, c in terms.items() if variables(e) & names}
        if any(not variables(e) <= names for e in own):
            raise self.refuse(f"where elements go in {into.name} hangs on other loops than those of the box")
        base = {e: c for e, c in terms.items() if e not in own}
        of_dim = {v: d for d, i in enumerate(index) for v in variables(i) & names}
        grid = np.meshgrid(*[np.arange(n) for n in sides], indexing="ij")
        env = {v: grid[d] for v, d in of_dim.items()}
        found = np.broadcast_to(evaluate(from_linear(own, 0), env), sides) * size
        dense = np.arange(prod(sides)).reshape(sides) * size
        row = sides[-1] * size
        for span in (0, *(n for n in sorted(self.bulk.swizzles) if row <= n)):  # the least that it needs
            if (found == swizzled(dense, span, self.bulk.unit)).all():
                break
        else:
            raise self.refuse(
                f"rows of {row} bytes do not lie one after the other in {into.name}",
                f"or swizzled by pieces of {self.bulk.unit} bytes, in rows of {max(self.bulk.swizzles)} bytes at most",
            )
        align = max(self.bulk.align, span // self.bulk.unit * _LINE)
        if any(c * size % align for c in (*base.values(), constant)):
            raise self.refuse(f"it does not go to multiples of {align} bytes of {into.name}")
        return from_linear(base, constant), span


def swizzled(at: np.ndarray, span: int, unit: int = 16) -> np.ndarray:
    """Where bytes of dense rows lie that are swizzled in rows of `span` bytes, 0 for none.

    >>> swizzled(np.array([0, 16, 128, 144, 272]), 128).tolist()
    [0, 16, 144, 128, 304]
    """
    return at if not span else at ^ ((at // _LINE % (span // unit)) * unit)


def joined(of: Buffer, indices: Sequence[Expr]) -> tuple[Buffer, tuple[Expr, ...]]:
    """A parameter with fewer dimensions: neighbours of which one number has the digits become one.

    >>> row = Var("r")
    >>> b, index = joined(Buffer("x", (4, 100, 64), "bf16", "param"), (row // 100, row % 100, Var("k")))
    >>> b.shape, *map(str, index)
    ((400, 64), 'r', 'k')
    """
    shape, found = list(of.shape), list(indices)
    d = 0
    while d + 1 < len(shape):
        n, (upper, lower) = shape[d + 1], found[d : d + 2]
        part = _rest(upper, shape[d])
        whole = _added_up(upper if part is None else part, _rest(lower, n), n)
        if whole is None:
            d += 1
            continue
        found[d : d + 2] = [whole if part is None else whole % (shape[d] * n)]
        shape[d : d + 2] = [shape[d] * n]
        d = max(d - 1, 0)
    return replace(of, shape=tuple(shape)), tuple(found)


def _added_up(upper: Expr, of: Expr | None, n: int) -> Expr | None:
    """``z // n * n + x % n``, which is z if z is x and a multiple of n; None if it is not. Other terms stay."""
    if of is None:
        return None
    terms, constant = linear(upper)
    for q in terms:
        if isinstance(q, Op) and q.op == "floordivsi" and q.args[1] == Const(n, "index") and terms[q] == 1:
            rest, more = linear(q.args[0] - of)
            if more % n == 0 and all(c % n == 0 for c in rest.values()):
                return from_linear({t: c for t, c in terms.items() if t != q}, constant) * n + q.args[0]
    return None


def _rest(e: Expr, n: int) -> Expr | None:
    """What an expression is the remainder of, divided by a number."""
    return e.args[0] if isinstance(e, Op) and e.op == "remsi" and e.args[1] == Const(n, "index") else None


def _below(e: Op, ranges: dict[str, tuple[int, int]]) -> tuple[dict[Expr, int], int] | None:
    """What is below zero where a comparison holds."""
    if e.op not in ("cmpi.slt", "cmpi.sge") or e.args[0].dtype != "index":
        return None
    a, b = e.args
    return linear(simplify(a - b if e.op == "cmpi.slt" else b - a - 1, ranges))


# ---- what a nest may have --------------------------------------------------------------------------------------------


def not_by_all(s: AsyncCopy | Wait, around: tuple[Stmt, ...], machine: Machine) -> str:
    """Why a bulk copy, or the wait for one, cannot stand in these statements: one thread begins it for all that share
    the memory, and all of them wait. Empty if it can."""
    if machine.bulk is None:
        return f"bulk_copy({s.token}): the machine has no engine for bulk copies"
    if isinstance(s, AsyncCopy) and not s.bulk:
        return f"{s.token} is the name of bulk copies and of other ones"
    sharing = next((m.shared_by for m in machine.memories if m.name == machine.bulk.memory), ())
    for g in around:
        axis = find_axis(machine, g.kind) if isinstance(g, For) and g.bound else None
        if isinstance(g, For) and axis is not None and axis.name in sharing:
            what = "begun" if isinstance(s, AsyncCopy) else "waited for"
            return f"bulk_copy({s.token}) is {what} in loop {g.var} on {g.kind}: that is done for all threads at once"
    return ""


def no_boxes(s: AsyncCopy, body: Stmt, buffers: Mapping[str, Buffer], machine: Machine) -> str:
    """Why the machine's engine cannot do a bulk copy of a nest."""
    if written := [x for x in stores(s.body) if any(n in writes(body) for n in reads(x))]:
        return f"block {written[0].block} in bulk_copy({s.token}) reads what the nest writes"
    if why := of_open_size(s, buffers):
        return why
    assert machine.bulk is not None
    bulk = machine.bulk
    return said(lambda: read_copies(s, bulk, buffers, all_ranges(body)))


def of_open_size(s: AsyncCopy, buffers: Mapping[str, Buffer]) -> str:
    """Why the engine cannot copy what a size known at run time decides; "" if there is no such."""
    found = [n for n in sorted(reads(s)) if n in buffers and is_open(*buffers[n].shape)]
    return f"what the engine knows of {found[0]} would have to be made anew for each of its sizes" if found else ""


def said(read: Callable[[], object]) -> str:
    try:
        read()
    except CompileError as e:
        return f"{e.message} ({e.hint})" if e.hint else e.message
    return ""


__all__ = ["Box", "joined", "no_boxes", "not_by_all", "read_copies", "said", "swizzled"]
