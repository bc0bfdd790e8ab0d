"""Quantized networks in QDQ form, written layer by layer with weights drawn from a seed: MobileNetV2 and parts of it,
and a block of attention.

    network = Network(seed=0)
    x = network.image(96)
    x = network.conv(x, 16, stride=2, limit="relu6")
    model = network.model(network.dense(network.mean(x), 10), (1, 10))

Weights have a scale for each output channel. With ``powers`` all scales are powers of two, so that many numbers are
exact halves on their way to a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: the blocks of MobileNetV2: expansion, channels of the result, how many, stride of the first
MOBILENET_V2 = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2)),
    (6, 320, 1, 1),
)


@dataclass(frozen=True)
class Bytes:
    """A tensor of bytes: the name of what it stands for, the value of a quantum, its channels."""

    name: str
    step: float
    channels: int


class Network:
    """The nodes and constants of a network as it is written."""

    def __init__(self, seed: int = 0, powers: bool = False) -> None:
        self.rng, self.powers = np.random.default_rng(seed), powers
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shape: tuple[int, ...] = ()

    # ---- layers ----

    def tokens(self, count: int, channels: int) -> Bytes:
        """The input ``x``: floats [1, count, channels]."""
        self.shape = (1, count, channels)
        return self.quantized("x", 0.02, channels)

    def linear(self, x: Bytes, outputs: int, step: float = 0.03) -> Bytes:
        """A product with a bias of the last dimension."""
        w, scale = self.weights((outputs, x.channels))
        bias = self.vector(self.rng.integers(-500, 500, outputs).astype(np.int32), scale * np.float32(x.step))
        turned = self.op("Transpose", w, perm=[1, 0])
        return self.quantized(self.op("Add", self.op("MatMul", x.name, turned), bias), step, outputs)

    def attention(self, x: Bytes, heads: int) -> Bytes:
        """Attention of all tokens to all, with its four projections: every product of bytes, the softmax of floats."""
        size = x.channels // heads
        parted, whole = (self.constant(np.int64(s)) for s in ([0, -1, heads, size], [0, -1, x.channels]))

        def head(perm: list[int]) -> Bytes:
            y = self.linear(x, x.channels)
            return Bytes(self.op("Transpose", self.op("Reshape", y.name, parted), perm=perm), y.step, size)

        q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
        scores = self.quantized(self.op("MatMul", q.name, k.name), 0.05 * size**0.5, size)
        scaled = self.op("Mul", scores.name, self.constant(np.float32(size**-0.5)))
        weights = self.quantized(self.op("Softmax", scaled, axis=-1), 1 / 127, size)
        y = self.quantized(self.op("MatMul", weights.name, v.name), 0.01, size)
        y = Bytes(self.op("Reshape", self.op("Transpose", y.name, perm=[0, 2, 1, 3]), whole), y.step, x.channels)
        return self.linear(y, x.channels)

    def image(self, size: int, channels: int = 3) -> Bytes:
        """The input ``x``: a float image [1, channels, size, size]."""
        self.shape = (1, channels, size, size)
        return self.quantized("x", 0.02, channels)

    def conv(
        self, x: Bytes, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, limit: str = "relu"
    ) -> Bytes:
        """A convolution with a bias; `limit` is "relu", "relu6" or ""."""
        inputs = x.channels // groups
        w, scale = self.weights((outputs, inputs, kernel, kernel))
        bias = self.vector(self.rng.integers(-500, 500, outputs).astype(np.int32), scale * np.float32(x.step))
        sides = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        y = self.op("Conv", x.name, w, bias, group=groups, **sides)
        return self.limited(y, outputs, limit)

    def add(self, x: Bytes, y: Bytes, limit: str = "") -> Bytes:
        return self.limited(self.op("Add", x.name, y.name), x.channels, limit, 0.04)

    def mean(self, x: Bytes) -> Bytes:
        """The average of each channel."""
        return self.quantized(self.op("GlobalAveragePool", x.name), 0.02, x.channels)

    def dense(self, x: Bytes, outputs: int) -> Bytes:
        w, _ = self.weights((outputs, x.channels))
        return self.quantized(self.op("Gemm", self.op("Flatten", x.name), w, transB=1), 0.05, outputs)

    def inverted_residual(self, x: Bytes, outputs: int, expansion: int, stride: int) -> Bytes:
        """MobileNetV2's block: more channels, a filter for each of them, fewer channels, and what came in."""
        y = x if expansion == 1 else self.conv(x, expansion * x.channels, 1, limit="relu6")
        y = self.conv(y, y.channels, 3, stride, y.channels, limit="relu6")
        y = self.conv(y, outputs, 1, limit="")
        return self.add(x, y) if stride == 1 and outputs == x.channels else y

    def model(self, y: Bytes, shape: Sequence[int]) -> onnx.ModelProto:
        """The network with one output of this shape, which is called ``y``."""
        self.nodes.append(helper.make_node("Identity", [y.name], ["y"]))
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", self.shape), ("y", shape))]
        stored = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(self.nodes, "network", info[:1], info[1:], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    # ---- what layers consist of ----

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def scale(self, value: Any) -> Any:
        """A scale, or the power of two next to it."""
        return 2.0 ** np.rint(np.log2(value)) if self.powers else value

    def limited(self, y: str, channels: int, limit: str, step: float = 0.03) -> Bytes:
        """What a layer computes as bytes, where it is within its limits."""
        if limit == "relu6":
            y = self.op("Clip", y, self.constant(np.float32(0)), self.constant(np.float32(6)))
            return self.quantized(y, 6 / 255, channels, zero=-128)
        return self.quantized(self.op("Relu", y) if limit else y, step, channels)

    def quantized(self, x: str, step: float, channels: int, zero: int = 0) -> Bytes:
        step = float(np.float32(self.scale(step)))
        how = [self.constant(np.float32(step)), self.constant(np.int8(zero))]
        return Bytes(self.op("DequantizeLinear", self.op("QuantizeLinear", x, *how), *how), step, channels)

    def weights(self, shape: tuple[int, ...]) -> tuple[str, np.ndarray]:
        """Weights [outputs, ...] with which results are about as large as what comes in, and their scales."""
        drawn = self.rng.integers(-127, 128, shape).astype(np.int8)
        spread = self.rng.uniform(1.2, 1.5, shape[0]) / (76 * np.sqrt(prod(shape[1:])))
        scale = self.scale(spread).astype(np.float32)
        return self.vector(drawn, scale), scale

    def vector(self, numbers: np.ndarray, scale: np.ndarray) -> str:
        """Numbers with a scale for each of their first dimension."""
        zero = self.constant(np.zeros(scale.shape, numbers.dtype))
        return self.op("DequantizeLinear", self.constant(numbers), self.constant(scale), zero, axis=0)


def mobilenet_v2(
    size: int = 224,
    blocks: Sequence[tuple[int, int, int, int]] = MOBILENET_V2,
    first: int = 32,
    last: int = 1280,
    classes: int = 1000,
    powers: bool = False,
) -> onnx.ModelProto:
    """MobileNetV2 for images of size x size; `first` and `last` are the channels around its blocks."""
    network = Network(powers=powers)
    x = network.conv(network.image(size), first, stride=2, limit="relu6")
    for expansion, channels, count, stride in blocks:
        for n in range(count):
            x = network.inverted_residual(x, channels, expansion, stride if n == 0 else 1)
    x = network.conv(x, last, 1, limit="relu6")
    return network.model(network.dense(network.mean(x), classes), (1, classes))


def attention(tokens: int = 128, channels: int = 256, heads: int = 4) -> onnx.ModelProto:
    """A block of attention as a network of its own."""
    network = Network()
    return network.model(network.attention(network.tokens(tokens, channels), heads), (1, tokens, channels))
