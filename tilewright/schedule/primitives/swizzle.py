"""The primitive for rows of a buffer that lie in another order, so that threads that read a column meet in no bank."""

from __future__ import annotations

from functools import partial

from ...tensor.expr import Expr, Op
from ..nest import transform
from .state import ScheduleError, State, primitive, redirect


class SwizzlePrimitives(State):
    """Where pieces of rows lie."""

    @primitive
    def swizzle(self, buffer: str, piece: int, every: int = 1) -> None:
        """Lay out each row of a temporary with its pieces of `piece` elements in an order of its own: piece p of row r
        lies at place ``p xor (r // every)``, counted round and round.

        A memory that is divided into banks gives several threads the same piece of different rows at once if the rows
        have it in different banks. Refused unless the row has a power of two of pieces.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[4, 8], y: out(f32[8, 4])):
        ...     t = local(f32[4, 8])
        ...     for i in serial(4):
        ...         for j in serial(8):
        ...             s0: t[i, j] = exp(x[i, j])
        ...     for m in serial(8):
        ...         for n in serial(4):
        ...             s1: y[m, n] = negf(t[n, m])'''))
        >>> s.swizzle("t", 2)
        >>> print(s)
        def k(x: f32[4, 8], y: out(f32[8, 4])):
            t = local(f32[4, 8])
            for i in serial(4):
                for j in serial(8):
                    s0: t[i, xori(j // 2, i % 4) * 2 + j % 2] = exp(x[i, j])
            for m in serial(8):
                for n in serial(4):
                    s1: y[m, n] = negf(t[n, xori(m // 2, n % 4) * 2 + m % 2])
        """
        if buffer not in self.temporaries:
            raise ScheduleError(f"{buffer} is no temporary", stage="schedule")
        b = self.temporaries[buffer]
        count = b.shape[-1] // max(piece, 1) if b.shape else 0
        if len(b.shape) < 2 or piece < 1 or every < 1 or b.shape[-1] % piece or count & (count - 1):
            raise ScheduleError(
                f"rows of {buffer}, {list(b.shape)}, are no power of two of pieces of {piece}", stage="schedule"
            )

        def place(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
            turned = Op("xori", (i[-1] // piece, i[-2] // every % count), "index")
            return (*i[:-1], turned * piece + i[-1] % piece)

        self.body = transform(self.body, partial(redirect, old=buffer, new=buffer, index=place)) or self.body


__all__ = ["SwizzlePrimitives"]
