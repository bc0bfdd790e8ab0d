"""Steps that several rules share."""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise

from ...tensor.analysis import flat
from ...tensor.expr import Const, Expr, Load, Op, Var, from_linear, linear, loads, simplify, variables, walk
from ..nest import Store
from ..region import all_ranges
from ..schedule import Schedule, ScheduleError


def coefficient(e: Expr, var: str) -> int | None:
    """How far an index moves when `var` advances by one; None if it is not linear in it."""
    total = 0
    for t, c in linear(e)[0].items():
        if isinstance(t, Var):
            total += c if t.name == var else 0
        elif any(isinstance(x, Var) and x.name == var for x in walk(t)):
            return None
    return total


def load_strides(s: Schedule, store: Store, var: str) -> list[tuple[Load, int | None]]:
    """Every load of a block with its stride along `var`, in elements."""
    return [(x, coefficient(position, var)) for x, position in load_positions(s, store)]


def load_positions(s: Schedule, store: Store) -> list[tuple[Load, Expr]]:
    """Every load of a block, but those of its own sums, with its flat index."""
    own = {t.buffer for t in store.targets if t.init is not None}
    found = [x for t in store.targets for x in loads(t.value) if x.buffer not in own]
    return [(x, _position(s, x)) for x in dict.fromkeys(found)]


def _position(s: Schedule, x: Load) -> Expr:
    """The flat index of a load without the divisions that reshapes and fused loops leave behind, where that can be."""
    e = flat(s.buffer(x.buffer), x.indices)
    if all(isinstance(t, Var) for t in linear(e)[0]):
        return e
    ranges = all_ranges(s.body)
    terms, constant = linear(flat(s.buffer(x.buffer), [simplify(i, ranges) for i in x.indices]))
    return from_linear(terms, constant, ranges)  # x // n * n + x % n becomes x


def reads(s: Schedule, buffer: str) -> int:
    """In how many places a buffer is read."""
    values = [t.value for b in s.stages.values() for t in b.targets]
    return len({x for v in values for x in loads(v) if x.buffer == buffer})


def store_stride(s: Schedule, store: Store, var: str) -> int | None:
    """Stride of a block's (first) target along `var`, with index arithmetic simplified."""
    t = store.targets[0]
    e = flat(s.buffer(t.buffer), t.indices)
    return coefficient(simplify(e, {}), var)


def merge_loops(s: Schedule, block: str, order: list[str]) -> list[str]:
    """Fuse neighbouring loops of a block that every access walks as one; returns what is left of `order`."""
    result = order[:1]
    for v in order[1:]:
        outer = result[-1]
        store = s.store(block)
        extent = s.extent_or_zero(v)
        strides = [(store_stride(s, store, outer), store_stride(s, store, v))]
        along = dict(load_strides(s, store, v))
        strides += [(c, along[x]) for x, c in load_strides(s, store, outer)]
        if extent and all(a is not None and b is not None and a == b * extent for a, b in strides):
            result[-1] = s.fuse(outer, v)
        else:
            result.append(v)
    return result


def inline_producers(s: Schedule, keep: Set[str] = frozenset()) -> None:
    """Inline every elementwise block whose result is temporary, except `keep`."""
    for name, stage in s.stages.items():
        if name in keep or stage.reduction or len(stage.targets) != 1 or stage.targets[0].init is not None:
            continue
        if stage.buffer not in s.temporaries:
            continue
        try:
            s.inline(name)
        except ScheduleError:
            continue


def seeks_place(s: Schedule, block: str) -> bool:
    """Whether a block looks for the place of an element: it takes in the numbers of its own reduction loop."""
    store = s.store(block)
    numbers = [x for t in store.targets for x in walk(t.value) if isinstance(x, Op) and x.op == "index_cast"]
    return any(variables(x) & set(store.reduction) for x in numbers)


def places_in_one_pass(s: Schedule, blocks: list[str]) -> list[str]:
    """Let blocks that look for the place of an extreme element do so while it is found (`Schedule.one_pass`); what is
    left of `blocks`, which stand in this order."""
    left = list(blocks)
    for extreme, place in pairwise(blocks):
        try:
            s.one_pass(extreme, place)
        except ScheduleError:
            continue
        left.remove(extreme)
    return left


def fuse_outer(s: Schedule, order: list[str]) -> str | None:
    """Fuse perfectly nested loops into one; returns it (None for no loops)."""
    if not order:
        return None
    fused = order[0]
    for v in order[1:]:
        fused = s.fuse(fused, v)
    return fused


__all__ = [
    "Const",
    "coefficient",
    "fuse_outer",
    "inline_producers",
    "load_strides",
    "merge_loops",
    "places_in_one_pass",
    "seeks_place",
    "store_stride",
]
