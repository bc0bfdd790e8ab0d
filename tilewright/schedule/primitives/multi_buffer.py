"""The primitive for buffers that iterations of a loop take in turns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...tensor.expr import Expr, Var
from ..nest import stores, transform, walk_stmts, writes
from .memory import MemoryPrimitives
from .state import ScheduleError, primitive, redirect, touches


class MultiBufferPrimitives(MemoryPrimitives):
    """Turns."""

    @primitive
    def multi_buffer(self, buffer: str, var: str, count: int = 2) -> None:
        """Let iterations of loop `var` take turns with `count` copies of a temporary: who still reads that of one
        iteration does not hold up who writes that of the next. (`pipeline` also lets copies run ahead.)

        Refused unless the temporary is used inside the loop only, and each iteration writes all of it before it reads.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[8, 4], y: out(f32[8, 4])):
        ...     for i in serial(8):
        ...         for j in serial(4):
        ...             s0: y[i, j] = negf(x[i, j])'''))
        >>> copy = s.cache_read("s0", "x", "i")
        >>> s.multi_buffer("x_c", "i")
        >>> print(s)
        def k(x: f32[8, 4], y: out(f32[8, 4])):
            for i in serial(8):
                x_c = local(f32[2, 1, 4])
                for n_x_c in serial(4):
                    s0_x: x_c[i % 2, 0, n_x_c] = x[i, n_x_c]
                for j in serial(4):
                    s0: y[i, j] = negf(x_c[i % 2, 0, j])
        """
        f, b = self.loop(var), self.temporaries.get(buffer)
        if count < 2:
            raise ScheduleError(f"{count} copies of {buffer} are no turns", stage="schedule")
        if b is None:
            raise ScheduleError(f"{buffer} is no temporary", stage="schedule")
        inside = list(walk_stmts(f.body))
        users = [s for s in stores(self.body) if touches(s, buffer)]
        if not users or not all(any(s is x for x in inside) for s in users):
            raise ScheduleError(f"{buffer} is used outside {var}", stage="schedule")
        if any(var in s.reduction and buffer in writes(s) for s in users):
            raise ScheduleError(f"{buffer} goes from one iteration of {var} to the next", stage="schedule")
        self._filled(buffer, self._around(f) | {var})

        def turn(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return (Var(var) % count, *i)

        self.body = transform(self.body, partial(redirect, old=buffer, new=buffer, index=turn)) or self.body
        self.temporaries[buffer] = replace(b, shape=(count, *b.shape))
