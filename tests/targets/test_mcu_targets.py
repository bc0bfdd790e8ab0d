"""Object files for microcontrollers: what a library holds, and models on simulated boards."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

import tilewright as tw
from tilewright.support.errors import CompileError, UsageError
from tilewright.targets.mcu.elf import archive, read
from tilewright.targets.mcu.machines import MACHINES

WITH_FPU = [m.name for m in MACHINES if m.fpu]
WITHOUT = [m.name for m in MACHINES if not m.fpu]
COMMAND = {m.name: m.board.command[0] for m in MACHINES}


@pytest.mark.parametrize("target", WITH_FPU)
def test_digits_on_the_simulated_machine(target, need, compile_digits, digits_cases):
    need(COMMAND[target], "ld.lld")
    executable = compile_digits(target)
    images, expected, labels = digits_cases
    runs = [[image[None].astype(np.float32)] for image in images[:40]]
    result = executable._target.emulate(executable.package, runs)
    got = np.stack([outputs[0][0] for outputs in result.outputs])
    assert np.abs(got - expected[:40]).max() < 1e-5
    assert np.mean(got.argmax(1) == labels[:40]) > 0.9
    if result.instructions is not None:
        assert result.instructions == sum(c.instructions for c in result.calls) > 10_000
        assert len(result.calls) == len(executable.package.program.calls)


def test_instructions_are_the_same_every_time(need, compile_digits):
    need("qemu-system-arm", "ld.lld")
    executable = compile_digits("cortex-m7")
    x = np.zeros((1, 1, 8, 8), np.float32)
    assert executable.emulate(x).instructions == executable.emulate(x).instructions


@pytest.mark.qemu
@pytest.mark.parametrize("target", WITH_FPU)
@pytest.mark.parametrize("name", ["kws_dscnn", "tiny_ae", "tiny_resnet8", "tiny_mobilenet"])
def test_models(name, target, need, case):
    need(COMMAND[target], "ld.lld")
    model = case(name)
    executable = tw.compile(model.path, target=target)
    result = executable.emulate(model.inputs)
    for expected, got in zip(model.expected.values(), result.outputs[0], strict=True):
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    program = executable.package.program
    assert program.arena_size <= 1.1 * program.arena_bound
    if target == "cortex-m7":
        assert result.sections["text"] < 40 << 10


@pytest.mark.parametrize("target", WITHOUT)
def test_floats_without_an_fpu_are_refused_by_name(target, need, compile_digits):
    need(COMMAND[target], "ld.lld")
    with pytest.raises(CompileError, match=f"{target} has no FPU"):
        compile_digits(target).emulate(np.zeros((1, 1, 8, 8), np.float32))


@pytest.fixture(scope="module")
def integer_model():
    """int8 times int8 with a bias, limited below, and halved: nothing but integers. Also weights, bias and inputs."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(3)
    w = rng.integers(-128, 128, (48, 20)).astype(np.int8)
    b = rng.integers(-5000, 5000, 20).astype(np.int32)
    constants = {"w": w, "b": b, "zx": np.int8(3), "zero": np.int32(0), "two": np.int32(2)}
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "zx"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["s"], name="bias"),
        helper.make_node("Max", ["s", "zero"], ["m"], name="limit"),
        helper.make_node("Div", ["m", "two"], ["y"], name="halve"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "integers",
        [info("x", TensorProto.INT8, [5, 48])],
        [info("y", TensorProto.INT32, [5, 20])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    runs = rng.integers(-128, 128, (6, 5, 48)).astype(np.int8)
    expected = np.maximum((runs.astype(np.int32) - 3) @ w.astype(np.int32) + b, 0) // 2
    return model, runs, expected


@pytest.mark.parametrize("target", ["c", "cpu", *[m.name for m in MACHINES]])
def test_integers_are_exact_everywhere(target, need, integer_model):
    model, runs, expected = integer_model
    executable = tw.compile(model, target=target)
    if target in COMMAND:
        need(COMMAND[target], "ld.lld")
        got = [outputs[0] for outputs in executable._target.emulate(executable.package, [[x] for x in runs]).outputs]
    else:
        need("cc")
        got = [executable(x)[0] for x in runs]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("target", [m.name for m in MACHINES])
def test_library(target, need, compile_digits, tmp_path):
    executable = compile_digits(target)
    executable.export(tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"libdigits.a", "digits.h", "sizes.txt", "memory.txt", "memory.svg"}
    header = (tmp_path / "digits.h").read_text()
    assert "int digits_run(void *arena, size_t arena_size, const float *image, float *probabilities);" in header
    assert "flash" in (tmp_path / "sizes.txt").read_text()
    need("clang")
    (tmp_path / "use.c").write_text('#include "digits.h"\nint size(void) { return (int)DIGITS_ARENA_SIZE; }\n')
    command = ["clang", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "use.c"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_running_here_is_refused(compile_digits):
    with pytest.raises(UsageError, match="does not run in this process"):
        compile_digits("cortex-m7").run({"image": np.zeros((1, 1, 8, 8), np.float32)})
    with pytest.raises(UsageError, match="has no emulator"):
        compile_digits("cpu").emulate(np.zeros((1, 1, 8, 8), np.float32))


def test_archive_has_an_index(compile_digits):
    objects = compile_digits("cortex-m4").package.objects
    data = archive({f"{k}.o": v for k, v in objects.items()})
    assert data.startswith(b"!<arch>\n/ ")
    for symbol, member in objects.items():
        assert symbol in read(member).defined and symbol.encode() in data[: data.index(b"//")]
    with pytest.raises(ValueError, match="ELF"):
        read(b"nothing" * 20)


def test_package_can_be_saved_and_emulated(need, compile_digits, digits_cases, tmp_path):
    need("qemu-system-arm", "ld.lld")
    images, expected, _ = digits_cases
    compile_digits("cortex-m4").save(tmp_path / "d.tw")
    got = tw.load(tmp_path / "d.tw").emulate(images[:1].astype(np.float32)).outputs[0][0]
    assert np.abs(got[0] - expected[0]).max() < 1e-5
