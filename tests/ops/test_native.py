"""Every operator compiled to native code and run, against its reference in double precision.

Many operators share one compilation: a module with one output for each result of each sample.
"""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

import numpy as np
import pytest
from torch_mlir import ir
from torch_mlir.dialects import func

import tilewright as tw
from tilewright.graph.interpret import interpret
from tilewright.ir import dialect
from tilewright.ir.context import use
from tilewright.ir.dialect import OPERATORS
from tilewright.ir.graph import Graph
from tilewright.ir.types import NUMPY, from_array
from tilewright.lang import te
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.support.errors import OpError
from tilewright.targets.base import find


def f(*shape, low=-2.0, high=2.0):
    return np.random.default_rng(sum(shape) + 7).uniform(low, high, shape).astype(np.float32)


WINDOW = {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2)}
BOXES = np.sort(f(2, 9, 2, 2, low=0.0), axis=2).reshape(2, 9, 4)
SIZES = [np.array(3), np.array(0.3, np.float32), np.array(0.1, np.float32)]
LENGTHS = np.array([3, 5], np.int32)
POOLED = [np.int32(a) for a in ([0, 2, 6], [-1, 3], [-1, 1, -1, 0, -1, 3])]

#: samples of operators that `test_operators` has none for (None is an operand that is not there)
MORE: dict[str, list[tuple[list, dict]]] = {
    "bitcast": [([np.arange(-3, 3, dtype=np.int32)], {"to": "ui32"})],
    "col2im": [([f(2, 12, 20)], {**WINDOW, "image": (8, 6), "block": (3, 2)})],
    "cumprod": [([f(3, 5, 4)], {"axis": 1}), ([f(3, 9)], {"axis": 1, "exclusive": True, "reverse": True})],
    "deform_columns": [
        ([f(2, 4, 7, 6), f(2, 12, 4, 5), f(2, 6, 4, 5)], {**WINDOW, "kernel": (3, 2), "groups": 2}),
        ([f(2, 4, 7, 6), f(2, 24, 4, 5)], {**WINDOW, "kernel": (3, 2), "offset_groups": 2}),
    ],
    "det": [([f(2, 5, 5)], {}), ([f(1, 1)], {})],
    "grid_sample": [
        ([f(2, 3, 5, 4), f(2, 6, 7, 2, low=-1.3, high=1.3)], {"mode": m, "padding": p, "align_corners": p == "border"})
        for m in ("nearest", "linear", "cubic")
        for p in ("zeros", "border", "reflection")
    ],
    "gated_linear_attention": [
        ([f(6, 2, 8), f(6, 2, 8, low=-0.5, high=0.5), f(6, 4, n), f(6, 4, high=0.0), f(5, 4, 8, n), *POOLED, *beta], {})
        for n, beta in ((24, []), (72, [f(6, 4, low=0.0, high=1.0)]))
    ],
    "gru": [
        ([f(5, 2, 21), f(7, 21, low=-0.5, high=0.5), f(2, 7)], {}),
        ([f(5, 2, 21), f(7, 21, low=-0.5, high=0.5), f(2, 7), f(7), LENGTHS], {"reverse": True}),
    ],
    "lstm": [
        ([f(5, 2, 28), f(7, 28, low=-0.5, high=0.5), f(2, 7), f(2, 7, low=-1.0)], {}),
        ([f(5, 2, 28), f(7, 28, low=-0.5, high=0.5), f(2, 7), f(2, 7), f(21), LENGTHS], {"reverse": True, "clip": 1.5}),
        ([f(5, 2, 28), f(7, 28, low=-0.5, high=0.5), f(2, 7), f(2, 7), None, LENGTHS], {"coupled": True}),
    ],
    "non_max_suppression": [
        ([BOXES, f(2, 3, 9), *SIZES], {}),
        ([f(2, 9, 4, low=0.1), f(2, 3, 9), *SIZES], {"center": True}),
    ],
    "non_zero": [([np.arange(60).reshape(3, 4, 5) % 3 - 1], {}), ([f(7) > 0], {}), ([np.floor(f(4, 6))], {})],
    "append": [([f(2, 9, 5), f(2, n, 5)], {"axis": 1, "start": s}) for n, s in ((1, 0), (3, 4), (9, 0), (1, 8))]
    + [([f(3, 40), f(3, 7)], {"axis": -1, "start": 5}), ([f(30), f(1)], {"axis": 0, "start": 29})],
    "arange": [
        ([], {"count": 37, "dtype": d, "start": a, "step": b})
        for d, a, b in (("i64", 0, 1), ("i64", 5, -3), ("i32", -2, 2), ("f32", 4, 0), ("f64", 1, 7))
    ],
    "random": [
        ([], {"kind": k, "shape": (3, 5), "dtype": d, "seed": 7}) for k in ("uniform", "normal") for d in ("f32", "f64")
    ],
    "rnn": [
        ([f(5, 2, 7), f(7, 7, low=-0.5, high=0.5), f(2, 7)], {}),
        ([f(5, 2, 7), f(7, 7, low=-0.5, high=0.5), f(2, 7), LENGTHS], {"activations": ("relu",), "reverse": True}),
    ],
    "roi_align": [
        ([f(2, 3, 9, 8), f(4, 4, low=0.0, high=7.0), np.array([0, 1, 1, 0])], {"height": 3, "width": 2, **a})
        for a in ({}, {"samples": 2, "scale": 0.5}, {"maximum": True, "samples": 1, "half_pixel": False})
    ],
    "winograd_conv": [
        ([f(2, 8, 6, 16), f(16, 16, 32)], {"tile": 2, "size": (6, 3)}),
        ([f(1, 10, 6, 32), f(36, 32, 16)], {"tile": 4, "size": (7, 4)}),
        ([f(1, 6, 6, 3), f(36, 3, 5)], {"tile": 4, "size": (1, 2)}),
    ],
}
SAMPLES = {**MORE, **runpy.run_path(str(Path(__file__).with_name("test_operators.py")))["SAMPLES"]}

#: operators that cannot run natively yet, with the reason; one that can fails the test
NO_NATIVE_PATH: dict[str, str] = {}

#: largest error relative to the largest value
TOLERANCE = {"f64": 1e-11, "f32": 1e-5, "f16": 4e-3, "bf16": 3e-2}

Case = tuple[str, list, dict]


def cases() -> list[Case]:
    return [
        (n, xs, attrs) for n, samples in sorted(SAMPLES.items()) for xs, attrs in samples if n not in NO_NATIVE_PATH
    ]


def module_of(todo: list[Case]) -> tuple[Graph, dict[str, np.ndarray], list[str]]:
    """A graph of all cases side by side, its inputs, and a name for each of its outputs."""
    feed = {f"arg{k}": x for k, x in enumerate(x for _, xs, _ in todo for x in xs if x is not None)}
    with use():
        graph = Graph(ir.Module.create())
        types = [from_array(x).mlir() for x in feed.values()]
        with ir.InsertionPoint(graph.module.body):
            main = func.FuncOp("main", (types, []))
            arguments = iter(main.add_entry_block().arguments)
        results, labels = [], []
        with ir.InsertionPoint(main.entry_block):
            for name, xs, attrs in todo:
                made = dialect.create(name, *[None if x is None else next(arguments) for x in xs], **attrs)
                results += made
                labels += [
                    f"{name} {attrs} of {', '.join(str(from_array(x)) for x in xs if x is not None)}: result {k}"
                    for k in range(len(made))
                ]
            func.ReturnOp(results)
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, [r.type for r in results]))
    graph.verify()
    return graph, feed, labels


def wrong(todo: list[Case], threads: int = 2, tolerances: dict[str, float] = TOLERANCE) -> list[str]:
    """What the native code of some cases gets wrong, in words; cases that do not compile are found one by one."""
    graph, feed, labels = module_of(todo)
    expected = interpret(graph, feed, float64=True)
    types = [t for _, t in graph.outputs()]
    try:
        got = tw.compile(graph, threads=threads).run(feed)
    except Exception as e:  # bare ones are bugs too
        if len(todo) == 1:
            return [f"{labels[0]}: {type(e).__name__}: {e}"]
        half = len(todo) // 2
        return wrong(todo[:half], threads, tolerances) + wrong(todo[half:], threads, tolerances)
    found = []
    for label, t, y, want in zip(labels, types, got, expected.values(), strict=True):
        if y.dtype != NUMPY[t.dtype] or y.shape != want.shape:
            found.append(f"{label}: {y.dtype}{y.shape} instead of {t}")
        elif t.dtype not in TOLERANCE:
            if not np.array_equal(y, want):
                found.append(f"{label}: {np.count_nonzero(y != want)} elements differ")
        else:
            finite = np.abs(want[np.isfinite(want)])
            limit = tolerances[t.dtype] * max(float(finite.max(initial=0.0)), 1e-30)
            if not np.allclose(y.astype(np.float64), want, rtol=0, atol=limit, equal_nan=True):
                found.append(
                    f"{label}: error {np.nanmax(np.abs(y.astype(np.float64) - want)):.1e}, allowed {limit:.1e}"
                )
    return found


def floats_to(xs, dtype):
    return [x.astype(NUMPY[dtype]) if x is not None and x.dtype == np.float32 else x for x in xs]


def accepted(name, xs, attrs) -> bool:
    """Whether the type rule takes these operands."""
    try:
        types = [None if x is None else from_array(x) for x in xs]
        dialect.infer(OPERATORS[name], types, {**OPERATORS[name].attributes, **attrs})
    except (OpError, ValueError, IndexError, ZeroDivisionError):
        return False
    return True


# ---- all operators -------------------------------------------------------------------------------------------------


def test_every_operator_is_tested():
    # ONNX's own cases, run natively by tests/conformance, cover ai.onnx.ml; test_block_matmul has its operators, and
    # tests/targets/test_split_attention.py those that passes make for machines with a grid of blocks
    elsewhere = {
        "tree_leaves",
        "quantize_blocks",
        "block_matmul",
        "block_lookup",
        "integer_block_matmul",
        "write_quantized_pages",
        "ragged_attention_parts",
    }
    elsewhere |= {"attention_parts", "paged_attention_parts", "attention_join"}
    elsewhere |= {"expert_block_matmul", "expert_integer_block_matmul"}  # tests/llm/test_recurrent_ops.py
    elsewhere |= {"if", "loop", "yield"}  # tests/unit/graph/test_control_flow.py
    assert set(OPERATORS) - set(SAMPLES) - set(NO_NATIVE_PATH) == {"constant", *elsewhere}


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_native_code_agrees_with_the_reference(dtype):
    """Samples without float32 are the same for every dtype: f32 has them."""
    todo = [
        (n, floats_to(xs, dtype), attrs)
        for n, xs, attrs in cases()
        if dtype == "f32" or any(x is not None and x.dtype == np.float32 for x in xs)
    ]
    assert not wrong([c for c in todo if accepted(*c)])


@pytest.mark.parametrize("name", sorted(NO_NATIVE_PATH))
def test_operators_without_native_path(name):
    assert wrong([(name, *sample) for sample in SAMPLES[name]]), f"{name} runs now: take it off NO_NATIVE_PATH"


# ---- empty tensors -------------------------------------------------------------------------------------------------


def emptied(case: Case) -> list[Case]:
    """A case with each of its sizes replaced by 0, where the operator takes that."""
    name, xs, attrs = case
    present = [x for x in xs if x is not None]
    found = []
    for n in sorted({n for x in present for n in x.shape} - {0, 1}):
        empty = [None if x is None else np.zeros([0 if d == n else d for d in x.shape], x.dtype) for x in xs]
        try:
            with np.errstate(all="ignore"):
                OPERATORS[name].reference(*empty, **{**OPERATORS[name].attributes, **attrs})
        except (OpError, ValueError, IndexError, ZeroDivisionError):
            continue
        if accepted(name, empty, attrs):
            found.append((name, empty, attrs))
    return found


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_empty_tensors():
    first = {name: (name, xs, attrs) for name, xs, attrs in reversed(cases())}
    todo = [c for case in first.values() for c in emptied(case)]
    assert len({c[0] for c in todo}) > 90
    assert not wrong(todo)


# ---- operators with loop nests of their own ------------------------------------------------------------------------


def numbers(rng, shape, dtype):
    kind = NUMPY[dtype].kind
    if dtype == "i1":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -3, 250 if kind == "u" else 4, shape).astype(NUMPY[dtype])
    return rng.integers(-64, 64, shape).astype(NUMPY[dtype]) / NUMPY[dtype].type(8)  # sums of these are exact in f32


#: (shape, axis): lines along memory and across it, one element, more than one task, nothing
LINES = [
    ((5, 7, 33), 1),
    ((5, 7, 33), 2),
    ((130,), 0),
    ((3, 200, 64), 1),
    ((4, 4, 1000), -1),
    ((6, 1), 1),
    ((3, 0, 2), 1),
]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i64", "ui8"])
def test_cumsum(dtype):
    rng = np.random.default_rng(0)
    todo = []
    for shape, axis in LINES:
        x = numbers(rng, shape, dtype)
        todo += [
            ("cumsum", [x], {"axis": axis, "exclusive": e, "reverse": r}) for e, r in ((False, True), (True, False))
        ]
    assert not wrong(todo, threads=3)


#: shapes of the data and of the indices, and the axis
ELEMENTS = [
    ((5, 7, 33), (5, 3, 30), 1), ((5, 7, 33), (4, 7, 50), 2), ((9,), (30,), 0), ((100, 128), (40, 128), 0),
    ((64, 300), (64, 100), 1), ((90, 200), (50, 111), 0), ((4, 5), (0, 5), 0), ((0, 5), (0, 5), 1),
]  # fmt: skip
REDUCTIONS = ["none", "add", "max", "min", "mul"]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i64", "ui8", "i1"])
def test_scatter_elements(dtype):
    """Negative and repeated indices; the last of several updates wins, at any number of threads."""
    rng = np.random.default_rng(1)
    todo = []
    for data, chosen, axis in ELEMENTS:
        at = rng.integers(-data[axis], data[axis], chosen)
        for reduction in REDUCTIONS[: 4 if dtype in ("f16", "bf16") else 5]:
            xs = [numbers(rng, data, dtype), at, numbers(rng, chosen, dtype)]
            todo.append(("scatter_elements", xs, {"axis": axis, "reduction": reduction}))
    assert not wrong(todo, threads=3)


#: shape of the data, shape of the updated places, dimensions that an index addresses
PLACES = [
    ((5, 7, 33), (6, 1), 1), ((5, 7, 33), (2, 6), 2), ((5, 7, 33), (40,), 3), ((200, 128), (50,), 1),
    ((200, 128), (500,), 2), ((3000,), (5000,), 1), ((1, 3, 70, 64), (1, 3, 2), 3), ((2, 9000), (6,), 1),
    ((4, 5), (0,), 1), ((0, 5), (0,), 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i64", "ui8", "i1"])
def test_scatter_nd(dtype):
    rng = np.random.default_rng(2)
    todo = []
    for data, places, depth in PLACES:
        at = np.stack([rng.integers(-n, max(n, 1 - n), places) for n in data[:depth]], -1)
        for reduction in REDUCTIONS[:4]:
            xs = [numbers(rng, data, dtype), at, numbers(rng, places + data[depth:], dtype)]
            todo.append(("scatter_nd", xs, {"reduction": reduction}))
    assert not wrong(todo, threads=3, tolerances={**TOLERANCE, "f16": 2e-2, "bf16": 2e-1})


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i64", "i8", "ui8"])
def test_top_k(dtype):
    """Short lists and whole sorts, many equal elements (the first wins), NaN as the largest number."""
    rng = np.random.default_rng(3)
    todo = []
    for shape, axis, k in [
        ((5, 7, 33), 1, 3), ((5, 7, 33), 2, 33), ((5, 7, 33), 0, 0), ((1000,), 0, 1000), ((3, 500), 1, 100),
        ((2, 3000), 1, 64), ((2, 3000), 1, 1500), ((2, 3000), 1, 300), ((0, 4), 1, 2), ((0, 4), 0, 0), ((7, 1), 1, 1),
        ((3, 97), 1, 97), ((1, 20001), 1, 3), ((20, 9), 1, 2), ((4, 9, 17), 1, 8), ((4, 300, 9), 1, 5),
    ]:  # fmt: skip
        x = numbers(rng, shape, dtype)
        if x.dtype.kind == "f" and x.size > 20:
            x.reshape(-1)[::7] = np.nan
            x.reshape(-1)[3:5] = -np.inf, np.inf
            x.reshape(-1)[5::9] = -0.0
            x.reshape(-1)[6::9] = 0.0
        todo += [("top_k", [x], {"axis": axis, "k": k, "largest": largest}) for largest in (True, False)]
    assert not wrong(todo, threads=3)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "ui32", "ui64"])
def test_top_k_of_lines_that_are_all_alike(dtype):
    """More elements than are wanted reach every bar: the first ones count. Extreme integers and NaN are no padding."""
    kinds = np.dtype(NUMPY[dtype])
    ends = (np.nan, -np.inf, 0.0) if kinds.kind == "f" else (np.iinfo(kinds).min, np.iinfo(kinds).max, 1)
    todo = []
    for n, k in ((517, 5), (1000, 100), (97, 97), (3000, 40)):
        x = np.stack([np.full(n, ends[0], kinds), np.full(n, ends[1], kinds), np.full(n, ends[2], kinds)])
        x[2, n // 2 :] = ends[0]
        ascending = np.arange(2 * n).reshape(2, n).astype(kinds)
        for largest in (True, False):
            how = {"axis": 1, "k": k, "largest": largest}
            todo += [("top_k", [x], how), ("top_k", [ascending], how), ("top_k", [ascending[:, ::-1].copy()], how)]
    assert not wrong(todo, threads=3)


@pytest.mark.parametrize("shape, k", [((2, 500), 5), ((40, 9), 2), ((2, 200), 100)])
def test_top_k_where_vectors_and_i64_do_not_mix(shape, k):
    graph, _, _ = module_of([("top_k", [np.zeros(shape, np.float32)], {"k": k})])
    assert tw.compile(graph, target="cortex-m55", stop_after="assemble")


@pytest.mark.parametrize("used", [(0,), (1,), (1, 1, 0)])
def test_top_k_with_results_unused_or_used_twice(used):
    x = np.random.default_rng(4).permutation(60).reshape(3, 20).astype(np.float32)
    with use():
        graph = Graph(ir.Module.create())
        with ir.InsertionPoint(graph.module.body):
            main = func.FuncOp("main", ([from_array(x).mlir()], []))
            block = main.add_entry_block()
        with ir.InsertionPoint(block):
            made = dialect.create("top_k", block.arguments[0], k=4)
            func.ReturnOp([made[i] for i in used])
        returned = [made[i].type for i in used]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([block.arguments[0].type], returned))
    expected = OPERATORS["top_k"].reference(x, k=4, axis=-1, largest=True)
    for y, i in zip(tw.compile(graph, threads=2).run({"arg0": x}), used, strict=True):
        assert y.tolist() == expected[i].tolist()


def test_cumsum_with_movement_before_and_arithmetic_after():
    """Another operand of the arithmetic is moved as well: one kernel holds all of it."""
    text = """func.func @main(%x: tensor<6x40x7xf32>, %b: tensor<6x40x1xf32>) -> tensor<40x7x6xf32> {
      %t = "tw.transpose"(%x) {permutation = array<i64: 1, 2, 0>} : (tensor<6x40x7xf32>) -> tensor<40x7x6xf32>
      %c = "tw.cumsum"(%t) {axis = 0} : (tensor<40x7x6xf32>) -> tensor<40x7x6xf32>
      %u = "tw.transpose"(%b) {permutation = array<i64: 1, 2, 0>} : (tensor<6x40x1xf32>) -> tensor<40x1x6xf32>
      %d = "tw.mul"(%c, %u) : (tensor<40x7x6xf32>, tensor<40x1x6xf32>) -> tensor<40x7x6xf32>
      return %d : tensor<40x7x6xf32> }"""
    rng = np.random.default_rng(6)
    x, b = (rng.standard_normal(s).astype(np.float32) for s in ((6, 40, 7), (6, 40, 1)))
    (y,) = tw.compile(text, threads=2).run({"arg0": x, "arg1": b})
    np.testing.assert_allclose(y, (np.cumsum(x, 1) * b).transpose(1, 2, 0), rtol=1e-5, atol=1e-5)


def small_nests() -> list[Case]:
    rng = np.random.default_rng(7)
    f = functools.partial(numbers, rng, dtype="f32")
    pool = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2), "order": 1}
    return [
        ("cumsum", [f((5, 7, 33))], {"axis": 1}),
        ("cumsum", [f((5, 7, 33))], {"axis": 2, "reverse": True}),
        ("scatter_elements", [f((100, 128)), rng.integers(-100, 100, (40, 128)), f((40, 128))], {"reduction": "max"}),
        ("scatter_nd", [f((100, 128)), rng.integers(-100, 100, (40, 1)), f((40, 128))], {"reduction": "add"}),
        ("scatter_nd", [f((100, 128)), rng.integers(-100, 100, (40, 2)), f((40,))], {}),
        ("top_k", [f((3, 50))], {"k": 5}),
        ("top_k", [f((1, 66))], {"k": 65, "largest": False}),
        ("max_pool_indices", [f((2, 3, 9, 10))], pool),
    ]


@pytest.mark.parametrize("case", small_nests(), ids=lambda c: c[0])
def test_the_nest_means_the_operator_and_prints(case):
    """The loop nest, interpreted: accesses in bounds, nothing read before it is written; its text parses back."""
    graph, feed, _ = module_of([case])
    expected = list(interpret(graph, feed).values())
    (nest,) = tw.compile(graph, stop_after="schedule", threads=2).state.nests.values()
    assert parse_nest(format_nest(nest)) == nest
    got = interpret_nest(nest, {p.name: x for p, x in zip(nest.params, feed.values(), strict=False)})
    for y, want in zip(got.values(), expected, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i8", "ui8"])
def test_max_pool_indices(dtype):
    rng = np.random.default_rng(5)
    shapes = [
        ((2, 3, 9, 10), {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2)}),
        ((2, 3, 40), {"kernel": (3,), "strides": (2,), "pads": (1, 0), "dilations": (1,), "ceil_mode": True}),
        ((1, 2, 5, 6, 7), {"kernel": (2, 2, 2), "strides": (1, 2, 3), "pads": (0, 1) * 3, "dilations": (1, 1, 1)}),
    ]
    todo = [("max_pool_indices", [numbers(rng, s, dtype)], {**a, "order": o}) for s, a in shapes for o in (0, 1)]
    assert not wrong(todo, threads=3)


def test_clipping_keeps_nan_and_infinities():
    """A maximum beside a constant is one instruction, whose operands have an order."""
    x = te.placeholder((40,), "x")
    kernel = te.kernel(te.compute((40,), lambda i: te.minimum(te.maximum(x[i], 0.0), 6.0), "y"))
    given = np.linspace(-3, 9, 40, dtype=np.float32)
    given[[3, 5, 17, 18, 39]] = np.nan, -0.0, np.inf, -np.inf, np.nan
    for s in (tw.Schedule(kernel), schedule(kernel, find("cpu").describe()).schedule):
        np.testing.assert_array_equal(s.build(threads=1)(given), np.clip(given, 0, 6))
