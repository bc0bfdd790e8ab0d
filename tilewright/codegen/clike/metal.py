"""Dialect table of Metal Shading Language: a source text has one kernel, whose parameters are buffers.

A block of a grid is a threadgroup. Iterations of a parallel loop over threads are distributed over all threads of a
grid of any size (a grid-stride loop). Compilers assume by default that there are no infinities and no NaN (fast math):
functions look at bits, and those of mathematics are our own. There is no f64. No two parameters alias.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .c99 import C99, C_TYPES, KEYWORDS, MATH
from .dialect import Dialect
from .functions import with_functions
from .helpers import HELPERS, Helper
from .hip import BFLOAT_NEEDS, BFLOATS, CPP
from .launch import SHARING_BLOCK
from .opencl import reworded
from .vectors import Vectors

_BUILTINS = (
    "uint3 group [[threadgroup_position_in_grid]], uint3 own [[thread_position_in_threadgroup]],\n"
    "        uint3 groups [[threadgroups_per_grid]]"
)
_LIMIT = "[[max_total_threads_per_threadgroup({threads})]]"
_OWN = """
kernel device constant threadgroup thread half bfloat uint ushort uchar ulong metal as_type group own groups buffer
fragment vertex sampler texture select clamp fract mix sign step
"""
_TYPES = {n: reworded(t) for n, t in C_TYPES.items() if n != "f64"}

_BITS = {
    "bits_f32": "float tw_bits_f32(uint bits)\n{\n    return as_type<float>(bits);\n}\n",
    "float_bits_f32": "uint tw_float_bits_f32(float value)\n{\n    return as_type<uint>(value);\n}\n",
    "isnan_f32": "int tw_isnan_f32(float x)\n{\n    return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u;\n}\n",
    "isinf_f32": "int tw_isinf_f32(float x)\n{\n    return (as_type<uint>(x) & 0x7fffffffu) == 0x7f800000u;\n}\n",
    "isfinite_f32": "int tw_isfinite_f32(float x)\n{\n    return (as_type<uint>(x) & 0x7fffffffu) < 0x7f800000u;\n}\n",
    "extf_f16_f32": "float tw_extf_f16_f32(ushort x)\n{\n    return (float)as_type<half>(x);\n}\n",
    "truncf_f32_f16": "ushort tw_truncf_f32_f16(float x)\n{\n    return as_type<ushort>((half)x);\n}\n",
}


def _by_bits(h: Helper) -> Helper:
    """``x != x`` as a look at bits."""
    text, count = re.subn(r"\b(\w) != \1(?!\w)", r"tw_isnan_f32(\1)", reworded(h.text))
    return replace(h, text=text, needs=(*h.needs, "isnan_f32") if count else h.needs)


_HELPERS = {n: _by_bits(h) for n, h in HELPERS.items() if "f64" not in n}
_HELPERS |= {n: Helper(f"static inline {t}") for n, t in _BITS.items()}
_HELPERS |= {n: Helper(f"static inline {reworded(t)}", needs=BFLOAT_NEEDS[n]) for n, t in BFLOATS.items()}

_AXES = {f"grid.{d}": (f"group.{d}", "") for d in "xyz"} | {f"block.{d}": (f"own.{d}", "") for d in "xyz"}
_UNIT = f"(group.x * {SHARING_BLOCK} + own.x)"

#: functions that it lacks, and those of which it does not say that they are exact for powers
_EXPANDED = ("cbrt", "erf", "exp2", "expm1", "log1p", "log10", "log2", "powf")

METAL: Dialect = with_functions(
    replace(
        C99,
        name="Metal Shading Language",
        hint="it has no f64, and no scratch memory for local arrays; compile with precision='f32'",
        types={**_TYPES, "f16": "ushort", "bf16": "ushort"},
        unsigned={n: reworded(t) for n, t in C99.unsigned.items() if n in _TYPES},
        parameters=(*_TYPES, "f16", "bf16"),
        smallest={"i32": "INT_MIN", "i64": "LONG_MIN"},
        literals={"f32": "{}f", "i64": "{}l", "ui32": "{}u", "ui64": "{}ul"},
        math={n: m for n, m in MATH.items() if n not in _EXPANDED} | {"absf": "fabs"},
        suffix={},
        helpers=_HELPERS,
        not_a_number=True,
        stack_bytes=1 << 14,
        arena="",
        pointers=False,
        size="",
        pragmas={"vector": "#pragma unroll"},
        axes={"thread": (_UNIT, f"(groups.x * {SHARING_BLOCK})"), **_AXES},
        barriers={"block": "threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);"},
        shared={"shared": "threadgroup alignas(16) {type} {name}[{size}];"},
        vectors=Vectors(
            "{type}{n}",
            "*({space}const {vector} *)({name} + {at})",
            "*({space}{vector} *)({name} + {at}) = {value};",
            spaces={"param": "device ", "shared": "threadgroup "},
        ),
        entry=f"{_LIMIT}\nkernel void {{name}}({{params}},\n        {_BUILTINS})",
        parameter="device {const}{type} *{name} [[buffer({number})]]",
        heads={"kernel": "#include <metal_stdlib>\nusing namespace metal;"},
        reserved=KEYWORDS | {*CPP.split(), *_OWN.split(), *MATH, *MATH.values()},
    ),
    "static inline {type} {name}({params})\n{{",
)
