"""The import functions of all families of operators: importing this registers them."""

from . import complex_numbers, contraction, control, elementwise, index, order, reduce, scatter, shape, windows
from .registry import names


def supported() -> list[str]:
    """All operators of StableHLO that are imported.

    >>> "dot_general" in supported()
    True
    """
    return names()


__all__ = [
    "complex_numbers", "contraction", "control", "elementwise", "index", "order", "reduce", "scatter", "shape",
    "supported", "windows",
]  # fmt: skip
