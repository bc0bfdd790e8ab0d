"""Quantized tensors of GGUF -> `BlockWeights`, exactly: each type is written down as the codes, scales and minima that
its blocks hold. Types of fewer than 4 bits whose values come from grids are kept as 4 bits with a table of 16.

Nothing is computed in floats but scales times powers of two, so `BlockWeights.dequantized` gives the numbers that the
package `gguf` dequantizes to, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.block_weights import BlockWeights
from ...support.huge_pages import release_pages, scratch_empty

if TYPE_CHECKING:
    from .reader import GgufTensor

#: weights that are unpacked at a time: what is made of them stays in the cache
CHUNK = 1 << 18
#: numbers of a block with two levels of scales
SUPER = 256

#: what `_Kind.unpack` gives, by the names of the fields of `BlockWeights`; "codes" ui8
Fields = dict[str, np.ndarray]


@dataclass(frozen=True)
class _Kind:
    """unpack: blocks ui8 [n, blocks, bytes] -> fields [n, blocks, ...]. varies: their types depend on what is read."""

    unpack: Callable[[np.ndarray], Fields]
    bits: int
    block: int
    offset: int = -1
    table: tuple[int, ...] = ()
    constant: dict[str, Any] = field(default_factory=dict)
    varies: bool = False


def block_weights_of(tensor: GgufTensor) -> BlockWeights | None:
    """Weights [N, K] (further dimensions are taken as rows) in the form that kernels read, unpacked when they are read
    (`BlockWeights.lazy`); None for types that are not quantized by block."""
    if (kind := _kinds().get(tensor.kind)) is None:
        return None
    if len(tensor.shape) != 2:
        data = tensor.rows(0, tensor.shape[0]).reshape(-1, tensor.data.shape[-1])
        tensor = replace(tensor, shape=(len(data), tensor.shape[-1]), data=data, order=None)
    rows = tensor.shape[0]
    like = _of_rows(kind, tensor, 0, rows if kind.varies else 1)
    return BlockWeights.lazy(like, rows, partial(_of_rows, kind, tensor, 0, rows))


def _of_rows(kind: _Kind, tensor: GgufTensor, first: int, last: int) -> BlockWeights:
    """Memory beside the result: a few megabytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    size, bytes_ = GGML_QUANT_SIZES[GGMLQuantizationType[tensor.kind]]
    k = tensor.shape[-1]
    step = max(CHUNK // k, 1)
    made: dict[str, Any] = {}
    for i in range(first, last, step):
        part = _unpacked(kind, tensor.rows(i, min(i + step, last)).reshape(-1, k // size, bytes_), k)
        for name, new in part.arrays.items():
            if name not in made:
                made[name] = scratch_empty((last - first, *new.shape[1:]), new.dtype)
            elif new.dtype != made[name].dtype:  # scales of MXFP4
                made[name] = made[name].astype(np.float32)
            made[name][i - first : i - first + len(new)] = new
    release_pages(tensor.data)
    return replace(part, **made)


def _unpacked(kind: _Kind, rows: np.ndarray, k: int) -> BlockWeights:
    n = len(rows)
    made = {name: a.reshape(n, -1) for name, a in kind.unpack(rows).items()}
    made |= {name: np.full((n, 1), value) for name, value in kind.constant.items()}
    codes, scale = made.pop("codes"), made.pop("scale")
    return BlockWeights.of_codes(codes, kind.bits, kind.block, scale, offset=kind.offset, table=kind.table, **made)


def _numbers(a: np.ndarray, bits: int, run: int | None = None) -> np.ndarray:
    """Numbers of `bits` bits in bytes [..., m]: of each run of bytes (None: of all) the lowest numbers first, then the
    next ones."""
    runs = a.reshape(*a.shape[:-1], -1, 1, run or a.shape[-1])
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return ((runs >> shifts) & np.uint8((1 << bits) - 1)).reshape(*a.shape[:-1], -1)


def _in_order(a: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of `bits` bits in bytes [..., m], byte after byte."""
    return _numbers(a, bits, 1)


def _halves(a: np.ndarray) -> np.ndarray:
    """Floats of two bytes in bytes [..., 2 m]."""
    return np.ascontiguousarray(a).view("<f2")


def _q4_0(r: np.ndarray) -> Fields:
    return {"scale": _halves(r[..., :2]), "codes": _numbers(r[..., 2:], 4)}


def _q4_1(r: np.ndarray) -> Fields:
    return {"scale": _halves(r[..., :2]), "minimum": -_halves(r[..., 2:4]), "codes": _numbers(r[..., 4:], 4)}


def _q5_0(r: np.ndarray) -> Fields:
    codes = _numbers(r[..., 6:], 4) | _in_order(r[..., 2:6], 1) << 4
    return {"scale": _halves(r[..., :2]), "codes": codes}


def _q5_1(r: np.ndarray) -> Fields:
    codes = _numbers(r[..., 8:], 4) | _in_order(r[..., 4:8], 1) << 4
    return {"scale": _halves(r[..., :2]), "minimum": -_halves(r[..., 2:4]), "codes": codes}


def _q8_0(r: np.ndarray) -> Fields:
    return {"scale": _halves(r[..., :2]), "codes": r[..., 2:] ^ 0x80}


def _q2_k(r: np.ndarray) -> Fields:
    return {
        "inner": r[..., :16] & 15,
        "inner_minimum": r[..., :16] >> 4,
        "codes": _numbers(r[..., 16:80], 2, 32),
        "scale": _halves(r[..., 80:82]),
        "minimum": _halves(r[..., 82:84]),
    }


def _q3_k(r: np.ndarray) -> Fields:
    scales = _numbers(r[..., 96:104], 4) | _numbers(r[..., 104:108], 2) << 4
    return {
        "codes": _numbers(r[..., 32:96], 2, 32) | _numbers(r[..., :32], 1) << 2,
        "inner": scales.view(np.int8) - np.int8(32),
        "scale": _halves(r[..., 108:110]),
    }


def _six_bits(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight minima of six bits, in twelve bytes."""
    first, second, last = a[..., :4], a[..., 4:8], a[..., 8:]
    scales = np.concatenate([first & 63, (last & 15) | (first >> 6) << 4], -1)
    return scales, np.concatenate([second & 63, (last >> 4) | (second >> 6) << 4], -1)


def _q4_k(r: np.ndarray) -> Fields:
    scales, minima = _six_bits(r[..., 4:16])
    codes = _numbers(r[..., 16:], 4, 32)
    halves = _halves(r[..., :4])
    return {
        "scale": halves[..., 0], "minimum": halves[..., 1], "inner": scales, "inner_minimum": minima, "codes": codes,
    }  # fmt: skip


def _q5_k(r: np.ndarray) -> Fields:
    codes = _numbers(r[..., 48:], 4, 32) | _numbers(r[..., 16:48], 1) << 4
    return _q4_k(r[..., :16]) | {"codes": codes}


def _q6_k(r: np.ndarray) -> Fields:
    return {
        "codes": _numbers(r[..., :128], 4, 64) | _numbers(r[..., 128:192], 2, 32) << 4,
        "inner": np.ascontiguousarray(r[..., 192:208]).view(np.int8),
        "scale": _halves(r[..., 208:]),
    }


def _tq1_0(r: np.ndarray) -> Fields:
    """Five numbers of three values in a byte: the leading digits of a fraction in base 3."""

    def digits(a: np.ndarray, count: int) -> np.ndarray:
        shifted = (
            a[..., None, :] * (3 ** np.arange(count, dtype=np.uint8))[:, None]
        )  # of 8 bits: what overflows is read
        return (shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(*a.shape[:-1], -1)

    codes = [digits(r[..., :32], 5), digits(r[..., 32:48], 5), digits(r[..., 48:52], 4)]
    return {"codes": np.concatenate(codes, -1), "scale": _halves(r[..., 52:])}


def _tq2_0(r: np.ndarray) -> Fields:
    return {"codes": _numbers(r[..., :64], 2, 32), "scale": _halves(r[..., 64:])}


def _iq4_xs(r: np.ndarray) -> Fields:
    scales = _in_order(r[..., 4:8], 4) | _in_order(r[..., 2:4], 2) << 4
    return {
        "scale": _halves(r[..., :2]),
        "inner": scales.view(np.int8) - np.int8(32),
        "codes": _numbers(r[..., 8:], 4, 16),
    }


def _mxfp4(r: np.ndarray) -> Fields:
    """The table has the values doubled. Powers of two below 2 ** -127, which the type of the scales lacks, become f32
    where a number has one."""
    from gguf.quants import MXFP4
    from ml_dtypes import float8_e8m0fnu

    codes, powers = _numbers(r[..., 1:], 4), r[..., 0]
    if ((powers == 0) & (codes & 7).any(-1)).any():
        return {"codes": codes, "scale": MXFP4.e8m0_to_fp32_half(powers)}
    return {"codes": codes, "scale": (np.maximum(powers, 1) - np.uint8(1)).view(float8_e8m0fnu)}


def _nvfp4(r: np.ndarray) -> Fields:
    from ml_dtypes import float8_e4m3fn

    scales = r[..., :4] & 0x7F
    return {
        "codes": _numbers(r[..., 4:], 4, 8),
        "inner": np.where(scales == 0x7F, np.uint8(0), scales).view(float8_e4m3fn),
    }


@cache
def _grid(name: str) -> np.ndarray:
    """The grid of a type: for each number of a point, the places of its values in `grid_map`, in one integer."""
    from gguf import quants

    kind: Any = getattr(quants, name)
    kind.init_grid()
    places = np.searchsorted(np.array(kind.grid_map), kind.grid.reshape(kind.grid_shape)).astype(np.uint8)
    return places.view("<u8" if kind.grid_shape[1] == 8 else "<u4")[:, 0]


def _points(name: str, index: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Codes of points of a grid: the place of the value, and 8 where the bits of `negative` (ui8, one for 8 values) are
    set."""
    made = np.take(_grid(name), index).view(np.uint8).reshape(*index.shape[:-1], -1)
    return made | _in_order(negative, 1) << 3


def _sevens(words: np.ndarray) -> np.ndarray:
    """Signs in words of 32 bits: four times seven, the eighth makes their number even."""
    return np.take(_even(), (words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32)) & 127).reshape(
        *words.shape[:-1], -1
    )


@cache
def _even() -> np.ndarray:
    seven = np.arange(128, dtype=np.uint8)
    return seven | (np.unpackbits(seven[:, None], axis=1).sum(1).astype(np.uint8) & 1) << 7


def _eighths(r: np.ndarray, by: float = 0.125) -> np.ndarray:
    return _halves(r[..., :2]).astype(np.float32) * np.float32(by)


def _odd(a: np.ndarray) -> np.ndarray:
    return (2 * a + 1).astype(np.uint8)


def _words(a: np.ndarray, form: str) -> np.ndarray:
    return np.ascontiguousarray(a).view(form)


def _high(a: np.ndarray, bits: int) -> np.ndarray:
    """High bits of an index, in bytes one after the other."""
    return _in_order(a, bits).astype(np.uint16) << 8


def _iq2_xxs(r: np.ndarray) -> Fields:
    words = _words(r[..., 2:], "<u4")
    index = _words(words[..., ::2], "u1")
    codes = _points("IQ2_XXS", index, _sevens(words[..., 1::2]))
    return {"codes": codes, "scale": _eighths(r), "inner": _odd(words[..., 1::2] >> 28)}


def _iq2_xs(r: np.ndarray) -> Fields:
    words = _words(r[..., 2:66], "<u2")
    codes = _points("IQ2_XS", words & 511, np.take(_even(), words >> 9))
    return {"codes": codes, "scale": _eighths(r), "inner": _odd(_in_order(r[..., 66:], 4))}


def _iq2_s(r: np.ndarray) -> Fields:
    codes = _points("IQ2_S", r[..., 2:34] | _high(r[..., 66:74], 2), r[..., 34:66])
    return {"codes": codes, "scale": _eighths(r), "inner": _odd(_in_order(r[..., 74:], 4))}


def _iq3_xxs(r: np.ndarray) -> Fields:
    words = _words(r[..., 66:], "<u4")
    codes = _points("IQ3_XXS", r[..., 2:66], _sevens(words))
    return {"codes": codes, "scale": _eighths(r, 0.25), "inner": _odd(words >> 28)}


def _iq3_s(r: np.ndarray) -> Fields:
    codes = _points("IQ3_S", r[..., 2:66] | _high(r[..., 66:74], 1), r[..., 74:106])
    return {"codes": codes, "scale": _halves(r[..., :2]), "inner": _odd(_in_order(r[..., 106:], 4))}


def _iq1_s(r: np.ndarray) -> Fields:
    words = _words(r[..., 34:], "<u2")
    high = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(*words.shape[:-1], -1)
    negative = np.repeat(np.where(words >> 15, np.uint8(255), np.uint8(0)), 4, -1)
    codes = _points("IQ1_S", r[..., 2:34] | high << 8, negative)
    return {"codes": codes, "scale": _eighths(r), "inner": _odd(words >> 12 & 7)}


def _iq1_m(r: np.ndarray) -> Fields:
    words = _words(r[..., 48:], "<u2")
    scale = (words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)).sum(-1, dtype=np.uint16)[..., None]
    inner = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(*words.shape[:-1], -1)
    high = _in_order(r[..., 32:48], 4)
    negative = np.where(high & 8, np.uint8(255), np.uint8(0))
    codes = _points("IQ1_M", r[..., :32] | (high & 7).astype(np.uint16) << 8, negative)
    return {"codes": codes, "scale": _eighths(scale.view(np.uint8)), "inner": _odd(inner)}


def _signed(*values: int) -> tuple[int, ...]:
    """A table for `_points`: places of values, and the same negative."""
    half = (*values, *[0] * (8 - len(values)))
    return (*half, *(-v for v in half))


@cache
def _kinds() -> dict[str, _Kind]:
    from gguf import quants

    def table(kind: Any) -> tuple[int, ...]:
        return tuple(map(int, kind.kvalues))

    def magnitudes(kind: Any) -> tuple[int, ...]:
        return _signed(*map(int, kind.grid_map))

    # three values, times 8, an eighth more or less
    ternary = (-7, 1, 9, *[0] * 5, -9, -1, 7, *[0] * 5)
    iq2, iq3 = magnitudes(quants.IQ2_XXS), magnitudes(quants.IQ3_XXS)
    return {
        "Q4_0": _Kind(_q4_0, 4, 32, 8),
        "Q4_1": _Kind(_q4_1, 4, 32, 0),
        "Q5_0": _Kind(_q5_0, 5, 32, 16),
        "Q5_1": _Kind(_q5_1, 5, 32, 0),
        "Q8_0": _Kind(_q8_0, 8, 32, 128),
        "Q2_K": _Kind(_q2_k, 2, 16, 0),
        "Q3_K": _Kind(_q3_k, 4, 16, 4),
        "Q4_K": _Kind(_q4_k, 4, 32, 0),
        "Q5_K": _Kind(_q5_k, 5, 32, 0),
        "Q6_K": _Kind(_q6_k, 6, 16, 32),
        "TQ1_0": _Kind(_tq1_0, 2, SUPER, 1),
        "TQ2_0": _Kind(_tq2_0, 2, SUPER, 1),
        "IQ4_NL": _Kind(_q4_0, 4, 32, table=table(quants.IQ4_NL)),
        "IQ4_XS": _Kind(_iq4_xs, 4, 32, table=table(quants.IQ4_NL)),
        "MXFP4": _Kind(_mxfp4, 4, 32, table=table(quants.MXFP4), varies=True),
        "NVFP4": _Kind(_nvfp4, 4, 16, table=table(quants.NVFP4), constant={"scale": np.float32(0.5)}),
        "IQ2_XXS": _Kind(_iq2_xxs, 4, 32, table=iq2),
        "IQ2_XS": _Kind(_iq2_xs, 4, 16, table=iq2),
        "IQ2_S": _Kind(_iq2_s, 4, 16, table=iq2),
        "IQ3_XXS": _Kind(_iq3_xxs, 4, 32, table=iq3),
        "IQ3_S": _Kind(_iq3_s, 4, 32, table=magnitudes(quants.IQ3_S)),
        "IQ1_S": _Kind(_iq1_s, 4, 32, table=ternary),
        "IQ1_M": _Kind(_iq1_m, 4, 16, table=ternary),
    }


__all__ = ["block_weights_of"]
