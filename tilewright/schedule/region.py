"""Which part of a buffer a piece of a loop nest touches: base and extent of every dimension."""

from __future__ import annotations

from itertools import product
from math import prod

from ..errors import CompileError
from ..tensor.expr import (
    Buffer,
    Const,
    Expr,
    Op,
    Var,
    bounds,
    const_value,
    from_linear,
    linear,
    minimum,
    simplify,
    substitute,
    variables,
)
from .nest import For, Stmt, children

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
    buffer. Where a dimension cannot be described so, the whole dimension is taken.
    """
    bases: list[Expr] = []
    sizes: list[int] = []
    extents: list[Expr] = []
    for d, whole in enumerate(buffer.shape):
        found = [_dimension(simplify(a[d], ranges), inner, ranges) for a in accesses]
        if not found or any(f is None for f in found) or len({str(f[0]) for f in found if f}) != 1:
            bases.append(Const(0, "index"))
            sizes.append(whole)
            extents.append(Const(whole, "index"))
            continue
        base = found[0][0]  # type: ignore[index]
        size = min(max(f[1] for f in found if f), whole)
        rest = simplify(whole - base, ranges)
        bases.append(base)
        sizes.append(size)
        extents.append(simplify(minimum(Const(size, "index"), rest), ranges))
    return bases, sizes, extents


def _dimension(e: Expr, inner: dict[str, Expr], ranges: dict[str, tuple[int, int]]) -> tuple[Expr, int] | None:
    """Base and size of the values an index takes while the inner loops run; None if it is not linear in them."""
    terms, constant = linear(e)
    outer: dict[Expr, int] = {}
    size = 1
    for t, c in terms.items():
        names = variables(t)
        if not names & set(inner):
            outer[t] = c
        elif isinstance(t, Var) and c > 0:
            limit = bounds(inner[t.name], ranges)
            if limit is None:
                return None
            size += c * (limit[1] - 1)
        else:
            return None
    return from_linear(outer, constant), size


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
        parts: dict[Expr, Var] = {}  # few values, where a loop variable may have many; but they may not all meet
        own = _with_parts(extent, set(names), parts), {v: _with_parts(x, set(names), parts) for v, x in real.items()}
        held = {v.name: limit for t, v in parts.items() if (limit := bounds(t, ranges)) is not None}
        if not _ends_alike(names, steps, *own, {**ranges, **held}) and not _ends_alike(
            names, steps, extent, real, ranges
        ):
            return False
    return True


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
    if any(v not in ranges for v in tried) or prod(ranges[v][1] - ranges[v][0] + 1 for v in tried) > _ENUMERATE:
        return False
    for values in product(*[range(ranges[v][0], ranges[v][1] + 1) for v in outer]):
        at = {v: (x, x) for v, x in zip(outer, values, strict=True)}
        reached = _offsets(names, real, steps, at)
        whole = bounds(extent, at)
        if reached and (whole is None or reached != set(range(whole[1]))):
            return False
    return True


def _offsets(
    names: list[str], extents: dict[str, Expr], steps: dict[str, int], at: dict[str, tuple[int, int]]
) -> set[int]:
    """The sums of steps that nested loops run through, given the values of the loops around them."""
    if not names:
        return {0}
    (v, *rest), found = names, set()
    limit = bounds(extents[v], at)
    for x in range(limit[1] if limit else 0):
        found |= {x * steps[v] + o for o in _offsets(rest, extents, steps, {**at, v: (x, x)})}
    return found


def same_region(
    accesses: list[tuple[Expr, ...]],
    bases: list[Expr],
    sizes: list[int],
    ranges: dict[str, tuple[int, int]],
) -> bool:
    """Whether all accesses stay in the region of given bases and sizes while the inner loops run."""
    for a in accesses:
        for e, base, size in zip(a, bases, sizes, strict=True):
            limit = bounds(simplify(e - base, ranges), ranges)
            if limit is None or limit[0] < 0 or limit[1] >= size:
                return False
    return True


def all_ranges(root: Stmt, known: dict[str, tuple[int, int]] | None = None) -> dict[str, tuple[int, int]]:
    """Inclusive ranges of every loop variable in a tree (upper bounds where extents vary), given those of outer
    loops."""
    ranges: dict[str, tuple[int, int]] = dict(known or {})

    def visit(s: Stmt) -> None:
        if isinstance(s, For):
            limit = bounds(s.extent, ranges)
            ranges[s.var] = (0, max(limit[1] - 1, 0)) if limit else (0, 0)
            if limit is None:
                raise CompileError(f"loop {s.var} has an extent that cannot be bounded: {s.extent}", stage="schedule")
        for c in children(s):
            visit(c)

    visit(root)
    return ranges


__all__ = ["Op", "all_ranges", "clipped_by_buffer", "const_value", "inner_loops", "region", "substitute"]
