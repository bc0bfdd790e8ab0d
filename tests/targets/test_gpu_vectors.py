"""Neighbours that are read and written at once in OpenCL C, WGSL and SPIR-V: right, and as few accesses as there can
be."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
from support.expressions import EXPRESSIONS, nest_of
from support.gpus import device_of, run_on

from tilewright.codegen.clike.opencl import OPENCL
from tilewright.codegen.clike.printer import emit
from tilewright.codegen.clike.wgsl import WGSL, WGSL_64
from tilewright.codegen.spirv.emitter import emit as emit_spirv
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.text import parse_nest
from tilewright.targets.gpu.describe import GpuDescription
from tilewright.targets.gpu.kernels import kernel
from tilewright.targets.vulkan.spirv import built
from tilewright.tensor.evaluate import NUMPY

MACHINE = GpuDescription()

#: by shared memory, with rows that begin at the end, and one parameter that is read one element at a time too
ROWS = """
def f(x: {d}[16, 8], b: {d}[8], y: out({d}[16, 8])):
    p = shared({d}[16, 8])
    for u in block.x(16):
        for h in unroll(2):
            for l in vector(4):
                s0: p[u, h * 4 + l] = {add}(x[u, h * 4 + l], b[h * 4 + l])
    barrier(block)
    for v in block.x(16):
        for i in serial(2):
            for m in vector(4):
                s1: y[15 - v, i * 4 + m] = {add}(p[15 - v, i * 4 + m], b[7 - i * 4 - m])
"""
#: sums in turn, guards, a row that memory selects, places that are no multiple of four
OTHERS = """
def f(x: {d}[16, 8], n: i32[16], y: out({d}[16, 8]), z: out({d}[16]), w: out({d}[16, 9])):
    for u in block.x(16):
        t = register({d}[16])
        s0: t[u] = {d}(0)
        for h in unroll(2):
            for l in vector(4):
                s1: t[u] = {add}(t[u], x[u, h * 4 + l])
            for l in vector(4):
                s2: y[u, h * 4 + l] = guard(cmpi.slt(l, 3), x[index_cast[index](n[u]), h * 4 + l], x[u, h * 4 + l])
            for l in vector(4):
                s3: w[u, h * 4 + l] = x[index_cast[index](n[u]), h * 4 + l]
        s4: z[u] = t[u]
        s5: w[u, 8] = t[u]
"""


@pytest.fixture(scope="module", params=["opencl", "vulkan", "spirv"])
def gpu(request):
    """A device, and what makes kernels for it."""
    device = device_of("opencl" if request.param == "opencl" else "vulkan")
    dialect = {"opencl": OPENCL, "vulkan": WGSL_64, "spirv": None}[request.param]
    return device, lambda nest: kernel(emit(nest, dialect), dialect) if dialect else built(nest, MACHINE)


def parsed(text: str, dtype: str):
    text = text.format(d=dtype, add="addi" if dtype.startswith("i") else "addf")
    return finish(parse_nest(re.sub(r"(f\d+|bf16)\(0\)", r"\1(0.0)", text).strip(), MACHINE))


@pytest.mark.parametrize("dtype", ["f32", "i32", "f16", "bf16", "i8", "i16", "i64", "f64"])
@pytest.mark.parametrize("text", [ROWS, OTHERS], ids=["rows", "others"])
def test_neighbours(gpu, text, dtype):
    device, made = gpu
    nest, random = parsed(text, dtype), np.random.default_rng(0)
    given = {
        p.name: random.integers(0, 16, p.shape).astype(NUMPY[p.dtype])
        for p in nest.params
        if p.name not in nest.outputs
    }
    want = interpret_nest(nest, given, MACHINE)
    arrays = {p.name: given.get(p.name, np.zeros(p.shape, NUMPY[p.dtype])) for p in nest.params}
    run_on(device, made(nest), list(arrays.values()))
    for name in nest.outputs:
        assert (arrays[name].view("u1") == want[name].astype(arrays[name].dtype).view("u1")).all(), name


def test_truth_values(gpu):
    device, made = gpu
    nest = finish(parse_nest("""
def f(x: i1[64], v: i32[64], y: out(i1[64]), w: out(i32[64])):
    for u in block.x(16):
        for l in vector(4):
            s0: y[u * 4 + l] = xori(x[u * 4 + l], cmpi.sgt(v[u * 4 + l], i32(0)))
        for l in vector(4):
            s1: w[u * 4 + l] = extui[i32](x[u * 4 + l])
""".strip(), MACHINE))  # fmt: skip
    random = np.random.default_rng(1)
    x, v = random.integers(0, 2, 64).astype(bool), random.integers(-9, 9, 64).astype("i4")
    y, w = np.zeros(64, bool), np.zeros(64, "i4")
    run_on(device, made(nest), [x, v, y, w])
    assert (y == (x ^ (v > 0))).all() and (w == x).all()


def test_as_many_accesses_as_there_must_be():
    """Whole words and vectors, and nothing atomic."""
    text = emit(parsed(ROWS, "f32"), OPENCL).text(OPENCL)
    assert text.count("*(__global const float4 *)") == 4 and text.count("*(__global float4 *)") == 1
    assert text.count("*(__local float4 *)") == 2 and text.count("*(__local const float4 *)") == 1
    made = emit(parsed(ROWS, "f32"), WGSL)
    assert [kind for _, kind, _ in made.params] == ["vec4<f32>"] * 3 and "array<vec4<f32>, 32>" in made.shared[0]
    half = emit(parsed(ROWS, "f16"), WGSL)
    assert [kind for _, kind, _ in half.params] == ["u32"] * 3 and "atomic" not in half.text(WGSL)
    other = emit(parsed(OTHERS, "f16"), WGSL)  # `w` and `z` are changed within words
    assert [kind for _, kind, _ in other.params] == ["u32", "i32", "u32", "atomic<u32>", "atomic<u32>"]
    spirv = emit_spirv(parsed(ROWS, "f32"), MACHINE)[0]
    assert (
        spirv.count('spirv.Store "StorageBuffer"') == 1 and "Atomic" not in emit_spirv(parsed(ROWS, "i8"), MACHINE)[0]
    )


@pytest.mark.parametrize("dtype", ["f32", "f16", "i8"])
def test_modules_are_valid(tmp_path, dtype):
    if (path := shutil.which("spirv-val")) is None:
        pytest.skip("no spirv-val: apt install spirv-tools")
    (tmp_path / "k.spv").write_bytes(built(parsed(ROWS, dtype), MACHINE).code)
    done = subprocess.run([path, "--target-env", "vulkan1.1", "k.spv"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


#: compiles texts and says which are none, in the browser's log
PAGE = """<script>(async () => {
    const device = await (await navigator.gpu.requestAdapter())?.requestDevice();
    if (!device) return console.log("RESULT no device END");
    let wrong = [];
    for (const code of TEXTS) {
        const info = await device.createShaderModule({ code }).getCompilationInfo();
        wrong.push(...info.messages.filter((m) => m.type == "error").map((m) => m.message));
    }
    console.log("RESULT " + wrong.join("; ") + " END");
})();</script>"""


def test_browsers_take_all_texts(tmp_path):
    """Chromium reads WGSL more strictly than wgpu."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: apt install chromium")
    nests = [parsed(t, d) for t in (ROWS, OTHERS) for d in ("f32", "i32", "f16", "bf16", "i8", "i16", "i64")]
    nests += [nest_of(e, f"k{i}", "thread") for i, e in enumerate(EXPRESSIONS[::4])]
    texts = [kernel(emit(n, WGSL), WGSL).text for n in nests]
    texts.append(WGSL.definitions(WGSL.helpers) + "@compute @workgroup_size(1) fn k() { }")
    (tmp_path / "page.html").write_text(PAGE.replace("TEXTS", json.dumps(texts)))
    flags = (
        "--headless=new --no-sandbox --enable-unsafe-webgpu --use-webgpu-adapter=swiftshader --enable-logging=stderr"
    )
    command = [
        chromium,
        *flags.split(),
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}/profile",
        f"file://{tmp_path}/page.html",
    ]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    alarm = threading.Timer(60, browser.kill)
    alarm.start()
    assert browser.stderr is not None
    try:
        said = next((m[1] for line in browser.stderr if (m := re.search("RESULT (.*) END", line))), None)
    finally:
        alarm.cancel()
        browser.kill()
        browser.wait()
        browser.stderr.close()
    if said is None or said == "no device":
        pytest.skip("Chromium has no WebGPU here")
    assert said == ""
