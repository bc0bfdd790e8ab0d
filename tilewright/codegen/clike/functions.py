"""Functions of f32 as helpers in a dialect, written from the expansions that all targets share (`tensor/mathlib`).

So results do not depend on how a driver computes them, which WGSL leaves open. WGSL also lets drivers take it that
``x + m - m`` is x, so what rounds by adding a large number rounds by its own operation.
"""

from __future__ import annotations

from dataclasses import replace

from ...support.errors import UnsupportedError
from ...tensor.expr import Const, Expr, Op, Var, rebuild, transform
from ...tensor.mathlib import BINARY, FUNCTIONS, expand
from ...tensor.mathlib.build import MAGIC
from .dialect import Dialect
from .expressions import ExprWriter
from .helpers import Helper


def with_functions(dialect: Dialect, head: str) -> Dialect:
    """The dialect with a helper for each function that can be written in it; `head` has `name` and `params`.

    Those are taken out of `Dialect.math`.
    """
    own = {}
    for name in FUNCTIONS:
        if (made := _helper(name, dialect, head)) is not None:
            own[f"{name}_f32"] = made
    math = {n: m for n, m in dialect.math.items() if f"{n}_f32" not in own}
    return replace(dialect, math=math, helpers={**dialect.helpers, **own})


def _helper(name: str, dialect: Dialect, head: str) -> Helper | None:
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
    lines = [head.format(name=f"tw_{name}_f32", params=", ".join(f"{p}: {kind}" for p in params), type=kind)]
    body = "\n".join([*lines, *writer.lines, f"    return {text};", "}", ""])
    return Helper(body, needs=tuple(sorted(writer.helpers)))


def rounded(e: Expr) -> Expr:
    """``x + MAGIC - MAGIC`` as ``roundeven(x)``, and the bits of ``x + MAGIC`` as that integer.

    >>> from tilewright.tensor.mathlib.build import V, nearest
    >>> k, bits = nearest(V(Var("x", "f32")) + MAGIC)
    >>> str(rounded(k.e)), str(rounded(bits.e))
    ('roundeven(x)', 'fptosi(roundeven(x)):i32')
    """

    def visit(x: Expr, args: tuple[Expr, ...]) -> Expr:
        x = rebuild(x, args)
        if isinstance(x, Op) and (x.op == "subf" or (x.op, x.dtype) == ("bitcast", "i32")):
            whole = _without_magic(x.args[0])
            if whole is not None and (x.op == "bitcast" or _is_magic(x.args[1])):
                whole = Op("roundeven", (whole,), "f32")
                return whole if x.op == "subf" else Op("fptosi", (whole,), "i32")
        return x

    return transform(e, visit)


def _is_magic(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == MAGIC


def _without_magic(e: Expr) -> Expr | None:
    """What the magic number is added to; None if `e` is no such sum."""
    if not isinstance(e, Op) or e.op not in ("addf", "fma") or not _is_magic(e.args[-1]):
        return None
    return e.args[0] if e.op == "addf" else Op("mulf", e.args[:2], "f32")
