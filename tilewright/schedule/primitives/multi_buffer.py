"""The primitive for double buffering and more: iterations of a loop take turns with several copies of a buffer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...tensor.expr import Expr, Var
from ..nest import transform, walk_stmts
from .state import ScheduleError, State, home, primitive, redirect


class MultiBufferPrimitives(State):
    """Turns."""

    @primitive
    def multi_buffer(self, buffer: str, var: str, count: int = 2) -> None:
        """Let iterations of loop `var` take turns with `count` copies of a temporary: who still reads that of one
        iteration does not hold up who writes that of the next. (`pipeline` also lets copies run ahead.)

        Refused unless the temporary lives inside the loop: nothing of it goes from one iteration to the next.

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
        root = home(self.body, buffer)  # a buffer that lives inside a loop is another one in each iteration
        if not any(root is s for s in walk_stmts(f.body)):
            raise ScheduleError(f"{buffer} does not live inside {var}", stage="schedule")

        def turn(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return (Var(var) % count, *i)

        self.body = transform(self.body, partial(redirect, old=buffer, new=buffer, index=turn)) or self.body
        self.temporaries[buffer] = replace(b, shape=(count, *b.shape))
