"""Operation and byte counts of a kernel, whatever its schedule: arithmetic, and bytes that must move at least once.

Arithmetic counts what the kernel's stages say: each addition, multiplication, division, comparison, maximum and
function (exp, sqrt ...) of tensor elements is one operation; index arithmetic and casts are none. A schedule that
computes something twice, or saves multiplications (Winograd), does not change the count. Operators with a loop nest of
their own are counted in that nest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from ..support.dtypes import NUMPY
from ..tensor.expr import (
    CASTS,
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    bounds,
    loads,
    simplify,
    substitute,
    variables,
    walk,
)
from ..tensor.kernel import Kernel
from .nest import For, Nest, Stmt, Store, children

Ranges = dict[str, tuple[int, int]]
#: iterations of one loop that are counted one by one where the loops inside it depend on it; of longer ones as many,
#: evenly spread, stand for all
_SAMPLES = 256
_FREE = CASTS | {"select", "guard"}
_SEVERAL = {"fma": 2, "dot2": 3, "dot4": 7}


@dataclass(frozen=True)
class Work:
    """`flops`: floating-point operations; `integer_ops`: those on integers; `precision`: what most of the work is done
    in ("f32", "f64", "i8" ...); `touched`: bytes of each parameter that are read or written at least once.

    >>> Work(2, 0, "f32", (4, 4)).operations
    2
    """

    flops: int
    integer_ops: int
    precision: str
    touched: tuple[int, ...]

    @property
    def operations(self) -> int:
        return self.flops + self.integer_ops


def work_of(kernel: Kernel, nest: Nest | None = None) -> Work:
    """The work of a kernel. `nest`: that of a kernel with an opaque operator, which has no stages to count."""
    found: list[_Access] = []
    params = kernel.params
    if kernel.opaque is None:
        for stage in kernel.stages:
            trips = dict(stage.dims)
            found.append(_Access(stage.targets, float(prod(trips.values())), {v: (0, n - 1) for v, n in trips.items()}))
    elif nest is not None:
        params = nest.params  # some may be packed
        found += _Runs().of(nest.body, {}, {})
    buffers = {p.name: p for p in params}
    touched = dict.fromkeys(buffers, 0.0)
    totals = [0.0, 0.0]
    most, precision = 0.0, "f32"
    seen: set[int] = set()  # a statement may stand in several places
    for access in found:
        floats, integers = operations(access.targets)
        totals[0] += access.times * floats
        totals[1] += access.times * integers
        if access.times * (floats + integers) > most:
            most, precision = access.times * (floats + integers), _precision(access.targets)
        places = [] if id(access.targets) in seen else _places(access.targets)
        seen.add(id(access.targets))
        for buffer, indices in places:
            if buffer in buffers:
                touched[buffer] += _elements(buffers[buffer], indices, access.ranges) * _itemsize(buffers[buffer])
    limits = {p.name: p.size * _itemsize(p) for p in params}
    return Work(
        round(totals[0]), round(totals[1]), precision, tuple(round(min(touched[n], limits[n])) for n in buffers)
    )


class _Access(NamedTuple):
    """A statement with how often it runs (where the loops around it are, one of its loops after the other), and the
    ranges of the loop variables around it."""

    targets: tuple[Target, ...]
    times: float
    ranges: Ranges


class _Runs:
    """How often the stores of a nest run. Where the extents of inner loops depend on a variable, its loop is counted
    once for each combination of extents that its values give."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], list[_Access]] = {}
        self.inner: dict[int, dict[Expr, tuple[str, ...]]] = {}
        self.values: dict[tuple[object, ...], Expr] = {}

    def of(self, s: Stmt, ranges: Ranges, fixed: Mapping[str, int]) -> list[_Access]:
        """Every store in a statement once. `fixed`: values of variables that the extents of inner loops depend on."""
        if isinstance(s, Store):
            return [_Access(s.targets, 1.0, ranges)]
        if not isinstance(s, For):
            return [access for c in children(s) for access in self.of(c, ranges, fixed)]
        key = (id(s), *(self.decided(e, names, ranges, fixed) for e, names in self.extents(s).items()))
        if key not in self.known:
            self.known[key] = self.loop(s, ranges, fixed)
        return self.known[key]

    def loop(self, s: For, ranges: Ranges, fixed: Mapping[str, int]) -> list[_Access]:
        limit = bounds(self.at(s.extent, [v for v in variables(s.extent) if v in fixed], fixed), ranges)
        trip = max(limit[1], 0) if limit else 1
        full = bounds(s.extent, ranges)
        inside = {**ranges, s.var: (0, max((full[1] if full else 1) - 1, 0))}
        if not trip:
            return []
        if not any(s.var in names for names in self.extents(s.body).values()):
            return [_Access(a.targets, a.times * trip, a.ranges) for a in self.of(s.body, inside, fixed)]
        values = range(trip) if trip <= _SAMPLES else [i * trip // _SAMPLES for i in range(_SAMPLES)]
        found: dict[int, _Access] = {}
        for v in values:
            for a in self.of(s.body, inside, {**fixed, s.var: v}):
                known = found.get(id(a.targets))
                times = a.times * trip / len(values) + (known.times if known is not None else 0.0)
                found[id(a.targets)] = _Access(a.targets, times, a.ranges)
        return list(found.values())

    def extents(self, s: Stmt) -> dict[Expr, tuple[str, ...]]:
        """The extents in a statement that are not constant, with their variables."""
        if not extent_variables(s):
            return {}
        if id(s) not in self.inner:
            own = variables(s.extent) if isinstance(s, For) else ()
            found = {s.extent: tuple(sorted(own))} if isinstance(s, For) and own else {}
            for c in children(s):
                found.update(self.extents(c))
            self.inner[id(s)] = found
        return self.inner[id(s)]

    def decided(self, e: Expr, names: tuple[str, ...], ranges: Ranges, fixed: Mapping[str, int]) -> Any:
        """What is known of an extent: its value, or what it still depends on, and in which ranges."""
        given = [v for v in names if v in fixed]
        rest = self.at(e, given, fixed)
        return rest if len(given) == len(names) else (rest, *[ranges.get(v) for v in names if v not in fixed])

    def at(self, e: Expr, names: Sequence[str], fixed: Mapping[str, int]) -> Expr:
        """An extent where variables have values. (Bounds alone do not say what ``5 % 2`` is.)"""
        key = (e, *[(v, fixed[v]) for v in sorted(names)])
        if key not in self.values:
            self.values[key] = simplify(substitute(e, {v: Const(fixed[v], "index") for v in names}), {})
        return self.values[key]


def extent_variables(s: Stmt) -> frozenset[str]:
    """Variables that the extent of a loop in `s` depends on."""
    if "extents" not in s.known:
        s.known["extents"] = frozenset().union(*[variables(f.extent) for f in s.loops])
    found: frozenset[str] = s.known["extents"]
    return found


def operations(targets: tuple[Target, ...]) -> tuple[int, int]:
    """(float operations, integer operations) of one iteration; what several targets share counts once."""
    floats = integers = 0
    seen: set[Expr] = set()
    for t in targets:
        for x in walk(t.value, seen):
            if isinstance(x, Op) and (n := operations_of(x)):
                kind = _operand_dtype(x).startswith(("f", "bf"))
                floats, integers = (floats + n, integers) if kind else (floats, integers + n)
    return floats, integers


def operations_of(x: Op) -> int:
    """How many operations a node is; none for index arithmetic, casts and what only chooses."""
    if x.op in _FREE or x.dtype == "index":
        return 0
    kind = _operand_dtype(x)
    return 0 if kind in ("i1", "index") else _SEVERAL.get(x.op, 1)


def _operand_dtype(x: Op) -> str:
    """The dtype an operation computes in: a comparison's result is i1, its operands say more."""
    return x.args[0].dtype if x.dtype == "i1" and x.args else x.dtype


def _precision(targets: tuple[Target, ...]) -> str:
    """The dtype of most operations; of integer sums of products the dtype of the factors."""
    counts: dict[str, int] = {}
    narrow: set[str] = set()
    for t in targets:
        for x in walk(t.value):
            if isinstance(x, Op) and x.op not in _FREE and x.dtype != "index":
                counts[_operand_dtype(x)] = counts.get(_operand_dtype(x), 0) + 1
            elif isinstance(x, Load) and x.dtype == "i8":
                narrow.add("i8")
    counts.pop("i1", None)
    counts.pop("index", None)
    if not counts:
        return "f32"
    most = max(counts, key=lambda d: counts[d])
    return "i8" if most == "i32" and narrow else most


def _places(targets: tuple[Target, ...]) -> list[tuple[str, tuple[Expr, ...]]]:
    """Distinct elements that a statement reads and writes."""
    found: dict[tuple[str, tuple[Expr, ...]], None] = {}
    for t in targets:
        found[t.buffer, t.indices] = None
        for e in (t.value, *t.indices):
            found |= {(x.buffer, x.indices): None for x in loads(e)}
    return list(found)


def _elements(buffer: Buffer, indices: tuple[Expr, ...], ranges: Ranges) -> int:
    """Elements that one access touches: no more than its index can reach, nor than it has iterations."""
    reach, moving = 1, set[str]()
    for i, n in zip(indices, buffer.shape, strict=True):
        limit = bounds(i, ranges)
        low, high = (max(limit[0], 0), min(limit[1], n - 1)) if limit else (0, n - 1)
        reach *= max(high - low + 1, 0)
        moving |= variables(i)
    trips: int = prod([ranges[v][1] + 1 for v in moving if v in ranges])
    return min(reach, trips)


def _itemsize(b: Buffer) -> int:
    return NUMPY[b.dtype].itemsize


__all__ = ["Ranges", "Work", "extent_variables", "operations", "operations_of", "work_of"]
