"""Functions of f32 as helpers in a dialect, written from the expansions that all targets share (`tensor/mathlib`).

So results do not depend on how a driver computes them, which WGSL leaves open.
"""

from __future__ import annotations

from dataclasses import replace

from ...support.errors import UnsupportedError
from ...tensor.expr import Var
from ...tensor.mathlib import BINARY, FUNCTIONS, expand
from .dialect import Dialect
from .expressions import ExprWriter
from .helpers import Helper
from .rounding import rounded


def with_functions(dialect: Dialect, head: str, parameter: str = "{type} {name}") -> Dialect:
    """The dialect with a helper for each function that can be written in it; `head` has `type`, `name` and `params`,
    each a `parameter`.

    Those are taken out of `Dialect.math`.
    """
    own = {}
    for name in FUNCTIONS:
        if (made := _helper(name, dialect, head, parameter)) is not None:
            own[f"{name}_f32"] = made
    math = {n: m for n, m in dialect.math.items() if f"{n}_f32" not in own}
    others = {n: h for n, h in dialect.helpers.items() if n not in own}  # which functions call: they come first
    return replace(dialect, math=math, helpers={**others, **own})


def _helper(name: str, dialect: Dialect, head: str, parameter: str) -> Helper | None:
    """One function; None if the dialect lacks what it needs."""
    params = ("x", "y") if name in BINARY else ("x",)
    writer = ExprWriter({}, name, dialect)
    writer.loops = {p: p for p in params}
    expression = expand(name, tuple(Var(p, "f32") for p in params), "f32")
    assert expression is not None
    try:
        text = writer.statement_expr(rounded(expression))
    except UnsupportedError:
        return None
    kind = dialect.types["f32"]
    given = ", ".join(parameter.format(name=p, type=kind) for p in params)
    lines = [head.format(name=f"tw_{name}_f32", params=given, type=kind)]
    body = "\n".join([*lines, *writer.lines, f"    return {text};", "}", ""])
    return Helper(body, needs=tuple(sorted(writer.helpers)))
