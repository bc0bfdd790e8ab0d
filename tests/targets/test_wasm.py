"""Target wasm: models in Node, on one thread and several; the files of a site; what is refused, and how."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from support.onnx_models import model, node, value
from support.quantized_digits import digits_int8

import tilewright as tw
from tilewright.program.program import TensorInfo
from tilewright.support.errors import CompileError, PackageError, UnsupportedError, UsageError
from tilewright.targets import base
from tilewright.targets.wasm import run_here
from tilewright.targets.wasm.description import described
from tilewright.targets.wasm.module import IMPORTS, link
from tilewright.targets.wasm.program import barrier_count, program_llvm

#: what a site of a small model may take besides its weights
LARGEST_SITE = 100_000


@pytest.fixture
def here(need):
    need("node", "wasm-ld")


def weights(rng, **shapes):
    """Random constants by name; a name with ``scale`` is near one."""
    return {
        n: (1 + 0.1 * rng.standard_normal(s) if "scale" in n else rng.standard_normal(s) / 3).astype(np.float32)
        for n, s in shapes.items()
    }


def small_cnn():
    """Convolutions of all kinds, a shortcut, pools, a classifier."""
    rng = np.random.default_rng(1)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "w3": (8, 8, 1, 1), "w4": (8, 7)}
    nodes = [
        node("Conv", "x w1 b1", "a", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w2", "c", group=8, pads=[1, 1, 1, 1]),
        node("Conv", "c w3", "d"),
        node("Add", "b d", "e"),
        node("MaxPool", "e", "f", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "f", "g"),
        node("Flatten", "g", "h"),
        node("MatMul", "h w4", "i"),
        node("Softmax", "i", "y"),
    ]
    made = model(nodes, [value("x", (1, 3, 17, 20))], [value("y", (1, 7))], weights(rng, **shapes))
    return made, {"x": rng.standard_normal((1, 3, 17, 20)).astype(np.float32)}


def small_transformer():
    """Tokens, one layer of attention with a mask, and a feed-forward layer."""
    rng = np.random.default_rng(2)
    width, heads, length = 24, 3, 11
    shapes = dict.fromkeys(("wq", "wk", "wv", "wo"), (width, width))
    shapes |= {"table": (50, width), "w1": (width, 40), "w2": (40, width)}
    shapes |= {f"{n}{i}": (width,) for i in (1, 2) for n in ("scale", "shift")}
    constants = weights(rng, **shapes)
    constants |= {"split": np.array([1, length, heads, width // heads]), "join": np.array([1, length, width])}
    constants |= {"root": np.float32((width // heads) ** 0.5), "half": np.float32(0.5), "one": np.float32(1)}
    constants |= {"two": np.float32(2**0.5), "far": np.float32(-1e4)}
    nodes = [node("Gather", "table ids", "e")]
    for name, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            node("MatMul", f"e w{name}", f"{name}0"),
            node("Reshape", f"{name}0 split", f"{name}1"),
            node("Transpose", f"{name}1", name, perm=order),
        ]
    nodes += [
        node("MatMul", "q k", "s0"),
        node("Div", "s0 root", "s1"),
        node("Sub", "one mask", "m0"),
        node("Mul", "m0 far", "m1"),
        node("Add", "s1 m1", "s2"),
        node("Softmax", "s2", "p"),
        node("MatMul", "p v", "a0"),
        node("Transpose", "a0", "a1", perm=(0, 2, 1, 3)),
        node("Reshape", "a1 join", "a2"),
        node("MatMul", "a2 wo", "a3"),
        node("Add", "a3 e", "r1"),
        node("LayerNormalization", "r1 scale1 shift1", "n1"),
        node("MatMul", "n1 w1", "f0"),
        node("Div", "f0 two", "f1"),
        node("Erf", "f1", "f2"),
        node("Add", "f2 one", "f3"),
        node("Mul", "f0 f3", "f4"),
        node("Mul", "f4 half", "f5"),
        node("MatMul", "f5 w2", "f6"),
        node("Add", "f6 n1", "r2"),
        node("LayerNormalization", "r2 scale2 shift2", "y"),
    ]
    inputs = [value("ids", (1, length), TensorProto.INT64), value("mask", (1, 1, 1, length))]
    made = model(nodes, inputs, [value("y", (1, length, width))], constants)
    given = {"ids": rng.integers(0, 50, (1, length)), "mask": np.ones((1, 1, 1, length), np.float32)}
    given["mask"][..., 8:] = 0
    return made, given


# ---- running -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_digits(here, threads, compile_digits, digits_cases):
    images, expected, labels = digits_cases
    executable = compile_digits("wasm", threads=threads)
    assert executable.threads == threads
    got = np.stack([executable(image[None])[0][0] for image in images[:40]])
    assert np.abs(got - expected[:40]).max() < 1e-5
    assert np.mean(got.argmax(1) == labels[:40]) > 0.9
    executable.close()


@pytest.mark.parametrize("make", [small_cnn, small_transformer])
def test_models_on_threads(here, make):
    """The same numbers on any number of threads, and those of the reference."""
    made, given = make()
    (expected,) = ReferenceEvaluator(made).run(None, given)
    results = []
    for threads in (1, 2):
        executable = tw.compile(made, target="wasm", threads=threads)
        results += [executable(given)[0] for _ in range(3)]
        executable.close()
    assert np.abs(results[0] - expected).max() < 1e-4 * np.abs(expected).max()
    assert all(np.array_equal(r, results[0]) for r in results)


def test_int8_has_the_same_bits(here):
    images, _, made = digits_int8()
    wasm, native = (tw.compile(made, target=t, inputs={"image": (1, 1, 8, 8)}) for t in ("wasm", "cpu"))
    assert any("wasm_ss" in text for text in wasm.package.levels.values())
    for image in images[:12]:
        np.testing.assert_array_equal(wasm(image[None])[0], native(image[None])[0])
    wasm.close()


def test_products_of_bytes_are_exact_at_their_ends(here):
    """Sums of -128 * -128 and the like, for which signed products of pairs are largest."""
    w = np.full((48, 20), -128, np.int8)
    w[::3] = 127
    made = model(
        [node("MatMulInteger", "x w", "y")],
        [value("x", (5, 48), TensorProto.INT8)],
        [value("y", (5, 20), TensorProto.INT32)],
        {"w": w},
    )
    x = np.random.default_rng(4).choice(np.array([-128, -1, 0, 127], np.int8), (5, 48))
    x[0] = -128
    run = tw.compile(made, target="wasm")
    np.testing.assert_array_equal(run(x)[0], x.astype(np.int32) @ w.astype(np.int32))
    run.close()


@pytest.mark.parametrize(
    ("element", "operators"),
    [(TensorProto.DOUBLE, "Sin Exp Tanh Log"), (TensorProto.FLOAT, "Sin Exp Atan"), (TensorProto.FLOAT16, "Exp Sqrt")],
    ids=["f64", "f32", "f16"],
)
def test_functions(here, element, operators):
    """f64 has functions of JavaScript, f32 its own; f16 is converted by functions of the module."""
    names = [f"t{i}" for i in range(len(operators.split()))] + ["y"]
    nodes = [node("Abs", "x", "t0")]
    nodes += [node(o, a, b) for o, a, b in zip(operators.split(), names, names[1:], strict=False)]
    made = model(nodes, [value("x", (3, 7), element)], [value("y", (3, 7), element)])
    dtype = {TensorProto.DOUBLE: np.float64, TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}[element]
    x = (np.random.default_rng(5).random((3, 7)) + 0.1).astype(dtype)
    run = tw.compile(made, target="wasm")
    (expected,) = ReferenceEvaluator(made).run(None, {"x": x})
    worst = np.abs(run(x)[0].astype(float) - expected.astype(float)).max()
    assert worst <= 4 * np.finfo(dtype).eps * np.abs(expected).max()
    run.close()


def test_large_arrays(here):
    """More than fits a pipe, there and back."""
    made = model([node("Relu", "x", "y")], [value("x", (3, 250_001))], [value("y", (3, 250_001))])
    x = np.random.default_rng(6).standard_normal((3, 250_001)).astype(np.float32)
    run = tw.compile(made, target="wasm", threads=2)
    for sign in (1, -1):
        np.testing.assert_array_equal(run(sign * x)[0], np.maximum(sign * x, 0))
    run.close()


def test_relaxed_vectors(here, compile_digits, digits_cases):
    images, expected, _ = digits_cases
    executable = compile_digits("wasm:relaxed=yes")
    assert "relaxed-simd" in executable.package.description["features"]
    assert np.abs(executable(images[:1])[0][0] - expected[0]).max() < 1e-5
    executable.close()


def test_package_is_saved_and_run(here, compile_digits, digits_cases, tmp_path):
    images, expected, _ = digits_cases
    compile_digits("wasm").save(tmp_path / "d.tw")
    loaded = tw.load(tmp_path / "d.tw")
    assert np.abs(loaded(images[:1])[0][0] - expected[0]).max() < 1e-5
    loaded.close()


# ---- the site ------------------------------------------------------------------------------------------------------

RUNNER = {"runner.js", "runner.d.ts", "backends.js", "tensors.js", "wasm.js", "worker.js"}
PAGE = {"index.html", "page.js", "style.css", "serve.py"}
ALWAYS = {"model.json", "model.wasm", "weights.bin", "README.md", "memory.txt", "memory.svg"}


def test_site(need, compile_digits, tmp_path):
    need("wasm-ld")
    sizes = {f.name: f.stat().st_size for f in compile_digits("wasm").export(tmp_path / "site")}
    assert set(sizes) == ALWAYS | RUNNER | PAGE | {"model.threads.wasm"}
    assert sum(sizes.values()) - sizes["weights.bin"] < LARGEST_SITE
    told = json.loads((tmp_path / "site" / "model.json").read_text())
    assert told["inputs"] == [{"name": "image", "dtype": "f32", "shape": [1, 1, 8, 8], "bytes": 256}]
    assert told["weights"] == {"file": "weights.bin", "bytes": sizes["weights.bin"]}
    assert set(told["backends"]) == {"wasm", "wasm-threads"}
    assert "input `image: f32[1, 1, 8, 8]`" in (tmp_path / "site" / "README.md").read_text()


def test_site_without_threads_and_page(need, compile_digits, tmp_path):
    need("wasm-ld")
    written = compile_digits("wasm").export(tmp_path / "site", threads="no", page="no")
    assert {f.name for f in written} == ALWAYS | RUNNER
    assert set(json.loads((tmp_path / "site" / "model.json").read_text())["backends"]) == {"wasm"}


SCRIPT = """\
import fs from "node:fs";
import path from "node:path";
const folder = process.argv[2];
const { load, backends } = await import(path.join(folder, "runner.js"));
const files = {
  bytes: async (name) => new Uint8Array(fs.readFileSync(path.join(folder, name))),
  async stream(name, take) {
    const all = await this.bytes(name);
    for (let at = 0; at < all.length; at += 1000) take(all.subarray(at, at + 1000), at);
  },
};
const wrong = async (work) => { try { await work(); } catch (e) { return `${e.name}: ${e.message}`; } };
const seen = [];
const model = await load("", { files, onProgress: (done, total) => seen.push([done, total]) });
const first = await model.run({ image: new Float32Array(64).fill(0.5) });
const both = await Promise.all([1, 2].map((x) => model.run({ image: new Float32Array(64).fill(x) })));
const again = await model.run({ image: new Float32Array(64).fill(1) });
model.close();
const errors = [
  await wrong(() => model.run({ image: new Float32Array(63) })),
  await wrong(() => model.run({ image: new Float64Array(64) })),
  await wrong(() => model.run({ image: new Float32Array(64), other: 1 })),
  await wrong(() => load("", { files, backend: "gpu" })),
  await wrong(() => load("", { files, backend: "wasm-threads" })),
  await wrong(() => load("", { files: { ...files, stream: async () => {} } })),
  await wrong(() => model.run({ image: new Float32Array(64) })),
];
console.log(JSON.stringify({
  backend: model.backend, threads: model.threads, backends: backends.map((b) => b.name), progress: seen.at(-1),
  calls: seen.length, sum: first.outputs.probabilities.reduce((a, b) => a + b), time: first.milliseconds,
  same: both[0].outputs.probabilities.every((x, i) => x === again.outputs.probabilities[i]), errors,
}));
"""


def test_runner_in_a_script(here, compile_digits, tmp_path):
    """What a page would do: progress, calls at the same time, clear errors."""
    site = tmp_path / "site"
    compile_digits("wasm").export(site)
    (site / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.mjs").write_text(SCRIPT)
    done = subprocess.run(["node", "use.mjs", str(site)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    size = (site / "weights.bin").stat().st_size
    assert (told["backend"], told["threads"], told["progress"]) == ("wasm", 1, [size, size])
    assert told["backends"] == ["wasm-threads", "wasm"] and told["calls"] == 1 + -(-size // 1000)
    assert abs(told["sum"] - 1) < 1e-5 and told["same"] and told["time"] > 0
    length, kind, other, unknown, workers, short, closed = told["errors"]
    assert length == "TypeError: input image has 63 elements, it wants a Float32Array of 64 elements (f32[1, 1, 8, 8])"
    assert kind == "TypeError: input image wants a Float32Array of 64 elements (f32[1, 1, 8, 8])"
    assert other == "TypeError: the model has no input other"
    assert unknown == "Error: no backend gpu: there are wasm-threads, wasm"
    assert workers == "Error: wasm-threads: there are no workers"
    assert short == f"Error: weights.bin has 0 bytes instead of {size}"
    assert closed == "Error: the model is closed"


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_what_is_missing_is_named(compile_digits, monkeypatch):
    executable = compile_digits("wasm")
    image = np.zeros((1, 1, 8, 8), np.float32)
    run_here.node.cache_clear()
    with monkeypatch.context() as m:
        m.setattr("shutil.which", lambda name: None)
        with pytest.raises(UsageError, match=r"the linker wasm-ld, which was not found[\s\S]*apt install lld"):
            executable.export("nowhere")
    with monkeypatch.context() as m:
        m.setattr(run_here.shutil, "which", lambda name: None)
        with pytest.raises((PackageError, UsageError), match="was not found"):
            executable(image)
        with pytest.raises(PackageError, match=r"needs Node, which was not found[\s\S]*apt install nodejs"):
            run_here.node()
    with pytest.raises(UsageError, match="WebAssembly has no clock"):
        executable.profile([image])


def test_parameters():
    assert base.find("wasm:relaxed=no").name == "wasm"
    with pytest.raises(UsageError, match="no parameter relaxed=maybe"):
        tw.compile(small_cnn()[0], target="wasm:relaxed=maybe")


def test_open_sizes_are_refused():
    made = model([node("Relu", "x", "y")], [value("x", ("n", 4))], [value("y", ("n", 4))])
    with pytest.raises(UnsupportedError, match="open"):
        tw.compile(made, target="wasm", inputs={"x": (tw.Dim("n", 1, 8), 4)})


def test_bf16_is_refused():
    kind = TensorProto.BFLOAT16
    made = model([node("Exp", "x", "y")], [value("x", (4, 9), kind)], [value("y", (4, 9), kind)])
    with pytest.raises(UnsupportedError, match="bf16, which LLVM has not for WebAssembly"):
        tw.compile(made, target="wasm")


def test_functions_that_nobody_has(need):
    need("wasm-ld")
    made = model(
        [node("Erf", "x", "y")], [value("x", (4,), TensorProto.DOUBLE)], [value("y", (4,), TensorProto.DOUBLE)]
    )
    with pytest.raises(CompileError, match="neither WebAssembly nor JavaScript has: erf"):
        link(tw.compile(made, target="wasm").package, threads=False)
    assert "exp2f" in IMPORTS and "erf" not in IMPORTS


def test_too_large_a_model(compile_digits):
    package = compile_digits("wasm").package
    large = TensorInfo("w", (1 << 30,), "f32")
    program = replace(package.program, constants=(*package.program.constants, large))
    with pytest.raises(UnsupportedError, match="WebAssembly has 4294967296 at most"):
        link(replace_program(package, program), threads=False)


def replace_program(package, program):
    """A package with another program, and no constants to look at."""
    made = replace(package)
    made.program = program
    return made


# ---- the program ---------------------------------------------------------------------------------------------------


def test_who_runs_alone_waits_for_nobody(compile_digits):
    program = compile_digits("wasm").package.program
    alone, together = program_llvm(program, False), program_llvm(program, True)
    assert "call void @barrier" not in alone and "i64 %tid, i64 %n)\n" not in alone
    assert together.count("call void @barrier") == barrier_count(program) > 2
    assert described(False).define("call float @llvm.fma.f32(") == "call float @llvm.fmuladd.f32("


@pytest.mark.parametrize("threads", [1, 2])
def test_states_stay_in_its_memory(here, threads):
    """One state is written in place, of the other both buffers are needed; the processor says what is right."""
    nodes = [
        node("ScatterElements", "cache rows x", "next", axis=0),
        node("Slice", "past one end zero", "rest"),
        node("Concat", "rest x", "present", axis=0),
        node("ReduceMean", "present zero", "mean", keepdims=0),
        node("Add", "next mean", "y"),
    ]
    constants = {"zero": np.array([0]), "one": np.array([1]), "end": np.array([5])}
    inputs = [value("x", (1, 32)), value("rows", (1, 32), TensorProto.INT64)]
    inputs += [value("cache", (4, 32)), value("past", (5, 32))]
    outputs = [value("y", (4, 32)), value("next", (4, 32)), value("present", (5, 32))]
    made, states = model(nodes, inputs, outputs, constants), {"cache": "next", "past": "present"}
    runs = [tw.compile(made, states=states, target=t, threads=threads) for t in ("cpu", "wasm")]
    assert "past: f32[5, 32] <- present, two buffers" in str(runs[1])

    def step(i):
        rng = np.random.default_rng(i)
        given = rng.standard_normal((1, 32)).astype(np.float32), np.full((1, 32), i % 4)
        found = [run(*given)[0] for run in runs]
        assert np.abs(found[0] - found[1]).max() < 1e-5

    for i in range(3):
        step(i)
    for run in runs:
        run.states["cache"] = 2 * run.states["cache"]
        run.states["past"][1:3] = 7
    for i in range(3):
        step(i + 3)
    for name in states:
        assert np.abs(runs[0].states[name] - runs[1].states[name]).max() < 1e-5
    for run in runs:
        run.reset()
        assert not any(run.states[n].any() for n in states)
    step(6)
    runs[1].close()
