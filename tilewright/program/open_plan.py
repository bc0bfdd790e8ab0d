"""The memory plan with dynamic dimensions: which values share memory is decided once, for all sizes.

Values whose sizes are multiples of one expression are planned together, in units of it; then their plan holds for all
sizes. What has another expression lies in a part of its own, unless a slightly larger one has room for it.

    x: 1024*batch*seq, y: 1024*batch*seq, z: 2048*batch*seq, m: 4*seq
    -> x at 0, y at 1024*batch*seq, z (when x and y are dead) at 0; m at 2048*batch*seq
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..support.sizes import at_most, gcd, highest, is_open, ordered, typical
from .offsets import place_groups
from .plan import MemoryPlan
from .program import ALIGN, BufferRef
from .storage import AliasSet, CallEffects, Storage, StorageValue

#: a unit is at most so many times another one that is planned with it
_WASTE = 1.125


@dataclass(frozen=True)
class OpenPlan:
    """Where the places begin that references to the arena have as `slot`, and the bytes of the arena."""

    starts: tuple[int, ...]
    arena: int


def plan_open(
    values: Sequence[StorageValue],
    steps: Sequence[CallEffects],
    outputs: Sequence[int],
    states: Mapping[int, int] | None = None,
    align: int = ALIGN,
    tight: bool = False,
) -> tuple[MemoryPlan, OpenPlan]:
    """A plan for all sizes; its references to the arena have the number of a place as `slot`. `align` and `tight` are
    those of `plan_memory`."""
    storage = Storage(values, steps, outputs, states)
    starts: dict[int, int] = {}  # where a place begins -> its number
    of: dict[int, int] = {}
    end = 0
    for unit, counts in _merged(_by_unit(storage.floating())).items():
        groups, counted = [g for g, _ in counts], [_counted(g, n) for g, n in counts]
        size, _ = place_groups(counted, len(steps), align, tight)
        for g, c in zip(groups, counted, strict=True):
            of[id(g)] = starts.setdefault(end + c.offset * unit, len(starts))
        end = end + size * unit
    refs = tuple(_ref(storage, v, of) for v in range(len(values)))
    pairs = tuple((refs[v], BufferRef(*home, 0, values[v].nbytes)) for v, home in storage.copies)
    return MemoryPlan(refs, pairs, 0, 0, frozenset(storage.swapped), (0,)), OpenPlan(tuple(starts), end)


def _by_unit(groups: Sequence[AliasSet]) -> dict[int, list[tuple[AliasSet, int]]]:
    """Groups whose bytes are a number of times the same expression: ``batch*seq``, or 1 where they are known; with the
    number."""
    found: dict[int, list[tuple[AliasSet, int]]] = {}
    for g in groups:
        if g.first is not None and g.nbytes:
            count = gcd(g.nbytes)
            unit = g.nbytes // count if is_open(g.nbytes) else 1
            found.setdefault(unit, []).append((g, count))
    return found


def _merged(found: dict[int, list[tuple[AliasSet, int]]]) -> dict[int, list[tuple[AliasSet, int]]]:
    """What has a slightly smaller unit has places for the larger one: convolutions leave ``seq``, ``seq + 1`` and, with
    padding, ``seq + 2`` rows, which would share no memory otherwise."""
    for unit in ordered(found, lambda u: u):
        near = [u for u in found if u is not unit and is_open(unit, u) and at_most(unit, u) and _near(unit, u)]
        if near:
            found[min(near, key=typical)] += found.pop(unit)
    return found


def _near(small: int, large: int) -> bool:
    """Whether little is lost, at typical sizes and at the largest."""
    return typical(large) <= _WASTE * typical(small) and highest(large) <= _WASTE * highest(small)


def _counted(g: AliasSet, units: int) -> AliasSet:
    """The same life, of so many bytes."""
    made = AliasSet(units, None, 0)
    made.first, made.last = g.first, g.last
    return made


def _ref(storage: Storage, value: int, of: Mapping[int, int]) -> BufferRef:
    g = storage.group(value)
    space, index = g.home or ("arena", 0)
    slot = -1 if g.home else of.get(id(g), -1)
    return BufferRef(space, index, storage.places[value][1], storage.values[value].nbytes, slot)
