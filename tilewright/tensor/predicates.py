"""The predicates of comparisons, in the order of the numbers by which MLIR's ``arith`` dialect stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_mlir import ir

CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
CMPF = (
    "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true",
)  # fmt: skip


def with_predicate(op: ir.Operation, short: str) -> str:
    """The name of an ``arith`` operation in expressions: ``cmpi`` becomes ``cmpi.slt``, others stay what they are."""
    if short not in ("cmpi", "cmpf"):
        return short
    names = CMPI if short == "cmpi" else CMPF
    return f"{short}.{names[op.attributes['predicate'].value]}"
