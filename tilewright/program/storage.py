"""Alias and liveness analysis for the memory planner: which values share storage, and the live range of each.

Views of one value share its storage, and so do results that lie where an operand was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..support.sizes import at_most


@dataclass(frozen=True)
class StorageValue:
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
class CallEffects:
    """A kernel call: the values it reads and writes. ``(w, r)`` in `inplace`: writes[w] may lie where reads[r] lies.

    A value that is only written, and by one step, is that step's temporary memory.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inplace: tuple[tuple[int, int], ...] = ()


class AliasSet:
    """Values that share storage: views of one value, and in-place results."""

    def __init__(self, nbytes: int, home: tuple[str, int] | None, device: int) -> None:
        self.nbytes, self.home, self.device = nbytes, home, device
        self.first: int | None = None
        self.last = -1
        self.offset = 0

    def touch(self, step: int) -> None:
        self.first = step if self.first is None else min(self.first, step)
        self.last = max(self.last, step)

    def meets(self, other: AliasSet) -> bool:
        if self.first is None or other.first is None:
            return False
        return self.first <= other.last and other.first <= self.last


class Storage:
    """Which values share storage, and from when to when it is used."""

    def __init__(
        self,
        values: Sequence[StorageValue],
        steps: Sequence[CallEffects],
        outputs: Sequence[int],
        states: Mapping[int, int] | None = None,
    ) -> None:
        states = states or {}
        self.values, self.steps = values, steps
        self.places = [_root(values, v) for v in range(len(values))]  # (value that owns the storage, byte offset)
        self.groups = {r: AliasSet(values[r].nbytes, values[r].home, values[r].device) for r, _ in self.places}
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

    def next_home(self, state: int, g: AliasSet, at_once: bool) -> tuple[str, int]:
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

    def replaces(self, number: int, g: AliasSet, h: AliasSet) -> bool:
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

    def group(self, value: int) -> AliasSet:
        return self.groups[self.owner[self.places[value][0]]]

    def floating(self) -> list[AliasSet]:
        """What lies in the arena."""
        return [self.groups[r] for r in dict.fromkeys(self.owner.values()) if self.groups[r].home is None]


def _root(values: Sequence[StorageValue], value: int) -> tuple[int, int]:
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
    values: Sequence[StorageValue],
    steps: Sequence[CallEffects],
    outputs: Sequence[int],
    group: Callable[[int], AliasSet],
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
    step: CallEffects,
    values: Sequence[StorageValue],
    places: list[tuple[int, int]],
    groups: dict[int, AliasSet],
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
        same = same and at_most(g.nbytes, h.nbytes)
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
