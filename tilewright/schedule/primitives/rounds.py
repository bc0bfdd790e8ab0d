"""Primitives that flatten two dimensions into one: loops and buffers without the border between the dimensions, and
operands that repeat in the middle of a vector. And the opposite: rows padded at their end."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...tensor.expr import Expr, Load, Op, Var, bounds, const_value, from_linear, linear, simplify, variables
from ..nest import Pack, rename_loads, transform
from ..region import all_ranges
from .state import ScheduleError, State, primitive, redirect


class RoundPrimitives(State):
    """Dimensions as one."""

    @primitive
    def flatten(self, buffer: str, dimension: int) -> None:
        """Let a dimension of a temporary and the next one be one: element ``[.., i, j, ..]`` becomes ``[.., i * n + j,
        ..]``.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[8, 4])):
        ...     t = local(f32[4, 8])
        ...     for i in serial(32):
        ...         s0: t[i // 8, i % 8] = exp(x[i // 8, i % 8])
        ...     for m in serial(8):
        ...         for n in serial(4):
        ...             s1: y[m, n] = negf(t[n, m])'''))
        >>> s.flatten("t", 0)
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[8, 4])):
            t = local(f32[32])
            for i in serial(32):
                s0: t[i] = exp(x[i // 8, i % 8])
            for m in serial(8):
                for n in serial(4):
                    s1: y[m, n] = negf(t[n * 8 + m])
        """
        b = self.temporaries.get(buffer)
        if b is None or not 0 <= dimension < len(b.shape) - 1:
            raise ScheduleError(f"{buffer} is no temporary with a dimension behind {dimension}", stage="schedule")
        d, n, ranges = dimension, b.shape[dimension + 1], all_ranges(self.body)

        def joined(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return (*i[:d], simplify(i[d] * n + i[d + 1], ranges), *i[d + 2 :])

        self.body = transform(self.body, partial(redirect, old=buffer, new=buffer, index=joined)) or self.body
        shape = (*b.shape[:d], b.shape[d] * n, *b.shape[d + 2 :])
        self.temporaries[buffer] = replace(b, shape=shape)

    @primitive
    def pad(self, buffer: str, step: int) -> None:
        """Let the rows of a temporary (its last dimension) take a multiple of `step` elements. Nothing is written to
        those beyond: rows begin where vectors do, and targets may end a row with a whole vector.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 6], y: out(f32[4, 6])):
        ...     t = local(f32[4, 6])
        ...     for i in serial(4):
        ...         for j in serial(6):
        ...             s0: t[i, j] = exp(x[i, j])
        ...     for m in serial(4):
        ...         for n in serial(6):
        ...             s1: y[m, n] = negf(t[m, n])'''))
        >>> s.pad("t", 4)
        >>> print(str(s).splitlines()[1])
            t = local(f32[4, 8])
        """
        b = self.temporaries.get(buffer)
        if b is None or b.scope != "local" or not b.shape:
            raise ScheduleError(f"{buffer} is no temporary in memory with rows", stage="schedule")
        if step < 1:
            raise ScheduleError(f"rows cannot take a multiple of {step} elements", stage="schedule")
        self.temporaries[buffer] = replace(b, shape=(*b.shape[:-1], -(-b.shape[-1] // step) * step))

    @primitive
    def repeat(self, buffer: str, dimension: int, var: str) -> None:
        """Lay a constant parameter out with the beginning of a dimension once more behind its end, at compile time, so
        that a loop which walks over the end goes straight on: ``b[(e + var) % n]`` becomes ``b[e % n + var]``.

        Refused for buffers that are no constants, or packed already, and unless all reads walk round like this.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(b: f32[3], y: out(f32[32])):
        ...     for i in serial(8):
        ...         for j in serial(4):
        ...             s0: y[i * 4 + j] = negf(b[(i * 4 + j) % 3])''', constants=["b"]))
        >>> s.repeat("b", 0, "j")
        >>> print(s)
        def k(b: packed(f32[6], splits=((),), order=(0,), repeats=(3,)), y: out(f32[32])):
            for i in serial(8):
                for j in serial(4):
                    s0: y[i * 4 + j] = negf(b[i * 4 % 3 + j])
        """
        b = self.params.get(buffer)
        if b is None or buffer not in self.kernel.constants:
            raise ScheduleError(f"{buffer} is not a constant parameter", stage="schedule")
        if buffer in self.packs:
            raise ScheduleError(f"{buffer} is packed already", stage="schedule")
        if not 0 <= dimension < len(b.shape):
            raise ScheduleError(f"{buffer} has no dimension {dimension}", stage="schedule")
        ranges = all_ranges(self.body)
        limit = bounds(self.loop(var).extent, ranges)
        if limit is None:
            raise ScheduleError(f"the extent of {var} is not bounded", stage="schedule")

        def read(x: Load) -> Expr:
            if x.buffer != buffer:
                return x
            start = _start(x.indices[dimension], var, b.shape[dimension])
            if start is None:
                raise ScheduleError(
                    f"{buffer}[{', '.join(map(str, x.indices))}] does not walk round dimension {dimension} along {var}",
                    stage="schedule",
                )
            place = simplify(start, ranges) % b.shape[dimension] + Var(var)
            return Load(buffer, (*x.indices[:dimension], place, *x.indices[dimension + 1 :]), x.dtype)

        more = max(limit[1] - 1, 0)
        self.body = rename_loads(self.body, read)
        self.params[buffer] = replace(b, shape=tuple(n + more * (d == dimension) for d, n in enumerate(b.shape)))
        rank = range(len(b.shape))
        repeats = tuple(more * (d == dimension) for d in rank)
        self.packs[buffer] = Pack(buffer, tuple(() for _ in rank), tuple(rank), repeats)


def _start(index: Expr, var: str, n: int) -> Expr | None:
    """e where an index is ``(e + var) % n``, and e is not negative."""
    if not (isinstance(index, Op) and index.op == "remsi" and const_value(index.args[1]) == n):
        return None
    terms, constant = linear(index.args[0])
    if terms.pop(Var(var), 0) != 1:
        return None
    start = from_linear(terms, constant)
    return None if var in variables(start) else start


__all__ = ["RoundPrimitives"]
