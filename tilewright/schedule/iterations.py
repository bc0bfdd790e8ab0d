"""How often the statements of a nest run, as a formula of open dimensions: a measure of what a kernel takes."""

from __future__ import annotations

from ..support.sizes import Undecided, lowest
from ..tensor.expr import bounds
from .inplace import COPIES
from .nest import For, Stmt, Store, children

Ranges = dict[str, tuple[int, int]]


def iterations(s: Stmt, ranges: Ranges | None = None) -> int | None:
    """The most that stores in a statement run together, but those of copies that are left out in place; None where
    numbers that are read decide how long a loop is.

    >>> from tilewright.schedule.text import parse_nest
    >>> iterations(parse_nest("def f(x: f32[8], y: out(f32[8])):\\n  for i in serial(8):\\n    y[i] = x[i]").body)
    8
    """
    ranges = ranges or {}
    if isinstance(s, Store):
        return 1
    if not isinstance(s, For):
        parts = [iterations(x, ranges) for x in children(s)]
        known = [n for n in parts if n is not None]
        return sum(known) if len(known) == len(parts) else None
    if copies(s):
        return 0
    limits = bounds(s.extent, ranges)
    if limits is None:
        return None
    try:
        inner = iterations(s.body, {**ranges, s.var: (0, limits[1] - 1)})
        return None if inner is None or lowest(limits[1]) < 0 else limits[1] * inner
    except Undecided:
        return None


def copies(s: For) -> bool:
    """Whether a loop does nothing but copy what is there already where a result takes the place of an operand."""
    return s.note(COPIES) is not None


__all__ = ["copies", "iterations"]
