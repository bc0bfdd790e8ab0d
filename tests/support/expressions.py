"""Expressions of all operations over f32 buffers ``a``, ``b`` and i32 buffers ``p``, ``q``, and values for these."""

import numpy as np

from tilewright.schedule.nest import Nest, loop, store
from tilewright.tensor.evaluate import evaluate
from tilewright.tensor.expr import Buffer, Const, Expr, Load, Op, Var

X, Y = Load("a", (Var("i"),), "f32"), Load("b", (Var("i"),), "f32")
P, Q = Load("p", (Var("i"),), "i32"), Load("q", (Var("i"),), "i32")


FLOAT_PAIRS = (
    "addf",
    "subf",
    "mulf",
    "divf",
    "maximumf",
    "minimumf",
    "maxnumf",
    "minnumf",
    "powf",
    "atan2",
    "copysign",
)
ROUNDINGS = ("negf", "absf", "sqrt", "floor", "ceil", "round", "trunc", "roundeven", "rsqrt")
FUNCTIONS = ("exp", "log", "log1p", "erf", "tanh", "sin", "sigmoid")
ORDERS = ("oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno")
ARITHMETIC = ("addi", "subi", "muli", "divsi", "remsi", "floordivsi", "ceildivsi", "divui", "remui")
BITS = ("mulhsi", "shli", "shrsi", "shrui", "andi", "ori", "xori", "maxsi", "minsi", "maxui", "minui")
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def floats(op, *args):
    return Op(op, args, "f32")


EXPRESSIONS = [
    *[floats(n, X, Y) for n in FLOAT_PAIRS],
    *[floats(n, X) for n in (*ROUNDINGS, *FUNCTIONS)],
    *[floats("select", Op(f"cmpf.{p}", (X, Y), "i1"), X, Y) for p in ORDERS],
    *[floats("sitofp", Op(n, (P, Q), "i32")) for n in (*ARITHMETIC, *BITS)],
    *[floats("uitofp", Op(f"cmpi.{p}", (P, Q), "i1")) for p in PREDICATES],
    *[floats("sitofp", Op("fptosi", (X,), d)) for d in ("i8", "i16", "i32")],
    *[floats("sitofp", Op("extsi", (Op("trunci", (P,), d),), "i32")) for d in ("i8", "i16")],
    floats("sitofp", Op("extui", (Op("trunci", (P,), "i8"),), "i32")),
    floats("bitcast", Op("addi", (Op("bitcast", (X,), "i32"), Const(3, "i32")), "i32")),
    floats("guard", Op("cmpf.olt", (X, Y), "i1"), floats("exp", floats("addf", X, X)), Const(float("-inf"), "f32")),
    floats("addf", floats("addf", X, Y), floats("mulf", floats("addf", X, Y), Const(-0.1, "f32"))),
]


def as_select(e):
    """`guard` reads lazily; for values it is a select, which the evaluator knows."""
    return Op("select", e.args, e.dtype) if isinstance(e, Op) and e.op == "guard" else e


SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, 0.5, np.inf, -np.inf, np.nan, 1e-40, 3e9, -3e9, 127.6, -128.7, 1e10], "f4")
WILD = np.array([0, 1, -1, 2, -2, 31, 32, 33, 127, 128, -129, 2**31 - 1, -(2**31), 65535], np.int32)


def values() -> dict[str, np.ndarray]:
    """All pairs of special numbers."""
    pairs = [m.reshape(-1) for x in (SPECIAL, WILD) for m in np.meshgrid(x, x)]
    return dict(zip("abpq", pairs, strict=True))


def nest_of(e: Expr, name: str, kind: str = "serial") -> Nest:
    """``y[i] = e`` for all pairs."""
    n = SPECIAL.size**2
    params = [Buffer(b, (n,), "f32" if b in "ab" else "i32") for b in "abpq"]
    body = loop("i", n, store("y", [Var("i")], e), kind)
    return Nest(name, (*params, Buffer("y", (n,), "f32")), ("y",), body)


def meaning(e: Expr, env: dict[str, np.ndarray]) -> np.ndarray:
    """What the evaluator says."""
    return evaluate(as_select(e), {"i": np.arange(env["a"].size)}, lambda buffer, index, dtype: env[buffer][index[0]])
