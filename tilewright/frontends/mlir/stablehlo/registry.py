"""Which function imports which operator of StableHLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_COMPLEX: dict[str, Callable[..., Any]] = {}
_BY_PARTS: set[str] = set()
_ELEMENTWISE: set[str] = set()


def hlo(*names: str, by_parts: bool = False, elementwise: bool = False) -> Callable[[F], F]:
    """Register an import function ``f(n, *operands)`` for operators of StableHLO, by their names without the dialect;
    ``"chlo.erf"`` is a composite operator.

    `n` is the `HloOp` being imported, operands are `HloTensor`s. It returns the result, or a list of results.
    `by_parts`: of complex tensors it computes the real and the imaginary part, each on its own.
    `elementwise`: it may stand in the body of a reduction or a comparison, where operands are tensors of any shape
    in place of numbers.

        @hlo("exponential", elementwise=True)
        def exponential(n, x):
            return n("exp", x)
    """

    def register(f: F) -> F:
        for name in names:
            if name in _FUNCTIONS:
                raise TypeError(f"two functions for {name}")
            _FUNCTIONS[name] = f
            _BY_PARTS.update([name] if by_parts else [])
            _ELEMENTWISE.update([name] if elementwise else [])
        return f

    return register


def complex_hlo(*names: str) -> Callable[[F], F]:
    """Register an import function for operators with complex operands or results, which are `Complex`."""

    def register(f: F) -> F:
        for name in names:
            if name in _COMPLEX:
                raise TypeError(f"two functions for complex {name}")
            _COMPLEX[name] = f
        return f

    return register


def find(name: str) -> Callable[..., Any] | None:
    """The import function of an operator, None if there is none."""
    return _FUNCTIONS.get(name)


def find_complex(name: str) -> Callable[..., Any] | None:
    """That for complex tensors, None if there is none."""
    return _COMPLEX.get(name)


def is_by_parts(name: str) -> bool:
    """Whether an operator treats real and imaginary parts alike."""
    return name in _BY_PARTS


def is_elementwise(name: str) -> bool:
    """Whether an operator may stand in a body that is computed for many elements at once."""
    return name in _ELEMENTWISE


def names() -> list[str]:
    """All operators for which a function is registered."""
    return sorted({*_FUNCTIONS, *_COMPLEX})
