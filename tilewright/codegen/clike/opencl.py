"""Dialect table of OpenCL C 1.2. A block of a grid is a work-group, its threads are work-items.

Iterations of a parallel loop over threads are distributed over all work-items, of any number. Scratch memory is that of
all work-items, `ClikeFunction.scratch` bytes for each. Arrays are parts of larger buffers: each comes with the byte
that it begins at.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .c99 import C_TYPES, KEYWORDS, MATH, UNSIGNED
from .dialect import Dialect
from .helpers import HELPERS, Helper
from .vectors import Vectors

#: what C99 and its headers call otherwise
_WORDS = {f"int{n}_t": t for n, t in ((8, "char"), (16, "short"), (32, "int"), (64, "long"))}
_WORDS |= {f"u{c}": f"u{t}" for c, t in _WORDS.items()}
for n, t in ((8, "CHAR"), (16, "SHRT"), (32, "INT"), (64, "LONG")):
    _WORDS |= {f"INT{n}_MIN": f"{t}_MIN", f"INT{n}_MAX": f"{t}_MAX", f"UINT{n}_MAX": f"U{t}_MAX"}
_WORDS |= {"sqrtf": "sqrt", "expf": "exp"}


def reworded(text: str) -> str:
    """C99 with the names of types that OpenCL C and Metal have, and functions without a type in their name."""
    return re.sub(r"\b\w+\b", lambda m: _WORDS.get(m[0], m[0]), text)


_OWN = "bool uchar ushort uint ulong half kernel global local constant private barrier"
_VECTORS = [f"{t}{n}" for t in ("char", "short", "int", "long", "float", "double") for n in (2, 3, 4, 8, 16)]

_AXES = {f"grid.{d}": (f"get_group_id({i})", "") for i, d in enumerate("xyz")}
_AXES |= {f"block.{d}": (f"get_local_id({i})", "") for i, d in enumerate("xyz")}

#: Halves have pointers but no variables, so bits are read and written in memory, as another type than they are declared
#: of. By a pointer to a `ushort` a compiler may take the two for apart, and use a value before it is there (PoCL's does
#: on processors with F16C); through a union with bytes it may not.
_BITS = "union { ushort bits; uchar bytes[2]; } at;"
_HALVES = {
    "extf_f16_f32": f"""float tw_extf_f16_f32(ushort x)
{{
    {_BITS}
    at.bits = x;
    return vload_half(0, (const half *)at.bytes);
}}
""",
    "truncf_f32_f16": f"""ushort tw_truncf_f32_f16(float x)
{{
    {_BITS}
    vstore_half_rte(x, 0, (half *)at.bytes);
    return at.bits;
}}
""",
    "odd_f64_f32": """float tw_odd_f64_f32(double x)
{
    const float near = (float)x;
    const uint bits = as_uint(near);
    if ((double)near == x || x != x || (bits & 1u))
        return near;
    return as_float(fabs((double)near) < fabs(x) ? bits + 1u : bits - 1u);
}
""",
    "extf_bf16_f32": "float tw_extf_bf16_f32(ushort x)\n{\n    return as_float((uint)x << 16);\n}\n",
    "truncf_f32_bf16": """ushort tw_truncf_f32_bf16(float x)
{
    const uint bits = as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (ushort)(bits >> 16 | 64u);
    return (ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
""",
}

#: by the instruction where the driver has it
_DOT = """#ifdef __opencl_c_integer_dot_product_input_4x8bit
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#endif
static inline int tw_{name}(char4 a, char4 b)
{{
#ifdef __opencl_c_integer_dot_product_input_4x8bit
    return (int)dot({a}, {b});
#else
    const {kind}4 p = convert_{kind}4({a}) * convert_{kind}4({b});
    return (int)(p.x + p.y + p.z + p.w);
#endif
}}
"""
_DOTS = {
    "dot4_ss": _DOT.format(name="dot4_ss", kind="int", a="a", b="b"),
    "dot4_uu": _DOT.format(name="dot4_uu", kind="uint", a="as_uchar4(a)", b="as_uchar4(b)"),
}

OPENCL = Dialect(
    "OpenCL C",
    types={**{n: reworded(c) for n, c in C_TYPES.items()}, "f16": "ushort", "bf16": "ushort"},
    unsigned={n: reworded(c) for n, c in UNSIGNED.items()},
    parameters=(*C_TYPES, "f16", "bf16"),
    literals={"f32": "{}f", "f64": "{}", "i64": "{}l", "ui32": "{}u", "ui64": "{}ul"},
    smallest={"i32": "INT_MIN", "i64": "LONG_MIN"},
    math=MATH,
    helpers={
        **{n: replace(h, text=reworded(h.text)) for n, h in HELPERS.items()},
        **{n: Helper(f"static inline {text}") for n, text in _HALVES.items()},
        **{n: Helper(text) for n, text in _DOTS.items()},
    },
    arena="__global {type} *const {name} = (__global {type} *)({place});",
    pragmas={"vector": "#pragma unroll"},
    axes={"thread": ("get_global_id(0)", "get_global_size(0)"), **_AXES},
    barriers={"block": "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"},
    shared={"shared": "__local {type} {name}[{size}] __attribute__((aligned(16)));"},
    dots={n: n for n in _DOTS},
    vectors=Vectors(
        "{type}{n}",
        "*({space}const {vector} *)({name} + {at})",
        "*({space}{vector} *)({name} + {at}) = {value};",
        made="({vector})({parts})",
        spaces={"param": "__global ", "shared": "__local "},
    ),
    entry="__kernel __attribute__((reqd_work_group_size({block}))) void {name}({params})",
    parameter="__global {const}{type} *{restrict}{name}, ulong {name}_at",
    begin="{name} = (__global {const}{type} *)((__global const uchar *){name} + {name}_at);",
    scratch="__global uchar *scratch",
    own_scratch="scratch += ((get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + "
    "get_global_id(0)) * {bytes};",
    heads={"double": "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"},
    reserved=frozenset((*KEYWORDS, *_OWN.split(), *_VECTORS, *(f"u{v}" for v in _VECTORS), *MATH.values())),
)
