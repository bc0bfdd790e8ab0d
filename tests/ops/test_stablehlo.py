"""StableHLO, as text and as portable bytes: operators against NumPy, and what is not supported says so."""

import numpy as np
import pytest
from torch_mlir._mlir_libs import _stablehlo

import tilewright as tw
from tilewright.ir.context import parse, use
from tilewright.support.errors import ModelError, UnsupportedError


def array(*shape, dtype=np.float32, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return (values * 4).astype(dtype) if dtype != np.float32 else values.astype(np.float32)


def function(arguments, result, *lines):
    body = "\n    ".join(lines)
    return f"module @jit_f {{\n  func.func public @main({arguments}) -> {result} {{\n    {body}\n  }}\n}}\n"


def convolution(x, w, stride, pad):
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))).astype(np.float64)
    kh, kw, _, out = w.shape
    rows, columns = (x.shape[1] - kh) // stride + 1, (x.shape[2] - kw) // stride + 1
    y = np.zeros((x.shape[0], rows, columns, out))
    for i in range(rows):
        for j in range(columns):
            window = x[:, i * stride : i * stride + kh, j * stride : j * stride + kw]
            y[:, i, j] = np.tensordot(window, w, ((1, 2, 3), (0, 1, 2)))
    return y


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


CASES = {
    "elementwise": (
        function(
            "%x: tensor<5x7xf32>, %y: tensor<5x7xf32>",
            "tensor<5x7xf32>",
            "%0 = stablehlo.multiply %x, %y : tensor<5x7xf32>",
            "%1 = stablehlo.tanh %0 : tensor<5x7xf32>",
            "%2 = stablehlo.exponential %1 : tensor<5x7xf32>",
            "%3 = stablehlo.maximum %2, %x : tensor<5x7xf32>",
            "return %3 : tensor<5x7xf32>",
        ),
        [array(5, 7), array(5, 7, seed=1)],
        lambda x, y: np.maximum(np.exp(np.tanh(x * y)), x),
    ),
    "dot_general": (
        function(
            "%x: tensor<3x4x8xf32>, %y: tensor<3x16x8xf32>",
            "tensor<3x4x16xf32>",
            "%0 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [2] "
            ": (tensor<3x4x8xf32>, tensor<3x16x8xf32>) -> tensor<3x4x16xf32>",
            "return %0 : tensor<3x4x16xf32>",
        ),
        [array(3, 4, 8), array(3, 16, 8, seed=1)],
        lambda x, y: x @ y.transpose(0, 2, 1),
    ),
    "dense_constants": (
        function(
            "%x: tensor<2x3xf32>",
            "(tensor<2x3xf32>, tensor<2x2xi32>, tensor<2xi1>, tensor<3xf32>)",
            "%c = stablehlo.constant dense<[1.0, 2.0, 4.0]> : tensor<3xf32>",
            "%i = stablehlo.constant dense<[[1, 2], [3, -4]]> : tensor<2x2xi32>",
            "%t = stablehlo.constant dense<true> : tensor<2xi1>",
            "%b = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>",
            "%0 = stablehlo.add %x, %b : tensor<2x3xf32>",
            "return %0, %i, %t, %c : tensor<2x3xf32>, tensor<2x2xi32>, tensor<2xi1>, tensor<3xf32>",
        ),
        [array(2, 3)],
        lambda x: (
            x + np.float32([1, 2, 4]),
            np.int32([[1, 2], [3, -4]]),
            np.array([True, True]),
            np.float32([1, 2, 4]),
        ),
    ),
    "reduce": (
        function(
            "%x: tensor<6x9xf32>",
            "(tensor<6xf32>, tensor<9xf32>)",
            "%zero = stablehlo.constant dense<0.0> : tensor<f32>",
            "%low = stablehlo.constant dense<0xFF800000> : tensor<f32>",
            "%0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] "
            ": (tensor<6x9xf32>, tensor<f32>) -> tensor<6xf32>",
            "%1 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [0] "
            ": (tensor<6x9xf32>, tensor<f32>) -> tensor<9xf32>",
            "return %0, %1 : tensor<6xf32>, tensor<9xf32>",
        ),
        [array(6, 9)],
        lambda x: (x.sum(1), x.max(0)),
    ),
    "softmax": (
        function(
            "%x: tensor<6x33xf32>",
            "tensor<6x33xf32>",
            "%zero = stablehlo.constant dense<0.0> : tensor<f32>",
            "%low = stablehlo.constant dense<0xFF800000> : tensor<f32>",
            "%0 = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] "
            ": (tensor<6x33xf32>, tensor<f32>) -> tensor<6xf32>",
            "%1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<6xf32>) -> tensor<6x33xf32>",
            "%2 = stablehlo.subtract %x, %1 : tensor<6x33xf32>",
            "%3 = stablehlo.exponential %2 : tensor<6x33xf32>",
            "%4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] "
            ": (tensor<6x33xf32>, tensor<f32>) -> tensor<6xf32>",
            "%5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<6xf32>) -> tensor<6x33xf32>",
            "%6 = stablehlo.divide %3, %5 : tensor<6x33xf32>",
            "return %6 : tensor<6x33xf32>",
        ),
        [array(6, 33)],
        softmax,
    ),
    "convolution": (
        function(
            "%x: tensor<1x9x9x3xf32>, %w: tensor<3x3x3x8xf32>",
            "tensor<1x5x5x8xf32>",
            "%0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
            "window = {stride = [2, 2], pad = [[1, 1], [1, 1]]} "
            "{batch_group_count = 1 : i64, feature_group_count = 1 : i64} "
            ": (tensor<1x9x9x3xf32>, tensor<3x3x3x8xf32>) -> tensor<1x5x5x8xf32>",
            "return %0 : tensor<1x5x5x8xf32>",
        ),
        [array(1, 9, 9, 3), array(3, 3, 3, 8, seed=1)],
        lambda x, w: convolution(x, w, 2, 1),
    ),
    "select_and_compare": (
        function(
            "%x: tensor<17xf32>, %y: tensor<17xf32>",
            "tensor<17xf32>",
            "%0 = stablehlo.compare LT, %x, %y : (tensor<17xf32>, tensor<17xf32>) -> tensor<17xi1>",
            "%1 = stablehlo.negate %y : tensor<17xf32>",
            "%2 = stablehlo.select %0, %x, %1 : tensor<17xi1>, tensor<17xf32>",
            "return %2 : tensor<17xf32>",
        ),
        [array(17), array(17, seed=1)],
        lambda x, y: np.where(x < y, x, -y),
    ),
    "transpose_reshape_concatenate": (
        function(
            "%x: tensor<2x3x4xf32>, %y: tensor<4x6xf32>",
            "tensor<8x6xf32>",
            "%0 = stablehlo.transpose %x, dims = [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>",
            "%1 = stablehlo.reshape %0 : (tensor<4x2x3xf32>) -> tensor<4x6xf32>",
            "%2 = stablehlo.concatenate %1, %y, dim = 0 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>",
            "return %2 : tensor<8x6xf32>",
        ),
        [array(2, 3, 4), array(4, 6, seed=1)],
        lambda x, y: np.concatenate([x.transpose(2, 0, 1).reshape(4, 6), y]),
    ),
    "pad_slice_reverse": (
        function(
            "%x: tensor<5x6xf32>",
            "tensor<4x3xf32>",
            "%c = stablehlo.constant dense<2.0> : tensor<f32>",
            "%0 = stablehlo.pad %x, %c, low = [1, 2], high = [2, 0], interior = [0, 0] "
            ": (tensor<5x6xf32>, tensor<f32>) -> tensor<8x8xf32>",
            "%1 = stablehlo.slice %0 [0:8:2, 1:7:2] : (tensor<8x8xf32>) -> tensor<4x3xf32>",
            "%2 = stablehlo.reverse %1, dims = [0] : tensor<4x3xf32>",
            "return %2 : tensor<4x3xf32>",
        ),
        [array(5, 6)],
        lambda x: np.pad(x, ((1, 2), (2, 0)), constant_values=2)[0:8:2, 1:7:2][::-1],
    ),
    "gather": (
        function(
            "%x: tensor<10x4xf32>, %i: tensor<6x1xi32>",
            "tensor<6x4xf32>",
            '%0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], '
            "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, "
            "indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> "
            ": (tensor<10x4xf32>, tensor<6x1xi32>) -> tensor<6x4xf32>",
            "return %0 : tensor<6x4xf32>",
        ),
        [array(10, 4), np.int32([[3], [0], [9], [-2], [100], [5]])],  # positions outside are clamped
        lambda x, i: x[np.clip(i[:, 0], 0, 9)],
    ),
    "dynamic_slice": (
        function(
            "%x: tensor<10x4xf32>, %i: tensor<i32>, %j: tensor<i32>",
            "tensor<3x2xf32>",
            "%0 = stablehlo.dynamic_slice %x, %i, %j, sizes = [3, 2] "
            ": (tensor<10x4xf32>, tensor<i32>, tensor<i32>) -> tensor<3x2xf32>",
            "return %0 : tensor<3x2xf32>",
        ),
        [array(10, 4), np.array(8, np.int32), np.array(-1, np.int32)],  # clamped to 7 and 0
        lambda x, i, j: x[7:10, 0:2],
    ),
    "sort_by_any_comparison": (
        function(
            "%x: tensor<3x9xf32>, %i: tensor<3x9xi32>",
            "(tensor<3x9xf32>, tensor<3x9xi32>)",
            '%0:2 = "stablehlo.sort"(%x, %i) <{dimension = 1 : i64, is_stable = true}> ({',
            "^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):",
            "  %1 = stablehlo.abs %a : tensor<f32>",
            "  %2 = stablehlo.abs %b : tensor<f32>",
            "  %3 = stablehlo.compare GT, %1, %2 : (tensor<f32>, tensor<f32>) -> tensor<i1>",
            "  stablehlo.return %3 : tensor<i1>",
            "}) : (tensor<3x9xf32>, tensor<3x9xi32>) -> (tensor<3x9xf32>, tensor<3x9xi32>)",
            "return %0#0, %0#1 : tensor<3x9xf32>, tensor<3x9xi32>",
        ),
        [np.round(array(3, 9)), array(3, 9, dtype=np.int32)],  # with equal ones, which keep their order
        lambda x, i: tuple(np.take_along_axis(v, np.argsort(-abs(x), 1, kind="stable"), 1) for v in (x, i)),
    ),
    "scatter_of_windows": (
        function(
            "%x: tensor<6xf32>, %i: tensor<3x1xi32>, %u: tensor<3x2xf32>",
            "tensor<6xf32>",
            '%0 = "stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<'
            "update_window_dims = [1], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({",
            "^bb0(%a: tensor<f32>, %b: tensor<f32>):",
            "  %1 = stablehlo.add %a, %b : tensor<f32>",
            "  stablehlo.return %1 : tensor<f32>",
            "}) : (tensor<6xf32>, tensor<3x1xi32>, tensor<3x2xf32>) -> tensor<6xf32>",
            "return %0 : tensor<6xf32>",
        ),
        [array(6), np.int32([[1], [5], [-1]]), array(3, 2, seed=1)],  # the last two do not fit whole: left out
        lambda x, i, u: x + np.concatenate([[0], u[0], [0, 0, 0]]).astype(np.float32),
    ),
    "iota_convert": (
        function(
            "%x: tensor<4x5xi32>",
            "tensor<4x5xf32>",
            "%0 = stablehlo.iota dim = 1 : tensor<4x5xi32>",
            "%1 = stablehlo.add %0, %x : tensor<4x5xi32>",
            "%2 = stablehlo.convert %1 : (tensor<4x5xi32>) -> tensor<4x5xf32>",
            "return %2 : tensor<4x5xf32>",
        ),
        [array(4, 5, dtype=np.int32)],
        lambda x: (x + np.arange(5)).astype(np.float32),
    ),
    "private_functions": (
        "module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {\n"
        '  func.func public @main(%x: tensor<4x5xf32>) -> (tensor<4x5xf32> {jax.result_info = "result"}) {\n'
        "    %0 = call @relu(%x) : (tensor<4x5xf32>) -> tensor<4x5xf32>\n"
        "    return %0 : tensor<4x5xf32>\n  }\n"
        "  func.func private @relu(%x: tensor<4x5xf32>) -> tensor<4x5xf32> {\n"
        "    %c = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "    %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<4x5xf32>\n"
        "    %0 = stablehlo.maximum %x, %b : tensor<4x5xf32>\n"
        "    return %0 : tensor<4x5xf32>\n  }\n}\n",
        [array(4, 5)],
        lambda x: np.maximum(x, 0),
    ),
}


def check(got, expected):
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape
        np.testing.assert_allclose(g.astype(np.float64), e.astype(np.float64), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_text(name):
    text, inputs, reference = CASES[name]
    check(tw.compile(text, threads=1)(*inputs), reference(*inputs))


@pytest.mark.parametrize("name", ["dot_general", "reduce"])
def test_portable_bytes(name, tmp_path):
    text, inputs, reference = CASES[name]
    with use():
        data = _stablehlo.serialize_portable_artifact(parse(text), _stablehlo.get_current_version())
    path = tmp_path / "f.mlirbc"
    path.write_bytes(data)
    check(tw.compile(path, threads=1)(*inputs), reference(*inputs))
    check(tw.compile(data, threads=1)(*inputs), reference(*inputs))


LOOP = function(
    "%x: tensor<i32>, %n: tensor<i32>",
    "(tensor<i32>, tensor<i32>)",
    "%one = stablehlo.constant dense<1> : tensor<i32>",
    "%0:2 = stablehlo.while(%y = %x, %k = %one) : tensor<i32>, tensor<i32>",
    "cond {",
    "  %1 = stablehlo.compare LT, %y, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>",
    "  stablehlo.return %1 : tensor<i1>",
    "} do {",
    "  %2 = stablehlo.add %y, %y : tensor<i32>",
    "  %3 = stablehlo.add %k, %one : tensor<i32>",
    "  stablehlo.return %2, %3 : tensor<i32>, tensor<i32>",
    "}",
    "%4 = stablehlo.add %0#0, %n : tensor<i32>",
    "return %4, %0#1 : tensor<i32>, tensor<i32>",
)


def test_loops_that_depend_on_data(tmp_path):
    run = tw.compile(LOOP, threads=1)
    run.save(tmp_path / "loop.tw")
    for made in (run, tw.load(tmp_path / "loop.tw")):
        for x, n, y, steps in ((3, 100, 192, 7), (200, 100, 200, 1)):
            assert [int(v) for v in made(np.array(x, np.int32), np.array(n, np.int32))] == [y + n, steps]


def test_what_is_not_supported_says_so():
    text = function(
        "%x: tensor<4xf32>, %k: tensor<2xui64>",
        "(tensor<4xf32>, tensor<4xui32>, tensor<4xf32>)",
        "%0 = stablehlo.custom_call @lapack_spotrf_ffi(%x) : (tensor<4xf32>) -> tensor<4xf32>",
        "%1, %2 = stablehlo.rng_bit_generator %k, algorithm = DEFAULT "
        ": (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)",
        "%3 = stablehlo.custom_call @mine(%0) : (tensor<4xf32>) -> tensor<4xf32>",
        "return %0, %2, %3 : tensor<4xf32>, tensor<4xui32>, tensor<4xf32>",
    )
    with pytest.raises(UnsupportedError) as e:
        tw.compile(text)
    assert "lapack_spotrf_ffi: 1 node (line 3): linear algebra" in e.value.message  # all of them at once
    assert "rng_bit_generator" in e.value.message and "mine" not in e.value.message
    add = "%0 = stablehlo.add %x, %x : tensor<4xcomplex<f32>>"
    with pytest.raises(UnsupportedError, match="'arg0' of <text> is complex"):
        tw.compile(
            function("%x: tensor<4xcomplex<f32>>", "tensor<4xcomplex<f32>>", add, "return %0 : tensor<4xcomplex<f32>>")
        )
    with pytest.raises(ModelError) as error:
        tw.compile("func.func @main(%x: tensor<f32>) -> tensor<f32> {\n %0 = chlo.erf %x : tensor<f32> -> tensor<f32>\n"
                   " return %0 : tensor<f32>\n}")  # fmt: skip
    assert "jax.export" in error.value.hint


def test_endless_programs():
    called = "".join(
        f"func.func private @f{i}(%x: tensor<4xf32>) -> tensor<4xf32> {{\n"
        f" %0 = call @f{i + 1}(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
        f" %1 = call @f{i + 1}(%0) : (tensor<4xf32>) -> tensor<4xf32>\n return %1 : tensor<4xf32>\n}}\n"
        for i in range(40)
    )
    last = "%0 = stablehlo.add %x, %x : tensor<4xf32>\n return %0 : tensor<4xf32>\n}\n"
    head = "(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
    call = "%0 = call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>\n return %0 : tensor<4xf32>\n}\n"
    with pytest.raises(ModelError, match="more than 10000 operators once its calls are inlined"):
        tw.compile(f"func.func @main{head}{call}{called}func.func private @f40{head}{last}", operators=10_000)
    with pytest.raises(ModelError, match="@f0 of <text> calls itself"):
        tw.compile(f"func.func @main{head}{call}func.func private @f0{head}{call}func.func private @g{head}{last}")
    steps = 1_000_000  # known ones, which the runtime takes
    run = tw.compile(LOOP.replace("%y = %x", "%y = %one").replace("%y, %n :", "%y, %m :").replace(
        "add %y, %y", "add %y, %one").replace("%0:2 =", f"%m = stablehlo.constant dense<{steps}> : tensor<i32>\n%0:2 ="
    ))  # fmt: skip
    assert run is not None
