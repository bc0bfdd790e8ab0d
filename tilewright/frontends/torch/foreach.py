"""Operators on lists of tensors (`torch._foreach_add` and others that optimizers use), as operators on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: functions that are not called as the operators are, or take no numbers
_OTHERS: dict[str, Callable[..., Any]] = {
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "copy": lambda x, y, non_blocking=False: y.to(x.dtype).expand_as(x).clone(),
    "zero": torch.zeros_like,
}


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions by overload: of all operators on lists that write to none of their arguments."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        short, _, overload = name.removeprefix("aten::_foreach_").partition(".")
        one = _OTHERS.get(short, getattr(torch, short, None))
        if not name.startswith("aten::_foreach_") or one is None or short.endswith("_") or "out" in overload:
            continue
        if overload == "Tensor" and short.startswith("addc"):  # a tensor with a number for each
            continue
        table[getattr(getattr(torch.ops.aten, f"_foreach_{short}"), overload or "default")] = _each(one)
    return table


def _each(one: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function of tensors and numbers as one of lists, and of what is the same for all elements of them."""

    def run(*args: object, **named: object) -> list[Any]:
        count = next(len(a) for a in args if isinstance(a, (list, tuple)))

        def at(x: Any, i: int) -> Any:
            return x[i] if isinstance(x, (list, tuple)) else x

        return [one(*[at(a, i) for a in args], **{k: at(v, i) for k, v in named.items()}) for i in range(count)]

    return run


__all__ = ["foreach_decompositions"]
