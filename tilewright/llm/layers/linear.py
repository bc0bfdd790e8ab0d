"""Products with weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.types import numpy_dtype, type_of

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


__all__ = ["linear"]
