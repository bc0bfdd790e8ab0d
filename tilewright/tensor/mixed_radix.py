"""Mixed-radix indices: what reshapes and transposes make of the number of an iteration.

A perfect nest of loops counts its iterations: the number f of (i, j, k) is i*|j|*|k| + j*|k| + k. A digit of f is
(f % high) // low: a loop variable is one, what a reshape makes of several (``(j*8 + k) // 6``, ``% 4``) is another. An
access whose flat position is a sum of digits that tile f, each times the size of those below it, is a bijection between
iterations and elements, whatever the order: a window partition, a transpose of a reshape of a transpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..support.sizes import ordered
from .expr import Expr, Op, Var, const_value, linear, simplify


@dataclass(frozen=True)
class Digit:
    """(f % high) // low of the number f of an iteration; `place`: what it counts for in the position of an element.

    >>> Digit(4, 12, 1).extent
    3
    """

    low: int
    high: int
    place: int

    @property
    def extent(self) -> int:
        return self.high // self.low


def loop_digits(dims: tuple[tuple[str, int], ...]) -> dict[str, Digit]:
    """Every loop variable of a perfect nest (name, extent; outermost first) as a digit of the iteration's number.

    >>> loop_digits((("i", 3), ("j", 4)))
    {'i': Digit(low=4, high=12, place=1), 'j': Digit(low=1, high=4, place=1)}
    """
    found, low = {}, 1
    for name, extent in reversed(dims):
        found[name] = Digit(low, low * extent, 1)
        low *= extent
    return {name: found[name] for name, _ in dims}


def position_digits(position: Expr, dims: tuple[tuple[str, int], ...], size: int) -> list[Digit] | None:
    """The digits of the iteration's number that make `position`, from the largest place down, if that takes each of
    0..size-1 once; None if it does not, or if it is no sum of digits.

    >>> i, j = Var("i"), Var("j")
    >>> position_digits(j * 3 + i, (("i", 3), ("j", 4)), 12)  # transposed
    [Digit(low=1, high=4, place=3), Digit(low=4, high=12, place=1)]
    >>> position_digits((i * 4 + j) % 6 * 2 + (i * 4 + j) // 6, (("i", 3), ("j", 4)), 12)  # as 2 x 6, then transposed
    [Digit(low=1, high=6, place=2), Digit(low=6, high=12, place=1)]
    """
    loops = loop_digits(dims)
    terms, constant = linear(simplify(position, {v: (0, n - 1) for v, n in dims}))
    digits = []
    for t, place in terms.items():
        digit = _digit(t, loops)
        if digit is None:
            return None
        digits.append(Digit(digit.low, digit.high, place))
    by_low = ordered(digits, lambda d: d.low)
    total = 1
    for _, n in dims:
        total *= n
    bounds = [1, *(d.high for d in by_low)]
    if constant or bounds[:-1] != [d.low for d in by_low] or bounds[-1] != total:
        return None
    by_place = ordered(digits, lambda d: d.place)
    places = [1, *(d.place * d.extent for d in by_place)]
    if places[:-1] != [d.place for d in by_place] or places[-1] != size:
        return None
    return by_place[::-1]


def _digit(e: Expr, loops: dict[str, Digit]) -> Digit | None:
    """An index as one digit of the iteration's number, or None."""
    if isinstance(e, Var):
        return loops.get(e.name)
    if not isinstance(e, Op) or e.op not in ("floordivsi", "remsi"):
        return None
    n, whole = const_value(e.args[1]), _sum(e.args[0], loops)
    if not n or n < 0 or whole is None:
        return None
    cut = whole.low * n
    if cut >= whole.high:
        return whole if e.op == "remsi" else None
    if whole.high % cut:
        return None
    return Digit(whole.low, cut, 1) if e.op == "remsi" else Digit(cut, whole.high, 1)


def _sum(e: Expr, loops: dict[str, Digit]) -> Digit | None:
    """A sum of digits that follow each other as one digit, or None."""
    terms, constant = linear(e)
    parts = [(c, _digit(t, loops)) for t, c in terms.items()]
    if constant or not parts or any(d is None for _, d in parts):
        return None
    by_step = ordered(((c, d) for c, d in parts if d is not None), lambda x: x[0])
    for (c, lower), (d, upper) in pairwise(by_step):
        if d != c * lower.extent or upper.low != lower.high:
            return None
    return Digit(by_step[0][1].low, by_step[-1][1].high, 1) if by_step[0][0] == 1 else None
