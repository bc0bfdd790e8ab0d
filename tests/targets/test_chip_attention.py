"""A quantized block of attention beside chips: products of two tensors of bytes run on a chip too."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.modules import load_module
from support.quantized_digits import REPOSITORY

import tilewright as tw
from tilewright.driver.chip_layers import chip_layers
from tilewright.targets.accelerator.target import ChipTarget
from tilewright.targets.base import register

NETWORKS = load_module("quantized_networks", REPOSITORY / "benchmarks" / "quantized_networks.py")
TWO = load_module("two_chips", REPOSITORY / "benchmarks" / "two_chips.py")
register(ChipTarget(TWO.Gem))
register(ChipTarget(TWO.Dsp))


@pytest.fixture(scope="module")
def block():
    """A block, numbers for it, and what a processor makes of them."""
    model = NETWORKS.attention(64, 64, 2)
    x = np.random.default_rng(0).standard_normal((1, 64, 64)).astype(np.float32)
    return model, x, tw.compile(model, target="cpu", threads=1)(x)[0]


@pytest.mark.parametrize("chip", ["systolic32", "gem", "dsp"])
def test_a_block_of_attention(chip, block):
    """All six products are the chip's, with the numbers of the graph."""
    model, x, want = block
    run = tw.compile(model, target=f"cpu+{chip}", threads=1)
    (got,) = run(x)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert len(np.unique(got)) > 50
    placed = re.findall(r"\S+ runs on (\w+)", str(run.explain()))
    assert placed.count(chip) == 6


@pytest.mark.parametrize(("chip", "least"), [("systolic32", 0.6), ("outer4", 0.9), ("gem", 0.89), ("dsp", 0.9)])
def test_a_block_is_near_its_floors(chip, least):
    layers = chip_layers(NETWORKS.attention(64, 128, 2), f"cpu+{chip}", threads=1, cache=False, tuned=False).runs
    assert sum(r.floor for r in layers) > least * sum(r.cycles for r in layers)


@pytest.mark.parametrize(("zero", "there"), [(0, True), (3, False)])
def test_products_of_two_tensors(zero, there):
    """In integers where both zero points are 0; else the host computes them in floats."""
    how = {"s": np.float32(0.02), "z": np.int8(zero), "t": np.float32(0.2), "o": np.int8(-5)}
    nodes = [helper.make_node("DequantizeLinear", [n, "s", "z"], [f"{n}f"]) for n in "xy"]
    nodes.append(helper.make_node("MatMul", ["xf", "yf"], ["p"]))
    nodes.append(helper.make_node("QuantizeLinear", ["p", "t", "o"], ["r"]))
    shapes = {"x": [2, 3, 20, 40], "y": [2, 3, 40, 24], "r": [2, 3, 20, 24]}
    info = [helper.make_tensor_value_info(n, TensorProto.INT8, s) for n, s in shapes.items()]
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in how.items()]
    graph = helper.make_graph(nodes, "g", info[:2], info[2:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-128, 128, shapes[n], dtype=np.int8) for n in "xy")
    sums = (x.astype(np.int64) - zero) @ (y.astype(np.int64) - zero)
    want = np.clip(np.rint(sums * (0.02 * 0.02 / 0.2)) - 5, -128, 127)
    run = tw.compile(model, target="cpu+systolic32", threads=1)
    off = np.abs(run(x, y)[0].astype(np.int64) - want)
    assert off.max() <= 1 and off.mean() < 0.01
    assert (" runs on systolic32" in str(run.explain())) == there
