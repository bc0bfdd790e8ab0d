"""Whole models through `tw.compile(module, example_inputs)`, against PyTorch."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install tilewright[models]")

import tilewright as tw  # noqa: E402

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODELS = [
    "bert_tiny", "gpt2_tiny", "vit_tiny", "resnet_tiny", "mobilenet_v2_tiny", "llama_prefill_tiny", "llama_decode_tiny",
    "t5_tiny", "swin_tiny", "detr_tiny", "convnext_tiny", "whisper_encoder_tiny",
]  # fmt: skip
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_model(name, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import models

    made = models.build(name)
    arguments = tuple(made.inputs.values())
    want, got = made.module(*arguments), tw.compile(made.module, arguments, threads=1)(*arguments)
    single = isinstance(want, torch.Tensor)
    for w, g in zip([want] if single else want, [got] if single else got, strict=True):
        assert (w.shape, w.dtype) == (g.shape, g.dtype)
        error = (w.double() - g.double()).abs().max() / w.abs().max()
        assert error < TOLERANCE, f"error {error:.2e} of the largest value"
