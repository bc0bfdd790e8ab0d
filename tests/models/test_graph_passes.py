"""The level-2 passes on exported models: what they must recognize, and that the numbers stay."""

from collections import Counter

import numpy as np
import pytest

from tilewright.frontends import onnx
from tilewright.graph.interpret import interpret
from tilewright.graph.passes import parse_pipeline, run_pipeline

PIPELINE = (
    "simplify,fold,cse,match-softmax,match-norm,match-activation,match-gelu,simplify,match-attention,"
    "fold-batch-norm,layout,simplify,fold,cse,dce"
)
GONE = ("softmax", "is_nan", "erf", "pow", "sqrt", "reciprocal", "batch_norm", "expand")

EXPECTED = {
    "bert_tiny": {"attention": 2, "layer_norm": 5, "gelu": 2},
    "gpt2_tiny": {"attention": 2, "layer_norm": 5, "gelu": 2, "where": 0, "mul": 0},
    "vit_tiny": {"attention": 2, "layer_norm": 5, "gelu": 2, "where": 0},
    "llama_prefill_tiny": {"attention": 2, "rms_norm": 5, "silu": 2},
    "llama_decode_tiny": {"attention": 2, "rms_norm": 5, "silu": 2},
    "t5_tiny": {"attention": 6, "rms_norm": 12},
    "swin_tiny": {"attention": 4, "layer_norm": 11, "gelu": 4},
    "detr_tiny": {"attention": 5},
    "whisper_encoder_tiny": {"attention": 2, "layer_norm": 5, "gelu": 4, "mul": 0},
    "convnext_tiny": {"layer_norm": 7, "gelu": 4, "transpose": 1, "mul": 0},
    "resnet_tiny": {"conv": 12, "transpose": 1},
    "mobilenet_v2_tiny": {"conv": 52, "transpose": 1},
    "resnet18": {"conv": 20, "transpose": 1},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_recognized(name, case):
    model = case(name)
    graph = onnx.load(model.path)
    before = interpret(graph, model.inputs, float64=True)
    run_pipeline(graph, parse_pipeline(PIPELINE))
    found = Counter(op.name.removeprefix("tw.") for op in graph.operations())
    assert {k: found[k] for k in EXPECTED[name]} == EXPECTED[name]
    assert not [n for n in GONE if found[n]]
    after = interpret(graph, model.inputs, float64=True)
    for key, expected in before.items():
        assert np.abs(after[key] - expected).max() <= 1e-6 * np.abs(expected).max()
        assert np.abs(after[key] - model.expected[key]).max() <= 1e-4 * np.abs(expected).max()
