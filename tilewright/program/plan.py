"""The memory planner: where every value of a program lies, so that the arena is small.

    values = [Value(256, home=("input", 0)), Value(1024), Value(1024), Value(40)]
    steps = [Step(reads=(0,), writes=(1,)),
             Step(reads=(1,), writes=(2,), inplace=((0, 0),)),   # its result may take the place of its operand
             Step(reads=(2,), writes=(3,))]
    plan = plan_memory(values, steps, outputs=[3])

A value lives from the step that first writes it to the step that last touches it. Values that never live at the same
time may share bytes; whether two steps may also run at the same time is decided later, from the byte ranges, by
whoever puts barriers between kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..support.sizes import surely
from .place import Block, place
from .program import ALIGN, BufferRef, align_up


@dataclass(frozen=True)
class Value:
    """A value of `nbytes`. `home`: it lies in a buffer that is given, ("input", i), ("constant", i) or ("state", i).
    `view_of`: it is the bytes from `offset` of another value (a reshape, or a part of a concatenation that is written
    in parts). `device`: where it lies, and whatever it is a view of.
    """

    nbytes: int
    home: tuple[str, int] | None = None
    view_of: int | None = None
    offset: int = 0
    device: int = 0


@dataclass(frozen=True)
class Step:
    """A kernel call: the values it reads and writes. ``(w, r)`` in `inplace`: writes[w] may lie where reads[r] lies.

    A value that is only written, and by one step, is that step's temporary memory.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inplace: tuple[tuple[int, int], ...] = ()


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


_NONE: Mapping[int, int] = {}


class _Group:
    """Values that share storage: views of one value, and in-place results."""

    def __init__(self, nbytes: int, home: tuple[str, int] | None, device: int) -> None:
        self.nbytes, self.home, self.device = nbytes, home, device
        self.first: int | None = None
        self.last = -1
        self.offset = 0

    def touch(self, step: int) -> None:
        self.first = step if self.first is None else min(self.first, step)
        self.last = max(self.last, step)

    def meets(self, other: _Group) -> bool:
        if self.first is None or other.first is None:
            return False
        return self.first <= other.last and other.first <= self.last


def plan_memory(
    values: Sequence[Value],
    steps: Sequence[Step],
    outputs: Sequence[int],
    align: int = ALIGN,
    tight: bool = False,
    states: Mapping[int, int] | None = None,
) -> MemoryPlan:
    """Place all values at multiples of `align`; `tight` searches longer for a smaller arena.

    `states`: positions in `outputs` that are the next value of a state -> its number; the others are outputs 0, 1 ...
    ValueError if a step reads what nothing has written, or a view exceeds what it is a view of.
    """
    storage = _Storage(values, steps, outputs, states or _NONE)
    places, group, copies, floating = storage.places, storage.group, storage.copies, storage.floating()
    sizes, bounds = [], []
    for device in range(1 + max((v.device for v in values), default=0)):
        here = [g for g in floating if g.device == device]
        bounds.append(max(_live(here, len(steps), align), default=0))
        sizes.append(_place(here, align))
        if tight and sizes[-1] > bounds[-1]:
            sizes[-1] = _place_tightly(here, align, bounds[-1], sizes[-1])
    refs = []
    for v, (_, offset) in enumerate(places):
        g = group(v)
        space, index = g.home or ("arena", g.device)
        refs.append(BufferRef(space, index, g.offset + offset, values[v].nbytes))
    pairs = tuple((refs[v], BufferRef(*home, 0, values[v].nbytes)) for v, home in copies)
    return MemoryPlan(tuple(refs), pairs, sum(sizes), sum(bounds), frozenset(storage.swapped), tuple(sizes))


def live_profile(values: Sequence[Value], steps: Sequence[Step], outputs: Sequence[int], align: int) -> list[int]:
    """The bytes that live during each step, and after the last."""
    return _live(_Storage(values, steps, outputs).floating(), len(steps), align)


class _Storage:
    """Which values share storage, and from when to when it is used."""

    def __init__(
        self, values: Sequence[Value], steps: Sequence[Step], outputs: Sequence[int], states: Mapping[int, int] = _NONE
    ) -> None:
        self.values, self.steps = values, steps
        self.places = [_root(values, v) for v in range(len(values))]  # (value that owns the storage, byte offset)
        self.groups = {r: _Group(values[r].nbytes, values[r].home, values[r].device) for r, _ in self.places}
        self.owner = {r: r for r in self.groups}
        _lifetimes(values, steps, outputs, self.group)
        for number, step in enumerate(steps):
            _merge_inplace(number, step, values, self.places, self.groups, self.owner, set(outputs))
        self.copies: list[tuple[int, tuple[str, int]]] = []  # (value, where it has to be)
        self.swapped: set[int] = set()
        count = 0
        for position, value in enumerate(outputs):
            g = self.group(value)
            at_once = g.home is None and self.whole(value)
            if position in states:
                home = self.next_home(states[position], g, at_once)
            else:
                home, count = ("output", count), count + 1
            if at_once:
                g.home = home
            elif g.home != home:
                self.copies.append((value, home))

    def next_home(self, state: int, g: _Group, at_once: bool) -> tuple[str, int]:
        """Where the next value of a state is written, which group `g` is (`at_once`), or is copied from in the end: in
        place if nothing reads the old value then or later."""
        h = next((x for x in self.groups.values() if x.home == ("state", state)), None)
        if h is None:  # it is never read
            return "state", state
        written = len(self.steps) if not at_once else g.first
        if h is g or written is None or h.last < written or (h.last == written and self.replaces(written, g, h)):
            return "state", state
        self.swapped.add(state)
        return "next", state

    def replaces(self, number: int, g: _Group, h: _Group) -> bool:
        """Whether the one result of a step in `g` may lie where its operands in `h` are; each is all of its group."""
        if number == len(self.steps):
            return False
        step = self.steps[number]
        written = [w for w, v in enumerate(step.writes) if self.group(v) is g]
        whole = all(self.whole(step.writes[w]) for w in written)
        reads = [r for r, v in enumerate(step.reads) if self.group(v) is h]
        return (
            len(written) == 1
            and whole
            and all((written[0], r) in step.inplace and self.whole(step.reads[r]) for r in reads)
        )

    def whole(self, value: int) -> bool:
        """Whether a value is all of its storage."""
        return self.places[value][1] == 0 and self.values[value].nbytes == self.group(value).nbytes

    def group(self, value: int) -> _Group:
        return self.groups[self.owner[self.places[value][0]]]

    def floating(self) -> list[_Group]:
        """What lies in the arena."""
        return [self.groups[r] for r in dict.fromkeys(self.owner.values()) if self.groups[r].home is None]


def _root(values: Sequence[Value], value: int) -> tuple[int, int]:
    offset, at = 0, value
    for _ in range(len(values)):
        v = values[at]
        if v.view_of is None:
            if offset + values[value].nbytes > v.nbytes:
                raise ValueError(f"value {value} ends beyond value {at}, of which it is a view")
            return at, offset
        offset, at = offset + v.offset, v.view_of
    raise ValueError(f"value {value} is a view of itself")


def _lifetimes(
    values: Sequence[Value], steps: Sequence[Step], outputs: Sequence[int], group: Callable[[int], _Group]
) -> None:
    for number, step in enumerate(steps):
        for value in step.reads:
            g = group(value)
            if g.home is None and g.first is None and values[value].nbytes:
                raise ValueError(f"step {number} reads value {value} before any step wrote it")
            g.touch(number)
        for value in step.writes:
            if group(value).home is not None:
                raise ValueError(f"step {number} writes value {value}, which is an input, a constant or a state")
            group(value).touch(number)
    for value in outputs:
        g = group(value)
        if g.home is None and g.first is None and values[value].nbytes:
            raise ValueError(f"output value {value} is never written")
        g.touch(len(steps))


def _merge_inplace(
    number: int,
    step: Step,
    values: Sequence[Value],
    places: list[tuple[int, int]],
    groups: dict[int, _Group],
    owner: dict[int, int],
    outputs: set[int],
) -> None:
    """Let results of a step take the storage of operands that die there, where the step permits it. The storage of an
    operand stays as large as it is until the result dies too."""
    for w, r in step.inplace:
        result, operand = step.writes[w], step.reads[r]
        target, source = owner[places[result][0]], owner[places[operand][0]]
        g, h = groups[target], groups[source]
        whole = places[result][1] == places[operand][1] == 0
        same = g.nbytes == values[result].nbytes and values[operand].nbytes == h.nbytes
        same = same and surely(lambda g=g, h=h: g.nbytes <= h.nbytes)  # type: ignore[misc]
        if target == source or h.home is not None or not (whole and same):
            continue
        if g.nbytes != h.nbytes and result in outputs:
            continue  # it has a place of its own outside the arena
        if h.last != number or g.first != number:
            continue  # the operand is still needed, or the result is written in parts over several steps
        # Every other read of the same bytes must also permit it, element by element at the same place.
        others = [p for p, v in enumerate(step.reads) if owner[places[v][0]] == source]
        if not all((w, p) in step.inplace and places[step.reads[p]][1] == 0 for p in others):
            continue
        if any(owner[places[v][0]] == source for v in step.writes):
            continue
        h.last = max(h.last, g.last)
        for root, o in owner.items():
            if o == target:
                owner[root] = source


_ORDERS: tuple[Callable[[Any], tuple[int, ...]], ...] = (
    lambda g: (-g.nbytes, g.first),
    lambda g: (-g.nbytes * (g.last - g.first + 1), g.first),
    lambda g: (g.first, -g.nbytes),
)


def _place(groups: list[_Group], align: int) -> int:
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


def _place_tightly(groups: list[_Group], align: int, bound: int, known: int) -> int:
    real = [g for g in groups if g.nbytes and g.first is not None]
    found = place([Block(g.first or 0, g.last, align_up(g.nbytes, align)) for g in real], bound, known)
    if found is None:
        return known
    for g, offset in zip(real, found[1], strict=True):
        g.offset = offset
    return found[0]


def _greedy(order: list[int], groups: list[_Group], align: int) -> tuple[int, list[int]]:
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


def _live(groups: list[_Group], steps: int, align: int) -> list[int]:
    """The bytes that live during each step, and after the last."""
    change = [0] * (steps + 2)
    for g in groups:
        if g.first is not None:
            change[g.first] += align_up(g.nbytes, align)
            change[g.last + 1] -= align_up(g.nbytes, align)
    return list(accumulate(change[:-1]))
