"""Target c: generated C compiles without a warning, runs clean under sanitizers, and computes what the model says."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.expressions import EXPRESSIONS, meaning, nest_of, values

import tilewright as tw
from tilewright.codegen.clike.c99 import C99
from tilewright.codegen.clike.printer import emit
from tilewright.support.errors import UsageError

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZE = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

#: runs the model on the inputs of stdin, one after the other, and writes the outputs to stdout
DRIVER = """\
#include <stdio.h>
#include <stdlib.h>
#include "{n}.h"

static {t_in} in[{inputs}];
static {t_out} out[{outputs}];

int main(void)
{{
    /* of exactly the size asked for, so that a sanitizer sees every byte beyond it */
    unsigned char *arena = NULL;
    unsigned char *whole = malloc({N}_ARENA_SIZE + {N}_ARENA_ALIGN);
    size_t i;
    for (i = 0; i < {N}_ARENA_ALIGN; ++i)
        if (((uintptr_t)(whole + i)) % {N}_ARENA_ALIGN == 0)
            arena = whole + i;
    while (fread(in, sizeof(in), 1, stdin) == 1) {{
        for (i = 0; i < {N}_ARENA_SIZE; ++i)
            arena[i] = 0xaa;
        if ({n}_run(arena, {N}_ARENA_SIZE, in, out) != {N}_OK)
            return 1;
        fwrite(out, sizeof(out), 1, stdout);
    }}
    if ({n}_run(NULL, {N}_ARENA_SIZE, in, out) != {N}_NULL_POINTER)
        return 2;
    if ({n}_run(arena, {N}_ARENA_SIZE, NULL, out) != {N}_NULL_POINTER)
        return 2;
    if ({n}_run(arena, {N}_ARENA_SIZE, in, NULL) != {N}_NULL_POINTER)
        return 3;
    if ({n}_run(arena + 1, {N}_ARENA_SIZE, in, out) != {N}_MISALIGNED)
        return 4;
    if ({n}_run(arena, {N}_ARENA_SIZE - 1, in, out) != {N}_ARENA_TOO_SMALL)
        return 5;
    if ({n}_run(arena, 0, in, out) != {N}_ARENA_TOO_SMALL)
        return 5;
    if ({n}_inputs[0].bytes != sizeof(in) || {n}_outputs[0].bytes != sizeof(out))
        return 6;
    free(whole);
    return 0;
}}
"""


def write(executable, folder, **settings) -> str:
    """Export with a driver beside it; returns the C name of the model."""
    executable.export(folder, **settings)
    name = executable.package.report["model"]
    x, y = executable.inputs[0], executable.outputs[0]
    text = DRIVER.format(
        n=name, N=name.upper(), t_in="float", t_out="float", inputs=np.prod(x.shape), outputs=np.prod(y.shape)
    )
    (folder / "driver.c").write_text(text)
    return name


def build_and_run(folder, name, compiler, flags, data, weights="c") -> bytes:
    command = [compiler, *STRICT, *flags, "-o", "driver", f"{name}.c", f"{name}_weights.{weights}", "driver.c", "-lm"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if "libclang_rt" in built.stderr:
        pytest.skip(f"{compiler} has no sanitizer library")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([str(folder / "driver")], input=data, capture_output=True)
    assert done.returncode == 0, (done.returncode, done.stderr.decode())
    return done.stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("flags", [("-O3",), SANITIZE], ids=["O3", "sanitized"])
def test_digits(compiler, flags, need, compile_digits, digits_cases, tmp_path):
    need(compiler)
    executable = compile_digits("c")
    name = write(executable, tmp_path)
    images, expected, labels = digits_cases
    got = build_and_run(tmp_path, name, compiler, flags, images[:200].astype(np.float32).tobytes())
    got = np.frombuffer(got, np.float32).reshape(200, -1)
    assert np.abs(got - expected[:200]).max() < 1e-5
    assert np.mean(got.argmax(1) == labels[:200]) > 0.95


def test_random_inputs_against_the_host(need, compile_digits, tmp_path):
    need("gcc")
    name = write(compile_digits("c"), tmp_path)
    host = compile_digits("cpu", threads=1)
    x = (np.random.default_rng(7).standard_normal((200, 1, 8, 8)) * 3).astype(np.float32)
    got = build_and_run(tmp_path, name, "gcc", SANITIZE, x.tobytes())
    expected = np.stack([host(a[None])[0][0] for a in x])
    np.testing.assert_allclose(np.frombuffer(got, np.float32).reshape(200, -1), expected, atol=1e-5)


def test_weights_as_a_blob(need, compile_digits, digits_cases, tmp_path):
    need("gcc")
    name = write(compile_digits("c"), tmp_path, weights="blob")
    images, expected, _ = digits_cases
    got = build_and_run(tmp_path, name, "gcc", ("-O2",), images[:4].astype(np.float32).tobytes(), weights="S")
    assert np.abs(np.frombuffer(got, np.float32).reshape(4, -1) - expected[:4]).max() < 1e-5


@pytest.mark.parametrize("name", ["kws_dscnn", "tiny_ae", "tiny_resnet8", "tiny_mobilenet", "gpt2_tiny", "t5_tiny"])
def test_models_in_process(name, need, case):
    need("cc")
    model = case(name)
    outputs = tw.compile(model.path, target="c").run(model.inputs)
    for expected, got in zip(model.expected.values(), outputs, strict=True):
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


def test_make_and_cmake_examples(need, compile_digits, tmp_path):
    need("make", "cmake", "gcc")
    compile_digits("c").export(tmp_path)
    subprocess.run(["make", "-s", "CC=gcc", "example"], cwd=tmp_path, check=True, capture_output=True)
    by_make = subprocess.run([str(tmp_path / "example")], check=True, capture_output=True, text=True).stdout
    assert by_make.startswith("probabilities[0] = ")
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert subprocess.run([str(tmp_path / "build" / "example")], capture_output=True, text=True).stdout == by_make


def test_text_is_readable_and_self_contained(compile_digits):
    files = compile_digits("c")._target.export(compile_digits("c").package, {})
    code = files["digits.c"].decode()
    assert "malloc" not in code and "stdio" not in code and "printf" not in code
    assert "Conv" in code and "for (int32_t" in code
    assert max(map(len, code.splitlines())) <= 120
    assert files == compile_digits("c")._target.export(compile_digits("c").package, {})  # the same every time


def test_package_of_sources_can_be_saved_and_loaded(need, compile_digits, digits_cases, tmp_path):
    need("cc")
    images, expected, _ = digits_cases
    compile_digits("c").save(tmp_path / "d.tw")
    got = tw.load(tmp_path / "d.tw").run({"image": images[:1].astype(np.float32)})[0]
    assert np.abs(got[0] - expected[0]).max() < 1e-5


def test_wrong_settings_are_refused(compile_digits, tmp_path):
    with pytest.raises(UsageError, match="setting 'weights' cannot be 'x'"):
        compile_digits("c").export(tmp_path, weights="x")
    with pytest.raises(UsageError, match="no setting 'w'"):
        compile_digits("c").export(tmp_path, w="x")
    with pytest.raises(UsageError, match="makes packages"):
        compile_digits("cpu").export(tmp_path)


# ---- expressions -----------------------------------------------------------------------------------------------------


def test_every_operation_means_what_the_evaluator_says(need, tmp_path):
    """One kernel an expression, on numbers with all the special values, under sanitizers' rules."""
    need("gcc")
    made = [emit(nest_of(e, f"f{i}"), C99) for i, e in enumerate(EXPRESSIONS)]
    kernels = [f.text(C99).replace("KERNEL ", "") for f in made]
    head = "#include <stdint.h>\n#include <math.h>\n#include <float.h>\n"
    (tmp_path / "f.c").write_text(head + C99.file(kernels, {h for f in made for h in f.helpers}))
    flags = ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC", "-Wno-missing-prototypes")
    built = subprocess.run(
        ["gcc", *STRICT, *flags, "-o", "f.so", "f.c", "-lm"], cwd=tmp_path, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    library, env = ctypes.CDLL(str(tmp_path / "f.so")), values()
    for i, e in enumerate(EXPRESSIONS):
        got = np.empty(env["a"].size, np.float32)
        getattr(library, f"f{i}")(*(x.ctypes.data_as(ctypes.c_void_p) for x in (*env.values(), got)))
        np.testing.assert_allclose(got, meaning(e, env), rtol=3e-7, atol=1e-44, err_msg=str(e))


def test_names_that_c_takes_for_something_else(tmp_path):
    """Words, types, macros and functions of C and C++, names of the generated code, and names that become one."""
    names = "NULL main printf int errno stdin uintptr_t KERNEL arena model_run class I linux M_PI expf memcpy é x.y x_y"
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [7]) for n in names.split()]
    nodes = [helper.make_node("Sum", names.split(), ["t"]), helper.make_node("Softmax", ["t"], ["stdout"], axis=0)]
    outputs = [helper.make_tensor_value_info("stdout", TensorProto.FLOAT, [7])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    path = tmp_path / "time.onnx"  # files of this name would replace those of the C library
    onnx.save(model, path)
    tw.compile(path, target="c").export(tmp_path)
    assert '{"\\303\\251", "f32"' in (tmp_path / "time_model.c").read_text()
    for compiler, kind in (("gcc -std=gnu99", "c"), ("g++", "cpp")):
        if not shutil.which(compiler.split()[0]):
            continue
        headers = ("errno.h", "stdio.h", "stdbool.h", "math.h", "complex.h", "time.h", "iso646.h")
        user = tmp_path / f"user.{kind}"
        user.write_text("".join(f"#include <{h}>\n" for h in (*headers, "time_model.h")))
        for source in [user] if kind == "cpp" else [user, *tmp_path.glob("time_*.c"), tmp_path / "example.c"]:
            subprocess.run([*compiler.split(), f"-I{tmp_path}", "-c", source, "-o", tmp_path / "a.o"], check=True)
