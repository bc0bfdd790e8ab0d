"""Formulas of sizes as text, which a package holds and a run evaluates: ``768*batch*seq``, ``((seq + 7)//8)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from .errors import UsageError
from .sizes import Size, current

_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.Constant, ast.Call),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.USub),
)
_FUNCTIONS = {"min": min, "max": max}
#: a formula of a model is short; one of a damaged file may be anything
_LONGEST = 4000


@lru_cache(maxsize=256)
def function(formulas: tuple[str | int, ...], names: tuple[str, ...]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """The values of formulas as a function of the sizes by name. ValueError for what is no formula of these names.

    >>> function(("2*n", 3, "min(n, 8)//3"), ("n",))({"n": 10})
    (20, 3, 2)
    """
    trees = [_checked(str(f), names) for f in formulas]
    tree = ast.Expression(ast.Tuple([t.body for t in trees], ast.Load()))
    ast.fix_missing_locations(tree)
    code = compile(tree, "<sizes>", "eval")

    def values(sizes: Mapping[str, int]) -> tuple[int, ...]:
        found: tuple[int, ...] = eval(code, {"__builtins__": {}, **_FUNCTIONS}, dict(sizes))
        return found

    return values


def _checked(text: str, names: tuple[str, ...]) -> ast.Expression:
    """One formula, read; ValueError if it is none."""
    if len(text) > _LONGEST:
        raise ValueError("a formula of sizes is too long")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text[:80]!r} is no formula of sizes") from None
    for node in ast.walk(tree):
        known = isinstance(node, _ALLOWED)
        if isinstance(node, ast.Name):
            known = node.id in names or node.id in _FUNCTIONS
        elif isinstance(node, ast.Constant):
            known = type(node.value) is int
        elif isinstance(node, ast.Call):
            named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
            known = named and len(node.args) == 2 and not node.keywords
        if not known:
            raise ValueError(f"{text[:80]!r} is no formula of {', '.join(names)}")
    return tree


def evaluate(formulas: Sequence[str | int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The values of formulas for these sizes.

    >>> evaluate(("batch*seq", 12), {"batch": 2, "seq": 5})
    (10, 12)
    """
    return function(tuple(formulas), tuple(sizes))(sizes)


def formula(x: Any) -> str | int:
    """A size as text, an integer as it is."""
    return str(x) if isinstance(x, Size) else int(x)


def derived(text: str, where: str) -> int:
    """The size that a formula of open dimensions is in this compilation: ``past + seq``, as a mask of all positions has
    it. UsageError for another text."""
    known = current()
    names = [d.name for d in known.dims] if known else []
    try:
        (size,) = evaluate((text,), dict(zip(names, known.symbols if known else (), strict=True)))
    except ValueError:
        raise UsageError(
            f"{where}: {text!r} is no formula of open dimensions",
            stage="import",
            hint="a dimension is a size, a range like seq:1..512, or a formula like past+seq of such dimensions: "
            f"{', '.join(names) or 'none here'}",
        ) from None
    return size
