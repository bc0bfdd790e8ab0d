"""Views and moves: reshape, permute, slice, join, pad, repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...support.sizes import is_open
from ..moves import fill
from ..open_values import open_slice
from .node import FxNode, FxTensor
from .registry import aten


@aten("view", "reshape", "_unsafe_view", "view_copy", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims",
      "flatten.using_ints", "unflatten.int", "squeeze_copy", "unsqueeze_copy", "_reshape_alias")  # fmt: skip
def reshape(n: FxNode, x: FxTensor, *_: object, **__: object) -> FxTensor:
    return n.reshape(x, n.shape)


@aten("permute", "permute_copy")
def permute(n: FxNode, x: FxTensor, dims: Sequence[int]) -> FxTensor:
    return n.transpose(x, [x.axis(d) for d in dims])


@aten("transpose.int", "t", "swapaxes", "movedim.int", "numpy_T", "mT", "adjoint")
def transpose(n: FxNode, x: FxTensor, dim0: int = 0, dim1: int = 1) -> FxTensor:
    if x.rank < 2:
        return x
    name = n.overload.removeprefix("aten.")
    if name in ("mT", "adjoint"):
        dim0, dim1 = -1, -2
    order = list(range(x.rank))
    order[x.axis(dim0)], order[x.axis(dim1)] = x.axis(dim1), x.axis(dim0)
    n.need(name not in ("movedim.int", "numpy_T") or x.rank == 2, "of more than two dimensions")
    return n.transpose(x, order)


@aten("expand", "expand_copy", "broadcast_to", "expand_as")
def expand(n: FxNode, x: FxTensor, *_: object, **__: object) -> FxTensor:
    return n.expand(x, n.shape)


@aten("repeat", "tile")
def repeat(n: FxNode, x: FxTensor, repeats: Sequence[int]) -> FxTensor:
    rank = max(len(repeats), x.rank)
    repeats = [1] * (rank - len(repeats)) + list(repeats)
    if 0 in repeats:
        return n.full(n.shape, 0, x.dtype)
    return n("tile", n.ranks(x, rank), repeats=tuple(repeats)) if rank else x


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(n: FxNode, x: FxTensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> FxTensor:
    axis = x.axis(dim)
    first, count = _cut(n, x.shape[axis], start, end, step)
    return n.slice(x, axis, first, count, step)


def _cut(n: FxNode, size: int, start: Any, end: Any, step: int) -> tuple[int, int]:
    """The first place of a slice of `size` elements, and how many it has."""
    start, end = (0 if start is None else start), (size if end is None else end)
    if is_open(size, start, end, step):
        return open_slice(n, start, end, step, size)[:2]
    picked = range(size)[start:end:step]
    return (picked.start if len(picked) else 0), len(picked)


@aten("select.int", "select_copy.int")
def select(n: FxNode, x: FxTensor, dim: int, index: int) -> FxTensor:
    axis = x.axis(dim)
    return n.reshape(n.slice(x, axis, _place(index, x.shape[axis]), 1), n.shape)


def _place(index: int, size: int) -> int:
    """A place counted from the front."""
    return index + size if index < 0 else index


@aten("narrow", "narrow_copy")
def narrow(n: FxNode, x: FxTensor, dim: int, start: int, length: int) -> FxTensor:
    axis = x.axis(dim)
    return n.slice(x, axis, _place(start, x.shape[axis]), length)


@aten("select_scatter")
def select_scatter(n: FxNode, x: FxTensor, src: FxTensor, dim: int, index: int) -> FxTensor:
    axis = x.axis(dim)
    return put(n, x, n.unsqueeze(src, axis), axis, _place(index, x.shape[axis]), 1)


@aten("slice_scatter")
def slice_scatter(
    n: FxNode, x: FxTensor, src: FxTensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> FxTensor:
    axis = x.axis(dim)
    return put(n, x, src, axis, *_cut(n, x.shape[axis], start, end, step), step)


def put(n: FxNode, x: FxTensor, new: FxTensor, axis: int, start: int, count: int, step: int = 1) -> FxTensor:
    """x with other elements at `count` places of an axis."""
    if count == 0:
        return x
    new = n.cast(new, x.dtype)
    size = x.shape[axis]
    if step == 1:
        before = n.slice(x, axis, 0, start)
        after = n.slice(x, axis, start + count, size - start - count)
        return n.concat([p for p in (before, new, after) if p.shape[axis]], axis)
    n.known(size, start, count, step)
    places = range(start, start + count * step, step)
    source, inside = np.zeros(size, np.int64), np.zeros(size, bool)
    source[list(places)], inside[list(places)] = np.arange(count), True
    spread = n("gather", new, n.constant(source), axis=axis)
    mask = n.constant(inside.reshape([-1 if i == axis else 1 for i in range(x.rank)]))
    made: FxTensor = n("where", mask, spread, x)
    return made


@aten("cat", "concat", "concatenate")
def cat(n: FxNode, tensors: Sequence[FxTensor], dim: int = 0) -> FxTensor:
    parts = [n.cast(t, n.dtype) for t in tensors if t.shape != (0,)]  # empty vectors fit everywhere
    parts = [p for p in parts if p.shape[p.axis(dim)]] or parts[:1]
    return n.concat(parts, parts[0].axis(dim)) if parts else n.full(n.shape, 0, n.dtype)


@aten("stack")
def stack(n: FxNode, tensors: Sequence[FxTensor], dim: int = 0) -> FxTensor:
    axis = dim % (tensors[0].rank + 1)
    return n.concat([n.unsqueeze(n.cast(t, n.dtype), axis) for t in tensors], axis)


@aten(
    "split_with_sizes", "split_with_sizes_copy", "split.Tensor", "split_copy.Tensor", "chunk", "unsafe_chunk",
    "tensor_split.sections", "tensor_split.indices", "unsafe_split.Tensor", "unsafe_split_with_sizes",
)  # fmt: skip
def split(n: FxNode, x: FxTensor, _: object = None, dim: int = 0, **__: object) -> list[FxTensor]:
    axis, at, out = x.axis(dim), 0, []
    for t in n.results:
        n.need(t is not None, "of unknown pieces")
        size = t.dims[axis] if t is not None else 0
        out.append(n.slice(x, axis, at, size))
        at += size
    return out


@aten("unbind.int", "unbind_copy.int")
def unbind(n: FxNode, x: FxTensor, dim: int = 0) -> list[FxTensor]:
    axis = x.axis(dim)
    n.known(x.shape[axis])
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return [n.reshape(n.slice(x, axis, i, 1), shape) for i in range(x.shape[axis])]


@aten("flip")
def flip(n: FxNode, x: FxTensor, dims: Sequence[int]) -> FxTensor:
    for axis in x.axes(dims) if dims else ():
        size = x.shape[axis]
        x = x if size in (0, 1) else n.slice(x, axis, size - 1, size, -1)
    return x


@aten("roll")
def roll(n: FxNode, x: FxTensor, shifts: Any, dims: Sequence[int] = ()) -> FxTensor:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    if not dims:
        return n.reshape(_rolled(n, n.reshape(x, (math.prod(x.shape),)), shifts[0], 0), x.shape)
    for by, axis in zip(shifts, [dims] if isinstance(dims, int) else dims, strict=True):
        x = _rolled(n, x, by, x.axis(axis))
    return x


def _rolled(n: FxNode, x: FxTensor, by: int, axis: int) -> FxTensor:
    size = x.shape[axis] if x.rank else 0
    by = by % size if size else 0
    if is_open(by):  # some number below the size: elements are read where they come from
        at = n("mod", n.count(size, size - by), n.tensor(size, "i64"))
        made: FxTensor = n("gather", x, at, axis=axis)
        return made
    return n.concat([n.slice(x, axis, size - by, by), n.slice(x, axis, 0, size - by)], axis) if by else x


@aten("constant_pad_nd")
def constant_pad(n: FxNode, x: FxTensor, pad: Sequence[int], value: Any = 0) -> FxTensor:
    low, high = _sides(x, pad)
    x = _cropped(n, x, low, high)
    low, high = [max(v, 0) for v in low], [max(v, 0) for v in high]
    if not any((*low, *high)):
        return x
    if x.dtype == "i1":
        return n.cast(n("pad", n.cast(x, "ui8"), low=tuple(low), high=tuple(high), value=float(bool(value))), "i1")
    made: FxTensor = n("pad", x, low=tuple(low), high=tuple(high), value=fill(x.dtype, value))
    return made


def _sides(x: FxTensor, pad: Sequence[int]) -> tuple[list[int], list[int]]:
    """Elements to add before and after each dimension; PyTorch names the last dimension first."""
    low, high = [0] * x.rank, [0] * x.rank
    for i in range(len(pad) // 2):
        low[x.rank - 1 - i], high[x.rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return low, high


def _cropped(n: FxNode, x: FxTensor, low: Sequence[int], high: Sequence[int]) -> FxTensor:
    for axis, (a, b) in enumerate(zip(low, high, strict=True)):
        cut, end = max(-a, 0), max(-b, 0)
        x = n.slice(x, axis, cut, x.shape[axis] - cut - end)
    return x


@aten(*(f"{kind}_pad{r}d" for kind in ("reflection", "replication") for r in (1, 2, 3)))
def border_pad(n: FxNode, x: FxTensor, padding: Sequence[int]) -> FxTensor:
    low, high = _sides(x, padding)
    n.need(min((*low, *high)) >= 0, "with negative sizes")
    mode = "reflect" if "reflection" in n.overload else "edge"
    return n("pad", x, low=tuple(low), high=tuple(high), mode=mode)


@aten("diagonal_scatter", "as_strided_scatter")
def view_scatter(n: FxNode, x: FxTensor, src: FxTensor, *view: Any, **named: object) -> FxTensor:
    """Other elements where a view of x lies."""
    n.known(*x.shape)
    size = math.prod(x.shape)
    at = torch.arange(size).reshape(x.shape)
    places = getattr(at, n.overload.removeprefix("aten.").removesuffix("_scatter"))(*view, **named).reshape(-1).numpy()
    if not len(places):
        return x
    source, inside = np.zeros(size, np.int64), np.zeros(size, bool)
    source[places], inside[places] = np.arange(len(places)), True
    spread = n("gather", n.reshape(n.cast(src, x.dtype), (len(places),)), n.constant(source), axis=0)
    return n("where", n.constant(inside.reshape(x.shape)), n.reshape(spread, x.shape), x)


@aten("diagonal", "diagonal_copy")
def diagonal(n: FxNode, x: FxTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> FxTensor:
    first, second = x.axis(dim1), x.axis(dim2)
    rest = [i for i in range(x.rank) if i not in (first, second)]
    x = n.transpose(x, [*rest, first, second])
    rows, columns = x.shape[-2:]
    count = n.shape[-1]
    n.known(rows, columns)
    if not count:
        return n.full(n.shape, 0, x.dtype)
    at = np.arange(count) * (columns + 1) + (offset if offset >= 0 else -offset * columns)
    return n("gather", n.reshape(x, (*x.shape[:-2], rows * columns)), n.constant(at.astype(np.int64)), axis=x.rank - 2)


@aten("as_strided", "as_strided_copy")
def as_strided(
    n: FxNode, x: FxTensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> FxTensor:
    node = n.node.args[0]
    assert isinstance(node, torch.fx.Node)
    given = node.meta["val"]
    n.need(given.is_contiguous() and not given.storage_offset(), "of a tensor whose memory is not in order")
    n.known(*size, *stride, storage_offset or 0)
    at = np.full((), storage_offset or 0, np.int64)
    for length, step in zip(size, stride, strict=True):
        at = at[..., None] + np.arange(length) * step
    if not at.size:
        return n.full(n.shape, 0, x.dtype)
    return n("gather", n.reshape(x, (math.prod(x.shape),)), n.constant(at), axis=0)


@aten("unfold", "unfold_copy")
def unfold(n: FxNode, x: FxTensor, dimension: int, size: int, step: int) -> FxTensor:
    axis = x.axis(dimension)
    if not x.rank:
        return n.reshape(x, n.shape)
    if is_open(n.shape[axis]):
        at = n("add", n.unsqueeze(n.count(n.shape[axis], 0, step), 1), n.count(size))
    else:
        at = n.constant(np.arange(n.shape[axis])[:, None] * step + np.arange(size))
    made = n("gather", x, at, axis=axis)
    order = [i for i in range(made.rank) if i != axis + 1]
    return n.transpose(made, [*order, axis + 1])


@aten("pixel_shuffle")
def pixel_shuffle(n: FxNode, x: FxTensor, upscale_factor: int) -> FxTensor:
    flat = n.reshape(x, (math.prod(x.shape[:-3]), *x.shape[-3:]))
    return n.reshape(n("depth_to_space", flat, block=upscale_factor, mode="CRD"), n.shape)


@aten("tril", "triu")
def triangle(n: FxNode, x: FxTensor, diagonal: int = 0) -> FxTensor:
    upper = n.overload.endswith("triu")
    if x.dtype == "i1":
        return n.cast(n("trilu", n.cast(x, "ui8"), upper=upper, k=diagonal), "i1")
    return n("trilu", x, upper=upper, k=diagonal)


@aten("repeat_interleave.self_int")
def repeat_interleave(
    n: FxNode, x: FxTensor, repeats: int, dim: int | None = None, *, output_size: Any = None
) -> FxTensor:
    x = n.reshape(x, (math.prod(x.shape),)) if dim is None else x
    axis = x.axis(dim or 0)
    wide = n.expand(n.unsqueeze(x, axis + 1), (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
    return n.reshape(wide, n.shape)


@aten("resize")
def resize(n: FxNode, x: FxTensor, size: Sequence[int], **_: object) -> FxTensor:
    """The same elements in another shape; fewer of them."""
    count, new = math.prod(x.shape), math.prod(n.shape)
    n.need(new <= count, "to more elements, which PyTorch leaves as they are")
    return n.reshape(n.slice(n.reshape(x, (count,)), 0, 0, new), n.shape)
