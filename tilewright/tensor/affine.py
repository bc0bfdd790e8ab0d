"""Evaluates MLIR affine expressions over any values that add and multiply: numbers, arrays, index expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_mlir import ir

from ..support.errors import CompileError


def affine(
    e: ir.AffineExpr, values: Sequence[Any] | Mapping[int, Any], constant: Callable[[int], Any] = lambda n: n
) -> Any:
    """The value of an affine expression for these values of its dimensions; `constant` makes a value of a number.
    CompileError for an operation that index arithmetic does not have (ceildiv)."""
    if isinstance(e, ir.AffineDimExpr):
        return values[e.position]
    if isinstance(e, ir.AffineConstantExpr):
        return constant(e.value)
    if isinstance(e, (ir.AffineAddExpr, ir.AffineMulExpr, ir.AffineFloorDivExpr, ir.AffineModExpr)):
        a, b = affine(e.lhs, values, constant), affine(e.rhs, values, constant)
        if isinstance(e, ir.AffineAddExpr):
            return a + b
        if isinstance(e, ir.AffineMulExpr):
            return a * b
        return a // b if isinstance(e, ir.AffineFloorDivExpr) else a % b
    raise CompileError(f"unsupported affine expression {e}")
