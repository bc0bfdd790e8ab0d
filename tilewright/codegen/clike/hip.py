"""Dialect table of HIP C++, for AMD's GPUs and NVIDIA's: source that AMD's compiler takes.

Blocks and threads are HIP's own. Iterations of a parallel loop over threads are distributed over all threads of a grid
of any size (a grid-stride loop). No two parameters alias.
"""

from __future__ import annotations

from dataclasses import replace

from .c99 import C99, C_TYPES, KEYWORDS, MATH
from .dialect import Dialect
from .helpers import Helper
from .vectors import Vectors

#: what C++ has beyond C, and HIP beyond that
CPP = """
alignas alignof and asm bool catch char16_t char32_t class constexpr const_cast decltype delete dynamic_cast explicit
export false friend mutable namespace new noexcept not nullptr operator or private protected public reinterpret_cast
static_assert static_cast template this thread_local throw true try typeid typename using virtual wchar_t xor
"""
_OWN = "blockIdx blockDim threadIdx gridDim warpSize half"

_HALVES = {
    "extf_f16_f32": """float tw_extf_f16_f32(uint16_t x)
{
    union { uint16_t bits; _Float16 value; } u;
    u.bits = x;
    return (float)u.value;
}
""",
    "truncf_f32_f16": """uint16_t tw_truncf_f32_f16(float x)
{
    union { uint16_t bits; _Float16 value; } u;
    u.value = (_Float16)x;
    return u.bits;
}
""",
}
_ODD = """float tw_odd_f64_f32(double x)
{
    const float near = (float)x;
    const uint32_t bits = tw_float_bits_f32(near);
    if ((double)near == x || x != x || (bits & 1u))
        return near;
    return tw_bits_f32(fabs((double)near) < fabs(x) ? bits + 1u : bits - 1u);
}
"""
#: in terms of `bits_f32` and `float_bits_f32`, for all dialects of C++
BFLOATS = {
    "extf_bf16_f32": "float tw_extf_bf16_f32(uint16_t x)\n{\n    return tw_bits_f32((uint32_t)x << 16);\n}\n",
    "truncf_f32_bf16": """uint16_t tw_truncf_f32_bf16(float x)
{
    const uint32_t bits = tw_float_bits_f32(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 64u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
""",
}
BFLOAT_NEEDS = {"extf_bf16_f32": ("bits_f32",), "truncf_f32_bf16": ("float_bits_f32",)}

#: vectors, whose names say what they have
_VECTORS = {f"tw_{t}_{n}": (t, n) for t in sorted({*C_TYPES.values(), "uint16_t"}) for n in (2, 4)}

_UNIT, _UNITS = "blockIdx.x * blockDim.x + threadIdx.x", "gridDim.x * blockDim.x"
_AXES = {f"grid.{d}": (f"blockIdx.{d}", "") for d in "xyz"} | {f"block.{d}": (f"threadIdx.{d}", "") for d in "xyz"}

HIP: Dialect = replace(
    C99,
    name="HIP C++",
    hint="it has no scratch memory for local arrays of that size",
    types={**C_TYPES, "f16": "uint16_t", "bf16": "uint16_t"},
    parameters=(*C_TYPES, "f16", "bf16"),
    helpers={
        **{n: replace(h, text=f"__device__ {h.text}") for n, h in C99.helpers.items()},
        **{n: Helper(f"__device__ static inline {t}") for n, t in _HALVES.items()},
        "odd_f64_f32": Helper(f"__device__ static inline {_ODD}", needs=("bits_f32", "float_bits_f32")),
        **{n: Helper(f"__device__ static inline {t}", needs=BFLOAT_NEEDS[n]) for n, t in BFLOATS.items()},
    },
    stack_bytes=1 << 15,
    arena="",
    pointers=False,
    size="",
    pragmas={"vector": "#pragma unroll"},
    axes={"thread": (f"({_UNIT})", f"({_UNITS})"), **_AXES},
    barriers={"block": "__syncthreads();"},
    shared={"shared": "__shared__ __attribute__((aligned(16))) {type} {name}[{size}];"},
    vectors=Vectors(
        "tw_{type}_{n}",
        "*(const {vector} *)({name} + {at})",
        "*({vector} *)({name} + {at}) = {value};",
        part="{name}[{i}]",
        made="{vector}{{{parts}}}",
    ),
    entry='extern "C" __global__ void __launch_bounds__({threads}) {name}({params})',
    parameter="{const}{type} *__restrict__ {name}",
    heads={
        "__global__": "#include <hip/hip_runtime.h>",
        r"u?int\d+_t": "#include <stdint.h>",
        "(?:FLT|DBL)_MAX": "#include <float.h>",
        **{v: f"typedef {t} {v} __attribute__((vector_size({n} * sizeof({t}))));" for v, (t, n) in _VECTORS.items()},
    },
    reserved=KEYWORDS | {*CPP.split(), *_OWN.split(), *MATH, *MATH.values()},
)
