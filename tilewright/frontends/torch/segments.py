"""Segment reductions and embedding bags: runs of rows whose lengths are data, but not their number."""

from __future__ import annotations

import math
import operator
from typing import Any

from .index import neutral, positions
from .node import FxNode, FxTensor
from .registry import aten

COMBINES = {"sum": "add", "mean": "add", "max": "max", "min": "min", "prod": "mul"}
REDUCES = {"add": "reduce_sum", "max": "reduce_max", "min": "reduce_min", "mul": "reduce_prod"}


def masked(n: FxNode, x: FxTensor, mask: FxTensor, combine: str, axis: int) -> FxTensor:
    """Reduces x [..., segments or 1, rows, ...] over `axis`, only where the mask (of x's rank) holds."""
    none = n.full((), neutral(x.dtype, combine), x.dtype)
    made: FxTensor = n(REDUCES[combine], n("where", mask, x, none), axes=(axis,))
    return made


@aten("segment_reduce")
def segment_reduce(n: FxNode, x: FxTensor, reduce: str, *, lengths: FxTensor | None = None, indices: Any = None,
                   offsets: FxTensor | None = None, axis: int = 0, unsafe: bool = False,
                   initial: float | None = None) -> FxTensor:  # fmt: skip
    n.need(indices is None and (lengths is not None or offsets is not None), "by indices")
    n.need(reduce in COMBINES, f"with reduce={reduce!r}")
    if not math.prod(n.shape):
        return n.full(n.shape, 0, n.dtype)
    if lengths is not None:
        size = n.cast(lengths, "i64")
        end = n("cumsum", size, axis=size.rank - 1)
        start = n("sub", end, size)
    else:
        assert offsets is not None
        at, last = n.cast(offsets, "i64"), offsets.rank - 1
        start, end = (n.slice(at, last, i, offsets.shape[last] - 1) for i in (0, 1))
        size = n("sub", end, start)
    combine, outer = COMBINES[reduce], axis
    first = neutral(x.dtype, combine) if initial is None else initial
    inner = x.shape[axis + 1 :]
    ones = (1,) * len(inner)
    if not math.prod(x.shape):
        made = n.full(n.shape, first, x.dtype)
    else:
        rows = n.count(x.shape[axis])
        inside = n("and", n("less_equal", n.unsqueeze(start, outer + 1), rows),
                   n("less", rows, n.unsqueeze(end, outer + 1)))  # fmt: skip
        made = masked(n, n.unsqueeze(x, axis), n.reshape(inside, (*inside.shape, *ones)), combine, axis + 1)
        if initial is not None:
            made = n(combine, made, n.full((), first, x.dtype))
    if reduce != "mean":
        return made
    count = n.cast(n.reshape(size, (*size.shape, *ones)), x.dtype)
    empty = n.full((), math.nan if initial is None else first, x.dtype)
    return n("where", n("equal", count, 0.0), empty, n("div", made, count))


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(n: FxNode, weight: FxTensor, indices: FxTensor, offsets: FxTensor, scale_grad: bool = False,
                  mode: int = 0, sparse: bool = False, per_sample_weights: FxTensor | None = None,
                  include_last_offset: bool = False, padding_idx: int = -1) -> list[FxTensor | None]:  # fmt: skip
    """Sums (0), means (1) or largest (2) of the rows of each bag; those of the padding do not count."""
    used = {u.args[1] for u in n.node.users if u.target is operator.getitem}
    n.need(used <= {0}, "with the places of what it reads")
    others: list[FxTensor | None] = [None, None, None]
    bags, width = n.shape
    if not bags or not width or not math.prod(indices.shape):
        return [n.full(n.shape, 0, n.dtype), *others]
    at = positions(n, n.reshape(indices, (math.prod(indices.shape),)))
    count = at.shape[0]
    start = n.slice(n.cast(offsets, "i64"), 0, 0, bags)
    if include_last_offset:
        end = n.slice(n.cast(offsets, "i64"), 0, 1, bags)
    else:
        end = n.concat([n.slice(start, 0, 1, bags - 1), n.full((1,), count, "i64")], 0)
    rows = n("gather", weight, at, axis=0)
    if per_sample_weights is not None:
        rows = n("mul", rows, n.reshape(n.cast(per_sample_weights, rows.dtype), (count, 1)))
    places = n.count(count)
    inside = n("and", n("less_equal", n.unsqueeze(start, 1), places), n("less", places, n.unsqueeze(end, 1)))
    if padding_idx >= 0:
        inside = n("and", inside, n("not", n("equal", n.cast(at, "i64"), padding_idx)))
    size = n("reduce_sum", n.cast(inside, "i64"), axes=(1,), keepdims=True)
    made = masked(n, n.unsqueeze(rows, 0), n.unsqueeze(inside, 2), "max" if mode == 2 else "add", 1)
    if mode == 1:
        made = n("div", made, n.cast(n("max", size, 1), made.dtype))
    if mode == 2:
        made = n("where", n("equal", size, 0), n.full((), 0, made.dtype), made)
    return [made, *others]
