"""Reshapes as index arithmetic: where an element of the new shape stands in the old one."""

from __future__ import annotations

from ..support.sizes import Undecided
from .expr import Const, Expr, Var, floordiv, mod, simplify


def reshape_index(index: tuple[Expr, ...], new: tuple[int, ...], old: tuple[int, ...]) -> tuple[Expr, ...]:
    """Indices into the old shape for an element of the new one; dimensions that line up are kept without division."""
    if 0 in new:  # no element is ever read
        return tuple(Const(0, "index") for _ in old)
    result: list[Expr] = []
    for news, olds in _groups(new, old):
        flat: Expr = Const(0, "index")
        for d in news:
            flat = flat * new[d] + index[d]
        step = 1
        sizes = [old[d] for d in olds]
        parts: list[Expr] = []
        for k in range(len(sizes) - 1, -1, -1):
            part = floordiv(flat, Const(step, "index")) if step != 1 else flat
            if k > 0:
                part = mod(part, Const(sizes[k], "index"))
            parts.append(part)
            step *= sizes[k]
        ranges = {v.name: (0, new[d] - 1) for d in news if isinstance(v := index[d], Var)}
        result += [simplify(p, ranges) for p in reversed(parts)]
    return tuple(result)


def _less(a: int, b: int) -> bool:
    """Whether a product of dimensions is smaller than another one; of two that differ by a factor it is the factor."""
    try:
        return a < b
    except Undecided:
        if b % a == 0:
            return True
        if a % b == 0:
            return False
        raise


def _groups(new: tuple[int, ...], old: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Split two shapes of equal size into the finest runs of dimensions with equal products."""
    groups, i, j = [], 0, 0
    while i < len(new) or j < len(old):
        news, olds, a, b = [], [], 1, 1
        if i < len(new):
            news, a, i = [i], new[i], i + 1
        if j < len(old):
            olds, b, j = [j], old[j], j + 1
        while a != b:
            if j >= len(old) or (i < len(new) and _less(a, b)):
                news.append(i)
                a, i = a * new[i], i + 1
            else:
                olds.append(j)
                b, j = b * old[j], j + 1
        groups.append((news, olds))
    return groups
