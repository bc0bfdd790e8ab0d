"""Products with weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.kernel_info import pack_array, packed_shape
from ...ir.types import numpy_dtype, type_of
from ...ops.block_weights import BlockWeights
from ...schedule.nest import Pack
from ...support.huge_pages import HugePagePool, copy_released, release_pages, scratch_empty
from ...support.lazy_array import LazyArray, Stored

#: columns of a tile of weights
TILE = 64
#: numbers of x that share a scale where weights are in smaller blocks
X_BLOCK = 32
BF16 = numpy_dtype("bf16")

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...ir.graph_builder import Maker


def linear(
    make: Maker,
    x: ir.Value,
    weights: Sequence[Any],
    bias: np.ndarray | None = None,
    place: str = "",
    precision: str = "auto",
) -> ir.Value:
    """x [T, K] times the transpose of weights [N, K], which are joined along N: f32 [T, N], plus bias [N].

    Weights are arrays of f32, bf16 or f16, all of one type, or `BlockWeights`; products are summed in f32. precision:
    "f32" leaves x as it is; "auto" rounds it to bf16 for weights of bf16, and for block weights to 8 bits by blocks;
    "bf16" as that, and weights of f32 are rounded too.
    """
    if isinstance(weights[0], BlockWeights):
        out = _block_products(make, x, weights, place, precision != "f32")
        return out if bias is None else make("add", out, make.constant(np.asarray(bias, np.float32), f"{place}.bias"))
    joined = weights[0] if len(weights) == 1 else below(weights)
    if (precision == "bf16" and joined.dtype != np.float16) or (precision == "auto" and joined.dtype == BF16):
        x, joined = make("cast", x, to="bf16"), of_type(joined, BF16)
    w = make.constant(joined, place or "w")
    attributes = {} if type_of(w).dtype == "f32" else {"dtype": "f32"}
    out = make("einsum", x, w, equation="mk,nk->mn", place=place, **attributes)
    return out if bias is None else make("add", out, make.constant(np.asarray(bias, np.float32), f"{place}.bias"))


def below(weights: Sequence[Stored]) -> Stored:
    """Weights [N, K] below each other, joined when they are read."""
    rows = sum(w.shape[0] for w in weights)
    shape, dtype = (rows, *weights[0].shape[1:]), np.result_type(*{w.dtype for w in weights})

    def make() -> np.ndarray:
        out, at = scratch_empty(shape, dtype), 0
        for w in weights:
            copy_released(np.asarray(w), out[at : at + w.shape[0]])
            at += w.shape[0]
        return out

    return LazyArray(shape, dtype, make)


def of_type(array: Stored, dtype: np.dtype) -> Stored:
    """An array whose elements are converted when they are read."""
    return array if array.dtype == dtype else LazyArray(array.shape, dtype, lambda: np.asarray(array).astype(dtype))


def _block_products(make: Maker, x: ir.Value, weights: Sequence[BlockWeights], place: str, rounded: bool) -> ir.Value:
    """One product where all weights are of one form, else one for each."""
    joined = BlockWeights.joined(weights)
    parts = []
    for w in weights if joined is None else [joined]:
        if rounded and (w.zero is None or w.zero.dtype == np.uint8):
            rows = byte_rows(make, x, w)
            parts.append(
                make("integer_block_matmul", *rows, *block_operands(make, w, place), **w.attributes, place=place)
            )
        else:
            parts.append(make("block_matmul", x, *block_operands(make, w, place), **w.attributes, place=place))
    return parts[0] if len(parts) == 1 else make("concat", *parts, axis=1)


def byte_rows(make: Maker, x: ir.Value, weights: BlockWeights) -> list[ir.Value]:
    """x rounded to 8 bits by blocks, as `IntegerBlockMatmul` takes it with these weights."""
    block = weights.block if weights.shape[1] % X_BLOCK else max(weights.block, X_BLOCK)
    rows: list[ir.Value] = make("quantize_blocks", x, block=block, part=weights.block)
    return rows


def block_operands(make: Maker, weights: BlockWeights, name: str) -> list[ir.Value | None]:
    """Constants of block weights, as `BlockMatmul` takes them behind x."""
    return [None if a is None else make.constant(a, name or "w") for a in weights.operands]


def tiled_rows(weight: Stored) -> LazyArray:
    """[N, K] as [N / 64, K, 64], rows of zeros added: in this form rows are looked up and products are taken, so that
    an embedding that is the head too is there once."""
    pack = Pack("w", ((TILE,), ()), (0, 2, 1))

    def make() -> np.ndarray:
        read = np.asarray(weight)
        made = pack_array(read, pack, HugePagePool(reused=True))
        release_pages(read)
        return made

    return LazyArray(packed_shape(weight.shape, pack), weight.dtype, make)


def rows_of_tiled(make: Maker, weight: ir.Value, indices: ir.Value) -> ir.Value:
    """Rows (i32 [T], not negative) of what `tiled_rows` made: f32 [T, K]."""
    tiles, depth, _ = type_of(weight).dims
    number = "i32" if tiles * depth * TILE < 1 << 31 else "i64"
    indices, size = make("cast", indices, to=number), make.constant(numpy_dtype(number).type(TILE))
    first = make("mul", make("div", indices, size), make.constant(numpy_dtype(number).type(depth * TILE)))
    first = make("reshape", make("add", first, make("mod", indices, size)), shape=(-1, 1))
    steps = make.constant((np.arange(depth) * TILE).astype(numpy_dtype(number))[None], "steps")
    found = make("gather", make("reshape", weight, shape=(-1,)), make("add", first, steps), axis=0, place="embedding")
    return make("cast", found, to="f32")


def linear_tiled(make: Maker, x: ir.Value, weight: ir.Value, rows: int) -> ir.Value:
    """x [T, K] times the transpose of the first `rows` rows of what `tiled_rows` made: f32 [T, rows]. x stays as it is:
    rounded to bf16 it would want the weights in another layout, and few rows want logits."""
    attributes = {} if type_of(weight).dtype == "f32" else {"dtype": "f32"}
    out = make("einsum", x, weight, equation="mk,akb->mab", place="head", **attributes)
    count = type_of(weight).dims[0] * TILE
    out = make("reshape", out, shape=(-1, count))
    return out if count == rows else make("split", out, sizes=(rows, count - rows), axis=1)[0]


__all__ = ["below", "block_operands", "byte_rows", "linear", "linear_tiled", "of_type", "rows_of_tiled", "tiled_rows"]
