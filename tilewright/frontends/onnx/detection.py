"""Operators of object detection."""

from __future__ import annotations

import numpy as np

from .registry import onnx_op


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
    return [n.partial(found, count, 0)]
