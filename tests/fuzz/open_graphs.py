"""Random small ONNX graphs with open dimensions; `open_dimensions.py` compiles and compares them.

A shape has integers, and texts for what is open: ``"batch"``, ``"(batch*seq)"``, ``"(seq-1)"``. A step appends one
operator, or a few that belong together, to the last tensor; it returns false where it does not fit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from open_images import IMAGES, PRODUCTS, WIDTHS, conv_transpose, convolution, pool, resize

#: elements of the largest tensor at the largest sizes
LARGEST = 300_000
#: name, smallest size, largest size, divisor
RANGES = (
    [("batch", 1, 16, 1), ("batch", 1, 9, 1), ("batch", 2, 32, 1), ("batch", 1, 100, 1)],
    [("seq", 1, 64, 1), ("seq", 1, 200, 1), ("seq", 4, 64, 4), ("seq", 16, 128, 16), ("seq", 3, 50, 1)],
)
Shape = tuple


@dataclass
class Graph:
    """An ONNX model that grows: `name` and `shape` are those of its last tensor, `seen` all earlier ones."""

    rng: random.Random
    dims: dict[str, tuple[int, int, int]]
    shape: Shape = ()
    name: str = "x"
    nodes: list = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, tuple[Shape, str]] = field(default_factory=dict)
    seen: list[tuple[str, Shape]] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    #: integer results beside the last tensor
    more: list[tuple[str, Shape, str]] = field(default_factory=list)

    def op(self, kind: str, shape, *more: str, **attributes) -> None:
        """Apply an operator to the last tensor and the operands `more`."""
        self.seen.append((self.name, self.shape))
        self.name, self.shape = self.node(kind, self.name, *more, **attributes), tuple(shape)

    def node(self, kind: str, *operands: str, outputs: int = 1, **attributes) -> str:
        """An operator beside the chain; the name of its (first) result, others have `_1`, `_2` behind it."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(operands), names, **attributes))
        return name

    def constant(self, value) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int, fan: int = 1) -> str:
        noise = np.random.default_rng(self.rng.getrandbits(32))
        return self.constant((noise.standard_normal(shape) / np.sqrt(fan)).astype(np.float32))

    def input(self, shape, kind: str = "float") -> str:
        """One more input: float, bool, or int64 (0 and 1)."""
        name = "x" if not self.inputs else f"i{len(self.inputs)}"
        self.inputs[name] = (tuple(shape), kind)
        return name

    def size_of(self, axis: int) -> str:
        """A tensor [1] with the size of a dimension of the last tensor, by one of the ways exporters write it."""
        shape = self.node("Shape", self.name)
        if self.rng.random() < 0.5:
            return self.node("Gather", shape, self.numbers(axis), axis=0)
        scalar = self.node("Gather", shape, self.constant(np.int64(axis)), axis=0)
        return self.node("Unsqueeze", scalar, self.numbers(0))

    def at(self, n, place: int) -> int:
        """A size where all dimensions are smallest (0) or largest (1)."""
        return n if isinstance(n, int) else eval(n, {}, {d: r[place] for d, r in self.dims.items()})

    def low(self, n) -> int:
        return self.at(n, 0)

    def most(self, shape) -> int:
        """Elements at the largest sizes."""
        count = 1
        for n in shape:
            count *= self.at(n, 1)
        return count

    def inputs_are_named(self) -> bool:
        """Whether what is open in the inputs are dimensions, nothing that is computed of them."""
        return all(isinstance(n, int) or n in self.dims for shape, _ in self.inputs.values() for n in shape)

    def axis(self, *, static: bool | None = None) -> int | None:
        """A random axis of the last tensor."""
        found = [d for d, n in enumerate(self.shape) if static is None or isinstance(n, int) == static]
        return self.rng.choice(found) if found else None

    def model(self):
        from onnx import TensorProto, checker, helper, numpy_helper

        def named(name: str, shape: Shape) -> list:
            return [n if isinstance(n, int) or n in self.dims else f"{name}_{d}" for d, n in enumerate(shape)]

        kinds = {"float": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "open",
            [info(n, kinds[k], s) for n, (s, k) in self.inputs.items()],
            [info(n, kinds[k], named(n, s)) for n, s, k in [(self.name, self.shape, "float"), *self.more]],
            [numpy_helper.from_array(v, n) for n, v in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        checker.check_model(model)
        return model


def times(a, b):
    """The product of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return b if a == 1 else a if b == 1 else f"({a}*{b})"


def plus(a, b):
    return a + b if isinstance(a, int) and isinstance(b, int) else f"({a}+{b})"


def swapped(shape: Shape, d: int, n) -> Shape:
    return (*shape[:d], n, *shape[d + 1 :])


# ---- what computes ------------------------------------------------------------------------------------------------


def matmul(g: Graph) -> bool:
    """By a weight: open dimensions are rows."""
    k, n = g.shape[-1], g.rng.choice(WIDTHS)
    if not isinstance(k, int) or len(g.shape) < 2 or g.most(g.shape) * n > PRODUCTS:
        return False
    if len(g.shape) == 2 and g.rng.random() < 0.4:
        across = g.rng.random() < 0.5
        w = g.weight(n, k, fan=k) if across else g.weight(k, n, fan=k)
        g.op("Gemm", (g.shape[0], n), w, g.weight(n), transB=int(across))
        return True
    g.op("MatMul", (*g.shape[:-1], n), g.weight(k, n, fan=k))
    if g.rng.random() < 0.5:
        g.op("Add", g.shape, g.weight(n))
    return True


def matmul_input(g: Graph) -> bool:
    """By another input: what is open may be summed over, a column or a batch."""
    if len(g.shape) < 2:
        return False
    k, n = g.shape[-1], g.rng.choice([*WIDTHS, *g.dims])
    if g.most(g.shape) * g.at(n, 1) > PRODUCTS:
        return False
    batch = g.shape[:-2] if g.rng.random() < 0.6 else ()
    other = g.input((*batch, k, n))
    g.op("MatMul", (*g.shape[:-1], n), other)
    g.op("Mul", g.shape, g.constant(np.float32(1 / 8)))
    return True


def products_of_rows(g: Graph) -> bool:
    if len(g.shape) < 2 or g.most(g.shape) * g.at(g.shape[-2], 1) > PRODUCTS:
        return False
    order = [*range(len(g.shape) - 2), len(g.shape) - 1, len(g.shape) - 2]
    other = g.node("Transpose", g.name, perm=order)
    g.op("MatMul", (*g.shape[:-1], g.shape[-2]), other)
    return True


def attention(g: Graph) -> bool:
    """Of the last tensor [.., tokens, width] by heads, with no mask, a mask of an input, or a causal one."""
    if len(g.shape) != 3 or not isinstance(g.shape[2], int) or g.shape[1] == 1:
        return False
    heads, dh = g.rng.choice([1, 2, 4]), g.rng.choice([4, 8, 16])
    batch, tokens, width = g.shape
    if g.most((batch, heads, tokens, tokens)) * dh > PRODUCTS or g.most((batch, heads, tokens, tokens)) > LARGEST:
        return False
    b, t = g.size_of(0), g.size_of(1)
    split = g.node("Concat", b, t, g.numbers(heads), g.numbers(dh), axis=0)

    def head(perm):
        made = g.node("MatMul", x, g.weight(width, heads * dh, fan=width))
        return g.node("Transpose", g.node("Reshape", made, split), perm=perm)

    x = g.name
    q, k, v = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    scores = g.node("Mul", g.node("MatMul", q, k), g.constant(np.float32(dh**-0.5)))
    mask = g.rng.choice(["", "input", "bool", "trilu", "compare"])
    low = g.constant(np.float32(-1e4))
    if mask == "input":
        m = g.node("Cast", g.input((batch, tokens), "int64"), to=1)
        m = g.node("Mul", g.node("Sub", g.constant(np.float32(1)), m), low)
        scores = g.node("Add", scores, g.node("Unsqueeze", m, g.numbers(1, 2)))
    elif mask == "bool":
        m = g.node("Unsqueeze", g.input((batch, tokens), "bool"), g.numbers(1, 2))
        scores = g.node("Where", m, scores, low)
    elif mask == "trilu":
        square = g.node("ConstantOfShape", g.node("Concat", t, t, axis=0), value=_tensor(1.0))
        m = g.node("Trilu", square, upper=0)
        m = g.node("Mul", g.node("Sub", g.constant(np.float32(1)), m), low)
        scores = g.node("Add", scores, m)
    elif mask == "compare":
        zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
        places = g.node("Range", zero, g.node("Squeeze", t, g.numbers(0)), one)
        rows = g.node("Unsqueeze", places, g.numbers(1))
        m = g.node("LessOrEqual", g.node("Unsqueeze", places, g.numbers(0)), rows)
        scores = g.node("Where", m, scores, low)
    p = g.node("Softmax", scores, axis=-1)
    o = g.node("Transpose", g.node("MatMul", p, v), perm=[0, 2, 1, 3])
    joined = g.node("Concat", b, t, g.numbers(heads * dh), axis=0)
    g.name, g.shape = g.node("Reshape", o, joined), (batch, tokens, heads * dh)
    if g.rng.random() < 0.6:
        g.op("MatMul", (batch, tokens, width), g.weight(heads * dh, width, fan=heads * dh))
        g.op("Add", g.shape, x)
    return True


def _tensor(value: float):
    from onnx import numpy_helper

    return numpy_helper.from_array(np.array([value], np.float32))


def softmax(g: Graph) -> bool:
    g.op("Softmax", g.shape, axis=g.rng.choice([len(g.shape) - 1, g.axis()]))
    return True


def layer_norm(g: Graph) -> bool:
    n = g.shape[-1]
    if not isinstance(n, int) or n < 3:
        return False
    g.op("LayerNormalization", g.shape, g.weight(n), g.weight(n), axis=-1, epsilon=1e-3)
    return True


def reduction(g: Graph) -> bool:
    rank = len(g.shape)
    axes = sorted(g.rng.sample(range(rank), g.rng.randint(1, max(1, rank - 1))))
    keep = g.rng.random() < 0.6
    shape = [1 if d in axes else n for d, n in enumerate(g.shape)]
    if not keep:
        shape = [n for d, n in enumerate(g.shape) if d not in axes]
    x, whole = g.name, g.shape
    kind = g.rng.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"])
    if kind == "ReduceSum" and g.rng.random() < 0.7:
        g.op("Mul", g.shape, g.constant(np.float32(0.125)))
    g.op(kind, shape, g.numbers(*axes), keepdims=int(keep))
    if keep and g.rng.random() < 0.5:  # each element with what was found for its row
        found, g.name, g.shape = g.name, x, whole
        g.op(g.rng.choice(["Sub", "Mul", "Add"]), whole, found)
    return bool(g.shape)


def cumsum(g: Graph) -> bool:
    g.op("Mul", g.shape, g.constant(np.float32(0.125)))
    g.op("CumSum", g.shape, g.constant(np.int64(g.axis())))
    return True


def argmax(g: Graph) -> bool:
    """An integer result beside the chain, or one that goes on as floats."""
    d, keep = g.axis(), g.rng.random() < 0.5
    found = g.node("ArgMax", g.name, axis=d, keepdims=int(keep))
    if g.rng.random() < 0.5:
        g.more.append((found, swapped(g.shape, d, 1) if keep else (*g.shape[:d], *g.shape[d + 1 :]), "int64"))
        return True
    if keep:
        g.op("Add", g.shape, g.node("Cast", found, to=1))
        return True
    g.name, g.shape = g.node("Cast", found, to=1), (*g.shape[:d], *g.shape[d + 1 :])
    return bool(g.shape)


def top_k(g: Graph) -> bool:
    d = g.axis(static=True)
    if d is None or g.shape[d] < 2:
        return False
    k = g.rng.randint(1, g.shape[d] - 1)
    best = g.node("TopK", g.name, g.numbers(k), axis=d, outputs=2)
    g.seen.append((g.name, g.shape))
    g.name, g.shape = best, swapped(g.shape, d, k)
    return True


# ---- what moves data ----------------------------------------------------------------------------------------------


def transpose(g: Graph) -> bool:
    order = list(range(len(g.shape)))
    g.rng.shuffle(order)
    g.op("Transpose", [g.shape[d] for d in order], perm=order)
    return len(order) > 1


def merge(g: Graph) -> bool:
    """Two neighbours become one dimension: sizes by Shape, by 0 and -1, or by -1 alone."""
    if len(g.shape) < 2:
        return False
    d = g.rng.randrange(len(g.shape) - 1)
    shape = [*g.shape[:d], times(g.shape[d], g.shape[d + 1]), *g.shape[d + 2 :]]
    if g.rng.random() < 0.5:
        parts = [
            g.numbers(-1) if e == d else g.numbers(n) if isinstance(n, int) else g.size_of(e if e < d else e + 1)
            for e, n in enumerate(shape)
        ]
        g.op("Reshape", shape, g.node("Concat", *parts, axis=0))
    elif all(isinstance(n, int) for n in shape[d + 1 :]):
        g.op("Reshape", shape, g.numbers(*[0] * d, -1, *shape[d + 1 :]))
    else:
        return False
    return True


def divide(g: Graph) -> bool:
    """A static dimension becomes two."""
    d = g.axis(static=True)
    if d is None or len(g.shape) > 4:
        return False
    cuts = [p for p in (2, 3, 4, 8, 16) if g.shape[d] % p == 0 and p < g.shape[d]]
    if not cuts:
        return False
    p = g.rng.choice(cuts)
    shape = [*g.shape[:d], p, g.shape[d] // p, *g.shape[d + 1 :]]
    parts = [g.numbers(n) if isinstance(n, int) else g.size_of(e if e < d else e - 1) for e, n in enumerate(shape)]
    g.op("Reshape", shape, g.node("Concat", *parts, axis=0))
    return True


def concat(g: Graph) -> bool:
    """With an earlier tensor, with an input or with a constant."""
    d = g.axis()
    fits = [s for s in g.seen if swapped(s[1], d, 0) == swapped(g.shape, d, 0) and len(s[1]) == len(g.shape)]
    if fits and g.rng.random() < 0.5:
        other, shape = g.rng.choice(fits)
    else:
        n = g.rng.choice([1, 3, 8, *g.dims])
        shape = swapped(g.shape, d, n)
        static = all(isinstance(n, int) for n in shape)
        other = g.weight(*shape) if static and g.rng.random() < 0.5 else g.input(shape)
    total = plus(g.shape[d], shape[d])
    if g.rng.random() < 0.5:
        g.op("Concat", swapped(g.shape, d, total), other, axis=d)
    else:
        g.seen.append((g.name, g.shape))
        g.name, g.shape = g.node("Concat", other, g.name, axis=d), swapped(g.shape, d, total)
    return True


def slice_(g: Graph) -> bool:
    """Of static bounds, of bounds from the end, or of an end from Shape."""
    d = g.axis()
    n, low = g.shape[d], g.low(g.shape[d])
    way = g.rng.choice(["front", "rest", "but the last", "to a shape", "every other"])
    cut = g.rng.randint(1, 4)
    if way == "front":
        cut = min(cut, n) if isinstance(n, int) else cut
        shape, bounds = cut if cut <= low else f"min({cut}, {n})", (0, cut)
    elif way == "to a shape":
        x = [(e, m) for e, m in enumerate(g.shape) if e != d and not isinstance(m, int)]
        if not x or not isinstance(n, int):
            return False
        e, m = g.rng.choice(x)
        shape = f"min({m}, {n})"
        g.op("Slice", swapped(g.shape, d, shape), g.numbers(0), g.size_of(e), g.numbers(d))
        return True
    elif cut >= low:
        return False
    elif way == "rest":
        shape, bounds = plus(n, -cut), (cut, 2**63 - 1)
    elif way == "but the last":
        shape, bounds = plus(n, -cut), (0, -cut)
    else:
        shape = (n + 1) // 2 if isinstance(n, int) else f"(({n}+1)//2)"
        g.op("Slice", swapped(g.shape, d, shape), *map(g.numbers, (0, 2**63 - 1, d, 2)))
        return True
    g.op("Slice", swapped(g.shape, d, shape), *map(g.numbers, (*bounds, d)))
    return True


def gather(g: Graph) -> bool:
    """Some indices of an axis; the first and the last of an open one."""
    d = g.axis()
    low = g.low(g.shape[d])
    if g.rng.random() < 0.4:
        index = g.constant(np.int64(g.rng.choice([0, -1])))
        g.op("Gather", (*g.shape[:d], *g.shape[d + 1 :]), index, axis=d)
        return bool(g.shape)
    picks = [g.rng.randrange(-low, low) for _ in range(g.rng.randint(1, 5))]
    g.op("Gather", swapped(g.shape, d, len(picks)), g.numbers(*picks), axis=d)
    return True


def split(g: Graph) -> bool:
    d = g.axis(static=True)
    if d is None or g.shape[d] < 2:
        return False
    n = g.shape[d]
    first = n // 2 if n % 2 == 0 and g.rng.random() < 0.5 else g.rng.randint(1, n - 1)
    a = g.node("Split", g.name, g.numbers(first, n - first), axis=d, outputs=2)
    parts = [(a, swapped(g.shape, d, first)), (f"{a}_1", swapped(g.shape, d, n - first))]
    if first * 2 == n and g.rng.random() < 0.6:
        g.name, g.shape = parts[0]
        g.op(g.rng.choice(["Mul", "Add"]), g.shape, parts[1][0])
        return True
    g.seen.append(parts[0])
    g.name, g.shape = parts[1]
    return True


def pad(g: Graph) -> bool:
    d = g.axis(static=g.rng.random() < 0.8)
    if d is None or g.low(g.shape[d]) < 4:
        return False
    low, high = g.rng.randint(0, 3), g.rng.randint(1, 3)
    pads = [low if e == d else 0 for e in range(len(g.shape))] + [high if e == d else 0 for e in range(len(g.shape))]
    mode = g.rng.choice(["constant", "constant", "edge", "reflect"])
    g.op("Pad", swapped(g.shape, d, plus(g.shape[d], low + high)), g.numbers(*pads), mode=mode)
    return True


def expand(g: Graph) -> bool:
    """To one more dimension in front, or of a row to all of them."""
    if len(g.shape) > 3:
        return False
    n = g.rng.choice([2, 3, *g.dims])
    shape = (n, *g.shape)
    if g.most(shape) > LARGEST:
        return False
    sizes = [g.numbers(m) if isinstance(m, int) else g.size_of(e) for e, m in enumerate(g.shape)]
    if isinstance(n, int):
        first = g.numbers(n)
    else:
        name = next(((x, s.index(n)) for x, (s, _) in g.inputs.items() if n in s), None)
        if name is None:
            return False
        first = g.node("Gather", g.node("Shape", name[0]), g.numbers(name[1]), axis=0)
    g.op("Expand", shape, g.node("Concat", first, *sizes, axis=0))
    return True


# ---- elementwise --------------------------------------------------------------------------------------------------


def elementwise(g: Graph) -> bool:
    g.op(g.rng.choice(["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "Softplus"]), g.shape)
    return True


def gelu(g: Graph) -> bool:
    x = g.name
    g.op("Div", g.shape, g.constant(np.float32(2**0.5)))
    g.op("Erf", g.shape)
    g.op("Add", g.shape, g.constant(np.float32(1)))
    g.op("Mul", g.shape, x)
    g.op("Mul", g.shape, g.constant(np.float32(0.5)))
    return True


def broadcast(g: Graph) -> bool:
    """With an input or a constant whose sizes are those of the tensor, or 1."""
    ones = g.rng.choice([0.0, 0.3, 0.7])
    shape = tuple(1 if g.rng.random() < ones else n for n in g.shape)[g.rng.randrange(len(g.shape)) :]
    static = all(isinstance(n, int) for n in shape)
    other = g.weight(*shape) if static and g.rng.random() < 0.7 else g.input(shape)
    kind = g.rng.choice(["Add", "Mul", "Sub", "Max", "Where"])
    if kind == "Where":
        g.seen.append((g.name, g.shape))
        condition = g.input(shape, "bool") if g.rng.random() < 0.5 else g.node("Greater", g.name, other)
        g.name = g.node("Where", condition, g.name, other)
    else:
        g.op(kind, g.shape, other)
    return True


def widen(g: Graph) -> bool:
    """Dimensions of 1 become open ones by a broadcast."""
    if 1 not in g.shape:
        return False
    n = g.rng.choice([*g.dims, 5])
    shape = tuple(n if m == 1 else m for m in g.shape)
    if g.most(shape) > LARGEST:
        return False
    g.op("Add", shape, g.input(tuple(n if m == 1 else 1 for m in g.shape)))
    return True


def residual(g: Graph) -> bool:
    before = [s for s in g.seen if s[1] == g.shape and s[0] != g.name]
    if not before:
        return False
    g.op(g.rng.choice(["Add", "Mul"]), g.shape, g.rng.choice(before)[0])
    return True


def clip(g: Graph) -> bool:
    g.op("Clip", g.shape, g.constant(np.float32(-0.75)), g.constant(np.float32(1.5)))
    return True


def cast(g: Graph) -> bool:
    """To integers and back, by a factor that makes most of them 0: next to an integer a rounding would decide."""
    g.op("Mul", g.shape, g.constant(np.float32(0.01)))
    whole = g.node("Cast", g.name, to=g.rng.choice([6, 7]))
    g.seen.append((g.name, g.shape))
    g.name = g.node("Cast", whole, to=1)
    return True


def outer(g: Graph) -> bool:
    """A comparison with places along an axis: Range of its size."""
    d = g.axis()
    zero, one = g.constant(np.int64(0)), g.constant(np.int64(1))
    size = g.node("Squeeze", g.size_of(d), g.numbers(0))
    places = g.node("Cast", g.node("Range", zero, size, one), to=1)
    if d < len(g.shape) - 1:
        places = g.node("Unsqueeze", places, g.numbers(*range(1, len(g.shape) - d)))
    g.op("Add", g.shape, g.node("Mul", places, g.constant(np.float32(0.03125))))
    return True


COMPUTES = (
    matmul, matmul, matmul_input, products_of_rows, attention, attention, softmax, layer_norm, reduction, reduction,
    convolution, convolution, cumsum, argmax, top_k,
)  # fmt: skip
OF_IMAGES = (convolution, convolution, convolution, pool, pool, conv_transpose, resize, pad, residual, elementwise)
MOVES = (transpose, transpose, merge, merge, divide, concat, concat, slice_, slice_, gather, split, pad, expand)
APPLIES = (elementwise, elementwise, gelu, broadcast, broadcast, widen, residual, clip, cast, outer)


def random_graph(seed: int) -> Graph:
    """A graph that only the seed decides."""
    rng = random.Random(seed)
    if seed % 4 == 3:
        return random_image(rng)
    chosen = [rng.choice(r) for r in (RANGES if rng.random() < 0.6 else [rng.choice(RANGES)])]
    g = Graph(rng, {name: (low, high, divisor) for name, low, high, divisor in chosen})
    while True:
        rank = rng.choice([2, 3, 3, 4])
        shape = [rng.choice(WIDTHS) for _ in range(rank)]
        if rng.random() < 0.7:  # as models have it: the batch, then tokens or channels
            for d, name in enumerate(sorted(g.dims)):
                shape[d] = name
        else:
            for d, name in zip(rng.sample(range(rank), len(g.dims)), g.dims, strict=True):
                shape[d] = name
        if g.most(shape) <= LARGEST:
            break
    g.shape = tuple(shape)
    g.input(g.shape)
    for _ in range(rng.randint(2, 6)):
        step(g, rng.choice([COMPUTES, COMPUTES, MOVES, APPLIES, APPLIES]))
    if not g.nodes:
        g.op("Relu", g.shape)
    return g


def random_image(rng: random.Random) -> Graph:
    """A graph of a convolutional network: batch, height and width are open, or some of them."""
    chosen = [rng.choice(r) for r in (IMAGES if rng.random() < 0.7 else IMAGES[1:])]
    g = Graph(rng, {name: (low, high, divisor) for name, low, high, divisor in chosen})
    channels = rng.choice([3, 8, 16, 32])
    g.shape = ("batch" if "batch" in g.dims else rng.randint(1, 3), channels, "height", "width")
    g.input(g.shape)
    for _ in range(rng.randint(2, 6)):
        step(g, OF_IMAGES)
    if not g.nodes:
        g.op("Relu", g.shape)
    return g


def step(g: Graph, kinds) -> None:
    """Apply one of several steps that is possible here."""
    for _ in range(8):
        kind = g.rng.choice(kinds)
        before = {k: v.copy() if isinstance(v, (list, dict)) else v for k, v in vars(g).items()}
        if kind(g) and g.most(g.shape) <= LARGEST and len(g.shape) < 6 and g.inputs_are_named():
            g.steps.append(f"{kind.__name__.strip('_')}->[{', '.join(map(str, g.shape))}]")
            return
        vars(g).update(before)


def sizes_of(g: Graph, count: int = 5) -> list[dict[str, int]]:
    """Sizes to run: the smallest, the largest, then any, among them primes and multiples of 16."""
    found = [{d: g.dims[d][place] for d in g.dims} for place in (0, 1)]
    if len(g.dims) > 1:
        found.append({d: r[i % 2] for i, (d, r) in enumerate(g.dims.items())})
    while len(found) < count:
        at = {}
        for d, (low, high, divisor) in g.dims.items():
            wanted = g.rng.choice([2, 3, 7, 13, 16, 17, 31, 32, 48, 61, g.rng.randint(low, high)])
            at[d] = min(max(wanted // divisor * divisor, low), high // divisor * divisor)
        found.append(at)
    return found


def feed_of(g: Graph, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs for these sizes; the first of a mask is always set."""
    rng = np.random.default_rng(seed)
    feed = {}
    for name, (shape, kind) in g.inputs.items():
        x = rng.standard_normal([n if isinstance(n, int) else eval(n, {}, sizes) for n in shape])
        if kind == "float":
            feed[name] = x.astype(np.float32)
        else:
            x = x > -0.5
            x[..., :1] = True
            feed[name] = x.astype(np.int64 if kind == "int64" else bool)
    return feed
