"""Multivariate polynomials with integer coefficients: the normal form of symbolic sizes."""

from __future__ import annotations

#: a monomial is the names of its factors, sorted; a polynomial gives each its coefficient
Monomial = tuple[str, ...]
Polynomial = dict[Monomial, int]


def shared_factors(polynomial: Polynomial) -> Monomial:
    """The factors that all of several terms have.

    >>> shared_factors({("batch", "seq"): 2, ("batch",): -1})
    ('batch',)
    """
    if len(polynomial) < 2:
        return ()
    first, *others = polynomial
    shared = list(first)
    for m in others:
        left, both = list(m), []
        for f in shared:
            if f in left:
                left.remove(f)
                both.append(f)
        shared = both
    return tuple(shared)


def ratio(a: Polynomial, b: Polynomial) -> int | None:
    """The constant that b has to be multiplied with to be a; None if there is none.

    >>> ratio({("seq",): 6, (): 2}, {("seq",): 3, (): 1})
    2
    """
    if set(a) != set(b):
        return None
    ratios = {divmod(a[m], b[m]) for m in a}
    return next(iter(ratios))[0] if len(ratios) == 1 and next(iter(ratios))[1] == 0 else None


def long_division(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and rest by the leading term of b: ``a == quotient * b + rest``.

    >>> long_division({("seq",): 6, (): 5}, {("seq",): 3, (): 3})
    ({(): 2}, {(): -1})
    """
    lead = max(b, key=lambda m: (len(m), m))
    quotient: Polynomial = {}
    rest = dict(a)
    for m in sorted(a, key=lambda m: (-len(m), m)):
        left = without(m, lead)
        k = rest.get(m, 0) // b[lead]
        if left is not None and k and rest[m] % b[lead] == 0:
            quotient[left] = k
            for n, c in b.items():
                key = tuple(sorted((*left, *n)))
                rest[key] = rest.get(key, 0) - k * c
    return quotient, {m: c for m, c in rest.items() if c}


def without(m: Monomial, factors: Monomial) -> Monomial | None:
    """A monomial divided by factors; None if it has not all of them.

    >>> without(("batch", "seq", "seq"), ("seq",))
    ('batch', 'seq')
    """
    left = list(m)
    for f in factors:
        if f not in left:
            return None
        left.remove(f)
    return tuple(left)
