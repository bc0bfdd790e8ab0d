"""Every operator on samples: type rule, reference and lowering agree, for all floats and with unknown dimensions."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from torch_mlir import ir
from torch_mlir.dialects import func

import tilewright.ops  # noqa: F401  (registers the operators)
from tilewright.ir import dialect
from tilewright.ir.context import use
from tilewright.ir.dialect import OPERATORS
from tilewright.ir.graph import Graph
from tilewright.ir.types import DTYPES, NUMPY, Type, from_array
from tilewright.support.errors import OpError
from tilewright.tensor.lower import lower

run_linalg = runpy.run_path(str(Path(__file__).with_name("linalg_reference.py")))["run_linalg"]


def f(*shape, low=-2.0, high=2.0):
    rng = np.random.default_rng(sum(shape) + 7)
    return rng.uniform(low, high, shape).astype(np.float32)


def i(*shape, low=0, high=4, dtype=np.int64):
    return np.random.default_rng(sum(shape) + 3).integers(low, high, shape).astype(dtype)


def truth(*shape):
    return i(*shape, high=2).astype(bool)


X = f(2, 3, 4)
#: two tokens of a sequence, and the last three of eleven
RAGGED = [np.array(x, np.int32) for x in ([0, 2, 5], [2, 11])]
IMAGE = f(2, 4, 6, 5)
WINDOW = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2)}
CONV = {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (1, 2)}
PLAIN_CONV = {"strides": (2, 1), "pads": (1, 0, 1, 1), "dilations": (2, 1)}
POINT_CONV = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
BYTES = i(2, 4, 6, 5, low=-128, high=128, dtype=np.int8)
SUMS = i(2, 4, 6, low=-99999, high=99999, dtype=np.int32)
MULTIPLIERS = i(4, low=1 << 30, high=(1 << 31) - 1, dtype=np.int32)
HALVING = np.int32([1 << 30, 3 << 29, 5 << 28, 0x7FFFFFFF])  # many products end in exact halves
NARROW_TO = {"to": "i8", "zero": 3, "low": -100, "high": 120, "axis": 1}
ADD_TO = {"to": "i8", "zero": -3, "low": -100, "high": 120}
C4 = [f(4, low=0.5), f(4), f(4), f(4, low=0.5)]
#: starts, initial and keep of two sequences, the second from a snapshot that it writes in the end
POOLED = [np.int32(a) for a in ([0, 2, 6], [-1, 3], [-1, 1, -1, 0, -1, 3])]

#: operator -> samples of (operands, attributes)
SAMPLES: dict[str, list[tuple[list, dict]]] = {
    **{
        name: [([X], {})]
        for name in [
            "abs",
            "neg",
            "sign",
            "cbrt",
            "exp",
            "exp2",
            "expm1",
            "tanh",
            "erf",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "asinh",
            "floor",
            "ceil",
            "round",
            "sigmoid",
            "relu",
            "hard_swish",
            "softplus",
            "softsign",
            "mish",
            "is_nan",
            "gelu",
            "silu",
            "hard_sigmoid",
            "elu",
            "selu",
            "celu",
            "thresholded_relu",
            "leaky_relu",
            "shrink",
        ]
    },
    **{name: [([f(2, 3, low=0.1)], {})] for name in ("log", "log10", "log1p", "log2", "sqrt", "rsqrt", "reciprocal")},
    **{name: [([f(2, 3, low=-0.9, high=0.9)], {})] for name in ("asin", "acos", "atan", "atanh")},
    "acosh": [([f(2, 3, low=1.1)], {})],
    **{
        name: [([X, f(3, 1)], {}), ([i(2, 3, low=-9, high=9), i(3, low=-3, high=3)], {})]
        for name in [
            "add",
            "sub",
            "mul",
            "div",
            "max",
            "min",
            "less",
            "less_equal",
            "greater",
            "greater_equal",
            "equal",
        ]
    },
    "mod": [
        ([i(40, low=-9, high=9), i(40, low=-4, high=4)], {"fmod": False}),
        ([i(40, low=-9, high=9), i(40, low=-4, high=4)], {"fmod": True}),
        ([i(40, high=9, dtype=np.uint8), i(40, high=4, dtype=np.uint8)], {}),
        ([f(20), f(20)], {}),
        ([f(20), f(20)], {"fmod": True}),
    ],
    "pow": [([f(2, 3, low=0.1), f(3)], {}), ([i(20, low=-4, high=5), i(20, high=9)], {})],
    **{name: [([i(9), i(9)], {}), ([truth(9), truth(9)], {})] for name in ("and", "or", "xor")},
    "not": [([i(9)], {}), ([truth(9)], {})],
    "shift_left": [([i(9, dtype=np.int32), i(9, low=-1, high=40, dtype=np.int32)], {})],
    "shift_right": [
        ([i(9, low=-90, high=90, dtype=np.int32), i(9, low=-1, high=40, dtype=np.int32)], {}),
        ([i(9, high=90, dtype=np.uint8), i(9, high=12, dtype=np.uint8)], {}),
    ],
    "is_inf": [
        ([np.array([1, np.inf, -np.inf, np.nan], np.float32)], {"negative": n, "positive": p})
        for n in (True, False)
        for p in (True, False)
    ],
    "where": [([truth(2, 1, 4), X, f(4)], {})],
    "formula": [
        ([X, f(4)], {"body": ("abs x0", "max s0 x1", "log s1", "less x1 0.25", "where s3 -1.5 s2")}),
        ([X], {"body": ("less x0 0.25",)}),
    ],
    "clip": [([X], {"low": -0.5, "high": 0.75}), ([X], {"high": 0.5}), ([i(9)], {"low": 1.0})],
    "cast": [([X], {"to": "i32"}), ([X], {"to": "f64"}), ([truth(4)], {"to": "f32"}), ([i(9)], {"to": "ui8"})],
    "prelu": [([X, f(3, 1)], {})],
    "matmul": [([X, f(4, 5)], {}), ([f(4), f(4, 3)], {}), ([f(5, 1, 2, 3), X], {}), ([f(6), f(6)], {})],
    "einsum": [
        ([X, f(4, 5)], {"equation": "bij,jk->bik"}),
        ([f(3, 3)], {"equation": "ii->i"}),
        ([X], {"equation": "abc->ca"}),
        ([f(2, 3), f(3, 4), f(4, 2)], {"equation": "ij,jk,kl->il"}),
    ],
    "conv": [
        ([IMAGE, f(6, 4, 3, 2), f(6)], CONV),
        ([IMAGE, f(6, 2, 3, 2)], {**CONV, "groups": 2}),
        ([IMAGE, f(4, 1, 3, 2), f(4)], {**CONV, "groups": 4}),
        ([IMAGE, f(8, 1, 3, 2)], {**CONV, "groups": 4}),
        ([f(1, 1, 6, 5), f(3, 1, 3, 2)], CONV),
        ([f(2, 3, 9), f(4, 3, 3)], {"strides": (2,), "pads": (1, 1), "dilations": (1,)}),
        ([f(1, 2, 4, 5, 3), f(3, 2, 2, 2, 2)], {"strides": (1,) * 3, "pads": (0,) * 6, "dilations": (1,) * 3}),
    ],
    "conv_transpose": [
        ([IMAGE, f(4, 3, 3, 2), f(3)], {**CONV, "output_padding": (1, 0)}),
        ([IMAGE, f(4, 3, 3, 2)], {**CONV, "output_padding": (0, 0), "groups": 2}),
        ([f(2, 3, 5), f(3, 2, 2)], {"strides": (3,), "pads": (2, 2), "dilations": (1,), "output_padding": (2,)}),
    ],
    "max_pool": [
        ([IMAGE], WINDOW),
        ([IMAGE], {**WINDOW, "ceil_mode": True}),
        ([i(1, 2, 6, 5, dtype=np.uint8)], WINDOW),
    ],
    "max_pool_indices": [([IMAGE], WINDOW), ([IMAGE], {**WINDOW, "order": 1})],
    "avg_pool": [
        ([IMAGE], {**WINDOW, "ceil_mode": c, "count_include_pad": p}) for c in (False, True) for p in (False, True)
    ],
    "lp_pool": [([IMAGE], {**WINDOW, "p": p}) for p in (1, 2, 3)],
    "batch_norm": [([IMAGE, *C4], {"epsilon": 1e-3})],
    "layer_norm": [([X, f(4), f(4)], {}), ([X, f(3, 4)], {"axis": 1}), ([X], {"axis": 0})],
    "rms_norm": [([X, f(4)], {}), ([X], {"axis": 1})],
    "group_norm": [([IMAGE, C4[0], C4[1]], {"groups": g}) for g in (1, 2, 4)],
    "lrn": [([IMAGE], {"size": s}) for s in (3, 4)],
    "lp_norm": [([X], {"axis": 1, "p": p}) for p in (1, 2)],
    **{name: [([X], {"axis": 1}), ([X], {})] for name in ("softmax", "log_softmax", "hardmax")},
    "attention": [
        ([f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6)], {"scale": 0.3}),
        ([f(2, 4, 3, 8), f(2, 4, 5, 8), f(2, 4, 5, 8), f(3, 5)], {"scale": 0.3, "causal": True, "offset": 2}),
        ([f(1, 2, 3, 4), f(1, 1, 3, 4), f(1, 1, 3, 4)], {"scale": 0.5, "causal": True, "offset": -1}),
    ],
    "paged_attention": [
        ([f(2, 4, 3, 8), f(5, 4, 2, 8), f(5, 4, 2, 6), i(2, 3, low=-2)], {"scale": 0.3}),
        ([f(2, 4, 2, 8), f(5, 4, 4, 8), f(5, 4, 4, 8), i(2, 3, high=5), i(2, low=2, high=12)], {"scale": 0.3}),
        ([f(1, 2, 3, 4), f(2, 2, 1, 4), f(2, 2, 1, 4), i(1, 3, high=2), i(1, low=3), f(3, 6)], {"scale": 0.5}),
    ],
    "rotary": [([f(3, 2, 10), f(3, 4), f(3, 4, low=-1.0)], {"interleaved": x}) for x in (False, True)]
    + [([f(5, 1, 64), f(5, 32), f(5, 32, low=-1.0)], {})],
    "write_pages": [
        ([f(5, 4, 2, 6), f(4, 2, 6), np.array([7, -1, 19, 0], np.int32)], {}),
        ([f(3, 4), f(2), np.array([12, 11], np.int32)], {}),
    ],
    "ragged_attention": [
        (
            [f(5, 4, 8), f(6, 4, 2, 8), f(6, 4, 2, 6), i(2, 3, high=6, dtype=np.int32), *RAGGED, f(4)],
            {"scale": 0.3, "window": 3, "softcap": 5.0},
        ),
    ],
    "ragged_conv": [
        ([f(6, 20), f(4, 20), f(5, 3, 20), *POOLED, *bias], {"silu": bool(bias)}) for bias in ([], [f(20)])
    ],
    "expert_order": [([i(5, 2, high=6, dtype=d)], {"count": 6}) for d in (np.int32, np.int64)],
    "expert_matmul": [
        ([f(5, 7), f(6, 9, 7), np.int32([0, 0, 5, 6, 6, 9, 10]), i(10, high=5, dtype=np.int32)], {}),
        ([f(3, 7), f(2, 36, 7), np.int32([0, 1, 3])], {}),
    ],
    "reshape": [
        ([X], {"shape": (4, -1)}),
        ([f(1, 1)], {"shape": ()}),
        ([f()], {"shape": (1, 1)}),
        ([X], {"shape": (24,)}),
    ],
    "transpose": [([X], {"permutation": (2, 0, 1)})],
    "expand": [([f(3, 1)], {"shape": (2, 3, 4)}), ([f()], {"shape": (2,)})],
    "concat": [([X, f(2, 1, 4), f(2, 2, 4)], {"axis": 1})],
    "split": [([X], {"sizes": (1, 3), "axis": 2}), ([X], {"sizes": (1, 1, 0, 1), "axis": -2})],
    "slice": [
        ([X], {"starts": (1, 2, 3), "sizes": (1, 2, 4), "steps": (1, -2, -1)}),
        ([f(9)], {"starts": (1,), "sizes": (4,), "steps": (2,)}),
        ([f(9)], {"starts": (3,), "sizes": (0,), "steps": (1,)}),
    ],
    "pad": [
        ([X], {"low": (0, 1, 2), "high": (1, 0, 1), "mode": mode, "value": 2.0})
        for mode in ("constant", "reflect", "edge", "wrap")
    ],
    "tile": [([X], {"repeats": (2, 1, 3)})],
    "depth_to_space": [([f(1, 8, 2, 3)], {"block": 2, "mode": m}) for m in ("DCR", "CRD")],
    "space_to_depth": [([f(1, 2, 4, 6)], {"block": 2, "mode": m}) for m in ("DCR", "CRD")],
    **{
        f"reduce_{name}": [
            ([X], {"axes": (0, 2)}),
            ([X], {"axes": (-1,), "keepdims": True}),
            ([X], {"axes": (0, 1, 2)}),
        ]
        for name in ["sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum_exp"]
    },
    "reduce_log_sum": [([f(2, 3, low=0.5)], {"axes": (1,)})],
    "reduce_any": [([truth(2, 3)], {"axes": (1,)})],
    "reduce_all": [([truth(2, 3)], {"axes": (1,), "keepdims": True})],
    **{
        name: [
            (
                [
                    i(3, 5),
                ],
                {"axis": 1, "keepdims": k, "last": last},
            )
            for k in (False, True)
            for last in (False, True)
        ]
        + [([f(3, 1)], {"axis": 1}), ([np.array([[1, np.nan, 2, np.nan]], np.float32)], {"axis": 1})]
        for name in ("arg_max", "arg_min")
    },
    "cumsum": [([X], {"axis": 1, "exclusive": e, "reverse": r}) for e in (False, True) for r in (False, True)]
    + [([i(6)], {"axis": 0, "exclusive": True})],
    "gather": [
        ([X, i(2, 2, low=-3, high=3)], {"axis": 1}),
        ([X, i(high=2)], {"axis": 0}),
        ([X, i(3, low=-9, high=9)], {"axis": -1}),
    ],
    "gather_elements": [([X, i(2, 2, 4, low=-3, high=3)], {"axis": 1}), ([X, i(1, 3, 9)], {"axis": 2})],
    "gather_nd": [([X, i(5, 2, low=-2, high=2)], {}), ([X, i(2, 3, 1, low=-3, high=3)], {"batch": 1})],
    "scatter_nd": [
        ([X, np.array([[0, 1], [1, -1], [0, 1]]), f(3, 4)], {"reduction": r})
        for r in ("none", "add", "mul", "max", "min")
    ],
    "scatter_elements": [
        ([X, i(2, 2, 3, low=-3, high=3), f(2, 2, 3)], {"axis": 1, "reduction": r})
        for r in ("none", "add", "mul", "max", "min")
    ],
    "top_k": [([i(3, 7)], {"k": 4, "axis": 1, "largest": g}) for g in (True, False)]
    + [([np.array([1, np.nan, 3, -np.inf, np.nan], np.float32)], {"k": 5, "largest": g}) for g in (True, False)],
    "one_hot": [([i(2, 3, low=-5, high=6), f(2)], {"depth": 4, "axis": a}) for a in (-1, 0, 1)],
    "trilu": [([X], {"upper": u, "k": k}) for u in (True, False) for k in (-1, 0, 1)],
    "resample": [([X, i(5, 2, high=3), f(5, 2)], {"axis": 1})],
    "quantize_linear": [
        ([X, f(low=0.1, high=0.2), i(high=9, dtype=np.uint8)], {"to": "ui8"}),
        ([f(3, 4, high=99.0), f(4, low=0.1)], {"to": "i8", "axis": 1}),
        ([f(2, 6), f(2, 3, low=0.1), i(2, 3, high=9, dtype=np.int8)], {"to": "i8", "axis": 1, "block": 2}),
    ],
    "integer_conv": [
        ([BYTES, i(6, 4, 3, 2, low=-99, high=99, dtype=np.int8)], {**CONV, "pad_value": 3}),
        ([BYTES, i(4, 1, 3, 2, low=-99, high=99, dtype=np.int16)], {**CONV, "groups": 4, "pad_value": -7}),
        ([BYTES, i(6, 4, 3, 2, low=-9, dtype=np.int8)], PLAIN_CONV),
        ([BYTES, i(6, 4, 1, 1, low=-9, dtype=np.int8)], POINT_CONV),
    ],
    "integer_matmul": [
        ([BYTES, i(5, 7, low=-99, high=99, dtype=np.int8)], {}),
        ([BYTES.view(np.uint8), i(5, 7, low=-300, high=300, dtype=np.int16)], {}),
    ],
    "reduce_bytes": [
        (
            [
                BYTES,
            ],
            {"axes": (2, 3), "keepdims": k},
        )
        for k in (True, False)
    ],
    "requantize": [
        ([SUMS, i(4, low=-999, high=999, dtype=np.int32), MULTIPLIERS, i(4, high=9, dtype=np.int32)], NARROW_TO),
        ([SUMS, np.int32(5), np.int32(1 << 30), np.int32(2), np.int32(1), np.int32(16), np.int32(5)], NARROW_TO),
        ([SUMS, np.int32(5), np.int32(1 << 30), np.int32(9)], {**NARROW_TO, "left": 6, "to": "ui8", "low": 0}),
        ([SUMS % 401 - 200, np.int32(5), HALVING, np.int32([0, 1, 2, 3])], {**NARROW_TO, "left": 1, "even": True}),
    ],
    "integer_add": [
        ([BYTES, BYTES[:, :1]], {"mx": 900001, "my": -700001, "offset": 12345, "shift": 20, **ADD_TO}),
        ([BYTES, BYTES.view(np.uint8)], {"mx": 1 << 19, "my": 1 << 18, "offset": 0, "shift": 20, **ADD_TO}),
    ],
    "lookup": [([b, i(256, low=-99, high=99, dtype=np.int8)], {}) for b in (BYTES, BYTES.view(np.uint8))],
    "flip_sign": [([b], {}) for b in (BYTES, BYTES.view(np.uint8))],
    "dequantize_linear": [
        ([i(3, 4, dtype=np.uint8), f(low=0.1), i(high=9, dtype=np.uint8)], {}),
        ([i(3, 4, dtype=np.int8), f(4, low=0.1)], {"axis": 1}),
        ([i(2, 5, dtype=np.int8), f(2, 3, low=0.1)], {"axis": 1, "block": 2}),
    ],
}

CASES = [
    pytest.param(n, xs, attrs, id=f"{n}-{k}") for n, s in sorted(SAMPLES.items()) for k, (xs, attrs) in enumerate(s)
]


#: operators without a sample here: they run natively in test_native, in ONNX's own cases (tests/conformance), or in
#: tests/targets/test_split_attention.py
BY_CONFORMANCE = {
    "rnn", "gru", "lstm", "cumprod", "roi_align", "col2im", "bitcast", "random", "non_zero", "tree_leaves",
    "non_max_suppression", "append", "arange", "det", "grid_sample", "deform_columns", "winograd_conv",
    "attention_parts", "paged_attention_parts", "attention_join", "gated_linear_attention",
}  # fmt: skip


def test_every_operator_has_a_sample():
    elsewhere = {
        "quantize_blocks",
        "block_matmul",
        "block_lookup",
        "integer_block_matmul",
        "write_quantized_pages",
        "ragged_attention_parts",
    }  # test_block_matmul, test_ragged_attention
    elsewhere |= {"expert_block_matmul", "expert_integer_block_matmul"}  # tests/llm/test_recurrent_ops.py
    elsewhere |= {"if", "loop", "yield"}  # tests/unit/graph/test_control_flow.py
    assert set(OPERATORS) - set(SAMPLES) == {"constant", *elsewhere} | BY_CONFORMANCE


def attributes(name, attrs):
    return {**OPERATORS[name].attributes, **attrs}


def reference(name, xs, attrs):
    with np.errstate(all="ignore"):
        out = OPERATORS[name].reference(*xs, **attributes(name, attrs))
    return [np.asarray(a) for a in dialect.as_list(out)]


def graph_of(name, xs, attrs) -> Graph:
    """A graph of one operator applied to the function's arguments."""
    with use():
        graph = Graph(ir.Module.create())
        types = [from_array(x).mlir() for x in xs]
        with ir.InsertionPoint(graph.module.body):
            main = func.FuncOp("main", (types, []))
            block = main.add_entry_block()
        with ir.InsertionPoint(block):
            results = dialect.create(name, *block.arguments, **attrs)
            func.ReturnOp(results)
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, [r.type for r in results]))
    graph.verify()
    return graph


def run_lowered(name, xs, attrs):
    lowered = lower(graph_of(name, xs, attrs))
    lowered.verify()
    return list(run_linalg(lowered, {f"arg{k}": x for k, x in enumerate(xs)}).values())


def close(actual, expected, tolerance=1e-5):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=tolerance, atol=tolerance)


def floats_to(xs, dtype):
    return [x.astype(NUMPY[dtype]) if x.dtype == np.float32 else x for x in xs]


@pytest.mark.parametrize("name, xs, attrs", CASES)
def test_type_reference_and_lowering_agree(name, xs, attrs):
    types = dialect.infer(OPERATORS[name], [from_array(x) for x in xs], attributes(name, attrs))
    expected = reference(name, xs, attrs)
    assert [from_array(e) for e in expected] == types
    close(run_lowered(name, xs, attrs), expected)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
@pytest.mark.parametrize("name, xs, attrs", CASES)
def test_other_float_types(name, xs, attrs, dtype):
    """References keep the dtype they are given; halves lower to the same up to a rounding or two."""
    converted = floats_to(xs, dtype)
    if all(a is b for a, b in zip(xs, converted, strict=True)):
        pytest.skip("no float operands")
    types = dialect.infer(OPERATORS[name], [from_array(x) for x in converted], attributes(name, attrs))
    expected = reference(name, converted, attrs)
    assert [from_array(e) for e in expected] == types
    close(run_lowered(name, converted, attrs), expected, {"f64": 1e-12, "f16": 4e-3, "bf16": 3e-2}[dtype])


@pytest.mark.parametrize("name, xs, attrs", CASES)
def test_unknown_dimensions(name, xs, attrs):
    """With any one dimension unknown the type rule still answers, and never contradicts the static answer."""
    types = [from_array(x) for x in xs]
    static = dialect.infer(OPERATORS[name], types, attributes(name, attrs))
    for k, t in enumerate(types):
        for d in range(t.rank):
            given = [*types]
            given[k] = t.with_shape([None if j == d else n for j, n in enumerate(t.shape)])
            try:
                result = dialect.infer(OPERATORS[name], given, attributes(name, attrs))
            except OpError as e:
                # how many dimensions an address has must be known
                assert name in ("gather_nd", "scatter_nd") and (
                    "does not fit" in str(e) or "does not address" in str(e)
                )
                continue
            for got, want in zip(result, static, strict=True):
                assert got.dtype == want.dtype and got.rank == want.rank
                assert all(g is None or g == w for g, w in zip(got.shape, want.shape, strict=True))


# ---- layouts -------------------------------------------------------------------------------------------------------

LAYOUTS = [c for c in CASES if "layout" in OPERATORS[c.values[0]].attributes]


@pytest.mark.parametrize("name, xs, attrs", LAYOUTS)
def test_channels_last(name, xs, attrs):
    expected = np.moveaxis(reference(name, xs, attrs)[0], 1, -1)
    last = [np.ascontiguousarray(np.moveaxis(xs[0], 1, -1)), *xs[1:]]
    attrs = {**attrs, "layout": "nhwc"}
    close(reference(name, last, attrs), [expected])
    close(run_lowered(name, last, attrs), [expected])


def loops(graph, reductions):
    """Iterator kinds and result maps of the linalg.generic operations that reduce (or not)."""
    with use():
        generics = [op for op in graph.operations() if op.name == "linalg.generic"]
        return [op for op in generics if ("reduction" in str(op.attributes["iterator_types"])) == reductions]


def test_depthwise_loops_have_no_dimension_of_one():
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 4, "layout": "nhwc"}
    (conv,) = loops(lower(graph_of("conv", [f(1, 6, 5, 4), f(4, 1, 3, 3)], attrs)), True)
    maps = str(conv.attributes["indexing_maps"])
    assert "(d0, d1, d2, d3, d4, d5) -> (d4, d5, d3)" in maps  # weights [kh, kw, C]
    assert "(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3)" in maps


def test_channels_last_weights_have_output_channels_innermost():
    attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "layout": "nhwc"}
    (conv,) = loops(lower(graph_of("conv", [f(1, 6, 5, 4), f(8, 4, 3, 3)], attrs)), True)
    # loops n, oy, ox, oc, kh, kw, ic
    assert "(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)" in str(conv.attributes["indexing_maps"])


# ---- type rules refuse ---------------------------------------------------------------------------------------------

T = Type
REFUSED = [
    ("add", [T((2, 3), "f32"), T((2, 4), "f32")], {}, "do not broadcast"),
    ("add", [T((2,), "f32"), T((2,), "i32")], {}, "different dtypes"),
    ("add", [T((2,), "i1"), T((2,), "i1")], {}, "needs number operands"),
    ("exp", [T((2,), "i32")], {}, "needs float operands"),
    ("where", [T((2,), "f32"), T((2,), "f32"), T((2,), "f32")], {}, "needs bool operands"),
    ("matmul", [T((2, 3), "f32"), T((4, 5), "f32")], {}, "inner dimensions differ: 3"),
    ("conv", [T((1, 3, 8, 8), "f32"), T((4, 5, 3, 3), "f32")], CONV, "need 5 channels"),
    ("conv", [T((1, 3, 2, 2), "f32"), T((4, 3, 5, 5), "f32")], CONV, "larger than the padded"),
    ("conv", [T((1, 3, 8, 8), "f32"), T((4, 3, 3, 3), "f32")], {**CONV, "layout": "nwhc"}, "layout is"),
    ("max_pool", [T((1, 3, 8, 8), "f32")], {**WINDOW, "strides": (1,)}, "needs kernel, strides"),
    ("softmax", [T((2, 3), "f32")], {"axis": 2}, "axis 2 is out of range for rank 2"),
    ("reshape", [T((2, 3), "f32")], {"shape": (4, 2)}, "do not fit shape"),
    ("transpose", [T((2, 3), "f32")], {"permutation": (0, 0)}, "not a permutation"),
    ("concat", [T((2, 3), "f32"), T((3, 3), "f32")], {"axis": 1}, "dimension 0 differs"),
    ("split", [T((2, 3), "f32")], {"sizes": (1, 1), "axis": 1}, "do not add up"),
    ("slice", [T((4,), "f32")], {"starts": (2,), "sizes": (3,), "steps": (1,)}, "elements 2 to 4 are outside"),
    ("pad", [T((4,), "f32")], {"low": (-1,), "high": (0,)}, "need one entry >= 0"),
    ("gather", [T((4,), "f32"), T((2,), "f32")], {}, "indices are i64 or i32"),
    ("gather", [T((0, 4), "f32"), T((2,), "i64")], {}, "is empty"),
    ("top_k", [T((4,), "f32")], {"k": 5}, "does not fit"),
    (
        "attention",
        [T((1, 3, 4, 8), "f32"), T((1, 2, 4, 8), "f32"), T((1, 2, 4, 8), "f32")],
        {"scale": 1.0},
        "do not divide",
    ),
    (
        "winograd_conv",
        [T((1, 8, 8, 16), "f32"), T((36, 16, 16), "f32")],
        {"tile": 4, "size": (7, 7)},
        "need an input of .10, 10",
    ),
    ("cast", [T((4,), "f32")], {"to": "f8"}, "unknown dtype"),
    ("reduce_sum", [T((4,), "f32")], {"axes": (0, -1)}, "twice"),
    ("formula", [T((4,), "f32")], {"body": ("exp x0", "add s1 1.0")}, "reads s1, which is not computed yet"),
    ("formula", [T((4,), "f32")], {"body": ("add x0 x1",)}, "more than its 1 operands"),
    ("formula", [T((4,), "f32")], {"body": ("add x0",)}, "wrong number of operands"),
    ("formula", [T((4,), "f32")], {"body": ("add x0 half",)}, "'half' is no number, x0 or s0"),
    ("formula", [T((4,), "f32")], {"body": ("softmax x0",)}, "names no elementwise operator"),
]


@pytest.mark.parametrize("name, types, attrs, message", REFUSED)
def test_refused(name, types, attrs, message):
    with pytest.raises(OpError, match=message):
        dialect.infer(OPERATORS[name], types, attributes(name, attrs))


# ---- corners -------------------------------------------------------------------------------------------------------


def test_integer_division_never_traps():
    low = np.iinfo(np.int64).min
    x, y = np.array([7, -7, low, 5, 0]), np.array([-2, 2, -1, 0, 0])
    expected = [np.array([-3, -3, low, 0, 0])]
    close(reference("div", [x, y], {}), expected)
    close(run_lowered("div", [x, y], {}), expected)
    close(run_lowered("mod", [x, y], {}), [np.array([-1, 1, 0, 0, 0])])


def test_softmax_of_large_numbers_and_masked_rows():
    x = np.array([[1e4, 1e4, -np.inf], [-np.inf, 0, -np.inf]], np.float32)
    close(run_lowered("softmax", [x], {}), [np.array([[0.5, 0.5, 0], [0, 1, 0]], np.float32)])
    big = np.array([[1000.0, 1000.0]], np.float32)
    close(run_lowered("reduce_log_sum_exp", [big], {"axes": (1,)}), [np.array([1000 + np.log(2)], np.float32)])


def test_attention_of_a_fully_masked_query_is_zero():
    q, k, v = f(1, 1, 2, 4), f(1, 1, 3, 4), f(1, 1, 3, 4)
    mask = np.array([[0, 0, 0], [-np.inf] * 3], np.float32)
    for out in (
        reference("attention", [q, k, v, mask], {"scale": 0.5}),
        run_lowered("attention", [q, k, v, mask], {"scale": 0.5}),
    ):
        assert np.isfinite(out[0]).all() and not out[0][0, 0, 1].any()


def test_dtypes_of_references_are_known():
    for name, samples in SAMPLES.items():
        for xs, attrs in samples:
            assert all(r.dtype in DTYPES for r in reference(name, xs, attrs)), name
