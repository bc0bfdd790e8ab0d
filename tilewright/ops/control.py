"""Control flow: operators with regions, whose blocks see the values around them and end in `tw.yield`.

Graphs with them are divided into parts that run as native programs (`graph/cut.py`), which the runtime calls. What a
region gives may have other sizes each time: such dimensions are open in the types of the results.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.errors import OpError

#: the types of a region's arguments, and of what it yields
Region = tuple[list[Type], list[Type]]


class IfOperator(Operator, name="if"):
    """What the first region yields if the condition holds, else what the second one does. One of them runs.

    Dimensions of a result that differ between the regions are open.
    """

    multiple, regions, groups = True, 2, 64

    @staticmethod
    def infer(condition):
        raise NotImplementedError("see `results`")

    @staticmethod
    def results(operands: Sequence[Type], regions: Sequence[Region]) -> list[Type]:
        _condition(operands[0])
        (arguments, yes), (others, no) = regions
        if arguments or others:
            raise OpError("its regions take no arguments")
        if len(yes) != len(no):
            raise OpError(f"its regions yield {len(yes)} and {len(no)} values")
        return [_joined(a, b) for a, b in zip(yes, no, strict=True)]


class LoopOperator(Operator, name="loop"):
    """While the condition holds, its region makes the next condition and state of the state; the state in the end.

    What the region yields may have other sizes than the state before it where the region's arguments leave them open.
    """

    multiple, regions, groups = True, 1, 64

    @staticmethod
    def infer(condition, *state):
        raise NotImplementedError("see `results`")

    @staticmethod
    def results(operands: Sequence[Type], regions: Sequence[Region]) -> list[Type]:
        (arguments, yielded), state = regions[0], operands[1:]
        if len(yielded) != len(state) + 1 or len(arguments) != len(state):
            raise OpError(f"of {len(state)} values its region takes {len(arguments)} and yields {len(yielded) - 1}")
        _condition(operands[0])
        _condition(yielded[0])
        for before, within, after in zip(state, arguments, yielded[1:], strict=True):
            if _joined(_joined(before, within), after) != within:
                raise OpError(f"state of type {before}, its region takes {within} and yields {after}")
        return list(arguments)


class YieldOperator(Operator, name="yield"):
    """What a region gives."""

    pure, groups = False, 64

    @staticmethod
    def infer(*values):
        return []


def _condition(t: Type) -> None:
    if t.dtype != "i1" or any(d not in (None, 1) for d in t.shape):
        raise OpError(f"the condition is {t}, it needs one element of i1")


def _joined(a: Type, b: Type) -> Type:
    """The type of a value that is of one or of the other type: sizes that differ are open."""
    if a.dtype != b.dtype or a.rank != b.rank:
        raise OpError(f"a value is {a} one time, {b} another time")
    return a.with_shape(tuple(d if d == e else None for d, e in zip(a.shape, b.shape, strict=True)))
