"""Which function imports which overload of ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def aten(*overloads: str) -> Callable[[Callable], Callable]:
    """Register an import function ``f(n, *arguments)`` for overloads of ATen: ``"add.Tensor"``, or ``"relu"`` for
    ``relu.default``.

    `n` is the `Node` being imported; arguments come as in the overload's schema: `Tensor`s, lists of them, numbers,
    None. It returns the result, or a list of results.

        @aten("relu")
        def relu(n, x):
            return n("relu", x)
    """

    def register(f: Callable) -> Callable:
        for name in overloads:
            if name in _FUNCTIONS:
                raise TypeError(f"two import functions for {name}")
            _FUNCTIONS[name] = f
        return f

    return register


def find(overload: str) -> Callable[..., Any] | None:
    """The import function of an overload, None if there is none."""
    return _FUNCTIONS.get(overload)


def supported() -> list[str]:
    """All overloads that are imported.

    >>> "add.Tensor" in supported()
    True
    """
    return sorted(_FUNCTIONS)
