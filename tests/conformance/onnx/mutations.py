"""Damaged ONNX files, made from small sound ones: `python tests/conformance/onnx/mutations.py [COUNT] [--seed N]`.

Each must end in an error of Tilewright's own (or compile: not every change does harm) within seconds and bounded
memory.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

from isolated import run_isolated  # noqa: E402

#: seconds and bytes of address space that one file may take
TIMEOUT, MEMORY = 30, 8 << 30
F, I64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass(frozen=True)
class Outcome:
    """What became of a file: compiled, refused (an error of our own), or other (anything else)."""

    name: str
    outcome: str
    detail: str
    seconds: float


# ---- sound models --------------------------------------------------------------------------------------------------


def _value(name: str, shape: list, element: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def _model(
    nodes: list, inputs: list, outputs: list, weights: dict[str, np.ndarray], opset: int = 18
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def convolution() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "k", "c"], ["y"], transB=1),
    ]
    weights = {"w": _weight(4, 3, 3, 3), "b": _weight(4), "s": _weight(4), "m": _weight(4), "v": abs(_weight(4))}
    weights |= {"k": _weight(5, 16), "c": _weight(5)}
    return _model(nodes, [_value("x", [1, 3, 8, 8])], [_value("y", [1, 5])], weights)


def shapes() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["sh"]),
        node("Gather", ["sh", "zero"], ["n"], axis=0),
        node("Concat", ["n", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        node("Slice", ["t", "zero", "two", "one"], ["s"]),
        node("Expand", ["s", "big"], ["e"]),
        node("Tile", ["e", "tiles"], ["ti"]),
        node("Pad", ["ti", "pads"], ["p"]),
        node("Resize", ["p", "", "scales"], ["re"], mode="linear"),
        node("ReduceSum", ["re", "one"], ["y"]),
    ]
    ints = {
        "zero": [0],
        "one": [1],
        "two": [2],
        "rest": [3, -1],
        "big": [1, 2, 2, 3],
        "tiles": [1, 1, 2, 1],
        "pads": [0, 0, 1, 0, 0, 0, 1, 0],
    }
    weights = {k: np.array(v, np.int64) for k, v in ints.items()} | {"scales": np.array([1, 1, 2, 2], np.float32)}
    return _model(nodes, [_value("x", [2, 12])], [_value("y", [1, 1, 12, 6])], weights)


def control() -> onnx.ModelProto:
    node = helper.make_node
    step = helper.make_graph(
        [node("Add", ["s", "x"], ["s2"]), node("Identity", ["c"], ["c2"]), node("Identity", ["s2"], ["out"])],
        "body",
        [_value("i", [], I64), _value("c", [], TensorProto.BOOL), _value("s", [3])],
        [_value("c2", [], TensorProto.BOOL), _value("s2", [3]), _value("out", [3])],
    )
    then = helper.make_graph([node("Neg", ["last"], ["t"])], "then", [], [_value("t", [3])])
    other = helper.make_graph([node("Abs", ["last"], ["o"])], "other", [], [_value("o", [3])])
    nodes = [
        node("Loop", ["count", "yes", "zero"], ["last", "all"], body=step),
        node("ReduceMax", ["last"], ["m"], keepdims=0),
        node("Greater", ["m", "half"], ["g"]),
        node("If", ["g"], ["y"], then_branch=then, else_branch=other),
    ]
    weights = {
        "count": np.array(3),
        "yes": np.array(True),
        "zero": np.zeros(3, np.float32),
        "half": np.array(0.5, np.float32),
    }
    return _model(nodes, [_value("x", [3])], [_value("y", [3]), _value("all", [3, 3])], weights)


def recurrent() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("LSTM", ["x", "w", "r", "b"], ["all", "last"], hidden_size=4),
        node("Squeeze", ["last", "zero"], ["h"]),
        node("TopK", ["h", "k"], ["v", "at"], axis=1),
        node("Softmax", ["v"], ["y"], axis=-1),
    ]
    weights = {
        "w": _weight(1, 16, 3),
        "r": _weight(1, 16, 4),
        "b": _weight(1, 32),
        "zero": np.array([0]),
        "k": np.array([2]),
    }
    return _model(nodes, [_value("x", [5, 2, 3])], [_value("y", [2, 2]), _value("at", [2, 2], I64)], weights)


def quantized() -> onnx.ModelProto:
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=0),
        node("MatMul", ["d", "dw"], ["m"]),
        node("Where", ["mask", "m", "s"], ["wh"]),
        node("Cast", ["wh"], ["c"], to=TensorProto.FLOAT16),
        node("Einsum", ["c", "c"], ["y"], equation="ij,kj->ik"),
    ]
    weights = {
        "s": np.array(0.1, np.float32),
        "z": np.array(3, np.uint8),
        "w": np.arange(12, dtype=np.int8).reshape(4, 3),
    }
    weights |= {"ws": abs(_weight(4)), "wz": np.zeros(4, np.int8), "mask": np.array([True, False, True])}
    return _model(nodes, [_value("x", [2, 4])], [_value("y", [2, 2], TensorProto.FLOAT16)], weights)


MODELS = (convolution, shapes, control, recurrent, quantized)


# ---- damage --------------------------------------------------------------------------------------------------------


def _bytes(rng: random.Random, model: onnx.ModelProto) -> bytes:
    """The file truncated, or with bytes changed, removed or repeated."""
    data = bytearray(model.SerializeToString())
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randrange(len(data))
        if kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            del data[at : at + rng.randrange(1, 16)]
        else:
            data[at:at] = data[at : at + rng.randrange(1, 32)]
    return bytes(data)


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [model.graph]
    for g in found:
        found += [a.g for n in g.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found


ABSURD = (0, -1, -7, 2, 5, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 62) - 1, (1 << 63) - 1, -(1 << 63))


def _initializer_gone(rng: random.Random, model: onnx.ModelProto) -> None:
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def _initializer_type(rng: random.Random, model: onnx.ModelProto) -> None:
    rng.choice(model.graph.initializer).data_type = rng.randrange(0, 30)


def _initializer_shape(rng: random.Random, model: onnx.ModelProto) -> None:
    t = rng.choice(model.graph.initializer)
    if t.dims and rng.random() < 0.7:
        t.dims[rng.randrange(len(t.dims))] = rng.choice(ABSURD)
    else:
        t.dims.append(rng.choice(ABSURD))


def _initializer_value(rng: random.Random, model: onnx.ModelProto) -> None:
    ints = [t for t in model.graph.initializer if t.data_type == I64]
    if ints:
        t = rng.choice(ints)
        array = numpy_helper.to_array(t).copy()
        # a loop of 2**40 steps is a sound model that takes long
        values = [v for v in ABSURD if v < 10] if t.name == "count" else ABSURD
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(values)
        t.CopyFrom(numpy_helper.from_array(array, t.name))


def _input_shape(rng: random.Random, model: onnx.ModelProto) -> None:
    dims = rng.choice(model.graph.input).type.tensor_type.shape.dim
    if dims:
        rng.choice(dims).dim_value = rng.choice(ABSURD)


def _input_type(rng: random.Random, model: onnx.ModelProto) -> None:
    rng.choice(model.graph.input).type.tensor_type.elem_type = rng.randrange(0, 30)


def _cycle(rng: random.Random, model: onnx.ModelProto) -> None:
    nodes = model.graph.node
    first, later = sorted(rng.sample(range(len(nodes)), 2))
    nodes[first].input[rng.randrange(len(nodes[first].input))] = rng.choice(nodes[later].output)


def _order(rng: random.Random, model: onnx.ModelProto) -> None:
    nodes = list(rng.choice(_graphs(model)).node)
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _operator(rng: random.Random, model: onnx.ModelProto) -> None:
    node = rng.choice(rng.choice(_graphs(model)).node)
    node.op_type = rng.choice(
        (
            "",
            "Nonsense",
            "Relu",
            "Conv",
            "Reshape",
            "Gather",
            "Loop",
            "If",
            "Split",
            "LSTM",
            "Einsum",
            "Concat",
            "TopK",
            "OneHot",
        )
    )


def _attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    nodes = [n for g in _graphs(model) for n in g.node if n.attribute]
    node = rng.choice(nodes)
    a = rng.choice(node.attribute)
    kind = rng.randrange(4)
    if kind == 0:
        node.attribute.remove(a)
    elif kind == 1:
        a.type = rng.randrange(0, 15)
    elif a.type == onnx.AttributeProto.INTS and a.ints:
        a.ints[rng.randrange(len(a.ints))] = rng.choice(ABSURD)
    elif a.type == onnx.AttributeProto.INT:
        a.i = rng.choice(ABSURD)
    elif a.type == onnx.AttributeProto.STRING:
        a.s = rng.choice((b"", b"\xff\xfe", b"...->...", b"abc,abc->abcd", b"nonsense"))
    else:
        a.name = "nonsense"


def _inputs(rng: random.Random, model: onnx.ModelProto) -> None:
    node = rng.choice(rng.choice(_graphs(model)).node)
    kind = rng.randrange(3)
    names = (
        [t.name for t in model.graph.initializer] + [o for n in model.graph.node for o in n.output] + ["", "nowhere"]
    )
    if kind == 0 and node.input:
        del node.input[rng.randrange(len(node.input))]
    elif kind == 1:
        node.input.append(rng.choice(names))
    elif node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _outputs(rng: random.Random, model: onnx.ModelProto) -> None:
    kind = rng.randrange(3)
    if kind == 0:
        rng.choice(model.graph.output).name = rng.choice(("", "nowhere", "x"))
    elif kind == 1:
        node = rng.choice(model.graph.node)
        node.output.append(rng.choice(model.graph.node).output[0])
    else:
        del model.graph.output[:]


def _header(rng: random.Random, model: onnx.ModelProto) -> None:
    kind = rng.randrange(3)
    if kind == 0:
        model.opset_import[0].version = rng.choice((0, -1, 1, 2, 7, 27, 999, 1 << 40))
    elif kind == 1:
        del model.opset_import[:]
    else:
        model.graph.node[0].domain = rng.choice(("ai.onnx.ml", "nowhere", "com.microsoft"))


def _subgraph(rng: random.Random, model: onnx.ModelProto) -> None:
    inner = _graphs(model)[1:]
    if inner:
        g = rng.choice(inner)
        part = rng.choice((g.input, g.output, g.node))
        if part:
            del part[rng.randrange(len(part))]


DAMAGE: tuple[Callable[[random.Random, onnx.ModelProto], None], ...] = (
    _initializer_gone, _initializer_type, _initializer_shape, _initializer_value, _input_shape, _input_type,
    _cycle, _order, _operator,
    _attribute, _inputs, _outputs, _header, _subgraph,
)  # fmt: skip


def mutate(number: int, seed: int = 0) -> tuple[str, bytes]:
    """The name and bytes of one damaged file."""
    rng = random.Random(seed * 1_000_003 + number)
    build = MODELS[number % len(MODELS)]
    model = build()
    if rng.random() < 0.3:
        return f"{number}-{build.__name__}-bytes", _bytes(rng, model)
    names = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        damage = rng.choice(DAMAGE)
        names.append(damage.__name__.strip("_"))
        try:
            damage(rng, model)
        except (ValueError, IndexError):  # nothing there to damage
            continue
    return f"{number}-{build.__name__}-{'-'.join(names)}", model.SerializeToString()


# ---- one file ------------------------------------------------------------------------------------------------------


def try_file(item: tuple[str, bytes]) -> Outcome:
    """Compile a file and, if that works, run it on zeros."""
    name, data = item
    start = time.perf_counter()
    outcome, detail = "compiled", ""
    try:
        import tilewright as tw

        executable = tw.compile(data)
        feed = _zeros(executable.inputs)
        if feed is not None:
            executable.run(feed)
    except Exception as e:
        own = type(e).__module__ == "tilewright.support.errors" and type(e).__name__ != "CompileError"
        outcome, detail = "refused" if own else "other", f"{type(e).__name__}: {e}"
    return Outcome(name, outcome, detail, round(time.perf_counter() - start, 2))


def _zeros(infos) -> dict[str, np.ndarray] | None:
    """Inputs of zeros; None if nobody could give any, as their sizes are absurd."""
    try:
        return {t.name: np.zeros([d if isinstance(d, int) else 1 for d in t.shape or ()], t.numpy_dtype) for t in infos}
    except (MemoryError, ValueError):  # NumPy says ValueError beyond 2**63 bytes
        return None


def lost(item: tuple[str, bytes], outcome: str, detail: str, seconds: float) -> Outcome:
    return Outcome(item[0], outcome, detail, seconds)


def run(items: list[tuple[str, bytes]], workers: int = 2) -> list[Outcome]:
    """The outcomes of damaged files, tried in worker processes."""
    wanted = {"TILEWRIGHT_COMPILE": "inprocess", "TILEWRIGHT_THREADS": "1"}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)  # for the workers; this process may have other things to do
    try:
        return run_isolated(items, try_file, lost, workers=workers, timeout=TIMEOUT, memory=MEMORY)
    finally:
        for name in added:
            del os.environ[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one file, in this process")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TILEWRIGHT_CACHE", folder)
        if arguments.only is not None:
            print(try_file(mutate(arguments.only, arguments.seed)))
            return 0
        outcomes = run([mutate(i, arguments.seed) for i in range(arguments.count)])
    counts = Counter(o.outcome for o in outcomes)
    print(f"{len(outcomes)} damaged files: {', '.join(f'{n} {o}' for o, n in counts.most_common())}")
    print(f"slowest: {max(o.seconds for o in outcomes):.1f} s")
    bad = [o for o in outcomes if o.outcome not in ("compiled", "refused")]
    for o in bad:
        print(f"{o.outcome:6} {o.name}: {o.detail[:300]}")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
