"""Random graphs through the whole level-2 pipeline: still valid, same results."""

import numpy as np
import pytest
from torch_mlir import ir

from tilewright.graph.interpret import interpret
from tilewright.graph.passes import parse_pipeline, run_pipeline
from tilewright.ir.context import parse, use
from tilewright.ir.dialect import create
from tilewright.ir.graph import Graph
from tilewright.ir.types import type_of

PIPELINE = (
    "simplify,fold,cse,match-softmax,match-norm,match-activation,match-gelu,simplify,match-attention,"
    "fold-batch-norm,layout,simplify,fold,cse,dce"
)
UNARY = ["neg", "abs", "relu", "sigmoid", "tanh", "gelu", "softplus", "sin", "softmax"]


class Grower:
    """Grows a graph of random operators on values of rank 4 (and some others), all of moderate size."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.graph = Graph(parse("func.func @main(%x: tensor<1x4x6x5xf32>, %y: tensor<1x4x6x5xf32>) { return }"))
        self.values = list(self.graph.block.arguments)

    def pick(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def value(self, rank=None):
        found = [v for v in self.values if rank is None or type_of(v).rank == rank]
        return found[-1 - min(int(self.rng.exponential(2)), len(found) - 1)]

    def constant(self, *shape):
        return self.graph.constant((self.rng.standard_normal(shape) * 0.5).astype(np.float32), "w")

    def number(self, *choices):
        return self.graph.constant(np.float32(self.pick(*choices)), "n")

    def grow(self):
        kind = self.pick(
            "unary", "unary", "scalar", "scalar", "binary", "binary", "move", "move", "conv", "reduce", "linear"
        )
        out = getattr(self, kind)()
        if 0 < type_of(out).size <= 4000:
            self.values.append(out)

    def unary(self):
        x = self.value()
        return create(self.pick(*UNARY[: None if type_of(x).rank else -1]), x)[0]

    def scalar(self):
        name, x = self.pick("add", "sub", "mul", "div", "max", "min", "pow"), self.value()
        if name == "pow":
            return create("pow", create("softplus", x)[0], self.number(1.0, 2.0, 0.5, -0.5, 3.0))[0]
        c = self.number(1.0, 2.0, -1.0, 0.25, 3.0) if name == "div" else self.number(0.0, 1.0, -1.0, 2.0, 0.3)
        return create(name, *((c, x) if name in ("add", "mul", "max") and self.rng.random() < 0.3 else (x, c)))[0]

    def binary(self):
        x = self.value()
        shape = type_of(x).dims
        other = self.pick("same", "channel", "row", "computed")
        if other == "same":
            y = self.pick(*[v for v in self.values if type_of(v) == type_of(x)])
        elif other == "channel" and len(shape) == 4:
            y = self.constant(shape[1], 1, 1)
        elif other == "computed" and shape:
            y = create("reduce_mean", x, axes=(len(shape) - 1,), keepdims=True)[0]
        else:
            y = self.constant(*shape[-1:])
        return create(self.pick("add", "mul", "sub", "max"), x, y)[0]

    def move(self):
        x = self.value()
        t = type_of(x)
        kind = self.pick("transpose", "layout", "reshape", "slice", "concat", "pad", "expand", "gather", "split")
        if kind == "transpose" or (kind == "layout" and t.rank != 4):
            return create("transpose", x, permutation=tuple(int(i) for i in self.rng.permutation(t.rank)))[0]
        if kind == "layout":
            return create("transpose", x, permutation=self.pick((0, 2, 3, 1), (0, 3, 1, 2)))[0]
        if kind == "reshape" or t.rank == 0:
            a = self.pick(1, t.size, *[d for d in (2, 3, 4, 5, 6) if t.size % d == 0])
            return create("reshape", x, shape=self.pick((1, a, 1, t.size // a), (a, t.size // a), (-1,), (1, *t.dims)))[
                0
            ]
        axis = int(self.rng.integers(t.rank))
        if kind == "slice":
            n = int(self.rng.integers(1, t.dims[axis] + 1))
            start = int(self.rng.integers(0, t.dims[axis] - n + 1))
            steps = [1] * t.rank
            if self.rng.random() < 0.3:
                start, steps[axis] = start + n - 1, -1
            starts = [start if i == axis else 0 for i in range(t.rank)]
            sizes = [n if i == axis else d for i, d in enumerate(t.dims)]
            return create("slice", x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))[0]
        if kind == "concat":
            return create("concat", x, self.pick(*[v for v in self.values if type_of(v) == type_of(x)]), axis=axis)[0]
        if kind == "pad":
            low, high = (tuple(int(v) for v in self.rng.integers(0, 2, t.rank)) for _ in range(2))
            return create("pad", x, low=low, high=high, value=self.pick(0.0, 1.0))[0]
        if kind == "expand":
            return create("expand", x, shape=(2, *t.dims))[0] if t.rank < 4 else x
        if kind == "gather":
            indices = np.sort(self.rng.integers(0, t.dims[axis], 2))
            return create("gather", x, self.graph.constant(indices), axis=axis)[0]
        n = t.dims[axis] // 2
        return create("split", x, sizes=(n, t.dims[axis] - n), axis=axis)[-1]

    def conv(self):
        x = self.value(4)
        channels = type_of(x).dims[1]
        out, pad = self.pick(4, 6), self.pick(0, 1)
        k = 3 if min(type_of(x).dims[2:]) + 2 * pad >= 3 else 1
        bias = self.constant(out) if self.rng.random() < 0.5 else None
        attrs = {"strides": (1, 1), "pads": (pad,) * 4, "dilations": (1, 1)}
        y = create("conv", x, self.constant(out, channels, k, k), bias, **attrs)[0]
        if self.rng.random() < 0.5:
            var = self.graph.constant(self.rng.random(out).astype(np.float32) + 0.5, "var")
            y = create("batch_norm", y, *[self.constant(out) for _ in range(3)], var)[0]
        if min(type_of(y).dims[2:]) >= 2 and self.rng.random() < 0.3:
            y = create("max_pool", y, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))[0]
        return y

    def reduce(self):
        x = self.value()
        rank = type_of(x).rank
        axes = tuple(int(a) for a in self.rng.choice(rank, min(rank, self.pick(1, 2)), replace=False))
        return create(
            self.pick("reduce_mean", "reduce_sum", "reduce_max"), x, axes=axes, keepdims=self.pick(True, False)
        )[0]

    def linear(self):
        x = self.value()
        t = type_of(x)
        if t.rank < 1:
            return x
        flat = create("reshape", x, shape=(-1, t.dims[-1]))[0] if self.rng.random() < 0.5 else x
        y = create("matmul", flat, self.constant(t.dims[-1], 3))[0]
        if self.rng.random() < 0.5:
            y = create("add", y, self.constant(3))[0]
        return create("reshape", y, shape=(*t.dims[:-1], 3))[0] if flat is not x else y

    def finish(self):
        outputs = list({hash(v): v for v in [*self.values[-1:], self.value(), self.value()]}.values())
        graph = self.graph
        old = list(graph.operations())[-1]
        ir.Operation.create("func.return", operands=outputs)
        old.erase()
        kind = ir.FunctionType.get([a.type for a in graph.block.arguments], [v.type for v in outputs])
        graph.main.attributes["function_type"] = ir.TypeAttr.get(kind)
        graph.verify()
        return graph


def random_graph(seed, size=25):
    with use():
        grower = Grower(seed)
        with ir.InsertionPoint(list(grower.graph.operations())[-1]):
            for _ in range(size):
                grower.grow()
            return grower.finish()


def check(seed):
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    inputs = {n: rng.standard_normal(t.dims).astype(np.float32) for n, t in graph.inputs()}
    before, rounded = interpret(graph, inputs, float64=True), interpret(graph, inputs)
    run_pipeline(graph, parse_pipeline(PIPELINE))
    after = interpret(graph, inputs, float64=True)
    for key, expected in before.items():
        tolerance = 1e-4 * max(np.abs(expected).max(), 1)
        # Graphs that are finite and well-conditioned: rounding all of it to float32 changes little.
        if np.isfinite(tolerance) and np.abs(rounded[key] - expected).max() <= tolerance:
            assert np.abs(after[key] - expected).max() <= tolerance, f"seed {seed}"


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_random_graphs(start):
    for seed in range(start, start + 10):
        check(seed)
