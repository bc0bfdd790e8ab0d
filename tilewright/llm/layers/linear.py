"""Products with weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.kernel_info import pack_array
from ...ir.types import numpy_dtype, type_of
from ...schedule.nest import Pack

#: columns of a tile of weights
TILE = 64

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...ir.graph_builder import Maker


def linear(
    make: Maker,
    x: ir.Value,
    weights: Sequence[Any],
    bias: np.ndarray | None = None,
    place: str = "",
    precision: str = "f32",
) -> ir.Value:
    """x [T, K] times the transpose of weights [N, K], which are joined along N: f32 [T, N], plus bias [N].

    Weights are arrays of f32, bf16 or f16, all of one type; products are summed in f32. With the precision "bf16" x is
    rounded to bf16, and so are weights of f32.
    """
    joined = weights[0] if len(weights) == 1 else np.concatenate(weights)
    if precision == "bf16" and joined.dtype != np.float16:
        x, joined = make("cast", x, to="bf16"), joined.astype(numpy_dtype("bf16"), copy=False)
    w = make.constant(joined, place or "w")
    attributes = {} if type_of(w).dtype == "f32" else {"dtype": "f32"}
    out = make("einsum", x, w, equation="mk,nk->mn", place=place, **attributes)
    return out if bias is None else make("add", out, make.constant(np.asarray(bias, np.float32), f"{place}.bias"))


def tiled_rows(weight: np.ndarray) -> np.ndarray:
    """[N, K] as [N / 64, K, 64], rows of zeros added: in this form rows are looked up and products are taken, so that
    an embedding that is the head too is there once."""
    return pack_array(weight, Pack("w", ((TILE,), ()), (0, 2, 1)))


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
    """x [T, K] times the transpose of the first `rows` rows of what `tiled_rows` made: f32 [T, rows]."""
    attributes = {} if type_of(weight).dtype == "f32" else {"dtype": "f32"}
    out = make("einsum", x, weight, equation="mk,akb->mab", place="head", **attributes)
    count = type_of(weight).dims[0] * TILE
    out = make("reshape", out, shape=(-1, count))
    return out if count == rows else make("split", out, sizes=(rows, count - rows), axis=1)[0]


__all__ = ["linear", "linear_tiled", "rows_of_tiled", "tiled_rows"]
