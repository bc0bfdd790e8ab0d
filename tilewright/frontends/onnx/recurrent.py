"""LSTM, GRU and RNN: the products with the inputs of all steps at once, then one `tw` operator a direction."""

from __future__ import annotations

import re

import numpy as np

from ...ir.types import NUMPY
from .registry import onnx_op

#: which activations have an alpha and a beta, with ONNX's defaults
PARAMETERS = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hard_sigmoid": (0.2, 0.5),
    "leaky_relu": (0.01, None),
    "scaled_tanh": (1.0, 1.0),
    "thresholded_relu": (1.0, None),
}
NAMES = {"scaledtanh": "scaled_tanh", "hardsigmoid": "hard_sigmoid", "leakyrelu": "leaky_relu"} | {
    "thresholdedrelu": "thresholded_relu"
}


class RecurrentLayer:
    """The attributes and inputs that the three operators share."""

    def __init__(self, n, x, w, r, gates, defaults):
        self.n, self.gates = n, gates
        direction = n.attr("direction", "forward")
        directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        self.backwards = directions.get(direction, [])
        if not self.backwards:
            raise n.error(f"direction {direction!r} is not known")
        self.batch_first = bool(n.attr("layout", 0))
        if x.rank != 3 or w.rank != 3 or r.rank != 3 or r.shape[1] != gates * r.shape[2]:
            raise n.error(f"X, W and R have three dimensions that fit, got {x.type}, {w.type} and {r.type}")
        if r.shape[0] != len(self.backwards) or w.shape[:2] != r.shape[:2] or w.shape[2] != x.shape[2]:
            raise n.error(f"W {w.type} and R {r.type} do not fit X {x.type} and direction {direction!r}")
        self.x = n.transpose(x, (1, 0, 2)) if self.batch_first else x
        self.w, self.r, self.hidden = w, r, r.shape[2]
        self.steps, self.batch, _ = self.x.shape
        self.dtype = x.dtype
        names = n.attr("activations") or defaults * len(self.backwards)
        if len(names) != len(defaults) * len(self.backwards):
            raise n.error(f"{len(names)} activations, there should be {len(defaults) * len(self.backwards)}")
        self.functions = self._functions(names, len(defaults))

    def _functions(self, names, each):
        """For every direction its activations with their parameters, taken in order by those that have any."""
        alphas, betas = list(self.n.attr("activation_alpha") or []), list(self.n.attr("activation_beta") or [])
        found = []
        for given in names:
            name = re.sub("_", "", given.lower())
            name = NAMES.get(name, name)
            alpha, beta = PARAMETERS.get(name, (None, None))
            if alpha is not None and alphas:
                alpha = alphas.pop(0)
            if beta is not None and betas:
                beta = betas.pop(0)
            found.append((name, float(alpha or 0), float(beta or 0)))
        return [found[i : i + each] for i in range(0, len(found), each)]

    def attributes(self, d):
        names, alphas, betas = zip(*self.functions[d], strict=True)
        clip = float(self.n.attr("clip", 0.0))
        return {"reverse": self.backwards[d], "activations": names, "alphas": alphas, "betas": betas, "clip": clip}

    def part(self, x, d):
        """Direction d of a tensor whose first dimension counts them."""
        if x is None:
            return None
        if x.shape[0] != len(self.backwards):
            raise self.n.error(f"an input has {x.shape[0]} directions, the layer {len(self.backwards)}")
        return self.n.pick(x, 0, d)

    def state(self, x, d):
        """An initial state of direction d, [batch, hidden]; 0 where it is absent."""
        n, shape = self.n, (self.batch, self.hidden)
        if x is None:
            return n.expand(n.constant(np.zeros((), NUMPY[self.dtype])), shape)
        return self.part(n.transpose(x, (1, 0, 2)) if self.batch_first else x, d)

    def inputs(self, d, bias):
        """X W' + bias of all steps, [steps, batch, gates * hidden], and R'."""
        n = self.n
        w, r = n.transpose(self.part(self.w, d), (1, 0)), n.transpose(self.part(self.r, d), (1, 0))
        out = n("matmul", self.x, w)
        return (out if bias is None else n("add", out, bias)), r

    def biases(self, b, d):
        """The two halves of a direction's bias, [gates * hidden] each."""
        if b is None:
            return None, None
        b, size = self.part(b, d), self.gates * self.hidden
        return tuple(self.n.slice(b, 0, i * size, size) for i in (0, 1))

    def outputs(self, results):
        """Y, Y_h (and Y_c) of all directions: [steps, directions, batch, hidden] and [directions, batch, hidden]."""
        n = self.n
        y = n.concat([n.unsqueeze(r[0], 1) for r in results], 1)
        last = [
            n.concat([n.unsqueeze(x, 0) for x in states], 0) for states in zip(*[r[1:] for r in results], strict=True)
        ]
        if self.batch_first:
            return [n.transpose(y, (2, 0, 1, 3)), *[n.transpose(x, (1, 0, 2)) for x in last]]
        return [y, *last]


def lengths_of(n, lengths):
    return None if lengths is None else n.cast(lengths, "i32")


@onnx_op("RNN", since=1)
def rnn(n, x, w, r, b=None, lengths=None, h=None):
    layer, results = RecurrentLayer(n, x, w, r, 1, ["Tanh"]), []
    for d in range(len(layer.backwards)):
        first, second = layer.biases(b, d)
        gates, weights = layer.inputs(d, None if first is None else n("add", first, second))
        results.append(n("rnn", gates, weights, layer.state(h, d), lengths_of(n, lengths), **layer.attributes(d)))
    return layer.outputs(results)


@onnx_op("GRU", since=1)
def gru(n, x, w, r, b=None, lengths=None, h=None):
    layer, results = RecurrentLayer(n, x, w, r, 3, ["Sigmoid", "Tanh"]), []
    after, size = bool(n.attr("linear_before_reset", 0)), layer.hidden
    for d in range(len(layer.backwards)):
        first, second = layer.biases(b, d)
        third = None
        if after:  # the recurrent bias of the new state is added before the reset gate
            if second is None:
                third = n.constant(np.zeros(size, NUMPY[x.dtype]))
            else:
                third = n.slice(second, 0, 2 * size, size)
                gates = n.slice(second, 0, 0, 2 * size)
                second = n("pad", gates, low=(0,), high=(size,))
        gates, weights = layer.inputs(d, None if first is None else n("add", first, second))
        operands = (gates, weights, layer.state(h, d), third, lengths_of(n, lengths))
        results.append(n("gru", *operands, **layer.attributes(d)))
    return layer.outputs(results)


@onnx_op("LSTM", since=1)
def lstm(n, x, w, r, b=None, lengths=None, h=None, c=None, p=None):
    layer, results = RecurrentLayer(n, x, w, r, 4, ["Sigmoid", "Tanh", "Tanh"]), []
    for d in range(len(layer.backwards)):
        first, second = layer.biases(b, d)
        gates, weights = layer.inputs(d, None if first is None else n("add", first, second))
        operands = (gates, weights, layer.state(h, d), layer.state(c, d), layer.part(p, d), lengths_of(n, lengths))
        results.append(n("lstm", *operands, coupled=bool(n.attr("input_forget", 0)), **layer.attributes(d)))
    return layer.outputs(results)
