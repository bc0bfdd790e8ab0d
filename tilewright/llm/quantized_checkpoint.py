"""Folders of Hugging Face whose weights are quantized (``quantization_config`` in config.json): as `BlockWeights` where
a layout has codes, scales and zero points by blocks of rows, else as floats that are computed when they are read.

Layouts are those of the libraries that write them: ``fp8`` of transformers (and of DeepSeek V3), ``gptq`` of AutoGPTQ
and GPTQModel, ``awq`` of AutoAWQ (version "gemm"), ``compressed-tensors`` of llm-compressor. 8-bit floats become bf16:
no form of kernels holds them exactly in 8 bits. GPTQ with ``desc_act``, whose groups do not lie together, becomes f16,
which is what GPTQ's own kernels compute with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..ir.types import numpy_dtype
from ..ops.block_weights import BlockWeights
from ..support.errors import ModelError, UnsupportedError
from ..support.huge_pages import release_pages
from ..support.lazy_array import LazyArray

KEY = "quantization_config"
#: says how activations and caches are rounded, which they are not here
UNUSED = ("input_scale", "output_scale", "k_scale", "v_scale", "q_scale", "input_zero_point", "input_global_scale")
#: blocks are of at most so many numbers; larger groups are several with one scale
BLOCK = 128
BF16 = numpy_dtype("bf16")
#: the columns of AutoAWQ's words, by the place of their four bits
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

#: tensors of a weight by the last part of their names
Parts = dict[str, np.ndarray]


def read_quantized(said: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The tensors of a folder with those of each quantized weight as one, ``NAME.weight``. said: what config.json has
    under `KEY`. UnsupportedError for a method or a form that is not read; ModelError for tensors that do not fit."""
    method = str(said.get("quant_method"))
    if method not in METHODS:
        raise UnsupportedError(
            f"the model is quantized by {method!r} (quant_method of config.json)",
            stage="import",
            hint=f"read are {', '.join(METHODS)}; or take the model that is not quantized, or a GGUF file of it",
        )
    mark, read = METHODS[method](said)
    owners = {n.rpartition(".")[0] for n in tensors if n.rpartition(".")[2] in mark}
    made: dict[str, Any] = {}
    parts: dict[str, Parts] = {}
    for name, array in tensors.items():
        stem, _, last = name.rpartition(".")
        if last in UNUSED:
            continue
        if stem in owners and last != "bias":
            parts.setdefault(stem, {})[last] = array
        else:
            made[name] = array
    for stem, own in parts.items():
        try:
            made[f"{stem}.weight"] = read(own)
        except (KeyError, ValueError, IndexError, TypeError) as e:
            what = f"has no {e}" if isinstance(e, KeyError) else str(e)
            raise ModelError(f"{stem}, quantized by {method}, {what}", stage="import") from e
    return made


# ---- numbers in words ----


def numbers(words: np.ndarray, bits: int) -> np.ndarray:
    """Numbers (ui8) in the 32-bit words [N, W], the lowest bits first: [N, 32 / bits * W].

    >>> numbers(np.array([[0x21]], np.int32), 4)[0, :3].tolist()
    [1, 2, 0]
    """
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((data[..., None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(data), -1)


def _awq_numbers(words: np.ndarray) -> np.ndarray:
    """As `numbers`, in AutoAWQ's order."""
    found = numbers(words, 4).reshape(len(words), -1, 8)
    out = np.empty_like(found)
    out[..., AWQ_ORDER] = found
    return out.reshape(len(words), -1)


def _blocks(
    codes: Callable[[], np.ndarray], shape: tuple[int, int], bits: int, scale: np.ndarray, zero: np.ndarray | int
) -> BlockWeights:
    """Weights [N, K] of codes that are computed later, with scale and zero points [N, groups]."""
    n, k = shape
    groups = scale.shape[1]
    group = k // groups
    if scale.shape != (n, groups) or group * groups != k:
        raise ValueError(f"has {list(shape)} numbers and scales {list(scale.shape)}")
    block = min(group & -group, BLOCK)
    if block < 16:
        raise UnsupportedError(f"groups of {group} numbers are not read", stage="import", hint="multiples of 16 are")
    if scale.dtype == BF16:
        scale = scale.astype(np.float32)
    more: dict[str, Any] = {}
    if isinstance(zero, np.ndarray) and zero.size and (zero == zero.flat[0]).all():
        zero = int(zero.flat[0])
    if isinstance(zero, np.ndarray):
        if zero.shape != scale.shape:
            raise ValueError(f"has scales {list(scale.shape)} and zero points {list(zero.shape)}")
        more["zero"] = np.repeat(zero.astype(np.uint8), group // block, 1)
    else:
        more["offset"] = zero
    each = np.repeat(scale, group // block, 1)

    def make() -> BlockWeights:
        return BlockWeights.of_codes(codes(), bits, block, each, **more)

    words = LazyArray((n, k // block, block * bits // 32), np.dtype(np.uint32), lambda: make().words)
    like = BlockWeights(words, each, more.get("zero"), bits, block, offset=more.get("offset", -1))
    return BlockWeights.lazy(like, n, make)


def _released(read: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> np.ndarray:
    made = read(array)
    release_pages(array)
    return made


# ---- methods: what marks a weight, and what its tensors become ----


def _fp8(said: Mapping[str, Any]) -> Any:
    size = said.get("weight_block_size")
    return ("weight_scale_inv", "weight_scale"), partial(_scaled, size=tuple(size) if size else None)


def _scaled(own: Parts, size: tuple[int, int] | None) -> LazyArray:
    """8-bit floats [N, K] times scales: one, one a row, or one for each rectangle of `size`."""
    weight = own["weight"]
    scale = own["weight_scale_inv" if "weight_scale_inv" in own else "weight_scale"]
    n, k = weight.shape
    if size is not None and scale.shape != (-(-n // size[0]), -(-k // size[1])):
        raise ValueError(f"has scales {list(scale.shape)} for {[n, k]} numbers in blocks of {list(size)}")
    if size is None and scale.size not in (1, n):
        raise ValueError(f"has {scale.size} scales for {n} rows")

    def make() -> np.ndarray:
        out, by = np.empty((n, k), BF16), np.asarray(scale, np.float32)
        step = size[0] if size else 256
        for i in range(0, n, step):
            rows = slice(i, min(i + step, n))
            if size:
                factor = np.repeat(by[i // step], size[1])[:k]
            else:
                factor = by.reshape(-1, 1) if by.size == 1 else by.reshape(-1, 1)[rows]
            out[rows] = (weight[rows].astype(np.float32) * factor).astype(BF16)
        release_pages(weight)
        return out

    return LazyArray((n, k), BF16, make)


def _bits_of(bits: Any, method: str) -> int:
    if bits not in (4, 8):
        raise UnsupportedError(
            f"the model is quantized by {method!r} in {bits} bits", stage="import", hint="4 and 8 are read"
        )
    return int(bits)


def _gptq(said: Mapping[str, Any]) -> Any:
    bits = _bits_of(said.get("bits"), "gptq")
    # what the first form of the format has is less by one
    return ("qweight",), partial(_gptq_weight, bits=bits, more=said.get("checkpoint_format", "gptq") != "gptq_v2")


def _gptq_weight(own: Parts, bits: int, more: bool) -> BlockWeights | LazyArray:
    words, scale = own["qweight"], own["scales"]
    n, k = words.shape[1], words.shape[0] * 32 // bits
    groups = scale.shape[0]
    zero = numbers(own["qzeros"], bits)[:, :n].astype(np.int16) + more
    index = own.get("g_idx")
    codes = partial(_released, lambda w: numbers(np.ascontiguousarray(w.T), bits), words)
    if index is None or not index.any() or (index == np.arange(k) // (k // groups)).all():
        if zero.max() < 256:
            return _blocks(codes, (n, k), bits, np.ascontiguousarray(scale.T), np.ascontiguousarray(zero.T))
        index = np.arange(k) // (k // groups)
    if len(index) != k or index.min() < 0 or index.max() >= groups:
        raise ValueError(f"has groups {index.min()} to {index.max()} of {groups}")

    def make() -> np.ndarray:
        by, at = np.asarray(scale, np.float32).T, zero.T
        return ((codes() - at[:, index]) * by[:, index]).astype(np.float16)

    return LazyArray((n, k), np.dtype(np.float16), make)


def _awq(said: Mapping[str, Any]) -> Any:
    version = str(said.get("version", "gemm")).lower()
    if version != "gemm" or said.get("bits", said.get("w_bit")) != 4:
        raise UnsupportedError(
            f"the model is quantized by 'awq', version {version!r}, {said.get('bits')} bits",
            stage="import",
            hint="version 'gemm' with 4 bits is read",
        )
    return ("qweight",), _awq_weight


def _awq_weight(own: Parts) -> BlockWeights:
    words, scale = own["qweight"], own["scales"]
    shape = (words.shape[1] * 8, words.shape[0])
    zero: Any = np.ascontiguousarray(_awq_numbers(own["qzeros"]).T) if "qzeros" in own else 8
    codes = partial(_released, lambda w: np.ascontiguousarray(_awq_numbers(w).T), words)
    return _blocks(codes, shape, 4, np.ascontiguousarray(scale.T), zero)


def _compressed(said: Mapping[str, Any]) -> Any:
    groups = [g.get("weights") or {} for g in (said.get("config_groups") or {}).values()]
    kinds = {(g.get("format") or said.get("format")) for g in (said.get("config_groups") or {}).values()}
    forms = {(g.get("type"), g.get("num_bits"), tuple(g.get("block_structure") or ())) for g in groups}
    if len(kinds) != 1 or len(forms) != 1:
        raise UnsupportedError(
            f"the model is quantized by 'compressed-tensors' in several forms: {', '.join(map(str, kinds))}",
            stage="import",
        )
    (kind,), ((type_, bits, block),) = kinds, forms
    if kind in ("float-quantized", "naive-quantized") and (type_, bits) == ("float", 8):
        return ("weight_scale",), partial(_scaled, size=block or None)
    if kind == "pack-quantized" and type_ == "int":
        return ("weight_packed",), partial(_packed_weight, bits=_bits_of(bits, "compressed-tensors"))
    if kind in ("int-quantized", "naive-quantized") and (type_, bits) == ("int", 8):
        return ("weight_scale",), _int_weight
    raise UnsupportedError(
        f"the model is quantized by 'compressed-tensors' in the form {kind!r} with {bits} bits of {type_}",
        stage="import",
        hint="float-quantized, int-quantized and pack-quantized are read",
    )


def _packed_weight(own: Parts, bits: int) -> BlockWeights:
    words, scale = own["weight_packed"], own["weight_scale"]
    n, k = (int(x) for x in own["weight_shape"])
    if "weight_g_idx" in own and own["weight_g_idx"].min() >= 0:
        raise UnsupportedError("groups of 'compressed-tensors' that do not lie together are not read", stage="import")
    zero: Any = 1 << bits - 1
    if "weight_zero_point" in own:
        zero = np.ascontiguousarray(numbers(np.ascontiguousarray(own["weight_zero_point"].T), bits).T[:n])
    codes = partial(_released, lambda w: numbers(w, bits)[:, :k], words)
    return _blocks(codes, (n, k), bits, scale.reshape(n, -1), zero)


def _int_weight(own: Parts) -> BlockWeights:
    weight, scale = own["weight"], own["weight_scale"]
    n = len(weight)
    by = np.resize(scale, (n, 1)) if scale.size == 1 else scale.reshape(n, -1)
    zero: Any = 128
    if "weight_zero_point" in own:
        zero = np.resize(own["weight_zero_point"], by.shape).astype(np.int16) + 128
    return _blocks(partial(_released, lambda w: w.view(np.uint8) ^ np.uint8(128), weight), weight.shape, 8, by, zero)


METHODS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "fp8": _fp8, "gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed,
}  # fmt: skip

__all__ = ["KEY", "read_quantized"]
