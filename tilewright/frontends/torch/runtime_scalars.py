"""Scalars computed at run time from symbolic sizes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from .node import FxNode, NotImported, RunTimeNumber

_OPERATORS: dict[Any, str] = {
    operator.truediv: "div", operator.mul: "mul", operator.add: "add", operator.sub: "sub", operator.neg: "neg",
    operator.pow: "pow", torch.sym_max: "max", torch.sym_min: "min", torch.sym_sqrt: "sqrt",
}  # fmt: skip


def float_of(n: FxNode, target: Any, args: Sequence[Any]) -> RunTimeNumber:
    """What Python computes of sizes and floats, in f64 as Python does; NotImported for other functions."""
    numbers = [n.tensor(x, "f64") for x in args]
    if target is torch.sym_float:
        return RunTimeNumber(numbers[0].ssa, numbers[0].type)
    if target not in _OPERATORS:
        raise NotImported("a float that is computed from sizes")
    made = n(_OPERATORS[target], *numbers)
    return RunTimeNumber(made.ssa, made.type)


__all__ = ["float_of"]
