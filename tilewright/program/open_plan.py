"""The memory plan of a program with open dimensions: who shares memory is decided once, for all sizes.

Values whose sizes are multiples of one expression are planned together, in units of it; then their plan holds for all
sizes. What has another expression lies in a part of its own.

    x: 1024*batch*seq, y: 1024*batch*seq, z: 2048*batch*seq, m: 4*seq
    -> x at 0, y at 1024*batch*seq, z (when x and y are dead) at 0; m at 2048*batch*seq
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..support.sizes import gcd, is_open
from .plan import _NONE, MemoryPlan, Step, Value, _Group, _place, _Storage
from .program import ALIGN, BufferRef


@dataclass(frozen=True)
class OpenPlan:
    """Where the places begin that references to the arena have as `index`, and the bytes of the arena."""

    starts: tuple[int, ...]
    arena: int


def plan_open(
    values: Sequence[Value], steps: Sequence[Step], outputs: Sequence[int], states: Mapping[int, int] | None = None
) -> tuple[MemoryPlan, OpenPlan]:
    """A plan for all sizes; its references to the arena have the number of a place as `index`."""
    storage = _Storage(values, steps, outputs, states or _NONE)
    starts: dict[int, int] = {}  # where a place begins -> its number
    of: dict[int, int] = {}
    end = 0
    for unit, groups in _by_unit(storage.floating()).items():
        counted = [_counted(g, g.nbytes // unit) for g in groups]
        size = _place(counted, ALIGN)
        for g, c in zip(groups, counted, strict=True):
            of[id(g)] = starts.setdefault(end + c.offset * unit, len(starts))
        end = end + size * unit
    refs = tuple(_ref(storage, v, of) for v in range(len(values)))
    pairs = tuple((refs[v], BufferRef(*home, 0, values[v].nbytes)) for v, home in storage.copies)
    return MemoryPlan(refs, pairs, 0, 0, frozenset(storage.swapped), (0,)), OpenPlan(tuple(starts), end)


def _by_unit(groups: Sequence[_Group]) -> dict[int, list[_Group]]:
    """Groups whose bytes are a number of times the same expression: ``batch*seq``, or 1 where they are known."""
    found: dict[int, list[_Group]] = {}
    for g in groups:
        if g.first is not None and g.nbytes:
            unit = g.nbytes // gcd(g.nbytes) if is_open(g.nbytes) else 1
            found.setdefault(unit, []).append(g)
    return found


def _counted(g: _Group, units: int) -> _Group:
    """The same life, of so many bytes."""
    made = _Group(units, None, 0)
    made.first, made.last = g.first, g.last
    return made


def _ref(storage: _Storage, value: int, of: Mapping[int, int]) -> BufferRef:
    g = storage.group(value)
    space, index = g.home or ("arena", of.get(id(g), 0))
    return BufferRef(space, index, storage.places[value][1], storage.values[value].nbytes)
