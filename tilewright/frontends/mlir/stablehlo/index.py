"""Reading and writing at computed positions: dynamic slices, gather."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch_mlir._mlir_libs import _stablehlo

from .node import HloEmitter, HloOp
from .registry import hlo
from .values import HloTensor


def start_of(start: HloTensor, highest: int) -> int | None:
    """A known position, clamped as the operators do; None if it is computed."""
    if highest <= 0:
        return 0
    return None if start.array is None else min(max(int(start.array.reshape(())[()]), 0), highest)


def clamped(n: HloEmitter, start: HloTensor, highest: int) -> HloTensor:
    """A computed position as i64 within 0 .. highest."""
    if start.dtype == "ui64":  # what is beyond i64 is beyond any tensor
        start = n("min", start, n.full((), (1 << 63) - 1, "ui64"))
    made: HloTensor = n("min", n("max", n.cast(start, "i64"), 0), highest)
    return made


@hlo("dynamic_slice", by_parts=True)
def dynamic_slice(n: HloOp, x: HloTensor, *starts: HloTensor) -> HloTensor:
    for axis, (start, size) in enumerate(zip(starts, n.numbers("slice_sizes"), strict=True)):
        highest = x.shape[axis] - size
        known = start_of(start, highest)
        if known is not None:
            x = n.narrowed(x, axis, known, size)
        else:
            at = n("add", n.reshape(clamped(n, start, highest), (1,)), n.places(size))
            x = n("gather", x, at, axis=axis)
    return x


@hlo("dynamic_update_slice", by_parts=True)
def dynamic_update_slice(n: HloOp, x: HloTensor, update: HloTensor, *starts: HloTensor) -> HloTensor:
    axes = [a for a in range(x.rank) if x.shape[a] != update.shape[a]]
    if 0 in update.shape:
        return x
    if not axes:
        return update
    known = [start_of(starts[a], x.shape[a] - update.shape[a]) for a in axes]
    if len(axes) == 1 and known[0] is not None:
        return x.replaced(axes[0], known[0], update)
    return _written(n, x, update, starts, axes)


def _written(n: HloOp, x: HloTensor, update: HloTensor, starts: Sequence[HloTensor], axes: Sequence[int]) -> HloTensor:
    """Every element looks whether it lies in what is written, and where there."""
    inside = None
    for axis in axes:
        size, own = x.shape[axis], update.shape[axis]
        start = n.reshape(clamped(n, starts[axis], size - own), (1,))
        place = n("sub", n.places(size), start)
        here = n("and", n("greater_equal", place, 0), n("less", place, own))
        update = n("gather", update, n("min", n("max", place, 0), own - 1), axis=axis)
        here = n.reshape(here, [size if i == axis else 1 for i in range(x.rank)])
        inside = here if inside is None else n("and", inside, here)
    made: HloTensor = n("where", inside, update, x)
    return made


# ---- gather --------------------------------------------------------------------------------------------------------


@hlo("gather", by_parts=True)
def gather(n: HloOp, x: HloTensor, indices: HloTensor) -> HloTensor:
    """Windows of x, each where a vector of indices says. Their dimensions of size 1 are picked, others counted."""
    dims = _stablehlo.GatherDimensionNumbers(n.attribute("dimension_numbers"))
    offsets, collapsed = list(dims.offset_dims), list(dims.collapsed_slice_dims)
    batching, index_map = list(dims.operand_batching_dims), list(dims.start_index_map)
    sizes = n.numbers("slice_sizes")
    if not math.prod(n.shape):
        return n.full(n.shape, 0, n.dtype)
    table = vectors(n, indices, dims.index_vector_dim, list(dims.start_indices_batching_dims))
    outer = table.shape[:-1]
    table = _within(n, table, [x.shape[d] - sizes[d] for d in index_map])
    single = _one_axis(n, x, table, index_map, sizes, batching)
    if single is not None:
        made = single
        windows = [d for d in range(x.rank) if d not in batching]
    else:
        made = _many_axes(n, x, table, index_map, sizes, batching)
        windows = [d for d in range(x.rank) if d not in batching]
    # now [*outer, *windows]: the collapsed ones go, and outer dimensions to their places
    kept = [d for d in windows if d not in collapsed]
    made = n.reshape(made, [*outer, *(sizes[d] for d in kept)])
    order = batch_order(list(dims.start_indices_batching_dims), dims.index_vector_dim, indices.rank)
    made = n.transpose(made, [*(order.index(i) for i in range(len(outer))), *range(len(outer), made.rank)])
    rank = len(n.shape)
    others = [i for i in range(rank) if i not in offsets]
    source = {d: i for i, d in enumerate([*others, *offsets])}
    return n.transpose(made, [source[i] for i in range(rank)])


def vectors(n: HloEmitter, indices: HloTensor, axis: int, batching: Sequence[int]) -> HloTensor:
    """Indices as i64 with their vectors last and the dimensions shared with the operand first."""
    if indices.dtype == "ui64":
        indices = n("min", indices, n.full((), (1 << 63) - 1, "ui64"))
    indices = n.cast(indices, "i64")
    if axis == indices.rank:
        indices = n.unsqueeze(indices, axis)
    rest = [d for d in range(indices.rank) if d != axis and d not in batching]
    made: HloTensor = n.transpose(indices, [*batching, *rest, axis])
    return made


def batch_order(batching: Sequence[int], axis: int, rank: int) -> list[int]:
    """Which dimension of the indices, counted without their vectors, each outer one of `vectors` is."""
    dims = [d for d in range(max(rank, axis + 1)) if d != axis]
    rest = [d for d in dims if d not in batching]
    return [dims.index(d) for d in (*batching, *rest)]


def _within(n: HloEmitter, table: HloTensor, highest: Sequence[int]) -> HloTensor:
    """Indices clamped so that windows lie in x."""
    made: HloTensor = n("min", n("max", table, 0), n.constant(np.array(highest, np.int64)))
    return made


def _one_axis(
    n: HloEmitter,
    x: HloTensor,
    table: HloTensor,
    index_map: Sequence[int],
    sizes: Sequence[int],
    batching: Sequence[int],
) -> HloTensor | None:
    """Rows of x along one dimension, as `take` has them: [*outer, *windows], None where it is something else."""
    whole = all(sizes[d] == x.shape[d] for d in range(x.rank) if d not in index_map)
    if len(index_map) != 1 or batching or not whole or sizes[index_map[0]] != 1:
        return None
    (axis,) = index_map
    outer = table.shape[:-1]
    made = n("gather", x, n.reshape(table, outer), axis=axis)  # [before, *outer, after]
    count = len(outer)
    before = list(range(axis))
    order = [*range(axis, axis + count), *before, *range(axis + count, made.rank)]
    result: HloTensor = n.transpose(made, order)
    return result


def _many_axes(
    n: HloEmitter,
    x: HloTensor,
    table: HloTensor,
    index_map: Sequence[int],
    sizes: Sequence[int],
    batching: Sequence[int],
) -> HloTensor:
    """[*outer, *windows] by indices of every element that is counted."""
    windows = [d for d in range(x.rank) if d not in batching]
    # dimensions that are read whole need no index: they follow
    picked = [d for d in windows if d in index_map or sizes[d] != x.shape[d]]
    rest = [d for d in windows if d not in picked]
    outer = table.shape[:-1]
    shared = len(batching)
    spans = [sizes[d] for d in picked]
    parts = []
    for i, d in enumerate(picked):
        base = [1] * len(spans)
        base[i] = spans[i]
        own = n.reshape(n.places(spans[i]), [*[1] * len(outer), *base])
        if d in index_map:
            k = list(index_map).index(d)
            start = n.reshape(n.slice(table, len(outer), k, 1), [*outer, *[1] * len(spans)])
            own = n("add", start, own)
        parts.append(n.unsqueeze(n.expand(own, [*outer, *spans]), len(outer) + len(spans)))
    x = n.transpose(x, [*batching, *picked, *rest])
    if not parts:
        made = n.reshape(x, [*x.shape[:shared], *[1] * (len(outer) - shared), *x.shape[shared:]])
        made = n.expand(made, [*outer, *x.shape[shared:]])
    else:
        at = n.concat(parts, len(outer) + len(spans))
        made = n("gather_nd", x, at, batch=shared)  # [*outer, *spans, *rest]
    order = [*picked, *rest]
    first = len(outer)
    result: HloTensor = n.transpose(made, [*range(first), *(first + order.index(d) for d in windows)])
    return result
