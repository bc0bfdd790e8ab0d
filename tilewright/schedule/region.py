"""Region analysis: the part of a buffer that a statement accesses, as base and extent of every dimension."""

from __future__ import annotations

from itertools import product
from math import prod

from ..support.errors import CompileError
from ..support.sizes import at_most, gcd, is_open, larger, less, smaller
from ..tensor.expr import (
    Buffer,
    Const,
    Expr,
    Op,
    Var,
    bounds,
    ceildiv,
    const_value,
    from_linear,
    linear,
    minimum,
    simplify,
    substitute,
    variables,
)
from .nest import For, Seq, Stmt, children

#: combinations of outer loops that are tried one by one
_ENUMERATE = 1 << 14


def inner_loops(s: Stmt) -> dict[str, Expr]:
    """Loop variables below `s` (not `s` itself) with their extents."""
    found: dict[str, Expr] = {}
    for c in children(s):
        if isinstance(c, For):
            found[c.var] = c.extent
        found.update(inner_loops(c))
    return found


def region(
    accesses: list[tuple[Expr, ...]], buffer: Buffer, inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]
) -> tuple[list[Expr], list[int], list[Expr]]:
    """(base, static size, extent) a dimension, of all `accesses` while the `inner` loops run.

    `base` is an expression of the outer loops, `size` the largest extent, `extent` an expression that never leaves the
    buffer. Where a dimension cannot be described so, the whole dimension is taken (see `unknown`).
    """
    bases: list[Expr] = []
    sizes: list[int] = []
    extents: list[Expr] = []
    inner = {v: settled(e, ranges) for v, e in inner.items()}
    for d, whole in enumerate(buffer.shape):
        found = _union([span(simplify(a[d], ranges), inner, ranges) for a in accesses])
        base, size = found or (Const(0, "index"), whole)
        if at_most(whole, size):
            base, size = Const(0, "index"), whole
        rest = settled(simplify(whole - base, ranges), ranges)
        bases.append(base)
        sizes.append(size)
        reach = _loop_extent([simplify(a[d], ranges) for a in accesses], inner, ranges) if size != whole else None
        if reach is None or not isinstance(reach, Op) or linear(rest) not in map(linear, reach.args):
            reach = minimum(Const(size, "index") if reach is None else reach, rest)
        extents.append(simplify(reach, ranges))
    return bases, sizes, extents


def settled(e: Expr, ranges: dict[str, tuple[int, int]]) -> Expr:
    """An extent without the variables of loops that run once: what it decides may come to stand outside of them.

    >>> print(settled(Var("i") * -13 + Var("o"), {"i": (0, 0), "o": (0, 3)}))
    o
    """
    once: dict[str, Expr] = {v: Const(low, "index") for v, (low, high) in ranges.items() if low == high}
    return simplify(substitute(e, once), ranges) if variables(e) & set(once) else e


def _loop_extent(indices: list[Expr], inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]) -> Expr | None:
    """The extent of the one inner loop that walks along a dimension in all accesses, step by step from the same place:
    of the last tile of rows less is needed, also where the buffer goes on behind it. None if there is no such loop."""
    found: dict[str, Expr] = {}
    for e in indices:
        terms, constant = linear(e)
        moving = [t for t in terms if variables(t) & set(inner)]
        if len(moving) != 1 or not isinstance(moving[0], Var) or terms[moving[0]] != 1:
            return None
        extent, rest = simplify(inner[moving[0].name], ranges), {t: c for t, c in terms.items() if t not in moving}
        if variables(extent) & set(inner):
            return None
        found[f"{extent} from {from_linear(rest, constant)}"] = extent
    return next(iter(found.values())) if len(found) == 1 else None


def unknown(
    accesses: list[tuple[Expr, ...]], inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]
) -> Expr | None:
    """An index that `region` cannot describe while the `inner` loops run: of whose dimension it takes all."""
    for index in zip(*accesses, strict=True):
        if _union([span(simplify(e, ranges), inner, ranges) for e in index]) is None:
            first: Expr = index[0]
            return first
    return None


def _union(spans: list[tuple[Expr, int] | None]) -> tuple[Expr, int] | None:
    """One span around spans whose bases are a constant distance apart."""
    if not spans or any(x is None for x in spans):
        return None
    known = [x for x in spans if x is not None]
    terms, first = linear(known[0][0])
    low, high = first, first
    for base, size in known:
        others, constant = linear(base)
        if others != terms:
            return None
        low, high = smaller(low, constant), larger(high, constant + size)
    return from_linear(terms, low), high - low


def span(e: Expr, inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]) -> tuple[Expr, int] | None:
    """Base and size of the values that an index takes while the inner loops run: between them lie all, and as a rule no
    others. None if it is no sum of quotients, remainders and multiples of loop variables.

    >>> span(Var("o") * 8 + Var("i"), {"i": Const(4, "index")}, {"o": (0, 3), "i": (0, 3)})[1]
    4
    >>> base, size = span((Var("o") * 8 + Var("i")) // 4, {"i": Const(8, "index")}, {"o": (0, 3), "i": (0, 7)})
    >>> print(base, size)
    (o * 2) 2
    """
    terms, constant = linear(e)
    outer: dict[Expr, int] = {}
    size = 1
    for t, c in terms.items():
        if not variables(t) & set(inner):
            outer[t] = outer.get(t, 0) + c
            continue
        found = _term(t, inner, ranges)
        if found is None:
            return None
        base, count = found
        parts, offset = linear(base)
        for part, k in parts.items():
            outer[part] = outer.get(part, 0) + c * k
        constant += c * offset + smaller(c * (count - 1), 0)
        size += abs(c) * (count - 1)
    return from_linear({t: c for t, c in outer.items() if c}, constant), size


def _term(t: Expr, inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]) -> tuple[Expr, int] | None:
    """`span` of one term of a sum that depends on inner loops."""
    if isinstance(t, Var):
        limit = bounds(inner[t.name], ranges)
        return None if limit is None else (Const(0, "index"), limit[1])
    if not isinstance(t, Op) or len(t.args) != 2 or t.dtype != "index":
        return None
    n = const_value(t.args[1])
    found = span(t.args[0], inner, ranges) if n is not None else None
    if found is None or n is None:
        return None
    base, size = found
    limit = bounds(t, ranges)
    if limit is not None and less(limit[1] - limit[0], size - 1):  # no more than the index can reach at all
        return Const(limit[0], "index"), limit[1] - limit[0] + 1
    if t.op in ("minsi", "maxsi"):
        end = Op(t.op, (base, Const(n, "index")), "index")
        return simplify(end, ranges), size
    if t.op not in ("floordivsi", "remsi") or not less(0, n):
        return None
    last = _last_remainder(base, n, ranges) + size - 1  # how far the values reach beyond a multiple of n at most
    if t.op == "floordivsi":
        return simplify(base // n, ranges), last // n + 1
    return (simplify(base % n, ranges), size) if less(last, n) else (Const(0, "index"), n)


def _last_remainder(e: Expr, n: int, ranges: dict[str, tuple[int, int]]) -> int:
    """The largest remainder that e can have by n: common factors leave gaps, small terms reach only so far."""
    terms, constant = linear(simplify(e, ranges))
    terms = {t: c for t, c in terms.items() if c % n}
    limit = bounds(from_linear(terms, constant % n), ranges)
    if limit is not None and at_most(0, limit[0]) and less(limit[1], n):
        return limit[1]
    step = gcd(n, *terms.values())
    small = {t: c for t, c in terms.items() if c % n}
    best = n - step + constant % step
    for unit in sorted({gcd(n, c) for c in small.values()} - {step}):  # what is no multiple of the unit stays below it
        low = from_linear({t: c for t, c in small.items() if c % unit}, constant % unit)
        reach = bounds(low, ranges)
        if reach is not None and reach[0] >= 0 and reach[1] < unit:
            best = min(best, n - unit + reach[1])
    return best


def exact(index: tuple[Expr, ...], inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]) -> bool:
    """Whether an access covers a whole rectangle while the inner loops run: no gaps, and no loop in two dimensions."""
    seen: set[str] = set()
    for e in index:
        terms, _ = linear(simplify(e, ranges))
        step = 1
        for t, c in sorted(terms.items(), key=lambda x: x[1]):
            names = variables(t) & set(inner)
            if not names:
                continue
            limit = bounds(inner[next(iter(names))], ranges)
            if not isinstance(t, Var) or c != step or limit is None or names & seen:
                return False
            step *= limit[1]
            seen |= names
    return True


def clipped_by_buffer(
    index: tuple[Expr, ...], buffer: Buffer, inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]
) -> bool:
    """Whether the loops that select an `exact` access end only where their tile or the buffer does, as `region` says.

    A tile inside of a tile may end earlier: ``min(2, min(5, 8 - o * 5) - i * 2)``. Where sizes vary, the values are
    tried one by one; more than _ENUMERATE of them count as a no."""
    _, _, extents = region([index], buffer, inner, ranges)
    for e, extent in zip(index, extents, strict=True):
        steps = {t.name: c for t, c in linear(simplify(e, ranges))[0].items() if isinstance(t, Var) and t.name in inner}
        names = [v for v in inner if v in steps]  # outer loops come first
        real = {v: simplify(inner[v], ranges) for v in names}
        if all(const_value(x) is not None for x in real.values()):
            continue
        if len(names) == 1 and str(real[names[0]]) == str(extent) and steps[names[0]] == 1:
            continue
        if _one_split(names, steps, extent, real):
            continue
        parts: dict[Expr, Var] = {}  # few values, where a loop variable may have many; but they may not all meet
        own = _with_parts(extent, set(names), parts), {v: _with_parts(x, set(names), parts) for v, x in real.items()}
        held = {v.name: limit for t, v in parts.items() if (limit := bounds(t, ranges)) is not None}
        if not _ends_alike(names, steps, *own, {**ranges, **held}) and not _ends_alike(
            names, steps, extent, real, ranges
        ):
            return False
    return True


def _one_split(names: list[str], steps: dict[str, int], extent: Expr, real: dict[str, Expr]) -> bool:
    """Whether two loops are what `split` makes of one over `extent`, of which it is not known how long it is.

    o in ceildiv(n, 8), i in min(8, n - o*8)
    """
    if len(names) != 2:
        return False
    outer, inner = names
    factor = steps[outer]
    if steps[inner] != 1 or is_open(factor):
        return False
    last = linear(extent - Var(outer) * factor)
    e = real[inner]
    args = e.args if isinstance(e, Op) and e.op == "minsi" else ()
    tile = len(args) == 2 and Const(factor, "index") in args and last in map(linear, args)
    return tile and real[outer] == ceildiv(extent, factor)


def _with_parts(e: Expr, inner: set[str], parts: dict[Expr, Var]) -> Expr:
    """An expression with a variable for each of its terms that no inner loop moves, which goes to `parts`."""
    terms, constant = linear(e)
    new: dict[Expr, int] = {}
    for t, c in terms.items():
        if isinstance(t, Op) and t.op == "minsi":
            t = Op("minsi", tuple(_with_parts(a, inner, parts) for a in t.args), "index")
        elif not variables(t) & inner:
            t = parts.setdefault(t, Var(f"part {len(parts)}"))  # no loop has a blank in its name
        new[t] = new.get(t, 0) + c
    return from_linear(new, constant)


def _ends_alike(
    names: list[str],
    steps: dict[str, int],
    extent: Expr,
    real: dict[str, Expr],
    ranges: dict[str, tuple[int, int]],
) -> bool:
    """Whether loops reach each place below `extent` and no other, whatever the variables outside of them are."""
    outer = sorted(set().union(variables(extent), *map(variables, real.values())) - set(names))
    tried = [*outer, *names]
    if (
        any(v not in ranges or is_open(*ranges[v]) for v in tried)
        or prod(ranges[v][1] - ranges[v][0] + 1 for v in tried) > _ENUMERATE
    ):
        return False
    for values in product(*[range(ranges[v][0], ranges[v][1] + 1) for v in outer]):
        at = {v: (x, x) for v, x in zip(outer, values, strict=True)}
        reached = _offsets(names, real, steps, at)
        whole = bounds(extent, at)
        if reached is None or (whole is not None and is_open(*whole)):
            return False
        if reached and (whole is None or reached != set(range(whole[1]))):
            return False
    return True


def _offsets(
    names: list[str], extents: dict[str, Expr], steps: dict[str, int], at: dict[str, tuple[int, int]]
) -> set[int] | None:
    """The sums of steps that nested loops run through, given the values of the loops around them; None where sizes are
    not known."""
    if not names:
        return {0}
    (v, *rest), found = names, set()
    limit = bounds(extents[v], at)
    if limit is not None and is_open(limit[1]):
        return None
    for x in range(limit[1] if limit else 0):
        inner = _offsets(rest, extents, steps, {**at, v: (x, x)})
        if inner is None:
            return None
        found |= {x * steps[v] + o for o in inner}
    return found


def same_region(
    accesses: list[tuple[Expr, ...]],
    bases: list[Expr],
    sizes: list[int],
    ranges: dict[str, tuple[int, int]],
    inner: dict[str, Expr] | None = None,
) -> bool:
    """Whether all accesses stay in the region of given bases and sizes while the inner loops run: the loops whose
    variables the bases do not depend on. Where `inner` is given, it says which."""
    for a in accesses:
        for e, base, size in zip(a, bases, sizes, strict=True):
            limit = bounds(simplify(e - base, ranges), ranges)
            if limit is None or not at_most(0, limit[0]) or not less(limit[1], size):
                found = span(simplify(e, ranges), inner, ranges) if inner else None
                if found is None or linear(found[0])[0] != linear(base)[0]:
                    return False
                offset = linear(found[0])[1] - linear(base)[1]
                if not at_most(0, offset) or not at_most(offset + found[1], size):
                    return False
    return True


def all_ranges(root: Stmt, known: dict[str, tuple[int, int]] | None = None) -> dict[str, tuple[int, int]]:
    """Inclusive ranges of every loop variable in a tree (upper bounds where extents vary), given those of outer
    loops."""
    if not known and isinstance(root, Seq):  # most steps of a schedule leave most loops alone
        return {v: limits for s in root.stmts for v, limits in _own_ranges(s).items()}
    return _ranges(root, dict(known or {}))


def _own_ranges(s: Stmt) -> dict[str, tuple[int, int]]:
    if "ranges" not in s.known:
        s.known["ranges"] = _ranges(s, {})
    found: dict[str, tuple[int, int]] = s.known["ranges"]
    return found


def _ranges(root: Stmt, ranges: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    for s in root.loops:
        limit = bounds(s.extent, ranges)
        ranges[s.var] = (0, larger(limit[1] - 1, 0)) if limit else (0, 0)
        if limit is None:
            raise CompileError(f"loop {s.var} has an extent that cannot be bounded: {s.extent}", stage="schedule")
    return ranges


__all__ = [
    "Op",
    "all_ranges",
    "clipped_by_buffer",
    "const_value",
    "inner_loops",
    "region",
    "span",
    "substitute",
    "unknown",
]
