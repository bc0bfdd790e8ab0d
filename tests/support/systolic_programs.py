"""Random programs of systolic32: all kinds of instructions with odd shapes, and the waits that emitters would find."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.targets.accelerator.binary import ChipProgram, Formats, InstructionFormat, Issue, fields_of
from tilewright.targets.accelerator.dependences import Dependences, walk
from tilewright.targets.chips.systolic32 import Systolic32

#: arguments of the programs: bytes to load, rows of bias or multiplier, rows of shifts, what is stored
BYTES, NUMBERS, SHIFTS, STORED = range(4)
#: the row of multipliers and of shifts with which sums are often exact halves of a result's step
HALVES = 1


class Writer:
    """Writes a program instruction by instruction."""

    def __init__(self, formats: Formats) -> None:
        self.formats, self.dependences = formats, Dependences(formats)
        self.streams: dict[str, list[Issue]] = {e: [] for e in formats.engines}

    def add(self, form: InstructionFormat, **fields: Sequence[int] | int) -> None:
        issue = Issue(form, fields_of(form, fields))
        waits = self.dependences.waits(issue)
        self.streams[form.engine].append(Issue(form, issue.values, waits))

    def load(self, target: str, **fields: Sequence[int] | int) -> None:
        form = self.formats.forms["load"][0]
        self.add(form, route=self.formats.routes("load").index(("host", target)), **fields)

    def store(self, **fields: Sequence[int] | int) -> None:
        self.add(self.formats.forms["store"][0], arg=STORED, **fields)

    def mma(self, **fields: Sequence[int] | int) -> None:
        self.add(self.formats.form("mma"), **fields)

    def depthwise(self, **fields: Sequence[int] | int) -> None:
        self.add(self.formats.form("depthwise"), **fields)

    def requantize(self, **fields: Sequence[int] | int) -> None:
        self.add(self.formats.form("requantize"), **fields)

    def program(self, arguments: Sequence[np.ndarray], name: str = "program") -> ChipProgram:
        sizes = tuple(a.nbytes for a in arguments)
        return ChipProgram(name, {e: tuple(s) for e, s in self.streams.items()}, sizes)


def arguments(chip: Systolic32, rng: np.random.Generator) -> list[np.ndarray]:
    """What programs read and write: arrays at the places BYTES, NUMBERS, SHIFTS, STORED."""
    n = chip.array
    numbers = rng.integers(-(2**31), 2**31, (32, n), np.int32)
    numbers[:16] >>= rng.integers(0, 5, (16, 1), np.int32)  # multipliers
    numbers[16:] >>= rng.integers(12, 28, (16, 1), np.int32)  # biases
    shifts = rng.integers(0, 32, (32, n), np.int32) >> rng.integers(0, 4, (32, 1), np.int32)
    # the first multipliers, the last biases and shifts are such as layers have; the second ones give exact halves
    numbers[0], numbers[31], shifts[31] = rng.integers(1 << 30, 1 << 31, n), rng.integers(-9999, 9999, n), 7
    numbers[HALVES], shifts[HALVES] = rng.choice([1 << 30, 3 << 29, 5 << 28], n), rng.integers(0, 8, n)
    return [rng.integers(-128, 128, 1 << 15, np.int8), numbers, shifts, np.zeros(1 << 15, np.int8)]


class RandomProgram:
    """A program that first gives every word of the chip a value, then does `length` random things, and stores all."""

    def __init__(self, formats: Formats, rng: np.random.Generator, length: int) -> None:
        assert isinstance(formats.chip, Systolic32)
        self.chip, self.rng, self.writer = formats.chip, rng, Writer(formats)
        self.words = {m.name: m.words for m in self.chip.spaces()}
        self.bytes = {m.name: m.word for m in self.chip.spaces()}
        self.arguments = arguments(self.chip, rng)
        self.first_values()
        kinds = [self.load, self.fill, self.mma, self.depthwise, self.requantize, self.store]
        for kind in rng.choice(len(kinds), length, p=[0.2, 0.05, 0.25, 0.1, 0.2, 0.2]):
            kinds[kind]()
        size = self.words["outputs"] * self.bytes["outputs"]
        self.writer.store(count=1, run=size, host=self.arguments[STORED].nbytes - size)
        self.program = self.writer.program(self.arguments)

    def first_values(self) -> None:
        n, w = self.chip.array, self.writer
        for target in ("weights", "activations"):
            parts = self.words[target] // 256
            w.load(target, arg=BYTES, count=parts, run=256 * n, stride=256, host_stride=111)
        for part, arg in enumerate((NUMBERS, SHIFTS)):
            w.load("params", arg=arg, at=32 * part, count=32, run=4 * n, host_stride=4 * n, stride=1)
        rows = self.words["accumulators"]
        limit = min(512, rows)
        for acc in range(0, rows, limit):
            w.mma(m=limit, n=n, k=n, acc=acc, x=acc % 16, x_stride=1, w=acc // limit, start=1)
        for y in range(0, self.words["outputs"], limit):
            w.requantize(m=limit, n=n, acc=0, bias=1, multiplier=2, shift=33, y=y, left=8, low=-128, high=127)

    # ---- shapes ----

    def number(self, low: int, high: int) -> int:
        """From low to high, small ones more often."""
        return low + int((high - low + 1) * self.rng.random() ** 2)

    def counts(self, limit: int) -> tuple[int, int, int]:
        """Three loops with at most `limit` steps together."""
        a = self.number(1, limit)
        b = self.number(1, limit // a)
        found = [a, b, self.number(1, limit // (a * b))]
        self.rng.shuffle(found)
        return found[0], found[1], found[2]

    def place(self, counts: Sequence[int], width: int, end: int, signed: bool, step: int = 1) -> tuple[int, list[int]]:
        """A first place and strides, so that all indices of loops stay in 0..end with `width` places each."""
        strides: list[int] = []
        room = end - width
        for c in counts:
            s = self.number(0, min(3 * width + 2, room // (step * max(c - 1, 1)))) * step
            room -= (c - 1) * s
            strides.append(-s if signed and self.rng.random() < 0.2 else s)
        low, high = walk(counts, strides)
        return -low + int(self.rng.integers(0, (end - width - high + low) // step + 1)) * step, strides

    # ---- instructions ----

    def box(self, memory: str, arg: int) -> dict[str, Sequence[int] | int]:
        """A copy between an argument and a memory; what it writes, it writes once."""
        n, size = self.bytes[memory], self.arguments[arg].nbytes
        counts, run = self.counts(20), self.number(1, 5 * n)
        first, words, step = 0, self.words[memory], 1
        if memory == "params":  # whole numbers; those in the upper half are shifts
            first = 32 if arg == SHIFTS else 0
            run, words, step = -(-run // 4) * 4, 32, 4
        width = -(-run // n)
        if arg == STORED:
            at, stride = self.place(counts, width, words, signed=True)
            host, host_stride = self.apart(counts, run, size)
        else:
            while np.prod(counts) * width > words:
                counts = self.counts(words // width)
            at, stride = self.apart(counts, width, words)
            host, host_stride = self.place(counts, run, size, signed=True, step=step)
        return {
            "arg": arg,
            "at": first + at,
            "stride": stride,
            "count": counts,
            "run": run,
            "host": host,
            "host_stride": host_stride,
        }

    def apart(self, counts: Sequence[int], width: int, end: int) -> tuple[int, list[int]]:
        """As `place`, for what does not overlap."""
        pitch, strides = width, []
        for i, c in enumerate(counts[::-1]):
            rest = int(np.prod(counts[: len(counts) - 1 - i]))
            strides.insert(0, pitch + self.number(0, max(0, min(9, (end // rest - pitch * c) // c))))
            pitch = strides[0] * c
        return self.number(0, end - pitch), strides

    def load(self) -> None:
        target = ("weights", "activations", "params")[self.number(0, 2)]
        arg = (NUMBERS, SHIFTS)[self.number(0, 1)] if target == "params" else BYTES
        self.writer.load(target, **self.box(target, arg))

    def fill(self) -> None:
        target = ("weights", "activations")[self.number(0, 1)]
        value = int(self.rng.integers(0, 256))
        self.writer.load(target, **self.box(target, BYTES) | {"fill": 1, "value": value})

    def store(self) -> None:
        box = self.box("outputs", STORED)
        del box["arg"]
        if self.rng.random() < 0.1:
            box |= {"fill": 1, "value": int(self.rng.integers(0, 256))}
        self.writer.store(**box)

    def rows(self) -> dict[str, Sequence[int] | int]:
        """Rows of activations for the array, and sums to which they go."""
        n, counts = self.chip.array, self.counts(min(150, self.words["accumulators"]))
        x, x_stride = self.place(counts, 1, self.words["activations"], signed=True)
        return {
            "m": counts,
            "n": n if self.rng.random() < 0.5 else self.number(1, n),
            "acc": min(self.number(0, 40), self.words["accumulators"] - int(np.prod(counts))),
            "x": x,
            "x_stride": x_stride,
            "start": int(self.rng.random() < 0.3),
        }

    def mma(self) -> None:
        n = self.chip.array
        k = n if self.rng.random() < 0.5 else self.number(1, n)
        self.writer.mma(**self.rows(), k=k, w=int(self.rng.integers(0, self.words["weights"] - k + 1)))

    def depthwise(self) -> None:
        self.writer.depthwise(**self.rows(), w=int(self.rng.integers(0, self.words["weights"])))

    def requantize(self) -> None:
        counts = self.counts(100)
        rows = int(np.prod(counts))
        low, high = (-128, 127) if self.rng.random() < 0.8 else sorted(map(int, self.rng.integers(-128, 128, 2)))
        self.writer.requantize(
            m=counts,
            n=self.number(1, self.chip.array),
            acc=min(self.number(0, 40), self.words["accumulators"] - rows),
            bias=31 - self.number(0, 31),
            multiplier=HALVES if (halves := self.rng.random() < 0.3) else self.number(0, 31),
            shift=32 + HALVES if halves else int(self.rng.integers(32, 64)),
            y=self.number(0, self.words["outputs"] - rows),
            left=self.number(0, 31),
            offset=int(self.rng.integers(-512, 512)),
            even=int(self.rng.integers(2)),
            low=low,
            high=high,
        )
