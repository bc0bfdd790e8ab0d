"""Default schedules, run natively and compared with the float64 reference interpreter, for kernels of every common
kind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilewright as tw
from tilewright.graph.interpret import interpret
from tilewright.ir.context import use
from tilewright.ir.graph import Graph
from tilewright.ir.types import numpy_dtype

TOLERANCE = {"f64": 1e-11, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}
#: below the smallest normal number a format has fewer digits
TINY = {"f64": 1e-300, "f32": 1e-37, "f16": 6e-5}


def module(body: str, arguments: list[str], results: list[str]) -> str:
    """tw text of a function over %a, %b, ... that returns %r (and %r1, ...)."""
    given = ", ".join(f"%{chr(97 + i)}: tensor<{t}>" for i, t in enumerate(arguments))
    kinds = ", ".join(f"tensor<{t}>" for t in results)
    names = ", ".join(["%r", *(f"%r{i}" for i in range(1, len(results)))])
    return f"module {{ func.func @main({given}) -> ({kinds}) {{\n{body}\nreturn {names} : {kinds}\n}} }}"


def op(name: str, operands: str, attributes: str, types: list[str], result: str, to: str = "%r") -> str:
    given = ", ".join(f"tensor<{t}>" for t in types)
    return f'{to} = "tw.{name}"({operands}) {{{attributes}}} : ({given}) -> tensor<{result}>'


def array(*values: int) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def random_inputs(text: str, seed: int = 0) -> tuple[dict, dict]:
    """Inputs of a module and what the float64 interpreter makes of them."""
    rng = np.random.default_rng(seed)
    with use():
        graph = _graph(text)
        given = {}
        for name, t in graph.inputs():
            kind = numpy_dtype(t.dtype)
            if t.dtype in TOLERANCE:
                given[name] = rng.standard_normal(t.dims).astype(kind)
            elif t.dtype == "i1":
                given[name] = rng.integers(0, 2, t.dims).astype(kind)
            else:
                given[name] = rng.integers(0 if t.dtype.startswith("u") else -3, 4, t.dims).astype(kind)
        return given, interpret(graph, given, float64=True)


def _graph(text: str) -> Graph:
    from torch_mlir import ir

    return Graph(ir.Module.parse(text))


def check(
    text: str, tolerance: float | None = None, threads: tuple[int, ...] = (3,), given: dict | None = None
) -> None:
    """Compile tw text with the default rules and compare every result with the reference."""
    made, expected = random_inputs(text)
    if given:
        made.update(given)
        with use():
            expected = interpret(_graph(text), made, float64=True)
    for n in threads:
        model = tw.compile(text, threads=n, cache=False)
        got = model.run(made)
        values = list(got.values()) if isinstance(got, dict) else list(got)
        for y, want in zip(values, expected.values(), strict=True):
            want = np.asarray(want)
            assert y.shape == want.shape
            kind = {np.dtype(np.float64): "f64", np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}.get(y.dtype)
            if kind is None:
                np.testing.assert_array_equal(y, want.astype(y.dtype), err_msg=f"{n} threads")
            else:
                limit = tolerance or TOLERANCE[kind]
                scale = float(np.abs(want[np.isfinite(want)]).max(initial=0.0)) + 1e-30
                np.testing.assert_allclose(
                    y.astype(np.float64), want, rtol=limit, atol=limit * scale + TINY[kind], err_msg=f"{n} threads"
                )


# ---- contractions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "r"),
    [
        ("128x96", "96x80", "128x80"),
        ("13x7", "7x37", "13x37"),
        ("1x5", "5x1", "1x1"),
        ("1x300", "300x33", "1x33"),
        ("17x1", "1x19", "17x19"),
        ("2x3x5x7", "3x7x9", "2x3x5x9"),
        ("4x6x5", "4x5x3", "4x6x3"),
        ("7", "7", ""),
        ("7", "7x5", "5"),
        ("5x7", "7", "5"),
        ("2x5x7", "7x3", "2x5x3"),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_matmul(a, b, r, dtype):
    a, b, r = (f"{x}x{dtype}" if x else dtype for x in (a, b, r))
    check(module(op("matmul", "%a, %b", "", [a, b], r), [a, b], [r]))


@pytest.mark.parametrize(("m", "n", "k"), [(5, 6, 7), (33, 17, 9), (64, 48, 100)])
def test_matmul_of_transposed_operands(m, n, k):
    a, b, at, bt, r = f"{k}x{m}xf32", f"{n}x{k}xf32", f"{m}x{k}xf32", f"{k}x{n}xf32", f"{m}x{n}xf32"
    body = "\n".join(
        [
            op("transpose", "%a", f"permutation = {array(1, 0)}", [a], at, "%0"),
            op("transpose", "%b", f"permutation = {array(1, 0)}", [b], bt, "%1"),
            op("matmul", "%0, %1", "", [at, bt], r),
        ]
    )
    check(module(body, [a, b], [r]))


@pytest.mark.parametrize("tail", ["relu", "exp", "sigmoid", "gelu"])
def test_matmul_with_epilogue(tail):
    m = "9x21xf32"
    body = "\n".join(
        [
            op("matmul", "%a, %b", "", ["9x14xf32", "14x21xf32"], m, "%0"),
            op("add", "%0, %c", "", [m, "21xf32"], m, "%1"),
            op(tail, "%1", "", [m], m, "%2"),
            op("mul", "%2, %d", "", [m, m], m),
        ]
    )
    check(module(body, ["9x14xf32", "14x21xf32", "21xf32", m], [m]))


CONVOLUTIONS = [
    # sizes, channels in, out, kernel, strides, pads, dilations, groups
    ((11,), 3, 5, (3,), (1,), (1, 1), (1,), 1),
    ((12,), 4, 6, (4,), (2,), (0, 1), (2,), 2),
    ((8, 9), 3, 16, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((9, 7), 8, 8, (3, 3), (2, 2), (1, 0, 1, 1), (1, 1), 1),
    ((9, 9), 4, 6, (3, 2), (1, 2), (2, 1, 0, 1), (2, 1), 2),
    ((7, 8), 6, 6, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 6),
    ((7, 8), 16, 16, (5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 16),
    ((6, 6), 4, 8, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    ((5, 6), 17, 33, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((4, 5, 6), 2, 3, (2, 3, 2), (1, 1, 2), (0, 1, 1, 1, 1, 0), (1, 1, 1), 1),
]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: "x".join(map(str, c[0])) + f"_{c[1]}to{c[2]}_g{c[7]}")
def test_conv(case, layout):
    sizes, c, o, kernel, strides, pads, dilations, groups = case
    r = len(sizes)
    out = [
        (n + pads[i] + pads[r + i] - (k - 1) * d - 1) // s + 1
        for i, (n, k, d, s) in enumerate(zip(sizes, kernel, dilations, strides, strict=True))
    ]

    def shape(n, channels, spatial):
        dims = (n, channels, *spatial) if layout == "nchw" else (n, *spatial, channels)
        return "x".join(map(str, dims)) + "xf32"

    x, y = shape(2, c, sizes), shape(2, o, out)
    w = "x".join(map(str, (o, c // groups, *kernel))) + "xf32"
    attributes = (
        f"strides = {array(*strides)}, pads = {array(*pads)}, dilations = {array(*dilations)}, groups = {groups}, "
        f'layout = "{layout}", '
        "operandSegmentSizes = array<i32: 1, 1, 1>"
    )
    body = op("conv", "%a, %b, %c", attributes, [x, w, f"{o}xf32"], y, "%0") + "\n" + op("relu", "%0", "", [y], y)
    check(module(body, [x, w, f"{o}xf32"], [y]))


# ---- reductions and rows -------------------------------------------------------------------------------------------

SHAPE = (3, 5, 17)
SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_reductions_over_axes(axes, keepdims):
    kept = [1 if i in axes else n for i, n in enumerate(SHAPE) if keepdims or i not in axes]
    attributes = f"axes = {array(*axes)}, keepdims = {str(keepdims).lower()}"
    x, y = "3x5x17xf32", "x".join(map(str, [*kept, "f32"]))
    lines = [
        op(name, "%a", attributes, [x], y, to)
        for name, to in (("reduce_sum", "%r"), ("reduce_max", "%r1"), ("reduce_mean", "%r2"))
    ]
    check(module("\n".join(lines), [x], [y] * 3))


@pytest.mark.parametrize("size", [1, 33, 200])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "i64", "i8"])
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
def test_reductions_of_dtypes(name, dtype, size):
    x, y = f"4x{size}x{dtype}", f"4x{dtype}"
    check(module(op(name, "%a", f"axes = {array(1)}", [x], y), [x], [y]))


@pytest.mark.parametrize("name", ["reduce_any", "reduce_all"])
def test_reductions_of_booleans(name):
    check(module(op(name, "%a", f"axes = {array(1)}", ["5x37xi1"], "5xi1"), ["5x37xi1"], ["5xi1"]))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["arg_max", "arg_min"])
def test_arg_extremes(name, axis, last):
    y = "x".join(str(n) for i, n in enumerate(SHAPE) if i != axis) + "xi64"
    x = "3x5x17xi32"  # many ties
    check(module(op(name, "%a", f"axis = {axis}, last = {str(last).lower()}", [x], y), [x], [y]))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", ["2x4x130", "3x40x13", "1x1x5", "2x3x16"])
def test_softmax(shape, axis):
    x = f"{shape}xf32"
    check(module(op("softmax", "%a", f"axis = {axis}", [x], x), [x], [x]))


@pytest.mark.parametrize(
    ("shape", "axis"), [("6x64", 1), ("2x3x37", 2), ("2x5x7", 1), ("1x9", 1), ("40", 0), ("3x1", 1)]
)
def test_layer_norm(shape, axis):
    x = f"{shape}xf32"
    w = "x".join(shape.split("x")[axis:]) + "xf32"
    attributes = f"axis = {axis}, epsilon = 1.0e-5, operandSegmentSizes = array<i32: 1, 1, 1>"
    check(module(op("layer_norm", "%a, %b, %c", attributes, [x, w, w], x), [x, w, w], [x]), tolerance=3e-5)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_pools(name, layout):
    x, y = ("2x5x8x9xf32", "2x5x4x4xf32") if layout == "nchw" else ("2x8x9x5xf32", "2x4x4x5xf32")
    windows = f"kernel = {array(3, 2)}, strides = {array(2, 2)}, pads = {array(1, 0, 1, 0)}, dilations = {array(1, 1)}"
    attributes = f'{windows}, layout = "{layout}"'
    check(module(op(name, "%a", attributes, [x], y), [x], [y]))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumsum(axis, reverse):
    x = "3x5x17xf32"
    check(module(op("cumsum", "%a", f"axis = {axis}, reverse = {str(reverse).lower()}", [x], x), [x], [x]))


# ---- elementwise and data movement ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "r"),
    [
        ("4x5", "4x5", "4x5"),
        ("4x5", "5", "4x5"),
        ("4x5", "4x1", "4x5"),
        ("4x1x6", "5x1", "4x5x6"),
        ("1", "3x33", "3x33"),
        ("", "7", "7"),
        ("", "", ""),
        ("2x1x3x1", "1x4x1x5", "2x4x3x5"),
        ("1x64x1x1", "2x64x3x3", "2x64x3x3"),
        ("1000", "1000", "1000"),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "i64", "i8"])
def test_broadcasting(a, b, r, dtype):
    a, b, r = (f"{x}x{dtype}" if x else dtype for x in (a, b, r))
    body = op("add", "%a, %b", "", [a, b], r, "%0") + "\n" + op("mul", "%0, %b", "", [r, b], r)
    check(module(body, [a, b], [r]))


@pytest.mark.parametrize("permutation", [*itertools.permutations(range(3)), *itertools.permutations(range(4))], ids=str)
def test_transposes(permutation):
    shape = (3, 17, 5, 4)[: len(permutation)]
    x = "x".join(map(str, [*shape, "f32"]))
    y = "x".join(map(str, [*(shape[p] for p in permutation), "f32"]))
    check(module(op("transpose", "%a", f"permutation = {array(*permutation)}", [x], y), [x], [y]))


@pytest.mark.parametrize("dtype", ["f32", "i8", "i1"])
@pytest.mark.parametrize(("low", "high"), [((0, 0), (0, 3)), ((1, 2), (0, 0)), ((2, 1), (1, 17))])
def test_pad(low, high, dtype):
    x, y = f"5x9x{dtype}", f"{5 + low[0] + high[0]}x{9 + low[1] + high[1]}x{dtype}"
    check(module(op("pad", "%a", f"low = {array(*low)}, high = {array(*high)}", [x], y), [x], [y]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat(axis):
    shapes = [[n + (i if d == axis else 0) for d, n in enumerate((2, 3, 17))] for i in range(3)]
    out = list(shapes[0])
    out[axis] = sum(s[axis] for s in shapes)
    types = ["x".join(map(str, [*s, "f32"])) for s in shapes]
    y = "x".join(map(str, [*out, "f32"]))
    sizes = ", ".join(["1"] * 3 + ["0"] * 13)
    attributes = f"axis = {axis}, operandSegmentSizes = array<i32: {sizes}>"
    check(module(op("concat", "%a, %b, %c", attributes, types, y), types, [y]))


@pytest.mark.parametrize(
    ("starts", "sizes", "steps"),
    [((0, 1), (4, 9), (1, 1)), ((1, 0), (3, 6), (2, 3)), ((6, 19), (7, 20), (-1, -1)), ((5, 18), (3, 5), (-2, -4))],
)
def test_slice(starts, sizes, steps):
    attributes = f"starts = {array(*starts)}, sizes = {array(*sizes)}, steps = {array(*steps)}"
    x, y = "7x20xf32", f"{sizes[0]}x{sizes[1]}xf32"
    check(module(op("slice", "%a", attributes, [x], y), [x], [y]))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index", ["i64", "i32"])
def test_gather(axis, index):
    shape = (4, 5, 17)
    out = [*shape[:axis], 2, 3, *shape[axis + 1 :]]
    x, i, y = "4x5x17xf32", f"2x3x{index}", "x".join(map(str, [*out, "f32"]))
    text = module(op("gather", "%a, %b", f"axis = {axis}", [x, i], y), [x, i], [y])
    check(text)  # indices from -3 to 3: negative ones count from the end
