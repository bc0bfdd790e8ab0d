"""Math functions as expressions of machine operations, for float32 vectors.

`expand` is asked for every operation of MLIR's ``math`` dialect that an emitter meets. The polynomials are fitted by
``benchmarks/fit_polynomials.py``; ``benchmarks/math_accuracy.py`` measures the errors for ``docs/math_accuracy.md``.
The expansions are exact about order and rounding: they must not be compiled with reassociation ("fast math").
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.support.errors import CompileError
from tilewright.tensor.expr import Const, Expr, Op
from tilewright.tensor.mathlib import error_function, exponential, logarithm, power, tabled, trigonometric
from tilewright.tensor.mathlib.build import V

FUNCTIONS: dict[str, Callable[..., V]] = {
    f.__name__: f
    for f in (
        exponential.exp,
        exponential.exp2,
        exponential.expm1,
        exponential.sigmoid,
        exponential.tanh,
        exponential.sinh,
        exponential.cosh,
        logarithm.log,
        logarithm.log2,
        logarithm.log10,
        logarithm.log1p,
        logarithm.asinh,
        logarithm.acosh,
        logarithm.atanh,
        error_function.erf,
        trigonometric.sin,
        trigonometric.cos,
        trigonometric.tan,
        trigonometric.asin,
        trigonometric.acos,
        trigonometric.atan,
        trigonometric.atan2,
        power.powf,
        power.cbrt,
        power.rsqrt,
    )
}
#: those that have a shorter form on machines with `tables`
TABLED: dict[str, Callable[..., V]] = {f.__name__: f for f in (tabled.exp, tabled.tanh, tabled.erf)}
BINARY = frozenset(("atan2", "powf"))


def expand(op: str, args: tuple[Expr, ...], dtype: str, *, tables: bool = False) -> Expr | None:
    """``op(args)`` in machine operations, or None where the operation should stay as it is.

    Args:
        op: a mnemonic of MLIR's ``math`` dialect (``exp``, ``powf``, ...) or ``sigmoid``.
        args: one expression of `dtype`, two for ``atan2`` and ``powf``.
        dtype: ``f32``; ``f16`` and ``bf16`` are computed in f32 and rounded; any other dtype gives None.
        tables: whether ``pick`` from a table of sixteen numbers and ``scalef`` are machine operations.

    None means: a machine operation (``sqrt``, ``floor``, ``fma`` ...), an operation not known here, or f64, which
    goes to the C library. Raises CompileError for a wrong number of arguments.

    >>> from tilewright.tensor.expr import Var
    >>> str(expand("rsqrt", (Var("x", "f32"),), "f32"))
    '(1.0:f32 /. sqrt(x))'
    >>> expand("sqrt", (Var("x", "f32"),), "f32") is None
    True
    """
    if op not in FUNCTIONS or dtype not in ("f32", "f16", "bf16"):
        return None
    count = 2 if op in BINARY else 1
    if len(args) != count:
        raise CompileError(f"{op} takes {count} argument(s), not {len(args)}", stage="expand math")
    if dtype != "f32":
        wide = tuple(Op("extf", (a,), "f32") for a in args)
        return Op("truncf", (_expand(op, wide, tables),), dtype)
    return _expand(op, args, tables)


def _expand(op: str, args: tuple[Expr, ...], tables: bool) -> Expr:
    if op == "powf":
        exponent = args[1].args[0] if isinstance(args[1], Op) and args[1].op == "extf" else args[1]
        if isinstance(exponent, Const):
            short = power.powf_constant(V(args[0]), float(exponent.value))
            if short is not None:
                return short.e
    chosen = TABLED.get(op, FUNCTIONS[op]) if tables else FUNCTIONS[op]
    return chosen(*map(V, args)).e
