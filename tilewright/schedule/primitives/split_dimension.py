"""The primitive `split_dimension`: a buffer in panels or blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...tensor.expr import Expr, simplify
from ..nest import transform
from ..region import all_ranges
from .state import ScheduleError, State, primitive, redirect


class SplitDimensionPrimitives(State):
    """Layouts of temporaries in blocks."""

    @primitive
    def split_dimension(self, buffer: str, dimension: int, factor: int) -> None:
        """Let a dimension of a temporary be two: element ``[.., i, ..]`` becomes ``[.., i // factor, i % factor, ..]``.
        With `set_order` behind it the temporary lies in columns, blocks, or the tiles of an instruction.

        A dimension that `factor` does not divide is made longer; nothing is written to what is added.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[4, 8])):
        ...     t = local(f32[4, 8])
        ...     for i in serial(4):
        ...         for j in serial(8):
        ...             s0: t[i, j] = exp(x[i, j])
        ...     for m in serial(4):
        ...         for n in serial(8):
        ...             s1: y[m, n] = negf(t[m, n])'''))
        >>> s.split_dimension("t", 1, 4)
        >>> s.set_order("t", (1, 0, 2))
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[4, 8])):
            t = local(f32[2, 4, 4])
            for i in serial(4):
                for j in serial(8):
                    s0: t[j // 4, i, j % 4] = exp(x[i, j])
            for m in serial(4):
                for n in serial(8):
                    s1: y[m, n] = negf(t[n // 4, m, n % 4])
        """
        b, d = self.temporaries.get(buffer), dimension
        if b is None or not 0 <= d < len(b.shape):
            raise ScheduleError(f"{buffer} is no temporary with a dimension {d}", stage="schedule")
        if factor < 1:
            raise ScheduleError(f"factor {factor} of {buffer} is not positive", stage="schedule")
        ranges = all_ranges(self.body)

        def parted(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return (*i[:d], simplify(i[d] // factor, ranges), simplify(i[d] % factor, ranges), *i[d + 1 :])

        self.body = transform(self.body, partial(redirect, old=buffer, new=buffer, index=parted)) or self.body
        shape = (*b.shape[:d], -(-b.shape[d] // factor), factor, *b.shape[d + 1 :])
        self.temporaries[buffer] = replace(b, shape=shape)
