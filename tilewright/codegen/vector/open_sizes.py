"""Dynamic sizes in CPU kernels: a kernel gets the values of the symbols in a table, and computes all other sizes from
them once, at its beginning."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce

from ...support.errors import CompileError
from ...support.sizes import Size, current

#: the parameter with the sizes of the symbols, 64-bit integers in the order of the model's dimensions
TABLE = "%sizes"


class OpenSizes:
    """`first` appends an operation to the beginning of the kernel, once, and gives the name of its result."""

    def __init__(self, first: Callable[[str], str]) -> None:
        self.first = first
        self.used = False

    @staticmethod
    def parameter() -> str:
        """The declaration of the table."""
        known = current()
        return f"{TABLE}: memref<{len(known.dims) if known else 0}xi64>"

    def value(self, size: Size) -> str:
        """The name of a size, an ``index``."""
        self.used = True
        parts = [self._product(c, [self._atom(a.name, a.made) for a in atoms]) for c, atoms in size.terms()]
        return reduce(lambda a, b: self.first(f"arith.addi {a}, {b} : index"), parts)

    def _number(self, x: int) -> str:
        return self.value(x) if isinstance(x, Size) else self.first(f"arith.constant {x} : index")

    def _product(self, c: int, factors: list[str]) -> str:
        names = factors if c == 1 and factors else [*factors, self._number(c)]
        return reduce(lambda a, b: self.first(f"arith.muli {a}, {b} : index"), names)

    def _atom(self, name: str, made: tuple[str, int, int] | None) -> str:
        if made is not None:
            op, a, b = made
            return self.first(f"arith.{op} {self._number(a)}, {self._number(b)} : index")
        known = current()
        assert known is not None
        place = known.places.get(name)
        if place is None:
            raise CompileError(f"the size {name} is no dimension of the model", stage="emit")
        number = self.first(f"memref.load {TABLE}[{self._number(place)}] : {self.parameter().split(': ')[1]}")
        size = self.first(f"arith.index_cast {number} : i64 to index")
        divisor = known.dims[place].divisor
        return size if divisor == 1 else self.first(f"arith.divui {size}, {self._number(divisor)} : index")


#: numbers in the text of a kernel: not in names and types
_NUMBERS = re.compile(r"(?<![\w%@.<x-])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.x])")


def leaked(lines: list[str]) -> str | None:
    """A number in a kernel that stands for a size (see `support.sizes`), or is the inverse of one: somebody computed
    with it as if it were known. None if there is none.

    >>> leaked(["%1 = arith.constant 50021 : index"]) is None  # no open dimensions here
    True
    """
    known = current()
    if known is None:
        return None
    for line in lines:
        for text in _NUMBERS.findall(line):
            number = float(text)
            for x in (number, 1 / number if number else 0.0):
                whole = round(x) if 1 < abs(x) < 1e18 else 0
                size = known.decode(whole) if abs(whole - x) <= 1e-6 * abs(x) else 0
                if isinstance(size, Size):
                    return f"{text} in {line.strip()[:80]}, which is the size {size}"
    return None
