"""The import of ONNX graphs: names, shapes, folding, functions, control flow, old opsets."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser
from support.onnx_models import model as make
from support.onnx_models import value

from tilewright.frontends.onnx import load, supported
from tilewright.graph.interpret import interpret
from tilewright.ir.context import use
from tilewright.ir.dialect import mnemonic

F = TensorProto.FLOAT


def text(source):
    return parser.parse_model(source)


def operators(graph):
    return [name for op in graph.operations() if (name := mnemonic(op)) and name != "constant"]


def against_onnxruntime(model, **inputs):
    expected = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, inputs
    )
    outputs = interpret(load(model, inputs={k: v.shape for k, v in inputs.items()}), inputs)
    for actual, want in zip(outputs.values(), expected, strict=True):
        assert actual.dtype == want.dtype
        np.testing.assert_allclose(actual, want, rtol=1e-5, atol=1e-6)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- names and locations ----


def test_names_and_locations():
    nodes = [helper.make_node("Relu", ["x"], ["t"], "first"), helper.make_node("Exp", ["t"], ["y"])]
    graph = load(make(nodes, [value("x", [3])], [value("y", [3])]))
    assert [n for n, _ in graph.inputs()] == ["x"] and [n for n, _ in graph.outputs()] == ["y"]
    with use():
        locations = [str(op.location) for op in graph.operations()]
    assert locations[:2] == ['loc("first")', 'loc("Exp_y")']


def test_an_input_as_output_and_a_constant_output():
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["z"])]
    c = np.arange(40, dtype=np.float32)
    graph = load(make(nodes, [value("x", [3])], [value("y", [3]), value("z", [40])], constants={"c": c}))
    out = interpret(graph, {"x": random(3)})
    np.testing.assert_array_equal(out["y"], random(3))
    np.testing.assert_array_equal(out["z"], c)


# ---- shapes ----


def test_symbolic_dimensions_are_bound_by_name():
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    model = make(nodes, [value("a", ["n", 4]), value("b", ["n", 4])], [value("y", ["n", 4])])
    graph = load(model, inputs={"a": (3, 4)})
    assert [t.dims for _, t in graph.inputs()] == [(3, 4), (3, 4)]


def test_an_array_fixes_an_input():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = make(nodes, [value("x", [2, 6]), value("shape", [2], TensorProto.INT64)], [value("y", None)])
    graph = load(model, inputs={"shape": np.array([3, -1])})
    assert [n for n, _ in graph.inputs()] == ["x"]
    assert graph.outputs()[0][1].dims == (3, 4)


def test_shape_arithmetic_is_folded():
    model = text("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[2, 3, 4] x) => (float[a, b] y) {
            s = Shape (x)
            zero = Constant <value_ints: ints = [0]> ()
            n = Gather <axis: int = 0> (s, zero)
            minus = Constant <value_ints: ints = [-1]> ()
            shape = Concat <axis: int = 0> (n, minus)
            y = Reshape (x, shape)
        }""")
    graph = load(model)
    assert operators(graph) == ["reshape"]
    assert graph.outputs()[0][1].dims == (2, 12)


def test_large_constants_are_known_but_not_folded():
    """A mask of 5000 elements stays an operator, yet what depends on its values can be imported."""
    model = text("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[5000] x) => (float[k] y) {
            zero = Constant <value_int: int = 0> ()
            limit = Constant <value_int: int = 5000> ()
            one = Constant <value_int: int = 1> ()
            at = Range (zero, limit, one)
            last = Constant <value_int: int = 4990> ()
            keep = Greater (at, last)
            y = Compress <axis: int = 0> (x, keep)
        }""")
    x = random(5000)
    np.testing.assert_array_equal(interpret(load(model), {"x": x})["y"], x[4991:])


# ---- functions ----


def test_model_functions_with_attributes():
    function = helper.make_function(
        "local",
        "Scaled",
        ["x"],
        ["y"],
        [
            helper.make_node("LeakyRelu", ["x"], ["t"], "leak"),
            helper.make_node("Elu", ["t"], ["y"], "elu"),
        ],
        [helper.make_opsetid("", 18)],
        ["alpha"],
    )
    reference = function.node[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "alpha", onnx.AttributeProto.FLOAT
    nodes = [helper.make_node("Scaled", ["x"], ["y"], "call", domain="local", alpha=0.25)]
    graph = load(make(nodes, [value("x", [2])], [value("y", [2])], functions=[function]))
    out = interpret(graph, {"x": np.array([-4.0, 3.0], np.float32)})["y"]
    np.testing.assert_allclose(out, [np.expm1(-1), 3], rtol=1e-6)
    with use():
        assert "call/leak" in str(next(iter(graph.operations())).location)


def test_operators_defined_as_functions_are_expanded():
    model = make(
        [helper.make_node("MeanVarianceNormalization", ["x"], ["y"])], [value("x", [2, 3, 4, 4])], [value("y", None)]
    )
    x = random(2, 3, 4, 4)
    axes = (0, 2, 3)
    expected = (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)
    np.testing.assert_allclose(interpret(load(model), {"x": x})["y"], expected, rtol=1e-3, atol=1e-4)
    assert "MeanVarianceNormalization" not in supported()


# ---- control flow ----

BRANCHES = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[3] x{extra}) => (float[3] y) {{
        {condition}
        y = If (c) <
            then_branch = a () => (float[3] t) {{ t = Exp (x) }},
            else_branch = b () => (float[3] e) {{ e = Neg (x) }}
        >
    }}"""


@pytest.mark.parametrize("taken", [0, 1])
def test_constant_if_keeps_one_branch(taken):
    condition = f"i = Constant <value_int: int = {taken}> () c = Cast <to: int = 9> (i)"
    graph = load(text(BRANCHES.format(extra="", condition=condition)))
    assert operators(graph) == (["exp"] if taken else ["neg"])


@pytest.mark.parametrize("taken", [False, True])
def test_if_on_data_selects(taken):
    model = text(BRANCHES.format(extra=", bool c", condition=""))
    out = interpret(load(model), {"x": random(3), "c": np.array(taken)})["y"]
    np.testing.assert_allclose(out, np.exp(random(3)) if taken else -random(3), rtol=1e-6)


def test_loop_is_unrolled():
    model = text("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x) => (float[2] y, float[3, 2] all) {
            n = Constant <value_int: int = 3> ()
            y, all = Loop (n, , x) <
                body = b (int64 i, bool c, float[2] s) => (bool again, float[2] t, float[2] item) {
                    again = Identity (c)
                    t = Add (s, x)
                    item = Identity (t)
                }
            >
        }""")
    x = random(2)
    out = interpret(load(model), {"x": x})
    np.testing.assert_allclose(out["y"], 4 * x, rtol=1e-6)
    np.testing.assert_allclose(out["all"], np.stack([2 * x, 3 * x, 4 * x]), rtol=1e-6)


def test_concat_of_many_different_shapes():
    xs = [random(1, i + 1, seed=i) for i in range(40)]
    nodes = [helper.make_node("Concat", [f"x{i}" for i in range(40)], ["y"], axis=1)]
    model = make(nodes, [value(f"x{i}", list(x.shape)) for i, x in enumerate(xs)], [value("y", None)])
    out = interpret(load(model), {f"x{i}": x for i, x in enumerate(xs)})["y"]
    np.testing.assert_array_equal(out, np.concatenate(xs, 1))


# ---- versions of operators that the suite of the newest opset does not have ----

OLD = [
    (11, "Softmax", {"axis": 1}, {}, [(2, 3, 4)]),
    (11, "LogSoftmax", {"axis": 2}, {}, [(2, 3, 4)]),
    (11, "Squeeze", {"axes": [1]}, {}, [(2, 1, 4)]),
    (11, "Unsqueeze", {"axes": [0, 2]}, {}, [(2, 4)]),
    (11, "ReduceSum", {"axes": [1], "keepdims": 0}, {}, [(2, 3, 4)]),
    (13, "ReduceMean", {"axes": [-1]}, {}, [(2, 3, 4)]),
    (11, "ReduceMax", {"axes": [0, 2]}, {}, [(2, 3, 4)]),
    (11, "Split", {"axis": 1, "split": [1, 2]}, {}, [(2, 3)]),
    (9, "Slice", {"axes": [1], "starts": [-3], "ends": [9]}, {}, [(2, 5)]),
    (10, "Pad", {"pads": [0, 1, 0, 2], "mode": "edge"}, {}, [(2, 5)]),
    (10, "Clip", {"min": -0.5, "max": 0.25}, {}, [(2, 5)]),
    (9, "TopK", {"k": 2, "axis": -1}, {}, [(2, 5)]),
    (11, "TopK", {}, {"k": np.array([3])}, [(2, 5)]),
    (9, "Upsample", {"mode": "nearest"}, {"s": np.array([1, 1, 2, 3], np.float32)}, [(1, 2, 3, 3)]),
    (9, "Upsample", {"mode": "linear"}, {"s": np.array([1, 1, 2, 2], np.float32)}, [(1, 2, 3, 3)]),
    (10, "Resize", {"mode": "nearest"}, {"s": np.array([1, 1, 2, 0.5], np.float32)}, [(1, 2, 4, 4)]),
    (9, "BatchNormalization", {}, {k: np.abs(random(3, seed=i)) + 0.5 for i, k in enumerate("sbmv")}, [(2, 3, 4)]),
    (11, "Dropout", {"ratio": 0.3}, {}, [(2, 5)]),
    (9, "Gemm", {"transB": 1, "alpha": 0.5, "beta": 2.0}, {"b": random(4, 3), "c": random(4)}, [(2, 3)]),
    (9, "Flatten", {"axis": 2}, {}, [(2, 3, 4)]),
    (11, "Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"w": random(4, 3, 3, 3)}, [(1, 3, 7, 6)]),
    (11, "Conv", {"pads": [1, 0, 2, 1], "dilations": [2, 1], "group": 2}, {"w": random(4, 2, 3, 2)}, [(1, 4, 7, 6)]),
    (
        11,
        "ConvTranspose",
        {"strides": [2, 3], "group": 2, "pads": [1, 0, 0, 1]},
        {"w": random(4, 3, 3, 2)},
        [(1, 4, 3, 5)],
    ),
    (
        11,
        "ConvTranspose",
        {"strides": [3], "output_padding": [1], "dilations": [2]},
        {"w": random(2, 3, 3)},
        [(1, 2, 5)],
    ),
    (
        11,
        "MaxPool",
        {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 0, 1, 0]},
        {},
        [(1, 2, 6, 7)],
    ),
    (
        11,
        "AveragePool",
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 0, 1], "count_include_pad": 1},
        {},
        [(1, 2, 6, 8)],
    ),
    (12, "Einsum", {"equation": "...ij,...kj->...ik"}, {"b": random(2, 5, 4)}, [(2, 3, 4)]),
    (17, "LayerNormalization", {"axis": 1}, {"s": random(3, 4), "b": random(3, 4)}, [(2, 3, 4)]),
    (12, "ArgMax", {"axis": 1, "select_last_index": 1}, {}, [(3, 5)]),
]


@pytest.mark.parametrize(
    "opset, operator, attributes, constants, shapes", OLD, ids=lambda v: v if isinstance(v, str) else ""
)
def test_older_versions_against_onnxruntime(opset, operator, attributes, constants, shapes):
    inputs = {f"x{i}": random(*s, seed=i) for i, s in enumerate(shapes)}
    count = {"TopK": 2, "Split": 2}.get(operator, 1)
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(operator, [*inputs, *constants], outputs, **attributes)
    element = TensorProto.INT64 if operator == "ArgMax" else F
    declared = [
        value(o, None, TensorProto.INT64 if operator == "TopK" and i else element) for i, o in enumerate(outputs)
    ]
    model = make([node], [value(k, list(v.shape)) for k, v in inputs.items()], declared, constants, opset=opset)
    against_onnxruntime(model, **inputs)


def test_attention_with_cache_against_its_definition():
    """Opset 23 keeps attention whole; the function of the schema is the reference."""
    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 3, 8), "v": (2, 2, 3, 6), "past_k": (2, 2, 5, 8), "past_v": (2, 2, 5, 6)}
    inputs = {name: random(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    node = helper.make_node("Attention", ["q", "k", "v", "", "past_k", "past_v"], ["y", "pk", "pv"], is_causal=1)
    model = make(
        [node],
        [value(k, list(v.shape)) for k, v in inputs.items()],
        [value(n, None) for n in ("y", "pk", "pv")],
        opset=23,
    )
    graph = load(model)
    assert operators(graph) == ["concat", "concat", "attention"]
    out = interpret(graph, inputs)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    for actual, want in zip(out.values(), expected, strict=True):
        np.testing.assert_allclose(actual, want, rtol=1e-4, atol=1e-5)
