"""Math functions as helper functions in a C-like language, printed from the polynomials that all targets share
(`tensor/mathlib`).

So results do not depend on how a driver computes them, which WGSL leaves open; of f64 it has none.
"""

from __future__ import annotations

from dataclasses import replace

from ...support.errors import UnsupportedError
from ...tensor.expr import Var
from ...tensor.mathlib import BINARY, FUNCTIONS, expand
from ...tensor.mathlib.double import expand_f64
from .dialect import Dialect
from .expressions import ExprWriter
from .helpers import Helper
from .rounding import rounded


def with_functions(dialect: Dialect, head: str, parameter: str = "{type} {name}", doubles: bool = False) -> Dialect:
    """The dialect with a helper for each function that can be written in it, those of f64 too if `doubles` says so;
    `head` has `type`, `name` and `params`, each a `parameter`.

    Those are taken out of `Dialect.math`.
    """
    own = {}
    for dtype in ("f32", "f64") if doubles else ("f32",):
        for name in FUNCTIONS:
            if (made := _helper(name, dtype, dialect, head, parameter)) is not None:
                own[f"{name}_{dtype}"] = made
    math = {n: m for n, m in dialect.math.items() if f"{n}_f32" not in own}
    others = {n: h for n, h in dialect.helpers.items() if n not in own}  # which functions call: they come first
    return replace(dialect, math=math, helpers={**others, **own})


def _helper(name: str, dtype: str, dialect: Dialect, head: str, parameter: str) -> Helper | None:
    """One function; None if the dialect lacks what it needs."""
    params = ("x", "y") if name in BINARY else ("x",)
    writer = ExprWriter({}, name, dialect)
    writer.loops = {p: p for p in params}
    args = tuple(Var(p, dtype) for p in params)
    expression = expand_f64(name, args) if dtype == "f64" else expand(name, args, dtype)
    assert expression is not None
    try:
        text = writer.statement_expr(rounded(expression))
    except UnsupportedError:
        return None
    kind = dialect.types[dtype]
    given = ", ".join(parameter.format(name=p, type=kind) for p in params)
    lines = [head.format(name=f"tw_{name}_{dtype}", params=given, type=kind)]
    body = "\n".join([*lines, *writer.lines, f"    return {text};", "}", ""])
    return Helper(body, needs=tuple(sorted(writer.helpers)))
