"""Target c with open dimensions: sizes are arguments; right at any size, checked, in exactly the memory it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.onnx_models import model, node, value
from support.open_models import MODELS, Writer, feeds
from support.open_spotters import SHAPE, features, in_int8, spotter

import tilewright as tw
from tilewright.support.errors import InputError, UnsupportedError
from tilewright.targets.c import run_here

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZE = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LENGTHS = (8, 9, 17, 49, 64, 127, 128)


@pytest.fixture(autouse=True)
def strict(need, monkeypatch):
    """What is run in this process compiles without a warning."""
    need("cc")
    monkeypatch.setattr(run_here, "FLAGS", (*STRICT, "-O1", "-shared", "-fPIC"))


def expected(given: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime computes what is expected")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(given.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, inputs)


@cache
def spotters(stride: int):
    made = spotter(stride=stride)
    return made, tw.compile(made, inputs={"x": SHAPE}, target="c")


# ---- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "attention", "encoder"])
def test_every_size(name):
    make, shapes = MODELS[name]
    run = tw.compile(make(), inputs=shapes, target="c")
    for batch, seq in ((1, 1), (16, 64), (3, 17), (5, 32), (2, 63)):
        given = feeds(name, batch, seq)
        for want, got in zip(expected(make(), given), run(given), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * abs(want).max(), err_msg=f"{batch} x {seq}")


@pytest.mark.parametrize("stride", [1, 2])
def test_the_keyword_spotter(stride):
    made, run = spotters(stride)
    for time in LENGTHS:
        x = features(time)
        np.testing.assert_allclose(run(x)[0], expected(made, {"x": x})[0], rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="time is 129 in input 'x', it has to be 8 to 128"):
        run(features(129))


@pytest.mark.parametrize("stride", [1, 2])
def test_the_keyword_spotter_in_int8(stride, tools):
    """Its numbers are those of ONNX Runtime and of this machine, but for halves that are rounded to the other side."""
    made = in_int8(spotter(stride=stride), tools)
    run = tw.compile(made, inputs={"x": SHAPE}, target="c")
    host = tw.compile(made, inputs={"x": SHAPE if stride == 1 else (1, 1, 49, 10)})
    for time in LENGTHS:
        x = np.random.default_rng(time).integers(-128, 128, (1, 1, time, 10)).astype(np.int8)
        (got,) = run(x)
        for other in (expected(made, {"x": x})[0], host(x)[0] if stride == 1 or time == 49 else got):
            apart = np.abs(got.astype(np.int32) - other)
            assert apart.max() <= 1 and apart.sum() <= 2, time


@pytest.mark.parametrize("stride", [1, 2])
def test_memory_is_that_of_the_largest_size(stride):
    """Layers run row by row, with rings between them, as in a program of one size; a shorter input needs less."""
    made, run = spotters(stride)
    largest = tw.compile(made, inputs={"x": (1, 1, 128, 10)}, target="c").package.program.arena_size
    assert run.sizes.table({"time": 128})[1] <= 1.05 * largest
    assert run.sizes.table({"time": 8})[1] <= 0.3 * largest


def test_another_range_is_another_program():
    """What rules have found for one range is not taken for another one."""
    made, _ = spotters(2)
    for high in (9, 40):
        run = tw.compile(made, inputs={"x": (1, 1, tw.Dim("time", 1, high), 10)}, target="c")
        for time in (1, 2, high):
            x = features(time)
            np.testing.assert_allclose(run(x)[0], expected(made, {"x": x})[0], rtol=0, atol=1e-5)


# ---- the files -------------------------------------------------------------------------------------------------------

#: reads lengths and inputs from stdin; arenas and arrays have exactly the bytes that are asked for
DRIVER = """\
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

static unsigned char *aligned(unsigned char *whole)
{
    while ((uintptr_t)whole % MODEL_ARENA_ALIGN)
        ++whole;
    return whole;
}

int main(void)
{
    int32_t time, shape[2];
    while (fread(&time, sizeof(time), 1, stdin) == 1) {
        const size_t bytes = model_arena_size(time);
        unsigned char *whole = malloc(bytes + MODEL_ARENA_ALIGN - 1);
        unsigned char *arena = aligned(whole);
        float *x = malloc((size_t)time * 10 * sizeof(float));
        float y[12];
        size_t i;
        /* the arena ends where the memory ends */
        if (arena + bytes < whole + bytes + MODEL_ARENA_ALIGN - 1) {
            free(whole);
            whole = malloc(bytes);
            arena = aligned(whole);
            if (arena != whole)
                return 1;
        }
        if (bytes == 0 || bytes > MODEL_ARENA_SIZE)
            return 2;
        for (i = 0; i < bytes; ++i)
            arena[i] = 0xaa;
        if (fread(x, sizeof(float) * 10, (size_t)time, stdin) != (size_t)time)
            return 3;
        if (model_run(arena, bytes, time, x, y) != MODEL_OK)
            return 4;
        if (model_run(arena, bytes - 1, time, x, y) != MODEL_ARENA_TOO_SMALL)
            return 5;
        if (model_run(arena, bytes, MODEL_TIME_MIN - 1, x, y) != MODEL_SIZE_OUT_OF_RANGE
            || model_run(arena, bytes, MODEL_TIME_MAX + 1, x, y) != MODEL_SIZE_OUT_OF_RANGE
            || model_run(arena, bytes, -time, x, y) != MODEL_SIZE_OUT_OF_RANGE)
            return 6;
        if (model_run(NULL, bytes, time, x, y) != MODEL_NULL_POINTER)
            return 7;
        if (model_output_shape(time, 0, shape) != 2 || shape[0] != 1 || shape[1] != 12)
            return 8;
        fwrite(y, sizeof(y), 1, stdout);
        free(whole);
        free(x);
    }
    if (model_arena_size(MODEL_TIME_MIN - 1) != 0 || model_arena_size(MODEL_TIME_MAX + 1) != 0)
        return 9;
    if (model_output_shape(MODEL_TIME_MAX + 1, 0, shape) != -1 || model_output_shape(MODEL_TIME_MAX, 1, shape) != -1)
        return 10;
    if (model_inputs[0].bytes != MODEL_TIME_MAX * 10 * sizeof(float) || model_inputs[0].shape[2] != MODEL_TIME_MAX)
        return 11;
    return 0;
}
"""


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("flags", [("-O3",), SANITIZE], ids=["O3", "sanitized"])
def test_the_files(compiler, flags, need, tmp_path):
    need(compiler)
    made, run = spotters(1)
    run.export(tmp_path)
    (tmp_path / "driver.c").write_text(DRIVER)
    command = [compiler, *STRICT, *flags, "-o", "driver", "model.c", "model_weights.c", "driver.c", "-lm"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "libclang_rt" in built.stderr:
        pytest.skip(f"{compiler} has no sanitizer library")
    assert built.returncode == 0, built.stderr
    data = b"".join(np.int32(t).tobytes() + features(t).tobytes() for t in LENGTHS)
    done = subprocess.run([str(tmp_path / "driver")], input=data, capture_output=True)
    assert done.returncode == 0, (done.returncode, done.stderr.decode())
    got = np.frombuffer(done.stdout, np.float32).reshape(len(LENGTHS), 12)
    for time, y in zip(LENGTHS, got, strict=True):
        np.testing.assert_allclose(y, expected(made, {"x": features(time)})[0][0], rtol=0, atol=1e-5)


def test_the_example_builds_and_runs(need, tmp_path):
    need("make", "gcc")
    spotters(1)[1].export(tmp_path)
    flags = "CFLAGS=-O1 -std=c99 -Wall -Wextra -Wpedantic -Werror"
    subprocess.run(["make", "-s", "CC=gcc", flags, "example"], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([str(tmp_path / "example")], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("y0[0] = ")
    assert (tmp_path / "memory.txt").read_text().startswith("at time 32: arena ")


def test_the_header_says_what_sizes_mean(tmp_path):
    spotters(1)[1].export(tmp_path)
    header = (tmp_path / "model.h").read_text()
    for line in (
        " * input  x: f32[1, 1, time, 10]",
        " * time is 8 to 128",
        "#define MODEL_TIME_MIN 8",
        "#define MODEL_TIME_MAX 128",
        "size_t model_arena_size(int32_t time);",
        "int model_output_shape(int32_t time, int output, int32_t *shape);",
        "int model_run(void *arena, size_t arena_size, int32_t time, const float *x, float *y0);",
    ):
        assert line in header.splitlines(), header


def test_shapes_of_outputs_and_multiples(tmp_path, need):
    """Two outputs of open shapes; a dimension that a number divides, whose range ends between its multiples."""
    need("gcc")
    given = model(
        [node("Concat", "x x", "y", axis=1), node("Slice", "x from to axes", "z")],
        [value("x", ["n", 3])],
        [value("y", ["n", 6]), value("z", ["m", 3])],
        {"from": np.array([1]), "to": np.array([1 << 40]), "axes": np.array([0])},
    )
    run = tw.compile(given, inputs={"x": (tw.Dim("n", 5, 30, 4), 3)}, target="c")
    for n in (8, 12, 28):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        y, z = run(x)
        np.testing.assert_array_equal(y, np.concatenate([x, x], 1))
        np.testing.assert_array_equal(z, x[1:])
    run.export(tmp_path)
    (tmp_path / "main.c").write_text("""\
#include "g.h"

int main(void)
{
    int32_t shape[2];
    if (g_output_shape(12, 1, shape) != 2 || shape[0] != 11 || shape[1] != 3)
        return 1;
    if (g_output_shape(12, 0, shape) != 2 || shape[0] != 12 || shape[1] != 6)
        return 2;
    return g_output_shape(13, 0, shape) == -1 && g_arena_size(10) == 0 && G_N_MIN == 8 && G_N_MAX == 28 ? 0 : 3;
}
""")
    name = run.package.report["model"]
    text = (tmp_path / "main.c").read_text().replace("g_", f"{name}_").replace("G_", f"{name.upper()}_")
    (tmp_path / "main.c").write_text(text.replace('"g.h"', f'"{name}.h"'))
    command = ["gcc", *STRICT, "-o", "main", f"{name}.c", f"{name}_weights.c", "main.c", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([str(tmp_path / "main")]).returncode == 0


@pytest.mark.parametrize("names", [("base", "exp"), ("int", "v1"), ("x", "arena"), ("größe", "in0")])
def test_dimensions_may_be_called_anything(names):
    """Keywords, functions of C, and names that the code itself has."""
    w = Writer()
    y = w.op("Softmax", w.op("Exp", w.linear("x", 8, 8)), axis=1)
    given = w.model([value("x", ["a", "b", 8])], {y: ["a", "b", 8]})
    a, b = (tw.Dim(n, 1, 9) for n in names)
    run = tw.compile(given, inputs={"x": (a, b, 8)}, target="c")
    for shape in ((1, 9, 8), (4, 3, 8)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(run(x)[0], expected(given, {"x": x})[0], rtol=0, atol=1e-5)


LOADS = """
import sys, numpy as np
for name in ("onnx", "torch_mlir", "torch", "onnxruntime"):
    sys.modules[name] = None
import tilewright as tw
run = tw.load(sys.argv[1])
given = np.load(sys.argv[2])
for time in (8, 33, 128):
    assert abs(run(given[f"x{time}"])[0] - given[f"y{time}"]).max() < 1e-5, time
run.export(sys.argv[3])
"""


def test_a_saved_package_needs_no_compiler_but_cc(tmp_path):
    made, run = spotters(1)
    run.save(tmp_path / "m.tw")
    times = (8, 33, 128)
    arrays = {f"x{t}": features(t) for t in times} | {f"y{t}": expected(made, {"x": features(t)})[0] for t in times}
    np.savez(tmp_path / "x.npz", **arrays)
    (tmp_path / "loads.py").write_text(LOADS)
    command = [sys.executable, "loads.py", "m.tw", "x.npz", "out"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tw.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    run.export(tmp_path / "own")
    for name in ("model.h", "model.c", "example.c", "memory.txt"):
        assert (tmp_path / "out" / name).read_text() == (tmp_path / "own" / name).read_text()


def test_what_is_too_large_for_32_bits_is_refused():
    given = model([node("Relu", "x", "y")], [value("x", ["n", "m"])], [value("y", ["n", "m"])], {})
    with pytest.raises(UnsupportedError, match="an array of 4000000000 elements"):
        tw.compile(given, inputs={"x": ("n:1..40000", "m:1..100000")}, target="c")
