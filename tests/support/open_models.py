"""ONNX models with open dimensions in a few lines, and inputs of any size for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

import tilewright as tw
from support.onnx_models import model, node, value

BATCH, SEQ = tw.Dim("batch", 1, 16), tw.Dim("seq", 1, 64)


class Writer:
    """Nodes and constants as they come; `op` gives the name of the result."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(seed)

    def weights(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.2).astype(np.float32))

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def number(self, x: float) -> str:
        return self.constant(np.array(x, np.float32))

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(operator, " ".join(inputs), name, **attributes))
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weights(rows, columns)), self.weights(columns))

    def model(self, inputs: Sequence[Any], outputs: dict[str, Sequence[Any]]) -> onnx.ModelProto:
        made = [node("Identity", source, f"y{i}") for i, source in enumerate(outputs)]
        declared = [value(f"y{i}", shape) for i, shape in enumerate(outputs.values())]
        found = model([*self.nodes, *made], inputs, declared, self.constants, opset=17)
        onnx.checker.check_model(found)
        return found


def mlp() -> onnx.ModelProto:
    w = Writer()
    x = w.op("Relu", w.linear("x", 24, 40))
    return w.model([value("x", ["batch", 24])], {w.op("Softmax", w.linear(x, 40, 10), axis=-1): ["batch", 10]})


def elementwise() -> onnx.ModelProto:
    w = Writer()
    y = w.op("Tanh", w.op("Add", w.op("Mul", "x", w.weights(20)), "x"))
    return w.model([value("x", ["batch", "seq", 20])], {y: ["batch", "seq", 20]})


def softmax() -> onnx.ModelProto:
    """Along an open dimension."""
    w = Writer()
    return w.model([value("x", ["batch", "seq"])], {w.op("Softmax", "x", axis=-1): ["batch", "seq"]})


def layer_norm() -> onnx.ModelProto:
    w = Writer()
    y = w.op("LayerNormalization", "x", w.weights(20), w.weights(20), axis=-1)
    return w.model([value("x", ["batch", "seq", 20])], {y: ["batch", "seq", 20]})


def attention() -> onnx.ModelProto:
    w = Writer()
    scores = w.op("Mul", w.op("MatMul", "q", w.op("Transpose", "k", perm=[0, 1, 3, 2])), w.number(0.25))
    y = w.op("MatMul", w.op("Softmax", scores, axis=-1), "v")
    return w.model([value(n, ["batch", 2, "seq", 16]) for n in "qkv"], {y: ["batch", 2, "seq", 16]})


def encoder(width: int = 32, heads: int = 2, wide: int = 48, words: int = 50, layers: int = 1) -> onnx.ModelProto:
    """A transformer encoder: embeddings of tokens and of positions, a mask; the mean over the text, and all of it."""
    w, size = Writer(), width // heads
    shape = w.op("Shape", "ids")
    batch, seq = (w.op("Gather", shape, w.constant(np.array(i, np.int64))) for i in (0, 1))
    counts = [w.constant(np.array(i, np.int64)) for i in (0, 1)]
    positions = w.op("Gather", w.weights(128, width), w.op("Range", counts[0], seq, counts[1]), axis=0)
    x = w.op("Add", w.op("Gather", w.weights(words, width), "ids", axis=0), positions)
    mask = w.op("Sub", w.op("Cast", "mask", to=TensorProto.FLOAT), w.number(1.0))
    mask = w.op("Unsqueeze", w.op("Mul", mask, w.number(10000.0)), w.ints(1, 2))
    lengths = [w.op("Unsqueeze", n, w.ints(0)) for n in (batch, seq)]
    split = w.op("Concat", *lengths, w.ints(heads), w.ints(size), axis=0)
    whole = w.op("Concat", *lengths, w.ints(width), axis=0)
    for _ in range(layers):
        q, k, v = (
            w.op("Transpose", w.op("Reshape", w.linear(x, width, width), split), perm=[0, 2, 1, 3]) for _ in range(3)
        )
        scores = w.op("Div", w.op("MatMul", q, w.op("Transpose", k, perm=[0, 1, 3, 2])), w.number(size**0.5))
        seen = w.op("MatMul", w.op("Softmax", w.op("Add", scores, mask), axis=-1), v)
        seen = w.linear(w.op("Reshape", w.op("Transpose", seen, perm=[0, 2, 1, 3]), whole), width, width)
        x = w.op("LayerNormalization", w.op("Add", x, seen), w.weights(width), w.weights(width), axis=-1)
        up = w.linear(x, width, wide)
        erf = w.op("Add", w.op("Erf", w.op("Div", up, w.number(2**0.5))), w.number(1.0))
        up = w.op("Mul", w.op("Mul", up, erf), w.number(0.5))
        x = w.op("LayerNormalization", w.op("Add", x, w.linear(up, wide, width)), w.weights(width), w.weights(width))
    tokens = [value(n, ["batch", "seq"], TensorProto.INT64) for n in ("ids", "mask")]
    mean = w.op("ReduceMean", x, axes=[1], keepdims=0)
    return w.model(tokens, {mean: ["batch", width], x: ["batch", "seq", width]})


#: name -> (model, shapes of its inputs)
MODELS: dict[str, tuple[Any, dict[str, tuple[Any, ...]]]] = {
    "mlp": (mlp, {"x": (BATCH, 24)}),
    "elementwise": (elementwise, {"x": (BATCH, SEQ, 20)}),
    "softmax": (softmax, {"x": (BATCH, SEQ)}),
    "layer_norm": (layer_norm, {"x": (BATCH, SEQ, 20)}),
    "attention": (attention, dict.fromkeys("qkv", (BATCH, 2, SEQ, 16))),
    "encoder": (encoder, {"ids": (BATCH, SEQ), "mask": (BATCH, SEQ)}),
}


def feeds(name: str, batch: int, seq: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a model of MODELS for these sizes."""
    rng = np.random.default_rng([seed, batch, seq])
    sizes = {"batch": batch, "seq": seq}
    if name == "encoder":
        mask = np.ones((batch, seq), np.int64)
        mask[:, seq - seq // 3 :] = 0
        return {"ids": rng.integers(0, 50, (batch, seq)), "mask": mask}
    shapes = {n: tuple(sizes[d.name] if isinstance(d, tw.Dim) else d for d in s) for n, s in MODELS[name][1].items()}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
