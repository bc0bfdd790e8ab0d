"""Whole models against PyTorch: compiled from ONNX and from a saved and reloaded package, with one and two threads."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

SMALL = [
    "bert_tiny",
    "gpt2_tiny",
    "vit_tiny",
    "resnet_tiny",
    "mobilenet_v2_tiny",
    "llama_prefill_tiny",
    "llama_decode_tiny",
    "t5_tiny",
    "swin_tiny",
    "detr_tiny",
    "convnext_tiny",
    "whisper_encoder_tiny",
    "kws_dscnn",
    "tiny_ae",
    "tiny_resnet8",
    "resnet18",
    "mobilenet_v2",
]
BIG = ["resnet50", "vit_b16", "bert_base", "gpt2_prefill"]
TOLERANCE = 1e-4


def check(executable, case) -> None:
    """Every output has the name, shape and dtype expected and is within the tolerance of PyTorch's."""
    outputs = executable.run(case.inputs)
    assert [o.name for o in executable.outputs] == list(case.expected)
    for (name, expected), got in zip(case.expected.items(), outputs, strict=True):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype), name
        assert np.isfinite(got).all(), name
        error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
        assert error < TOLERANCE, f"{name}: error {error:.2e} of the largest value"


@pytest.mark.parametrize("name", [*SMALL, *[pytest.param(name, marks=pytest.mark.big) for name in BIG]])
def test_model(name, case, tmp_path):
    """One compilation; the number of threads is chosen when a package is loaded."""
    model, package = case(name), tmp_path / "m.tw"
    compiled = tw.compile(model.path, threads=1)
    check(compiled, model)
    check(tw.Executable(compiled.package, threads=2), model)
    compiled.save(package)
    del compiled
    for threads in (1, 2):
        check(tw.load(package, threads=threads), model)
