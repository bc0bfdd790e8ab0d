"""Matches loops that are a dp4a-like instruction: four byte products added to an i32 (loops with the note ``dot``, set
by `schedule.primitives.tensorize`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...schedule.nest import For, Nest, Store, walk_stmts
from ...tensor.expr import Load, Op, Target

NOTE = "dot"


@dataclass(frozen=True)
class Dot4:
    """The machine's instruction, what is stored, the sum before, and the bytes of both factors, each with a sign
    (``s``) or without (``u``)."""

    name: str
    target: Target
    acc: Load
    factors: tuple[Load, Load]
    signs: str


def byte_product(s: For) -> Dot4 | None:
    """What a loop with the note adds up; None for other loops, and for what is no product of bytes from memory."""
    name, store = s.note(NOTE), s.body
    if name is None or not isinstance(store, Store) or len(store.targets) != 1:
        return None
    (t,) = store.targets
    if not isinstance(t.value, Op) or t.value.op != "addi":
        return None
    acc, product = t.value.args
    if not isinstance(acc, Load):
        acc, product = product, acc
    if not isinstance(acc, Load) or not isinstance(product, Op) or product.op != "muli":
        return None
    found = [(e.args[0], e.op[3]) for e in product.args if isinstance(e, Op) and e.op in ("extsi", "extui")]
    match found:
        case [(Load() as a, x), (Load() as b, y)]:
            return Dot4(name, t, acc, (a, b), x + y)
    return None


def byte_products(nest: Nest) -> Iterator[tuple[For, Dot4]]:
    """All of a nest."""
    for s in walk_stmts(nest.body):
        if isinstance(s, For) and (found := byte_product(s)) is not None:
            yield s, found


__all__ = ["Dot4", "byte_product", "byte_products"]
