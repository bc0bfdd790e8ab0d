"""Dialect table of C99, which the C target writes for any compiler.

Its types are derived from the table (`support.dtypes`), for what C99 has a type of. Kernels have signless integers and
``index``, headers have the types of inputs and outputs. C99 has no halves and no sub-byte types: a kernel that needs
one is refused where its C is written.
"""

from __future__ import annotations

from ...support.dtypes import LOOP_TYPES, TYPES, ElementType
from .dialect import Dialect
from .helpers import HELPERS

_FLOATS = {"f32": "float", "f64": "double"}


def _c_name(t: ElementType) -> str | None:
    if t.computed or t.kind == "float":
        return _FLOATS.get(t.name)
    if t.kind == "bool":
        return "uint8_t"
    if t.kind == "index":
        return "int32_t"  # what a microcontroller computes with
    return f"{'u' if t.kind == 'uint' else ''}int{t.bits}_t"


#: types of what kernels compute
C_TYPES = {t.name: c for t in LOOP_TYPES.values() if (c := _c_name(t)) is not None}
#: types of their integers when bits are to wrap
UNSIGNED = {n: c if c.startswith("u") else f"u{c}" for n, c in C_TYPES.items() if n not in _FLOATS}
#: types of inputs and outputs
HEADER_TYPES = {t.name: c for t in TYPES.values() if (c := _c_name(t)) is not None}

#: functions of math.h by operation; those of f32 end in f
MATH = {
    **{n: n for n in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos")},
    **{n: n for n in ("atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "cbrt", "sqrt")},
    **{n: n for n in ("floor", "ceil", "round", "trunc", "fma", "copysign")},
    "absf": "fabs",
    "roundeven": "rint",
    "powf": "pow",
    "remf": "fmod",
}
_KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
"""
KEYWORDS = frozenset((*_KEYWORDS.split(), "scratch"))

C99 = Dialect(
    "C99",
    types=C_TYPES,
    unsigned=UNSIGNED,
    parameters=tuple(C_TYPES),
    literals={"f32": "{}f", "f64": "{}", "i64": "{}ll", "ui32": "{}u", "ui64": "{}ull"},
    smallest={"i32": "INT32_MIN", "i64": "INT64_MIN"},
    math=MATH,
    suffix={"f32": "f"},
    helpers=HELPERS,
    size="int32_t {name}",
    reserved=KEYWORDS,
)
