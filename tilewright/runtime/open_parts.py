"""Dynamic-shape programs for the subgraphs of a partitioned model, inferred from the shapes of its first runs.

A subgraph (`staged.py`) has a program for the shapes, and the numbers that decide shapes, of one run. When others come
that differ from these in sizes alone, the sizes that differ become dynamic dimensions (`support/sizes.py`), and one
open version serves all sizes in their ranges:

    x f32[1, 17, 8], mask f32[1, 17], n = [51]      the first run: a program for these
    x f32[1, 23, 8], mask f32[1, 23], n = [60]      the second: x f32[1, d0, 8], mask f32[1, d0], n = [d1]
    x f32[1, 40, 8], mask f32[1, 40], n = [75]      nothing is compiled

Sizes that were equal in all runs so far are one dimension. Where a model cannot be compiled so, because operators need
to know more of its sizes, others are tried (`SubgraphVersions.forms`): sizes that grew alike as sums, ``d0 + 1``, and
ranges that begin higher. What the runs so far had in common by chance is corrected when a run has it no longer: then
there is another version, of all runs.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..program.versions import Limits, Versions, reach
from ..support.dims import Dim
from ..support.formulas import evaluate, formula
from ..support.sizes import SMALLEST, decode, is_open
from .open_executable import OpenExecutable
from .parts import EmbeddedConstant, Entry, Frame, SpecializedSubgraph

#: the range of a size of subgraphs ends at this or beyond
AT_LEAST = 64
#: numbers in small tensors of integers may be sizes
MOST_NUMBERS = 64
#: of runs that are alike but for sizes: open versions, failures to make one, runs that are remembered
MOST_OPEN, MOST_REFUSALS, MOST_RUNS = 6, 2, 16

Key = tuple[object, ...]
#: what a key has besides sizes, and its sizes
Signature = tuple[object, ...]
Numbers = tuple[int, ...]
#: elements of constants that are sizes: by the number of the constant, and the place in it
Formulas = dict[int, dict[int, str | int]]


def split(key: Key) -> tuple[Signature, Numbers]:
    """The key of a part in two: what has to be the same, and the sizes."""
    same: list[object] = [key[0]]
    numbers: list[int] = []
    for entry in key[1:]:
        kind, found = _split(entry)
        same.append(kind)
        numbers += found
    return tuple(same), tuple(numbers)


def _split(entry: Entry) -> tuple[Any, Sequence[int]]:
    if type(entry) is EmbeddedConstant:
        array = entry.array
        if _counts(array.dtype, array.shape):
            return ("const", array.dtype, array.shape), array.reshape(-1).tolist()
    elif type(entry) is tuple and isinstance(entry[0], np.dtype):
        dtype, shape, value = entry
        if value is None:
            return ("array", dtype, len(shape)), shape
        if _counts(dtype, shape):
            return ("value", dtype, shape), np.frombuffer(value, dtype).tolist()
    return entry, ()


def _counts(dtype: np.dtype, shape: Sequence[int]) -> bool:
    """Whether elements of a tensor may be sizes."""
    return dtype.kind == "i" and dtype.itemsize >= 4 and int(np.prod(shape, dtype=np.int64)) <= MOST_NUMBERS


@dataclass(frozen=True)
class Term:
    """A size that is a dimension, or a multiple of it and a number more."""

    dim: int
    times: int = 1
    plus: int = 0


@dataclass(frozen=True)
class SizePattern:
    """A symbolic shape inferred from runs: dimensions, and for each size a number or a `Term`."""

    dims: tuple[Dim, ...]
    terms: tuple[int | Term, ...]

    def sizes(self, numbers: Numbers) -> dict[str, int] | None:
        """The dimensions of a run with these sizes; None if it is none of this form.

        >>> form = SizePattern((Dim("d0", 1, 64),), (3, Term(0), Term(0, 2, 1)))
        >>> form.sizes((3, 5, 11)), form.sizes((3, 5, 12)), form.sizes((3, 65, 131))
        ({'d0': 5}, None, None)
        """
        found: dict[int, int] = {}
        for n, term in zip(numbers, self.terms, strict=True):
            if isinstance(term, int):
                if n != term:
                    return None
                continue
            base, rest = divmod(n - term.plus, term.times)
            if rest or found.setdefault(term.dim, base) != base:
                return None
        if not all(d.low <= found[i] <= d.high for i, d in enumerate(self.dims)):
            return None
        return {d.name: found[i] for i, d in enumerate(self.dims)}

    def numbers(self, symbols: Sequence[int]) -> list[int]:
        """The sizes of a run of this form, given the dimensions."""
        return [t if isinstance(t, int) else symbols[t.dim] * t.times + t.plus for t in self.terms]

    @staticmethod
    def of(runs: Sequence[Numbers], related: bool = False, near: bool = False) -> SizePattern | None:
        """What the sizes of several runs have in common; None if they are no sizes. Sizes that grew by so many times as
        much as another one are multiples of it, where they are `related`. Ranges begin at 1, or `near` the smallest
        size.

        >>> print(SizePattern.of([(3, 5, 7, 5), (3, 6, 8, 6)]))
        3, d0, d1, d0 with d0:1..96, d1:1..128
        >>> print(SizePattern.of([(3, 5, 7, 5), (3, 6, 8, 6)], related=True))
        3, d0, d0 + 2, d0 with d0:1..96
        """
        columns = list(zip(*runs, strict=True))
        moving = sorted({c for c in columns if min(c) != max(c)}, key=lambda c: (max(c) - min(c), columns.index(c)))
        if not moving or min(map(min, moving)) < 1:
            return None
        bases: list[tuple[int, ...]] = []
        terms: dict[tuple[int, ...], Term] = {}
        for column in moving:
            term = next(filter(None, (_related(column, b, i) for i, b in enumerate(bases))), None) if related else None
            if term is None:
                term = Term(len(bases))
                bases.append(column)
            terms[column] = term
        lows = [1 << (min(b).bit_length() - 1) if near else 1 for b in bases]
        for t in terms.values():
            lows[t.dim] = max(lows[t.dim], -(-(1 - t.plus) // t.times))  # what is made of it is a size too
        dims = [Dim(f"d{i}", low, reach(max(b), AT_LEAST)) for i, (low, b) in enumerate(zip(lows, bases, strict=True))]
        return SizePattern(tuple(dims), tuple(terms.get(c, c[0]) for c in columns))

    def __str__(self) -> str:
        return f"{', '.join(map(self.text, self.terms))} with {', '.join(map(str, self.dims))}"

    def text(self, term: int | Term) -> str:
        """A size as a formula."""
        if isinstance(term, int):
            return str(term)
        factor = "" if term.times == 1 else f"{term.times}*"
        more = "" if not term.plus else f" {'-' if term.plus < 0 else '+'} {abs(term.plus)}"
        return f"{factor}{self.dims[term.dim].name}{more}"


def _related(column: tuple[int, ...], base: tuple[int, ...], dim: int) -> Term | None:
    """A size in terms of another one, in all runs; None if it is no multiple of it and a number more."""
    steps = [(n - column[0], b - base[0]) for n, b in zip(column, base, strict=True)]
    times, rest = next(divmod(n, b) for n, b in steps if b)
    if rest or times < 1 or any(n != times * b for n, b in steps):
        return None
    return Term(dim, times, column[0] - times * base[0])


@dataclass
class OpenPart:
    """The dynamic-shape version of a subgraph, for all sizes of a `SizePattern`; compiled for a run with this key.
    `formulas`: of each constant that has sizes as elements, these by their index."""

    key: Key
    form: SizePattern
    part: SpecializedSubgraph
    formulas: Formulas
    #: combinations of sizes that it served
    served: int = 0

    def __post_init__(self) -> None:
        self.part.form = str(self.form)
        self.signature, numbers = split(self.key)
        sizes = self.form.sizes(numbers)
        for places in self.formulas.values():  # those of a damaged file are found here
            evaluate(tuple(places.values()), tuple((sizes or {}).values()))

    def at(self, key: Key) -> SpecializedSubgraph | None:
        """The version with the sizes of this key bound; None if it does not serve them."""
        signature, numbers = split(key)
        sizes = self.form.sizes(numbers) if signature == self.signature else None
        if sizes is None:
            return None
        made = copy.copy(self.part)
        if isinstance(made.executable, OpenExecutable):
            made.executable = partial(made.executable.run_with_sizes, sizes)  # type: ignore[assignment]
        made.constants = list(made.constants)
        for i, places in self.formulas.items():
            array = made.constants[i].array.copy()
            array.reshape(-1)[list(places)] = evaluate(tuple(places.values()), tuple(sizes.values()))
            made.constants[i] = EmbeddedConstant(array)
        self.served += 1
        return made


class SubgraphVersions(Versions[Key, SpecializedSubgraph, OpenPart]):
    """The versions of a subgraph, and the sizes that they were compiled for."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, lambda part: part.nbytes, OpenPart.at)
        self.runs: dict[Signature, list[Numbers]] = {}
        self.refusals: Counter[Signature] = Counter()

    def saw(self, key: Key) -> None:
        """A version was compiled for this key."""
        signature, numbers = split(key)
        runs = self.runs.setdefault(signature, [])
        if numbers not in runs:
            runs.append(numbers)
            del runs[:-MOST_RUNS]

    def forms(self, key: Key) -> Iterator[SizePattern]:
        """The patterns to try for a run that no version serves, the most general first."""
        signature, numbers = split(key)
        runs = [*self.runs.get(signature, []), numbers]
        versions = sum(p.signature == signature for p in self.open)
        if len(runs) < 2 or versions >= MOST_OPEN or self.refusals[signature] >= MOST_REFUSALS:
            return
        tried: list[SizePattern] = []
        for related in (False, True):
            for near in (False, True):
                form = SizePattern.of(runs, related, near)
                if form is not None and form not in tried:
                    tried.append(form)
                    yield form

    def refused(self, key: Key) -> None:
        """None of the `forms` can be compiled."""
        self.refusals[split(key)[0]] += 1


def entries(reads: Sequence[str], frame: Frame, key: Key, numbers: Sequence[int]) -> dict[str, Entry]:
    """The entries that a subgraph reads, with other `numbers` in place of those of its key: arrays of these
    shapes, whose elements are not there."""
    others, found = iter(numbers), {}
    for name, entry in zip(reads, key[1:], strict=True):
        kind, own = _split(entry)
        new, value = [next(others) for _ in own], frame.find(name)
        if own and is_open(*new):
            if kind[0] == "array":
                value = np.broadcast_to(np.zeros((), kind[1]), [int(n) for n in new])
            else:
                array = np.array([int(n) for n in new], kind[1]).reshape(kind[2])
                value = EmbeddedConstant(array) if kind[0] == "const" else array
        found[name] = value
    return found


def formulas_of(constants: Sequence[np.ndarray]) -> Formulas:
    """The elements of constants that are sizes, while these are compiled with."""
    found: Formulas = {}
    for i, array in enumerate(constants):
        if array.dtype.kind in "iu" and array.dtype.itemsize >= 4:
            flat = array.reshape(-1)
            places = np.flatnonzero((flat >= SMALLEST) | (flat <= -SMALLEST)).tolist()
            made = {at: decode(flat[at].item()) for at in places}
            if sizes := {at: formula(n) for at, n in made.items() if is_open(n)}:
                found[i] = sizes
    return found


__all__ = ["OpenPart", "SizePattern", "SubgraphVersions", "Term", "entries", "formulas_of", "split"]
