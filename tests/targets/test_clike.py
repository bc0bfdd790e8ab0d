"""The dialects of C: texts, and that they mean what the nests say.

Nothing here compiles OpenCL C or WGSL for a device. OpenCL C is compiled as C, with its few words defined in a header;
WGSL is rewritten word by word as C++, with templates for what it calls `select` and `bitcast`. Work-items then run one
after the other.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest
from support.expressions import EXPRESSIONS, meaning, nest_of, values

from tilewright.codegen.clike.c99 import C99
from tilewright.codegen.clike.opencl import OPENCL
from tilewright.codegen.clike.printer import emit
from tilewright.codegen.clike.wgsl import WGSL, WORKGROUP
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import UnsupportedError

SMALL = """def scale(p0: f32[100], p1: i32[100], p2: out(f32[100])):
  for i in thread(100):
    p2[i] = select(cmpi.slt(p1[i], i32(0)), mulf(p0[i], f32(0.1)), exp(p0[i]))"""

#: sums of rows and, on the first unit, of all; a local array for each unit
SUMS = """def sums(p0: f32[37, 20], p1: out(f32[37]), p2: out(f32[1]), p3: out(f32[20])):
  t0 = local(f32[20])
  for i in thread(37):
    p1[i] = f32(0.0)
    for k in serial(20):
      t0[k] = mulf(p0[i, k], p0[i, k])
    for k2 in serial(20):
      p1[i] = addf(p1[i], t0[k2])
  p2[0] = f32(0.0)
  for r in serial(37):
    for c in serial(20):
      p2[0] = addf(p2[0], p0[r, c])
  for j in thread(20):
    acc = register(f32[1])
    acc[0] = f32(-inf)
    for r2 in serial(37):
      acc[0] = maximumf(acc[0], p0[r2, j])
    p3[j] = acc[0]"""

SHIM_C = """
#include <tgmath.h>
#include <float.h>
#include <limits.h>
#include <stddef.h>
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
#define __kernel
#define __global
static size_t unit, units;
#define get_global_id(d) unit
#define get_global_size(d) units
void at(size_t i, size_t n) { unit = i; units = n; }
"""

SHIM_CPP = """
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
using namespace std;
typedef float f32; typedef int32_t i32; typedef uint32_t u32;
static struct { u32 x; } id, groups;
template <class T> T select(T no, T yes, bool test) { return test ? yes : no; }
template <class T, class F> T bitcast(F x) { T y; memcpy(&y, &x, 4); return y; }
static i32 over(i32 a, i32 b) { return b == 0 || b == -1 ? (b ? i32(0u - u32(a)) : a) : a / b; }
static u32 over(u32 a, u32 b) { return b == 0 ? a : a / b; }
static i32 rest(i32 a, i32 b) { return b == 0 || b == -1 ? 0 : a % b; }
static u32 rest(u32 a, u32 b) { return b == 0 ? 0 : a % b; }
#define inverseSqrt(x) (1.0f / sqrt(x))
#define round nearbyintf
"""


def one_text(dialect, nests) -> str:
    """Several kernels of a dialect."""
    made = [emit(n, dialect) for n in nests]
    return dialect.file([f.text(dialect) for f in made], {h for f in made for h in f.helpers})


def library(folder, command, name, text):
    (folder / name).write_text(text)
    build = [*command, "-O1", "-fwrapv", "-Wno-unknown-pragmas", "-shared", "-fPIC", "-o", f"{name}.so", name, "-lm"]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / f"{name}.so"))


def pointer(x):
    return x.ctypes.data_as(ctypes.c_void_p)


def run_opencl(folder, nests, runs, units):
    """Kernels on their arguments (arrays, written in place), by so many work-items."""
    made = library(folder, ["gcc", "-std=c11", "-Wall", "-Werror=implicit"], "k.c", SHIM_C + one_text(OPENCL, nests))
    for nest, arrays in zip(nests, runs, strict=True):
        scratch = [np.zeros(emit(nest, OPENCL).scratch * units, np.uint8)] * bool(emit(nest, OPENCL).scratch)
        for unit in range(units):
            made.at(ctypes.c_size_t(unit), ctypes.c_size_t(units))
            getattr(made, nest.name)(*(pointer(x) for x in (*arrays, *scratch)))


def as_cpp(nest) -> str:
    """The WGSL of one kernel as C++, in a namespace, and a function that runs one invocation on its arguments."""
    text = one_text(WGSL, [nest])
    binding = re.compile(r"@group\(0\) @binding\(\d+\) var<storage, read(_write)?> (\w+): array<(\w+)>;")
    names = [m[2] for m in binding.finditer(text)]
    text = binding.sub(lambda m: f"static {'' if m[1] else 'const '}{m[3]} *{m[2]};", text)
    text = re.sub(r"@compute @workgroup_size\(64\)\nfn (\w+)\([^{]*", r"static void run()\n", text)
    text = re.sub(r"\bfn (\w+)\((.*)\) -> (\w+) {", lambda m: f"static {m[3]} {m[1]}({swapped(m[2])}) {{", text)
    text = re.sub(r"\blet (\w+): (\w+) =", r"const \2 \1 =", text)
    text = re.sub(r"\blet (\w+) =", r"const auto \1 =", text)
    text = re.sub(r"\bvar (\w+): array<(\w+), (\d+)>;", r"\2 \1[\3];", text)
    text = re.sub(r"\bvar (\w+): (\w+)( =|;)", r"\2 \1\3", text)
    text = re.sub(r"_ = &(\w+);", r"(void)\1;", text)
    text = re.sub(r"\ba / b\b", "over(a, b)", re.sub(r"\ba % b\b", "rest(a, b)", text))
    params = ", ".join(f"void *{n}" for n in names)
    given = " ".join(f"{nest.name}_::{n} = (decltype({nest.name}_::{n})){n};" for n in names)
    call = f'extern "C" void {nest.name}(u32 unit, u32 count, {params}) {{'
    return (
        f"namespace {nest.name}_ {{\n{text}}}\n{call} id.x = unit; groups.x = count; {given} {nest.name}_::run(); }}\n"
    )


def swapped(params: str) -> str:
    return ", ".join(f"{p.split(': ')[1]} {p.split(': ')[0]}" for p in params.split(", "))


def run_wgsl(folder, nests, runs, workgroups):
    made = library(folder, ["g++", "-std=c++17"], "k.cpp", SHIM_CPP + "".join(map(as_cpp, nests)))
    for nest, arrays in zip(nests, runs, strict=True):
        for unit in range(workgroups * WORKGROUP):
            getattr(made, nest.name)(unit, workgroups, *map(pointer, arrays))


def lacking(dialect, e) -> bool:
    try:
        emit(nest_of(e, "f"), dialect)
    except UnsupportedError:
        return True
    return False


# ---- meaning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 3])
def test_every_operation_in_opencl(need, tmp_path, units):
    need("gcc")
    env = values()
    nests = [nest_of(e, f"k{i}", "thread") for i, e in enumerate(EXPRESSIONS)]
    got = np.empty((len(nests), env["a"].size), np.float32)
    run_opencl(tmp_path, nests, [(*env.values(), g) for g in got], units)
    for e, g in zip(EXPRESSIONS, got, strict=True):
        np.testing.assert_allclose(g, meaning(e, env), rtol=3e-7, atol=1e-44, err_msg=str(e))


def test_every_operation_in_wgsl(need, tmp_path):
    need("g++")
    env = values()
    told = [e for e in EXPRESSIONS if not lacking(WGSL, e)]
    missing = {str(e) for e in EXPRESSIONS if lacking(WGSL, e)}
    words = ("copysign(", "round(", "log1p(", "erf(", "i8", "i16")
    assert all(any(w in e for w in words) for e in missing) and len(missing) == 9, missing
    nests = [nest_of(e, f"k{i}", "thread") for i, e in enumerate(told)]
    got = np.empty((len(nests), env["a"].size), np.float32)
    run_wgsl(tmp_path, nests, [(*env.values(), g) for g in got], 2)
    for e, g in zip(told, got, strict=True):
        np.testing.assert_allclose(g, meaning(e, env), rtol=3e-7, atol=1e-44, err_msg=str(e))


@pytest.mark.parametrize("units", [1, 3, 50])
@pytest.mark.parametrize("text", [SMALL, SUMS], ids=["scale", "sums"])
def test_kernels_are_shared_out_among_units(need, tmp_path, text, units):
    """Each iteration runs once, and what stands beside the parallel loops once."""
    need("gcc", "g++")
    nest = parse_nest(text)
    random = np.random.default_rng(3)
    given = {
        p.name: random.standard_normal(p.shape).astype("f4")
        if p.dtype == "f32"
        else random.integers(-9, 9, p.shape, "i4")
        for p in nest.params
        if p.name not in nest.outputs
    }
    want = interpret_nest(nest, given)
    for run in (run_opencl, run_wgsl):
        arrays = {p.name: given.get(p.name, np.full(p.shape, np.nan, "f4")) for p in nest.params}
        run(tmp_path, [nest], [list(arrays.values())], units)
        for name in nest.outputs:
            np.testing.assert_allclose(arrays[name], want[name], rtol=1e-5, atol=1e-5)


def test_each_work_item_has_scratch_of_its_own(need, tmp_path):
    need("gcc")
    nest = parse_nest(SUMS.replace("20", "200"))
    x = np.random.default_rng(4).standard_normal((37, 200)).astype("f4")
    assert emit(nest, OPENCL).scratch == 800 and emit(parse_nest(SUMS), OPENCL).scratch == 0
    out = [np.empty(n, "f4") for n in (37, 1, 200)]
    run_opencl(tmp_path, [nest], [[x, *out]], 5)
    np.testing.assert_allclose(out[0], (x * x).sum(1), rtol=1e-5)


# ---- texts ---------------------------------------------------------------------------------------------------------


def test_one_kernel_in_three_dialects():
    nest = parse_nest(SMALL)
    assert (
        one_text(C99, [nest])
        == """\
KERNEL void scale(const float *restrict in0, const int32_t *restrict in1, float *restrict out2)
{
    for (int32_t i = 0; i < 100; ++i) {
        out2[i] = (in1[i] < 0 ? in0[i] * 0.1f : expf(in0[i]));
    }
}
"""
    )
    assert (
        one_text(OPENCL, [nest])
        == """\
__kernel void scale(__global const float *restrict in0, __global const int *restrict in1, __global float *restrict out2)
{
    for (int i = (int)get_global_id(0); i < 100; i += (int)get_global_size(0)) {
        out2[i] = (in1[i] < 0 ? in0[i] * 0.1f : exp(in0[i]));
    }
}
"""
    )
    assert (
        one_text(WGSL, [nest])
        == """\
@group(0) @binding(0) var<storage, read> in0: array<f32>;
@group(0) @binding(1) var<storage, read> in1: array<i32>;
@group(0) @binding(2) var<storage, read_write> out2: array<f32>;
@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>)
{
    for (var i: i32 = i32(id.x); i < 100; i += i32(groups.x * 64u)) {
        out2[i] = select(exp(in0[i]), in0[i] * 0.1f, in1[i] < 0);
    }
}
"""
    )


def test_names_that_a_dialect_has_for_itself():
    def named(name):
        return parse_nest(SMALL.replace("i in thread", f"{name} in thread").replace("[i]", f"[{name}]"))

    assert "int32_t half = 0" in one_text(C99, [named("half")]) and "int32_t ptr = 0" in one_text(C99, [named("ptr")])
    assert "int half_ = " in one_text(OPENCL, [named("half")]) and "var ptr_: i32" in one_text(WGSL, [named("ptr")])


def test_double_is_an_extension_of_opencl():
    nest = parse_nest(
        "def f(p0: f64[4], p1: out(f64[4])):\n  for i in serial(4):\n    p1[i] = maximumf(p0[i], f64(0.1))"
    )
    text = one_text(OPENCL, [nest])
    assert text.startswith("#pragma OPENCL EXTENSION cl_khr_fp64 : enable\nstatic inline double tw_maximumf_f64(")
    assert "if (get_global_id(0) == 0) {" in text and "pragma OPENCL" not in one_text(OPENCL, [parse_nest(SMALL)])


@pytest.mark.parametrize(
    ("dialect", "what", "text"),
    [
        (WGSL, "an array of dtype f64", "def f(p0: out(f64[4])):\n  p0[0] = f64(1.0)"),
        (WGSL, "an array of dtype i8", "def f(p0: i8[4], p1: out(i8[4])):\n  p1[0] = p0[0]"),
        (WGSL, "an array of dtype i1", "def f(p0: i1[4], p1: out(i1[4])):\n  p1[0] = p0[0]"),
        (WGSL, "dtype i64", "def f(p0: i32[4], p1: out(i32[4])):\n  p1[0] = trunci[i32](extsi[i64](p0[0]))"),
        (WGSL, "a local array of 40000 bytes", SUMS.replace("20", "10000")),
        (OPENCL, "an array of dtype f16", "def f(p0: f16[4], p1: out(f16[4])):\n  p1[0] = p0[0]"),
        (C99, "an array of dtype bf16", "def f(p0: bf16[4], p1: out(bf16[4])):\n  p1[0] = p0[0]"),
    ],
)
def test_what_a_dialect_lacks_is_refused(dialect, what, text):
    with pytest.raises(UnsupportedError) as e:
        emit(parse_nest(text), dialect)
    assert f"{what} cannot be written in {dialect.name}" in str(e.value)
    assert ("compile with precision='f32'" in str(e.value)) == (dialect is WGSL)


# ---- compilers -----------------------------------------------------------------------------------------------------


def test_a_compiler_takes_the_opencl(tmp_path):
    """All operations and both kernels, if there is a compiler of OpenCL C."""
    nests = [nest_of(e, f"k{i}", "thread") for i, e in enumerate(EXPRESSIONS)]
    text = one_text(OPENCL, [*nests, parse_nest(SMALL), parse_nest(SUMS.replace("20", "200"))])
    clang = next((n for n in ("clang", *(f"clang-{v}" for v in range(14, 24))) if shutil.which(n)), None)
    if clang is not None:
        (tmp_path / "k.cl").write_text(text)
        command = [clang, "-x", "cl", "-cl-std=CL1.2", "-Xclang", "-finclude-default-header", "-fsyntax-only", "k.cl"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    cl = pytest.importorskip("pyopencl", reason="neither clang nor pyopencl is installed")
    if not [d for p in cl.get_platforms() for d in p.get_devices()]:
        pytest.skip("pyopencl finds no device")
    cl.Program(cl.create_some_context(interactive=False), text).build()
