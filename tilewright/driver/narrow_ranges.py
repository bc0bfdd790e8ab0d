"""Narrows default ranges of dynamic dimensions to sizes for which every comparison of sizes has one answer.

A model without ranges is compiled for wide ones (`runtime.open_versions`) around a point: sizes of a call, or usual
ones. Where it asks a question that its sizes answer in two ways, the answer at the point counts, and the ranges are cut
to where it is the same:

    seq 1..4096 at 64, "is seq min(seq, 128)?"          seq 1..128: a table has 128 positions
    height 1..1024 at 32, "is height 2*(height//2)?"    height 2..1024 by 2: it is halved, doubled and joined again
    n 1..64 at 8, m 1..64 at 8, "is n m?"               n is m
    n 1..64 at 1, m 1..64 at 8, "is n m, or 1?"         n is 1: it is broadcast

Nothing here has to be right: the model is compiled again, and what the new ranges do not decide is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ..support.dims import ChosenDim, Dim
from ..support.errors import SizeCondition

#: the largest divisor that is tried
DIVISORS = 64
#: questions that one compilation may be narrowed for
ROUNDS = 24
#: sizes next to the point, in steps of a divisor, that have to have the same answer
NEAR = 3

Shapes = Mapping[str, tuple[int | str | Dim, ...]]


def narrowed(
    inputs: Shapes, dims: list[Dim], size_condition: SizeCondition
) -> dict[str, tuple[int | str | Dim, ...]] | None:
    """The option `inputs` with narrower ranges, for which the answer to a question is more likely to be one; None where
    there are none.

    >>> seq = ChosenDim("seq", 1, 4096, point=64)
    >>> print(narrowed({"x": (seq, 8)}, [seq], lambda at: at["seq"] <= 128)["x"][0])
    seq:1..128~64
    """
    point = {d.name: d.point if isinstance(d, ChosenDim) else d.typical for d in dims}
    wanted = size_condition(point)

    def same(**sizes: int) -> bool:
        return size_condition({**point, **sizes}) == wanted

    changes: dict[str, int | Dim] = {}
    corners: list[dict[str, int]] = [{}]
    for d in dims:
        if not isinstance(d, ChosenDim) or all(map(partial(_everywhere, same, d.name, [{}]), _samples(d))):
            continue
        cut = _cut(d, partial(_everywhere, same, d.name, corners))
        if cut is None:
            twin = next((o for o in dims if o.name != d.name and _move_together(d, o, point, same)), None)
            if twin is None and d.point > 1:
                return None
            return _with(inputs, {d.name: d.point if twin is None else twin})
        if cut != d:
            changes[d.name] = cut
            corners = [{**c, d.name: n} for c in corners for n in (cut.low, cut.high)]
    return _with(inputs, changes) if changes else None


def _everywhere(same: Callable[..., bool], name: str, corners: list[dict[str, int]], n: int) -> bool:
    """Whether a question has its answer for a size of one dimension, at all ends of the ranges of others."""
    return all(same(**{**c, name: n}) for c in corners)


def _samples(d: ChosenDim) -> list[int]:
    """Sizes of a dimension that are likely to have all answers that there are."""
    near = [d.point + i * d.divisor for i in range(-NEAR, NEAR + 1)]
    some = [-(-d.low // d.divisor) * d.divisor, d.high // d.divisor * d.divisor, *near]
    return [n for n in some if d.low <= n <= d.high]


def _cut(d: ChosenDim, holds: Callable[[int], bool]) -> ChosenDim | None:
    """The largest range around the point in which a question has one answer; None if sizes next to it have others."""
    for divisor in range(d.divisor, max(DIVISORS, d.divisor) + 1, d.divisor):
        if d.point % divisor:
            continue
        beside = [d.point + i * divisor for i in range(-NEAR, NEAR + 1) if i]
        beside = [n for n in beside if d.low <= n <= d.high]
        if beside and all(holds(n) for n in beside):
            low = _end(d.point, -(-d.low // divisor) * divisor, divisor, holds)
            return replace(d, low=low, high=_end(d.point, d.high // divisor * divisor, divisor, holds), divisor=divisor)
    # the point may be the first or the last size that has its answer
    low, high = (
        _end(d.point, far // d.divisor * d.divisor, d.divisor, holds)
        if d.low <= d.point + step <= d.high and holds(d.point + step)
        else d.point
        for step, far in ((-d.divisor, d.low + d.divisor - 1), (d.divisor, d.high))
    )
    return replace(d, low=low, high=high) if low < high else None


def _end(point: int, far: int, step: int, holds: Callable[[int], bool]) -> int:
    """The multiple of `step` farthest from the point up to which a question has one answer."""
    near, sign = 0, 1 if far >= point else -1
    most = abs(far - point) // step
    if holds(point + sign * most * step):
        return point + sign * most * step
    while most - near > 1:
        middle = (near + most) // 2
        near, most = (middle, most) if holds(point + sign * middle * step) else (near, middle)
    return point + sign * near * step


def _move_together(d: ChosenDim, other: Dim, point: Mapping[str, int], same: Callable[..., bool]) -> bool:
    """Whether a question has one answer as long as two dimensions are one."""
    if not isinstance(other, ChosenDim) or point[d.name] != point[other.name] or d.divisor != other.divisor:
        return False
    sizes = [n for n in _samples(d) if other.low <= n <= other.high]
    return len(sizes) > 1 and all(same(**{d.name: n, other.name: n}) for n in sizes)


def _with(inputs: Shapes, changes: Mapping[str, int | Dim]) -> dict[str, tuple[int | str | Dim, ...]]:
    """Shapes with other dimensions in place of some."""

    def changed(d: int | str | Dim) -> int | str | Dim:
        return changes.get(d.name, d) if isinstance(d, Dim) else d

    return {name: tuple(map(changed, shape)) for name, shape in inputs.items()}


__all__ = ["ROUNDS", "narrowed"]
