"""Quantized folders of Hugging Face: each layout is written here bit by bit, and read back to what it stands for."""

import json

import ml_dtypes
import numpy as np
import pytest

from tests.llm.test_program import CONFIG, LIMITS, NAMES, batch, tensors, write_file
from tilewright.llm.checkpoint import FolderSource
from tilewright.llm.program import load_model
from tilewright.llm.quantized_checkpoint import read_quantized
from tilewright.ops.block_weights import BlockWeights
from tilewright.support.errors import ModelError, UnsupportedError

NAMES |= {np.int32: "I32", np.int8: "I8", np.float16: "F16", ml_dtypes.float8_e4m3fn: "F8_E4M3", np.int64: "I64"}
GROUP = 32


def words(numbers, bits, order=None):
    """Numbers [rows, n] in words [rows, n * bits / 32], the first in the lowest bits."""
    each = 32 // bits
    made = np.zeros((len(numbers), numbers.shape[1] // each), np.uint32)
    for i in range(each):
        made |= numbers[:, (order or range(each))[i] :: each].astype(np.uint32) << np.uint32(bits * i)
    return made.view(np.int32)


def gptq(random, w, bits=4, symmetric=False, order=False, v2=False):
    n, k = w.shape
    q = random.integers(0, 1 << bits, (k, n))
    groups = k // GROUP
    zero = np.full((groups, n), 1 << bits - 1) if symmetric else random.integers(1, 1 << bits, (groups, n))
    scale = random.uniform(0.01, 0.02, (groups, n)).astype(np.float16)
    index = (random.permutation(k) if order else np.arange(k)) // GROUP
    parts = {"qweight": words(q.T, bits).T.copy(), "qzeros": words(zero - (not v2), bits), "scales": scale}
    value = (q - zero[index]) * scale.astype(np.float32)[index]
    return parts | {"g_idx": index.astype(np.int32)}, value.T.astype(np.float16) if order else value.T


def awq(random, w):
    n, k = w.shape
    q, zero = random.integers(0, 16, (k, n)), random.integers(0, 16, (k // GROUP, n))
    scale = random.uniform(0.01, 0.02, zero.shape).astype(np.float16)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    value = (q - zero.repeat(GROUP, 0)) * scale.astype(np.float32).repeat(GROUP, 0)
    return {"qweight": words(q, 4, order), "qzeros": words(zero, 4, order), "scales": scale}, value.T


def fp8(random, w, block=(48, 40), name="weight_scale_inv"):
    q = random.standard_normal(w.shape, np.float32).astype(ml_dtypes.float8_e4m3fn)
    shape = [-(-a // b) for a, b in zip(w.shape, block, strict=True)] if block else (len(w), 1)
    scale = random.uniform(0.01, 0.2, shape).astype(np.float32)
    each = np.kron(scale, np.ones(block, np.float32))[: w.shape[0], : w.shape[1]] if block else scale
    return {"weight": q, name: scale}, (q.astype(np.float32) * each).astype(ml_dtypes.bfloat16)


def pack_quantized(random, w, bits=4, zeros=False):
    n, k = w.shape
    half = 1 << bits - 1
    q, groups = random.integers(-half, half, (n, k)), k // GROUP
    scale = random.uniform(0.01, 0.02, (n, groups)).astype(ml_dtypes.bfloat16)
    zero = random.integers(-half, half, (n, groups)) if zeros else np.zeros((n, groups), np.int64)
    parts = {"weight_packed": words(q + half, bits), "weight_scale": scale, "weight_shape": np.array([n, k])}
    if zeros:
        parts["weight_zero_point"] = words((zero + half).T, bits).T.copy()
    return parts, (q - zero.repeat(GROUP, 1)) * scale.astype(np.float32).repeat(GROUP, 1)


def int_quantized(random, w):
    q, scale = random.integers(-128, 128, w.shape).astype(np.int8), random.uniform(0.01, 0.02, (len(w), 1))
    scale = scale.astype(np.float32)
    return {"weight": q, "weight_scale": scale}, q * scale


def compressed(kind, type_, bits):
    group = {"targets": ["Linear"], "weights": {"type": type_, "num_bits": bits, "strategy": "group"}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}


CASES = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, gptq, {}),
    "gptq_8": ({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}, gptq, {"bits": 8, "v2": True}),
    "gptq_symmetric": ({"quant_method": "gptq", "bits": 4, "sym": True}, gptq, {"symmetric": True}),
    "gptq_order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq, {"order": True}),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq, {}),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [48, 40]}, fp8, {}),
    "fp8_rows": (compressed("float-quantized", "float", 8), fp8, {"block": None, "name": "weight_scale"}),
    "packed": (compressed("pack-quantized", "int", 4), pack_quantized, {}),
    "packed_zeros": (compressed("pack-quantized", "int", 8), pack_quantized, {"bits": 8, "zeros": True}),
    "int": (compressed("int-quantized", "int", 8), int_quantized, {}),
}


def saved(folder, case):
    """A folder, and its weights as floats by the names of a folder that is not quantized."""
    said, make, more = CASES[case]
    random, found, floats = np.random.default_rng(3), {}, {}
    for name, w in tensors(np.float32).items():
        floats[name] = found[name] = w
        if name.endswith("_proj.weight"):
            parts, floats[name] = make(random, w, **more)
            del found[name]
            found |= {f"{name.removesuffix('weight')}{n}": a for n, a in parts.items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": said}))
    write_file(
        folder / "model.safetensors", {**found, "model.layers.0.self_attn.k_proj.k_scale": np.ones(1, np.float32)}
    )
    return floats


@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_the_layout_says(case, tmp_path):
    floats = saved(tmp_path / "q", case)
    _, weights = FolderSource(tmp_path / "q").read()
    kept = 0
    for name, here in (("self_attn.k_proj", "attention.k"), ("mlp.down_proj", "mlp.down"), ("mlp.up_proj", "mlp.up")):
        got, wanted = weights[f"layers.1.{here}.weight"], floats[f"model.layers.1.{name}.weight"]
        assert got.shape == wanted.shape
        kept += isinstance(got, BlockWeights)
        read = got.dequantized() if isinstance(got, BlockWeights) else np.asarray(got)
        assert read.dtype == wanted.dtype or read.dtype == np.float32
        np.testing.assert_array_equal(read, wanted.astype(read.dtype))
    assert kept == (0 if case in ("gptq_order", "fp8", "fp8_rows") else 3)


def test_a_quantized_folder_runs(tmp_path):
    floats = saved(tmp_path / "q", "awq")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "config.json").write_text(json.dumps(CONFIG))
    write_file(tmp_path / "f" / "model.safetensors", {n: w.astype(np.float32) for n, w in floats.items()})
    how = {"threads": 1, "cache_dtype": "f32", "precision": "f32", "cache": False} | LIMITS
    got, wanted = (load_model(tmp_path / n, **how).step(batch([5, 6, 7])).logits for n in "qf")
    np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "said, message",
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "by 'bitsandbytes'"),
        ({"quant_method": "mxfp4"}, "by 'mxfp4'"),
        ({"quant_method": "gptq", "bits": 3}, "'gptq' in 3 bits"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'"),
        (compressed("nvfp4-pack-quantized", "float", 4), "nvfp4-pack-quantized"),
    ],
)
def test_methods_that_are_not_read(said, message):
    with pytest.raises(UnsupportedError, match=message):
        read_quantized(said, {})


def test_tensors_that_do_not_fit():
    random = np.random.default_rng(0)
    parts, _ = awq(random, np.zeros((64, 64)))
    for wrong, message in (
        ({"scales": parts["scales"][:, 1:]}, "x, quantized by awq"),
        ({"scales": None}, "no 'scales'"),
    ):
        own = {f"x.{n}": a for n, a in (parts | wrong).items() if a is not None}
        with pytest.raises(ModelError, match=message):
            read_quantized(CASES["awq"][0], own)
