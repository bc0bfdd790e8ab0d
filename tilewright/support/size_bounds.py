"""Interval bounds of symbolic sizes: they decide comparisons between sizes that are not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from .polynomials import Monomial, Polynomial, shared_factors, without

#: quotients and extrema in a sum that are looked into: each of them in terms of all others
MOST = 4
#: factors of the terms of a sum whose ends are tried in all combinations
MOST_FACTORS = 6


@dataclass(frozen=True)
class Atom:
    """A symbol, or what a division or an extremum makes of sizes: `evaluate` computes it from the sizes of symbols."""

    name: str
    low: int
    high: int
    evaluate: Callable[[Mapping[str, int]], int]
    #: how code computes it: an operation and its operands; none for a symbol
    made: tuple[str, int, int] | None = None


#: polynomials whose bounds have been found
Known = dict[frozenset[tuple[Monomial, int]], tuple[int, int]]


def bounds(polynomial: Polynomial, atoms: Mapping[str, Atom], known: Known) -> tuple[int, int]:
    """A smallest and a largest value, at least as far apart as those that there are.

    `known` is what was found before, of the same atoms. What is put in for one quotient after the other leads to the
    same few polynomials, in as many ways as there are orders.
    """
    common = gcd(*polynomial.values())
    if common > 1:
        low, high = bounds({m: c // common for m, c in polynomial.items()}, atoms, known)
        return common * low, common * high
    key = frozenset(polynomial.items())
    if key not in known:
        known[key] = _bounds(polynomial, atoms, known)
    return known[key]


def _bounds(polynomial: Polynomial, atoms: Mapping[str, Atom], known: Known) -> tuple[int, int]:
    shared = shared_factors(polynomial)
    if shared:  # a * (b - 1) is at least 0 where a*b - a seems to be less
        rest = {without(m, shared) or (): c for m, c in polynomial.items()}
        ends = [x * y for x in bounds({shared: 1}, atoms, known) for y in bounds(rest, atoms, known)]
        return min(ends), max(ends)
    low, high = _corners(polynomial, atoms) or _interval(polynomial, atoms)
    if sum(len(m) == 1 and atoms[m[0]].made is not None for m in polynomial) > MOST:
        return low, high
    for m in polynomial:
        atom = atoms[m[0]] if len(m) == 1 else None
        if atom is None or atom.made is None:
            continue
        better = _of_quotient if atom.made[0] == "floordivsi" else _of_extremum
        least, most = better(polynomial, m, atom.made, atoms, known)
        low, high = max(low, least), min(high, most)
    return low, high


def _interval(polynomial: Polynomial, atoms: Mapping[str, Atom]) -> tuple[int, int]:
    low = high = 0
    for m, c in polynomial.items():
        least, most = 1, 1
        for a in m:
            ends = [x * y for x in (least, most) for y in (atoms[a].low, atoms[a].high)]
            least, most = min(ends), max(ends)
        low, high = low + min(c * least, c * most), high + max(c * least, c * most)
    return low, high


def _corners(polynomial: Polynomial, atoms: Mapping[str, Atom]) -> tuple[int, int] | None:
    """The ends of a sum of products that share factors with unlike signs: 4*a*b - a - b is 2 or more where a and b are
    1 or more, though its smallest and largest terms say less.

    Linear in each factor, it is smallest and largest where all factors are. A square counts as two factors, which may
    differ. None where terms by themselves say as much, or there are too many factors.
    """
    several = [m for m in polynomial if m]
    if len({polynomial[m] > 0 for m in several}) < 2:
        return None
    factors = [[(a, m[:i].count(a)) for i, a in enumerate(m)] for m in polynomial]
    names = sorted({f for m in factors for f in m})
    if not len(names) < sum(map(len, factors)) or len(names) > MOST_FACTORS:
        return None
    values = [
        sum(c * prod(at[f] for f in m) for m, c in zip(factors, polynomial.values(), strict=True))
        for ends in product(*[(atoms[a].low, atoms[a].high) for a, _ in names])
        for at in [dict(zip(names, ends, strict=True))]
    ]
    return min(values), max(values)


def _of_quotient(
    polynomial: Polynomial, m: Monomial, made: tuple[str, int, int], atoms: Mapping[str, Atom], known: Known
) -> tuple[int, int]:
    """n * (a // n) is a less what is left, 0 to n - 1: with a multiple of the polynomial in which n divides."""
    _, a, n = made
    inner: Polynomial | None = getattr(a, "polynomial", None)
    if inner is None or hasattr(n, "polynomial"):
        return _interval(polynomial, atoms)
    c = polynomial[m]
    times = n // gcd(c, n)
    each = c * times // n
    least, most = bounds(_sum(polynomial, m, times, inner, each), atoms, known)
    left = each * (n - 1)
    return -((max(left, 0) - least) // times), (most - min(left, 0)) // times


def _of_extremum(
    polynomial: Polynomial, m: Monomial, made: tuple[str, int, int], atoms: Mapping[str, Atom], known: Known
) -> tuple[int, int]:
    """A maximum is one of two sizes, and not less than either."""
    op, *operands = made
    c = polynomial[m]
    sums = [_sum(polynomial, m, 1, getattr(x, "polynomial", {(): int(x)}), c) for x in operands]
    ends = [bounds(total, atoms, known) for total in sums]
    lows, highs = zip(*ends, strict=True)
    least_of_both = (op == "maxsi") == (c > 0)
    return (max(lows), max(highs)) if least_of_both else (min(lows), min(highs))


def _sum(polynomial: Polynomial, m: Monomial, times: int, other: Polynomial, each: int) -> Polynomial:
    """`times` the polynomial without its term `m`, and `each` times another one."""
    total = {k: v * times for k, v in polynomial.items() if k != m}
    for k, v in other.items():
        total[k] = total.get(k, 0) + each * v
    return {k: v for k, v in total.items() if v}


__all__ = ["Atom", "Known", "bounds"]
