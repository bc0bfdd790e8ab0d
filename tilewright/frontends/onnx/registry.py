"""Which function imports which ONNX operator, from which opset version on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS: dict[tuple[str, str], dict[int, Callable[..., Any]]] = {}


def onnx_op(*names: str, since: int, domain: str = "") -> Callable[[F], F]:
    """Register an import function ``f(n, *inputs)`` for operators of these names from opset `since` on.

    `n` is the `OnnxNode` being imported (attributes, `n("add", x, y)` to emit operators); inputs are `OnnxValue`s, None
    for absent optional ones, lists for sequences. It returns the outputs: an OnnxValue, or a list of them.

        @onnx_op("Softmax", since=13)
        def softmax(n, x):
            return n("softmax", x, axis=n.attr("axis", -1))
    """

    def register(f: F) -> F:
        for name in names:
            versions = _FUNCTIONS.setdefault((domain, name), {})
            if since in versions:
                raise TypeError(f"two import functions for {name} since {since}")
            versions[since] = f
        return f

    return register


def find(domain: str, name: str, opset: int) -> Callable[..., Any] | None:
    """The import function of the newest version not newer than `opset`, None if there is none."""
    versions = _FUNCTIONS.get((domain, name), {})
    usable = [v for v in versions if v <= opset]
    return versions[max(usable)] if usable else None


def oldest(domain: str, name: str) -> int | None:
    """The first opset version of an operator that can be imported, None if no version can."""
    return min(_FUNCTIONS.get((domain, name), {}), default=None)


def supported() -> dict[str, list[int]]:
    """Every operator with an import function: name (with its domain, if it has one) -> first opset of each version.

    >>> supported()["Softmax"]
    [1, 13]
    """
    return {f"{d}.{n}" if d else n: sorted(v) for (d, n), v in sorted(_FUNCTIONS.items())}


def all_ours() -> bool:
    """Whether every import function is of this package."""
    ours = __name__.partition(".")[0] + "."
    return all(f.__module__.startswith(ours) for versions in _FUNCTIONS.values() for f in versions.values())
