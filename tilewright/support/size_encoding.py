"""Encoding of symbolic sizes as integers while a model is compiled (`sizes.py`): the prime number of each atom.

An atom is a symbol, or what quotients, minima and maxima make of sizes. Its number must be mistaken for no dimension of
the model, nor for what another atom makes, and differences of sizes should have the signs that they have at run time.
"""

from __future__ import annotations

import random

from .size_bounds import Atom

#: primes from here on, this far apart: no model has them as dimensions, and a product of three and a few thousand still
#: is a 64-bit number
_FIRST, _APART = 50_021, 9_000
#: so many are; what schedules make of sizes stands in no type, and is a number with many digits
_SMALL = 24
#: numbers below are never sizes
SMALLEST = 4096


class StandIns:
    """The numbers of one compilation's atoms.

    >>> numbers = StandIns()
    >>> numbers.add(Atom("seq", 1, 64, lambda at: at["seq"]))
    >>> numbers.of("seq") > SMALLEST and numbers.primes() == [("seq", numbers.of("seq"))]
    True
    """

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._spread = random.Random(1)
        self.plain: set[int] = set()  # numbers of the model that could be taken for sizes
        #: numbers of quotients are near quotients of numbers: types have positive sizes. Loop nests have no types, but
        #: more quotients, whose sums come too close to 0 then
        self.near = True

    def of(self, atom: str) -> int:
        """The number of an atom."""
        return self._values[atom]

    def all(self) -> list[tuple[str, int]]:
        """Atoms and their numbers."""
        return list(self._values.items())

    def primes(self) -> list[tuple[str, int]]:
        """Atoms and their primes: what is a multiple of one is taken for a size."""
        return list(self._values.items())[:_SMALL]

    def add(self, atom: Atom) -> None:
        """A number for one more atom. Spread without order, so that sums of them differ; with `near`, of what is made
        of sizes near what it would be of their values, where that can be, so that a difference which is positive stays
        so."""
        self._values[atom.name] = self._new(atom)

    def _new(self, atom: Atom) -> int:
        number = len(self._values)
        if number >= _SMALL or not self.near:  # in no type: so large that no sum of them comes near 0 by chance
            return self._spread.randrange(1 << 60, 1 << 61) | 1
        spread = 2 * self._spread.randrange(_APART // 4)
        near = _made_of_numbers(*atom.made) if atom.made is not None and self.near else None
        if near is None or not 3 * SMALLEST <= near < 1 << 40:
            return self._prime(_FIRST + _APART * number + spread)
        apart = SMALLEST + spread // 4
        below = atom.made is not None and atom.made[0] != "maxsi"
        return self._prime((near - apart if below else near + apart) | 1)

    def _prime(self, number: int) -> int:
        """The smallest prime from an odd number on that encodes nothing yet, and divides no number of the model."""
        taken = set(self._values.values())
        while (
            number in taken
            or any(number % i == 0 for i in range(3, int(number**0.5) + 1, 2))
            or any(x % number == 0 for x in self.plain)
        ):
            number += 2
        return number


def _made_of_numbers(op: str, a: int, b: int) -> int | None:
    """The result of an operation on numbers that encode sizes; None if a plain number is among them where a size
    is expected."""
    if op == "floordivsi":
        return int(a) // b if type(b) is int else None
    if type(a) is int or type(b) is int:
        return None
    return min(int(a), int(b)) if op == "minsi" else max(int(a), int(b))
