"""Functional simulator of an accelerator: runs programs bit for bit, with the NumPy bodies of the description's
instructions.

Instructions run one at a time, in an order in which each finds finished what it waits for. That any such order gives
the same result is what `places.Dependences` sees to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...support.errors import UsageError
from .binary import ChipProgram, Formats, Issue
from .dependences import operand_shape, walk
from .describe import HOST, READ, Operand
from .semantics import first_number, run_body


def in_order(formats: Formats, program: ChipProgram) -> Iterator[Issue]:
    """All instructions, each after those that it waits for; UsageError where engines wait for each other."""
    streams = {e: program.streams.get(e, ()) for e in formats.engines}
    done = dict.fromkeys(streams, 0)
    while any(done[e] < len(s) for e, s in streams.items()):
        moved = False
        for e, stream in streams.items():
            while done[e] < len(stream) and all(done[o] >= n for o, n in stream[done[e]].waits.items()):
                yield stream[done[e]]
                done[e] += 1
                moved = True
        if not moved:
            raise deadlock(formats, program, done)


def deadlock(formats: Formats, program: ChipProgram, done: Mapping[str, int]) -> UsageError:
    """What is said of engines that wait for each other: the next instruction of each."""
    stuck = [program.streams[e][n] for e, n in done.items() if n < len(program.streams.get(e, ()))]
    lines = "; ".join(formats.line(i) for i in stuck)
    return UsageError(f"the engines of {program.name} wait for each other: {lines}", stage="simulate")


class Functional:
    """The memories of a chip, and what instructions do to them.

    >>> from tilewright.targets.chips.outer4 import CHIP
    >>> Functional(Formats(CHIP())).memory["sums"].size
    4096
    """

    def __init__(self, formats: Formats) -> None:
        self.formats = formats
        self.memory = {m.name: np.zeros(m.bytes, np.uint8) for m in formats.listing.memories.values()}
        self.arguments: Sequence[np.ndarray] = ()

    def run(self, program: ChipProgram, arguments: Sequence[np.ndarray]) -> None:
        """Run a program on the bytes of its arguments, which change; UsageError for what lies outside of a memory."""
        self.arguments = [a.reshape(-1).view(np.uint8) for a in arguments]
        for issue in in_order(self.formats, program):
            self.step(issue)

    def step(self, issue: Issue) -> None:
        try:
            if issue.form.meaning is None:
                self.copy(issue)
            else:
                self.compute(issue)
        except (ValueError, TypeError, IndexError) as e:
            raise UsageError(
                f"{self.formats.line(issue)}: outside of a memory", stage="simulate", hint=str(e)
            ) from None

    # ---- copies ----

    def copy(self, issue: Issue) -> None:
        source, target = self.formats.routes(issue.form.engine)[issue["route"]]
        to = self.box(issue, target, reads=False)
        if "fill" in issue.values and issue["fill"]:
            to[...] = issue["value"]
        else:
            to[...] = self.box(issue, source, reads=True)

    def box(self, issue: Issue, memory: str, reads: bool) -> np.ndarray:
        """The bytes of one side of a copy, u8[*counts, run]."""
        counts, run = issue.values["count"], issue["run"]
        if memory == HOST:
            data, at, strides = self.arguments[issue["arg"]], issue["host"], issue.values["host_stride"]
        else:
            word = self.formats.listing.memories[memory].word
            inside = "from" in issue.values and reads
            at, steps = issue["from" if inside else "at"], issue.values["from_stride" if inside else "stride"]
            data, at, strides = self.memory[memory], at * word, tuple(s * word for s in steps)
        return window(data, np.dtype(np.uint8), at, (*counts, run), (*strides, 1))

    # ---- computations ----

    def compute(self, issue: Issue) -> None:
        meaning = issue.form.meaning
        assert meaning is not None
        given = []
        for o in meaning.inputs:
            value = self.operand(issue, o)
            if o.access != READ and issue["start"]:
                value = np.full(value.shape, first_number(meaning), value.dtype)
            given.append(value.reshape([issue.counts[d] for d in o.dims]))
        with np.errstate(all="ignore"):
            made = run_body(meaning, given, {f.name: issue[f.name] for f in meaning.fields})
        for o, value in zip(meaning.outputs, made, strict=True):
            place = self.operand(issue, o)
            whole = np.broadcast_to(value, [issue.counts[d] for d in o.dims])
            place[...] = whole.reshape(place.shape)

    def operand(self, issue: Issue, o: Operand) -> np.ndarray:
        """The elements of an operand where they lie, with one dimension for each level."""
        word = self.formats.listing.memories[o.memory].word
        counts, strides = operand_shape(issue, o, word)
        return window(self.memory[o.memory], o.numpy, issue[o.name] * word, counts, strides)


def window(data: np.ndarray, dtype: np.dtype, at: int, counts: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Elements in bytes, from byte `at` on, without a copy; ValueError for what lies outside."""
    low, high = walk(counts, strides)
    if all(counts) and (at + low < 0 or at + high + dtype.itemsize > data.size):
        raise ValueError(f"bytes {at + low} to {at + high + dtype.itemsize} of {data.size}")
    return np.ndarray(counts, dtype, data.data, at, strides)
