"""Dialect table of WGSL, the shading language of WebGPU: a source text has one kernel, whose parameters are storage
buffers.

It computes in f32 and in integers of 32 bits. Smaller numbers share words in memory; halves are computed in f32, as
everywhere. Of integers of 64 bits the low half counts: numbers that do not fit 32 bits are refused where they are known
(constants here, inputs by who runs the text).

A block of a grid is a workgroup, its threads are invocations. Iterations of a parallel loop over threads are
distributed over all invocations, for any number of workgroups; what stands outside of it is done by the first one. An
implementation may assume that there are no infinities and no NaN, and may round as WGSL's own rules allow. No two
parameters may be the same buffer if one of them is written.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .dialect import Dialect, LowWords, Packed
from .functions import with_functions
from .helpers import Helper
from .launch import SHARING_BLOCK
from .pieces import SplitBindings
from .vectors import Vectors

_BUILTINS = (
    "@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,\n"
    "    @builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>,\n"
    "    @builtin(local_invocation_index) lane: u32"
)

# maximumf: NaN wins; maxnumf: a number wins over NaN. fptosi: cut towards zero, limited to the range, NaN to 0.
# Division by zero gives 0 (and all remains), the smallest number divided by -1 itself; shifts by the width or more move
# all bits out. WGSL has other rules for most of these. {t} is the type of a float, {i} and {u} those of an integer with
# and without sign, {d} and {n} their names here, {bits} the width of the integer, {low} and {high} its ends.
_FLOATS = """\
fn tw_maximumf_{d}(a: {t}, b: {t}) -> {t} {{ return select(b, a, (a > b) | tw_isnan_{d}(a)); }}
fn tw_minimumf_{d}(a: {t}, b: {t}) -> {t} {{ return select(b, a, (a < b) | tw_isnan_{d}(a)); }}
fn tw_maxnumf_{d}(a: {t}, b: {t}) -> {t} {{ return select(b, a, (a > b) | tw_isnan_{d}(b)); }}
fn tw_minnumf_{d}(a: {t}, b: {t}) -> {t} {{ return select(b, a, (a < b) | tw_isnan_{d}(b)); }}
fn tw_rsqrt_{d}(x: {t}) -> {t} {{ return {t}(1) / sqrt(x); }}
fn tw_copysign_{d}(x: {t}, y: {t}) -> {t} {{ return select(abs(x), -abs(x), tw_negative_{d}(y)); }}
fn tw_round_{d}(x: {t}) -> {t} {{
    let whole = trunc(x);
    return select(whole, whole + sign(x), abs(x - whole) >= {t}(0.5));
}}
fn tw_remf_{d}(a: {t}, b: {t}) -> {t} {{
    var rest = abs(a);
    let by = abs(b);
    if (!tw_isfinite_{d}(a) || !(by > {t}(0))) {{ return {t}(tw_bits_f32(0x7fc00000u)); }}
    while (rest >= by) {{
        var step = by;
        while (step <= rest * {t}(0.5)) {{ step = step + step; }}
        rest = rest - step;
    }}
    return select(rest, -rest, tw_negative_{d}(a));
}}
"""
_F32 = """\
fn tw_bits_f32(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn tw_float_bits_f32(x: f32) -> u32 { return bitcast<u32>(x); }
fn tw_negative_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x80000000u) != 0u; }
fn tw_isnan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn tw_isinf_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn tw_isfinite_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }
fn tw_extf_f16_f32(x: u32) -> f32 {
    let rest = x & 0x7fffu;
    let sign = (x & 0x8000u) << 16u;
    if (rest >= 0x7c00u) { return bitcast<f32>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13u)); }
    let small = f32(rest) * 5.9604644775390625e-8f;
    return bitcast<f32>(sign | select((rest << 13u) + 0x38000000u, bitcast<u32>(small), rest < 0x400u));
}
fn tw_truncf_f32_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rest = bits & 0x7fffffffu;
    let sign = (bits >> 16u) & 0x8000u;
    if (rest > 0x7f800000u) { return sign | 0x7e00u; }
    if (rest >= 0x477ff000u) { return sign | 0x7c00u; }
    if (rest < 0x38800000u) { return sign | u32(round(abs(x) * 16777216.0f)); }
    return sign | (((rest + 0xfffu + ((rest >> 13u) & 1u)) >> 13u) - 0x1c000u);
}
fn tw_extf_bf16_f32(x: u32) -> f32 { return bitcast<f32>(x << 16u); }
fn tw_truncf_f32_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return (bits >> 16u) | 64u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
fn tw_mulhsi_i32(a: i32, b: i32) -> i32 {
    let low = (u32(a) & 65535u) * (u32(b) & 65535u);
    let one = (a >> 16u) * (b & 65535) + i32(low >> 16u);
    let other = (a & 65535) * (b >> 16u) + (one & 65535);
    return (a >> 16u) * (b >> 16u) + (one >> 16u) + (other >> 16u);
}
fn tw_i8(x: i32) -> i32 { return extractBits(x, 0u, 8u); }
fn tw_i16(x: i32) -> i32 { return extractBits(x, 0u, 16u); }
"""
_F64 = """\
fn tw_bits_f64(bits: u64) -> f64 { return bitcast<f64>(bits); }
fn tw_float_bits_f64(x: f64) -> u64 { return bitcast<u64>(x); }
fn tw_high_f64(x: f64) -> u32 { return u32(bitcast<u64>(x) >> 32u); }
fn tw_low_f64(x: f64) -> u32 { return u32(bitcast<u64>(x) & u64(4294967295)); }
fn tw_negative_f64(x: f64) -> bool { return (tw_high_f64(x) & 0x80000000u) != 0u; }
fn tw_isfinite_f64(x: f64) -> bool { return (tw_high_f64(x) & 0x7ff00000u) != 0x7ff00000u; }
fn tw_isinf_f64(x: f64) -> bool { return (tw_high_f64(x) & 0x7fffffffu) == 0x7ff00000u && tw_low_f64(x) == 0u; }
fn tw_isnan_f64(x: f64) -> bool { return !tw_isfinite_f64(x) && !tw_isinf_f64(x); }
fn tw_odd_f64_f32(x: f64) -> f32 {
    let near = f32(x);
    let bits = bitcast<u32>(near);
    if (f64(near) == x || tw_isnan_f64(x) || (bits & 1u) != 0u) { return near; }
    return bitcast<f32>(select(bits - 1u, bits + 1u, abs(f64(near)) < abs(x)));
}
"""
_INTEGERS = """\
fn tw_max_{n}(a: {i}, b: {i}) -> {i} {{ return max(a, b); }}
fn tw_min_{n}(a: {i}, b: {i}) -> {i} {{ return min(a, b); }}
fn tw_maxui_{n}(a: {u}, b: {u}) -> {u} {{ return max(a, b); }}
fn tw_minui_{n}(a: {u}, b: {u}) -> {u} {{ return min(a, b); }}
fn tw_absi_{n}(a: {i}) -> {i} {{ return select(a, {i}(0) - a, a < {i}(0) && a != {low}); }}
fn tw_divsi_{n}(a: {i}, b: {i}) -> {i} {{
    if (b == {i}(0)) {{ return {i}(0); }}
    if (b == {i}(-1)) {{ return select({i}(0) - a, a, a == {low}); }}
    return a / b;
}}
fn tw_remsi_{n}(a: {i}, b: {i}) -> {i} {{
    if (b == {i}(0)) {{ return a; }}
    if (b == {i}(-1)) {{ return {i}(0); }}
    return a % b;
}}
fn tw_floordivsi_{n}(a: {i}, b: {i}) -> {i} {{
    let q = tw_divsi_{n}(a, b);
    let apart = tw_remsi_{n}(a, b) != {i}(0) && (a < {i}(0)) != (b < {i}(0));
    return select(q, q - {i}(1), b != {i}(0) && b != {i}(-1) && apart);
}}
fn tw_ceildivsi_{n}(a: {i}, b: {i}) -> {i} {{
    let q = tw_divsi_{n}(a, b);
    let apart = tw_remsi_{n}(a, b) != {i}(0) && (a < {i}(0)) == (b < {i}(0));
    return select(q, q + {i}(1), b != {i}(0) && b != {i}(-1) && apart);
}}
fn tw_divui_{n}(a: {u}, b: {u}) -> {u} {{ if (b == {u}(0)) {{ return {u}(0); }} return a / b; }}
fn tw_remui_{n}(a: {u}, b: {u}) -> {u} {{ if (b == {u}(0)) {{ return a; }} return a % b; }}
fn tw_ceildivui_{n}(a: {u}, b: {u}) -> {u} {{
    if (b == {u}(0)) {{ return {u}(0); }}
    return a / b + select({u}(0), {u}(1), a % b != {u}(0));
}}
fn tw_shli_{n}(a: {i}, b: {i}) -> {i} {{
    return select({i}(0), a << (u32(b) & {last}), b >= {i}(0) && b < {i}({bits}));
}}
fn tw_shrsi_{n}(a: {i}, b: {i}) -> {i} {{
    return a >> select({last}, u32(b) & {last}, b >= {i}(0) && b < {i}({bits}));
}}
fn tw_shrui_{n}(a: {u}, b: {u}) -> {u} {{ return select({u}(0), a >> (u32(b) & {last}), b < {u}({bits})); }}
"""
_CONVERSIONS = """\
fn tw_fptosi_{d}_{n}(x: {t}) -> {i} {{
    if (!(x > {t}({small}))) {{ return select({low}, {i}(0), tw_isnan_{d}(x)); }}
    if (x < {t}({large})) {{ return {i}(x); }}
    return {high};
}}
fn tw_fptoui_{d}_{n}(x: {t}) -> {u} {{
    if (!(x > {t}(0))) {{ return {u}(0); }}
    if (x < {t}({most})) {{ return {u}(x); }}
    return {top};
}}
"""


def _integer(bits: int, name: str = "") -> dict[str, str]:
    """The fields of an integer; 8 and 16 bits are computed in 32. `name` is another one than that of the width."""
    i, u = ("i64", "u64") if bits == 64 else ("i32", "u32")
    ends = {"low": f"{i}({-(1 << bits - 1)})", "high": f"{i}({(1 << bits - 1) - 1})", "top": f"{u}({(1 << bits) - 1})"}
    if bits == 64:  # no literal is that large
        ends = {"low": "(i64(1) << 63u)", "high": "~(i64(1) << 63u)", "top": "~u64(0)"}
    floats = {"small": f"-{2.0 ** (bits - 1):.1f}", "large": f"{2.0 ** (bits - 1):.1f}", "most": f"{2.0**bits:.1f}"}
    return {"n": name or f"i{bits}", "i": i, "u": u, "bits": str(bits), "last": f"{bits - 1}u", **ends, **floats}


def _helpers(floats: tuple[str, ...], integers: list[dict[str, str]]) -> dict[str, Helper]:
    """The functions for these types by name."""
    text = _F32 + (_F64 if "f64" in floats else "")
    text += "".join(_FLOATS.format(d=d, t=d) for d in floats)
    text += "".join(_INTEGERS.format(**i) for i in integers)
    text += "".join(_CONVERSIONS.format(d=d, t=d, **i) for d in floats for i in integers)
    texts = [f"fn tw_{t}" for t in text.split("fn tw_")[1:]]
    calls = [list(dict.fromkeys(re.findall(r"\btw_(\w+)\(", t))) for t in texts]
    return _closed({name: Helper(t, needs=tuple(needs)) for t, (name, *needs) in zip(texts, calls, strict=True)})


def _closed(helpers: dict[str, Helper]) -> dict[str, Helper]:
    """With all that each needs, directly or not."""

    def needs(name: str) -> set[str]:
        return {name}.union(*(needs(n) for n in helpers[name].needs))

    return {n: replace(h, needs=tuple(sorted(needs(n) - {n}))) for n, h in helpers.items()}


_SAME = """
exp exp2 log log2 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sqrt floor ceil trunc fma
"""
_OTHERS = """
abs bitcast inverseSqrt max min pow round sign select extractBits atomic atomicLoad atomicStore atomicAnd atomicOr
workgroupBarrier dot4I8Packed dot4U8Packed
"""
_KEYWORDS = """
alias array atan2 bool break case const const_assert continue continuing default diagnostic discard else enable f16 f32
false fn for i32 if let loop mat2x2 override ptr requires return sampler struct switch true u32 var vec2 vec3 vec4 while
"""
#: words that WGSL keeps for later, and what the text calls its own
_KEYWORDS += """
as asm auto binding_array class common constant do enum export extern external filter final from get global goto group
handle import in inline interface layout local match mod module move namespace new null of operator out package pass
precise private pub public readonly ref register restrict self set shared sizeof smooth static std super target template
this throw try type typename union unless using varying virtual void volatile where with yield id
groups group own lane unit main
"""

_AXES = {f"grid.{d}": (f"group.{d}", "") for d in "xyz"} | {f"block.{d}": (f"own.{d}", "") for d in "xyz"}

_PACKED = {
    "i1": Packed(8, "(({word} >> {shift}) & 1u)", "{value}"),
    "i8": Packed(8, "extractBits(i32({word} >> {shift}), 0u, 8u)", "u32({value}) & 255u"),
    "i16": Packed(16, "extractBits(i32({word} >> {shift}), 0u, 16u)", "u32({value}) & 65535u"),
    "f16": Packed(16, "(({word} >> {shift}) & 65535u)", "{value}"),
    "bf16": Packed(16, "(({word} >> {shift}) & 65535u)", "{value}"),
}
#: where there are no numbers of 64 bits
_NARROW = {"i64": LowWords(64, "", "")}
_TYPES = {"f32": "f32", "i32": "i32", "index": "i32", "i1": "u32"}
_TYPES |= {"i8": "i32", "i16": "i32", "i64": "i32", "f16": "u32", "bf16": "u32"}
_UNSIGNED = {"i32": "u32", "index": "u32", "i1": "u32", "i8": "u32", "i16": "u32", "i64": "u32"}
_CONVERSIONS_OF = {"i8": "extractBits(i32({value}), 0u, 8u)", "i16": "extractBits(i32({value}), 0u, 16u)"}
_CONVERSIONS_OF |= {"ui8": "(u32({value}) & 255u)", "ui16": "(u32({value}) & 65535u)"}
_CONVERSIONS_OF |= dict.fromkeys(("f16", "bf16"), "(u32({value}) & 65535u)")

_CORE = Dialect(
    "WGSL",
    hint="it has no f64, integers up to 32 bits, and no pointers; compile with precision='f32'",
    types=_TYPES,
    unsigned=_UNSIGNED,
    parameters=("f32", "i32", *_PACKED, *_NARROW),
    packed=_PACKED | _NARROW,
    conversions=_CONVERSIONS_OF,
    truth=("bool", "false", "true"),
    literals={"f32": "{}f", "ui32": "{}u", **dict.fromkeys(("i8", "i16", "i32", "i64"), "{}i")},
    smallest={"i32": "i32(-2147483648)", "i64": "i32(-2147483648)"},
    casts="{type}({value})",
    choice="select({no}, {yes}, {test})",
    lazy=False,
    spread="(-{type}({value}))",
    lowest="(({value} & 1) != 0)",
    differ="({a} != {b})",
    not_a_number=True,
    math={**{n: n for n in _SAME.split()}, "absf": "abs", "roundeven": "round", "powf": "pow"},
    helpers=_helpers(("f32",), [_integer(8), _integer(16), _integer(32), _integer(32, "i64")]),
    constant="let {name}: {type} = {value};",
    variable="var {name}: {type};",
    together=1,
    loop="for (var {name}: {type} = {first}; {name} < {limit}; {step}) {{",
    step="{name}++",
    unused="_ = &{name};",
    vectors=Vectors("vec{n}<{type}>", "{name}[{at}]", "{name}[{at}] = {value};", made="{vector}({parts})", bound=True),
    pieces=SplitBindings(1 << 27),  # what every device binds at once
    arrays={"local": "var {name}: array<{type}, {size}>;"},
    stack_bytes=4096,  # drivers take minutes over larger ones
    arena="",
    typed_scratch="@group(0) @binding({number}) var<storage, read_write> {name}: array<{type}>;",
    own_typed_scratch="let {name}_at: i32 = unit * {size};",
    thread_index="let unit: i32 = i32(((group.z * groups.y + group.y) * groups.x + group.x) * {block}u + lane);",
    pointers=False,
    axes={"thread": ("id.x", f"groups.x * {SHARING_BLOCK}u"), **_AXES},
    barriers={"block": "workgroupBarrier();"},
    shared={"shared": "var<workgroup> {name}: array<{type}, {size}>;"},
    shared_outside=True,
    entry=f"{{params}}\n{{shared}}@compute @workgroup_size({{block}})\nfn {{name}}({_BUILTINS})",
    parameter="@group(0) @binding({number}) var<storage, read_write> {name}: array<{type}>;",
    table="@group(0) @binding({number}) var<storage, read> {name}: array<{type}>;",  # the same for all invocations
    between="\n",
    reserved=frozenset((*_KEYWORDS.split(), *_SAME.split(), *_OTHERS.split())),
)
_HEAD, _PARAMETER = "fn {name}({params}) -> {type} {{", "{name}: {type}"

#: what browsers have
WGSL = with_functions(_CORE, _HEAD, _PARAMETER)
#: with numbers of 64 bits, as wgpu has them where the device does, and products of bytes, which not all browsers have
WGSL_64 = with_functions(
    replace(
        _CORE,
        dots={"dot4_ss": "dot4I8Packed({a}, {b})", "dot4_uu": "i32(dot4U8Packed({a}, {b}))"},
        name="WGSL with 64-bit numbers",
        hint="it has no pointers",
        types={**_TYPES, "f64": "f64", "i64": "i64"},
        unsigned={**_UNSIGNED, "i64": "u64"},
        extended={"i64": "i64(u64({value}))"},  # wgpu spreads the highest bit of a u32 that becomes an i64
        parameters=(*_CORE.parameters, "f64"),
        packed=_PACKED,
        literals={**_CORE.literals, "f64": "{}lf", "i64": "{}li", "ui64": "{}lu"},
        smallest={**_CORE.smallest, "i64": "(i64(1) << 63u)"},
        helpers=_helpers(("f32", "f64"), [_integer(b) for b in (8, 16, 32, 64)]),
    ),
    _HEAD,
    _PARAMETER,
    doubles=True,
)
