"""Privatization: buffers that each thread has for itself shrink to the elements that one thread uses.

A nest says ``acc[row, column]`` with row and column bound to threads, and each thread has a buffer of its own. The
thread uses one element of it: what thread indices add to an index is left out where it is the same everywhere.

    acc = register(f32[16, 16])                       acc = register(f32[1, 1])
    for row in block.y(16): for c in block.x(16):  -> for row in block.y(16): for c in block.x(16):
        acc[row, c] = 0                                   acc[0, 0] = 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...schedule.nest import Alloc, For, Nest, Stmt, Store, exprs, map_exprs, transform, walk_stmts
from ...schedule.region import all_ranges
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Target,
    Var,
    bounds,
    linear,
    map_loads,
    substitute,
    variables,
    walk,
)
from .launch import LaunchAxes

#: a dimension's terms that only thread indices decide, by axes instead of loops
Terms = dict[Expr, int]
Own = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]


def privatize(nest: Nest, launch_axes: LaunchAxes) -> Nest:
    """The nest with buffers of single threads as small as one thread needs them."""
    for s in [s for s in walk_stmts(nest.body) if isinstance(s, Alloc)]:
        kinds = {k for k in launch_axes.kinds if not launch_axes.nest_axes.shares(k, s.buffer)}
        nest = _shrunk(nest, s.buffer, kinds) if kinds else nest
    return nest


def _shrunk(nest: Nest, b: Buffer, kinds: set[str]) -> Nest:
    loops = {s.var: s.kind for s in walk_stmts(nest.body) if isinstance(s, For) and s.bound and s.kind in kinds}
    places = list(_places(nest.body, b.name))
    if not places:
        return nest
    common: list[Terms] = []
    for d in range(len(b.shape)):
        found = [_terms(p[d], loops) for p in places]
        common.append(found[0] if all(f == found[0] for f in found) else {})
    if not any(common):
        return nest

    def own(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(_without(i, c, loops) for i, c in zip(indices, common, strict=True))

    ranges = all_ranges(nest.body)
    limits = [[bounds(i, ranges) for i in own(p)] for p in places]
    shape = []
    for d, n in enumerate(b.shape):
        known = [x[d] for x in limits]
        if not common[d] or any(x is None or x[0] < 0 for x in known):
            common[d] = {}
            shape.append(n)
        else:
            shape.append(max(x[1] for x in known if x is not None) + 1)
    return replace(nest, body=_rewritten(nest.body, replace(b, shape=tuple(shape)), own))


def _places(body: Stmt, name: str) -> Iterator[tuple[Expr, ...]]:
    for s in walk_stmts(body):
        if isinstance(s, Store):
            yield from (t.indices for t in s.targets if t.buffer == name)
        yield from (x.indices for e in exprs(s) for x in walk(e) if isinstance(x, Load) and x.buffer == name)


def _terms(index: Expr, loops: dict[str, str]) -> Terms:
    """The terms with no other variables than loops bound to axes."""
    kinds: dict[str, Expr] = {v: Var(k) for v, k in loops.items()}
    found = linear(index)[0].items()
    return {substitute(t, kinds): c for t, c in found if variables(t) and variables(t) <= set(loops)}


def _without(index: Expr, common: Terms, loops: dict[str, str]) -> Expr:
    if not common:
        return index
    terms, constant = linear(index)
    total: Expr = Const(constant, "index")
    for t, c in terms.items():
        if not (variables(t) and variables(t) <= set(loops)):
            total = total + t * c
    return total


def _rewritten(body: Stmt, b: Buffer, own: Own) -> Stmt:
    def load(x: Load) -> Expr:
        return Load(x.buffer, own(x.indices), x.dtype) if x.buffer == b.name else x

    def visit(s: Stmt) -> Stmt:
        s = map_exprs(s, lambda e: map_loads(e, load))
        if isinstance(s, Alloc) and s.buffer.name == b.name:
            return replace(s, buffer=b)
        if isinstance(s, Store):
            return replace(s, targets=tuple(_target(t, b.name, own) for t in s.targets))
        return s

    return transform(body, visit) or body


def _target(t: Target, name: str, own: Own) -> Target:
    return replace(t, indices=own(t.indices)) if t.buffer == name else t


__all__ = ["privatize"]
