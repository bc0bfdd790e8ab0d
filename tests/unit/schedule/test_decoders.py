"""Decoders of segmentation models: what is made twice as large is padded for the next convolution. The product that
makes it writes whole vectors into the padded image, whatever its kernel and stride."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support.machines import RULES_AVX2, RULES_AVX512
from support.nests import scalar_products

import tilewright as tw
from tilewright.ir.context import use
from tilewright.schedule.finish import finish
from tilewright.schedule.rules import schedule
from tilewright.targets.cpu.description import CpuDescription, describe_x86
from tilewright.tensor.read import read_kernel

MACHINES = {
    "avx512": describe_x86("x86_64-unknown-linux-gnu", RULES_AVX512, l1_bytes=32 << 10, l2_bytes=1 << 20, cores=2),
    "avx2": describe_x86("x86_64-unknown-linux-gnu", RULES_AVX2, l1_bytes=48 << 10, l2_bytes=512 << 10, cores=4),
}


def decoder(channels: int, out: int, side: int, kernel: int, stride: int, pad: int = 0, more: int = 0, then: int = 3):
    """A transposed convolution and a convolution with a border."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((channels, out, kernel, kernel)) / np.sqrt(channels),
        "b": rng.standard_normal(out),
        "v": rng.standard_normal((16, out, then, then)) / np.sqrt(out * then * then),
    }
    up = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "output_padding": [more] * 2}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["a"], **up),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"], kernel_shape=[then] * 2, pads=[then // 2] * 4),
    ]
    graph = helper.make_graph(
        nodes, "decoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, channels, side, side))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


CASES = {
    "2x2": (24, 16, 9, 2, 2),
    "odd channels": (24, 19, 8, 2, 2),
    "3x3": (16, 32, 7, 3, 3),
    "4x4": (16, 16, 8, 4, 4, 0, 0, 5),
    "8x8": (8, 24, 5, 8, 8),
    "overlapping": (16, 16, 7, 3, 2, 1, 1),
    "overlapping 4x4": (16, 24, 7, 4, 2, 1),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_every_product_is_in_vectors(name, machine, monkeypatch):
    monkeypatch.setattr(CpuDescription, "image_lanes", 0)  # channels last, however few there are
    fused = tw.compile(decoder(*CASES[name]), stop_after="fuse")
    with use():
        kernels = [read_kernel(f) for f in fused.functions()]
    for kernel in kernels:
        made = schedule(kernel, MACHINES[machine])
        assert made.rule != "general", kernel.name
        assert scalar_products(finish(made.schedule.nest()).body) == 0, kernel.name


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name):
    model = decoder(*CASES[name])
    x = np.random.default_rng(1).standard_normal([1, CASES[name][0], CASES[name][2], CASES[name][2]])
    found = tw.compile(model, threads=1)(x.astype(np.float32))
    expected = ReferenceEvaluator(model).run(None, {"x": x.astype(np.float32)})
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5 * np.abs(expected[0]).max())


@pytest.mark.parametrize(("channels", "side"), [(24, 64), (40, 40), (24, 30)])
def test_a_convolution_of_half_vectors_before_a_border(channels, side, monkeypatch):
    """Where vectors of two rows cannot be shown to stay clear of the border, rows end in partial ones."""
    monkeypatch.setattr(CpuDescription, "image_lanes", 0)
    monkeypatch.setattr(CpuDescription, "winograd", False)
    fused = tw.compile(decoder(channels, channels, side, 3, 1, 1), stop_after="fuse")
    with use():
        kernels = [read_kernel(f) for f in fused.functions()]
    for kernel in kernels:
        assert schedule(kernel, MACHINES["avx512"]).rule != "general", kernel.name
