"""Fixtures for tests of targets: the digits model and its images, small exported models, tools that may be absent."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.support.errors import UsageError
from tilewright.targets.linker import linker

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "examples" / "digits"


@pytest.fixture(scope="session")
def digits_path() -> Path:
    return DIGITS / "digits.onnx"


@pytest.fixture(scope="session")
def compile_digits():
    """The digits model for one image, compiled for a target, once."""

    @functools.cache
    def compile_for(target: str, **options):
        return tw.compile(DIGITS / "digits.onnx", target=target, inputs={"image": (1, 1, 8, 8)}, **options)

    return compile_for


@pytest.fixture(scope="session")
def digits_cases():
    """(images of one digit each, PyTorch's probabilities, labels) of the test set."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install tilewright[demo]")
    spec = importlib.util.spec_from_file_location("digits_data", DIGITS / "data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images, labels = module.load()[1]
    return images, np.load(DIGITS / "digits.expected.npz")["probabilities"], labels


@pytest.fixture(scope="session")
def need():
    """``need("gcc")`` skips the test where a program is not installed; of a linker, where there is none of LLVM `least`
    or newer."""

    def check(*names: str, least: int = 0) -> None:
        for name in names:
            if name in ("ld.lld", "wasm-ld"):
                try:
                    linker(name, "this test", "test", least)
                except UsageError as e:
                    pytest.skip(str(e))
            elif not shutil.which(name):
                pytest.skip(f"{name} is not installed")

    return check


@pytest.fixture(scope="session")
def tools():
    """The quantizer of the benchmarks."""
    spec = importlib.util.spec_from_file_location("quantize_tool", REPOSITORY / "benchmarks" / "quantize.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def int8_model(case, tools):
    """``int8_model(name)``: a model of MLPerf Tiny's shapes in int8, inputs and outputs too; with inputs."""
    made = {}

    def get(name):
        if name not in made:
            model = onnx.load(case(name).path)
            model = tools.quantize(model, tools.normal_inputs(model), integers=True)
            t = tw.compile(model).inputs[0]
            inputs = np.random.default_rng(0).integers(-128, 128, (3, *t.shape)).astype(np.int8)
            made[name] = model, inputs
        return made[name]

    return get
