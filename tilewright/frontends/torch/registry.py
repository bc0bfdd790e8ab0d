"""Which function imports which overload of ATen, and which overloads NumPy and SciPy compute on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_ON_HOST: dict[str, Callable[..., Any]] = {}


def aten(*overloads: str) -> Callable[[F], F]:
    """Register an import function ``f(n, *arguments)`` for overloads of ATen: ``"add.Tensor"``, or ``"relu"`` for
    ``relu.default``.

    `n` is the `FxNode` being imported; arguments come as in the overload's schema: `FxTensor`s, lists of them, numbers,
    None. It returns the result, or a list of results. An overload that has complex operands or results is looked up as
    ``"complex.add.Tensor"``; complex tensors have one more dimension, of the real and the imaginary part.

        @aten("relu")
        def relu(n, x):
            return n("relu", x)
    """
    return _registrar(_FUNCTIONS, overloads)


def on_host(*overloads: str) -> Callable[[F], F]:
    """Register a function ``f(*arguments)`` that computes overloads of ATen between the native parts of a program:
    arguments as in the schema, with arrays (complex ones too) for tensors. It returns an array, or a list of them.

        @on_host("linalg_matrix_exp")
        def matrix_exp(x):
            return scipy.linalg.expm(x)
    """
    return _registrar(_ON_HOST, overloads)


def _registrar(table: dict[str, Callable[..., Any]], overloads: tuple[str, ...]) -> Callable[[F], F]:
    def register(f: F) -> F:
        for name in overloads:
            if name in _FUNCTIONS or name in _ON_HOST:
                raise TypeError(f"two functions for {name}")
            table[name] = f
        return f

    return register


def find(overload: str) -> Callable[..., Any] | None:
    """The import function of an overload, None if there is none."""
    return _FUNCTIONS.get(overload)


def find_on_host(overload: str) -> Callable[..., Any] | None:
    """The function that computes an overload on the host, None if there is none."""
    return _ON_HOST.get(overload)


def supported() -> list[str]:
    """All overloads that are imported or computed on the host.

    >>> "add.Tensor" in supported()
    True
    """
    return sorted({*_FUNCTIONS, *_ON_HOST})
