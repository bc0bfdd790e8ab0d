"""What the kernels of random chains of operators execute: `python tests/fuzz/random_chains.py --count 500 --seed 1`.

A chain alternates what computes (matmul, convolution, normalization, softmax, reduction, pooling) with what moves data
(reshape, transpose, slice, pad, roll, window partition and its reverse, patch merging) and with elementwise work, at
random sizes. It is compiled up to the loop nests for a machine that is written down here. Every kernel shall execute at
most 1.5 times what it was asked for (`tilewright.schedule.executed`), or its schedule says why not; with `--run` the
results are compared with the references in double precision too.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

#: elements of the largest tensor, and products of a contraction
LARGEST, PRODUCTS = 400_000, 200_000_000
#: ways to cut a dimension: those of windows, heads and patches
PARTS = (2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 32, 64)
WIDTHS = (8, 12, 16, 24, 32, 40, 48, 64, 96, 100, 128, 160, 192)


@dataclass
class Chain:
    """An ONNX model that grows: `name` and `shape` are those of its last tensor, `seen` all earlier ones."""

    rng: random.Random
    shape: tuple[int, ...]
    name: str = "x"
    nodes: list = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    seen: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def op(self, kind: str, shape, *more: str, **attributes) -> None:
        """Apply an operator to the last tensor and the operands `more`."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [self.name, *more], [name], **attributes))
        self.seen.append((self.name, self.shape))
        self.name, self.shape = name, tuple(shape)

    def weight(self, *shape: int) -> str:
        noise = np.random.default_rng(self.rng.getrandbits(32))
        fan = prod(shape[1:]) if len(shape) > 2 else shape[0]
        return self.constant((noise.standard_normal(shape) / np.sqrt(max(fan, 1))).astype(np.float32))

    def constant(self, value) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def numbers(self, values) -> str:
        return self.constant(np.array(list(values), np.int64))

    def model(self):
        from onnx import TensorProto, checker, helper, numpy_helper

        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [info(n, TensorProto.FLOAT, s) for n, s in self.inputs.items()],
            [info(self.name, TensorProto.FLOAT, self.shape)],
            [numpy_helper.from_array(v, n) for n, v in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        checker.check_model(model)
        return model


# ---- what computes ------------------------------------------------------------------------------------------------


def matmul(c: Chain) -> bool:
    n = c.rng.choice(WIDTHS)
    if prod(c.shape) * n > PRODUCTS or prod(c.shape[:-1]) * n > LARGEST or len(c.shape) < 2:
        return False
    c.op("MatMul", (*c.shape[:-1], n), c.weight(c.shape[-1], n))
    if c.rng.random() < 0.5:
        c.op("Add", c.shape, c.weight(n))
    return True


def products_of_rows(c: Chain) -> bool:
    """x times x transposed, as the scores of attention are made."""
    if len(c.shape) < 2 or prod(c.shape) * c.shape[-2] > PRODUCTS or prod(c.shape[:-1]) * c.shape[-2] > LARGEST:
        return False
    x, shape = c.name, c.shape
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    c.op("Transpose", [shape[d] for d in order], perm=order)
    other, c.name, c.shape = c.name, x, shape
    c.op("MatMul", (*shape[:-1], shape[-2]), other)
    return True


def convolution(c: Chain) -> bool:
    if len(c.shape) not in (3, 4) or min(c.shape[2:]) < 4:
        return False
    space = c.shape[2:]
    k, s, deep = c.rng.choice([1, 1, 3, 3, 5]), c.rng.choice([1, 1, 1, 2]), c.rng.random() < 0.3
    out = c.shape[1] if deep else c.rng.choice(WIDTHS)
    result = [(n + 2 * (k // 2) - k) // s + 1 for n in space]
    each = k ** len(space) * (1 if deep else c.shape[1])
    if prod(result) * out * each * c.shape[0] > PRODUCTS or prod(result) * out * c.shape[0] > LARGEST:
        return False
    w = c.weight(out, 1 if deep else c.shape[1], *[k] * len(space))
    more = {"kernel_shape": [k] * len(space), "strides": [s] * len(space), "pads": [k // 2] * 2 * len(space)}
    c.op("Conv", (c.shape[0], out, *result), w, c.weight(out), group=out if deep else 1, **more)
    return True


def layer_norm(c: Chain) -> bool:
    n = c.shape[-1]
    c.op("LayerNormalization", c.shape, c.weight(n), c.weight(n), axis=-1, epsilon=1e-5)
    return n > 1


def rms_norm(c: Chain) -> bool:
    x, shape = c.name, c.shape
    c.op("Mul", shape, x)
    c.op("ReduceMean", (*shape[:-1], 1), c.numbers([-1]), keepdims=1)
    c.op("Add", c.shape, c.constant(np.float32(1e-6)))
    c.op("Sqrt", c.shape)
    scale, c.name, c.shape = c.name, x, shape
    c.op("Div", shape, scale)
    c.op("Mul", shape, c.weight(shape[-1]))
    return True


def instance_norm(c: Chain) -> bool:
    if len(c.shape) < 3:
        return False
    c.op("InstanceNormalization", c.shape, c.weight(c.shape[1]), c.weight(c.shape[1]), epsilon=1e-5)
    return True


def softmax(c: Chain) -> bool:
    c.op("Softmax", c.shape, axis=c.rng.choice([-1, -1, -1, c.rng.randrange(len(c.shape))]))
    return True


def reduction(c: Chain) -> bool:
    rank = len(c.shape)
    axes = sorted(c.rng.sample(range(rank), c.rng.randint(1, max(1, rank - 2))))
    shape = [1 if d in axes else n for d, n in enumerate(c.shape)]
    kind = c.rng.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"])
    x, whole = c.name, c.shape
    c.op(kind, shape, c.numbers(axes), keepdims=1)
    if c.rng.random() < 0.7:  # each element with what was found for its row
        found, c.name, c.shape = c.name, x, whole
        c.op(c.rng.choice(["Sub", "Mul"]), whole, found)
    return True


def pooling(c: Chain) -> bool:
    if len(c.shape) not in (3, 4) or min(c.shape[2:]) < 4:
        return False
    rank = len(c.shape) - 2
    k, s = c.rng.choice([(2, 2), (3, 1), (3, 2)])
    result = [(n + 2 * (k // 2 if k == 3 else 0) - k) // s + 1 for n in c.shape[2:]]
    more = {"kernel_shape": [k] * rank, "strides": [s] * rank, "pads": [k // 2 if k == 3 else 0] * 2 * rank}
    c.op(c.rng.choice(["MaxPool", "AveragePool"]), (*c.shape[:2], *result), **more)
    return True


# ---- what moves data ----------------------------------------------------------------------------------------------


def transpose(c: Chain) -> bool:
    order = list(range(len(c.shape)))
    c.rng.shuffle(order)
    c.op("Transpose", [c.shape[d] for d in order], perm=order)
    return len(order) > 1


def reshape(c: Chain) -> bool:
    """Split a dimension, merge neighbours, or both."""
    shape = list(c.shape)
    for _ in range(c.rng.randint(1, 3)):
        d = c.rng.randrange(len(shape))
        parts = [n for n in PARTS if shape[d] % n == 0 and n < shape[d]]
        if c.rng.random() < 0.5 and parts and len(shape) < 7:
            n = c.rng.choice(parts)
            shape[d : d + 1] = c.rng.choice([[n, shape[d] // n], [shape[d] // n, n]])
        elif d + 1 < len(shape):
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
    if tuple(shape) == c.shape:
        return False
    c.op("Reshape", shape, c.numbers(shape))
    return True


def windows(c: Chain) -> bool:
    """Cut one to three dimensions into windows; those of each window come last (a partition), as the image has it (then
    what follows is its reverse), or in any order."""
    whole = [d for d in range(len(c.shape)) if any(c.shape[d] % n == 0 and n < c.shape[d] for n in PARTS)]
    if not whole or len(c.shape) > 5:
        return False
    cut = sorted(c.rng.sample(whole, min(len(whole), c.rng.randint(1, 3), 7 - len(c.shape))))
    shape: list[int] = []
    outer, inner, rest = [], [], []
    for d, n in enumerate(c.shape):
        if d in cut:
            w = c.rng.choice([p for p in PARTS if n % p == 0 and p < n])
            outer, inner = [*outer, len(shape)], [*inner, len(shape) + 1]
            shape += [n // w, w]
        else:
            rest.append(len(shape))
            shape.append(n)
    first, last = [d for d in rest if d < outer[0]], [d for d in rest if d > outer[0]]
    order = c.rng.choice([[*first, *outer, *inner, *last], [*first, *inner, *outer, *last], [*outer, *rest, *inner]])
    c.op("Reshape", shape, c.numbers(shape))
    c.op("Transpose", [shape[d] for d in order], perm=order)
    if c.rng.random() < 0.7:  # windows, and what is in one, as one dimension each
        d = c.rng.randrange(len(c.shape) - 1)
        merged = [*c.shape[:d], c.shape[d] * c.shape[d + 1], *c.shape[d + 2 :]]
        c.op("Reshape", merged, c.numbers(merged))
    return True


def slice_(c: Chain) -> bool:
    d = c.rng.randrange(len(c.shape))
    n = c.shape[d]
    if n < 4:
        return False
    start, step = c.rng.randrange(n // 2), c.rng.choice([1, 1, 2])
    stop = c.rng.randint(start + 2, n)
    shape = [*c.shape[:d], len(range(start, stop, step)), *c.shape[d + 1 :]]
    c.op("Slice", shape, *[c.numbers([v]) for v in (start, stop, d, step)])
    return True


def pad(c: Chain) -> bool:
    d = c.rng.randrange(len(c.shape))
    low, high = c.rng.randint(0, 3), c.rng.randint(0, 3)
    if not low + high or c.shape[d] < 4:
        return False
    pads = [low if e == d else 0 for e in range(len(c.shape))] + [high if e == d else 0 for e in range(len(c.shape))]
    shape = [n + (low + high if e == d else 0) for e, n in enumerate(c.shape)]
    c.op("Pad", shape, c.numbers(pads), mode=c.rng.choice(["constant", "constant", "constant", "edge", "reflect"]))
    return True


def roll(c: Chain) -> bool:
    for d in c.rng.sample(range(len(c.shape)), min(len(c.shape), c.rng.randint(1, 2))):
        n, x, whole = c.shape[d], c.name, c.shape
        if n < 4:
            return False
        k = c.rng.randrange(1, n)
        c.op("Slice", [*whole[:d], n - k, *whole[d + 1 :]], *[c.numbers([v]) for v in (k, n, d)])
        (front, rest), c.name, c.shape = (c.name, c.shape), x, whole
        c.op("Slice", [*whole[:d], k, *whole[d + 1 :]], *[c.numbers([v]) for v in (0, k, d)])
        back, c.name, c.shape = c.name, front, rest
        c.op("Concat", whole, back, axis=d)
    return True


def patch_merging(c: Chain) -> bool:
    """Every other element along two dimensions, the four together along the last."""
    spaces = [d for d in range(len(c.shape) - 1) if c.shape[d] % 2 == 0 and c.shape[d] >= 4]
    if len(spaces) < 2:
        return False
    a, b = sorted(c.rng.sample(spaces, 2))
    x, whole, parts = c.name, c.shape, []
    shape = [n // 2 if d in (a, b) else n for d, n in enumerate(whole)]
    for i, j in ((0, 0), (1, 0), (0, 1), (1, 1)):
        c.name, c.shape = x, whole
        numbers = ((i, j), (whole[a], whole[b]), (a, b), (2, 2))
        c.op("Slice", shape, *map(c.numbers, numbers))
        parts.append(c.name)
    c.name = parts[0]
    c.op("Concat", [*shape[:-1], 4 * shape[-1]], *parts[1:], axis=len(shape) - 1)
    return True


# ---- elementwise --------------------------------------------------------------------------------------------------


def elementwise(c: Chain) -> bool:
    c.op(c.rng.choice(["Relu", "Sigmoid", "Tanh", "Neg", "Exp", "Softplus"]), c.shape)
    return True


def gelu(c: Chain) -> bool:
    x = c.name
    c.op("Mul", c.shape, c.constant(np.float32(2**-0.5)))
    c.op("Erf", c.shape)
    c.op("Add", c.shape, c.constant(np.float32(1)))
    c.op("Mul", c.shape, x)
    return True


def residual(c: Chain) -> bool:
    """Add an earlier tensor of the same size (reshaped), or an input."""
    before = [s for s in c.seen if s[1] == c.shape]
    if before and c.rng.random() < 0.6:
        c.op("Add", c.shape, c.rng.choice(before)[0])
        return True
    name = f"r{len(c.inputs)}"
    c.inputs[name] = c.shape
    c.op("Add", c.shape, name)
    return True


def scale(c: Chain) -> bool:
    c.op("Mul", c.shape, c.weight(c.shape[-1]))
    return True


COMPUTES = (
    matmul, matmul, convolution, convolution, layer_norm, rms_norm, instance_norm, softmax, reduction, pooling,
    products_of_rows,
)  # fmt: skip
MOVES = (transpose, reshape, windows, windows, slice_, pad, roll, patch_merging)
APPLIES = (elementwise, gelu, residual, residual, scale)


def random_chain(seed: int) -> Chain:
    """A model that only the seed decides."""
    rng = random.Random(seed)
    side = lambda: rng.choice([7, 8, 12, 14, 16, 20, 24, 28, 32, 49, 56, 64])  # noqa: E731
    while True:
        shape = rng.choice(
            [
                (rng.choice([1, 1, 2]), rng.choice(WIDTHS), side(), side()),
                (rng.choice([1, 1, 2]), side(), side(), rng.choice(WIDTHS)),
                (rng.choice([1, 2, 4]), side() * rng.choice([1, 7, 8]), rng.choice(WIDTHS)),
                (rng.choice([1, 2]), rng.choice([2, 4, 8]), side(), side(), rng.choice(WIDTHS)),
                (side() * rng.choice([1, 4, 7]), rng.choice(WIDTHS)),
            ]
        )
        if prod(shape) <= LARGEST:
            break
    c = Chain(rng, shape, inputs={"x": shape})
    for _ in range(rng.randint(1, 4)):
        groups = [(COMPUTES, 1), (MOVES, rng.randint(0, 3)), (APPLIES, rng.randint(0, 2))]
        if rng.random() < 0.3:
            rng.shuffle(groups)
        for kinds, count in groups:
            for _ in range(count):
                step(c, kinds)
    if not c.nodes:
        c.op("Relu", c.shape)
    return c


def step(c: Chain, kinds) -> None:
    """Apply one of several steps that is possible here."""
    for _ in range(8):
        kind = c.rng.choice(kinds)
        before = c.name, c.shape, list(c.nodes), list(c.seen), dict(c.weights)
        if kind(c) and prod(c.shape) <= LARGEST and len(c.shape) < 8:
            c.steps.append(f"{kind.__name__.strip('_')}->{'x'.join(map(str, c.shape))}")
            return
        c.name, c.shape, c.nodes, c.seen, c.weights = before


# ---- what its kernels execute -------------------------------------------------------------------------------------


#: how many times its own work a kernel may execute without a word
SILENT = 1.5


@dataclass(frozen=True)
class Found:
    """A kernel of a chain: its rule, how many times its own work it executes, what goes too far by the count, and what
    `explain` says about that."""

    kernel: str
    rule: str
    ratio: float
    own: float
    reasons: tuple[str, ...]
    said: tuple[str, ...]
    text: str = ""

    @property
    def silent(self) -> bool:
        """Whether it goes too far and `explain` does not say so."""
        return (self.ratio > SILENT or bool(self.reasons)) and not self.said


def pinned(name: str):
    """A machine with vectors of 32 bytes (avx2) or of 64 (avx512), the same wherever this runs."""
    from tilewright.targets.cpu.description import CpuDescription

    triple = "x86_64-unknown-linux-gnu"
    if name == "avx2":
        return CpuDescription(triple, "x86-64-v3", ("avx2", "fma"), 32, 16)
    return CpuDescription(triple, "x86-64-v4", ("avx2", "avx512f", "fma"), 64, 32, 32 << 10, 1 << 20)


def kernels_of(model, machine) -> list[Found]:
    """The kernels of a model (parts of those that were cut in two, too) as they are scheduled for a machine, and the
    members of chains."""
    from tilewright.driver.compile_state import State
    from tilewright.driver.request import CompileRequest
    from tilewright.driver.stages import FRONT
    from tilewright.schedule.executed import executed
    from tilewright.schedule.facts import kernel_facts
    from tilewright.schedule.rules.convolution import depthwise_chain
    from tilewright.targets.base import find

    request = CompileRequest.of(model, cache=False, tuned=False, threads=1, jobs=1)
    state = State(request, find("cpu"), machine)
    for stage in FRONT:
        stage.run(state)
    found = []
    for name, kernel in state.kernels.items():
        if kernel.opaque is not None:  # what its own nest does is its work
            continue
        made, nest = state.schedules[name], state.nests[name]
        count = executed(nest, kernel, machine)
        reasons = tuple(count.reasons(machine))
        facts = kernel_facts(kernel, made)  # what `explain` prints of it
        said = (*facts["slow"], *filter(None, [facts.get("remark")]))
        found.append(Found(name, made.rule, count.recomputation, count.own, reasons, said, str(nest)))
        if made.rule == depthwise_chain.NAME:
            chosen = {n: d.chosen for n, d in made.schedule.decisions.items()}
            for i, m in enumerate(depthwise_chain.members(kernel, machine, chosen)):
                if (c := m.executed) is not None:  # a few rows of each: nothing of it is too little to matter
                    found.append(Found(f"{name}.{i}", m.rule, c.recomputation, c.own, m.problems, made.problems))
    return found


def wrong(chain: Chain, model) -> str:
    """How a compiled chain differs from the references in double precision, "" if it does not."""
    import tilewright as tw
    from tilewright.graph.interpret import interpret

    noise = np.random.default_rng(0)
    feed = {n: noise.standard_normal(s).astype(np.float32) for n, s in chain.inputs.items()}
    (want,) = interpret(tw.compile(model, stop_after="import"), feed, float64=True).values()
    got = tw.compile(model, threads=1, cache=False).run(feed)[0]
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
    return "" if not np.isfinite(want).all() or error <= 2e-5 else f"error {error:.2g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", choices=["avx2", "avx512"], default="avx512")
    parser.add_argument("--run", action="store_true", help="compare results with the references too")
    parser.add_argument("--show", action="store_true", help="print the nests of kernels that go too far")
    parser.add_argument("--json", type=Path, help="write the counts here (and a page beside it) after every 50 chains")
    options = parser.parse_args()
    machine, drawn = pinned(options.machine), Drawn(options.seed, options.machine)
    start = time.process_time()
    for seed in range(options.seed, options.seed + options.count):
        chain = random_chain(seed)
        model = chain.model()
        try:
            found = kernels_of(model, machine)
            differs = wrong(chain, model) if options.run else ""
        except Exception as e:  # any failure is a finding
            differs, found = f"{type(e).__name__}: {str(e)[:300]}", []
        if differs:
            print(f"seed {seed}: {differs}\n   {' '.join(chain.steps)}", flush=True)
        for f in found:
            if f.reasons or f.ratio > SILENT:
                kind = "silent" if f.silent else "said"
                print(
                    f"seed {seed}: {kind}: {f.kernel} ({f.rule}, {f.ratio:.2f} of {f.own:.3g}): {f.said or f.reasons}"
                )
                print(f"   {' '.join(chain.steps)}", flush=True)
                if options.show:
                    print(f.text)
        drawn.add(seed, found, differs, time.process_time() - start)
        if options.json and (drawn.chains % 50 == 0 or drawn.chains == options.count):
            drawn.write(options.json)
    print(drawn.text())
    return 1 if drawn.silent or drawn.failed else 0


#: upper ends of the classes of ratios that are told
CLASSES = (1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0, 3.0, float("inf"))


@dataclass
class Drawn:
    """What many chains gave."""

    first: int
    machine: str
    chains: int = 0
    kernels: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    ratios: Counter = field(default_factory=Counter)
    rules: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)
    carrying: list[str] = field(default_factory=list)
    worst: list[dict] = field(default_factory=list)

    def add(self, seed: int, found: list[Found], failure: str, seconds: float) -> None:
        self.chains, self.seconds = self.chains + 1, round(seconds, 1)
        self.kernels += len(found)
        self.failed += [f"seed {seed}: {failure}"] if failure else []
        for f in found:
            name = f"seed {seed} {f.kernel}"
            self.rules[f.rule] += 1
            self.ratios[next(n for n in CLASSES if f.ratio <= n + 1e-9)] += 1
            self.silent += [name] if f.silent else []
            self.carrying += [name] if f.said else []
            self.reasons.update({_kind(text) for text in f.said})
            line = {"ratio": round(f.ratio, 3), "own": f.own, "seed": seed, "kernel": f.kernel, "rule": f.rule}
            self.worst.append({**line, "said": list(f.said)})
        self.worst = sorted(self.worst, key=lambda x: (-x["ratio"], x["seed"]))[:10]

    def text(self) -> str:
        lines = [
            f"{self.chains} chains from seed {self.first} for {self.machine}: {self.kernels} kernels, "
            f"{len(self.failed)} failed, {self.seconds:.0f} CPU seconds.",
            "",
            f"Above {SILENT} times their own work, or slow by another count: {len(self.carrying) + len(self.silent)} "
            f"kernels; {len(self.carrying)} carry the reason in `explain`, {len(self.silent)} do not.",
            "",
            "| executed, times its own work, at most | kernels |",
            "|---|---|",
            *(f"| {n} | {self.ratios[n]} |" for n in CLASSES if self.ratios[n]),
            "",
            "| reason | kernels |",
            "|---|---|",
            *(f"| {text} | {n} |" for text, n in self.reasons.most_common()),
            "",
            "| worst | of operations | seed | kernel | rule | said |",
            "|---|---|---|---|---|---|",
            *(
                f"| {w['ratio']:.2f} | {w['own']:.3g} | {w['seed']} | {w['kernel']} | {w['rule']} | "
                f"{'; '.join(w['said'])} |"
                for w in self.worst
            ),
            "",
            "Rules: " + ", ".join(f"{r} {n}" for r, n in self.rules.most_common()) + ".",
        ]
        return "\n".join([*lines, *self.failed, *(f"silent: {s}" for s in self.silent)])

    def write(self, path: Path) -> None:
        data = {**vars(self), "ratios": {str(n): self.ratios[n] for n in CLASSES}}
        path.write_text(json.dumps(data, indent=1) + "\n")
        head = "# What the kernels of random chains of operators execute\n\nRerun: "
        command = (
            f"`python tests/fuzz/random_chains.py --seed {self.first} --count {self.chains} --machine {self.machine}`"
        )
        path.with_suffix(".md").write_text(f"{head}{command} (counted, nothing is timed).\n\n{self.text()}\n")


def _kind(text: str) -> str:
    """A reason without its numbers.

    >>> _kind("it computes 1.62 times what the kernel asks")
    'it computes N times what the kernel asks'
    """
    return re.sub(r"\d[\d.e+]*", "N", text)


if __name__ == "__main__":
    sys.exit(main())
