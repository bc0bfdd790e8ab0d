"""Chips with maxima, and with words shorter than a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.targets.accelerator import Chip, ChipMemory, ComputeEngine, CopyEngine, Dim, Instruction, Operand
from tilewright.targets.accelerator.check import check
from tilewright.targets.accelerator.describe import ACCUMULATE, HOST, WRITE
from tilewright.targets.accelerator.target import ChipTarget
from tilewright.targets.base import register

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Maxima(Chip):
    """Takes maxima: over a window at once, over its rows and columns at once, or of one number after the other."""

    kind: int = 0
    word: int = 16

    name: ClassVar[str] = "maxima"
    host_rate: ClassVar[float] = 1.0

    def spaces(self):
        return (ChipMemory("local", 1 << 16, word=self.word),)

    def copy_engines(self):
        load = CopyEngine("load", sources=(HOST,), targets=("local",), fill=True)
        return load, CopyEngine("store", sources=("local",), targets=(HOST,))

    def compute_engines(self):
        return (ComputeEngine("unit"),)

    def instructions(self):
        m, n = Dim("m", 64, levels=3), Dim("n", 16)
        over = ((Dim("r", 64, levels=2),), (Dim("r", 4, levels=1), Dim("s", 4, levels=1)), ())[self.kind]
        x = Operand("x", "local", "i8", ("m", *(d.name for d in over), "n"))
        y = Operand("y", "local", "i8", ("m", "n"), WRITE if over else ACCUMULATE)
        bodies = (lambda x: x.max(axis=1), lambda x: x.max(axis=2).max(axis=1), lambda y, x: np.maximum(y, x))
        operands = (x, y) if over else (y, x)
        return (Instruction("pool", "unit", (m, *over, n), operands, bodies[self.kind], cycles=lambda f: f.m),)


@dataclass(frozen=True)
class Short(Chip):
    """Products of four bytes, in a memory whose words are shorter than 16 columns."""

    name: ClassVar[str] = "short_words"
    host_rate: ClassVar[float] = 1.0

    def spaces(self):
        return ChipMemory("local", 1 << 15, word=4), ChipMemory("sums", 1 << 13, word=64)

    def copy_engines(self):
        load = CopyEngine("load", sources=(HOST,), targets=("local",), fill=True)
        return load, CopyEngine("store", sources=("sums",), targets=(HOST,))

    def compute_engines(self):
        return (ComputeEngine("unit"),)

    def instructions(self):
        operands = (
            Operand("acc", "sums", "i32", ("m", "n"), ACCUMULATE, dense=True),
            Operand("x", "local", "i8", ("m", "k")),
            Operand("w", "local", "i8", ("k", "n")),
        )
        dims = (Dim("m", 32, levels=2), Dim("n", 16), Dim("k", 4))
        body = lambda acc, x, w: acc + x.astype(np.int32) @ w.astype(np.int32)  # noqa: E731
        return (Instruction("dot", "unit", dims, operands, body, cycles=lambda f: f.m),)


register(ChipTarget(Maxima))
register(ChipTarget(Short))


def compiled(nodes, x, y, arrays, target, dtype=TensorProto.INT8):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT8, x)],
        [helper.make_tensor_value_info("y", dtype, y)],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    run = tw.compile(model, target=target, threads=1)
    return run, [line for line in run.explain().splitlines() if " runs on " in line]


@pytest.mark.parametrize("word", [16, 4])
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["window", "square", "running"])
def test_maxima_run_on_a_chip(kind, word):
    check(Maxima(kind, word))
    target = f"cpu+maxima:kind={kind},word={word}"
    for shape, axes in (([24, 4, 16], [1]), ([6, 3, 4, 32], [1, 2]), ([5, 2, 16], [1])):
        x = RNG.integers(-128, 128, shape, dtype=np.int8)
        want = x.max(axis=tuple(axes))
        node = helper.make_node("ReduceMax", ["x", "axes"], ["y"], keepdims=0)
        run, lines = compiled([node], shape, want.shape, {"axes": np.int64(axes)}, target)
        np.testing.assert_array_equal(run(x)[0], want)
        assert all("runs on maxima: " in line for line in lines), lines


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["window", "square", "running"])
def test_a_max_pool_runs_on_a_chip(kind):
    x = RNG.integers(-128, 128, (1, 4, 12, 12), dtype=np.int8)
    want = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (2, 3))[:, :, ::2, ::2].max((-2, -1))
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2])
    run, lines = compiled([node], x.shape, want.shape, {}, f"cpu+maxima:kind={kind}")
    np.testing.assert_array_equal(run(x)[0], want)
    assert "runs on maxima: " in lines[0]


def test_what_does_not_fit_at_once_says_so():
    node = helper.make_node("ReduceMax", ["x", "axes"], ["y"], keepdims=0)
    _, lines = compiled([node], [8, 5, 16], [8, 16], {"axes": np.int64([1])}, "cpu+maxima:kind=1")
    assert "pool: r has at most 4, here are 5" in lines[0]
    node = helper.make_node("ReduceMin", ["x", "axes"], ["y"], keepdims=0)
    _, lines = compiled([node], [8, 4, 16], [8, 16], {"axes": np.int64([1])}, "cpu+maxima")
    assert "no instruction computes minsi over j0 of p0[i0, j0, k0]" in lines[0]


@pytest.mark.parametrize("columns", [64, 61, 60, 52, 49, 25, 20, 17, 12])
def test_columns_that_do_not_fill_the_last_run(columns):
    """Where the last columns have fewer words than a run, constants are padded and multiplied as they are."""
    x = RNG.integers(-128, 128, (8, 16), dtype=np.int8)
    w = RNG.integers(-128, 128, (16, columns), dtype=np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    run, lines = compiled([node], x.shape, [8, columns], {"w": w}, "cpu+short_words", TensorProto.INT32)
    np.testing.assert_array_equal(run(x)[0], x.astype(np.int32) @ w.astype(np.int32))
    assert "runs on short_words: " in lines[0]


@pytest.mark.parametrize("size", [16, 24, 8, 20])
def test_heads_of_columns_that_do_not_fill_a_run(size):
    """A head's columns are taken in equal parts, so that rows follow one another as for the whole."""
    x = RNG.integers(-128, 128, (8, 16), dtype=np.int8)
    w = RNG.integers(-128, 128, (16, 3 * size), dtype=np.int8)
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["y"], perm=[1, 0, 2]),
    ]
    arrays = {"w": w, "shape": np.int64([8, 3, size])}
    run, lines = compiled(nodes, x.shape, [3, 8, size], arrays, "short_words", TensorProto.INT32)
    want = (x.astype(np.int32) @ w.astype(np.int32)).reshape(8, 3, size).transpose(1, 0, 2)
    np.testing.assert_array_equal(run(x)[0], want)
    assert "runs on short_words: " in lines[0]
