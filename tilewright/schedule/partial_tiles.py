"""Index ranges of partial tiles: simplifies ``o*k + i`` where the inner loop ends at the border, ``min(k, n -
o*k)``."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..tensor.expr import Expr, Op, Var, bounds, const_value, linear, simplify, substitute
from .nest import For, Stmt, walk_stmts
from .region import all_ranges

Ranges = dict[str, tuple[int, int]]


@dataclass
class Tiles:
    """Loops over partial tiles: ``for o: for i in min(k, n - o*k)`` makes ``o*k + i`` stay below n, and so do tiles
    inside of tiles, ``for i in min(k, min(m, n - p*m) - o*k)``, and tiles that are taken in runs, ``for i in min(k, n -
    p*m - o*k)``.

    `values` rewrites i as ``x - o*k`` (or ``x - p*m - o*k``) with a new variable x, whose range is in `ranges`; `parts`
    says that x tells p, o and i, where it does.
    """

    values: dict[str, Expr] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    parts: dict[str, tuple[Expr, ...]] = field(default_factory=dict)

    @staticmethod
    def of(body: Stmt) -> Tiles:
        found, known = Tiles(), all_ranges(body)
        for s in walk_stmts(body):
            tile = _tile(s.extent) if isinstance(s, For) else None
            if tile is not None and isinstance(s, For):
                levels, total = tile
                outer = [x for level in levels for x in level.outer]
                whole: Expr = Var(f"{s.var} whole")  # no loop has a blank in its name
                found.ranges[f"{s.var} whole"] = (0, total - 1)
                if _is_injective(levels, known):
                    found.parts[f"{s.var} whole"] = (*(o for o, _ in outer), Var(s.var))
                for o, size in outer:
                    whole = whole - o * size
                found.values[s.var] = whole
        return found

    def merged(self, e: Expr, ranges: Ranges) -> Expr:
        return simplify(substitute(e, self.values), {**ranges, **self.ranges})


@dataclass(frozen=True)
class _Level:
    """``min(size, the rest that the loops around leave)``: those loops with their steps."""

    size: int
    outer: tuple[tuple[Expr, int], ...]


def _tile(extent: Expr) -> tuple[list[_Level], int] | None:
    """Of the extent of a loop over a partial tile, what bounds it (the outermost first), and the whole."""
    size = const_value(extent.args[0]) if isinstance(extent, Op) and extent.op == "minsi" else None
    if not size or not isinstance(extent, Op):
        return None
    terms, total = linear(extent.args[1])
    outer = tuple((o, -c) for o, c in terms.items() if c < 0)
    around = [t for t, c in terms.items() if c == 1]
    if not outer or len(terms) != len(outer) + len(around) or len(around) > 1:
        return None
    if not around:
        return [_Level(size, outer)], total
    more = _tile(around[0]) if total == 0 else None
    return None if more is None else ([*more[0], _Level(size, outer)], more[1])


def _is_injective(levels: list[_Level], ranges: Ranges) -> bool:
    """Whether the sum of all loops times their steps tells each: a step is larger than all that is inside of it."""
    for level in levels:
        reach: int | None = level.size - 1
        for o, step in sorted(level.outer, key=lambda x: x[1]):
            limit = bounds(o, ranges)
            if reach is None or step <= reach or (limit is not None and limit[0] < 0):
                return False
            reach = None if limit is None else reach + step * limit[1]
    return True
