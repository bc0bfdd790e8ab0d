"""Lanes that read no neighbours, but places that are known: whole vectors are loaded and the elements picked out.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


class Strided:
    """Emits such loads."""

    def __init__(self, at: Indices) -> None:
        self.at, self.text = at, at.text
        self._offsets: dict[tuple[int, str, int], Places | None] = {}

    def load(self, buffer: Buffer, indices: tuple[Expr, ...], shape: Value) -> Value | None:
        """The active lanes of a load, the others hold anything; None where a gather it must be. Nothing outside of what
        the lanes touch is read."""
        assert self.text.vector is not None
        active = self.text.vector.count
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
        known, values = self.at.unrolled(), [dict[str, int]()]
        for v, n in loops:
            values = [{**before, v: i} for before in values for i in range(n)]
        found = []
        for value in values:
            at = {**known, **{v: Const(i, "index") for v, i in value.items()}} if odd else {}
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
        offsets = [tuple(found[i : i + lanes]) for i in range(0, len(found), lanes)]
        return Places(from_linear(common, constant), tuple(offsets))

    def lane_offsets(self, flat: Expr) -> tuple[Expr, tuple[int, ...]] | None:
        """A flat index in the first lane, and how far from it each active lane is; None if that hangs on more than the
        lane. Found once: the index of an element is the same object wherever it is asked for."""
        vector = self.text.vector
        if vector is None or not vector.count:
            return None
        key = id(flat), vector.var, vector.count
        if key not in self._offsets:
            moving = [variables(t) for t in linear(flat)[0] if vector.var in variables(t)]
            alone = all(names == {vector.var} for names in moving)
            self._offsets[key] = self.places(flat, ((vector.var, vector.count),)) if alone else None
        found = self._offsets[key]
        if found is None:
            return None
        first = found.offsets[0][0]
        return found.base + first, tuple(o - first for o in found.offsets[0])

    def picked(self, buffer: Buffer, places: Places, shape: Value) -> list[Value]:
        """A vector for each of the places' vectors."""
        found = windows((o for vector in places.offsets for o in vector), shape.width)
        loaded: dict[Window, Value] = {}

        def load(w: Window) -> Value:
            if w not in loaded:
                loaded[w] = self.elements(buffer, places.base + w.start, w.count, shape)
            return loaded[w]

        return [self._pick(load, found, vector, shape.width) for vector in places.offsets]

    def _pick(self, load, found: list[Window], offsets: tuple[int, ...], width: int) -> Value:
        """The elements at some offsets, which all lie in windows."""
        result: Value | None = None
        rest = [0] * (width - len(offsets))  # lanes that are not active hold anything
        chosen = [next(i for i, w in enumerate(found) if o in w) for o in offsets]
        for i in dict.fromkeys(chosen):
            part, w = load(found[i]), found[i]
            own = [o - w.start if c == i else None for o, c in zip(offsets, chosen, strict=True)]
            if result is None:
                mask = [0 if p is None else p for p in own]
                if set(chosen) == {i}:
                    return part if mask == list(range(width)) else self.text.shuffle(part, part, mask + rest)
                result, first = part, mask
                continue
            mask = [first[lane] if p is None else width + p for lane, p in enumerate(own)]
            result = self.text.shuffle(result, part, mask + rest)
            first = list(range(width))  # what is there stays where it is
        assert result is not None
        return result

    def elements(self, buffer: Buffer, begin: Expr, count: int, shape: Value) -> Value:
        """`count` neighbouring elements."""
        base = self.at.index(begin).ssa
        mask = None if count == shape.width else self.text.first_lanes(count, shape.width)
        return self.text.read(buffer, base, shape, mask)
