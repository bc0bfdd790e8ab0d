"""The primitive `stagger`: software pipelining of the stages of row loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..legality import LAG, iterations_cross
from ..nest import For, Seq, Stmt, walk_stmts
from ..region import all_ranges
from .state import ScheduleError, State, primitive


class StaggerPrimitives(State):
    """Loops in one, each some iterations behind the one before."""

    @primitive
    def stagger(self, loops: Sequence[str], lags: Sequence[int]) -> None:
        """Serial loops that follow each other, with the same iterations, may run as one, in which loop number k is
        ``lags[k]`` iterations behind the first.

        What an iteration waits for was then made some time ago, and a processor that looks ahead works on all loops at
        once. The nest says so by notes; a target that makes one loop of them tests in every iteration which of the
        loops have begun and which have not ended.

        Lags begin with 0 and do not become smaller. Refused if an iteration touches what another iteration of another
        loop writes.

        >>> from tilewright import Schedule, te
        >>> s = Schedule(te.from_nest('''
        ... def k(x: f32[8], y: out(f32[8])):
        ...     t = local(f32[8])
        ...     for i in serial(8):
        ...         s0: t[i] = exp(x[i])
        ...     for j in serial(8):
        ...         s1: y[j] = negf(t[j])'''))
        >>> s.stagger(["i", "j"], [0, 2])
        >>> print(s)
        def k(x: f32[8], y: out(f32[8])):
            t = local(f32[8])
            for i in serial(8, notes={'lag': 0}):
                s0: t[i] = exp(x[i])
            for j in serial(8, notes={'lag': 2}):
                s1: y[j] = negf(t[j])
        """
        found = [self.loop(v) for v in loops]
        if len(found) < 2 or len(found) != len(lags) or lags[0] != 0 or list(lags) != sorted(lags):
            raise ScheduleError(f"{len(found)} loops cannot have the lags {list(lags)}", stage="schedule")
        if not any(isinstance(s, Seq) and _follow(s.stmts, found) for s in walk_stmts(self.body)):
            raise ScheduleError(f"{', '.join(loops)} do not follow each other directly", stage="schedule")
        reason = iterations_cross(found, {**self.temporaries, **self.params}, all_ranges(self.body))
        if reason:
            raise ScheduleError(reason, stage="schedule")
        for f, lag in zip(found, lags, strict=True):
            notes = tuple(sorted({**dict(f.notes), LAG: lag}.items()))
            self._replace(self.loop(f.var), replace(f, notes=notes))


def _follow(stmts: tuple[Stmt, ...], loops: list[For]) -> bool:
    """Whether loops are neighbours in this order."""
    at = next((i for i, s in enumerate(stmts) if s is loops[0]), len(stmts))
    return at + len(loops) <= len(stmts) and all(s is f for s, f in zip(stmts[at:], loops, strict=False))


__all__ = ["StaggerPrimitives"]
