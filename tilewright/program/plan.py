"""The memory planner: an arena offset for every value of a program, with little memory in all.

    values = [StorageValue(256, home=("input", 0)), StorageValue(1024), StorageValue(1024), StorageValue(40)]
    steps = [CallEffects(reads=(0,), writes=(1,)),
             CallEffects(reads=(1,), writes=(2,), inplace=((0, 0),)),   # its result may take the place of its operand
             CallEffects(reads=(2,), writes=(3,))]
    plan = plan_memory(values, steps, outputs=[3])

A value lives from the step that first writes it to the step that last touches it. Values that never live at the same
time may share bytes; whether two steps may also run at the same time is decided later, from the byte ranges, by
whoever puts barriers between kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .offsets import live_bytes, place_groups
from .program import ALIGN, BufferRef
from .storage import CallEffects as CallEffects
from .storage import Storage
from .storage import StorageValue as StorageValue


@dataclass(frozen=True)
class MemoryPlan:
    """The place of every value; `copies` are (from, to) pairs to do after the last step, for outputs that are an input,
    a constant, a part of something or given twice. `bound`: the most bytes that live at one time. `swapped`: the states
    whose next value cannot be written in place. `arenas`: `arena_size` by device.
    """

    refs: tuple[BufferRef, ...]
    copies: tuple[tuple[BufferRef, BufferRef], ...]
    arena_size: int
    bound: int
    swapped: frozenset[int] = frozenset()
    arenas: tuple[int, ...] = ()


def plan_memory(
    values: Sequence[StorageValue],
    steps: Sequence[CallEffects],
    outputs: Sequence[int],
    align: int = ALIGN,
    tight: bool = False,
    states: Mapping[int, int] | None = None,
) -> MemoryPlan:
    """Place all values at multiples of `align`; `tight` searches longer for a smaller arena.

    `states`: positions in `outputs` that are the next value of a state -> its number; the others are outputs 0, 1 ...
    ValueError if a step reads what nothing has written, or a view exceeds what it is a view of.
    """
    storage = Storage(values, steps, outputs, states)
    places, group, copies, floating = storage.places, storage.group, storage.copies, storage.floating()
    sizes, bounds = [], []
    for device in range(1 + max((v.device for v in values), default=0)):
        here = [g for g in floating if g.device == device]
        size, bound = place_groups(here, len(steps), align, tight)
        sizes.append(size)
        bounds.append(bound)
    refs = []
    for v, (_, offset) in enumerate(places):
        g = group(v)
        space, index = g.home or ("arena", g.device)
        refs.append(BufferRef(space, index, g.offset + offset, values[v].nbytes))
    pairs = tuple((refs[v], BufferRef(*home, 0, values[v].nbytes)) for v, home in copies)
    return MemoryPlan(tuple(refs), pairs, sum(sizes), sum(bounds), frozenset(storage.swapped), tuple(sizes))


def live_profile(
    values: Sequence[StorageValue], steps: Sequence[CallEffects], outputs: Sequence[int], align: int
) -> list[int]:
    """The bytes that live during each step, and after the last."""
    return live_bytes(Storage(values, steps, outputs).floating(), len(steps), align)
