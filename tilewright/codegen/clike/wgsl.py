"""WGSL, the language of WebGPU: f32 and 32-bit integers; a text has one kernel, whose parameters are storage buffers.

No target of the package compiles it yet: the table is the ground for one. Iterations of a loop over threads are shared
out among all invocations, for any number of workgroups; what stands outside of it is done by the first one. An
implementation may take it that there are no infinities and no NaN, and may round as WGSL's own rules allow. No two
parameters may be the same buffer if one of them is written.
"""

from __future__ import annotations

import re

from .dialect import Dialect
from .helpers import Helper

WORKGROUP = 64
_BUILTINS = "@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>"

# maximumf: NaN wins; maxnumf: a number wins over NaN. fptosi: cut towards zero, limited to the range, NaN to 0.
# Division by zero gives 0 (and all remains), the smallest number divided by -1 itself; shifts by the width or more move
# all bits out. WGSL has other rules for most of these.
_HELPERS = """\
fn tw_bits_f32(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn tw_float_bits_f32(x: f32) -> u32 { return bitcast<u32>(x); }
fn tw_isnan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn tw_isinf_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn tw_isfinite_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }
fn tw_maximumf_f32(a: f32, b: f32) -> f32 { return select(b, a, a > b || tw_isnan_f32(a)); }
fn tw_minimumf_f32(a: f32, b: f32) -> f32 { return select(b, a, a < b || tw_isnan_f32(a)); }
fn tw_maxnumf_f32(a: f32, b: f32) -> f32 { return select(b, a, a > b || tw_isnan_f32(b)); }
fn tw_minnumf_f32(a: f32, b: f32) -> f32 { return select(b, a, a < b || tw_isnan_f32(b)); }
fn tw_rsqrt_f32(x: f32) -> f32 { return inverseSqrt(x); }
fn tw_sigmoid_f32(x: f32) -> f32 { return 1.0f / (1.0f + exp(-x)); }
fn tw_fptosi_f32_i32(x: f32) -> i32 {
    if (!(x > -2147483648.0f)) { return select(i32(-2147483648), 0, tw_isnan_f32(x)); }
    if (x < 2147483648.0f) { return i32(x); }
    return 2147483647;
}
fn tw_fptoui_f32_i32(x: f32) -> u32 {
    if (!(x > 0.0f)) { return 0u; }
    if (x < 4294967296.0f) { return u32(x); }
    return 4294967295u;
}
fn tw_max_i32(a: i32, b: i32) -> i32 { return max(a, b); }
fn tw_min_i32(a: i32, b: i32) -> i32 { return min(a, b); }
fn tw_maxui_i32(a: u32, b: u32) -> u32 { return max(a, b); }
fn tw_minui_i32(a: u32, b: u32) -> u32 { return min(a, b); }
fn tw_absi_i32(a: i32) -> i32 { return abs(a); }
fn tw_divsi_i32(a: i32, b: i32) -> i32 { if (b == 0) { return 0; } return a / b; }
fn tw_remsi_i32(a: i32, b: i32) -> i32 { if (b == 0) { return a; } return a % b; }
fn tw_floordivsi_i32(a: i32, b: i32) -> i32 {
    let q = tw_divsi_i32(a, b);
    return select(q, q - 1, b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0));
}
fn tw_ceildivsi_i32(a: i32, b: i32) -> i32 {
    let q = tw_divsi_i32(a, b);
    return select(q, q + 1, b != 0 && b != -1 && a % b != 0 && (a < 0) == (b < 0));
}
fn tw_divui_i32(a: u32, b: u32) -> u32 { if (b == 0u) { return 0u; } return a / b; }
fn tw_remui_i32(a: u32, b: u32) -> u32 { if (b == 0u) { return a; } return a % b; }
fn tw_ceildivui_i32(a: u32, b: u32) -> u32 { if (b == 0u) { return 0u; } return a / b + select(0u, 1u, a % b != 0u); }
fn tw_shli_i32(a: i32, b: i32) -> i32 { return select(0, a << (u32(b) & 31u), u32(b) < 32u); }
fn tw_shrsi_i32(a: i32, b: i32) -> i32 { return a >> min(u32(b), 31u); }
fn tw_shrui_i32(a: u32, b: u32) -> u32 { return select(0u, a >> (b & 31u), b < 32u); }
"""


def _helpers() -> dict[str, Helper]:
    texts = [f"fn tw_{t}" for t in _HELPERS.split("fn tw_")[1:]]
    calls = [re.findall(r"\btw_(\w+)\(", t) for t in texts]
    return {name: Helper(t, needs=tuple(needs)) for t, (name, *needs) in zip(texts, calls, strict=True)}


_SAME = """
exp exp2 log log2 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sqrt floor ceil trunc fma
"""
_OTHERS = "abs bitcast inverseSqrt max min pow round"
_KEYWORDS = """
alias array atan2 bool break case const const_assert continue continuing default diagnostic discard else enable f16 f32
false fn for i32 if let loop mat2x2 override ptr requires return sampler struct switch true u32 var vec2 vec3 vec4 while
"""
#: words that WGSL keeps for later, and what the text calls its own
_KEYWORDS += """
as asm auto binding_array class common constant do enum export extern external filter final from get global goto group
handle import in inline interface layout local match mod module move namespace new null of operator out package pass
precise private pub public readonly ref register restrict self set shared sizeof smooth static std super target template
this throw try type typename union unless using varying virtual void volatile where with yield id groups main
"""

WGSL = Dialect(
    "WGSL",
    hint="it has f32 and 32-bit integers, and neither pointers nor scratch memory; compile with precision='f32'",
    types={"f32": "f32", "i32": "i32", "index": "i32", "i1": "u32"},
    unsigned={"i32": "u32", "index": "u32", "i1": "u32"},
    parameters=("f32", "i32"),
    truth=("bool", "false", "true"),
    literals={"f32": "{}f", "ui32": "{}u"},
    smallest={"i32": "i32(-2147483648)"},
    casts="{type}({value})",
    choice="select({no}, {yes}, {test})",
    lazy=False,
    spread="(-{type}({value}))",
    lowest="(({value} & 1) != 0)",
    differ="({a} != {b})",
    math={**{n: n for n in _SAME.split()}, "absf": "abs", "roundeven": "round", "powf": "pow"},
    helpers=_helpers(),
    constant="let {name}: {type} = {value};",
    variable="var {name}: {type};",
    together=1,
    loop="for (var {name}: {type} = {first}; {name} < {limit}; {step}) {{",
    step="{name}++",
    unused="_ = &{name};",
    arrays={"local": "var {name}: array<{type}, {size}>;"},
    stack_bytes=4096,
    arena="",
    pointers=False,
    axes={"thread": ("id.x", f"groups.x * {WORKGROUP}u")},
    entry=f"{{params}}\n@compute @workgroup_size({WORKGROUP})\nfn {{name}}({_BUILTINS})",
    parameter="@group(0) @binding({number}) var<storage, {access}> {name}: array<{type}>;",
    between="\n",
    reserved=frozenset(
        (*_KEYWORDS.split(), *_SAME.split(), *("abs", "bitcast", "inverseSqrt", "max", "min", "pow", "round"))
    ),
)
