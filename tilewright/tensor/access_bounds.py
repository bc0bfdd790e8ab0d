"""Bounds analysis: whether all accesses of a stage lie inside its buffers.

A front end that takes indices from a user asks before it makes a kernel: native code checks nothing. Intervals decide,
or, where they are too wide, the values at all points of the loops. What lies under a guard (``te.where``) is read only
where its condition holds, so its comparisons narrow both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from .evaluate import evaluate
from .expr import Const, Expr, Load, Op, Var, children, linear, loads, simplify, variables
from .kernel import Stage

#: smallest and largest value; None: no bound is known
Interval = tuple[int | None, int | None]
#: the terms of a sum with their coefficients, and a constant; as a condition: the sum is not negative
Sum = tuple[dict[Expr, int], int]

#: points of loops that are tried one by one
POINTS = 1 << 20
_EXTENDING = ("index_cast", "extsi", "extui")
_SWAPPED = {"cmpi.slt": "cmpi.sgt", "cmpi.sle": "cmpi.sge"}


def outside(stage: Stage, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """What a stage touches outside of its buffers, in words, or None.

    `shapes` has the shape of every buffer. An access that cannot be shown to lie inside counts as outside: its index
    depends on data, or is no sum of variables, quotients, remainders, minima and maxima.

    >>> from tilewright.tensor.expr import Target
    >>> i = Var("i")
    >>> outside(Stage("y", (("i", 4),), (Target("y", (i,), Load("x", (i + 1,), "f32")),)), {"x": (4,), "y": (4,)})
    'index 0 of x, (i + 1), is 1 to 4, but x has 4 elements there'
    """
    loops = {v: (0, n - 1) for v, n in stage.dims}
    for target in stage.targets:
        found = [(Load(target.buffer, target.indices, ""), _Known(loops, ())), *_loads(target.value, _Known(loops, ()))]
        for load, known in found:
            for axis, (index, size) in enumerate(zip(load.indices, shapes[load.buffer], strict=True)):
                low, high = known.interval(simplify(index, loops))
                if low is None or high is None or low < 0 or high >= size:
                    low, high = known.enumerated(index) or (low, high)
                if low is None or high is None or low < 0 or high >= size:
                    return _words(load.buffer, axis, index, (low, high), size)
    return None


def _words(buffer: str, axis: int, index: Expr, found: Interval, size: int) -> str:
    low, high = found
    where = f"index {axis} of {buffer}, {index},"
    if low is None or high is None or high - low >= 1 << 31:
        return f"{where} cannot be shown to lie in 0 to {size - 1}"
    return f"{where} is {low} to {high}, but {buffer} has {size} elements there"


def _loads(e: Expr, known: _Known, seen: set[tuple[int, int]] | None = None) -> Iterator[tuple[Load, _Known]]:
    """Every load of an expression, with what is known where it happens."""
    seen = set() if seen is None else seen
    if (id(e), id(known)) in seen:
        return
    seen.add((id(e), id(known)))
    if isinstance(e, Load):
        yield e, known
    if isinstance(e, Op) and e.op == "guard":
        condition, then, other = e.args
        yield from _loads(condition, known, seen)
        yield from _loads(then, known.where(condition), seen)
        yield from _loads(other, known, seen)  # in a vector it is read for all lanes
        return
    for c in children(e):
        yield from _loads(c, known, seen)


class _Known:
    """The ranges of loops, and tests that hold."""

    def __init__(self, loops: dict[str, tuple[int, int]], tests: tuple[Expr, ...]) -> None:
        self.loops, self.tests = loops, tests
        self.conditions = [c for t in tests for c in _conditions(t)]
        self.below: dict[int, tuple[Expr, _Known]] = {}

    def where(self, condition: Expr) -> _Known:
        """The same with one more condition; the same object for the same condition."""
        if id(condition) not in self.below:
            self.below[id(condition)] = condition, _Known(self.loops, (*self.tests, *_conjuncts(condition)))
        return self.below[id(condition)][1]

    def enumerated(self, index: Expr) -> Interval | None:
        """Smallest and largest value at the points of the loops where the tests hold; None if that takes data, or too
        many points. (0, 0) if there is no such point."""
        if loads(index):
            return None
        names = variables(index)
        tests = [t for t in self.tests if not loads(t)]
        for n in sorted({v for t in tests for v in variables(t)} - names):
            if prod(self.loops[v][1] + 1 for v in (*names, n)) <= POINTS:
                names = names | {n}
        if prod(self.loops[v][1] + 1 for v in names) > POINTS:
            return None
        ordered = sorted(names)
        grid = np.meshgrid(*[np.arange(self.loops[v][1] + 1) for v in ordered], indexing="ij")
        env = {v: g.reshape(-1) for v, g in zip(ordered, grid, strict=True)}
        holds = np.ones(prod(self.loops[v][1] + 1 for v in names), bool)
        for t in tests:
            if variables(t) <= names:
                holds &= np.asarray(evaluate(t, env), bool)
        found = np.broadcast_to(evaluate(index, env), holds.shape)[holds]
        return (int(found.min()), int(found.max())) if found.size else (0, 0)

    def interval(self, e: Expr) -> Interval:
        """Smallest and largest value of an integer expression."""
        terms, constant = _sum(e)
        low, high = self._plain(terms, constant)
        for t, c in self.conditions:  # c + t >= 0, so this sum is at least its difference to it, and likewise above
            more, _ = self._plain(_plus(terms, t, -1), constant - c)
            _, less = self._plain(_plus(terms, t, 1), constant + c)
            low, high = _narrow((low, high), (more, less))
        return low, high

    def _plain(self, terms: Mapping[Expr, int], constant: int) -> Interval:
        low: int | None = constant
        high: int | None = constant
        for t, c in terms.items():
            a, b = self._term(t)
            a, b = (a, b) if c > 0 else (b, a)
            low = None if low is None or a is None else low + c * a
            high = None if high is None or b is None else high + c * b
        return low, high

    def _term(self, t: Expr) -> Interval:
        found = self._value(t)
        for terms, c in self.conditions:  # k * t + c >= 0
            k = terms.get(t)
            if len(terms) == 1 and k:
                found = _narrow(found, (-(c // k), None) if k > 0 else (None, c // -k))
        return found

    def _within(self, e: Expr) -> Interval:
        """The interval of a part of a term: without conditions on sums, which may have the term itself in them."""
        return self._plain(*_sum(e))

    def _value(self, t: Expr) -> Interval:
        if isinstance(t, Var):
            return self.loops.get(t.name, (None, None))
        whole = _of_dtype(t.dtype)
        if not isinstance(t, Op):
            return whole
        if t.op in ("select", "guard"):
            (a, b), (c, d) = self._within(t.args[1]), self._within(t.args[2])
            return None if a is None or c is None else min(a, c), None if b is None or d is None else max(b, d)
        if len(t.args) != 2:
            return self._within(t.args[0]) if t.op == "extui" and t.args[0].dtype == "i1" else whole
        (a, b), (c, d) = map(self._within, t.args)
        if t.op in ("minsi", "maxsi"):
            return _least((a, b), (c, d)) if t.op == "minsi" else _greatest((a, b), (c, d))
        if t.op == "floordivsi" and c == d and c:
            ends = [None if x is None else x // c for x in ((a, b) if c > 0 else (b, a))]
            return ends[0], ends[1]
        if t.op == "remsi" and c == d and c and c > 0 and a is not None and a >= 0:
            return (a, b) if b is not None and b < c else (0, c - 1)
        if a is None or b is None or c is None or d is None:
            return whole
        if t.op in ("addi", "subi", "muli"):
            pairs = [(x, y) for x in (a, b) for y in (c, d)]
            made = [x + y if t.op == "addi" else x - y if t.op == "subi" else x * y for x, y in pairs]
            least, most = whole
            fits = least is None or most is None or (min(made) >= least and max(made) <= most)
            return (min(made), max(made)) if fits else whole
        return whole


def _sum(e: Expr) -> Sum:
    """An index as a sum, without casts of its terms that keep their values."""
    if e.dtype != "index":
        e = _bare(e)
        return ({}, e.value) if isinstance(e, Const) else ({e: 1}, 0)
    found, constant = linear(e)
    terms: dict[Expr, int] = {}
    for t, c in found.items():
        t = _bare(t)
        if isinstance(t, Const):
            constant += c * t.value
        elif isinstance(t, Op) and t.dtype == "index" and t.op in ("addi", "subi"):
            inner, more = _sum(t)
            terms, constant = _plus(terms, inner, c), constant + c * more
        else:
            terms = _plus(terms, {t: 1}, c)
    return terms, constant


def _bare(e: Expr) -> Expr:
    while isinstance(e, Op) and e.op in _EXTENDING and (e.op != "extui" or e.args[0].dtype == "i1"):
        if e.op == "index_cast" and e.args[0].dtype == "index":
            return e  # an index made smaller
        if e.args[0].dtype == "i1":
            return e
        e = e.args[0]
    return e


def _plus(a: Mapping[Expr, int], b: Mapping[Expr, int], factor: int) -> dict[Expr, int]:
    found = dict(a)
    for t, c in b.items():
        found[t] = found.get(t, 0) + factor * c
    return {t: c for t, c in found.items() if c}


def _conjuncts(e: Expr) -> list[Expr]:
    return [x for a in e.args for x in _conjuncts(a)] if isinstance(e, Op) and e.op == "andi" else [e]


def _conditions(e: Expr) -> list[Sum]:
    """Sums that are not negative where a test holds."""
    if not isinstance(e, Op) or len(e.args) != 2:
        return []
    a, b = e.args
    if e.op in _SWAPPED:
        return _conditions(Op(_SWAPPED[e.op], (b, a), e.dtype))
    if e.op not in ("cmpi.sgt", "cmpi.sge", "cmpi.eq"):
        return []
    (x, p), (y, q) = _sum(a), _sum(b)
    found = [(_plus(x, y, -1), p - q - (e.op == "cmpi.sgt"))]
    return [*found, (_plus(y, x, -1), q - p)] if e.op == "cmpi.eq" else found


def _of_dtype(dtype: str) -> Interval:
    if dtype == "i1":
        return 0, 1
    if not dtype.startswith("i") or dtype == "index":
        return None, None
    bits = int(dtype[1:])
    return -(1 << bits - 1), (1 << bits - 1) - 1


def _narrow(x: Interval, y: Interval) -> Interval:
    lows, highs = ([v for v in pair if v is not None] for pair in zip(x, y, strict=True))
    return max(lows, default=None), min(highs, default=None)


def _least(x: Interval, y: Interval) -> Interval:
    low = None if x[0] is None or y[0] is None else min(x[0], y[0])
    return low, min((v for v in (x[1], y[1]) if v is not None), default=None)


def _greatest(x: Interval, y: Interval) -> Interval:
    high = None if x[1] is None or y[1] is None else max(x[1], y[1])
    return max((v for v in (x[0], y[0]) if v is not None), default=None), high


__all__ = ["outside"]
