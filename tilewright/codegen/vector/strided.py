"""Strided and gathered vector loads with known offsets: whole vectors are loaded and the elements shuffled out.

    for i in vector(16):
        y[i] = x[i * 2]                   # as the half of a picture
        y[i] = x[15 - i]                  # in reverse
        y[i] = x[i // 2]                  # each element twice
        y[i] = x[i // 2 + i % 2 * 100]    # elements of two rows in turns

A gather takes about as long as loading every element by itself. A few vectors and one shuffle less than that have the
same lanes. Where such a loop is laid out, its copies share what is loaded: a picture's colours (x[i * 3 + c]) are three
vectors, and two shuffles each.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...support.sizes import is_open
from ...tensor.expr import Buffer, Const, Expr, Var, const_value, from_linear, linear, simplify, substitute, variables
from .indices import Indices
from .values import Value

#: windows that the lanes of one vector may lie in
MOST_WINDOWS = 8


@dataclass(frozen=True)
class Places:
    """The elements that lanes read: `offsets` from the flat index `base`, for each vector those of its active lanes."""

    base: Expr
    offsets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Window:
    """`count` neighbouring elements from offset `start` on."""

    start: int
    count: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.start + self.count


def windows(offsets: Iterable[int], width: int) -> list[Window]:
    """Runs of at most `width` elements in which all offsets lie. What lies between two offsets is in memory too: where
    they are near each other, runs are made whole with it.

    >>> windows(range(0, 32, 2), 16)
    [Window(start=0, count=16), Window(start=15, count=16)]
    >>> windows([0, 1, 2, 300, 301, 302], 16)
    [Window(start=0, count=3), Window(start=300, count=3)]
    """
    left, found = sorted(set(offsets)), []
    before = first = left[0]  # where the last run began, and where there is something from on
    while left:
        start = left[0]
        inside = [o for o in left if o < start + width]
        left = left[len(inside) :]
        count = inside[-1] + 1 - start
        if left and left[0] < start + 2 * width:
            count = width
        elif start - before <= 2 * width:
            start = max(start + count - width, first)
            count = inside[-1] + 1 - start
        if left and left[0] >= start + 2 * width:
            first = left[0]
        before = start
        found.append(Window(start, count))
    return found


#: how one vector is picked: of one window, whose lanes are then shuffled, or of that and others by turns
Shuffles = tuple[Window, Sequence[int] | None, Sequence[tuple[Window, Sequence[int]]]]


@lru_cache(maxsize=256)
def shuffles(offsets: tuple[tuple[int, ...], ...], width: int) -> list[Shuffles]:
    """For each vector the windows that have its elements, and where they lie in them.

    >>> shuffles(((0, 2, 4, 6),), 4)
    [(Window(start=0, count=4), None, [(Window(start=3, count=4), [0, 2, 5, 7])])]
    """
    found = windows((o for vector in offsets for o in vector), width)
    return [_shuffles(found, vector, width) for vector in offsets]


def _shuffles(found: list[Window], offsets: tuple[int, ...], width: int) -> Shuffles:
    rest = [0] * (width - len(offsets))  # lanes that are not active hold anything
    chosen = [next(w for w in found if o in w) for o in offsets]
    first, *others = dict.fromkeys(chosen)
    places = [o - w.start for o, w in zip(offsets, chosen, strict=True)]
    mask = [p if w == first else 0 for p, w in zip(places, chosen, strict=True)]
    if not others:
        return first, None if mask == list(range(width)) else mask + rest, []
    steps = []
    for other in others:
        mask = [width + p if w == other else before for p, w, before in zip(places, chosen, mask, strict=True)]
        steps.append((other, mask + rest))
        mask = list(range(len(offsets)))  # what is there stays where it is
    return first, None, steps


class Strided:
    """Emits such loads."""

    def __init__(self, at: Indices) -> None:
        self.at, self.text = at, at.text
        self._places: dict[Hashable, tuple[tuple[int, ...], ...] | None] = {}
        self._lanes: dict[tuple[int, str, int], Places | None] = {}

    def load(self, buffer: Buffer, indices: tuple[Expr, ...], shape: Value) -> Value | None:
        """The active lanes of a load, the others hold anything; None where a gather it must be. Nothing outside of what
        the lanes touch is read."""
        assert self.text.vector is not None
        active = self.text.vector.active
        if active is None or active < 2 or shape.width < 4:
            return None
        places = self.places(self.at.flat(buffer, indices), ((self.text.vector.var, active),))
        if places is None or len(windows(places.offsets[0], shape.width)) > MOST_WINDOWS:
            return None
        return self.picked(buffer, places, shape)[0]

    def places(self, flat: Expr, loops: Sequence[tuple[str, int]]) -> Places | None:
        """What a flat index is in every iteration of `loops` (names and extents; the last one's are the lanes of one
        vector); None if that is not known but for a common part."""
        terms, constant = linear(flat)
        names = {v for v, _ in loops}
        common = {t: c for t, c in terms.items() if not variables(t) & names}
        steps = {t.name: c for t, c in terms.items() if isinstance(t, Var) and t.name in names}
        odd = {t: c for t, c in terms.items() if t not in common and not isinstance(t, Var)}
        known = {v: x for t in odd for v in variables(t) if isinstance(x := self.text.env.get(v), int)}
        key = flat, tuple(loops), tuple(known.items())
        if key not in self._places:
            self._places[key] = self._offsets(steps, odd, loops, known)
        offsets = self._places[key]
        return None if offsets is None else Places(from_linear(common, constant), offsets)

    def _offsets(
        self, steps: dict[str, int], odd: dict[Expr, int], loops: Sequence[tuple[str, int]], known: dict[str, int]
    ) -> tuple[tuple[int, ...], ...] | None:
        """What terms of an index sum up to in every iteration: regular `steps`, and `odd` ones, at the numbers that are
        `known` of other loops."""
        values = [dict[str, int]()]
        for v, n in loops:
            values = [{**before, v: i} for before in values for i in range(n)]
        found = []
        for value in values:
            at: dict[str, Expr] = {v: Const(i, "index") for v, i in ({**known, **value} if odd else {}).items()}
            total = sum(c * value[v] for v, c in steps.items())
            for t, c in odd.items():
                part = const_value(simplify(substitute(t, at), {}))
                if part is None:
                    return None
                total += c * part
            if is_open(total):
                return None
            found.append(total)
        lanes = loops[-1][1]
        return tuple(tuple(found[i : i + lanes]) for i in range(0, len(found), lanes))

    def lane_offsets(self, flat: Expr) -> tuple[Expr, tuple[int, ...]] | None:
        """A flat index in the first lane, and how far from it each active lane is; None if that hangs on more than the
        lane. Found once: the index of an element is the same object wherever it is asked for."""
        vector = self.text.vector
        if vector is None or not vector.active:
            return None
        key = id(flat), vector.var, vector.active
        if key not in self._lanes:
            moving = [variables(t) for t in linear(flat)[0] if vector.var in variables(t)]
            alone = all(names == {vector.var} for names in moving)
            self._lanes[key] = self.places(flat, ((vector.var, vector.active),)) if alone else None
        found = self._lanes[key]
        if found is None:
            return None
        first = found.offsets[0][0]
        return found.base + first, tuple(o - first for o in found.offsets[0])

    def picked(self, buffer: Buffer, places: Places, shape: Value) -> list[Value]:
        """A vector for each of the places' vectors."""
        loaded: dict[Window, Value] = {}

        def load(w: Window) -> Value:
            if w not in loaded:
                loaded[w] = self.elements(buffer, places.base + w.start, w.count, shape)
            return loaded[w]

        found = []
        for first, alone, others in shuffles(places.offsets, shape.width):
            v = load(first)
            if alone is not None:
                v = self.text.shuffle(v, v, alone)
            for w, mask in others:
                v = self.text.shuffle(v, load(w), mask)
            found.append(v)
        return found

    def elements(self, buffer: Buffer, begin: Expr, count: int, shape: Value) -> Value:
        """`count` neighbouring elements."""
        base = self.at.index(begin).ssa
        mask = None if count == shape.width else self.text.first_lanes(count, shape.width)
        return self.text.read(buffer, base, shape, mask)
