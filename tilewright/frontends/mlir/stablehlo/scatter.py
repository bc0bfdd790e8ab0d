"""Writing at computed positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch_mlir._mlir_libs import _stablehlo

from .index import vectors
from .node import HloEmitter, HloOp, real
from .reduce import simple
from .registry import hlo
from .values import HloTensor

REDUCTIONS = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}
#: truth values are written as bytes
OF_BOOLS = {"add": "max", "or": "max", "maximum": "max", "multiply": "min", "and": "min", "minimum": "min"}


def reduction_of(n: HloOp, dtype: str) -> str:
    """How an update and what is there become one."""
    block = n.block()
    operations = [op.operation for op in block.operations]
    if len(operations) == 1 and operations[0].operands[0] == block.arguments[1]:
        return "none"
    found = (OF_BOOLS if dtype == "i1" else REDUCTIONS).get(simple(block) or "")
    n.need(found, "with a body that is no assignment, sum, product, maximum or minimum")
    return str(found)


@hlo("scatter")
def scatter(n: HloOp, *operands: HloTensor) -> HloTensor:
    """Windows of updates into a copy of x, each where a vector of indices says; those that do not lie in x whole are
    left out.

    Every number of x has one place in a row; numbers of updates that are left out go to one more place after it.
    """
    n.need(len(operands) == 3, f"of {len(operands) // 2} tensors at once")
    x, indices, updates = (real(v) for v in operands)
    dims = _stablehlo.ScatterDimensionNumbers(n.attribute("scatter_dimension_numbers"))
    if 0 in updates.shape or 0 in x.shape:
        return x
    kind, dtype = reduction_of(n, x.dtype), x.dtype
    if dtype == "i1":
        x, updates = n.cast(x, "ui8"), n.cast(updates, "ui8")
    window_dims = list(dims.update_window_dims)
    batching, index_map = list(dims.input_batching_dims), list(dims.scattered_dims_to_operand_dims)
    inserted = list(dims.inserted_window_dims)
    windows = [d for d in range(x.rank) if d not in batching and d not in inserted]
    sizes = [1] * x.rank
    for d, axis in zip(windows, window_dims, strict=True):
        sizes[d] = updates.shape[axis]
    table, updates = _aligned(n, indices, updates, dims, window_dims)
    outer = table.shape[:-1]
    picked = [d for d in range(x.rank) if d in index_map or d in batching or sizes[d] != x.shape[d]]
    rest = [d for d in range(x.rank) if d not in picked]
    places, sure = _places(n, x, table, picked, sizes, (index_map, batching))
    # updates as [*outer, *picked windows, *rest]
    own = [d for d in windows if d in picked]
    first = len(outer)
    updates = n.transpose(updates, [*range(first), *(first + windows.index(d) for d in (*own, *rest))])
    rows = math.prod(x.shape[d] for d in picked)
    width = math.prod(x.shape[d] for d in rest)
    flat = n.reshape(n.transpose(x, [*picked, *rest]), (rows, width))
    if not sure:
        flat = n.concat([flat, n.slice(flat, 0, 0, 1)], 0)
    count = math.prod(places.shape)
    made = n("scatter_nd", flat, n.reshape(places, (count, 1)), n.reshape(updates, (count, width)), reduction=kind)
    made = n.reshape(n.slice(made, 0, 0, rows), [x.shape[d] for d in (*picked, *rest)])
    order = [*picked, *rest]
    made = n.transpose(made, [order.index(d) for d in range(x.rank)])
    return n.cast(made, dtype)


def _aligned(
    n: HloOp, indices: HloTensor, updates: HloTensor, dims: Any, window_dims: list[int]
) -> tuple[HloTensor, HloTensor]:
    """Vectors of indices [*outer, depth] and updates [*outer, *windows], with dimensions shared with x first."""
    axis, batching = dims.index_vector_dim, list(dims.scatter_indices_batching_dims)
    table = vectors(n, indices, axis, batching)
    outside = [d for d in range(updates.rank) if d not in window_dims]
    own = [d for d in range(max(indices.rank, axis + 1)) if d != axis]
    order = [own.index(d) for d in (*batching, *(d for d in own if d not in batching))]
    return table, n.transpose(updates, [*(outside[i] for i in order), *window_dims])


def _places(
    n: HloEmitter,
    x: HloTensor,
    table: HloTensor,
    picked: list[int],
    sizes: list[int],
    maps: tuple[list[int], list[int]],
) -> tuple[HloTensor, bool]:
    """The place among the rows of x of every number of the windows, and whether all of them lie in x for sure."""
    index_map, batching = maps
    outer = table.shape[:-1]
    free = [d for d in picked if d not in batching]
    spans = [sizes[d] for d in free]
    place: HloTensor = n.full((*[1] * len(outer), *[1] * len(spans)), 0, "i64")
    highest = [x.shape[d] - sizes[d] for d in index_map]
    limits = n.constant(np.array(highest, np.int64))
    inside = n("and", n("greater_equal", table, 0), n("less_equal", table, limits))
    inside = n("reduce_all", inside, axes=(table.rank - 1,)) if index_map else n.full(outer, True, "i1")
    table = n("min", n("max", table, 0), limits) if index_map else table
    for d in picked:
        own = n.full((1,) * (len(outer) + len(spans)), 0, "i64")
        if d in batching:
            shape = [1] * (len(outer) + len(spans))
            shape[batching.index(d)] = x.shape[d]
            own = n.reshape(n.places(x.shape[d]), shape)
        else:
            shape = [1] * (len(outer) + len(spans))
            shape[len(outer) + free.index(d)] = sizes[d]
            own = n.reshape(n.places(sizes[d]), shape)
        if d in index_map:
            start = n.slice(table, len(outer), index_map.index(d), 1)
            own = n("add", own, n.reshape(start, (*outer, *[1] * len(spans))))
        place = n("add", n("mul", place, x.shape[d]), own)
    place = n.expand(place, (*outer, *spans))
    if inside.array is not None and bool(inside.array.all()):
        return place, True
    beyond = n.full((), math.prod(x.shape[d] for d in picked), "i64")
    return n("where", n.reshape(inside, (*outer, *[1] * len(spans))), place, beyond), False
