"""Reads a kernel as a row-wise reduction: the sums along each row, what is written, and the elementwise values of both.

Every stage gets the same two coordinates: the number of a row, and the position along it. Elementwise stages become
values that are computed where they are needed, so that only sums and results are left, each at a level: what needs the
sums of level 0 is at level 1.

    softmax:  level 0: top = max of x     level 1: total = sum of e, e = exp(x - top)     level 2: y = e / total
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from ....tensor.analysis import flat, mixed_radix
from ....tensor.expr import (
    CASTS,
    COMBINERS,
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    children,
    map_loads,
    neutral,
    simplify,
    substitute,
    variables,
    walk,
)
from ....tensor.kernel import Kernel, Stage
from .thread_binding import digits

#: the coordinates
ROW, AT = Var("%row"), Var("%at")
#: these of the same number again change nothing
_IDEMPOTENT = frozenset("maximumf minimumf maxnumf minnumf maxsi minsi maxui minui andi ori".split())  # noqa: SIM905
#: what is computed again rather than kept: all else is a function or a division
_CHEAP = frozenset(
    """addf subf mulf negf absf fma maximumf minimumf maxnumf minnumf select guard
    addi subi muli andi ori xori maxsi minsi""".split()  # noqa: SIM905
) | CASTS  # fmt: skip
_ZERO = Const(0, "index")


class NoRows(Exception):
    """Why a kernel does not work row by row."""


@dataclass(frozen=True)
class RowValue:
    """The value of an elementwise stage at the coordinates, in rows of `size`; `sums`: those it needs."""

    value: Expr
    size: int
    sums: frozenset[str]


@dataclass(frozen=True)
class RowSum:
    """``buffer[row] = combiner over the positions of value``; `start` is what threads begin with, and `init` what the
    whole is combined with at the end, if that is not the same."""

    stage: Stage
    value: Expr
    size: int
    level: int
    start: Expr
    init: Expr | None

    @property
    def buffer(self) -> str:
        return self.stage.buffer

    @property
    def combiner(self) -> str:
        value = self.stage.targets[0].value
        assert isinstance(value, Op)
        return value.op

    @property
    def dtype(self) -> str:
        return self.stage.targets[0].value.dtype


@dataclass(frozen=True)
class Write:
    """``target`` at the coordinates, for each position of a row; once a row if there is but one."""

    name: str
    target: Target
    size: int
    level: int

    @property
    def value(self) -> Expr:
        return self.target.value


@dataclass
class RowwiseKernel:
    """A kernel as `count` rows."""

    kernel: Kernel
    count: int = 0
    sums: dict[str, RowSum] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    nodes: dict[str, RowValue] = field(default_factory=dict)
    makers: dict[str, Stage] = field(default_factory=dict)
    known: dict[tuple[str, str, int], Expr] = field(default_factory=dict)

    @staticmethod
    def of(kernel: Kernel) -> RowwiseKernel | str:
        """The rows of a kernel, or why it has none."""
        rows = RowwiseKernel(kernel)
        try:
            rows._read()
        except NoRows as e:
            return str(e)
        return rows

    @property
    def row(self) -> Expr:
        return ROW if self.count != 1 else _ZERO

    @property
    def levels(self) -> int:
        return 1 + max(x.level for x in self._roots())

    @property
    def sizes(self) -> set[int]:
        """How many positions rows have at its stages."""
        return {x.size for x in self._roots()}

    @property
    def longest(self) -> int:
        return max(self.sizes)

    def roots(self, level: int) -> list[RowSum | Write]:
        """What is computed at a level."""
        return [x for x in self._roots() if x.level == level]

    def _roots(self) -> list[RowSum | Write]:
        return [*self.sums.values(), *self.writes]

    def buffer(self, name: str) -> Buffer:
        return self.kernel.buffer(name)

    # ---- reading

    def _read(self) -> None:
        stages = self.kernel.stages
        first = next((s for s in stages if s.targets[0].init is not None), None)
        if first is None:
            raise NoRows("it has no reduction")
        self.count = prod(n for _, n in first.parallel)
        writers = [t.buffer for s in stages for t in s.targets]
        for s in stages:
            if len(s.targets) != 1:
                raise NoRows(f"stage {s.name} has several results")
            if s.targets[0].init is None and writers.count(s.buffer) == 1 and _plain(s):
                self.makers[s.buffer] = s
        for s in stages:
            if s.targets[0].init is not None:
                self.sums[s.buffer] = self._sum(s)
                if s.buffer in self.kernel.outputs:
                    self.writes.append(self._result(self.sums[s.buffer]))
            elif s.buffer in self.kernel.outputs:
                self.writes.append(self._write(s))

    def _sum(self, s: Stage) -> RowSum:
        t = s.targets[0]
        own = [isinstance(a, Load) and a.buffer == s.buffer for a in t.value.args] if isinstance(t.value, Op) else []
        if not isinstance(t.value, Op) or t.value.op not in COMBINERS or sum(own) != 1 or t.init is None:
            raise NoRows(f"stage {s.name} does not add up numbers")
        values, size = self._coordinates(s)
        added = t.value.args[own.index(False)]
        if any(x.buffer == s.buffer for x in walk(added) if isinstance(x, Load)):
            raise NoRows(f"stage {s.name} reads its own sum")
        value, init = (self._resolve(substitute(e, values), size) for e in (added, t.init))
        same = t.value.op in _IDEMPOTENT and isinstance(init, Const)
        start = init if same else neutral(t.value.op, t.value.dtype)
        level = max(self._level(value), self._level(init))
        return RowSum(s, value, size, level, start, None if init == start else init)

    def _result(self, s: RowSum) -> Write:
        """A sum that is a result."""
        values, _ = self._coordinates(s.stage)
        t = s.stage.targets[0]
        place = tuple(self._simple(substitute(i, values), 1) for i in t.indices)
        return Write(f"{s.stage.name}_w", Target(s.buffer, place, Load(s.buffer, (self.row,), s.dtype)), 1, s.level + 1)

    def _write(self, s: Stage) -> Write:
        values, size = self._coordinates(s)
        t = s.targets[0]
        value = self._resolve(substitute(t.value, values), size)
        place = tuple(self._resolve(substitute(i, values), size) for i in t.indices)
        return Write(s.name, Target(t.buffer, place, value), size, self._level(value))

    def _level(self, e: Expr) -> int:
        return max((self.sums[b].level + 1 for b in self.needs(e)), default=0)

    # ---- coordinates

    def _coordinates(self, s: Stage) -> tuple[dict[str, Expr], int]:
        """The loop variables of a stage at the coordinates, and the positions of its rows."""
        dims = [d for d in s.dims if d[1] != 1]
        of_row = self._row_dims(s, dict(dims))
        inner = [d for d in dims if d[0] not in {v for v, _ in of_row}]
        if s.targets[0].init is not None and [v for v, _ in inner if v not in s.reduction]:
            raise NoRows(f"stage {s.name} has other rows")
        ones: dict[str, Expr] = {v: _ZERO for v, n in s.dims if n == 1}
        return ones | digits(ROW, of_row) | digits(AT, inner), prod(n for _, n in inner)

    def _row_dims(self, s: Stage, extents: dict[str, int]) -> list[tuple[str, int]]:
        """The loops of a stage that enumerate rows, as they do."""
        places = [flat(self.buffer(x.buffer), x.indices) for x in self._sums_read(s)]
        if s.targets[0].init is not None:
            places.append(flat(self.buffer(s.buffer), s.targets[0].indices))
        ones: dict[str, Expr] = {v: _ZERO for v, n in s.dims if n == 1}
        for p in places:
            order = mixed_radix(substitute(p, ones), extents, self.count)
            if order is not None and not any(v in s.reduction for v, _ in order):
                return [(v, extents[v]) for v, _ in order]
        found: list[tuple[str, int]] = []
        for v, n in extents.items() if not places else ():  # it needs no sum: its outer loops may be the rows
            if prod(m for _, m in found) == self.count:
                break
            if v not in s.reduction:
                found.append((v, n))
        if prod(m for _, m in found) != self.count:
            raise NoRows(f"stage {s.name} has other rows")
        return found

    def _sums_read(self, s: Stage) -> Iterator[Load]:
        """Where a stage reads sums, also by way of elementwise stages, in its own loop variables."""
        seen: set[str] = set()
        rest = [x for x in walk(s.targets[0].value) if isinstance(x, Load)]
        while rest:
            x = rest.pop(0)
            if str(x) in seen or x.buffer == s.buffer:
                continue
            seen.add(str(x))
            if x.buffer in self.sums:
                yield x
            elif x.buffer in self.makers:
                made = _inlined(self.makers[x.buffer], x)
                rest += [y for y in walk(made) if isinstance(y, Load)]

    # ---- values

    def _simple(self, e: Expr, size: int) -> Expr:
        return simplify(e, {ROW.name: (0, self.count - 1), AT.name: (0, size - 1)})

    def _resolve(self, e: Expr, size: int) -> Expr:
        """A value at the coordinates: what other stages make is read as their sums and nodes."""

        def load(x: Load) -> Expr:
            place = tuple(self._simple(i, size) for i in x.indices)
            if x.buffer in self.sums:
                if self._simple(flat(self.buffer(x.buffer), place), size) != self.row:
                    raise NoRows(f"{x.buffer} of other rows is read")
                return Load(x.buffer, (self.row,), x.dtype)
            if x.buffer in self.makers:
                return self._node(Load(x.buffer, place, x.dtype), size)
            if any(x.buffer == s.buffer for s in self.kernel.stages):
                raise NoRows(f"{x.buffer} cannot be computed where it is read")
            return Load(x.buffer, place, x.dtype)

        return map_loads(e, load)

    def _node(self, x: Load, size: int) -> Expr:
        """The value of an elementwise stage at a place; one that only moves data is what it moves."""
        key = (x.buffer, ", ".join(map(str, x.indices)), size)
        if key not in self.known:
            value = self._resolve(_inlined(self.makers[x.buffer], x), size)
            if isinstance(value, Op):
                name = f"{x.buffer}%{len(self.nodes)}"
                self.nodes[name] = RowValue(value, size, frozenset(self.needs(value)))
                along = (AT,) if self.along(value) else ()
                value = Load(name, (self.row, *along), x.dtype)
            self.known[key] = value
        return self.known[key]

    def needs(self, e: Expr) -> set[str]:
        """The sums that a value needs."""
        found: set[str] = set()
        for x in walk(e):
            if isinstance(x, Load):
                found |= {x.buffer} if x.buffer in self.sums else set()
                found |= self.nodes[x.buffer].sums if x.buffer in self.nodes else set()
        return found

    def along(self, e: Expr) -> bool:
        """Whether a value varies along a row."""
        return AT.name in variables(e)

    def costly(self, e: Expr) -> bool:
        """Whether computing a value again takes longer than to keep it."""
        ops = [x.op for x in walk(e) if isinstance(x, Op) and x.dtype != "index"]
        return any(o not in _CHEAP and not o.startswith("cmp") for o in ops)

    def leaves(self, e: Expr) -> dict[str, tuple[Load, bool]]:
        """What a value reads, by its text: sums, nodes and parameters, each with whether it does so always (not only
        where a condition holds)."""
        found: dict[str, tuple[Load, bool]] = {}
        rest = [(e, True)]
        seen: set[tuple[int, bool]] = set()
        while rest:
            x, always = rest.pop()
            if (id(x), always) in seen:
                continue
            seen.add((id(x), always))
            if isinstance(x, Load):
                found[str(x)] = (x, always or found.get(str(x), (x, False))[1])
            lazy = isinstance(x, Op) and x.op in ("guard", "seldom")
            rest += [(c, always and not (lazy and i == 1)) for i, c in enumerate(children(x))]
        return found


def _plain(s: Stage) -> bool:
    """Whether a stage writes each element at its own loop variables."""
    places = [i for i in s.targets[0].indices if not isinstance(i, Const)]
    names = [i.name for i in places if isinstance(i, Var)]
    whole = all(i.value == 0 for i in s.targets[0].indices if isinstance(i, Const))
    return whole and len(names) == len(places) == len(set(names)) and {v for v, n in s.dims if n != 1} <= set(names)


def _inlined(s: Stage, x: Load) -> Expr:
    """The value of a stage at the place that is read."""
    t = s.targets[0]
    at = {i.name: place for i, place in zip(t.indices, x.indices, strict=True) if isinstance(i, Var)}
    return substitute(t.value, {**{v: _ZERO for v, n in s.dims if n == 1}, **at})


__all__ = ["AT", "ROW", "RowValue", "RowwiseKernel", "RowSum", "Write"]
