"""Sorting by any comparison."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo

from .elementwise import total_order
from .node import HloEmitter, HloOp, real
from .registry import hlo
from .values import HloTensor

#: comparisons that are no order of one operand after the other compare all pairs, along axes up to this size
MOST_PAIRS = 4096


@dataclass(frozen=True)
class SortKey:
    """An operand that is compared: its number, whether larger ones come first, whether -0 comes before 0 and every NaN
    has its place by its bits."""

    operand: int
    descending: bool
    total: bool


@hlo("sort")
def sort(n: HloOp, *xs: HloTensor) -> list[HloTensor]:
    axis, block = n.number("dimension"), n.block()
    xs = tuple(real(x) for x in xs)
    size = xs[0].shape[axis]
    if size <= 1 or 0 in xs[0].shape:
        return list(xs)
    keys = keys_of(block)
    if keys is None:
        places = _by_pairs(n, xs, axis, block)
        return [n("gather_elements", x, places, axis=axis) for x in xs]
    if len(xs) == 1 and not keys[0].total and xs[0].dtype != "i1":
        return [n("top_k", xs[0], k=size, axis=axis, largest=keys[0].descending)[0]]
    order: HloTensor | None = None
    for key in reversed(keys):  # stable sorts, the least important one first
        x = xs[key.operand]
        x = n.cast(x, "ui8") if x.dtype == "i1" else x
        x = total_order(n, x) if key.total and x.is_float else x
        x = x if order is None else n("gather_elements", x, order, axis=axis)
        found = n("top_k", x, k=size, axis=axis, largest=key.descending)[1]
        order = found if order is None else n("gather_elements", order, found, axis=axis)
    return [n("gather_elements", x, order, axis=axis) for x in xs]


def _by_pairs(n: HloOp, xs: tuple[HloTensor, ...], axis: int, block: ir.Block) -> HloTensor:
    """Positions in the order that a comparison gives: each element counts how many come before it."""
    size = xs[0].shape[axis]
    n.need(size <= MOST_PAIRS, f"of {size} elements by a comparison that is no plain order")
    given = []
    for x in xs:
        given += [n.unsqueeze(x, axis + 1), n.unsqueeze(x, axis)]
    (before,) = n.importer.lifted(block, given)  # element i of the axis before element j of the next one
    shape = [*xs[0].shape[: axis + 1], size, *xs[0].shape[axis + 1 :]]
    before = n.expand(before, shape)
    turned = n.transpose(before, [*range(axis), axis + 1, axis, *range(axis + 2, len(shape))])
    place, ones = n.places(size), [1] * len(shape)
    first = n("less", n.reshape(place, [*ones[:axis], size, 1, *ones[axis + 2 :]]),
              n.reshape(place, [*ones[:axis], 1, size, *ones[axis + 2 :]]))  # fmt: skip
    ahead = n("or", before, n("and", n("not", turned), first))
    count = n("reduce_sum", n.cast(ahead, "i32"), axes=(axis,))
    found: HloTensor = n("top_k", count, k=size, axis=axis, largest=False)[1]
    return found


@hlo("chlo.top_k")
def top_k(n: HloOp, x: HloTensor) -> list[HloTensor]:
    """The largest elements along the last axis, and their places; of equal ones the first, NaN before all numbers."""
    k = n.types[0].dims[-1]
    values, places = n("top_k", x, k=k, axis=x.rank - 1, largest=True)
    return [values, n.cast(places, n.types[1].dtype)]


# ---- comparisons that are orders -----------------------------------------------------------------------------------


def keys_of(block: ir.Block) -> list[SortKey] | None:
    """The operands that a comparison looks at, one after the other; None if it is another comparison.

    JAX writes ``a0 < b0``, and ``a0 < b0 or (a0 == b0 and (a1 < b1 or ...))`` for several keys; with floats that are
    compared in total order after -0 became 0 and every NaN the same one.
    """
    (end,) = [op.operation for op in block.operations if op.operation.name == "stablehlo.return"]
    return _keys(block, end.operands[0])


def _keys(block: ir.Block, value: ir.Value) -> list[SortKey] | None:
    op = _owner(value)
    if op is None:
        return None
    if op.name == "stablehlo.compare":
        key = _key(block, op, ("LT", "GT"))
        return None if key is None else [key]
    if op.name != "stablehlo.or":
        return None
    for less, rest in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        both = _owner(rest)
        first = _keys(block, less)
        if first is None or len(first) != 1 or both is None or both.name != "stablehlo.and":
            continue
        for same, more in ((both.operands[0], both.operands[1]), (both.operands[1], both.operands[0])):
            equal = _owner(same)
            if equal is None or equal.name != "stablehlo.compare":
                continue
            key = _key(block, equal, ("EQ",))
            later = _keys(block, more)
            fits = key is not None and key.operand == first[0].operand and key.total == first[0].total
            if fits and later is not None:
                return [*first, *later]
    return None


def _key(block: ir.Block, op: ir.Operation, directions: tuple[str, ...]) -> SortKey | None:
    direction = _stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    sides = [_plain(v) for v in op.operands]
    arguments = [list(block.arguments).index(v) if v in list(block.arguments) else -1 for v, _ in sides]
    if direction not in directions or arguments[0] < 0 or arguments[0] // 2 != arguments[1] // 2:
        return None
    if arguments[0] == arguments[1] or sides[0][1] != sides[1][1]:
        return None
    turned = arguments[0] > arguments[1]
    element = str(ir.RankedTensorType(op.operands[0].type).element_type)
    ordered = "compare_type" in op.attributes and (
        _stablehlo.ComparisonTypeAttr(op.attributes["compare_type"]).value == "TOTALORDER"
    )
    is_float = element in ("f64", "f32", "f16", "bf16")
    if is_float and not ordered:
        return None  # NaN is neither before nor after a number
    return SortKey(arguments[0] // 2, (direction == "GT") != turned, is_float and not sides[0][1])


def _plain(value: ir.Value) -> tuple[ir.Value, bool]:
    """An argument behind ``select(x != x, NaN, select(x == 0, 0, x))``, and whether that is there."""
    outer = _owner(value)
    if outer is None or outer.name != "stablehlo.select" or not _is_constant(outer.operands[1], "nan"):
        return value, False
    inner = _owner(outer.operands[2])
    if inner is None or inner.name != "stablehlo.select" or not _is_constant(inner.operands[1], "zero"):
        return value, False
    x = inner.operands[2]
    if _compares(outer.operands[0], "NE", x, x) and _compares(inner.operands[0], "EQ", x, inner.operands[1]):
        return x, True
    return value, False


def _compares(value: ir.Value, direction: str, x: ir.Value, y: ir.Value) -> bool:
    op = _owner(value)
    if op is None or op.name != "stablehlo.compare" or op.operands[0] != x:
        return False
    own = _stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    return bool(own == direction and (op.operands[1] == y or _is_constant(op.operands[1], "zero")))


def _is_constant(value: ir.Value, what: str) -> bool:
    op = _owner(value)
    if op is None or op.name != "stablehlo.constant":
        return False
    elements = ir.DenseElementsAttr(op.attributes["value"])
    number = elements.get_splat_value().value if elements.is_splat else None
    if number is None:
        return False
    return bool(number != number) if what == "nan" else bool(number == 0)


def _owner(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner


__all__ = ["HloEmitter", "SortKey", "keys_of", "sort"]
