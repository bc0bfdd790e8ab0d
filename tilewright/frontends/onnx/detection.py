"""Operators of object detection."""

from __future__ import annotations

import numpy as np

from ...ir.types import NUMPY
from ...support.sizes import at_most, decode, larger, smaller
from .registry import onnx_op
from .shape import split


@onnx_op("NonMaxSuppression", since=10)
def non_max_suppression(n, boxes, scores, most=None, overlap=None, threshold=None):
    limits = [
        n.constant(np.array(default, dtype)) if x is None else n.reshape(x, ())
        for x, default, dtype in (
            (most, 0, np.int64),
            (overlap, 0.0, np.float32),
            (threshold, -np.inf, np.float32),
        )
    ]
    found, count = n("non_max_suppression", boxes, scores, *limits, center=bool(n.attr("center_point_box", 0)))
    if all(x.constant for x in (found, count)):
        return n.constant(found.known()[: int(count.known())])
    if most is not None and most.known() is not None:  # of each class: the buffer has room for all boxes
        each = larger(smaller(boxes.shape[1], decode(most.known().item())), 1)
        rows = scores.shape[0] * scores.shape[1] * each
        if not at_most(found.shape[0], rows):
            found = n.slice(found, 0, 0, rows)
    return [n.partial(found, count, 0)]


@onnx_op("MaxRoiPool", since=1)
def max_roi_pool(n, x, rois):
    """The largest number in each of `pooled_shape` parts of each region (batch, x1, y1, x2, y2), ends included."""
    rows, columns = n.required("pooled_shape")
    batch, *edges = (n.reshape(e, (rois.shape[0],)) for e in split(n, rois, [1] * 5, 1))
    scale = float(n.attr("spatial_scale", 1.0))
    left, top, right, bottom = (rounded(n, n("mul", e, scale)) for e in edges)
    images = n("gather", x, n.cast(batch, "i64"), axis=0)  # [regions, channels, height, width]
    regions, _, height, width = images.shape
    least = n.constant(np.array(-np.inf, NUMPY[x.dtype]))
    inside = n.reshape(parts(n, top, bottom, rows, height), (regions, 1, rows, height, 1))
    out = n("where", inside, n.unsqueeze(images, 2), least)
    out = n("reduce_max", out, axes=(3,), keepdims=False)  # [regions, channels, rows, width]
    inside = n.reshape(parts(n, left, right, columns, width), (regions, 1, 1, columns, width))
    out = n("reduce_max", n("where", inside, n.unsqueeze(out, 3), least), axes=(4,), keepdims=False)
    return n("where", n("equal", out, least), n.zero(x), out)


def parts(n, first, last, count, size):
    """[regions, count, size]: which positions lie in which part of the range from `first` to `last`."""
    first = n.reshape(first, (first.shape[0], 1))
    step = n("div", n("max", n("add", n("sub", n.reshape(last, first.shape), first), 1), 1), float(count))
    number = n.unsqueeze(n.count(count, step.dtype), 0)
    begin = n("add", n("floor", n("mul", step, number)), first)
    end = n("add", n("ceil", n("mul", step, n("add", number, 1))), first)
    at = n.reshape(n.count(size, step.dtype), (1, 1, size))
    return n("and", n("less_equal", n.unsqueeze(begin, 2), at), n("less", at, n.unsqueeze(end, 2)))


def rounded(n, x):
    """To the nearest whole number, halves away from zero."""
    return n("mul", n("sign", x), n("floor", n("add", n("abs", x), 0.5)))
