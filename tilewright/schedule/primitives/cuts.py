"""The primitive that splits a loop's range in two (peeling), so that the parts can be scheduled differently."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...tensor.expr import Const, Expr, Var, bounds, simplify
from ..nest import For, Stmt, Store, reads, seq, stores, substitute_vars, transform, walk_stmts, writes
from ..region import all_ranges
from .state import ScheduleError, State, home, primitive, redirect, rename_reduction


class CutPrimitives(State):
    """Cutting loops."""

    @primitive
    def cut(self, var: str, at: int) -> tuple[str, ...]:
        """One loop becomes two that follow each other: over the first `at` iterations, and over the others. Returns
        the second loop, then the copies of the loops and those of the blocks inside it, from the outside in.

        The order of the iterations stays as it is. Temporaries of one iteration (a tile of sums) are duplicated, so
        that the loops can be scheduled independently. Refused for a place that is not inside the loop, for varying
        extents, for vectorized loops and those that stand for an instruction, and where a reduction with its initial
        value runs over the loop (`decompose_reduction` takes that out).

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[20], y: out(f32[20])):
        ...     for i in serial(20):
        ...         s0: y[i] = negf(x[i])'''))
        >>> s.cut("i", 16)
        ('i_2', 's0_2')
        >>> s.vectorize("i")
        >>> print(s)
        def k(x: f32[20], y: out(f32[20])):
            for i in vector(16, lanes=16):
                s0: y[i] = negf(x[i])
            for i_2 in serial(4):
                s0_2: y[i_2 + 16] = negf(x[i_2 + 16])
        """
        f = self.loop(var)
        self._can_be_cut(f)
        if f.trip is None:
            raise ScheduleError(f"the extent of {var} is not constant", stage="schedule")
        if not 0 < at < f.trip:
            raise ScheduleError(f"{var} has {f.trip} iterations: it cannot be cut after {at}", stage="schedule")
        loops, blocks = [x.var for x in walk_stmts(f) if isinstance(x, For)], [x.block for x in stores(f)]
        taken: set[str] = set()
        renamed = [self._second(names, taken) for names in (loops, blocks, self._own(f))]
        for old, new in renamed[2].items():
            self.temporaries[new] = replace(self.temporaries[old], name=new)
        ranges = all_ranges(self.body)
        first = replace(f, extent=Const(at, "index"))
        second = _copy(replace(f, extent=Const(f.trip - at, "index")), at, *renamed)
        self._replace(f, seq(_settled(first, ranges), _settled(second, ranges)))
        return (*renamed[0].values(), *renamed[1].values())

    def _can_be_cut(self, f: For) -> None:
        """ScheduleError if the loop's meaning depends on its not being split."""
        if f.kind == "vector":
            raise ScheduleError(f"{f.var} is vectorized already", stage="schedule", hint="cut it before")
        if f.note("dot") is not None or f.note("tiles") is not None:
            raise ScheduleError(f"{f.var} stands for an instruction", stage="schedule", hint="cut it before")
        for s in stores(f.body):
            if f.var in s.reduction and any(t.init is not None for t in s.targets):
                raise ScheduleError(
                    f"block {s.block} reduces over {f.var}, and both loops would begin with its initial value",
                    stage="schedule",
                    hint="decompose_reduction first",
                )

    def _own(self, f: For) -> list[str]:
        """The temporaries that live during one iteration of a loop."""
        used = writes(f.body) | reads(f.body)
        below = list(walk_stmts(f.body))
        return [x for x in self.temporaries if x in used and any(home(self.body, x) is s for s in below)]

    def _second(self, names: list[str], taken: set[str]) -> dict[str, str]:
        """New names, none of them `taken`."""
        found: dict[str, str] = {}
        for old in names:
            name = self.fresh(f"{old}_2")
            while name in taken:
                name = self.fresh(f"{name}_2")
            taken.add(name)
            found[old] = name
        return found


def _copy(f: For, at: int, loops: dict[str, str], blocks: dict[str, str], buffers: dict[str, str]) -> For:
    """A loop under new names, whose iterations begin at number `at`."""
    values: dict[str, Expr] = {old: Var(new) for old, new in loops.items()}
    values[f.var] = values[f.var] + at

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return replace(s, var=loops[s.var])
        return replace(s, block=blocks[s.block]) if isinstance(s, Store) else s

    new = transform(substitute_vars(f, values), visit) or f
    for old, name in loops.items():
        new = rename_reduction(new, old, (name,))
    for old, name in buffers.items():
        new = transform(new, partial(redirect, old=old, new=name, index=tuple)) or new
    assert isinstance(new, For)
    return new


def _settled(f: For, outer: dict[str, tuple[int, int]]) -> Stmt:
    """A loop whose inner extents are simplified for its range."""
    ranges = all_ranges(f, outer)

    def visit(s: Stmt) -> Stmt:
        if not isinstance(s, For):
            return s
        limit = bounds(s.extent, ranges)
        if limit is not None and limit[0] == limit[1]:
            return replace(s, extent=Const(limit[0], "index"))
        return replace(s, extent=simplify(s.extent, ranges))

    return transform(f, visit) or f


__all__ = ["CutPrimitives"]
