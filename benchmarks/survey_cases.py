"""The operators that `survey.py` measures: families of single-operator ONNX models at sizes drawn from a seed.

A family is a function ``(generator, number) -> Case``. The number picks the variant (a stride, an axis, how large), the
generator the sizes, log-uniformly from what networks have; they are seldom multiples of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np
from onnx import NodeProto, helper

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """ONNX nodes whose last one makes ``y``, their inputs and constants, the arithmetic of sums of products (0: memory
    decides), and whether only as much of the operands is read as is written."""

    doc: str
    nodes: list[NodeProto]
    inputs: Arrays
    constants: Arrays = field(default_factory=dict)
    operations: int = 0
    part: bool = False


def size(g: np.random.Generator, low: int, high: int) -> int:
    """Log-uniform."""
    return round(float(np.exp(g.uniform(np.log(low), np.log(high)))))


def array(g: np.random.Generator, *shape: int) -> np.ndarray:
    return g.standard_normal(shape).astype(np.float32)


def node(kind: str, inputs: str, output: str = "y", **attributes) -> NodeProto:
    return helper.make_node(kind, inputs.split(), output.split(), **attributes)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def times(*sizes: int) -> str:
    return " x ".join(map(str, sizes))


# ---- sums of products ----


def matmul(g: np.random.Generator, i: int) -> Case:
    m = (1, size(g, 2, 8), *(size(g, a, b) for a, b in ((9, 30), (30, 100), (100, 300), (300, 700), (700, 2000))))[
        i % 7
    ]
    k, n = size(g, 24, 3000), size(g, 24, 3000)
    return Case(times(m, k, n), [node("MatMul", "x w")], {"x": array(g, m, k)}, {"w": array(g, k, n)}, 2 * m * k * n)


def batch_matmul(g: np.random.Generator, i: int) -> Case:
    b, m, k, n = size(g, 3, 200), size(g, 7, 260), size(g, 7, 260), size(g, 7, 260)
    turned = i % 2 == 1  # the second operand transposed, as in scores of attention
    nodes = [node("Transpose", "b", "c", perm=[0, 2, 1]), node("MatMul", "a c")] if turned else [node("MatMul", "a b")]
    inputs = {"a": array(g, b, m, k), "b": array(g, b, n, k) if turned else array(g, b, k, n)}
    return Case(f"{b} of {times(m, k, n)}{', b transposed' * turned}", nodes, inputs, {}, 2 * b * m * k * n)


def convolution(
    g: np.random.Generator, c: int, f: int, hw: tuple[int, int], window: tuple[int, int], s: int, d: int, groups: int
) -> Case:
    pads = [(w - 1) // 2 * d for w in window] * 2
    more = {"kernel_shape": window, "pads": pads, "strides": [s, s], "dilations": [d, d], "group": groups}
    out = [(n + 2 * p - d * (w - 1) - 1) // s + 1 for n, p, w in zip(hw, pads, window, strict=False)]
    doc = f"{c} to {f} at {times(*hw)}, window {times(*window)}"
    doc += "".join(f", {name} {v}" for name, v in (("stride", s), ("dilation", d), ("groups", groups)) if v > 1)
    constants = {"w": array(g, f, c // groups, *window), "b": array(g, f)}
    work = 2 * prod(out) * f * (c // groups) * prod(window)
    return Case(doc, [node("Conv", "x w b", **more)], {"x": array(g, 1, c, *hw)}, constants, work)


def image(g: np.random.Generator, channels: int, elements: int = 300_000) -> tuple[int, int]:
    """Height and width of an image with so many channels, of a size that networks have."""
    most = max(min(230, int((elements / channels) ** 0.5)), 8)
    n = size(g, max(most // 3, 7), most)
    return n, n + int(g.integers(-2, 3))


def conv3x3(g: np.random.Generator, i: int) -> Case:
    s, d, groups = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 4), (1, 1, 1), (2, 1, 1), (1, 1, 1))[i % 7]
    low, high = ((20, 90), (10, 60), (40, 120), (10, 40), (120, 400), (60, 300), (3, 3))[i % 7]
    c, f = size(g, low, high) * groups, size(g, 12, high + 20) * groups
    return convolution(g, c, f, image(g, c), (3, 3), s, d, groups)


def conv1x1(g: np.random.Generator, i: int) -> Case:
    s, groups = ((1, 1), (1, 1), (1, 1), (1, 1), (2, 1), (1, 3))[i % 6]
    c, f = size(g, 6, 700) * groups, size(g, 6, 700) * groups
    return convolution(g, c, f, image(g, c), (1, 1), s, 1, groups)


def conv_large(g: np.random.Generator, i: int) -> Case:
    window, s = (((5, 5), 1), ((7, 7), 2), ((1, 7), 1), ((7, 1), 1), ((5, 5), 2), ((1, 3), 1), ((3, 5), 1))[i % 7]
    c = 3 if window == (7, 7) else size(g, 8, 200)
    return convolution(g, c, size(g, 12, 120), image(g, c, 150_000), window, s, 1, 1)


def conv_transpose(g: np.random.Generator, i: int) -> Case:
    window, s, pad = ((2, 2, 0), (3, 2, 1), (4, 2, 1), (3, 1, 1), (4, 4, 0), (5, 2, 2))[i % 6]
    c, f = size(g, 10, 200), size(g, 3, 120)
    h, w = (n // 2 + 3 for n in image(g, c, 120_000))
    more = {"kernel_shape": [window] * 2, "strides": [s, s], "pads": [pad] * 4}
    constants = {"w": array(g, c, f, window, window), "b": array(g, f)}
    doc = f"{c} to {f} at {times(h, w)}, window {times(window, window)}, stride {s}"
    work = 2 * h * w * c * f * window * window
    return Case(doc, [node("ConvTranspose", "x w b", **more)], {"x": array(g, 1, c, h, w)}, constants, work)


def depthwise(g: np.random.Generator, i: int) -> Case:
    window, s = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (3, 1))[i % 6]
    c = size(g, 20, 700)
    return convolution(g, c, c, image(g, c), (window, window), s, 1, c)


def attention(g: np.random.Generator, i: int) -> Case:
    length, depth = ((77, 64), (197, 64), (1024, 40), (256, 80), (size(g, 100, 600), 128), (size(g, 300, 900), 40))[
        i % 6
    ]
    heads, causal = size(g, 4, 20), i % 2
    inputs = {name: array(g, 1, heads, length, depth) for name in "qkv"}
    doc = f"{heads} heads, {times(length, depth)}{', causal' * causal}"
    work = 4 * heads * length * length * depth // (1 + causal)
    return Case(doc, [node("Attention", "q k v", is_causal=causal)], inputs, {}, work)


def few_columns(g: np.random.Generator, i: int) -> Case:
    """Sums of products with few results for what they read: vectors, output layers, one query against many keys."""
    if i % 7 > 4:
        c = size(g, 16, 200)
        window = (3, 3) if i % 7 == 5 else (1, 1)
        return convolution(g, c, size(g, 1, 4), image(g, c), window, 1, 1, 1)
    b, m, k, n = (
        (1, size(g, 200, 3000), size(g, 60, 1500), 1),
        (1, size(g, 200, 3000), size(g, 60, 1500), size(g, 2, 6)),
        (size(g, 8, 40), 1, size(g, 40, 130), size(g, 100, 900)),  # keys, turned
        (size(g, 8, 40), 1, size(g, 100, 900), size(g, 40, 130)),  # values
        (1, size(g, 200, 3000), size(g, 60, 1500), size(g, 7, 15)),
    )[i % 7]
    shapes = (m, k), (k, n)
    if b > 1:
        shapes = (b, m, k), ((b, n, k) if i % 7 == 2 else (b, k, n))
    nodes = [node("Transpose", "b", "c", perm=[0, 2, 1]), node("MatMul", "a c")]
    doc = f"{f'{b} of ' if b > 1 else ''}{times(m, k, n)}{', b transposed' if i % 7 == 2 else ''}"
    inputs = {"a": array(g, *shapes[0]), "b": array(g, *shapes[1])}
    return Case(doc, nodes if i % 7 == 2 else [node("MatMul", "a b")], inputs, {}, 2 * b * m * k * n)


# ---- rows ----


def softmax(g: np.random.Generator, i: int) -> Case:
    if i % 7 > 4:
        shape, axis = (1, size(g, 5, 150), *image(g, 30)), 1
    else:
        columns = size(g, *((7, 12), (13, 70), (70, 400), (400, 3000), (20_000, 50_000))[i % 7])
        shape, axis = (max(size(g, 100_000, 1_000_000) // columns, 1), columns), -1
    return Case(f"{times(*shape)}, axis {axis}", [node("Softmax", "x", axis=axis)], {"x": array(g, *shape)})


def norm(g: np.random.Generator, i: int) -> Case:
    kind = ("LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization")[i % 4]
    if i % 4 < 2:
        columns = size(g, *((20, 200), (200, 3000))[i // 4 % 2])
        shape, weight, more = (size(g, 100_000, 1_000_000) // columns, columns), columns, {"axis": -1}
    else:
        groups = int(g.choice([2, 4, 8]))
        c = size(g, 3, 30) * groups
        shape, weight, more = (1, c, *image(g, c)), c, {"num_groups": groups} if i % 4 == 3 else {}
    names = "x w" if i % 4 == 1 else "x w b"
    constants = {n: array(g, weight) for n in names.split()[1:]}
    doc = f"{kind} {times(*shape)}" + (f", {more['num_groups']} groups" if i % 4 == 3 else "")
    return Case(doc, [node(kind, names, epsilon=1e-5, **more)], {"x": array(g, *shape)}, constants)


def reduction(g: np.random.Generator, i: int) -> Case:
    kind = ("ReduceSum", "ReduceMax", "ReduceMean", "ArgMax", "ReduceSum", "ReduceMean", "ArgMax", "ReduceMax")[i % 8]
    axis = (0, 1, 2, 2, None, 1, 1, 0)[i % 8]
    a, b = size(g, 5, 150), size(g, 5, 150)
    shape = (a, b, max(size(g, 100_000, 800_000) // (a * b), 3))
    if kind == "ArgMax":
        made, constants = node(kind, "x", axis=axis, keepdims=0), {}
    elif axis is None:
        made, constants = node(kind, "x", keepdims=0), {}
    else:
        made, constants = node(kind, "x axes", keepdims=0), {"axes": integers(axis)}
    where = "all" if axis is None else f"axis {axis}"
    return Case(f"{kind} {times(*shape)}, {where}", [made], {"x": array(g, *shape)}, constants)


# ---- elements ----


def transpose(g: np.random.Generator, i: int) -> Case:
    n, c = size(g, 300, 1200), size(g, 20, 200)
    heads, depth = size(g, 4, 20), size(g, 30, 130)
    shape, perm = (
        ((n, size(g, 200, 1000)), (1, 0)),
        ((1, c, *image(g, c)), (0, 2, 3, 1)),
        ((1, *image(g, c), c), (0, 3, 1, 2)),
        ((1, size(g, 60, 600), heads, depth), (0, 2, 1, 3)),
        ((1, heads, size(g, 60, 600), depth), (0, 1, 3, 2)),
        ((size(g, 2, 6), size(g, 8, 40), size(g, 8, 40), size(g, 3, 12), size(g, 3, 12)), (0, 1, 3, 2, 4)),
        ((size(g, 30, 90), size(g, 30, 90), size(g, 30, 90)), (2, 1, 0)),
        ((size(g, 8000, 60_000), size(g, 3, 14)), (1, 0)),
    )[i % 8]
    return Case(f"{times(*shape)}, order {perm}", [node("Transpose", "x", perm=perm)], {"x": array(g, *shape)})


def elementwise(g: np.random.Generator, i: int) -> Case:
    rows, columns = size(g, 100, 2000), size(g, 30, 900)
    x = {"x": array(g, rows, columns)}
    variants = (
        ("gelu", [node("Gelu", "x")], {}),
        ("sigmoid, times x", [node("Sigmoid", "x", "s"), node("Mul", "x s")], {}),
        ("add a row", [node("Add", "x r", "s"), node("Relu", "s")], {"r": array(g, columns)}),
        ("add a column", [node("Add", "x r", "s"), node("Tanh", "s")], {"r": array(g, rows, 1)}),
        ("scale and shift, clip", [node("Mul", "x r", "s"), node("Add", "s q", "t"), node("Clip", "t l h")],
         {"r": array(g, columns), "q": array(g, columns), "l": np.float32(0), "h": np.float32(6)}),
        ("a row and a column", [node("Mul", "r q", "s"), node("Add", "x s")],
         {"r": array(g, columns), "q": array(g, rows, 1)}),
        ("exp, log, sqrt", [node("Exp", "x", "s"), node("Sqrt", "s", "t"), node("Log", "t")], {}),
    )  # fmt: skip
    doc, nodes, constants = variants[i % len(variants)]
    return Case(f"{doc}: {times(rows, columns)}", nodes, x, {k: np.asarray(v) for k, v in constants.items()})


def gather(g: np.random.Generator, i: int) -> Case:
    rows, columns, count = size(g, 500, 30_000), size(g, 8, 900), size(g, 100, 3000)
    if i % 4 == 3:  # single elements
        columns = size(g, 100, 900)
        count = min(count, 100_000_0 // columns)
        index = g.integers(0, rows := min(rows, 2000), (count, columns))
        doc = f"elements {times(count, columns)} of {times(rows, columns)}"
        return Case(doc, [node("GatherElements", "x i", axis=0)], {"x": array(g, rows, columns), "i": index}, part=True)
    if i % 4 == 2:
        rows = min(rows, 1500)
        index = g.integers(0, columns, size(g, 4, 300))
        doc = f"{index.size} columns of {times(rows, columns)}"
        return Case(doc, [node("Gather", "x i", axis=1)], {"x": array(g, rows, columns), "i": index}, part=True)
    index = g.integers(0, rows, count)
    doc = f"{count} rows of {times(rows, columns)}"
    return Case(doc, [node("Gather", "x i", axis=0)], {"i": index}, {"x": array(g, rows, columns)}, part=True)


def movement(g: np.random.Generator, i: int) -> Case:
    c = size(g, 10, 150)
    h, w = image(g, c)
    x = array(g, 1, c, h, w)
    if i % 7 == 0:
        other = array(g, 1, size(g, 10, 150), h, w)
        return Case(
            f"concat {times(*x.shape)} with {other.shape[1]}", [node("Concat", "x z", axis=1)], {"x": x, "z": other}
        )
    if i % 7 == 1:
        a, b = array(g, h * w, c), array(g, h * w, size(g, 3, 100))
        return Case(
            f"concat {times(*a.shape)} with {b.shape[1]} columns", [node("Concat", "x z", axis=1)], {"x": a, "z": b}
        )
    if i % 7 == 2:
        limits = {"a": integers(1, 2), "b": integers(h - 1, w - 3), "d": integers(2, 3)}
        return Case(f"slice {times(*x.shape)}", [node("Slice", "x a b d")], {"x": x}, limits, part=True)
    if i % 7 == 3:
        limits = {"a": integers(1, 2), "b": integers(h - 1, w), "d": integers(2, 3)}
        return Case(f"every other row and column of {times(*x.shape)}", [node("Slice", "x a b d s")], {"x": x},
                    limits | {"s": integers(2, 2)}, part=True)  # fmt: skip
    if i % 7 == 4:
        return Case(
            f"pad {times(*x.shape)} by 1 and 2", [node("Pad", "x p")], {"x": x}, {"p": integers(0, 0, 1, 2, 0, 0, 1, 2)}
        )
    if i % 7 == 5:
        return Case(f"pad {times(*x.shape)} by reflection", [node("Pad", "x p", mode="reflect")], {"x": x},
                    {"p": integers(0, 0, 3, 3, 0, 0, 3, 3)})  # fmt: skip
    return Case(f"depth to space of {times(1, 4 * c, h, w)}", [node("DepthToSpace", "x", blocksize=2)],
                {"x": array(g, 1, 4 * c, h, w)})  # fmt: skip


def resize(g: np.random.Generator, i: int) -> Case:
    c = size(g, 8, 200)
    h, w = (n // 2 + 3 | 1 for n in image(g, c))  # odd: nothing lies halfway, where rounding decides
    mode, factor, place = (
        ("nearest", 2.0, "asymmetric"), ("linear", 2.0, "half_pixel"), ("linear", 2.0, "align_corners"),
        ("nearest", None, "half_pixel"), ("linear", None, "half_pixel"), ("linear", 0.5, "half_pixel"),
    )[i % 6]  # fmt: skip
    target = (size(g, h, 2 * h + 9), size(g, w, 2 * w + 9)) if factor is None else (int(h * factor), int(w * factor))
    rounding = "floor" if place == "asymmetric" else "round_prefer_floor"
    more = {"nearest_mode": rounding} if mode == "nearest" else {}
    made = node("Resize", "x", mode=mode, coordinate_transformation_mode=place, **more)
    made.input.extend(["", "", "sizes"])
    doc = f"{mode} {times(1, c, h, w)} to {times(*target)}, {place}"
    return Case(doc, [made], {"x": array(g, 1, c, h, w)}, {"sizes": integers(1, c, *target)})


def cumsum(g: np.random.Generator, i: int) -> Case:
    shape = ((size(g, 100, 2000), size(g, 50, 900)), (size(g, 4, 40), size(g, 50, 900), size(g, 4, 60)),
             (size(g, 20_000, 400_000),), (size(g, 100, 900), size(g, 100, 900)))[i % 4]  # fmt: skip
    axis = (1, 1, 0, 0)[i % 4]
    return Case(
        f"{times(*shape)}, axis {axis}", [node("CumSum", "x a")], {"x": array(g, *shape)}, {"a": np.array(axis)}
    )


def topk(g: np.random.Generator, i: int) -> Case:
    rows, columns = (
        (1, size(g, 20_000, 60_000)),
        (size(g, 50, 400), size(g, 300, 2000)),
        (size(g, 200, 3000), size(g, 8, 70)),
    )[i % 3]
    k = (5, 50, columns // 2)[i // 3 % 3] if columns > 70 else 2
    nodes = [node("TopK", "x k", "y at", axis=-1, largest=1, sorted=1)]
    return Case(
        f"{min(k, columns)} of {times(rows, columns)}",
        nodes,
        {"x": array(g, rows, columns)},
        {"k": integers(min(k, columns))},
    )


def pooling(g: np.random.Generator, i: int) -> Case:
    c = size(g, 12, 300)
    x = array(g, 1, c, *image(g, c))
    kind, more = (
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        ("GlobalAveragePool", {}),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1] * 4}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}),
        ("GlobalMaxPool", {}),
    )[i % 7]
    doc = f"{kind} {times(*x.shape)}" + (
        f", window {times(*more['kernel_shape'])}, stride {more['strides'][0]}" if more else ""
    )
    return Case(doc, [node(kind, "x", **more)], {"x": x})


#: how many of each: once or twice every variant
FAMILIES: dict[str, tuple[int, Callable[[np.random.Generator, int], Case]]] = {
    "matmul": (8, matmul), "batch_matmul": (8, batch_matmul), "conv3x3": (8, conv3x3), "conv1x1": (8, conv1x1),
    "conv_large": (7, conv_large), "conv_transpose": (6, conv_transpose), "depthwise": (7, depthwise),
    "attention": (6, attention), "softmax": (8, softmax), "norm": (8, norm), "reduction": (8, reduction),
    "transpose": (8, transpose), "elementwise": (7, elementwise), "gather": (6, gather), "movement": (7, movement),
    "resize": (6, resize), "cumsum": (4, cumsum), "topk": (6, topk), "pooling": (7, pooling),
    "few_columns": (7, few_columns),  # last: the place of a family decides what it draws
}  # fmt: skip


def cases(families: list[str], seed: int, quick: bool) -> dict[str, Case]:
    """All cases of some families by name; `quick` has two of each."""
    found = {}
    for family in families:
        count, make = FAMILIES[family]
        for i in range(2 if quick else count):
            found[f"{family}_{i}"] = make(np.random.default_rng([seed, list(FAMILIES).index(family), i]), i)
    return found
