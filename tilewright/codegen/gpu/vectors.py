"""Vectorized memory accesses: the loads and stores of vector loops whose elements are contiguous and aligned, by
`GpuIndices.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...schedule.nest import For, Nest, Stmt, Store, children, exprs
from ...tensor.expr import Buffer, Const, Expr, Load, Op, from_linear, linear, walk
from ...tensor.expr import children as parts
from .indices import GpuIndices


@dataclass(frozen=True)
class WideAccess:
    """One access of `width` contiguous elements of a buffer, `written` or read."""

    buffer: str
    width: int
    written: bool


def lanes_of(s: For) -> int:
    """The iterations of a vector loop around one statement; 0 for other loops."""
    extent = s.extent.value if isinstance(s.extent, Const) else None
    return extent if s.kind == "vector" and isinstance(s.body, Store) and isinstance(extent, int) else 0


def in_turn(s: Store, var: str, at: GpuIndices, buffers: dict[str, Buffer]) -> bool:
    """Whether iterations of a vector loop write one element, or places that are not known: they do so in turn."""
    return any(at.step(buffers[t.buffer], t.indices, var) in (0, None) for t in s.targets)


def always(e: Expr) -> Iterator[Load]:
    """The loads of a value that do not depend on a condition, nor stand in an index."""
    if isinstance(e, Load):
        yield e
        return
    lazy = isinstance(e, Op) and e.op in ("guard", "seldom")
    for i, c in enumerate(parts(e)):
        if not (lazy and i == 1):
            yield from always(c)


def accesses(nest: Nest, at: GpuIndices, most: Callable[[Buffer], int]) -> Iterator[WideAccess]:
    """All of a nest; `most`: elements of a buffer that one access takes at most."""
    buffers = nest.buffers()

    def width(name: str, indices: tuple[Expr, ...], s: For) -> int:
        return at.run(buffers[name], indices, s.var, lanes_of(s), most(buffers[name]))

    def together(s: For, body: Store) -> Iterator[WideAccess]:
        turns = in_turn(body, s.var, at, buffers)
        written = {t.buffer for t in body.targets}
        whole = {id(x) for t in body.targets for x in always(t.value) if not (turns and x.buffer in written)}
        for t in body.targets:
            yield WideAccess(t.buffer, 1 if turns else width(t.buffer, t.indices, s), True)
        for e in exprs(body):
            for x in walk(e):
                if isinstance(x, Load):
                    yield WideAccess(x.buffer, width(x.buffer, x.indices, s) if id(x) in whole else 1, False)

    def below(s: Stmt) -> Iterator[WideAccess]:
        if isinstance(s, For) and lanes_of(s) > 1:
            assert isinstance(s.body, Store)
            yield from together(s, s.body)
            return
        yield from (WideAccess(t.buffer, 1, True) for t in (s.targets if isinstance(s, Store) else ()))
        yield from (WideAccess(x.buffer, 1, False) for e in exprs(s) for x in walk(e) if isinstance(x, Load))
        for c in children(s):
            yield from below(c)

    return below(nest.body)


def whole_only(
    nest: Nest, at: GpuIndices, most: Callable[[Buffer], int], least: Callable[[Buffer], int]
) -> frozenset[str]:
    """Buffers of which some access takes `least` elements or more, and every write does: they can be arrays of
    vectors. Of those that are never written one access is enough."""
    found: dict[str, list[WideAccess]] = {}
    for a in accesses(nest, at, most):
        found.setdefault(a.buffer, []).append(a)
    buffers = nest.buffers()
    return frozenset(
        name
        for name, all_ in found.items()
        if least(buffers[name]) > 1
        and any(a.width >= least(buffers[name]) for a in all_)
        and all(a.width >= least(buffers[name]) for a in all_ if a.written)
    )


def divided(e: Expr, n: int) -> Expr | None:
    """An index divided by a number that divides all its terms; None if it does not.

    >>> from tilewright.tensor.expr import Var
    >>> str(divided(Var("i") * 8 + 4, 4)), divided(Var("i") * 6, 4)
    ('((i * 2) + 1)', None)
    """
    terms, constant = linear(e)
    if constant % n or any(c % n for c in terms.values()):
        return None
    return from_linear({t: c // n for t, c in terms.items()}, constant // n)


__all__ = ["WideAccess", "accesses", "always", "divided", "in_turn", "lanes_of", "whole_only"]
