"""Writes ONNX models for benchmarks node by node, with weights drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: the shape of an input or output, names for dimensions that are open
Dims = Sequence[str | int]


@dataclass
class Graph:
    """The nodes and weights of a model as it is written."""

    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.1).astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(rows, columns)), self.weight(columns))

    def norm(self, x: str, width: int) -> str:
        return self.op("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1)

    def gelu(self, x: str) -> str:
        erf = self.op("Add", self.op("Erf", self.op("Div", x, self.number(2**0.5))), self.number(1))
        return self.op("Mul", self.op("Mul", x, erf), self.number(0.5))

    def attention(self, q: str, k: str, v: str, scale: float, mask: str | None = None) -> str:
        """q: [batch, heads, rows, depth], k: [batch, heads, depth, keys], v: [batch, heads, keys, depth]."""
        scores = self.op("Mul", self.op("MatMul", q, k), self.number(scale))
        if mask is not None:
            scores = self.op("Add", scores, mask)
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v)

    def self_attention(self, x: str, split: str, joined: str, width: int, heads: int, mask: str | None = None) -> str:
        """Of x: [batch, rows, width], with weights for queries, keys and values; `split` and `joined` are the shapes
        of heads apart and together."""
        q, k, v = (self.op("Reshape", self.linear(x, width, width), split) for _ in range(3))
        q, k, v = (
            self.op("Transpose", t, perm=p) for t, p in ((q, (0, 2, 1, 3)), (k, (0, 2, 3, 1)), (v, (0, 2, 1, 3)))
        )
        seen = self.attention(q, k, v, (width // heads) ** -0.5, mask)
        return self.op("Reshape", self.op("Transpose", seen, perm=(0, 2, 1, 3)), joined)

    def heads_apart(self, batch: str, rows: str, width: int, heads: int) -> tuple[str, str]:
        """The shapes `self_attention` takes."""
        split = self.op("Concat", batch, rows, self.ints(heads, width // heads), axis=0)
        return split, self.op("Concat", batch, rows, self.ints(width), axis=0)

    def model(
        self, inputs: Mapping[str, Dims], outputs: Mapping[str, Dims], integers: Sequence[str] = ()
    ) -> onnx.ModelProto:
        """Inputs and outputs are float32, `integers` int64."""

        def values(of: Mapping[str, Dims]) -> list[onnx.ValueInfoProto]:
            kind = {n: TensorProto.INT64 if n in integers else TensorProto.FLOAT for n in of}
            return [helper.make_tensor_value_info(n, kind[n], list(dims)) for n, dims in of.items()]

        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        graph = helper.make_graph(self.nodes, "model", values(inputs), values(outputs), weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
