"""The size table of a dynamic-shape program: symbolic shapes, offsets and byte counts, evaluated for each call.

Such a `Program` is one for typical sizes: its shapes, offsets and bytes are what they are then. `SizeTable` has the
formulas behind them. When it runs, the program finds what it needs in a table of 64-bit integers:

    the dimensions, in order | where each place of the arena begins | the bytes of each copy | 0 if sizes are small
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..support.errors import InputError, UsageError
from ..support.formulas import evaluate, function, named, symbol
from ..support.sizes import Dim

Formula = str | int


@dataclass(frozen=True)
class SizeTable:
    """Dimensions; the shapes of inputs and outputs; where the places of the arena begin, and its bytes; the bytes of
    copies, in the order of their calls. Sizes are small where none of `small` is above `most` (`small_calls`). Formulas
    call dimensions by number (`support.formulas`)."""

    dims: tuple[Dim, ...]
    inputs: tuple[tuple[Formula, ...], ...]
    outputs: tuple[tuple[Formula, ...], ...]
    starts: tuple[Formula, ...] = ()
    arena: Formula = 0
    copies: tuple[Formula, ...] = ()
    small: tuple[Formula, ...] = ()
    most: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dims)

    def shown(self, shape: Sequence[Formula]) -> tuple[Formula, ...]:
        """A shape with the names of dimensions, for people."""
        return tuple(named(d, self.names) for d in shape)

    def values(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Sizes in the order of the dimensions."""
        return tuple([sizes[n] for n in self.names])

    def start(self, slot: int) -> int:
        """The place in the table of where a place of the arena begins."""
        return len(self.dims) + slot

    def places(self, slot: int, nbytes: int) -> bool:
        """Whether there is a place of this number; -1 is none, which is enough for what has no bytes."""
        return slot < len(self.starts) and (slot >= 0 or not nbytes)

    def copy(self, number: int) -> int:
        """The place in the table of the bytes of a copy."""
        return len(self.dims) + len(self.starts) + number

    @property
    def is_large(self) -> int:
        """The place in the table of what is 0 where sizes are small."""
        return self.copy(len(self.copies))

    def sizes(
        self,
        shapes: Sequence[Sequence[int]],
        names: Sequence[str],
        states: Sequence[tuple[str, str, int]] = (),
        known: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """The dimensions of a call whose inputs have these shapes; InputError if they do not fit. `states`: of each
        that grows its name, its dimension, and how long it is now. `known`: dimensions that need not stand in a shape.
        """
        found: dict[str, int] = dict(known or {})
        where: dict[str, str] = dict.fromkeys(found, "the call")
        for state, dim_name, n in states:
            if found.setdefault(dim_name, n) != n:
                raise InputError(
                    f"state {state!r} has {n} rows, but {dim_name} is {found[dim_name]} in {where[dim_name]!r}",
                    stage="run",
                    hint="states that are assigned need one length; reset() empties all",
                )
            where.setdefault(dim_name, state)
        made: list[tuple[int, str, str]] = []  # of formulas: size, formula, what has it
        names_of = {symbol(i): n for i, n in enumerate(self.names)}
        for shape, declared, name in zip(shapes, self.inputs, names, strict=True):
            text = f"[{', '.join(map(str, self.shown(declared)))}]"
            fits = len(shape) == len(declared)
            if not fits or any(isinstance(d, int) and n != d for n, d in zip(shape, declared, strict=True)):
                raise InputError(f"input {name!r} has shape {tuple(shape)}, the model takes {text}", stage="run")
            for axis, (n, d) in enumerate(zip(shape, declared, strict=True)):
                if isinstance(d, int):
                    continue
                if (called := names_of.get(d)) is None:
                    made.append((n, d, f"dimension {axis} of input {name!r} {text}"))
                elif found.setdefault(called, n) != n:
                    raise InputError(
                        f"dimension {axis} of input {name!r} {text} is {n}, but {called} is {found[called]} in "
                        f"{where[called]!r}",
                        stage="run",
                    )
                else:
                    where.setdefault(called, name)
        for dim in self.dims:
            n = found[dim.name]
            if not dim.low <= n <= dim.high or n % dim.divisor:
                by = f" and a multiple of {dim.divisor}" if dim.divisor > 1 else ""
                raise InputError(
                    f"{dim.name} is {n} in input {where[dim.name]!r}, it has to be {dim.low} to {dim.high}{by}",
                    stage="run",
                )
        for n, d, what in made:
            if (wanted := evaluate((d,), self.values(found))[0]) != n:
                raise InputError(f"{what} is {n}, but {named(d, self.names)} is {wanted}", stage="run")
        return found

    def table(self, sizes: Mapping[str, int]) -> tuple[list[int], int]:
        """The table for these sizes, and the bytes of the arena."""
        values = self.values(sizes)
        *found, arena = evaluate((*self.starts, *self.copies, self.arena), values)
        is_large = not self.small or max(evaluate(self.small, values)) > self.most
        return [*values, *found, int(is_large)], arena

    def shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """The shapes of the outputs for these sizes."""
        values = self.values(sizes)
        return [evaluate(shape, values) if shape else () for shape in self.outputs]

    # ---- JSON, for the package ----

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> SizeTable:
        """The inverse of `to_json`; KeyError, TypeError or ValueError if damaged."""
        if any(type(d[n]) is not int or d[n] >= 1 << 47 for d in data["dims"] for n in ("low", "high", "divisor")):
            raise ValueError("the ranges of dimensions are no numbers")
        try:
            dims = tuple(Dim(**d) for d in data["dims"])
        except UsageError as e:
            raise ValueError(e.message) from None
        inputs, outputs = (tuple(tuple(x) for x in data[k]) for k in ("inputs", "outputs"))
        made = SizeTable(
            dims,
            inputs,
            outputs,
            tuple(data["starts"]),
            data["arena"],
            tuple(data["copies"]),
            tuple(data.get("small", ())),
            int(data.get("most", 0)),
        )
        for formulas in (*made.inputs, *made.outputs, made.starts, made.copies, made.small, (made.arena,)):
            function(formulas, len(dims))  # what is no formula is found now
        return made


__all__ = ["Formula", "SizeTable"]
