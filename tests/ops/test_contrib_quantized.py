"""`com.microsoft` operators on integers and on weights of few bits, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from support.against_onnxruntime import bytes_ as codes
from support.against_onnxruntime import check, compute, floats

#: results are integers that may differ by one, where a half is rounded
QUANTUM = 1


def scale(value):
    return np.array(value, np.float32)


def zero(value, dtype=np.uint8):
    return np.array(value, dtype)


def signed(*shape, seed=0):
    """Weights of 7 bits: without VNNI, ONNX Runtime cuts off sums of two products of bytes at 16 bits."""
    return codes(*shape, low=-64, high=65, dtype=np.int8, seed=seed)


def constants(inputs, *dynamic):
    """The names of all inputs but the given ones."""
    return [k for k, v in inputs.items() if v is not None and k not in dynamic]


# ---- weights of few bits -------------------------------------------------------------------------------------------


def packed_weights(columns, k, block, bits, seed=0):
    blocks = -(-k // block)
    return codes(columns, blocks, block * bits // 8, seed=seed), abs(floats(columns * blocks, scale=0.1)) + 0.01


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", ["none", "packed", "floats"])
@pytest.mark.parametrize("k", [64, 80])
def test_matmul_n_bits(bits, points, k):
    if bits != 4 and points == "floats":
        pytest.skip("ONNX Runtime has no such kernel")
    columns, block = 5, 32
    weights, scales = packed_weights(columns, k, block, bits)
    blocks = -(-k // block)
    inputs = {"x": floats(2, 3, k), "w": weights, "s": scales}
    if points == "packed":
        inputs["z"] = codes(columns * -(-blocks * bits // 8), seed=3)
    elif points == "floats":
        inputs["z"] = floats(columns * blocks, scale=2)
    check("MatMulNBits", inputs, constants(inputs, "x"), tolerance=1e-3, native=bits == 4, K=k, N=columns,
          bits=bits, block_size=block)  # fmt: skip


def test_matmul_n_bits_with_a_bias():
    weights, scales = packed_weights(4, 64, 32, 4)
    inputs = {"x": floats(3, 64), "w": weights, "s": scales, "z": None, "order": None, "b": floats(4)}
    check("MatMulNBits", inputs, constants(inputs, "x"), tolerance=1e-3, K=64, N=4, bits=4, block_size=32)


def test_matmul_n_bits_with_a_group_index():
    weights, scales = packed_weights(4, 64, 32, 4)
    inputs = {"x": floats(3, 64), "w": weights, "s": scales, "z": None, "order": codes(64, high=2, dtype=np.int32)}
    sizes = {"K": 64, "N": 4, "bits": 4, "block_size": 32}
    check("MatMulNBits", inputs, constants(inputs, "x"), tolerance=1e-3, **sizes)
    inputs["z"] = codes(4, seed=5)  # which ONNX Runtime takes for 8 where there is an index
    zeros = np.stack([inputs["z"] & 15, inputs["z"] >> 4], -1).astype(np.float32)
    numbers = np.stack([weights & 15, weights >> 4], -1).reshape(4, 64).astype(np.float32)
    order = inputs["order"]
    wanted = inputs["x"] @ ((numbers - zeros[:, order]) * scales.reshape(4, 2)[:, order]).T
    (actual,) = compute("MatMulNBits", inputs, constants(inputs, "x"), **sizes)
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_bnb4(kind):
    inputs = {"x": floats(3, 64), "w": codes(5 * 64 // 2), "largest": abs(floats(5 * 64 // 16))}
    check("MatMulBnb4", inputs, constants(inputs, "x"), tolerance=1e-3, K=64, N=5, block_size=16, quant_type=kind,
          native=True)  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("points", [False, True])
def test_gather_block_quantized(bits, points):
    inputs = {"table": codes(7, 32 * bits // 8), "at": np.array([[1, 6], [0, 1]], np.int64)}
    inputs |= {"scales": abs(floats(7, 2)) + 0.1} | ({"zeros": codes(7, -(-2 * bits // 8), seed=1)} if points else {})
    check("GatherBlockQuantized", inputs, constants(inputs, "at"), block_size=16, bits=bits, gather_axis=0,
          quantize_axis=1, native=not points)  # fmt: skip


# ---- QLinear -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_binary(operator, dtype):
    make, z = (codes, zero(120)) if dtype == np.uint8 else (signed, zero(-3, np.int8))
    inputs = {"x": make(2, 3, 4), "xs": scale(0.02), "xz": z, "y": make(3, 1, seed=1), "ys": scale(0.03), "yz": z}
    inputs |= {"s": scale(0.04), "z": z}
    check(operator, inputs, constants(inputs, "x", "y"), tolerance=QUANTUM, native=dtype == np.uint8)


@pytest.mark.parametrize("operator, out", [("QLinearSigmoid", 1 / 256), ("QLinearLeakyRelu", 0.05)])
def test_qlinear_unary(operator, out):
    inputs = {"x": codes(3, 50), "xs": scale(0.05), "xz": zero(128), "s": scale(out), "z": zero(3)}
    check(operator, inputs, constants(inputs, "x"), tolerance=QUANTUM, native=True)


@pytest.mark.parametrize("opset, axis", [(12, 1), (13, -1), (13, 1)])
def test_qlinear_softmax(opset, axis):
    inputs = {"x": codes(2, 3, 5), "xs": scale(0.05), "xz": zero(128), "s": scale(1 / 256), "z": zero(0)}
    check("QLinearSoftmax", inputs, constants(inputs, "x"), tolerance=QUANTUM, opset=opset, axis=axis)


def test_qlinear_concat():
    inputs = {"s": scale(0.05), "z": zero(100), "x": codes(2, 3), "xs": scale(0.02), "xz": zero(9)}
    inputs |= {"y": codes(2, 4, seed=1), "ys": scale(0.06), "yz": zero(128)}
    check("QLinearConcat", inputs, constants(inputs, "x", "y"), tolerance=QUANTUM, axis=1)


def test_qlinear_where():
    inputs = {"c": codes(3, 4, high=2, dtype=np.bool_), "x": codes(3, 4), "xs": scale(0.02), "xz": zero(9)}
    inputs |= {"y": codes(4, seed=1), "ys": scale(0.06), "yz": zero(128), "s": scale(0.05), "z": zero(100)}
    check("QLinearWhere", inputs, constants(inputs, "c", "x", "y"), tolerance=QUANTUM)


@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_average_pool(last):
    inputs = {"x": codes(1, 6, 6, 4), "xs": scale(0.02), "xz": zero(9), "s": scale(0.03), "z": zero(5)}
    check("QLinearAveragePool", inputs, constants(inputs, "x"), tolerance=QUANTUM, kernel_shape=[2, 2],
          strides=[2, 2], pads=[1, 0, 1, 0], channels_last=last)  # fmt: skip


@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_global_average_pool(last):
    inputs = {"x": codes(1, 6, 6, 4), "xs": scale(0.02), "xz": zero(9), "s": scale(0.03), "z": zero(5)}
    check("QLinearGlobalAveragePool", inputs, constants(inputs, "x"), tolerance=QUANTUM, channels_last=last)


def test_nhwc_max_pool():
    check("NhwcMaxPool", {"x": codes(1, 6, 6, 4)}, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], native=True)


@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_conv(last):
    inputs = {"x": codes(1, 6, 6, 4) if last else codes(1, 4, 6, 6), "xs": scale(0.02), "xz": zero(128)}
    inputs |= {"w": signed(8, 4, 3, 3), "ws": abs(floats(8, scale=0.01)) + 0.001, "wz": np.zeros(8, np.int8)}
    inputs |= {"s": scale(0.5), "z": zero(120), "b": codes(8, low=-900, high=900, dtype=np.int32)}
    check("QLinearConv", inputs, constants(inputs, "x"), tolerance=QUANTUM, kernel_shape=[3, 3], pads=[1, 1, 1, 1],
          channels_last=last)  # fmt: skip


@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
def test_conversions_of_16_bits(operator):
    x = floats(3, 4) if operator[0] == "Q" else codes(3, 4, high=1 << 16, dtype=np.uint16)
    inputs = {"x": x, "s": abs(floats(4, scale=0.001)) + 1e-4, "z": codes(4, high=1 << 16, dtype=np.uint16)}
    check(operator, inputs, constants(inputs, "x"), tolerance=QUANTUM if operator[0] == "Q" else 1e-5, axis=1)


# ---- products ------------------------------------------------------------------------------------------------------

COLUMNS = [False, True]


def factor(columns):
    """int8 weights [8, 6] with a scale and a zero point, for all or for each column."""
    if columns:
        return {"w": signed(8, 6), "ws": abs(floats(6, scale=0.02)) + 0.01, "wz": np.zeros(6, np.int8)}
    return {"w": signed(8, 6), "ws": scale(0.02), "wz": zero(0, np.int8)}


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_integer_to_float(columns, bias):
    w = factor(columns)
    inputs = {"x": codes(2, 3, 8), "w": w["w"], "xs": scale(0.03), "ws": w["ws"], "xz": zero(100), "wz": w["wz"]}
    inputs |= {"b": floats(6)} if bias else {}
    check("MatMulIntegerToFloat", inputs, constants(inputs, "x"), native=True)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_quantize_matmul(columns, bias):
    inputs = {"x": floats(2, 3, 8), **factor(columns)} | ({"b": floats(6)} if bias else {})
    check("DynamicQuantizeMatMul", inputs, constants(inputs, "x"), native=True)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1)])
def test_qgemm(quantized, transposed):
    w = factor(True)
    inputs = {"x": codes(8, 3) if transposed[0] else codes(3, 8), "xs": scale(0.03), "xz": zero(100)}
    inputs |= {"w": w["w"].T.copy() if transposed[1] else w["w"], "ws": w["ws"], "wz": w["wz"]}
    inputs |= {"b": codes(6, low=-99, high=99, dtype=np.int32)}
    inputs |= {"s": scale(0.3), "z": zero(128)} if quantized else {}
    check("QGemm", inputs, constants(inputs, "x"), tolerance=QUANTUM if quantized else 1e-5, transA=transposed[0],
          transB=transposed[1], native=transposed == (0, 1))  # fmt: skip


# ---- transformers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32), np.array([4, 2], np.int32)])
@pytest.mark.parametrize("causal", [0, 1])
def test_qattention(mask, causal):
    inputs = {"x": codes(2, 4, 12), "w": signed(12, 48), "b": floats(48), "xs": scale(0.02), "ws": scale(0.01)}
    inputs |= {"mask": mask, "xz": zero(128), "wz": zero(0, np.int8)}
    check("QAttention", inputs, constants(inputs, "x"), tolerance=1e-4, num_heads=2, unidirectional=causal,
          native=causal == 0)  # fmt: skip


def test_qattention_with_a_past():
    inputs = {"x": codes(2, 4, 12), "w": signed(12, 48), "b": floats(48), "xs": scale(0.02), "ws": scale(0.01)}
    inputs |= {"mask": None, "xz": zero(128), "wz": zero(0, np.int8), "past": floats(2, 2, 2, 3, 8)}
    check("QAttention", inputs, constants(inputs, "x", "past"), tolerance=1e-4, num_heads=2, outputs=2,
          unidirectional=1)  # fmt: skip


def test_qembed_layer_normalization():
    inputs = {"ids": codes(2, 5, high=11, dtype=np.int32), "segments": codes(2, 5, high=2, dtype=np.int32)}
    inputs |= {"words": codes(11, 8), "places": codes(7, 8, seed=1), "types": codes(2, 8, seed=2)}
    inputs |= {"gamma": codes(8, seed=3), "beta": codes(8, seed=4), "mask": np.ones((2, 5), np.int32)}
    inputs |= {f"s{i}": scale(0.01 + 0.01 * i) for i in range(5)} | {f"z{i}": zero(100 + i) for i in range(5)}
    check("QEmbedLayerNormalization", inputs, constants(inputs, "ids", "segments", "mask"), outputs=2, tolerance=1e-4)
