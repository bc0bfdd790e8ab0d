"""Control flow of graphs that are being imported: loops and branches with regions (`ops/control.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_mlir import ir

from ..ir.graph_builder import Maker
from ..ir.types import type_of

Values = Sequence[ir.Value]


class NotMade(Exception):
    """What is in a region cannot be imported; the importer has the reasons."""


def loop(
    make: Maker, going: ir.Value, state: Values, step: Callable[[Values], Values], place: str = ""
) -> list[ir.Value]:
    """The state after a loop; `step` appends to its region, and gives the next condition and state."""
    order = _by_type(state)
    with make.region([type_of(state[i]) for i in order]) as block:
        again, *made = step(_back(order, list(block.arguments)))
        make("yield", again, *[made[i] for i in order])
    return _back(order, make("loop", going, *[state[i] for i in order], place=place, regions=[block]))


def either(
    make: Maker,
    condition: Callable[[], ir.Value],
    branches: Sequence[Callable[[], Any]],
    values: Callable[[Any], Values],
    place: str = "",
) -> tuple[list[Any], list[ir.Value] | None]:
    """What two branches give, both computed; if one of them has control flow of its own, also what the one gives that
    runs. `values`: the values of what a branch gives; `condition` is asked behind the branches."""
    before, blocks, given = make.controls, [], []
    for branch in branches:
        with make.region() as block:
            given.append(branch())
        blocks.append(block)
    if make.controls == before:
        for block in blocks:
            make.inline(block)
        return given, None
    order: list[int] = []
    for block, results in zip(blocks, given, strict=True):
        with make.within(block):
            found = values(results)
            order = order or _by_type(found)
            make("yield", *[found[i] for i in order])
    return given, _back(order, make("if", condition(), place=place, regions=blocks))


def _by_type(values: Values) -> list[int]:
    """The order in which those of one type stand together, for an operator has room for few changes of type."""
    return sorted(range(len(values)), key=lambda i: str(values[i].type))


def _back(order: Sequence[int], values: Values) -> list[ir.Value]:
    """Values in this order as they were."""
    found = dict(zip(order, values, strict=True))
    return [found[i] for i in range(len(order))]


__all__ = ["NotMade", "either", "loop"]
