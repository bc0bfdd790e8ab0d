"""Stream compaction, with data-dependent result sizes: the front of an upper-bound buffer is filled."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support import host_operators as host
from ..support.errors import OpError


def _filled(found: np.ndarray, size: int, axis: int) -> np.ndarray:
    """`found` with zeros after it along `axis`."""
    pad = [(0, 0)] * found.ndim
    pad[axis] = (0, size - found.shape[axis])
    return np.pad(found, pad)


class NonZero(Operator):
    """Indices of the elements of x that are not zero, row-major: i64 [rank, elements of x], the rest 0; and how many.

    x has at least one dimension.
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(x):
        if x.rank == 0:
            raise OpError("x needs at least one dimension")
        return [Type((x.rank, x.size if x.static else None), "i64"), Type((), "i64")]

    @staticmethod
    def reference(x):
        (found,) = host.non_zero("", x)
        return [_filled(found, x.size, 1), np.array(found.shape[1], np.int64)]


class NonMaxSuppression(Operator):
    """[batch, class, box] of the boxes kept, i64 [batch * classes * boxes, 3], the rest 0; and how many.

    boxes: f32 [batch, boxes, 4] as two corners, or (`center`) middle and size; scores: f32 [batch, classes, boxes].
    most: i64 [], boxes kept of each class; overlap: f32 [], boxes with a larger intersection over union with a kept one
    go; threshold: f32 [], boxes must have a larger score.
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(boxes, scores, most, overlap, threshold, *, center: bool = False):
        same = (
            boxes.rank == scores.rank == 3 and boxes.shape[0] == scores.shape[0] and boxes.shape[1] == scores.shape[2]
        )
        if not same or boxes.shape[2] != 4:
            raise OpError(f"boxes {boxes} and scores {scores} are not [batch, n, 4] and [batch, classes, n]")
        if any(t.rank for t in (most, overlap, threshold)):
            raise OpError("most, overlap and threshold are scalars")
        if [t.dtype for t in (boxes, scores, most, overlap, threshold)] != ["f32", "f32", "i64", "f32", "f32"]:
            raise OpError("boxes, scores, overlap and threshold are f32, most is i64")
        return [Type((scores.size if scores.static else None, 3), "i64"), Type((), "i64")]

    @staticmethod
    def reference(boxes, scores, most, overlap, threshold, *, center):
        (found,) = host.non_max_suppression("", boxes, scores, most, overlap, threshold, int(center))
        return [_filled(found, scores.size, 0), np.array(len(found), np.int64)]
