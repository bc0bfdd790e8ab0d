"""Histograms: how many elements lie between edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.types import NUMPY
from .node import FxNode, FxTensor
from .registry import aten


def edges_between(n: FxNode, low: FxTensor, high: FxTensor, bins: int) -> FxTensor:
    """bins + 1 edges, counted from both ends, as PyTorch does it; equal ends are moved apart by 1."""
    same = n("equal", low, high)
    low, high = n("where", same, n("sub", low, 0.5), low), n("where", same, n("add", high, 0.5), high)
    step = n("div", n("sub", high, low), float(bins))
    kind, at = NUMPY[low.dtype], np.arange(bins + 1)
    up = n("add", low, n("mul", step, n.constant(at.astype(kind))))
    down = n("sub", high, n("mul", step, n.constant((bins - at).astype(kind))))
    made: FxTensor = n("where", n.constant(at < (bins + 1) // 2), up, down)
    return made


def limits(n: FxNode, x: FxTensor, given: Sequence[float] | None) -> tuple[FxTensor, FxTensor]:
    """What is given, or the smallest and the largest of the elements."""
    if given is not None:
        return n.full((), given[0], x.dtype), n.full((), given[1], x.dtype)
    if not math.prod(x.shape):
        return n.full((), 0, x.dtype), n.full((), 1, x.dtype)
    axes = tuple(range(x.rank))
    low, high = (n(f"reduce_{kind}", x, axes=axes) if axes else x for kind in ("min", "max"))
    return low, high


def inside(n: FxNode, x: FxTensor, edges: FxTensor) -> FxTensor:
    """x [count] and edges [bins + 1]: a mask [count, bins]; the last bin has its upper edge."""
    bins = edges.shape[0] - 1
    low, high = n.slice(edges, 0, 0, bins), n.slice(edges, 0, 1, bins)
    x = n.unsqueeze(x, 1)
    below = n("less", x, high)
    top = n("and", n.constant(np.arange(bins) == bins - 1), n("equal", x, high))
    made: FxTensor = n("and", n("less_equal", low, x), n("or", below, top))
    return made


def counted(n: FxNode, mask: FxTensor, weight: FxTensor | None) -> FxTensor:
    """The sum of weights over the first dimension of a mask."""
    dtype = n.dtype
    if not mask.shape[0]:
        return n.full(mask.shape[1:], 0, dtype)
    hits = n.cast(mask, dtype)
    if weight is not None:
        count = mask.shape[0]
        hits = n("mul", hits, n.reshape(n.cast(weight, dtype), (count, *[1] * (mask.rank - 1))))
    made: FxTensor = n("reduce_sum", hits, axes=(0,))
    return made


def flat(n: FxNode, x: FxTensor) -> FxTensor:
    return n.reshape(x, (math.prod(x.shape),))


@aten("histc")
def histc(n: FxNode, x: FxTensor, bins: int = 100, min: float = 0, max: float = 0) -> FxTensor:
    """By the place of each element between the ends, where `histogram` compares with every edge."""
    low, high = limits(n, x, (min, max) if min != max else None)
    if min == max != 0:
        low = high = n.full((), min, x.dtype)
    same, x = n("equal", low, high), flat(n, x)
    low, high = n("where", same, n("sub", low, 1.0), low), n("where", same, n("add", high, 1.0), high)
    place = n("floor", n("div", n("mul", n("sub", x, low), float(bins)), n("sub", high, low)))
    place = n("min", place, float(bins - 1))  # the last bin has its upper edge
    inside = n("and", n("less_equal", low, x), n("less_equal", x, high))
    bin_ = n("equal", n.unsqueeze(place, 1), n.constant(np.arange(bins).astype(NUMPY[x.dtype])))
    return counted(n, n("and", n.unsqueeze(inside, 1), bin_), None)


@aten("histogram.bin_ct", "histogram.bins_tensor")
def histogram(n: FxNode, x: FxTensor, bins: FxTensor | int, *, range: Sequence[float] | None = None,
              weight: FxTensor | None = None, density: bool = False) -> list[FxTensor]:  # fmt: skip
    edges = bins if isinstance(bins, FxTensor) else edges_between(n, *limits(n, x, range), bins)
    made = counted(n, inside(n, flat(n, x), edges), None if weight is None else flat(n, weight))
    if density:
        count = edges.shape[0] - 1
        width = n("sub", n.slice(edges, 0, 1, count), n.slice(edges, 0, 0, count))
        made = n("div", n("div", made, n("reduce_sum", made, axes=(0,), keepdims=True)), width)
    return [made, edges]


@aten("_histogramdd_bin_edges")
def edges_of_all(n: FxNode, x: FxTensor, bins: Sequence[int], *, range: Sequence[float] | None = None,
                 weight: object = None, density: bool = False) -> list[FxTensor]:  # fmt: skip
    columns = _columns(n, x)
    given = [None if range is None else range[2 * i : 2 * i + 2] for i, _ in enumerate(columns)]
    return [edges_between(n, *limits(n, c, g), b) for c, g, b in zip(columns, given, bins, strict=True)]


@aten("_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors")
def histogram_of_all(n: FxNode, x: FxTensor, bins: Sequence[Any], *, range: Sequence[float] | None = None,
                     weight: FxTensor | None = None, density: bool = False) -> FxTensor:  # fmt: skip
    """A dimension for each column; a row counts where all of its columns do."""
    edges = list(bins) if isinstance(bins[0], FxTensor) else edges_of_all(n, x, bins, range=range)
    mask = None
    for column, e in zip(_columns(n, x), edges, strict=True):
        one = inside(n, column, e)
        shape = () if mask is None else mask.shape[1:]
        one = n.reshape(one, (one.shape[0], *[1] * len(shape), one.shape[1]))
        mask = one if mask is None else n("and", n.unsqueeze(mask, mask.rank), one)
    assert mask is not None
    made = counted(n, mask, None if weight is None else flat(n, weight))
    if not density:
        return made
    made = n("div", made, n("reduce_sum", made, axes=tuple(i for i, _ in enumerate(made.shape)), keepdims=True))
    for axis, e in enumerate(edges):
        count = e.shape[0] - 1
        width = n("sub", n.slice(e, 0, 1, count), n.slice(e, 0, 0, count))
        made = n("div", made, n.reshape(width, [count if i == axis else 1 for i, _ in enumerate(made.shape)]))
    return made


def _columns(n: FxNode, x: FxTensor) -> list[FxTensor]:
    """The last dimension apart, the others as one."""
    rows = math.prod(x.shape[:-1])
    table = n.reshape(x, (rows, x.shape[-1]))
    return [n.reshape(n.slice(table, 1, i, 1), (rows,)) for i in range(x.shape[-1])]
