"""HIP C++ and Metal: texts that no driver here takes, compiled as C++ with a few lines in place of their headers, and
run; HIP by AMD's code generator in clang too, where Debian has it."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess

import numpy as np
import pytest
from support.expressions import EXPRESSIONS, meaning, nest_of, values
from support.gpu_matmul import tiled_matmul

import tilewright as tw
from tilewright.codegen.clike.hip import HIP
from tilewright.codegen.clike.metal import METAL
from tilewright.codegen.clike.printer import emit
from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import UnsupportedError, UsageError
from tilewright.tensor.evaluate import NUMPY

#: what a host needs to run the threads of a kernel one after the other
HIP_HOST = """
#pragma once
#include <math.h>
#include <stdint.h>
#include <float.h>
struct Numbers { unsigned x, y, z; };
static Numbers blockIdx, threadIdx, blockDim, gridDim;
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(n)
#define __syncthreads()
"""
METAL_HOST = """
#pragma once
#include <math.h>
#include <string.h>
#include <limits.h>
#include <stdint.h>
#define kernel
#define device
#define threadgroup static
typedef unsigned char uchar;
struct uint3 { uint x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(4) char4 { int8_t x, y, z, w; };
struct alignas(8) ushort4 { ushort x, y, z, w; };
struct alignas(16) long2 { long x, y; };
#define float4(...) float4{__VA_ARGS__}
#define char4(...) char4{__VA_ARGS__}
#define ushort4(...) ushort4{__VA_ARGS__}
#define long2(...) long2{__VA_ARGS__}
namespace metal {
enum class mem_flags { mem_threadgroup = 1, mem_device = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags) {}
template <class T, class F> T as_type(F x)
{
    static_assert(sizeof(T) == sizeof(F), "as many bits");
    T y;
    memcpy(&y, &x, sizeof y);
    return y;
}
}
"""
#: and what clang needs to make an AMD GPU's code
HIP_DEVICE = """
#pragma once
#include <stdint.h>
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
struct Numbers { unsigned x, y, z; };
#define blockDim (Numbers{64, 1, 1})
#define gridDim (Numbers{1, 1, 1})
__device__ static inline Numbers blocks()
{
    return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
__device__ static inline Numbers threads()
{
    return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
#define blockIdx blocks()
#define threadIdx threads()
__device__ static inline void __syncthreads()
{
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    __builtin_amdgcn_s_barrier();
}
"""
#: starts the one block of a kernel with as many pointers as it takes
HIP_RUN = """
extern "C" void run_{name}(void **p)
{{
    blockDim = {{64, 1, 1}}, gridDim = {{1, 1, 1}};
    for (unsigned t = 0; t < 64; ++t)
        threadIdx = {{t, 0, 0}}, {name}({arguments});
}}
"""
METAL_RUN = """
extern "C" void run_{name}(void **p)
{{
    for (unsigned t = 0; t < 64; ++t)
        {name}({arguments}, uint3{{0, 0, 0}}, uint3{{t, 0, 0}}, uint3{{1, 1, 1}});
}}
"""
DIALECTS = {
    "hip": (HIP, "hip/hip_runtime.h", HIP_HOST, HIP_RUN),
    "metal": (METAL, "metal_stdlib", METAL_HOST, METAL_RUN),
}


def text_of(dialect, nests) -> str:
    made = [emit(n, dialect) for n in nests]
    return dialect.file([f.text(dialect) for f in made], {h for f in made for h in f.helpers})


def library(folder, name: str, nests, standard: str = "c++14"):
    """The kernels as a library, with a function ``run_NAME`` for each; skipped where there is no compiler."""
    compiler = next((c for c in ("clang++-19", "clang++", "g++", "c++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no compiler of C++: apt install g++")
    dialect, header, host, run = DIALECTS[name]
    (folder / header).parent.mkdir(exist_ok=True)
    (folder / header).write_text(host)
    starts = []
    for n in nests:
        given = [f"({dialect.types[p.dtype]} *)p[{i}]" for i, p in enumerate(n.params)]
        starts.append(run.format(name=n.name, arguments=", ".join(given)))
    text = f"#include <{header}>\n{text_of(dialect, nests)}\n" + "".join(starts)
    (folder / "k.cpp").write_text(text)
    command = [compiler, f"-std={standard}", "-O0", "-ffp-contract=off", "-shared", "-fPIC", "-w", "-I.", "-o", "k.so"]
    done = subprocess.run([*command, "k.cpp"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(folder / "k.so"))


def run(made, name: str, arrays) -> None:
    getattr(made, f"run_{name}")((ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)))


@pytest.mark.parametrize("name", DIALECTS)
def test_every_operation(name, tmp_path):
    env = values()
    nests = [nest_of(e, f"k{i}", "thread") for i, e in enumerate(EXPRESSIONS)]
    made = library(tmp_path, name, nests)
    for i, e in enumerate(EXPRESSIONS):
        got = np.empty(env["a"].size, np.float32)
        run(made, f"k{i}", [*env.values(), got])
        np.testing.assert_allclose(got, meaning(e, env), rtol=1e-6, atol=1e-44, err_msg=str(e))


@pytest.mark.parametrize("name", DIALECTS)
def test_numbers_of_other_widths(name, tmp_path):
    nest = parse_nest("""
def k(x: bf16[9], b: i8[9], n: i64[9], t: i1[9], y: out(bf16[9]), c: out(i8[9]), m: out(i64[9]), u: out(i1[9])):
    for i in thread(9):
        own = local(i64[2])
        own[0] = n[i]
        own[1] = i64(-9223372036854775808)
        y[i] = mulf(x[i], x[i])
        c[i] = addi(b[i], b[i])
        m[i] = maxsi(floordivsi(own[0], i64(-7)), own[1])
        u[i] = xori(t[i], cmpi.slt(n[i], i64(3)))
""")
    random = np.random.default_rng(0)
    given = {"x": random.standard_normal(9), "b": random.integers(-128, 127, 9), "n": random.integers(-99, 99, 9)}
    given["t"] = given["n"] % 2
    arrays = {p.name: given.get(p.name, np.zeros(9)).astype(NUMPY[p.dtype]) for p in nest.params}
    run(library(tmp_path, name, [nest]), "k", list(arrays.values()))
    want = interpret_nest(nest, {n: arrays[n] for n in given})
    for n in nest.outputs:
        assert (arrays[n] == want[n]).all(), n


@pytest.mark.parametrize("name", DIALECTS)
def test_neighbours_in_one_access(name, tmp_path):
    nest = finish(
        parse_nest(
            """
def k(x: f32[64], b: i8[64], n: i64[64], h: f16[64], y: out(f32[64]), c: out(i8[64]), m: out(i64[64]), g: out(f16[64])):
    for i in thread(16):
        for l in vector(4):
            s0: y[i * 4 + l] = negf(x[i * 4 + l])
        for l in vector(4):
            s1: c[i * 4 + l] = addi(b[i * 4 + l], b[i * 4 + l])
        for l in vector(4):
            s2: m[i * 4 + l] = addi(n[i * 4 + l], n[i * 4 + l])
        for l in vector(4):
            s3: g[i * 4 + l] = h[i * 4 + l]
""".strip()
        )
    )
    text, vector = text_of(DIALECTS[name][0], [nest]), {"hip": "tw_float_4 *", "metal": "float4 *"}[name]
    assert text.count(f"{vector})") == 2 and ("tw_int64_t_2 *)" if name == "hip" else "long2 *)") in text
    random = np.random.default_rng(0)
    given = {p.name: random.integers(-9, 9, 64).astype(NUMPY[p.dtype]) for p in nest.params[:4]}
    arrays = {p.name: given.get(p.name, np.zeros(64, NUMPY[p.dtype])) for p in nest.params}
    run(library(tmp_path, name, [nest]), "k", list(arrays.values()))
    want = interpret_nest(nest, given)
    for n in nest.outputs:
        assert (arrays[n] == want[n]).all(), n


def test_amds_compiler_takes_hip(tmp_path):
    """Shared memory, barriers and products become what the GPU has for them."""
    if shutil.which("clang-19") is None:
        pytest.skip("no clang with AMD's GPUs: apt install clang-19")
    (tmp_path / "hip").mkdir()
    (tmp_path / "hip" / "hip_runtime.h").write_text(HIP_DEVICE)
    half = parse_nest("def h(x: f16[64], y: out(f16[64])):\n  for i in thread(64):\n    y[i] = mulf(x[i], x[i])")
    four = parse_nest(
        "def v(x: f32[256], y: out(f32[256])):\n  for i in thread(64):\n    for l in vector(4):\n"
        "      y[i * 4 + l] = mulf(x[i * 4 + l], x[i * 4 + l])"
    )
    (tmp_path / "k.hip").write_text(text_of(HIP, [finish(tiled_matmul(32, 24, 64, 8, 16).nest()), half, four]))
    options = "--cuda-device-only -nogpuinc -nogpulib --offload-arch=gfx90a -O2 -S -I. -o k.s k.hip"
    done = subprocess.run(["clang-19", "-x", "hip", *options.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    made = (tmp_path / "k.s").read_text()
    assert all(word in made for word in ("s_barrier", "ds_read", "global_load_dwordx4", "mul_f16"))
    assert ".amdhsa_kernel matmul" in made and ".max_flat_workgroup_size: 256" in made


@pytest.mark.parametrize(("name", "word"), [("hip", "__syncthreads();"), ("metal", "threadgroup_barrier(")])
def test_an_export_has_sources_and_what_a_launch_needs(name, word, digits_path, tmp_path):
    made = tw.compile(digits_path, target=name, inputs={"image": (1, 1, 8, 8)})
    made.export(tmp_path)
    told = json.loads((tmp_path / "model.json").read_text())
    texts = {k: (tmp_path / v["file"]).read_text() for k, v in told["kernels"].items()}
    assert all(f" {told['kernels'][k]['name']}(" in text for k, text in texts.items())
    assert any(word in text for text in texts.values())
    assert [s.get("kernel", "copy") for s in told["steps"]] == [c.symbol for c in made.package.program.calls]
    assert (tmp_path / "weights.bin").stat().st_size == told["weights"]["bytes"]
    with pytest.raises(UsageError, match=f"code for {name} does not run in this process"):
        made(np.zeros((1, 1, 8, 8), "f4"))


def test_a_schedule_shows_its_source():
    kernel = te.from_nest("def k(x: f32[64], y: out(f32[64])):\n  for i in serial(64):\n    s0: y[i] = negf(x[i])")
    for name, word in (("hip", "__launch_bounds__(64) k("), ("metal", "[[max_total_threads_per_threadgroup(64)]]")):
        s = Schedule(kernel, name)
        s.bind("i", "block.x")
        assert word in s.source(name)


def test_what_metal_lacks_is_refused():
    with pytest.raises(UnsupportedError, match="an array of dtype f64 cannot be written in Metal"):
        emit(parse_nest("def f(p0: out(f64[4])):\n  p0[0] = f64(1.0)"), METAL)
