"""Rewrites the magic-number rounding ``x + m - m`` as a rounding function, for languages that allow fast-math
reassociation.

Some languages let compilers take it that ``x + m - m`` is x and that there is no infinity (WGSL does). There the
expansions of `tensor/mathlib`, which round so, need the operations.
"""

from __future__ import annotations

import math

from ...tensor.expr import Const, Expr, Op, rebuild, transform
from ...tensor.mathlib.build import MAGIC


def rounded(e: Expr) -> Expr:
    """``x + MAGIC - MAGIC`` as ``roundeven(x)``, and the bits of ``x + MAGIC`` as that integer; ``x * 0 + r``, which is
    NaN for infinity, as a choice.

    >>> from tilewright.tensor.expr import Var
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
        if isinstance(x, Op) and x.op == "fma" and x.args[1] == Const(0.0, "f32"):
            return Op("select", (Op("isfinite", x.args[:1], "i1"), x.args[2], Const(math.nan, "f32")), "f32")
        return x

    return transform(e, visit)


def _is_magic(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == MAGIC


def _without_magic(e: Expr) -> Expr | None:
    """What the magic number is added to; None if `e` is no such sum."""
    if not isinstance(e, Op) or e.op not in ("addf", "fma") or not _is_magic(e.args[-1]):
        return None
    return e.args[0] if e.op == "addf" else Op("mulf", e.args[:2], "f32")
