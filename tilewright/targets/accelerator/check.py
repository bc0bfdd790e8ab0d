"""Validates a chip description before it is used: every mistake is one error that says where and what to do."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NoReturn

import numpy as np

from ...support.dtypes import FLOATS, LOOP_TYPES
from ...support.errors import UsageError
from ...tensor.evaluate import evaluate
from ...tensor.expr import Expr, Load
from .binary import Formats
from .describe import (
    ACCUMULATE,
    HOST,
    READ,
    WRITE,
    Chip,
    ComputeEngine,
    CopyEngine,
    Engine,
    Instruction,
    Listing,
    Operand,
)
from .semantics import Meaning, Reduce, accumulated, meaning, parts, run_body, with_parts
from .typed import arguments, typed

_NAME = re.compile(r"[a-z][a-z0-9_]*$")
#: words that the text of programs uses
_TAKEN = {HOST, "copy", "wait"}
#: words that loop nests use where memories are named
_MEMORIES = {"register", "out", "packed", *keyword.kwlist}
_TYPES = f"types of elements: {', '.join(n for n in LOOP_TYPES if n != 'index')}"
#: counts of the dimensions that bodies are tried with
_TRIED = (3, 2, 4, 1)


def check(chip: Chip) -> None:
    """UsageError for the first mistake in a description.

    >>> from tilewright.targets.chips.systolic32 import CHIP
    >>> check(CHIP())
    """
    _Check(chip).run()


class _Check:
    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        typed(chip, self.fail)
        self.listing = Listing.of(chip)

    def fail(self, message: str, hint: str = "", where: str = "") -> NoReturn:
        raise UsageError(
            message,
            stage="describe",
            operator=f"chip {self.chip.name}{f', {where}' if where else ''}",
            hint=hint or None,
        )

    def run(self) -> None:
        if not _NAME.match(self.chip.name):
            self.fail(f"the name {self.chip.name!r} is no identifier in small letters", "set `name` in the class")
        if self.chip.clock <= 0:
            self.fail(f"its clock is {self.chip.clock} Hz", "`clock` is its frequency in hertz, as 1e9")
        self.names("memory", [m.name for m in self.chip.spaces()])
        self.names("engine", [e.name for e in self.chip.engines])
        self.names("instruction", [i.name for i in self.chip.instructions()])
        self.memories()
        for i in self.listing.instructions.values():
            self.instruction(i)
        for engine in self.listing.engines.values():
            self.engine(engine)
        self.ways()
        self.formats()

    def formats(self) -> None:
        for forms in Formats(self.chip).forms.values():
            for form in forms:
                names = [f.name for f in form.fields]
                if twice := [n for n in names if names.count(n) > 1]:
                    self.fail(f"two fields of its encoding are called {twice[0]}", where=f"instruction {form.name}")

    def names(self, what: str, names: Sequence[str]) -> None:
        for n in names:
            if not _NAME.match(n) or n in _TAKEN:
                self.fail(f"{n!r} cannot be the name of a {what}", "take another word of small letters, digits and _")
        if twice := sorted({n for n in names if names.count(n) > 1}):
            self.fail(f"there are two {what} descriptions called {twice[0]!r}")

    def memories(self) -> None:
        spaces = list(self.listing.memories.values())
        for m in spaces:
            if m.name in _MEMORIES:
                self.fail(f"{m.name!r} cannot be the name of a memory", "it has a meaning in loop nests")
            if m.word < 1 or m.bytes < m.word or m.bytes % m.word:
                self.fail(
                    f"its size of {m.bytes} bytes is not a multiple of its word, {m.word} bytes",
                    "a memory is one word or several",
                    f"memory {m.name}",
                )
        placed = sorted((m.at, m.at + m.bytes, m.name) for m in spaces if m.at is not None)
        for (_, end, first), (at, _, second) in pairwise(placed):
            if at < end:
                self.fail(f"memories {first} and {second} overlap: one ends at {end:#x}, the other begins at {at:#x}")

    def engine(self, e: Engine) -> None:
        if isinstance(e, ComputeEngine):
            if all(i.engine != e.name for i in self.listing.instructions.values()):
                self.fail("no instruction is of this engine", where=f"engine {e.name}")
            return
        assert isinstance(e, CopyEngine)
        where = f"engine {e.name}"
        for m in (*e.sources, *e.targets):
            if m != HOST and m not in self.listing.memories:
                self.fail(f"there is no memory {m!r}", f"memories: {', '.join(self.listing.memories)}", where)
        if not e.sources or not e.targets or (HOST in e.sources and HOST in e.targets):
            said = f"from {', '.join(e.sources) or 'nowhere'} to {', '.join(e.targets) or 'nowhere'}"
            self.fail(f"it copies {said}", "`sources` and `targets` name memories; one of the two may be HOST", where)
        if HOST in (*e.sources, *e.targets) and set(e.sources) != {HOST} != set(e.targets):
            way, both = ("from", e.sources) if HOST in e.sources else ("to", e.targets)
            self.fail(
                f"it copies {way} the host and memories of the chip: {', '.join(both)}",
                "describe two engines, one for the host alone",
                where,
            )
        if min(e.bytes_per_cycle, e.levels, e.queue) < 1 or min(e.latency, e.setup) < 0:
            least = {"bytes_per_cycle": 1, "levels": 1, "queue": 1, "latency": 0, "setup": 0}
            name = next(n for n, low in least.items() if getattr(e, n) < low)
            self.fail(f"{name} is {getattr(e, name)}", f"it is at least {least[name]}", where)

    def ways(self) -> None:
        """Data must come to all that instructions read, and results must leave the chip."""
        copies = [e for e in self.listing.engines.values() if isinstance(e, CopyEngine)]
        steps = [(set(e.sources), set(e.targets), "", True) for e in copies]
        for i in self.listing.instructions.values():
            read = {o.memory for o in i.operands if o.access == READ}
            steps.append((read, {o.memory for o in i.outputs}, i.name, False))
        come, go = {HOST}, {HOST}
        for _ in self.listing.memories:  # as far as one path may be
            for read, written, _, one in steps:
                if (read & come) if one else read <= come:
                    come |= written
                if written & go:
                    go |= read
        hint = "copies: " + "; ".join(f"{e.name}, {', '.join(e.sources)} to {', '.join(e.targets)}" for e in copies)
        for read, written, name, _ in steps:
            if name and not read <= come:
                memory = min(read - come)
                self.fail(f"nothing brings what it reads to memory {memory}", hint, f"instruction {name}")
            if name and not written & go:
                self.fail(f"nothing takes its results out of memory {min(written)}", hint, f"instruction {name}")

    # ---- instructions ----

    def instruction(self, i: Instruction) -> None:
        where = f"instruction {i.name}"
        if not isinstance(self.listing.engines.get(i.engine), ComputeEngine):
            computing = [e.name for e in self.chip.compute_engines()]
            self.fail(f"there is no engine {i.engine!r} that computes", f"engines: {', '.join(computing)}", where)
        named = [*(d.name for d in i.dims), *(o.name for o in i.operands), *(f.name for f in i.fields)]
        self.names("dimension, operand or field", named)
        for d in i.dims:
            if d.limit < 1 or d.levels < 0:
                self.fail(f"dimension {d.name} has {d.limit} steps in {d.levels} levels", where=where)
        self.operands(i, where)
        for f in i.fields:
            if f.bits < 1 or f.dtype not in LOOP_TYPES:
                self.fail(f"field {f.name} has {f.bits} bits of {f.dtype}", _TYPES, where)
        arguments(i, self.fail, where)
        self.body(i, meaning(i), where)
        self.costs(i, where)

    def costs(self, i: Instruction, where: str) -> None:
        least, most = ({d.name: (1 if low else d.limit) for d in i.dims} for low in (True, False))
        for counts in (least, most):
            asked = counts | {f.name: 0 for f in i.fields}
            try:
                busy, delay, _ = i.busy(asked), i.delay(asked), i.joules(asked)
            except AttributeError as e:
                known, what = ", ".join(asked), f" ask for {e.name!r}" if e.name else f": {e}"
                self.fail(f"its cycles, latency or energy{what}, which it has not", f"they are given {known}", where)
            except (TypeError, ArithmeticError) as e:
                self.fail(f"its cycles, latency or energy cannot be computed for {_said(counts)}: {e}", where=where)
            took = f"for {_said(counts)} its cycles are {_one(busy)} and its latency {delay}"
            if not all(isinstance(n, (int, np.integer)) for n in (*busy, delay)):
                self.fail(took, "both are whole numbers: divide by // in place of /", where)
            if min(busy, default=0) < 0 or sum(busy) < 1 or delay < 0:
                self.fail(took, "cycles are at least 1, the latency is at least 0", where)

    def operands(self, i: Instruction, where: str) -> None:
        if not i.outputs:
            self.fail("it writes nothing", f"give an operand access={WRITE!r} or {ACCUMULATE!r}", where)
        for o in i.operands:
            if o.memory not in self.listing.memories:
                known = ", ".join(self.listing.memories)
                self.fail(f"operand {o.name} is in {o.memory!r}, which is no memory", f"memories: {known}", where)
            if o.dtype not in LOOP_TYPES:
                self.fail(f"operand {o.name} has elements of type {o.dtype!r}, which there is not", _TYPES, where)
            if o.access not in (READ, WRITE, ACCUMULATE):
                known = ", ".join(map(repr, (READ, WRITE, ACCUMULATE)))
                self.fail(f"the access of operand {o.name} is {o.access!r}", f"it is one of {known}", where)
            if unknown := [d for d in o.dims if all(d != x.name for x in i.dims)]:
                self.fail(f"operand {o.name} has a dimension {unknown[0]!r} that the instruction has not", where=where)
            if len(set(o.dims)) < len(o.dims):
                self.fail(f"operand {o.name} has a dimension twice", where=where)
            word, size = self.listing.memories[o.memory].word, o.numpy.itemsize
            if word % size and size % word:
                hint = "one of the two must divide the other"
                self.fail(f"{o.name} has elements of {size} bytes, and {o.memory} words of {word}", hint, where)
            self.fits(i, o, where)
            if o.dims and i.dim(o.dims[-1]).levels:
                self.fail(
                    f"the last dimension of operand {o.name} is {o.dims[-1]}, which has levels",
                    "the last one is a run of neighbours: put another dimension last, or give it levels=0",
                    where,
                )

    def fits(self, i: Instruction, o: Operand, where: str) -> None:
        """The longest run must fit the memory, and so must the most runs."""
        memory = self.listing.memories[o.memory]
        for d in o.dims:
            pitch = o.numpy.itemsize if d == o.dims[-1] else memory.word
            if (size := i.dim(d).limit * pitch) > memory.bytes:
                self.fail(
                    f"{o.name} can have {i.dim(d).limit} along {d}, {size} bytes, and {o.memory} has {memory.bytes}",
                    "lower the limit, or enlarge the memory",
                    where,
                )

    def body(self, i: Instruction, read: Meaning, where: str) -> None:
        """The body must give what was read from it: it is tried on small numbers, and on all that there are."""
        for o in i.outputs:
            if o.access == ACCUMULATE and accumulated(read.values[o.name], o.name) is None:
                self.fail(
                    f"the body adds nothing to {o.name}, and takes no maximum or minimum of it",
                    f"give it, or access={WRITE!r}",
                    where,
                )
        for wide in (False, True):
            self.tried(i, read, where, wide)

    def tried(self, i: Instruction, read: Meaning, where: str, wide: bool) -> None:
        rng = np.random.default_rng(0)
        counts = {d.name: min(d.limit, _TRIED[n % len(_TRIED)]) for n, d in enumerate(i.dims)}
        given = {o.name: _numbers(rng, o.dtype, tuple(counts[d] for d in o.dims), wide) for o in i.inputs}
        fields = {f.name: int(rng.integers(max(f.range[0], 0), min(f.range[1], 7) + 1)) for f in i.fields}
        try:
            with np.errstate(all="ignore"):
                made = run_body(i, list(given.values()), fields)
        except (ValueError, TypeError) as e:
            self.fail(f"the body cannot run: {e}", "try it on arrays of the operands' shapes", where)
        for o, got in zip(i.outputs, made, strict=True):
            shape = tuple(counts[d] for d in o.dims)
            want = element(read.values[o.name], o.dims, counts, given, fields)
            got = np.asarray(got)
            if got.dtype != o.numpy:
                self.fail(f"the body gives {got.dtype} for {o.name}, which is {o.dtype}", "say astype", where)
            close = np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-2 if o.dtype in FLOATS else 0)
            if got.ndim > len(shape) or not close:
                self.fail(f"the body gives other numbers for {o.name} than what was read from it", where=where)


def _said(counts: dict[str, int]) -> str:
    """
    >>> _said({"m": 1, "n": 8})
    'm = 1, n = 8'
    """
    return ", ".join(f"{k} = {v}" for k, v in counts.items()) or "no dimensions"


def _one(busy: tuple[int, ...]) -> str:
    return str(busy[0] if len(busy) == 1 else busy)


def _numbers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], wide: bool) -> np.ndarray:
    own = LOOP_TYPES[dtype].numpy
    if wide and own.kind == "i":
        return rng.integers(np.iinfo(own).min, np.iinfo(own).max, shape, endpoint=True, dtype=own)
    numbers = rng.integers(-4, 8, shape) if dtype not in FLOATS else rng.uniform(0.5, 2.0, shape)
    return np.asarray(numbers).astype(own)


def element(
    e: Expr, dims: Iterable[str], counts: dict[str, int], given: dict[str, np.ndarray], fields: dict[str, int]
) -> np.ndarray:
    """An expression for all values of its dimensions: what a `Meaning` says, computed."""
    names = list(dict.fromkeys([*dims, *counts]))
    env = {d: np.arange(counts[d]).reshape([-1 if d == n else 1 for n in names]) for d in names}
    env |= {k: np.asarray(v) for k, v in fields.items()}
    made: dict[str, np.ndarray] = {}

    def load(buffer: str, indices: tuple[np.ndarray, ...], dtype: str) -> np.ndarray:
        return made[buffer] if buffer in made else given[buffer][indices]

    def plain(x: Expr) -> Expr:
        """Without sums: each is computed, and read like an operand."""
        x = with_parts(x, tuple(plain(p) for p in parts(x)))
        if not isinstance(x, Reduce):
            return x
        body = np.broadcast_to(evaluate(x.body, env, load), [counts[n] for n in names])
        axes = tuple(names.index(v) for v in x.over)
        ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum}[x.combiner[:3]]
        name = f"%{len(made)}"
        made[name] = ufunc.reduce(body, axis=axes, keepdims=True, dtype=body.dtype)
        return Load(name, (), x.dtype)

    whole = np.broadcast_to(evaluate(plain(e), env, load), [counts[n] for n in names])
    inner = tuple(0 if n not in dims else slice(None) for n in names)
    return whole[inner]
