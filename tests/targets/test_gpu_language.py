"""Kernels of language models on GPUs: attention to pages of ragged batches, and products with weights in blocks for
rows of open number, beside the operators' references."""

from __future__ import annotations

import numpy as np
import pytest
from support.gpus import device_of

import tilewright as tw
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type, numpy_dtype
from tilewright.llm.layers.linear import linear
from tilewright.ops.block_quantized import dequantized
from tilewright.ops.block_weights import BlockWeights
from tilewright.ops.ragged_attention import RaggedAttention

TARGET = "opencl:kind=gpu"
#: tokens and lengths of sequences
BATCHES = [[(1, 1)], [(1, 30)], [(5, 9), (1, 60), (3, 3)], [(20, 40), (1, 2)]]


def rules_of(run) -> set[str]:
    return {k["kind"] for k in run.package.report["kernels"]}


@pytest.mark.parametrize(
    "heads, few, depth, width, length, dtype, tokens, attributes",
    [
        (9, 3, 24, 24, 16, "bf16", 32, {}),  # few tokens: in parts of the keys
        (4, 4, 20, 12, 8, "f32", 64, {"window": 7, "softcap": 5.0}),
        (4, 1, 40, 32, 16, "f32", 32, {"width": 32}),
    ],
)
def test_attention_of_ragged_batches(heads, few, depth, width, length, dtype, tokens, attributes):
    device_of("opencl")
    pages, alone = 24, "width" in attributes
    types = {"q": Type((None, heads, depth), "f32"), "k": Type((pages, length, few, depth), dtype)}
    types |= {} if alone else {"v": Type((pages, length, few, width), dtype)}
    types |= {"table": Type((None, None), "i32"), "starts": Type((None,), "i32"), "lengths": Type((None,), "i32")}
    make = Maker(list(types.items()), name="attention")
    x = dict(zip(make.names, make.inputs, strict=True))
    places = [x[n] for n in ("table", "starts", "lengths")]
    y = make("ragged_attention", x["q"], x["k"], x.get("v"), *places, None, scale=0.3, **attributes)
    t, b, n = tw.Dim("T", 1, tokens), tw.Dim("B", 1, 4), tw.Dim("N", 1, 8)
    sizes = {"q": (t, heads, depth), "table": (b, n), "starts": ("B+1",), "lengths": (b,)}
    run = tw.compile(make.finish([("y", y)]), inputs=sizes, target=TARGET, cache=False)
    assert rules_of(run) == ({"ragged_attention", "attention_join"} if tokens == 32 else {"ragged_attention"})
    g = np.random.default_rng(0)
    for batch in BATCHES:
        counts, lengths = (np.array(z, np.int32) for z in zip(*batch, strict=True))
        given = {"q": g.standard_normal((counts.sum(), heads, depth), np.float32)}
        for name in ("k", "v")[: 2 - alone]:
            given[name] = g.standard_normal(types[name].shape, np.float32).astype(numpy_dtype(dtype))
        given["table"] = g.integers(0, pages, (len(batch), -(-lengths.max() // length)), np.int32)
        given |= {"starts": np.cumsum([0, *counts], dtype=np.int32), "lengths": lengths}
        told = {"window": 0, "softcap": 0.0, "width": 0, "scale": 0.3} | attributes
        wide = given | {"q": given["q"].astype(np.float64)} | ({"v": None} if alone else {})
        np.testing.assert_allclose(run(**given)[0], RaggedAttention.reference(**wide, **told), atol=4e-6)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_1", "Q6_K", "Q8_0", "IQ4_NL"])
def test_products_with_weights_in_blocks(kind):
    device_of("opencl")
    pytest.importorskip("gguf", reason="gguf is not installed")
    from llm.test_gguf_blocks import random_tensor

    from tilewright.llm.gguf.blocks import block_weights_of

    weights = block_weights_of(random_tensor(kind, 69, 512, 0, 0.02))
    assert isinstance(weights, BlockWeights)
    operands = [None if o is None else np.asarray(o) for o in weights.operands]
    dense = dequantized(*operands, **weights.attributes, dtype=np.float64)
    make = Maker([("x", Type((None, 512), "f32"))], name="product")
    exact, rounded = (linear(make, make.inputs[0], [weights], None, "w", p) for p in ("f32", "auto"))
    graph, sizes = make.finish([("exact", exact), ("rounded", rounded)]), {"x": (tw.Dim("T", 1, 64), 512)}
    run, reference = (tw.compile(graph, inputs=sizes, target=t, threads=1, cache=False) for t in (TARGET, "cpu"))
    assert "block_rows_product" in rules_of(run)
    for count in (1, 5, 33):
        x = np.random.default_rng(count).standard_normal((count, 512), np.float32)
        largest = np.abs(x @ dense.T).max()
        np.testing.assert_allclose(run(x)[0], x @ dense.T, atol=2e-6 * largest)
        np.testing.assert_allclose(run(x)[1], reference(x)[1], atol=2e-6 * largest)
