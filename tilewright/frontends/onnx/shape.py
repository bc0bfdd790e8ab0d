"""Shapes and data movement: reshape, transpose, slice, join, pad, constants."""

from __future__ import annotations

import itertools
import math

import numpy as np

from ...ir.dialect import GROUPS
from ...ir.types import broadcast_shapes
from ...support.sizes import at_most, decode, highest, is_open, larger, lowest
from ..moves import fill
from ..open_values import fixed, open_slice
from .reader import DTYPES
from .registry import onnx_op
from .values import OnnxNotImported, OnnxValue

#: floats, and up to where they hold all whole numbers
EXACT = {"f32": 1 << 24, "f64": 1 << 53}

# ---- constants -----------------------------------------------------------------------------------------------------


@onnx_op("Constant", since=1)
def constant(n):
    value = n.attr("value")
    if value is not None:
        return n.constant(fixed(value, n.name))
    for name, dtype in (("value_float", "f32"), ("value_floats", "f32"), ("value_int", "i64"), ("value_ints", "i64")):
        value = n.attr(name)
        if value is not None:
            return n.constant(fixed(np.asarray(value), n.name), dtype)
    raise OnnxNotImported("of strings or sparse values")


@onnx_op("ConstantOfShape", since=9)
def constant_of_shape(n, shape):
    value = n.attr("value")
    value = np.zeros(1, np.float32) if value is None else value
    return n.expand(n.constant(value.reshape(())), n.ints(shape, "shape"))


@onnx_op("Range", since=11)
def arange(n, start, limit, delta):
    step = n.known(delta, "delta")
    if step.item() == 0:
        raise n.error("delta is 0")
    if start.dtype in EXACT and (count := _whole_count(n, start, limit, delta)) is not None:
        whole = n("arange", count=count, dtype="i64", start=_whole(start), step=_whole(delta))
        return n.cast(whole, start.dtype)
    if start.known() is not None or limit.known() is not None or start.dtype not in ("i32", "i64"):
        low, high = n.known(start, "start"), n.known(limit, "limit")
        ends = [decode(v.item()) for v in (low, high, step)]
        if is_open(*ends):
            return n("arange", count=_count(n, *ends), dtype=start.dtype, start=ends[0], step=ends[2])
        count = max(math.ceil((high.item() - low.item()) / step.item()), 0)
        return n.constant((low + np.arange(count).astype(low.dtype) * step).astype(low.dtype).reshape(-1))
    # only how many there are decides the shape: a position in a text is no part of a program
    span = n("sub", n.reshape(limit, ()), n.reshape(start, ()))
    count = max(-(-n.scalar(span, "limit - start") // step.item()), 0)
    return n("add", n.count(count, start.dtype, step.item()), n.reshape(start, ()))


def _whole_count(n, start, limit, delta):
    """How many floats there are from `start` to before `limit`, where these are whole numbers, sizes among them, that
    their type holds exactly; None otherwise."""
    ends = [_whole(x) for x in (start, limit, delta)]
    if None in ends or not is_open(*ends) or any(max(highest(e), -lowest(e)) > EXACT[start.dtype] for e in ends):
        return None
    return _count(n, *ends)


def _whole(x):
    """The whole number that a float is, maybe of a size; None if it is not known, or none."""
    if x.whole is not None:
        return decode(x.whole.item())
    value = None if x.known() is None else x.known().item()
    return int(value) if value is not None and math.isfinite(value) and value == int(value) else None


def _count(n, low, high, step):
    """How many numbers there are from `low` in steps to before `high`."""
    if is_open(step) or step == 0:
        raise n.error(f"delta is {step}")
    count = -((low - high) // step)
    return larger(count, 0)


@onnx_op("EyeLike", since=9)
def eye_like(n, x):
    dtype, k = DTYPES.get(n.attr("dtype", 0), x.dtype), n.attr("k", 0)
    if is_open(*x.shape):
        row, column = n.count(x.shape[0]), n.count(x.shape[1])
        return n.cast(n("equal", n.unsqueeze(n("add", row, k), 1), column), dtype)
    return n.constant(np.eye(x.shape[0], x.shape[1], k=k), dtype)


@onnx_op("Shape", since=1)
def shape(n, x):
    return n.constant(np.array(x.shape, np.int64))


@onnx_op("Shape", since=15)
def shape_15(n, x):
    start, end = n.attr("start", 0), n.attr("end", x.rank)
    return n.constant(np.array(x.shape[slice(start, end)], np.int64))


@onnx_op("Size", since=1)
def size(n, x):
    return n.constant(np.array(x.type.size, np.int64))


# ---- reshape -------------------------------------------------------------------------------------------------------


@onnx_op("Reshape", since=5)
def reshape(n, x, shape):
    return reshape_to(n, x, n.ints(shape, "shape"))


def reshape_to(n, x, target):
    """x under a shape with 0 (the dimension of x) and one -1 (what is left)."""
    if not n.attr("allowzero", 0):
        if any(d == 0 and i >= x.rank for i, d in enumerate(target)):
            raise n.error(f"shape {target} copies a dimension that {x.type} does not have")
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    if target.count(-1) == 1:
        rest = math.prod(d for d in target if d != -1)
        if rest == 0 and x.type.size == 0:
            target = [0 if d == -1 else d for d in target]
        elif rest and x.type.size % rest == 0:
            target = [x.type.size // rest if d == -1 else d for d in target]
    return [n.reshape(x, target)]


@onnx_op("Flatten", since=1)
def flatten(n, x):
    axis = n.attr("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return [n.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))]


def squeeze(n, x, axes):
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    axes = [a % x.rank for a in axes]
    if any(x.shape[a] != 1 for a in axes):
        raise n.error(f"axes {axes} of {x.type} are not all of size 1")
    return [n.reshape(x, [d for i, d in enumerate(x.shape) if i not in axes])]


@onnx_op("Squeeze", since=1)
def squeeze_1(n, x):
    return squeeze(n, x, n.attr("axes"))


@onnx_op("Squeeze", since=13)
def squeeze_13(n, x, axes=None):
    return squeeze(n, x, None if axes is None else n.ints(axes, "axes"))


def unsqueeze(n, x, axes):
    rank = x.rank + len(axes)
    axes = {a % rank for a in axes}
    sizes = iter(x.shape)
    return [n.reshape(x, [1 if i in axes else next(sizes) for i in range(rank)])]


@onnx_op("Unsqueeze", since=1)
def unsqueeze_1(n, x):
    return unsqueeze(n, x, n.required("axes"))


@onnx_op("Unsqueeze", since=13)
def unsqueeze_13(n, x, axes):
    return unsqueeze(n, x, n.ints(axes, "axes"))


@onnx_op("Expand", since=8)
def expand(n, x, shape):
    return [n.expand(x, broadcast_shapes(x.shape, tuple(n.ints(shape, "shape"))))]


@onnx_op("Transpose", since=1)
def transpose(n, x):
    return [n.transpose(x, n.attr("perm") or tuple(reversed(range(x.rank))))]


@onnx_op("DepthToSpace", since=1)
def depth_to_space(n, x):
    return n("depth_to_space", x, block=n.required("blocksize"), mode=n.attr("mode", "DCR"))


@onnx_op("SpaceToDepth", since=1)
def space_to_depth(n, x):
    return n("space_to_depth", x, block=n.required("blocksize"), mode=n.attr("mode", "DCR"))


# ---- join and cut --------------------------------------------------------------------------------------------------


@onnx_op("Concat", since=4)
def concat(n, *xs):
    return [n.concat(xs, n.required("axis"))]


def split(n, x, sizes, axis):
    """All parts by one operator, or by slices where it cannot hold so many different types."""
    if sum(1 for _ in itertools.groupby(sizes)) <= GROUPS:
        return n("split", x, sizes=tuple(sizes), axis=axis)
    ends = list(itertools.accumulate(sizes))
    return [slice_(n, x, [end - size], [end], [axis], None)[0] for end, size in zip(ends, sizes, strict=True)]


@onnx_op("Split", since=2)
def split_2(n, x):
    axis = n.axis(0, x.rank)
    return split(n, x, n.attr("split") or even(n, x.shape[axis], len(n.proto.output)), axis)


@onnx_op("Split", since=13)
def split_13(n, x, sizes=None):
    axis = n.axis(0, x.rank)
    parts = n.attr("num_outputs", len(n.proto.output))
    return split(n, x, even(n, x.shape[axis], parts) if sizes is None else n.ints(sizes, "split"), axis)


def channels_first(n, x, last=True):
    """x [N, ..., C] as [N, C, ...]; x itself if its channels are not last."""
    return n.transpose(x, (0, x.rank - 1, *range(1, x.rank - 1))) if last else x


def channels_last(n, x, last=True):
    """x [N, C, ...] as [N, ..., C]; x itself if they are not to be last."""
    return n.transpose(x, (0, *range(2, x.rank), 1)) if last else x


def even(n, size, parts):
    """`size` in equal parts; the last may be smaller."""
    part = -(-size // parts)
    sizes = [part] * (parts - 1) + [size - part * (parts - 1)]
    if sizes[-1] < 0:
        raise n.error(f"{size} elements do not split into {parts} parts")
    return sizes


def slice_(n, x, starts, ends, axes, steps):
    begin, sizes, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    axes = range(len(starts)) if axes is None else [n_axis(n, a, x.rank) for a in axes]
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        if step == 0:
            raise n.error("a step is 0")
        if is_open(start, end, step, x.shape[axis]):
            begin[axis], sizes[axis], strides[axis] = open_slice(n, start, end, step, x.shape[axis])
            continue
        first, last = ends_inside(start, end, step, x.shape[axis])
        picked = range(first, last, step)
        begin[axis], sizes[axis], strides[axis] = (picked.start if len(picked) else 0), len(picked), step
    if sizes == list(x.shape) and all(s == 1 for s in strides):
        return [x]
    return [n("slice", x, starts=tuple(begin), sizes=tuple(sizes), steps=tuple(strides))]


def ends_inside(start, end, step, size):
    """Where a slice begins and ends, as ONNX has it: backwards it begins within the dimension, however far in front
    its start is (Python has nothing there)."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step < 0:
        return min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return min(max(start, 0), size), min(max(end, 0), size)


def n_axis(n, axis, rank):
    if not -rank <= axis < rank:
        raise n.error(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


@onnx_op("Slice", since=1)
def slice_1(n, x):
    return slice_(n, x, n.required("starts"), n.required("ends"), n.attr("axes"), None)


@onnx_op("Slice", since=10)
def slice_10(n, x, starts, ends, axes=None, steps=None):
    values = [None if v is None else n.ints(v, "starts, ends, axes and steps") for v in (starts, ends, axes, steps)]
    return slice_(n, x, *values)


# ---- pad and repeat ------------------------------------------------------------------------------------------------


def pad(n, x, pads, mode, value, axes=None):
    """`value` is a number, or a tensor of one element that only a run knows."""
    low, high = [0] * x.rank, [0] * x.rank
    axes = list(range(x.rank)) if axes is None else [n_axis(n, a, x.rank) for a in axes]
    if len(pads) != 2 * len(axes):
        raise n.error(f"{len(pads)} pads for {len(axes)} axes, there should be two for each")
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[len(axes) + i]
    if not all(at_most(0, p) for p in (*low, *high)):  # negative ones cut
        starts = tuple(larger(-p, 0) for p in low)
        sizes = tuple(d - s - larger(-p, 0) for d, s, p in zip(x.shape, starts, high, strict=True))
        x = n("slice", x, starts=starts, sizes=sizes, steps=(1,) * x.rank)
        low, high = [larger(p, 0) for p in low], [larger(p, 0) for p in high]
    if not any(low) and not any(high):
        return [x]
    if isinstance(value, OnnxValue):
        around = pad(n, x, [*low, *high], mode, 0)[0]
        if is_open(*low, *high, *x.shape):
            inside = pad(n, n.expand(n.constant(np.ones((), np.bool_)), x.shape), [*low, *high], mode, 0)[0]
            return [n("where", inside, around, n.reshape(value, ()))]
        inside = np.zeros([a + d + b if a or b else 1 for a, d, b in zip(low, x.shape, high, strict=True)], np.bool_)
        inside[
            tuple(slice(a, a + d) if a or b else slice(None) for a, d, b in zip(low, x.shape, high, strict=True))
        ] = 1
        return [n("where", n.constant(inside), around, n.reshape(value, ()))]
    if x.dtype == "i1":  # as numbers: tw.pad fills with a number
        x = n.cast(x, "ui8")
        return [n.cast(n("pad", x, low=tuple(low), high=tuple(high), mode=mode, value=fill(x.dtype, value)), "i1")]
    return [n("pad", x, low=tuple(low), high=tuple(high), mode=mode, value=fill(x.dtype, value))]


@onnx_op("Pad", since=2)
def pad_2(n, x):
    return pad(n, x, n.required("pads"), n.attr("mode", "constant"), n.attr("value", 0.0))


@onnx_op("Pad", since=11)
def pad_11(n, x, pads, value=None, axes=None):
    mode = n.attr("mode", "constant")
    around = 0 if mode != "constant" or value is None else value
    if isinstance(around, OnnxValue) and around.known() is not None:
        around = n.scalar(around, "constant_value")
    return pad(n, x, n.ints(pads, "pads"), mode, around, None if axes is None else n.ints(axes, "axes"))


@onnx_op("Tile", since=6)
def tile(n, x, repeats):
    return n("tile", x, repeats=tuple(n.ints(repeats, "repeats")))


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(n, x, lengths):
    """The first `lengths[b]` elements of every batch reversed: one gather with a computed table."""
    time, batch = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise n.error(f"time_axis {time} and batch_axis {batch} are 0 and 1 in one order")
    steps, count = x.shape[time], x.shape[batch]
    here = n.unsqueeze(n.count(steps), 1)
    length = n.reshape(n.cast(lengths, "i64"), (1, count))
    back = n("sub", n("sub", length, 1), here)
    at = n("where", n("less", here, length), back, here)  # [time, batch]
    at = n.expand(at, (steps, count))
    if time == 1:
        at = n.transpose(at, (1, 0))
    at = n.reshape(at, (*at.shape, *[1] * (x.rank - 2)))
    return n("gather_elements", x, n.expand(at, x.shape), axis=time)
