"""OpenCL C 1.2, kernels for any work size: iterations of a loop over threads are shared out among all work-items.

No target of the package compiles it yet: the table is the ground for one. Work sizes have one dimension, and scratch
memory is that of all work-items, `Function.scratch` bytes for each. What stands outside of the parallel loop is done by
the first one.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .c99 import C_TYPES, KEYWORDS, MATH, UNSIGNED
from .dialect import Dialect
from .helpers import HELPERS

#: what C99 and its headers call otherwise
_WORDS = {f"int{n}_t": t for n, t in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))}
_WORDS |= {f"u{c}": f"u{t}" for c, t in _WORDS.items()}
for n, t in ((8, "CHAR"), (16, "SHRT"), (32, "INT"), (64, "LONG")):
    _WORDS |= {f"INT{n}_MIN": f"{t}_MIN", f"INT{n}_MAX": f"{t}_MAX", f"UINT{n}_MAX": f"U{t}_MAX"}
_WORDS |= {"sqrtf": "sqrt", "expf": "exp"}


def _reworded(text: str) -> str:
    return re.sub(r"\b\w+\b", lambda m: _WORDS.get(m[0], m[0]), text)


_OWN = "bool uchar ushort uint ulong half kernel global local constant private barrier"
_VECTORS = [f"{t}{n}" for t in ("char", "short", "int", "long", "float", "double") for n in (2, 3, 4, 8, 16)]

OPENCL = Dialect(
    "OpenCL C",
    types={n: _reworded(c) for n, c in C_TYPES.items()},
    unsigned={n: _reworded(c) for n, c in UNSIGNED.items()},
    parameters=tuple(C_TYPES),
    literals={"f32": "{}f", "f64": "{}", "i64": "{}l", "ui32": "{}u", "ui64": "{}ul"},
    smallest={"i32": "INT_MIN", "i64": "LONG_MIN"},
    math=MATH,
    helpers={n: replace(h, text=_reworded(h.text)) for n, h in HELPERS.items()},
    arena="__global {type} *const {name} = (__global {type} *)({place});",
    pragmas={"vector": "#pragma unroll"},
    axes={"thread": ("get_global_id(0)", "get_global_size(0)")},
    entry="__kernel void {name}({params})",
    parameter="__global {const}{type} *{restrict}{name}",
    scratch="__global uchar *scratch",
    own_scratch="scratch += get_global_id(0) * {bytes};",
    heads={"double": "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"},
    reserved=frozenset((*KEYWORDS, *_OWN.split(), *_VECTORS, *(f"u{v}" for v in _VECTORS), *MATH.values())),
)
