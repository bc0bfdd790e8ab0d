"""Keyword spotters with an open number of time steps, in float32 and in int8."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import onnx

import tilewright as tw
from support.onnx_models import value
from support.open_models import Writer

TIME = tw.Dim("time", 8, 128)
#: ten coefficients of each of 8 to 128 time steps
SHAPE = (1, 1, TIME, 10)
CLASSES = 12


def spotter(channels: int = 24, blocks: int = 2, stride: int = 1) -> onnx.ModelProto:
    """A depthwise-separable keyword spotter (Zhang et al. 2017, Hello Edge) of the form that MLPerf Tiny has."""
    w = Writer()
    first = {"pads": [5, 1, 5, 1], "strides": [stride, 2]}
    x = w.op("Relu", w.op("Conv", "x", w.weights(channels, 1, 10, 4), w.weights(channels), **first))
    for _ in range(blocks):
        depthwise = w.weights(channels, 1, 3, 3), w.weights(channels)
        x = w.op("Relu", w.op("Conv", x, *depthwise, pads=[1, 1, 1, 1], group=channels))
        x = w.op("Relu", w.op("Conv", x, w.weights(channels, channels, 1, 1), w.weights(channels)))
    x = w.op("Flatten", w.op("GlobalAveragePool", x), axis=1)
    made = w.model(
        [value("x", [1, 1, "time", 10])], {w.op("Softmax", w.linear(x, channels, CLASSES), axis=-1): [1, 12]}
    )
    made.graph.node.pop()  # an Identity
    made.graph.node[-1].output[0] = "y0"
    return made


def features(time: int, seed: int = 0) -> np.ndarray:
    """An input of so many time steps."""
    return np.random.default_rng([seed, time]).standard_normal((1, 1, time, 10)).astype(np.float32)


def in_int8(model: onnx.ModelProto, tools: ModuleType) -> onnx.ModelProto:
    """The model with 8-bit numbers as input, inside and as output; `tools` is ``benchmarks/quantize.py``."""
    made = tools.quantize(model, [{"x": features(49)}], integers=True)
    made.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "time"
    del made.graph.value_info[:]
    return made
