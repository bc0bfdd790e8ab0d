"""int8 models on every target: the bits of the host, on processors without an FPU too; code sizes; the digits CNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.modules import load_module

import tilewright as tw
from tilewright.codegen.llvm.assemble import assembly, mlir_to_llvm
from tilewright.targets.mcu.machines import MACHINES

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = {m.name: m.board.command[0] for m in MACHINES}
MODELS = ["kws_dscnn", "tiny_ae", "tiny_resnet8", "tiny_mobilenet"]


@pytest.fixture(scope="module")
def digits_int8(digits_path, tools):
    """The digits CNN in int8, calibrated on training images; test images as its inputs, and their labels."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install tilewright[demo]")
    data = load_module("digits_data", digits_path.parent / "data.py")
    (train, _), (test, labels) = data.load()
    model = tools.quantize(onnx.load(digits_path), [{"image": x[None]} for x in train[:200]], integers=True)
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    q = np.clip(np.rint(test / arrays["image_scale"]) + arrays["image_zero"], -128, 127).astype(np.int8)
    return model, q[:, None], labels


def run(executable, inputs):
    """Outputs of one run for each of the inputs, here or on the simulated board, and what the board says."""
    if executable.package.target in COMMAND:
        result = executable._target.emulate(executable.package, [[x] for x in inputs])
        return [outputs[0] for outputs in result.outputs], result
    return [executable(x)[0].copy() for x in inputs], None


@pytest.mark.parametrize("target", ["c", *COMMAND])
def test_digits(target, need, digits_int8):
    need(*([COMMAND[target], "ld.lld"] if target in COMMAND else ["cc"]))
    model, images, labels = digits_int8
    few = images[:30] if target in COMMAND else images[:200]
    expected, _ = run(tw.compile(model), few)
    got, board = run(tw.compile(model, target=target), few)
    np.testing.assert_array_equal(got, expected)
    assert np.mean([g.argmax() for g in got] == labels[: len(few)]) > 0.95
    assert board is None or board.sections["text"] < 24 << 10


@pytest.mark.parametrize("name", MODELS)
def test_models_in_c(name, need, int8_model):
    need("cc")
    model, inputs = int8_model(name)
    expected, _ = run(tw.compile(model), inputs)
    got, _ = run(tw.compile(model, target="c"), inputs)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.qemu
@pytest.mark.parametrize("target", COMMAND)
@pytest.mark.parametrize("name", MODELS)
def test_models(name, target, need, int8_model):
    need(COMMAND[target], "ld.lld")
    model, inputs = int8_model(name)
    expected, _ = run(tw.compile(model), inputs)
    executable = tw.compile(model, target=target)
    got, board = run(executable, inputs)
    np.testing.assert_array_equal(got, expected)
    program = executable.package.program
    assert program.arena_size <= 1.1 * program.arena_bound
    if target == "cortex-m7":
        assert board.sections["text"] < 40 << 10


#: instructions that the kernels of a target must have
DOTS = {"cortex-m4": "smlad", "cortex-m7": "smlad", "cortex-m33": "smlad", "cortex-m55": "vmlava", "aarch64": "sdot"}


@pytest.mark.parametrize("target", DOTS)
def test_instructions(target, digits_int8):
    machine = next(m for m in MACHINES if m.name == target)
    state = tw.compile(digits_int8[0], target=target, stop_after="emit").state
    text = "".join(
        assembly(mlir_to_llvm(t, name, machine.code.index_bits), machine.code) for name, t in state.emitted.items()
    )
    assert DOTS[target] in text
