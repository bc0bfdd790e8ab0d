"""Random schedules: whatever primitives are accepted, a kernel keeps its meaning; whatever is refused, the reason is
given.

The number of sequences is set by the environment variable TILEWRIGHT_SEQUENCES (a total over all kernels)."""

# ruff: noqa: E501 (kernels as text)
from __future__ import annotations

import os
import random

import numpy as np
import pytest
from torch_mlir import ir

from tilewright.driver.build_program import pack_array
from tilewright.ir.context import use
from tilewright.ir.graph import Graph
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import reads, stores
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.tensor.evaluate import NUMPY
from tilewright.tensor.expr import Var
from tilewright.tensor.fuse import fuse
from tilewright.tensor.kernel import Kernel
from tilewright.tensor.lower import lower
from tilewright.tensor.read import read_kernel

SEQUENCES = int(os.environ.get("TILEWRIGHT_SEQUENCES", "400"))

#: name -> (body with %a, %b, ... , types of the arguments, type of the result)
KERNELS = {
    "matmul_bias_relu": (
        '%0 = "tw.matmul"(%a, %b) : (tensor<5x6xf32>, tensor<6x7xf32>) -> tensor<5x7xf32>\n'
        '%1 = "tw.add"(%0, %c) : (tensor<5x7xf32>, tensor<7xf32>) -> tensor<5x7xf32>\n'
        '%2 = "tw.relu"(%1) : (tensor<5x7xf32>) -> tensor<5x7xf32>\nreturn %2 : tensor<5x7xf32>',
        ("5x6xf32", "6x7xf32", "7xf32"),
        "5x7xf32",
    ),
    "conv": (
        '%0 = "tw.conv"(%a, %b) {layout = "nhwc", strides = array<i64: 2, 1>, pads = array<i64: 1, 1, 1, 0>, dilations = array<i64: 1, 1>, groups = 1} : '
        "(tensor<1x3x4x2xf32>, tensor<3x2x3x2xf32>) -> tensor<1x2x4x3xf32>\nreturn %0 : tensor<1x2x4x3xf32>",
        ("1x3x4x2xf32", "3x2x3x2xf32"),
        "1x2x4x3xf32",
    ),
    "depthwise": (
        '%0 = "tw.conv"(%a, %b) {layout = "nhwc", strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, groups = 3} : '
        "(tensor<1x3x4x3xf32>, tensor<3x1x3x3xf32>) -> tensor<1x3x4x3xf32>\nreturn %0 : tensor<1x3x4x3xf32>",
        ("1x3x4x3xf32", "3x1x3x3xf32"),
        "1x3x4x3xf32",
    ),
    "softmax": (
        '%0 = "tw.softmax"(%a) {axis = 1} : (tensor<4x9xf32>) -> tensor<4x9xf32>\nreturn %0 : tensor<4x9xf32>',
        ("4x9xf32",),
        "4x9xf32",
    ),
    "layer_norm": (
        '%0 = "tw.layer_norm"(%a, %b, %c) {axis = 1, epsilon = 1.0e-5, operandSegmentSizes = array<i32: 1, 1, 1>} : '
        "(tensor<3x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<3x8xf32>\nreturn %0 : tensor<3x8xf32>",
        ("3x8xf32", "8xf32", "8xf32"),
        "3x8xf32",
    ),
    "transpose": (
        '%0 = "tw.transpose"(%a) {permutation = array<i64: 2, 0, 1>} : (tensor<3x4x5xf32>) -> tensor<5x3x4xf32>\n'
        '%1 = "tw.exp"(%0) : (tensor<5x3x4xf32>) -> tensor<5x3x4xf32>\nreturn %1 : tensor<5x3x4xf32>',
        ("3x4x5xf32",),
        "5x3x4xf32",
    ),
    "sum": (
        '%0 = "tw.reduce_sum"(%a) {axes = array<i64: 0, 2>, keepdims = false} : (tensor<4x3x6xf32>) -> tensor<3xf32>\nreturn %0 : tensor<3xf32>',
        ("4x3x6xf32",),
        "3xf32",
    ),
    "argmax": (
        '%0 = "tw.arg_max"(%a) {axis = 1, keepdims = false} : (tensor<4x6xf32>) -> tensor<4xi64>\nreturn %0 : tensor<4xi64>',
        ("4x6xf32",),
        "4xi64",
    ),
    "broadcast": (
        '%0 = "tw.add"(%a, %b) : (tensor<4x1x5xf32>, tensor<3x1xf32>) -> tensor<4x3x5xf32>\n'
        '%1 = "tw.mul"(%0, %a) : (tensor<4x3x5xf32>, tensor<4x1x5xf32>) -> tensor<4x3x5xf32>\nreturn %1 : tensor<4x3x5xf32>',
        ("4x1x5xf32", "3x1xf32"),
        "4x3x5xf32",
    ),
    "concat": (
        '%0 = "tw.concat"(%a, %b) {axis = 1, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<3x4xf32>, tensor<3x2xf32>) -> tensor<3x6xf32>\nreturn %0 : tensor<3x6xf32>',
        ("3x4xf32", "3x2xf32"),
        "3x6xf32",
    ),
}


def kernels_of(body: str, arguments: tuple[str, ...], result: str) -> list[Kernel]:
    names = ", ".join(f"%{'abcdef'[i]}: tensor<{t}>" for i, t in enumerate(arguments))
    with use():
        graph = Graph(ir.Module.parse(f"module {{ func.func @main({names}) -> tensor<{result}> {{\n{body}\n}} }}"))
        graph.verify()
        fused, _ = fuse(lower(graph))
        return [read_kernel(f) for f in fused.functions()]


def inputs_of(kernel: Kernel) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {b.name: rng.standard_normal(b.shape).astype(NUMPY[b.dtype]) for b in kernel.inputs}


def run(nest, arrays):
    return interpret_nest(nest, {n: pack_array(a, nest.packs[n]) if n in nest.packs else a for n, a in arrays.items()})


PRIMITIVES = [
    "split", "split", "fuse", "merge", "merge", "reorder", "reorder", "tile", "unroll", "vectorize", "parallel", "bind", "annotate",
    "prefetch", "inline", "compute_at", "compute_at", "reverse_compute_at", "reverse_compute_at", "cache_read",
    "cache_read", "cache_write", "rfactor", "decompose_reduction", "decompose_reduction", "pipeline", "pipeline",
    "partial_sums", "partial_sums", "reindex", "pack", "set_scope", "set_order", "tensorize", "flatten",
    "repeat", "one_pass", "one_pass", "cut", "cut", "pad", "stagger", "stagger",
    "split_dimension", "multi_buffer", "multi_buffer",
]  # fmt: skip


def random_step(s: Schedule, rng: random.Random) -> tuple[str, tuple]:
    """A primitive with arguments of the right types, most of which exist."""
    loops = s.loops() or ["none"]
    blocks = [x.block for x in stores(s.body)] or ["none"]
    buffers = [*s.params, *s.temporaries]
    loop, block = rng.choice(loops), rng.choice(blocks)
    own = s.loops(block) if blocks != ["none"] else loops
    name = rng.choice(PRIMITIVES)
    if name == "split":
        return name, (loop, rng.choice([1, 2, 3, 4, 5, 8]))
    if name == "cut":
        return name, (loop, rng.choice([0, 1, 2, 3, 4]))
    if name == "fuse":
        i = rng.randrange(len(own)) if own else 0
        return name, (tuple(own[i : i + 2]) if len(own[i : i + 2]) == 2 else (loop, rng.choice(loops)))
    if name == "merge":
        i = rng.randrange(len(loops))
        after = [v for v in loops[i + 1 :] if v not in s.loops(block)] or loops
        return name, (loops[i], rng.choice(after[:2]))
    if name == "stagger":
        i = rng.randrange(len(loops))
        after = [v for v in loops[i + 1 :] if v not in s.loops(block)] or loops
        return name, ((loops[i], rng.choice(after[:2])), (0, rng.choice([0, 1, 2])))
    if name == "pad":
        return name, (rng.choice([*s.temporaries, *buffers]), rng.choice([1, 4, 8]))
    if name == "reorder":
        chosen = own[rng.randrange(len(own) + 1) :] if own else loops
        return name, tuple(rng.sample(chosen, len(chosen)))
    if name in ("unroll", "vectorize", "parallel"):
        return name, (loop,)
    if name == "tile":
        chosen = own[rng.randrange(len(own) + 1) :][:2] or loops[:1]
        return name, (tuple(chosen), tuple(rng.choice([2, 3, 4]) for _ in chosen))
    if name == "bind":
        return name, (loop, rng.choice(["threads", "lanes", "block"]))
    if name == "tensorize":
        return name, (loop, rng.choice(["vnni512_us", "neon_ss", "none"]))
    if name == "annotate":
        return name, (loop, rng.choice(["note", "unroll_count"]), rng.choice([None, 4, "x", (1, True)]))
    if name == "prefetch":
        return name, (loop, rng.choice(buffers), (Var(rng.choice(loops)) * 2 + 1,))
    if name == "cache_read":
        read = sorted(reads(s.store(block))) if blocks != ["none"] else buffers
        around = rng.choice([None, *own, *own])
        others = [x.block for x in stores(s.loop(around).body)] if around in s.loops() else []
        shared = tuple(rng.sample(others, 2)) if len(others) > 1 and rng.random() < 0.3 else block
        return name, (shared, rng.choice(read or buffers), around)
    if name == "decompose_reduction":
        return name, (block, rng.choice([None, *own]))
    if name == "pipeline":
        chosen_blocks = [x.block for x in stores(s.loop(loop).body)] if loop in s.loops() else blocks
        return name, (loop, *rng.sample(chosen_blocks, min(len(chosen_blocks), rng.choice([1, 1, 2]))))
    if name in ("compute_at", "reverse_compute_at"):
        return name, (block, loop)
    if name == "partial_sums":
        return name, (block, rng.choice(own or loops))
    if name == "rfactor":
        reduction = [v for v in own if blocks != ["none"] and v in s.store(block).reduction]
        return name, (block, *reduction[-rng.choice([1, 1, 2]) :])
    if name == "one_pass":
        return name, (block, blocks[(blocks.index(block) + 1) % len(blocks)])
    if name == "reindex":
        return name, (block, rng.choice(blocks))
    if name == "set_scope":
        return name, (rng.choice(buffers), "local")
    if name == "set_order":
        buffer = rng.choice([*s.temporaries, *buffers])
        order = list(range(len(s.buffer(buffer).shape)))
        return name, (buffer, tuple(rng.sample(order, len(order))))
    if name in ("flatten", "repeat"):
        buffer = rng.choice([*s.temporaries, *buffers])
        dimension = rng.randrange(max(len(s.buffer(buffer).shape), 1))
        return name, (buffer, dimension) if name == "flatten" else (buffer, dimension, loop)
    if name == "split_dimension":
        buffer = rng.choice([*s.temporaries, *buffers])
        return name, (buffer, rng.randrange(max(len(s.buffer(buffer).shape), 1)), rng.choice([0, 2, 3, 4]))
    if name == "multi_buffer":
        return name, (rng.choice([*s.temporaries, *buffers]), loop, rng.choice([1, 2, 3]))
    if name == "pack":
        buffer = rng.choice(buffers)
        splits = tuple(rng.choice([(), (2,), (4,), (2, 2)]) for _ in s.buffer(buffer).shape)
        order = list(range(len(splits) + sum(map(len, splits))))
        rng.shuffle(order)
        return name, (buffer, splits, tuple(order))
    return name, (block,)


def one_sequence(kernel: Kernel, seed: int, arrays: dict, expected: dict) -> int:
    """Apply random primitives to a kernel and compare; returns how many were accepted."""
    rng = random.Random(seed)
    s = Schedule(kernel)
    steps: list[tuple] = []
    wanted = rng.choice([2, 4, 8, 14])
    for _ in range(5 * wanted):
        if len(steps) == wanted:
            break
        name, args = random_step(s, rng)
        before = s.body, dict(s.temporaries), dict(s.packs)
        try:
            getattr(s, name)(*args)
            steps.append((name, args))
        except ScheduleError as e:
            assert len(e.message) > 10, (steps, name, args)
            assert before == (s.body, s.temporaries, s.packs), (
                f"{name}{args} changed the schedule though it was refused"
            )
        except Exception as e:
            raise AssertionError(f"seed {seed}: {steps}, then {name}{args}: {type(e).__name__}: {e}") from e
    nest = s.nest()
    try:
        again = Schedule.replay(kernel, str(s.trace)).nest()
    except Exception as e:
        raise AssertionError(f"seed {seed}: the trace does not replay: {type(e).__name__}: {e}\n{s.trace}") from e
    assert again == nest, f"seed {seed}: the trace replays to something else\n{s.trace}\n{nest}\n{again}"
    for stage, make in (("nest", lambda: nest), ("finish", lambda: finish(nest))):
        try:
            made = make()
            assert parse_nest(format_nest(made)) == made, "text"
            got = run(made, arrays)
        except Exception as e:
            raise AssertionError(f"seed {seed}, {stage}: {steps}: {type(e).__name__}: {e}\n{nest}") from e
        for n, want in expected.items():
            if not np.allclose(got[n], want, rtol=2e-5, atol=2e-5):
                raise AssertionError(f"seed {seed}, {stage}: {steps}: wrong {n}\n{nest}\n{made}")
    return len(steps)


@pytest.mark.parametrize("name", KERNELS)
def test_accepted_schedules_keep_the_meaning(name):
    accepted = 0
    for kernel in kernels_of(*KERNELS[name]):
        constant = frozenset(b.name for b in kernel.inputs[1:])  # as weights would be
        kernel = Kernel(**{**{f: getattr(kernel, f) for f in kernel.__dataclass_fields__}, "constants": constant})
        arrays = inputs_of(kernel)
        expected = run(Schedule(kernel).nest(), arrays)
        for seed in range(SEQUENCES // len(KERNELS)):
            accepted += one_sequence(kernel, seed, arrays, expected)
    assert accepted > SEQUENCES // len(KERNELS)
