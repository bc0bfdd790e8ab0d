"""Quantized types of GGUF: `BlockWeights` of random blocks are, dequantized, what the package `gguf` dequantizes to."""

import numpy as np
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

from tilewright.llm.gguf import blocks  # noqa: E402
from tilewright.llm.gguf.blocks import _kinds, block_weights_of  # noqa: E402
from tilewright.llm.gguf.reader import GgufTensor  # noqa: E402

#: where the f16 scales of a block lie
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "TQ1_0": [52], "TQ2_0": [64], "IQ4_NL": [0], "IQ4_XS": [0],
    "MXFP4": [], "NVFP4": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0],
    "IQ1_M": [],
}  # fmt: skip
#: bits for a weight that are more than the file's: those that kernels read
WIDER = {
    "Q2_K": 3.2,
    "Q3_K": 4.7,
    "TQ1_0": 2.1,
    "NVFP4": 4.6,
    "IQ2_XXS": 4.4,
    "IQ2_XS": 4.7,
    "IQ2_S": 4.7,
    "IQ3_XXS": 4.4,
}
WIDER |= {"IQ3_S": 4.4, "IQ1_S": 4.4, "IQ1_M": 4.7}


def random_tensor(kind: str, rows: int, k: int, seed: int = 0, scale: float | None = None) -> GgufTensor:
    """scale: of all blocks; None: of all sizes."""
    rng = np.random.default_rng(seed)
    size, bytes_ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = rng.integers(0, 256, (rows, k // size, bytes_), np.uint8)
    halves = (rng.standard_normal((*data.shape[:2], 2)) * 10.0 ** rng.integers(-7, 4, (*data.shape[:2], 2))).astype(
        "<f2"
    )
    for i, place in enumerate(SCALES[kind]):
        data[..., place : place + 2] = halves[..., i : i + 1].view(np.uint8)
    if kind == "IQ1_M":  # the scale lies in four parts; its exponent must not be that of infinities
        data[..., 55] &= 0xBF
    if kind == "MXFP4":
        data[..., 0] = rng.integers(1, 250, data.shape[:2]) if scale is None else 127 + int(np.log2(scale))
    if kind == "NVFP4":
        data[..., :4] %= 0x7E
    return GgufTensor("w", kind, (rows, k), data.reshape(rows, -1))


def test_all_types_are_tried():
    assert set(SCALES) == set(_kinds())
    known = {t.name for t in gguf.quants._type_traits}
    assert known - set(SCALES) <= {"BF16", "Q1_0"}


@pytest.mark.parametrize("kind", SCALES)
def test_weights_are_those_of_the_package(kind, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK", 3000)  # several chunks
    tensor = random_tensor(kind, 9, 768)
    want = tensor.array()
    got = block_weights_of(tensor)
    assert got.shape == (9, 768)
    np.testing.assert_array_equal(got.dequantized().view(np.uint32), want.view(np.uint32))
    bits = got.nbytes * 8 / want.size
    assert bits <= WIDER.get(kind, tensor.data.nbytes * 8 / want.size * 1.03)


def test_the_smallest_powers_of_mxfp4():
    tensor = random_tensor("MXFP4", 2, 64)
    tensor.data[:, 0] = 0  # 2 ** -128 after the doubling of the table
    got = block_weights_of(tensor)
    np.testing.assert_array_equal(got.dequantized(), tensor.array())
    assert got.scale.dtype == np.float32
    tensor.data[:, 1:17] = 0  # a block of zeros
    assert block_weights_of(tensor).scale.dtype != np.float32


def test_stacked_experts_are_rows():
    whole = random_tensor("Q4_K", 6, 256)
    stacked = GgufTensor("w", "Q4_K", (3, 2, 256), whole.data.reshape(3, 2, -1))
    np.testing.assert_array_equal(block_weights_of(stacked).words, block_weights_of(whole).words)
    assert block_weights_of(GgufTensor("w", "F16", (2, 4), np.zeros((2, 8), np.uint8))) is None
