"""States that grow: a next value that is the old one with rows behind it, in a buffer that has room for the longest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import Type, type_of
from ..support.errors import UnsupportedError, UsageError
from ..support.sizes import Dim, current, is_open
from .specialize import update_signature


@dataclass(frozen=True)
class Reserved:
    """A state that grows along `axis`: from `before` rows, an open dimension, to `after`."""

    axis: int
    before: Dim
    after: int


def reserve_states(graph: Graph, states: Mapping[int, int]) -> dict[int, Reserved]:
    """Give states that grow their largest size; `states` are positions of inputs of @main -> those of the outputs that
    follow them. Returns those that grow, by position of the input. States whose size stays are left alone.

        func.func @main(%past: tensor<2xPASTx8xf32>, %new: tensor<2x1x8xf32>) -> tensor<2x(PAST + 1)x8xf32> {
          %0 = "tw.concat"(%past, %new) {axis = 1} : ...
          return %0
    ->  func.func @main(%past: tensor<2x1024x8xf32>, %new: tensor<2x1x8xf32>) -> tensor<2x1024x8xf32> {
          %0 = "tw.append"(%past, %new) {axis = 1, start = PAST} : ...
          return %0

    with ``tw.slice(%0)``, its first PAST + 1 rows, for all who read the old result. UnsupportedError for a state whose
    next value is anything else.
    """
    found, names = {}, [n for n, _ in graph.inputs()]
    with use():
        for i, o in states.items():
            returned = graph.block.operations[len(graph.block.operations) - 1].operands[o]
            argument, name = graph.block.arguments[i], names[i]
            before, after = type_of(argument), type_of(returned)
            if is_open(*before.dims, *after.dims):
                found[i] = _form(name, before, after)
                _check_end(name, argument, returned, found[i])
                _reserve(argument, returned, found[i])
        update_signature(graph)
    return found


def _form(name: str, before: Type, after: Type) -> Reserved:
    """How a state grows, by the types of its value and of the next."""
    known = current()
    assert known is not None
    sizes = {int(s): d for d, s in zip(known.dims, known.symbols, strict=True) if d.divisor == 1}
    axes = [i for i, d in enumerate(before.dims) if is_open(d)]
    same = before.dtype == after.dtype and before.rank == after.rank
    if not (same and len(axes) == 1 and before.dims[axes[0]] in sizes) or any(
        a != b for i, (a, b) in enumerate(zip(before.dims, after.dims, strict=True)) if i != axes[0]
    ):
        raise UnsupportedError(
            f"state {name!r} is {before} and becomes {after}: a state has known sizes, but for one dimension "
            "along which it grows",
            stage="import",
            hint="give the other dimensions (the batch too) sizes, and this one a range like past:0..1024",
        )
    dim = sizes[before.dims[axes[0]]]
    if dim.low:
        raise UsageError(
            f"state {name!r} is empty at first, and {dim} begins at {dim.low}",
            stage="import",
            hint=f"{dim.name}:0..{dim.high}",
        )
    return Reserved(axes[0], dim, after.dims[axes[0]])


def _check_end(name: str, argument: ir.Value, returned: ir.Value, r: Reserved) -> None:
    """UnsupportedError unless the next value is the old one with rows behind it."""
    op, rank = None if isinstance(returned.owner, ir.Block) else returned.owner.operation, type_of(argument).rank
    if (
        op is None
        or dialect.mnemonic(op) != "concat"
        or len(op.operands) != 2
        or op.operands[0] != argument
        or op.operands[1] == argument
        or dialect.attributes(op)["axis"] % rank != r.axis
    ):
        raise UnsupportedError(
            f"the next value of state {name!r} is not the old one with rows behind it along dimension {r.axis}",
            stage="import",
            hint="a Concat of the two, or a state of known size that is written at a position",
        )


def _reserve(argument: ir.Value, returned: ir.Value, r: Reserved) -> None:
    joined = returned.owner.operation
    old, new = type_of(argument), type_of(returned)
    dims = [r.before.high if i == r.axis else d for i, d in enumerate(old.dims)]
    argument.set_type(old.with_shape(dims).mlir())
    readers = [u.owner.operation for u in argument.uses]
    if any(op != joined for op in readers):
        with ir.InsertionPoint.at_block_begin(argument.owner):
            value = _first(argument, old)
        for op in readers:
            for i, operand in enumerate(op.operands):
                if op not in (joined, value.owner.operation) and operand == argument:
                    op.operands[i] = value
    with ir.InsertionPoint(joined):
        (full,) = dialect.create(
            "append", argument, joined.operands[1], axis=r.axis, start=old.dims[r.axis], location=joined.location
        )
        rows = _first(full, new)
    for use_ in list(returned.uses):
        op = use_.owner.operation
        for i, operand in enumerate(op.operands):
            if operand == returned:
                op.operands[i] = full if op.name == "func.return" else rows
    joined.erase()


def _first(x: ir.Value, t: Type) -> ir.Value:
    """As much from the beginning of x as a type has."""
    rank = len(t.dims)
    (made,) = dialect.create(
        "slice",
        x,
        starts=(0,) * rank,
        sizes=t.dims,
        steps=(1,) * rank,
        location=x.owner.location if not isinstance(x.owner, ir.Block) else ir.Location.name("state"),
    )
    return made


__all__ = ["Reserved", "reserve_states"]
