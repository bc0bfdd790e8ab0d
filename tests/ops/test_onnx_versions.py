"""Operators of ONNX as their versions define them: what old opsets mean, sizes and ends that are far out. By the
references of our operators; what is compiled is the same graph."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from support.onnx_models import model, node, value

import tilewright as tw
from tilewright.errors import ModelError
from tilewright.frontends.protocol import load_source
from tilewright.graph.interpret import interpret
from tilewright.ir import dialect
from tilewright.ir.types import Type
from tilewright.support.dtypes import NUMPY

F32 = np.float32


def results(operator, feeds, outputs=1, opset=18, constants=(), **attributes):
    """The outputs of a model of one node whose inputs are those of `feeds`; some of them are constants."""
    names = [f"o{i}" for i in range(outputs)]
    element = {np.dtype(F32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    inputs = [value(n, x.shape, element[x.dtype]) for n, x in feeds.items() if n not in constants]
    made = model(
        [node(operator, " ".join(feeds), " ".join(names), **attributes)],
        inputs,
        [value(n) for n in names],
        {n: feeds[n] for n in constants},
        opset=opset,
    )
    graph = load_source(made)[0]
    with np.errstate(all="ignore"):
        return list(interpret(graph, {n: x for n, x in feeds.items() if n not in constants}).values())


# ---- convolution, pools, normalization -----------------------------------------------------------------------------

TWO = {"x": np.array([[[1, 2]]], F32), "w": np.array([[[1, 10, 100]]], F32)}  # 1 10 100 2 20 200 with stride 3


@pytest.mark.parametrize("opset", [1, 10, 11, 18])
def test_output_shape_of_transposed_convolution(opset):
    """The larger half of the padding is in front, except for SAME_UPPER."""
    for auto, five in (("NOTSET", [10, 100, 2, 20, 200]), ("SAME_LOWER", [10, 100, 2, 20, 200]),
                       ("SAME_UPPER", [1, 10, 100, 2, 20])):  # fmt: skip
        (got,) = results("ConvTranspose", TWO, opset=opset, strides=[3], output_shape=[5], auto_pad=auto)
        assert got.ravel().tolist() == five
        (got,) = results("ConvTranspose", TWO, opset=opset, strides=[3], output_shape=[4], auto_pad=auto)
        assert got.ravel().tolist() == [10, 100, 2, 20]
    (got,) = results("ConvTranspose", TWO, opset=opset, strides=[3], output_shape=[6], output_padding=[1])
    assert got.ravel().tolist() == [10, 100, 2, 20, 200, 0]


@pytest.mark.parametrize("opset", [6, 7, 9])
def test_batch_normalization_in_training(opset):
    """More outputs than one say so before opset 14."""
    r = np.random.default_rng(0)
    x = r.standard_normal((2, 3, 4)).astype(F32)
    p = {n: (r.standard_normal(3) ** 2 + 0.5).astype(F32) for n in "sbmv"}
    got = results("BatchNormalization", {"x": x, **p}, 5, opset=opset, momentum=0.75)
    mean, var = x.mean((0, 2)), x.var((0, 2))
    want = (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * p["s"][:, None] + p["b"][:, None]
    for g, w in zip(got, (want, p["m"] * 0.75 + mean * 0.25, p["v"] * 0.75 + var * 0.25, mean, var), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_batch_normalization_of_places():
    r = np.random.default_rng(0)
    x, p = r.standard_normal((2, 3, 4)).astype(F32), {n: (r.random((3, 4)) + 0.5).astype(F32) for n in "sbmv"}
    (got,) = results("BatchNormalization", {"x": x, **p}, opset=7, spatial=0)
    np.testing.assert_allclose(got, (x - p["m"]) / np.sqrt(p["v"] + 1e-5) * p["s"] + p["b"], rtol=1e-5, atol=1e-6)


def test_powers_of_pools():
    """The power of LpPool-1 is a float."""
    x = np.array([[[1, 2, 3, 4]]], F32)
    (got,) = results("LpPool", {"x": x}, opset=1, kernel_shape=[2], strides=[2], p=1.5)
    np.testing.assert_allclose(got.ravel(), [(1 + 2**1.5) ** (2 / 3), (3**1.5 + 8) ** (2 / 3)], rtol=1e-6)
    (got,) = results("GlobalLpPool", {"x": x}, opset=1, p=1.5)
    np.testing.assert_allclose(got.ravel(), [(x**1.5).sum() ** (2 / 3)], rtol=1e-6)


def test_group_normalization_18():
    """Given up before it was used, and yet what models of opset 18 have: a scale for each group."""
    x, p = np.arange(8, dtype=F32).reshape(1, 4, 2), {n: np.array([2, 3], F32) for n in "sb"}
    (got,) = results("GroupNormalization", {"x": x, **p}, opset=18, num_groups=2)
    parts = x.reshape(2, 4)
    plain = (parts - parts.mean(1, keepdims=True)) / np.sqrt(parts.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got.reshape(2, 4), plain * p["s"][:, None] + p["b"][:, None], rtol=1e-5)


def test_masks_of_dropout():
    for opset, kind in ((7, np.float32), (10, np.bool_), (13, np.bool_)):
        x, mask = results("Dropout", {"x": np.ones(3, F32)}, 2, opset=opset)
        assert mask.dtype == kind and mask.all() and x.tolist() == [1, 1, 1]


# ---- resize --------------------------------------------------------------------------------------------------------


def resized(opset, size, scale, mode="nearest", **attributes):
    feeds = {"x": np.arange(size, dtype=F32)}
    if opset == 7:
        return results("Upsample", feeds, opset=7, scales=[scale], mode=mode)[0].tolist()
    operator = "Upsample" if opset == 9 else "Resize"
    if opset >= 11:
        feeds["roi"] = np.zeros(0, F32)
    feeds["scales"] = np.array([scale], F32)
    given = [n for n in feeds if n != "x"]
    return results(operator, feeds, opset=opset, constants=given, mode=mode, **attributes)[0].tolist()


def test_nearest_before_11():
    """The element below where a dimension grows, above where it shrinks."""
    assert resized(10, 4, 0.6) == [0, 2]
    assert resized(10, 7, 0.45) == [0, 3, 5]
    for opset in (7, 9, 10):
        assert resized(opset, 3, 2.5) == [0, 0, 0, 1, 1, 2, 2]


def test_sizes_are_rounded_to_f32():
    """10 times the f32 nearest to 0.7 is 7 in f32, as ONNX infers it, and less in exact numbers."""
    for opset in (10, 11, 18):
        assert len(resized(opset, 10, 0.7)) == 7
        assert len(resized(opset, 3, 1 / 3)) == 1
        assert len(resized(opset, 7, 1.7)) == 11


def test_a_single_result_lies_at_the_front():
    """In pytorch_half_pixel, by the size of the result and not by that times the scale."""
    mode = "pytorch_half_pixel"
    for kind in ("nearest", "linear", "cubic"):
        assert resized(11, 4, 0.3, kind, coordinate_transformation_mode=mode) == [0]


# ---- slices --------------------------------------------------------------------------------------------------------

FAR = (-(2**63), -100, -6, -5, -3, -1, 0, 2, 4, 5, 9, 2**63 - 1)


def test_slices_far_out():
    """Against ONNX's rule: starts are brought into [0, d - 1] backwards and [0, d] forwards, ends into [-1, d - 1] and
    [0, d]."""
    x = np.arange(5, dtype=F32)
    for step in (-(2**63) + 1, -2, -1, 1, 2, 2**63 - 1):
        for start in FAR:
            for end in (FAR[0], -6, -3, 0, 5, FAR[-1]):
                low, high = (0, 4) if step < 0 else (0, 5)
                first = min(max(start + 5 if start < 0 else start, low), high)
                last = min(max(end + 5 if end < 0 else end, -1 if step < 0 else 0), high)
                given = {n: np.array([v]) for n, v in zip("seat", (start, end, 0, step), strict=True)}
                (got,) = results("Slice", {"x": x, **given}, constants="seat")
                assert got.tolist() == list(range(first, last, step)), (start, end, step)


def test_sign_of_no_number():
    """NaN, as NumPy and StableHLO have it; PyTorch's is 0."""
    (got,) = results("Sign", {"x": np.array([np.nan, 0, -2, np.inf], F32)}, opset=13)
    np.testing.assert_array_equal(got, [np.nan, 0, -1, 1])


# ---- nothing -------------------------------------------------------------------------------------------------------

EMPTY = (0, 4, 8, 8)
KERNEL = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
POOL = {"kernel": (2, 2), **KERNEL}
OF_NOTHING = {
    "conv": ((EMPTY, (6, 4, 3, 3)), KERNEL),
    "conv of no channels": (((1, 0, 8, 8), (6, 0, 3, 3)), KERNEL),
    "conv to no channels": (((1, 4, 8, 8), (0, 4, 3, 3)), KERNEL),
    "conv of groups": ((EMPTY, (6, 2, 3, 3), (6,)), {**KERNEL, "groups": 2}),
    "conv_transpose": ((EMPTY, (4, 6, 3, 3)), {**KERNEL, "output_padding": (0, 0)}),
    "conv_transpose of no channels": (((1, 0, 4, 4), (0, 6, 3, 3)), {**KERNEL, "output_padding": (0, 0)}),
    "conv_transpose to no channels": (((1, 4, 4, 4), (4, 0, 3, 3)), {**KERNEL, "output_padding": (0, 0)}),
    **dict.fromkeys(("max_pool", "avg_pool", "lp_pool", "max_pool_indices"), ((EMPTY,), POOL)),
    "col2im": (((0, 4, 9),), {"image": (4, 4), "block": (2, 2), **KERNEL}),
    "hardmax": (((3, 0),), {"axis": 1}),
    "softmax": (((3, 0),), {"axis": 1}),
    "log_softmax": (((0, 3),), {"axis": 1}),
    "layer_norm": (((0, 3), (3,)), {"axis": 1}),
    "group_norm": (((2, 4, 0), (4,), (4,)), {"groups": 2}),
    "lp_norm": (((0, 3),), {"axis": 1}),
    "lrn": (((0, 5, 2, 2),), {"size": 3}),
    "matmul": (((2, 0), (0, 4)), {}),
    "reduce_max": (((0, 3),), {"axes": (0,)}),
    "reduce_log_sum_exp": (((0, 3),), {"axes": (0,)}),
    "cumsum": (((3, 0),), {"axis": 1}),
    "det": (((0, 3, 3),), {}),
    "depth_to_space": (((0, 8, 2, 3),), {"block": 2}),
    "grid_sample": (((1, 0, 3, 4), (1, 2, 2, 2)), {}),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_references_of_nothing(name):
    """A reference of tensors without elements gives what the operator's type says: constants are folded by it."""
    shapes, attributes = OF_NOTHING[name]
    operator = dialect.OPERATORS[name.split()[0]]
    types = [Type(s, "f32") for s in shapes]
    (want,) = dialect.infer(operator, types, attributes)
    attributes = {**operator.attributes, **attributes}
    absent = [None] * (len(operator.operands) - len(shapes))
    got = operator.reference(*(np.zeros(s, F32) for s in shapes), *absent, **attributes)
    assert got.shape == want.shape and got.dtype == NUMPY[want.dtype]


def test_a_convolution_of_nothing_is_folded():
    x, w = np.zeros((0, 3, 8, 8), F32), np.ones((4, 3, 3, 3), F32)
    made = model([node("Conv", "x w", "y")], [], [value("y")], {"x": x, "w": w})
    assert tw.compile(made).run({})[0].shape == (0, 4, 6, 6)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e38, 1e9])
def test_resized_to_what_no_memory_holds(scale):
    feeds = {"x": np.ones((1, 1, 2, 4), F32), "roi": np.zeros(0, F32), "scales": np.array([1, 1, scale, 1], F32)}
    with pytest.raises(ModelError, match=r"scales .* give more than 268,435,456 elements"):
        results("Resize", feeds, constants=("roi", "scales"), mode="nearest")
    feeds["sizes"] = np.array([1, 1, 1 << 40, 4], np.int64)
    feeds["scales"] = np.zeros(0, F32)
    with pytest.raises(ModelError, match=r"sizes .* give more than"):
        results("Resize", feeds, constants=("roi", "scales", "sizes"), mode="linear")
