"""Floats to integers: what does not fit is one number, in vectors and out of them, folded, and of every source type."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

EDGES = [0.0, -0.0, 0.9, 1.5, -0.5, -1.0, -3.7, np.nan, np.inf, -np.inf, 127.0, 127.9, 128.0, -128.9, -129.0, 255.9]
EDGES += [
    256.0,
    300.0,
    32767.0,
    32768.0,
    -32769.0,
    65503.0,
    65536.0,
    2.0**31 - 256,
    2.0**31,
    -(2.0**31),
    -(2.0**31) - 512,
]
EDGES += [2.0**32 - 256, 2.0**32, 5e9, -5e9, 2.0**63, -(2.0**63), 1e19, 2.0**64, 1e30, -1e19, 70000.0]  # fmt: skip
FLOATS = {"FLOAT": np.float32, "DOUBLE": np.float64, "FLOAT16": np.float16}
INTEGERS = ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]


def wrapped(value, dtype):
    """What x86 makes of a float, in integers of Python."""
    bits, unsigned = max(32, 8 * np.dtype(dtype).itemsize), np.dtype(dtype).kind == "u"
    half = 1 << bits - 1
    whole = None if not np.isfinite(value) else int(value)
    if unsigned and 8 * np.dtype(dtype).itemsize == bits and (value == np.inf or (whole is not None and whole >= half)):
        made = 0 if whole is None or whole >= 2 * half else whole
    else:
        made = whole if whole is not None and -half <= whole < half else -half
    return np.array(made % (1 << 64), np.uint64).astype(dtype)


def limited(value, dtype):
    ends = np.iinfo(dtype)
    if np.isnan(value):
        return np.array(0, dtype)
    clipped = min(max(value, float(ends.min)), float(ends.max))
    return np.array(min(max(int(clipped), ends.min), ends.max), dtype)


def casts(x, source, integers, pieces=(1, 3, 5)):
    """A model with Cast to each type, of the whole, of pieces that fill no vector, and of the constant x."""
    kind = getattr(TensorProto, source)
    shape = [("x", kind, x.shape)] + [(f"x{n}", kind, (n,)) for n in pieces]
    nodes, outputs = [], []
    for to in integers:
        for name in [*[n for n, *_ in shape], "c"]:
            nodes.append(helper.make_node("Cast", [name], [f"{to}_{name}"], to=getattr(TensorProto, to)))
            outputs.append(helper.make_tensor_value_info(f"{to}_{name}", getattr(TensorProto, to), None))
    inputs = [helper.make_tensor_value_info(*s) for s in shape]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(x, "c")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model, {"x": x, **{f"x{n}": x[7 : 7 + n] for n in pieces}}


@pytest.mark.parametrize("source", FLOATS)
def test_onnx_wraps(source):
    with np.errstate(over="ignore"):
        x = np.array([*EDGES, *np.random.default_rng(0).standard_normal(9) * 1e5]).astype(FLOATS[source])
    model, feeds = casts(x, source, INTEGERS)
    made = dict(zip([o.name for o in model.graph.output], tw.compile(model, threads=1).run(feeds), strict=True))
    for to in INTEGERS:
        dtype = np.dtype(to.lower())
        expected = np.array([wrapped(v, dtype) for v in x.astype(np.float64)], dtype)
        for name, array in feeds.items():
            at = slice(None) if name == "x" else slice(7, 7 + len(array))
            np.testing.assert_array_equal(made[f"{to}_{name}"], expected[at], f"{source} to {to}, {name}")
        np.testing.assert_array_equal(made[f"{to}_c"], expected, f"{source} to {to}, folded")


@pytest.mark.parametrize("length", [5, 9])
def test_by_length(length):
    """300.0 to int8 was 44 or 127, by the length of the array."""
    x = torch.full((length,), 300.0)

    class Model(torch.nn.Module):
        def forward(self, x):
            return x.to(torch.int8), x.to(torch.uint8), (x - 305).to(torch.uint8), x.bfloat16().to(torch.int16)

    made = tw.compile(torch.export.export(Model(), (x,)), threads=1)(x.numpy())
    assert [np.unique(m).tolist() for m in made] == [[44], [44], [251], [300]]


def test_stablehlo_limits():
    x = np.array(EDGES, np.float32)
    lines = "\n".join(
        f"%{t} = stablehlo.convert %x : (tensor<{x.size}xf32>) -> tensor<{x.size}x{t}>" for t in STABLEHLO
    )
    types = ", ".join(f"tensor<{x.size}x{t}>" for t in STABLEHLO)
    results = ", ".join(f"%{t}" for t in STABLEHLO)
    head = f"func.func @main(%x: tensor<{x.size}xf32>) -> ({types})"
    text = f"module {{ {head} {{\n{lines}\nreturn {results} : {types}\n}} }}"
    for dtype, made in zip(STABLEHLO.values(), tw.compile(text, threads=1)(x), strict=True):
        np.testing.assert_array_equal(made, np.array([limited(v, dtype) for v in x.astype(np.float64)], dtype))


STABLEHLO = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "ui8": np.uint8, "ui32": np.uint32}


def test_pairs_of_casts():
    """int8 -> f32 -> uint8 keeps what a conversion of the float gives; what loses nothing on the way is one cast."""
    x = np.array([-5, 5, -128, 127, 0], np.int8)
    pairs = [("FLOAT", "UINT8"), ("INT32", "UINT8"), ("FLOAT", "INT64"), ("FLOAT", "FLOAT16"), ("FLOAT", "UINT64")]
    nodes, outputs = [], []
    for i, pair in enumerate(pairs):
        first, second = (getattr(TensorProto, t) for t in pair)
        nodes += [
            helper.make_node("Cast", ["x"], [f"a{i}"], to=first),
            helper.make_node("Cast", [f"a{i}"], [f"y{i}"], to=second),
        ]
        outputs.append(helper.make_tensor_value_info(f"y{i}", second, x.shape))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.INT8, x.shape)], outputs)
    made = tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), threads=1)(x)
    for (_, second), y in zip(pairs, made, strict=True):
        np.testing.assert_array_equal(y, x.astype(second.lower()))
