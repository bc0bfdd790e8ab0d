"""Dynamic dimensions as users declare them (`tw.Dim`): a name, a range, a divisor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import UsageError


@dataclass(frozen=True)
class Dim:
    """An open dimension: its name, which may be any text, the smallest and the largest size, and a number that divides
    every size.

    >>> Dim("seq", 1, 4096)
    Dim(name='seq', low=1, high=4096, divisor=1)

    The smallest may be 0, for a cache that is empty at first. UsageError for a range that is empty or begins below 0,
    or that has no multiple of the divisor.
    """

    name: str
    low: int = 1
    high: int = 1 << 20
    divisor: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise UsageError(f"a dimension is called by a text, not {self.name!r}")
        if self.low < 0 or self.high < max(self.low, 1) or self.divisor < 1:
            raise UsageError(
                f"dimension {self.name}: {self.low}..{self.high} is no range of sizes",
                hint="the smallest size is at least 0 and at most the largest, which is at least 1, as a divisor is",
            )
        if self.high // self.divisor * self.divisor < self.low:
            raise UsageError(f"dimension {self.name}: no multiple of {self.divisor} in {self.low}..{self.high}")

    @staticmethod
    def parse(text: str) -> Dim:
        """From ``name:low..high`` or ``name:low..high:divisor``; UsageError for another text.

        >>> Dim.parse("seq:8..512:8")
        Dim(name='seq', low=8, high=512, divisor=8)
        """
        found = re.fullmatch(r"([^:]+):([0-9]{1,18})\.\.([0-9]{1,18})(?::([0-9]{1,18}))?", text, re.DOTALL)
        if found is None:
            raise UsageError(f"{text!r} is no open dimension", hint="write it as seq:1..512, or seq:8..512:8")
        name, low, high, divisor = found.groups()
        return Dim(name, int(low), int(high), int(divisor or 1))

    def __str__(self) -> str:
        return f"{self.name}:{self.low}..{self.high}" + (f":{self.divisor}" if self.divisor > 1 else "")

    @property
    def typical(self) -> int:
        """A size in the middle: as many times the smallest (or 1, if that is 0) as the largest is of it."""
        middle = int((max(self.low, 1) * self.high) ** 0.5) // self.divisor
        return max(middle, -(-self.low // self.divisor)) * self.divisor


@dataclass(frozen=True)
class ChosenDim(Dim):
    """A dimension without a range from the user: the compiler may narrow it around `point`, a size in it.

    >>> print(ChosenDim("seq", 1, 4096, point=64))
    seq:1..4096~64
    """

    point: int = 1

    def __str__(self) -> str:
        return f"{super().__str__()}~{self.point}"

    @property
    def plain(self) -> Dim:
        """The range, which stays as it is."""
        return Dim(self.name, self.low, self.high, self.divisor)


def open_dims(inputs: Mapping[str, object] | None) -> list[Dim]:
    """The open dimensions in the shapes that the option `inputs` gives, each once.

    UsageError if a dimension has two ranges.

    >>> open_dims({"ids": ("batch:1..64", Dim("seq", 1, 512)), "mask": ("batch:1..64", 8)})
    [Dim(name='batch', low=1, high=64, divisor=1), Dim(name='seq', low=1, high=512, divisor=1)]
    """
    found: dict[str, Dim] = {}
    for name, shape in (inputs or {}).items():
        for d in shape if isinstance(shape, (tuple, list)) else ():
            if isinstance(d, Dim) or (isinstance(d, str) and ":" in d):
                dim = d if isinstance(d, Dim) else Dim.parse(d)
                if found.setdefault(dim.name, dim) != dim:
                    raise UsageError(
                        f"inputs[{name!r}]: dimension {dim} is {found[dim.name]} elsewhere",
                        hint="a dimension has one range",
                    )
    return list(found.values())
