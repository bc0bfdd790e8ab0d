"""Dependences between instructions of an accelerator: the address ranges each reads and writes, and the waits that
follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .binary import Formats, Issue
from .describe import ACCUMULATE, HOST, READ, WRITE, Operand


@dataclass(frozen=True)
class MemoryRange:
    """Words `low` to `high` (left out) of a memory, and whether they are written."""

    memory: str
    low: int
    high: int
    written: bool


def walk(counts: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The least and the largest sum of index times stride."""
    ends = [(c - 1) * s for c, s in zip(counts, strides, strict=True)]
    return sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends)


def operand_shape(issue: Issue, o: Operand, word: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The counts of an operand's dimensions (one a level) and their strides in bytes; the last one is its run."""
    assert issue.form.meaning is not None
    meaning, size = issue.form.meaning, o.numpy.itemsize
    if not o.dims:
        return (), ()
    run = issue.counts[o.dims[-1]]
    pitch = -(-run * size // word) * word
    counts, strides = [run], [size]
    given = list(issue.values.get(f"{o.name}_stride", ()))
    for name in o.dims[-2::-1]:
        d = meaning.dim(name)
        if d.levels and not o.dense:
            own, given = given[len(given) - d.levels :], given[: len(given) - d.levels]
            counts = [*issue.values[name], *counts]
            strides = [*(s * word for s in own), *strides]
        else:
            counts, strides = [issue.counts[name], *counts], [pitch, *strides]
            pitch *= issue.counts[name]
    return tuple(counts), tuple(strides)


def accesses(formats: Formats, issue: Issue) -> Iterator[MemoryRange]:
    """What an instruction touches on the chip."""
    form, memories = issue.form, formats.listing.memories
    if form.meaning is None:
        source, target = formats.routes(form.engine)[issue["route"]]
        if target == HOST and "fill" in issue.values and issue["fill"]:
            return
        on_chip = target if source == HOST or target != HOST else source
        low, high = walk(issue.values["count"], issue.values["stride"])
        words = -(-issue["run"] // memories[on_chip].word)
        yield MemoryRange(on_chip, issue["at"] + low, issue["at"] + high + words, on_chip == target)
        if source != HOST and target != HOST:
            low, high = walk(issue.values["count"], issue.values["from_stride"])
            words = -(-issue["run"] // memories[source].word)
            yield MemoryRange(source, issue["from"] + low, issue["from"] + high + words, False)
        return
    for o in form.meaning.operands:
        word = memories[o.memory].word
        counts, strides = operand_shape(issue, o, word)
        low, high = walk(counts, strides)
        at = issue[o.name]
        first, end = at + low // word, at + -(-(high + o.numpy.itemsize) // word)
        if o.access != READ:
            yield MemoryRange(o.memory, first, end, True)
        if o.access == READ or (o.access == ACCUMULATE and not issue["start"]):
            yield MemoryRange(o.memory, first, end, False)


@dataclass(frozen=True)
class Touched:
    """What an instruction of engine `me` touches, as parts of the tables of `Dependences`: the numbers of instructions
    of other engines that it needs, with the engine, and where its own number goes; each with the engines' latest
    numbers in that table."""

    me: int
    needs: tuple[tuple[int, np.ndarray, list[int]], ...]
    marks: tuple[tuple[np.ndarray, list[int]], ...]


class Dependences:
    """Finds the counts that instructions wait for, given one after the other in the order of the program.

    What an engine does, it does in order; of another engine everything must be finished that wrote what is read or
    written, and everything that read what is written.
    """

    def __init__(self, formats: Formats) -> None:
        self.formats, self.engines = formats, formats.engines
        shape = {m.name: (len(self.engines), m.words) for m in formats.listing.memories.values()}
        #: by memory: the last instruction of each engine at each word, and at any
        self.wrote = {name: (np.zeros(s, np.int64), [0] * s[0]) for name, s in shape.items()}
        self.read = {name: (np.zeros(s, np.int64), [0] * s[0]) for name, s in shape.items()}
        self.issued = [0] * len(self.engines)
        self.known = [[0] * len(self.engines) for _ in self.engines]  # what an engine has waited for
        self.writers: dict[str, set[int]] = {name: set() for name in shape}
        self.readers: dict[str, set[int]] = {name: set() for name in shape}
        for n, engine in enumerate(self.engines):
            for memory, written in _can_touch(formats, engine):
                if memory in shape:
                    (self.writers if written else self.readers)[memory].add(n)

    def waits(self, issue: Issue) -> dict[str, int]:
        """What the next instruction waits for; it counts as issued from now on."""
        return self.wait(self.touched(issue))

    def touched(self, issue: Issue) -> Touched:
        me = self.engines.index(issue.form.engine)
        needs: dict[tuple[object, ...], tuple[int, np.ndarray, list[int]]] = {}
        marks = []
        for a in set(accesses(self.formats, issue)):
            if a.high <= a.low:
                continue
            for table, engines in [(self.wrote, self.writers)] + [(self.read, self.readers)] * a.written:
                numbers, latest = table[a.memory]
                for e in engines[a.memory] - {me}:
                    needs[e, table is self.wrote, a] = (e, numbers[e, a.low : a.high], latest)
            numbers, latest = (self.wrote if a.written else self.read)[a.memory]
            marks.append((numbers[me, a.low : a.high], latest))
        return Touched(me, tuple(needs.values()), tuple(marks))

    def wait(self, t: Touched) -> dict[str, int]:
        """`waits` of an instruction that touches this."""
        need: dict[int, int] = {}
        known = self.known[t.me]
        for e, numbers, latest in t.needs:
            if latest[e] > known[e] and (n := int(numbers.max())) > need.get(e, 0):
                need[e] = n
        number = self.issued[t.me] = self.issued[t.me] + 1
        for numbers, latest in t.marks:
            numbers.fill(number)
            latest[t.me] = number
        found = {}
        for e in sorted(need):
            if need[e] > known[e]:
                known[e] = found[self.engines[e]] = need[e]
        return found


def _can_touch(formats: Formats, engine: str) -> Iterator[tuple[str, bool]]:
    """The memories that an engine's instructions may touch, and whether they write there."""
    for form in formats.forms[engine]:
        if form.meaning is None:
            for source, target in formats.routes(engine):
                yield source, False
                yield target, True
            continue
        for o in form.meaning.operands:
            if o.access != READ:
                yield o.memory, True
            if o.access != WRITE:
                yield o.memory, False
