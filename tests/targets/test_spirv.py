"""Nests as SPIR-V by MLIR's `spirv` dialect: accepted by spirv-val, and right on a Vulkan device."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from support.expressions import EXPRESSIONS, meaning, nest_of, values
from support.gpu_matmul import tiled_matmul
from support.gpus import device_of, run_on

import tilewright as tw
from tilewright.codegen.spirv.binary import binary
from tilewright.codegen.spirv.emitter import emit
from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError, UnsupportedError, UsageError
from tilewright.targets.base import find
from tilewright.targets.gpu.describe import GpuDescription
from tilewright.targets.gpu.kernels import GpuKernel
from tilewright.targets.vulkan.spirv import built
from tilewright.tensor.evaluate import NUMPY

MACHINE = GpuDescription()
MAGIC = b"\x03\x02\x23\x07"


@pytest.fixture(scope="module")
def device():
    return device_of("vulkan")


def parsed(text: str):
    return finish(parse_nest(text.strip(), MACHINE))


def kernel(nest) -> GpuKernel:
    return built(nest, MACHINE)


def drawn(nest, seed: int = 0) -> dict[str, np.ndarray]:
    random, found = np.random.default_rng(seed), {}
    for p in nest.params:
        if p.name not in nest.outputs:
            whole = p.dtype.startswith("i")
            x = random.integers(-100, 100, p.shape) if whole else random.standard_normal(p.shape)
            found[p.name] = (x > 0 if p.dtype == "i1" else x).astype(NUMPY[p.dtype])
    return found


def agrees(device, text: str, tolerance: float = 4e-6) -> None:
    """The results of a nest on the device are those of the interpreter."""
    nest = parsed(text)
    given = drawn(nest)
    want = interpret_nest(nest, given, MACHINE)
    arrays = {p.name: given.get(p.name, np.zeros(p.shape, NUMPY[p.dtype])) for p in nest.params}
    run_on(device, kernel(nest), list(arrays.values()))
    for name, w in want.items():
        got = arrays[name].astype("f8")
        np.testing.assert_allclose(got, w.astype("f8"), rtol=tolerance, atol=tolerance, err_msg=name)


def valid(tmp_path, data: bytes) -> None:
    """What Khronos' validator says for Vulkan."""
    path = shutil.which("spirv-val")
    if path is None:
        pytest.skip("no spirv-val: apt install spirv-tools")
    (tmp_path / "k.spv").write_bytes(data)
    done = subprocess.run([path, "--target-env", "vulkan1.1", "k.spv"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- meaning


def test_every_operation(device):
    env = values()
    for e in EXPRESSIONS:
        got = np.empty(env["a"].size, np.float32)
        run_on(device, kernel(nest_of(e, "k", "thread")), [*env.values(), got])
        absolute = 1e-5 if any(f in str(e) for f in ("sin(", "cos(", "tan(")) else 1e-37
        np.testing.assert_allclose(got, meaning(e, env), rtol=5e-6, atol=absolute, err_msg=str(e))


FLOATS = ("mulf(a[j], b[j])", "divf(a[j], b[j])", "remf(a[j], b[j])", "fma(a[j], b[j], a[j])", "round(a[j])")
FLOATS += ("sqrt(absf(a[j]))", "maximumf(a[j], b[j])", "copysign(a[j], b[j])")
WHOLE = ("addi(a[j], b[j])", "muli(a[j], b[j])", "floordivsi(a[j], b[j])", "remui(a[j], b[j])", "absi(a[j])")
WHOLE += ("shrui(a[j], andi(b[j], {d}(7)))", "shli(a[j], b[j])", "shrsi(a[j], b[j])", "maxui(a[j], b[j])")


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("f16", 2e-3), ("bf16", 1.6e-2), ("f64", 1e-12), ("i8", 0), ("i16", 0), ("i64", 0)],
)
def test_numbers_of_all_widths(device, dtype, tolerance):
    told = [v.format(d=dtype) for v in (WHOLE if dtype.startswith("i") else FLOATS)]
    lines = [f"        s{i}: y[{i}, j] = {v}" for i, v in enumerate(told)]
    head = f"def k(a: {dtype}[32], b: {dtype}[32], y: out({dtype}[{len(told)}, 32])):\n    for j in block.x(32):\n"
    agrees(device, head + "\n".join(lines), tolerance)


def test_conversions(device):
    agrees(
        device,
        """
def k(a: f32[32], n: i32[32], y: out(f32[5, 32]), m: out(i64[4, 32]), b: out(i8[2, 32]), t: out(i1[32])):
    for j in block.x(32):
        s0: y[0, j] = extf[f32](truncf[f16](a[j]))
        s1: y[1, j] = extf[f32](truncf[bf16](a[j]))
        s2: y[2, j] = uitofp[f32](n[j])
        s3: y[3, j] = truncf[f32](sitofp[f64](extsi[i64](n[j])))
        s4: y[4, j] = bitcast[f32](bitcast[i32](a[j]))
        s5: m[0, j] = extui[i64](n[j])
        s6: m[1, j] = extsi[i64](n[j])
        s7: m[2, j] = fptosi[i64](mulf(a[j], f32(1e12)))
        s8: m[3, j] = extui[i64](trunci[i8](n[j]))
        s9: b[0, j] = trunci[i8](n[j])
        s10: b[1, j] = fptoui[i8](mulf(a[j], f32(100.0)))
        s11: t[j] = xori(cmpf.ogt(a[j], f32(0.0)), trunci[i1](n[j]))
""",
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8", "i16", "i1"])
def test_numbers_that_share_words(device, dtype):
    """Each thread changes its own part of a word, and nothing else; bits stay what they are."""
    numpy = NUMPY[dtype]
    nest = parsed(f"def f(p0: {dtype}[301], p1: out({dtype}[301])):\n  for i in thread(301):\n    p1[300 - i] = p0[i]")
    x = np.random.default_rng(6).integers(0, 2 if dtype == "i1" else 1 << 8 * numpy.itemsize - 2, 301)
    x = x.astype(f"u{numpy.itemsize}").view(numpy)
    y = np.append(np.ones_like(x), x[:3])
    run_on(device, kernel(nest), [np.append(x, x[:3]), y])
    assert (y[:301].view("u1") == x[::-1].copy().view("u1")).all()


def test_halves_are_rounded_once(device):
    head = "def f(p0: f16[4096], p1: f16[4096], p2: out(f16[4096])):\n  for i in thread(4096):\n"
    nest = parsed(head + "    p2[i] = mulf(p0[i], p1[i])")
    x, y = drawn(nest, 7).values()
    z = np.empty_like(x)
    run_on(device, kernel(nest), [x, y, z])
    assert (z == (x.astype("f4") * y.astype("f4")).astype("f2")).all()


def test_blocks_with_shared_memory_and_barriers(device):
    """A product of matrices in tiles that copies bring ahead, whose loops are shorter than there are threads."""
    nest = finish(tiled_matmul(32, 24, 64, 8, 16).nest())
    made = kernel(nest)
    assert (made.launch.block, made.launch.grid) == ((16, 16, 1), (3, 4, 1))
    random = np.random.default_rng(5)
    a, b = random.standard_normal((32, 64)).astype("f4"), random.standard_normal((64, 24)).astype("f4")
    c = np.full((32, 24), np.nan, "f4")
    run_on(device, made, [a, b, c])
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_who_runs_what(device):
    """Own memory, conditions, guards, loops for the first thread alone, elements that memory selects."""
    agrees(
        device,
        """
def k(x: f32[50, 8], n: i32[50], y: out(f32[50]), z: out(f32[2]), w: out(f32[50])):
    for i in thread(50):
        t = local(f32[8])
        for j in serial(8):
            s0: t[j] = exp(x[i, j])
        s1: y[i] = f32(0.0)
        for j in serial(8):
            if n[i] > 0:
                s2: y[i] = addf(y[i], t[7 - j])
            else:
                s3: y[i] = subf(y[i], t[j])
        s4: w[i] = guard(cmpi.slt(i, 40), x[i + 10, index_cast[index](andi(n[i], i32(7)))], f32(-1.0))
    for j in serial(2):
        s5: z[j] = x[j, 0]
""".replace("if n[i] > 0", "if cmpi.sgt(n[i], i32(0))"),
    )


def test_more_iterations_than_there_can_be_threads(device):
    n = 65535 * 64 + 100
    nest = parsed(f"def k(x: f32[7], y: out(f32[{n}])):\n  for i in thread({n}):\n    y[i] = x[i % 7]")
    x, y = np.arange(7, dtype="f4"), np.zeros(n, "f4")
    run_on(device, kernel(nest), [x, y])
    assert (y == x[np.arange(n) % 7]).all()


def test_local_arrays_that_are_large(device):
    """Each thread has its own, of every type; there are fewer threads where they are very large."""
    text = """
def f(p0: f32[90, 5000], p1: i64[90], p2: out(i64[90, 5000]), p3: out(f32[90])):
    for i in thread(90):
        t = local(f32[5000])
        u = local(i64[5000])
        v = local(f32[6000])
        for j in serial(5000):
            s0: t[j] = p0[i, j]
        for j in serial(5000):
            s1: u[j] = addi(p1[i], fptosi[i64](t[4999 - j]))
        for j in serial(6000):
            s2: v[j] = t[j % 5000]
        for j in serial(5000):
            s3: p2[i, j] = u[j]
        s4: p3[i] = addf(v[5001], t[2])
"""
    made = kernel(parsed(text))
    assert made.scratch == (44000, 40000) and made.launch.grid[0] == 2
    agrees(device, text)


@pytest.mark.parametrize("dtype", ["f32", "f16", "i64"])
def test_parameters_that_are_larger_than_a_device_binds(device, dtype, monkeypatch):
    """They are bound in pieces, here of 256 bytes, as single elements and as vectors."""
    from tilewright.codegen.clike.pieces import SplitBindings
    from tilewright.codegen.spirv import memory
    from tilewright.targets.vulkan import spirv

    for module in (memory, spirv):
        monkeypatch.setattr(module, "PIECES", SplitBindings(256))
    text = f"""
def f(p0: {dtype}[70, 8], p1: i32[8], p2: out({dtype}[8, 70]), p3: out({dtype}[70, 8])):
    for i in thread(8):
        for j in serial(70):
            s0: p2[i, j] = p0[j, index_cast[index](andi(p1[i], i32(7)))]
    for h in thread(70):
        for k in serial(2):
            for l in vector(4):
                s1: p3[h, k * 4 + l] = p0[h, k * 4 + l]
"""
    made = kernel(parsed(text))
    assert made.pieces == (-(-560 * NUMPY[dtype].itemsize // 256), 1, 1, 1) and len(made.writes) == sum(made.pieces)
    agrees(device, text, 0)


# ---- form


VALUES = [("f64", "addf(x[i], sitofp[f64](n[i]))"), ("f16", "remf(exp(x[i]), x[i])")]


@pytest.mark.parametrize(("dtype", "value"), VALUES)
def test_modules_are_valid(tmp_path, dtype, value):
    head = f"def k(x: {dtype}[9], n: i64[9], y: out({dtype}[9])):\n  for i in block.x(9):\n"
    data = binary(emit(parsed(f"{head}    y[i] = {value}"), MACHINE)[0])
    assert data.startswith(MAGIC)
    valid(tmp_path, data)


def test_all_kernels_of_a_model_are_valid(digits_path, tmp_path):
    made = tw.compile(digits_path, target="vulkan:text=spirv", inputs={"image": (1, 1, 8, 8)})
    for i, data in enumerate(made.package.objects.values()):
        folder = tmp_path / str(i)
        folder.mkdir()
        valid(folder, GpuKernel.unpack(data).code)


def test_a_schedule_shows_the_module():
    kernel = te.from_nest("def k(x: f32[64], y: out(f32[64])):\n  for i in serial(64):\n    s0: y[i] = negf(x[i])")
    s = Schedule(kernel, "vulkan:text=spirv")
    s.bind("i", "block.x")
    text = s.source("spirv")
    assert "spirv.FNegate" in text and 'spirv.ExecutionMode @k "LocalSize", 64, 1, 1' in text
    s.target = "vulkan"
    assert "@compute @workgroup_size(64, 1, 1)\nfn k" in s.source("wgsl")


def test_what_there_is_not_is_an_error_with_a_hint():
    with pytest.raises(UsageError, match="target vulkan has no text 'glsl'") as e:
        find("vulkan:text=glsl")
    assert "wgsl, spirv" in str(e.value)
    with pytest.raises(UnsupportedError, match="SPIR-V has no operation ctpop of i32"):
        emit(parsed("def k(x: i32[9], y: out(i32[9])):\n  for i in thread(9):\n    y[i] = ctpop(x[i])"), MACHINE)
    with pytest.raises(CompileError, match="which of them is used is not known"):
        emit(parsed("""
def k(x: f32[9], y: out(f32[9])):
    for i in thread(9):
        t = register(f32[9])
        for j in serial(9):
            t[j] = x[i]
        y[i] = t[7]
"""), MACHINE)  # fmt: skip
