"""Which words of which memories an instruction touches, and what therefore waits for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .binary import Formats, Issue
from .describe import ACCUMULATE, HOST, READ, Operand


@dataclass(frozen=True)
class Access:
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


def accesses(formats: Formats, issue: Issue) -> Iterator[Access]:
    """What an instruction touches on the chip."""
    form, memories = issue.form, formats.listing.memories
    if form.meaning is None:
        source, target = formats.routes(form.engine)[issue["route"]]
        if target == HOST and "fill" in issue.values and issue["fill"]:
            return
        on_chip = target if source == HOST or target != HOST else source
        low, high = walk(issue.values["count"], issue.values["stride"])
        words = -(-issue["run"] // memories[on_chip].word)
        yield Access(on_chip, issue["at"] + low, issue["at"] + high + words, on_chip == target)
        if source != HOST and target != HOST:
            low, high = walk(issue.values["count"], issue.values["from_stride"])
            words = -(-issue["run"] // memories[source].word)
            yield Access(source, issue["from"] + low, issue["from"] + high + words, False)
        return
    for o in form.meaning.operands:
        word = memories[o.memory].word
        counts, strides = operand_shape(issue, o, word)
        low, high = walk(counts, strides)
        at = issue[o.name]
        first, end = at + low // word, at + -(-(high + o.numpy.itemsize) // word)
        if o.access != READ:
            yield Access(o.memory, first, end, True)
        if o.access == READ or (o.access == ACCUMULATE and not issue["start"]):
            yield Access(o.memory, first, end, False)


class Dependences:
    """Finds the counts that instructions wait for, given one after the other in the order of the program.

    What an engine does, it does in order; of another engine everything must be finished that wrote what is read or
    written, and everything that read what is written.
    """

    def __init__(self, formats: Formats) -> None:
        self.formats, self.engines = formats, formats.engines
        shape = {m.name: (len(self.engines), m.words) for m in formats.listing.memories.values()}
        self.wrote = {name: np.zeros(s, np.int64) for name, s in shape.items()}
        self.read = {name: np.zeros(s, np.int64) for name, s in shape.items()}
        self.issued = [0] * len(self.engines)
        self.known = np.zeros((len(self.engines), len(self.engines)), np.int64)  # what an engine has waited for

    def waits(self, issue: Issue) -> dict[str, int]:
        """What the next instruction waits for; it counts as issued from now on."""
        me = self.engines.index(issue.form.engine)
        touched = list(accesses(self.formats, issue))
        need = np.zeros(len(self.engines), np.int64)
        for a in touched:
            np.maximum(need, self.wrote[a.memory][:, a.low : a.high].max(axis=1, initial=0), out=need)
            if a.written:
                np.maximum(need, self.read[a.memory][:, a.low : a.high].max(axis=1, initial=0), out=need)
        self.issued[me] += 1
        for a in touched:
            table = self.wrote if a.written else self.read
            table[a.memory][me, a.low : a.high] = self.issued[me]
        need[me] = 0
        new = need > self.known[me]
        np.maximum(self.known[me], need, out=self.known[me])
        return {self.engines[i]: int(need[i]) for i in np.flatnonzero(new)}
