"""Offset assignment in the arena (dynamic storage allocation): greedy by several orders, or a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from .offset_search import LiveRange, place
from .program import align_up
from .storage import AliasSet

_ORDERS: tuple[Callable[[Any], tuple[int, ...]], ...] = (
    lambda g: (-g.nbytes, g.first),
    lambda g: (-g.nbytes * (g.last - g.first + 1), g.first),
    lambda g: (g.first, -g.nbytes),
)


def place_groups(groups: Sequence[AliasSet], steps: int, align: int, tight: bool) -> tuple[int, int]:
    """Give every group an offset; `tight` searches longer. Returns the size of the arena, and the peak of live bytes
    over so many steps."""
    bound = max(live_bytes(groups, steps, align), default=0)
    size = _place(groups, align)
    if tight and size > bound:
        size = _place_tightly(groups, align, bound, size)
    return size, bound


def live_bytes(groups: Sequence[AliasSet], steps: int, align: int) -> list[int]:
    """The bytes that live during each step, and after the last."""
    change = [0] * (steps + 2)
    for g in groups:
        if g.first is not None:
            change[g.first] += align_up(g.nbytes, align)
            change[g.last + 1] -= align_up(g.nbytes, align)
    return list(accumulate(change[:-1]))


def _place(groups: Sequence[AliasSet], align: int) -> int:
    """Give every group an offset; the best of a few greedy orders. Returns the size of the arena."""
    real = [g for g in groups if g.nbytes and g.first is not None]
    best: tuple[int, list[int]] | None = None
    for order in _ORDERS:
        size, offsets = _greedy(sorted(range(len(real)), key=lambda i: order(real[i])), real, align)
        if best is None or size < best[0]:
            best = size, offsets
    assert best is not None
    for g, offset in zip(real, best[1], strict=True):
        g.offset = offset
    return best[0]


def _place_tightly(groups: Sequence[AliasSet], align: int, bound: int, known: int) -> int:
    real = [g for g in groups if g.nbytes and g.first is not None]
    found = place([LiveRange(g.first or 0, g.last, align_up(g.nbytes, align)) for g in real], bound, known)
    if found is None:
        return known
    for g, offset in zip(real, found[1], strict=True):
        g.offset = offset
    return found[0]


def _greedy(order: list[int], groups: Sequence[AliasSet], align: int) -> tuple[int, list[int]]:
    """Put each group into the smallest gap that holds it between those placed before and alive with it."""
    offsets = [0] * len(groups)
    placed: list[int] = []
    size = 0
    for i in order:
        need = align_up(groups[i].nbytes, align)
        alive = [j for j in placed if groups[i].meets(groups[j])]
        busy = sorted((offsets[j], offsets[j] + align_up(groups[j].nbytes, align)) for j in alive)
        at, slack, end = None, None, 0
        for begin, stop in busy:
            gap = begin - end
            if gap >= need and (slack is None or gap - need < slack):
                at, slack = end, gap - need
            end = max(end, stop)
        offsets[i] = end if at is None else at
        placed.append(i)
        size = max(size, offsets[i] + need)
    return size, offsets
