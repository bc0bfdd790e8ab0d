"""Symbolic sizes: integers that carry an expression of dynamic dimensions.

A model may leave a dimension open and give its range: ``Dim("seq", 1, 4096)``. While such a model is compiled, the
dimension is a `Size`, an `int` whose value encodes the expression: a large prime number of the symbol. Sums and
products of sizes are sizes of the summed and multiplied values, so every expression has a value of its own, and MLIR,
NumPy and everything else that holds plain integers holds sizes without knowing it; `decode` finds the expression of a
number again.

    with sizes.open_sizes([Dim("batch", 1, 64), Dim("seq", 1, 4096)]) as known:
        batch, seq = known.symbols
        tokens = batch * seq                # a Size: batch*seq
        tokens // seq, seq % 16             # batch, seq % 16
        seq > 0                             # True: its range says so
        seq > 128                           # raises Undecided
        tokens.at({"batch": 2, "seq": 7})   # 14

Nothing here guesses: a comparison that the ranges do not decide raises `Undecided`. Equality asks whether two sizes are
the same expression: ``seq == 16`` is false, and what is done then must be right for a `seq` of 16 too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from math import gcd as _gcd
from math import prod
from typing import Any, NoReturn, TypeVar

from .dims import ChosenDim
from .dims import Dim as Dim
from .errors import SizeCondition, UsageError
from .polynomials import Polynomial, long_division, ratio, without
from .size_bounds import Atom as _Atom
from .size_bounds import Known, bounds
from .size_encoding import SMALLEST as SMALLEST
from .size_encoding import StandIns

#: numbers from here on mean "to the end" in models
_LARGEST = 1 << 62
_T = TypeVar("_T")


class Undecided(UsageError):
    """A decision depends on a size that is not known when the model is compiled. `asks` says which, if that is known:
    it is either way for some sizes."""

    def __init__(self, message: str, size_condition: SizeCondition | None = None, **where: str | None) -> None:
        super().__init__(message, **where)
        self.size_condition = size_condition


class Sizes:
    """The symbols of one compilation, and all sizes that have been made of them."""

    def __init__(self, dims: Sequence[Dim]) -> None:
        #: whether ranges may be narrowed, rather than something be done for sizes that make no sense
        self.narrow = any(isinstance(d, ChosenDim) for d in dims)
        self.dims = tuple(d.plain if isinstance(d, ChosenDim) else d for d in dims)
        self.names = [d.name for d in dims]
        if len(set(self.names)) < len(dims):
            raise UsageError(f"two dimensions have one name: {', '.join(self.names)}")
        #: the atoms of dimensions, which are called by number: which one each is
        self.places: dict[str, int] = {}
        self._atoms: dict[str, _Atom] = {}
        self.numbers = StandIns()
        self._of: dict[int, Size] = {}  # value -> size
        self._ranges: dict[int, tuple[int, int]] = {}  # better than what the atoms say
        self._bounds: Known = {}  # of polynomials
        self._quotients: dict[tuple[int, int], int] = {}
        #: sums, products and comparisons that were computed before
        self._sums: dict[tuple[Size, int, int], int] = {}
        self._products: dict[tuple[Size, int], int] = {}
        self._compared: dict[tuple[Size, int, bool], bool | Size] = {}
        self.symbols = [self._symbol(i, d) for i, d in enumerate(self.dims)]

    def _symbol(self, number: int, d: Dim) -> Size:
        low, high = -(-d.low // d.divisor), d.high // d.divisor
        name = f"d{number}" if d.divisor == 1 else f"(d{number}//{d.divisor})"
        self.places[name] = number
        unit = self.atom(_Atom(name, low, high, lambda at: at[d.name] // d.divisor))
        size = unit if d.divisor == 1 else unit * d.divisor
        assert isinstance(size, Size)
        return size

    def atom(self, atom: _Atom) -> Size:
        """The size that an atom is; the same one for the same name."""
        if atom.name not in self._atoms:
            self.numbers.add(atom)
            self._atoms[atom.name] = atom
        made = self.size({(atom.name,): 1})
        assert isinstance(made, Size)
        return made

    def size(self, polynomial: Polynomial) -> int:
        """The size of a polynomial of atoms; a plain int if it is constant."""
        kept = {m: c for m, c in polynomial.items() if c}
        if not kept or set(kept) == {()}:
            return kept.get((), 0)
        value = sum(c * prod(self.numbers.of(a) for a in m) for m, c in kept.items())
        if -SMALLEST < value < SMALLEST:
            raise Undecided(f"the sizes of this model cannot be told apart: one is as small as {value}")
        found = self._of.get(value)
        if found is None:
            found = self._of[value] = Size._make(value, kept, self)
        elif found.polynomial != kept:
            raise Undecided(f"{found} and another size have one value: the sizes of this model cannot be told apart")
        return found

    def decode(self, number: int) -> int:
        """The size that an integer encodes, or the integer."""
        number = int(number)
        if -SMALLEST < number < SMALLEST:
            return number
        found = self._of.get(number)
        if found is not None:
            return found
        if abs(number) >= _LARGEST:
            return number
        for name, value in self.numbers.primes():
            if number % value == 0:
                rest = self.decode(number // value)
                made: int = rest * self.size({(name,): 1})
                return made
        return number

    def divides(self) -> list[int]:
        """The primes: what is a multiple of one is taken for a size."""
        return [prime for _, prime in self.numbers.primes()]

    def range(self, polynomial: Polynomial) -> tuple[int, int]:
        """The smallest and the largest value, at least as far apart as they are."""
        return bounds(polynomial, self._atoms, self._bounds)

    def describe(self) -> str:
        """``batch 1..64, seq 1..4096``"""
        return ", ".join(
            f"{d.name} {d.low}..{d.high}" + (f" by {d.divisor}" if d.divisor > 1 else "") for d in self.dims
        )


class Size(int):
    """An integer that encodes an expression of symbols; see the head of this file."""

    polynomial: Polynomial
    space: Sizes
    #: arrays of NumPy do not compute with sizes: they would take the numbers for known ones
    __array_ufunc__ = None

    @staticmethod
    def _make(value: int, polynomial: Polynomial, space: Sizes) -> Size:
        made = Size(value)
        made.polynomial, made.space = polynomial, space
        return made

    # ---- what it is ----

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest value."""
        low, high = self.space.range(self.polynomial)
        known = self.space._ranges.get(int(self))
        if known is None and (opposite := self.space._ranges.get(-int(self))) is not None:
            known = (-opposite[1], -opposite[0])
        return (max(low, known[0]), min(high, known[1])) if known else (low, high)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value for these sizes of the symbols."""
        atoms = self.space._atoms
        return sum(c * prod(atoms[a].evaluate(sizes) for a in m) for m, c in self.polynomial.items())

    @property
    def typical(self) -> int:
        """The value for sizes in the middle of their ranges."""
        return self.at({d.name: d.typical for d in self.space.dims})

    def terms(self) -> Iterator[tuple[int, list[_Atom]]]:
        """Coefficient and factors of each summand."""
        for m, c in self.polynomial.items():
            yield c, [self.space._atoms[a] for a in m]

    @property
    def text(self) -> str:
        """The formula (`support.formulas`), in which dimensions are called by number: ``8*d0``."""
        text = ""
        for m, c in sorted(self.polynomial.items(), key=lambda x: (-len(x[0]), x[0])):
            factors = ([str(abs(c))] if abs(c) != 1 or not m else []) + list(m)
            sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
            text += sign + "*".join(factors)
        return text if len(self.polynomial) == 1 else f"({text})"

    def __str__(self) -> str:
        """With the names of dimensions, for people."""
        return re.sub(r"\bd([0-9]+)\b", lambda m: self.space.names[int(m[1])], self.text)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the size {self} belongs to one compilation, it cannot be stored")

    def __deepcopy__(self, memo: object) -> Size:
        return self

    # ---- arithmetic ----

    def _other(self, other: Any) -> Polynomial | None:
        if isinstance(other, Size):
            return other.polynomial
        if hasattr(other, "__index__"):  # an int, or a number of NumPy's
            decoded = self.space.decode(other)
            return decoded.polynomial if isinstance(decoded, Size) else {(): decoded}
        return None

    def _inexact(self, other: object, compute: Callable[[int, float], float], text: str) -> Any:
        """With a float: Python would take the number that encodes this size for its value."""
        if not isinstance(other, float):
            return NotImplemented
        if not _typically.get():
            raise Undecided(f"{text} is not known when the model is compiled")
        return compute(self.typical, other)

    def _sum(self, other: int, sign: int) -> int:
        known = self.space._sums.get((self, other, sign)) if isinstance(other, int) else None
        if known is None:
            known = self._summed(other, sign)
            if isinstance(other, int):
                self.space._sums[self, other, sign] = known
        return known

    def _summed(self, other: int, sign: int) -> Any:
        p = self._other(other)
        if p is None:
            return self._inexact(other, lambda x, y: x + sign * y, f"{self} {'-' if sign < 0 else '+'} {other}")
        total = dict(self.polynomial)
        for m, c in p.items():
            total[m] = total.get(m, 0) + sign * c
        return self.space.size(total)

    def __add__(self, other: int) -> int:
        return self._sum(other, 1)

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return self._sum(other, -1)

    def __rsub__(self, other: int) -> int:
        return (-self) + other

    def __rpow__(self, base: int, modulo: int | None = None) -> NoReturn:
        raise Undecided(f"{base} ** {self} is not known when the model is compiled")

    def __neg__(self) -> int:
        return self.space.size({m: -c for m, c in self.polynomial.items()})

    def __pos__(self) -> Size:
        return self

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def __mul__(self, other: int) -> int:
        known = self.space._products.get((self, other)) if isinstance(other, int) else None
        if known is None:
            known = self._multiplied(other)
            if isinstance(other, int):
                self.space._products[self, other] = known
        return known

    def _multiplied(self, other: int) -> Any:
        p = self._other(other)
        if p is None:
            return self._inexact(other, lambda x, y: x * y, f"{self} * {other}")
        total: Polynomial = {}
        for m, c in self.polynomial.items():
            for n, d in p.items():
                key = tuple(sorted((*m, *n)))
                total[key] = total.get(key, 0) + c * d
        return self.space.size(total)

    __rmul__ = __mul__

    def __pow__(self, power: Any, modulo: Any = None) -> Any:
        if not isinstance(power, int) or isinstance(power, Size) or modulo is not None or power < 0:
            raise Undecided(f"{self} ** {power} is not known when the model is compiled")
        result: int = 1
        for _ in range(power):
            result = self * result
        return result

    def __floordiv__(self, other: int) -> int:
        return _divide(self, self.space.decode(other), self.space) if isinstance(other, int) else NotImplemented

    def __rfloordiv__(self, other: int) -> int:
        return _divide(self.space.decode(other), self, self.space) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: int) -> int:
        return _remainder(self, self.space.decode(other), self.space) if isinstance(other, int) else NotImplemented

    def __rmod__(self, other: int) -> int:
        return _remainder(self.space.decode(other), self, self.space) if isinstance(other, int) else NotImplemented

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __truediv__(self, other: int) -> float:
        if _typically.get():
            return self.typical / (other.typical if isinstance(other, Size) else other)
        raise Undecided(f"{self} / {other} is not known when the model is compiled")

    def __rtruediv__(self, other: int) -> float:
        if _typically.get():
            return other / self.typical
        raise Undecided(f"{decode(other)} / {self} is not known when the model is compiled")

    def __float__(self) -> float:
        if _typically.get():
            return float(self.typical)
        raise Undecided(f"{self} is not known when the model is compiled")

    def _bitwise(self, *_: object) -> NoReturn:
        raise Undecided(f"the bits of {self} are not known when the model is compiled")

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rlshift__ = __rshift__ = _bitwise
    __rrshift__ = __invert__ = _bitwise

    def bit_length(self) -> int:
        """Of the largest value."""
        return self.range[1].bit_length()

    # ---- comparisons: equality is that of the numbers, which is that of the expressions ----

    def surely_less(self, other: int, strict: bool) -> bool | Size:
        """Whether this is less than another size (or at most that) for all sizes, or for none; the difference if it is
        for some."""
        key = self, other, strict
        known = self.space._compared.get(key)
        if known is None:
            difference: Any = other - self
            low, high = difference.range if isinstance(difference, Size) else (difference,) * 2
            least = 1 if strict else 0
            known = bool(low >= least) if low >= least or high < least else difference
            self.space._compared[key] = known
        return known

    def _less(self, other: int, sign: str, strict: bool) -> bool:
        known = self.surely_less(other, strict)
        if not isinstance(known, Size):
            return known
        difference, least = known, 1 if strict else 0
        if _typically.get():
            return bool(difference.typical >= least)
        raise Undecided(
            f"whether {self} {sign} {other} depends on sizes that are not known when the model is compiled",
            lambda at: difference.at(at) >= least,
        )

    def __lt__(self, other: int) -> bool:
        return self._less(other, "<", True) if isinstance(other, int) else self._float(other, "<")

    def __le__(self, other: int) -> bool:
        return self._less(other, "<=", False) if isinstance(other, int) else self._float(other, "<=")

    def __gt__(self, other: int) -> bool:
        return not self._less(other, ">", False) if isinstance(other, int) else self._float(other, ">")

    def __ge__(self, other: int) -> bool:
        return not self._less(other, ">=", True) if isinstance(other, int) else self._float(other, ">=")

    def _float(self, other: float, sign: str) -> bool:
        low, high = self.range
        results: set[bool] = {
            {"<": x < other, "<=": x <= other, ">": x > other, ">=": x >= other}[sign] for x in (low, high)
        }
        if len(results) > 1 and _typically.get():
            x = self.typical
            return bool({"<": x < other, "<=": x <= other, ">": x > other, ">=": x >= other}[sign])
        if len(results) > 1:
            raise Undecided(f"whether {self} {sign} {other} is not known when the model is compiled")
        return results.pop()


def _divide(a: int, b: int, space: Sizes) -> int:
    """a // b: the exact quotient of the terms that b divides, and an atom for the rest. Found once."""
    key = int(a), int(b)
    if key not in space._quotients:
        space._quotients[key] = _divided(a, b, space)
    return space._quotients[key]


def _divided(a: int, b: int, space: Sizes) -> int:
    if not isinstance(b, Size) and b == 0:
        raise ZeroDivisionError(f"{a} // 0")
    divisor: Polynomial = b.polynomial if isinstance(b, Size) else {(): b}
    whole: Polynomial = {}
    rest: Polynomial = dict(a.polynomial if isinstance(a, Size) else {(): a})
    if len(divisor) == 1:
        ((factors, c),) = divisor.items()
        for m, k in list(rest.items()):
            others = without(m, factors)
            if others is not None and k // c:
                if m != factors and k % c:
                    continue
                whole[others] = k // c
                rest[m] = k % c
    elif (factor := ratio(rest, divisor)) is not None:
        return factor
    else:  # (32*n + 31) // (n + 1) is 31
        q, r = (space.size(p) for p in long_division(rest, divisor))
        for less, left in ((0, r), (1, r + b)):
            if _within(left, b):
                return q - less
    q, r = space.size(whole), space.size(rest)
    if not isinstance(r, Size) and not isinstance(b, Size):
        return q + r // b
    if _within(r, b):
        return q
    if _within(r + b, b):
        return q - 1
    return q + _quotient(r, b, space)


def _within(r: int, b: int) -> bool:
    """Whether 0 <= r < b for all sizes."""
    return surely(lambda: r >= 0 and r < b)


def _quotient(a: int, b: int, space: Sizes) -> int:
    (p, q), (r, s) = (_range(a), _range(b))
    if r <= 0:
        raise Undecided(f"{a} // {b}: the divisor may be 0", lambda at: _at(b, at) > 0)
    ends = [x // y for x in (p, q) for y in (r, s)]
    if min(ends) == max(ends):
        return ends[0]
    if q <= 0 and not isinstance(b, Size):  # of positive numbers, so that its encoding is positive
        rounded: int = -((-a + b - 1) // b)
        return rounded
    nested: int | None = _nested(a, b)
    if nested is not None:
        return nested
    x, y = _text(a), _text(b)
    several = isinstance(b, Size) and len(b.polynomial) == 1 and not y.isidentifier()
    name = f"{x}//({y})" if several else f"{x}//{y}"  # a sum has its parentheses
    made = space.atom(
        _Atom(f"({name})", min(ends), max(ends), lambda at: _at(a, at) // _at(b, at), ("floordivsi", a, b))
    )
    with contextlib.suppress(Undecided):  # what is left is known to be less than the divisor, whoever computes it
        _keep_remainder(a - b * made, b, space)
    return made


def _nested(a: Any, b: int) -> Any:
    """``(x//c + k) // b`` as ``(x + k*c) // (c*b)``, which is the same for all x; None for other sums."""
    terms = dict(a.polynomial) if isinstance(a, Size) else {}
    constant = terms.pop((), 0)
    if len(terms) != 1 or isinstance(b, Size):
        return None
    ((factors, times),) = terms.items()
    made = a.space._atoms[factors[0]].made if times == 1 and len(factors) == 1 else None
    if made is None or made[0] != "floordivsi" or isinstance(made[2], Size):
        return None
    return (made[1] + constant * made[2]) // (made[2] * b)


def _keep_remainder(left: int, b: int, space: Sizes) -> None:
    if isinstance(left, Size) and int(left) not in space._ranges and _range(b)[0] > 0:
        space._ranges[int(left)] = (0, _range(b)[1] - 1)
        space._compared.clear()  # what was open may be known now


def _remainder(a: int, b: int, space: Sizes) -> int:
    left = a - b * (a // b)
    _keep_remainder(left, b, space)
    return left


def _at(x: int, sizes: Mapping[str, int]) -> int:
    return x.at(sizes) if isinstance(x, Size) else int(x)


def _text(x: int) -> str:
    return x.text if isinstance(x, Size) else str(x)


def _range(x: int) -> tuple[int, int]:
    return x.range if isinstance(x, Size) else (x, x)


def _extremum(a: int, b: int, pick: Callable[[int, int], int], name: str) -> int:
    space = next((x.space for x in (a, b) if isinstance(x, Size)), None)
    if space is None:
        return pick(a, b)
    if surely(lambda: a <= b):
        return a if pick is min else b
    if surely(lambda: b <= a):
        return b if pick is min else a
    low, high = (pick(p, q) for p, q in zip(_range(a), _range(b), strict=True))
    first, second = sorted(map(_text, (a, b)))
    kind = "minsi" if pick is min else "maxsi"
    for x, y in ((a, b), (b, a)):  # min(min(a, b), b)
        if isinstance(x, Size) and len(x.polynomial) == 1:
            ((times, factors),) = x.terms()
            made = factors[0].made if times == 1 and len(factors) == 1 else None
            if made is not None and made[0] == kind and y in made[1:]:
                return x
    return space.atom(
        _Atom(f"{name}({first}, {second})", low, high, lambda at: pick(_at(a, at), _at(b, at)), (kind, a, b))
    )


def smaller(a: int, b: int) -> int:
    """The minimum of two sizes, undecided or not."""
    if type(a) is int and type(b) is int:
        return b if b < a else a
    return _extremum(a, b, min, "min")


def larger(a: int, b: int) -> int:
    """The maximum of two sizes, undecided or not."""
    if type(a) is int and type(b) is int:
        return b if b > a else a
    return _extremum(a, b, max, "max")


_space: ContextVar[Sizes | None] = ContextVar("sizes", default=None)


def less(a: int, b: int) -> bool:
    """Whether a < b for all sizes.

    >>> less(1, 2)
    True
    """
    try:
        if isinstance(a, Size):
            return a.surely_less(b, True) is True
        return b.surely_less(a, False) is False if isinstance(b, Size) else a < b
    except Undecided:  # their difference is no size that could be told apart
        return False


def at_most(a: int, b: int) -> bool:
    """Whether a <= b for all sizes.

    >>> at_most(2, 2)
    True
    """
    try:
        if isinstance(a, Size):
            return a.surely_less(b, False) is True
        return b.surely_less(a, True) is False if isinstance(b, Size) else a <= b
    except Undecided:
        return False


def open_size(d: Any) -> Any:
    """The size that a `Dim`, or a text like ``seq:1..4096``, is in this compilation; whatever else `d` is. Undecided
    for a number that encodes a size."""
    space = _space.get()
    if space is not None and type(d) is int and isinstance(space.decode(d), Size):
        raise Undecided(f"a dimension of {d} stands for an open one in this compilation")
    if space is None or not (isinstance(d, Dim) or (isinstance(d, str) and ":" in d)):
        return d
    wanted = d if isinstance(d, Dim) else Dim.parse(d)
    return next(s for s, known in zip(space.symbols, space.dims, strict=True) if known.name == wanted.name)


#: whether comparisons that ranges leave open are decided by typical sizes
_typically: ContextVar[bool] = ContextVar("typically", default=False)


@contextlib.contextmanager
def typically(chosen: bool = True) -> Iterator[None]:
    """While decisions are taken that change the speed of a program, not what it computes: those are by typical sizes.

    with typically():
        rows > 16                       # of 1..512, 23 is typical: True
        with typically(False):
            rows > 16                   # raises Undecided
    """
    token = _typically.set(chosen)
    try:
        yield
    finally:
        _typically.reset(token)


def ordered(items: Iterable[_T], key: Callable[[_T], int]) -> list[_T]:
    """Items by size, small ones first; sizes that could be either way by typical ones. For who checks the result.

    >>> ordered([3, 1, 2], lambda x: -x)
    [3, 2, 1]
    """
    with typically():
        return sorted(items, key=key)


def gcd(*numbers: int) -> int:
    """The greatest number that divides all, whatever the sizes among them are.

    >>> gcd(12, 18)
    6
    """
    plain = [c for n in numbers for c in (n.polynomial.values() if isinstance(n, Size) else (n,))]
    return _gcd(*plain)


def surely(test: Callable[[], bool]) -> bool:
    """Whether a test holds for all sizes; false where that is not known.

    >>> surely(lambda: 3 < 4)
    True
    """
    token = _typically.set(False)
    try:
        return bool(test())
    except Undecided:
        return False
    finally:
        _typically.reset(token)


def current() -> Sizes | None:
    """The sizes of the compilation at hand, None if all of its sizes are known."""
    return _space.get()


@contextlib.contextmanager
def open_sizes(dims: Sequence[Dim] | Sizes | None) -> Iterator[Sizes | None]:
    """While a model with these open dimensions is compiled."""
    known = dims if isinstance(dims, Sizes) or dims is None else Sizes(dims)
    token = _space.set(known)
    try:
        yield known
    finally:
        _space.reset(token)


def decode(number: Any) -> Any:
    """The size that an integer encodes, or the number: what is no integer encodes none."""
    space = _space.get()
    whole = hasattr(number, "__index__")
    return number if space is None or not whole or isinstance(number, Size) else space.decode(number)


def is_open(*sizes: object) -> bool:
    """Whether one of these is known at run time only.

    >>> is_open(3, 4)
    False
    """
    return any(isinstance(s, Size) for s in sizes)


def typical(x: int) -> int:
    """The value of a size in the middle of the ranges of its dimensions; an integer itself. For estimates."""
    return x.typical if isinstance(x, Size) else x


def lowest(x: int) -> int:
    """The smallest value of a size; an integer itself."""
    return _range(x)[0]


def highest(x: int) -> int:
    """The largest value of a size; an integer itself."""
    return _range(x)[1]


def too_large(x: int) -> bool:
    """Whether the number that encodes a size has more than 63 bits: it cannot be part of a type. False for others.

    >>> too_large(1 << 64)
    False
    """
    return isinstance(x, Size) and not -(1 << 63) < int(x) < 1 << 63


def value_at(x: int, sizes: Mapping[str, int]) -> int:
    """A size or an integer for these sizes of the symbols."""
    return _at(x, sizes)


__all__ = [
    "SMALLEST",
    "Dim",
    "Size",
    "Sizes",
    "Undecided",
    "at_most",
    "current",
    "decode",
    "gcd",
    "highest",
    "is_open",
    "larger",
    "less",
    "lowest",
    "open_size",
    "ordered",
    "open_sizes",
    "smaller",
    "surely",
    "too_large",
    "typical",
    "typically",
    "value_at",
]
