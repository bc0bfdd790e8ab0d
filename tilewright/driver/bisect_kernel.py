"""Bisection within one kernel call: its loop nest after each step of its schedule, and the first step after which it is
wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ..codegen.kernel_info import pack_array
from ..schedule.interpret import interpret_nest
from ..schedule.nest import For, Nest, Stmt, Store, children
from ..schedule.schedule import Schedule
from ..support.errors import TilewrightError
from .compare import largest_error
from .compile_state import State

#: kernels of at most this many iterations are interpreted even if their native code is right
FEW_POINTS = 1 << 23
#: a nest that adds in another order may have as many times the error of the plain loops
ROUNDING = 10.0


@dataclass(frozen=True)
class Call:
    """A call of a kernel: where it comes from, its inputs, what its level-3 IR gives for them in float64 and in its own
    precision, and the largest error of each result."""

    symbol: str
    operator: str
    inputs: list[np.ndarray]
    wanted: list[np.ndarray]
    own: list[np.ndarray]
    allowed: list[float]

    @property
    def limit(self) -> float:
        return max(self.allowed)

    def error(self, results: Sequence[np.ndarray]) -> float:
        """The largest error of any result; those that may have none count as infinitely wrong, or as right."""
        worst = 0.0
        for have, wide, same, allowed in zip(results, self.wanted, self.own, self.allowed, strict=True):
            have = have.reshape(wide.shape)
            error = largest_error(have, wide)
            if error > allowed:
                error = min(error, largest_error(have, same))
            worst = max(worst, error if allowed else inf if error else 0.0)
        return worst


def points(s: Stmt) -> float:
    """Iterations of all stores of a nest; loops whose extent varies count once."""
    if isinstance(s, Store):
        return 1
    below = sum(points(c) for c in children(s))
    return below * (s.trip or 1) if isinstance(s, For) else below


def error_of(nest: Nest, call: Call) -> tuple[float, str]:
    """The error of a nest, and why there is no number: it does something undefined."""
    try:
        names = [p for p in nest.params if p.name not in nest.outputs]
        arrays = {}
        for p, a in zip(names, call.inputs, strict=True):
            pack = nest.packs.get(p.name)
            arrays[p.name] = pack_array(a, pack) if pack is not None else np.ascontiguousarray(a).reshape(p.shape)
        made = interpret_nest(nest, arrays)
    except TilewrightError as e:
        return inf, e.message
    return call.error([made[n] for n in nest.outputs]), ""


@dataclass(frozen=True)
class WrongStep:
    """What makes a nest wrong, the nests before (None: it is wrong from the beginning) and after it, their errors."""

    name: str
    nest_before: Nest | None
    nest_after: Nest
    before: float
    after: float
    why: str = ""


def steps(state: State, symbol: str) -> list[tuple[str, Nest]]:
    """The nest of a kernel before its schedule, after each step of it, and finished."""
    made = state.schedules[symbol]
    s = Schedule(made.schedule.kernel, made.schedule.target)
    found = [("the loops as they are read from level 3,", s.nest())]
    for number, step in enumerate(made.schedule.trace, 1):
        getattr(s, step.name)(*step.args, **step.kwargs)
        found.append((f"step {number}, {step},", s.nest()))
    if s.kernel.opaque is not None:  # its own loop nest is made by the first step
        found = found[1:]
    last = made.schedule.nest()
    if not found or str(found[-1][1]) != str(last):
        found.append((f"rule {made.rule!r}, which changes the nest without a step,", last))
    found.append(("finish (initializations, partial tiles, simplification)", made.nest))
    return found


def first_wrong(count: int, wrong: Callable[[int], bool]) -> int:
    """The first of `count` places that is wrong, where the one before is right; the last one is wrong, place 0 counts
    as right.

    >>> first_wrong(9, lambda i: i >= 5)
    5
    """
    right, bad = 0, count - 1
    while bad - right > 1:
        middle = (right + bad) // 2
        if wrong(middle):
            bad = middle
        else:
            right = middle
    return bad


def first_wrong_step(state: State, call: Call) -> WrongStep | None:
    """The first step after which a kernel's nest is wrong; its finished nest is.

    None for an operator's own loop nest that the interpreter refuses before any step: such nests may compute lanes from
    what nobody has written, and store none of them.
    """
    found = steps(state, call.symbol)
    known: dict[int, tuple[float, str]] = {}

    def error(i: int) -> tuple[float, str]:
        if i not in known:
            known[i] = error_of(found[i][1], call)
        return known[i]

    start, why = error(0)
    if why and state.kernels[call.symbol].opaque is not None:
        return None
    if not start <= ROUNDING * call.limit:
        return WrongStep(found[0][0], None, found[0][1], 0.0, start, why)
    limit = max(call.limit, ROUNDING * start)
    i = first_wrong(len(found), lambda i: not error(i)[0] <= limit)
    after, why = error(i)
    return WrongStep(found[i][0], found[i - 1][1], found[i][1], error(i - 1)[0], after, why)


__all__ = ["Call", "FEW_POINTS", "WrongStep", "error_of", "first_wrong", "first_wrong_step", "points", "steps"]
