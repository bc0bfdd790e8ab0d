"""The dialects of C: texts, and that they mean what the nests say, on the devices that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from support.expressions import EXPRESSIONS, meaning, nest_of, values
from support.gpu_matmul import tiled_matmul
from support.gpus import device_of, run_on

from tilewright.codegen.clike.c99 import C99
from tilewright.codegen.clike.hip import HIP
from tilewright.codegen.clike.metal import METAL
from tilewright.codegen.clike.opencl import OPENCL
from tilewright.codegen.clike.pieces import SplitBindings
from tilewright.codegen.clike.printer import emit
from tilewright.codegen.clike.wgsl import WGSL, WGSL_64
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.text import parse_nest
from tilewright.support.dtypes import NUMPY
from tilewright.support.errors import UnsupportedError
from tilewright.targets.gpu.describe import GpuDescription
from tilewright.targets.gpu.kernels import kernel

SMALL = """def scale(p0: f32[100], p1: i32[100], p2: out(f32[100])):
  for i in thread(100):
    p2[i] = select(cmpi.slt(p1[i], i32(0)), mulf(p0[i], f32(0.1)), exp(p0[i]))"""

#: sums of rows and, on the first thread, of all; a local array for each thread
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


def one_text(dialect, nests) -> str:
    """Several kernels of a dialect."""
    made = [emit(n, dialect) for n in nests]
    return dialect.file([f.text(dialect) for f in made], {h for f in made for h in f.helpers})


@pytest.fixture(scope="module", params=["opencl", "vulkan"])
def gpu(request):
    """A dialect, and the device whose driver compiles it."""
    dialect = {"opencl": OPENCL, "vulkan": WGSL_64}[request.param]
    return dialect, device_of(request.param)


def run(gpu, nest, arrays, blocks=None):
    """A kernel on arrays, its results written in place; `blocks` of threads, for kernels that share iterations out."""
    dialect, device = gpu
    made = kernel(emit(nest, dialect), dialect)
    if blocks is not None:
        made = replace(made, launch=replace(made.launch, grid=(blocks, 1, 1)))
    run_on(device, made, arrays)


def lacking(dialect, e) -> bool:
    try:
        emit(nest_of(e, "f"), dialect)
    except UnsupportedError:
        return True
    return False


# ---- meaning -------------------------------------------------------------------------------------------------------


def test_every_operation(gpu):
    env = values()
    told = [e for e in EXPRESSIONS if not lacking(gpu[0], e)]
    assert len(told) == len(EXPRESSIONS)
    for i, e in enumerate(told):
        got = np.empty(env["a"].size, np.float32)
        run(gpu, nest_of(e, f"k{i}", "thread"), [*env.values(), got])
        close = {"rtol": 3e-7, "atol": 1e-44}
        if gpu[0] is WGSL_64:  # whose fma may round twice: angles of thousands lose some digits
            close = {"rtol": 5e-6, "atol": 1e-5 if any(f in str(e) for f in ("sin(", "cos(", "tan(")) else 1e-37}
        np.testing.assert_allclose(got, meaning(e, env), **close, err_msg=str(e))


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("text", [SMALL, SUMS], ids=["scale", "sums"])
def test_kernels_are_shared_out_among_units(gpu, text, blocks):
    """Each iteration runs once, and what stands beside the parallel loops once."""
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
    arrays = {p.name: given.get(p.name, np.full(p.shape, np.nan, "f4")) for p in nest.params}
    run(gpu, nest, list(arrays.values()), blocks)
    for name in nest.outputs:
        np.testing.assert_allclose(arrays[name], want[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "i8"])
def test_parameters_that_are_larger_than_a_device_binds(dtype):
    """They are bound in pieces, here of 256 bytes, and read by a function that knows which."""
    device = device_of("vulkan")
    text = f"""def f(p0: {dtype}[70, 9], p1: i32[9], p2: out({dtype}[9, 70])):
      for i in thread(9):
        for j in serial(70):
          p2[i, j] = p0[j, index_cast[index](p1[i])]"""
    nest, dialect = parse_nest(text), replace(WGSL_64, pieces=SplitBindings(256))
    numbers = np.random.default_rng(0).integers(-100, 100, (70, 9)).astype(NUMPY[dtype])
    order = np.arange(9, dtype="i4")[::-1].copy()
    found = np.zeros((9, 70), numbers.dtype)
    run((dialect, device), nest, [numbers, order, found])
    assert (found == numbers[:, order].T).all()
    made = kernel(emit(nest, dialect), dialect)
    assert made.pieces == (-(-numbers.nbytes // 256), 1, 1) and len(made.writes) == sum(made.pieces)
    assert "in0_at(" not in kernel(emit(nest, WGSL_64), WGSL_64).text


def test_each_work_item_has_scratch_of_its_own():
    nest = parse_nest(SUMS.replace("20", "200"))
    x = np.random.default_rng(4).standard_normal((37, 200)).astype("f4")
    assert emit(nest, OPENCL).scratch == 800 and emit(parse_nest(SUMS), OPENCL).scratch == 0
    out = [np.empty(n, "f4") for n in (37, 1, 200)]
    run((OPENCL, device_of("opencl")), nest, [x, *out])
    np.testing.assert_allclose(out[0], (x * x).sum(1), rtol=1e-5)


@pytest.mark.parametrize("blocks", [1, 3])
def test_local_arrays_that_are_large(gpu, blocks):
    """Each thread has its own, of every type; there are fewer threads where they are very large."""
    nest = parse_nest("""def f(p0: f32[90, 5000], p1: i64[90], p2: out(i64[90, 5000]), p3: out(f32[90])):
      for i in thread(90):
        t0 = local(f32[5000])
        t1 = local(i64[5000])
        t2 = local(f16[5000])
        for j in serial(5000):
          t0[j] = addf(p0[i, j], p0[i, 0])
          t1[j] = addi(p1[i], index_cast[i64](j))
          t2[j] = truncf[f16](p0[i, j])
        p3[i] = f32(0.0)
        for k in serial(5000):
          p2[i, k] = t1[4999 - k]
          p3[i] = addf(p3[i], addf(t0[k], extf[f32](t2[k])))""")
    random = np.random.default_rng(8)
    x, n = random.standard_normal((90, 5000)).astype("f4"), random.integers(-9, 9, 90)
    y, z = np.empty((90, 5000), "i8"), np.empty(90, "f4")
    run(gpu, nest, [x, n, y, z], blocks)
    assert (y == (n[:, None] + np.arange(5000)[::-1])).all()
    np.testing.assert_allclose(z, (x + x[:, :1] + x.astype("f2")).sum(1, dtype="f8"), rtol=1e-4, atol=1e-2)
    made = kernel(emit(parse_nest("""def f(p0: f32[90000], p1: out(f32[90000])):
      for i in thread(90000):
        t0 = local(f32[50000])
        t0[i % 50000] = p0[i]
        p1[i] = t0[i % 50000]"""), gpu[0]), gpu[0])  # fmt: skip
    assert made.scratch_bytes <= 1 << 27 and made.launch.grid[0] < 90000 // 64


def test_blocks_of_a_grid_have_scratch_of_their_own(gpu):
    nest = parse_nest(
        """def f(p0: f32[3, 2, 4, 900], p1: out(f32[3, 2, 4])):
      for a in grid.y(3):
        for b in grid.x(2):
          for c in block.x(4):
            t0 = local(f32[5000])
            for i in serial(900):
              t0[i * 5] = mulf(p0[a, b, c, i], f32(2.0))
            p1[a, b, c] = f32(0.0)
            for j in serial(900):
              p1[a, b, c] = addf(p1[a, b, c], t0[j * 5])""",
        GpuDescription(),
    )
    x, y = np.random.default_rng(9).standard_normal((3, 2, 4, 900)).astype("f4"), np.empty((3, 2, 4), "f4")
    run(gpu, nest, [x, y])
    np.testing.assert_allclose(y, 2 * x.sum(-1), rtol=1e-4, atol=1e-4)


def test_blocks_with_shared_memory_and_barriers(gpu):
    """A product of matrices in tiles that copies bring ahead, whose loops are shorter than there are threads."""
    nest = finish(tiled_matmul(32, 24, 64, 8, 16).nest())
    launch = emit(nest, gpu[0]).launch
    assert (launch.block, launch.grid) == ((16, 16, 1), (3, 4, 1))
    random = np.random.default_rng(5)
    a, b = random.standard_normal((32, 64)).astype("f4"), random.standard_normal((64, 24)).astype("f4")
    c = np.full((32, 24), np.nan, "f4")
    run(gpu, nest, [a, b, c])
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8", "i16", "i1"])
def test_numbers_that_share_words(gpu, dtype):
    """Each thread changes its own part of a word, and nothing else."""
    numpy = NUMPY[dtype]
    nest = parse_nest(
        f"def f(p0: {dtype}[301], p1: out({dtype}[301])):\n  for i in thread(301):\n    p1[300 - i] = p0[i]"
    )
    x = np.random.default_rng(6).integers(0, 2 if dtype == "i1" else 1 << 8 * numpy.itemsize - 2, 301)
    x = x.astype(f"u{numpy.itemsize}").view(numpy)
    y = np.ones_like(x)
    run(gpu, nest, [np.append(x, x[:3]), y := np.append(y, y[:3])])
    assert (y[:301].view("u1") == x[::-1].copy().view("u1")).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_rounded_once(gpu, dtype):
    nest = parse_nest(
        f"def f(p0: {dtype}[4096], p1: {dtype}[4096], p2: out({dtype}[4096])):\n  for i in thread(4096):\n"
        "    p2[i] = mulf(p0[i], p1[i])"
    )
    random = np.random.default_rng(7)
    x, y = (random.standard_normal(4096).astype("f4").astype(NUMPY[dtype]) for _ in range(2))
    z = np.empty_like(x)
    run(gpu, nest, [x, y, z])
    assert (z == (x.astype("f4") * y.astype("f4")).astype(NUMPY[dtype])).all()


# ---- texts ---------------------------------------------------------------------------------------------------------


def test_one_kernel_in_three_dialects():
    nest = parse_nest(SMALL)
    assert (
        one_text(C99, [nest])
        == """\
KERNEL void scale(const float *restrict in0, const int32_t *restrict in1, float *restrict out2)
{
    for (int32_t i = 0; i < 100; ++i) {
        const float v1 = in0[i];
        out2[i] = (in1[i] < 0 ? v1 * 0.1f : expf(v1));
    }
}
"""
    )
    assert (
        one_text(OPENCL, [nest])
        == """\
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void scale(__global const float *restrict in0, ulong in0_at,
        __global const int *restrict in1, ulong in1_at, __global float *restrict out2, ulong out2_at)
{
    in0 = (__global const float *)((__global const uchar *)in0 + in0_at);
    in1 = (__global const int *)((__global const uchar *)in1 + in1_at);
    out2 = (__global float *)((__global const uchar *)out2 + out2_at);
    for (int i = (int)get_global_id(0); i < 100; i += (int)get_global_size(0)) {
        const float v1 = in0[i];
        out2[i] = (in1[i] < 0 ? v1 * 0.1f : exp(v1));
    }
}
"""
    )
    text = one_text(WGSL, [nest])
    assert "fn tw_exp_f32(x: f32) -> f32 {" in text
    assert (
        text[text.index("@group") :]
        == """\
@group(0) @binding(0) var<storage, read_write> in0: array<f32>;
@group(0) @binding(1) var<storage, read_write> in1: array<i32>;
@group(0) @binding(2) var<storage, read_write> out2: array<f32>;
@compute @workgroup_size(64, 1, 1)
fn scale(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>,
    @builtin(local_invocation_index) lane: u32)
{
    for (var i: i32 = i32(id.x); i < 100; i += i32(groups.x * 64u)) {
        let v1: f32 = in0[i];
        out2[i] = select(tw_exp_f32(v1), v1 * 0.1f, in1[i] < 0i);
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
        (WGSL, "the number 4294967296", "def f(p0: i64[4], p1: out(i64[4])):\n  p1[0] = addi(p0[0], i64(4294967296))"),
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


@pytest.mark.parametrize("dialect", [C99, OPENCL, HIP, METAL], ids=lambda d: d.name)
def test_no_variable_is_read_by_a_pointer_to_another_type(dialect):
    """A compiler may take the two for apart and read before it writes. PoCL's did where a processor has F16C and LLVM
    knows it by name (icelake, haswell): f16 sums were off by 10."""
    for name, helper in dialect.helpers.items():
        assert not re.search(r"\w \*\)\s*&", helper.text), name
