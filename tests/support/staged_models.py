"""Small models whose structure depends on data: a detector, a loop with a growing cache, text to speech."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from support.onnx_models import graph, model, node, value

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: (rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for n, s in shapes.items()}


def speech(channels: int = 16) -> onnx.ModelProto:
    """A text [1, text] -> how many frames each letter lasts -> its features so often -> convolutions -> samples."""
    c = channels
    constants = _weights(
        0, table=(30, c), enter=(c, c, 3), last_long=(1, c, 3), decode=(c, c, 5), up=(c, 8, 4), leave=(1, 8, 7)
    )
    constants |= {"least": np.array(1, np.float32), "most": np.array(6, np.float32), "longer": np.ones(1, np.float32)}
    constants |= {"zero": np.array(0), "one": np.array(1), "first": np.array([0]), "second": np.array([1])}
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Transpose", "rows", "letters", perm=[0, 2, 1]),
        node("Conv", "letters enter", "entered", pads=[1, 1]),
        node("Relu", "entered", "h"),
        node("Conv", "h last_long longer", "log", pads=[1, 1]),
        node("Exp", "log", "exact"),
        node("Ceil", "exact", "whole"),
        node("Clip", "whole least most", "each"),
        node("Squeeze", "each second", "frames"),  # [1, text]
        node("CumSum", "frames one", "ends"),
        node("Sub", "ends frames", "starts"),
        node("ReduceSum", "frames", "sum", keepdims=0),
        node("Cast", "sum", "n", to=I64),
        node("Range", "zero n one", "range"),
        node("Cast", "range", "positions", to=F),
        node("Unsqueeze", "positions second", "at"),  # [n, 1]
        node("Less", "at ends", "below"),
        node("GreaterOrEqual", "at starts", "above"),
        node("And", "below above", "inside"),  # [n, text]
        node("Cast", "inside", "path", to=F),
        node("Transpose", "path", "turned", perm=[1, 0]),
        node("Unsqueeze", "turned first", "alignment"),
        node("MatMul", "h alignment", "long"),  # [1, channels, n]
        node("Conv", "long decode", "d", pads=[2, 2]),
        node("LeakyRelu", "d", "e"),
        node("Add", "e long", "f"),
        node("ConvTranspose", "f up", "g", strides=[2], pads=[1, 1]),
        node("LeakyRelu", "g", "s"),
        node("Conv", "s leave", "t", pads=[3, 3]),
        node("Tanh", "t", "wave"),
    ]
    return model(nodes, [value("ids", [1, "text"], I64)], [value("wave", [1, 1, "samples"])], constants)


def growing_loop(width: int = 16) -> onnx.ModelProto:
    """So many steps, each of which adds a row to keys and values, and attends to all of them."""
    d = width
    constants = {**_weights(1, wq=(d, d), wk=(d, d), wv=(d, d), wo=(d, d)), "true": np.array(True)}
    body = graph(
        [
            node("MatMul", "x wq", "q"),
            node("MatMul", "x wk", "k"),
            node("MatMul", "x wv", "v"),
            node("Concat", "keys k", "more_keys", axis=0),
            node("Concat", "values v", "more_values", axis=0),
            node("Transpose", "more_keys", "turned", perm=[1, 0]),
            node("MatMul", "q turned", "scores"),
            node("Softmax", "scores", "p", axis=-1),
            node("MatMul", "p more_values", "seen"),
            node("MatMul", "seen wo", "out"),
            node("Tanh", "out", "next"),
            node("Identity", "go", "again"),
            node("Identity", "next", "row"),
        ],
        [
            *(value("i", [], I64), value("go", [], BOOL), value("x", [1, d])),
            *(value("keys", ["past", d]), value("values", ["past", d])),
        ],
        [
            *(value("again", [], BOOL), value("next", [1, d])),
            *(value("more_keys", ["all", d]), value("more_values", ["all", d]), value("row", [1, d])),
        ],
    )
    inputs = [value("steps", [], I64), value("start", [1, d]), value("k0", ["past", d]), value("v0", ["past", d])]
    outputs = [value("end", [1, d]), value("kn", ["m", d]), value("vn", ["m", d]), value("rows", ["n", 1, d])]
    return model([node("Loop", "steps true start k0 v0", "end kn vn rows", body=body)], inputs, outputs, constants)


def detector() -> onnx.ModelProto:
    """Boxes and scores of an image of any size, non-maximum suppression, and a summary of what is kept."""
    constants = _weights(2, w=(8, 3, 3, 3), wb=(4, 8, 1, 1), ws=(3, 8, 1, 1), mix=(6, 5))
    constants |= {"iou": np.array([0.5], np.float32), "low": np.array([0.5], np.float32)}
    constants |= {"most": np.array([20]), "i0": np.array(0), "i1": np.array(1), "i2": np.array(2), "one": np.array([1])}
    constants |= {"four": np.array([1, 4, -1]), "three": np.array([1, 3, -1])}
    nodes = [
        node("Conv", "image w", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", "c", "f"),
        node("Conv", "f wb", "corners"),
        node("Reshape", "corners four", "flat"),
        node("Transpose", "flat", "logs", perm=[0, 2, 1]),
        node("Exp", "logs", "boxes"),
        node("Conv", "f ws", "classes"),
        node("Reshape", "classes three", "logits"),
        node("Sigmoid", "logits", "scores"),
        node("NonMaxSuppression", "boxes scores most iou low", "kept"),
        node("Gather", "kept i2", "at", axis=1),
        node("Gather", "kept i1", "class", axis=1),
        node("Gather", "boxes i0", "all", axis=0),
        node("Gather", "all at", "box", axis=0),
        node("GatherND", "scores kept", "score"),
        node("Cast", "class", "number", to=F),
        node("Unsqueeze", "number one", "n"),
        node("Unsqueeze", "score one", "s"),
        node("Concat", "box s n", "found", axis=1),
        node("MatMul", "found mix", "mixed"),
        node("Softmax", "mixed", "weights", axis=0),
        node("Transpose", "found", "columns", perm=[1, 0]),
        node("MatMul", "columns weights", "summary"),
    ]
    return model(
        nodes, [value("image", [1, 3, "h", "w"])], [value("found", ["k", 6]), value("summary", [6, 5])], constants
    )
