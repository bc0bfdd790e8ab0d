"""Operators on results of data-dependent size (`values.Partial`): which ones run on the whole buffer.

An operator that treats the positions of the open dimension one by one gives for the first `count` positions of the
buffer the first `count` positions of its result, whatever the others hold. So it stays in the program that found them,
and no program is made for how many there are: the tail of a detector (its boxes and scores at what was kept) runs in
the program with the non-maximum suppression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...ir.types import is_float
from .math import ACTIVATIONS, BINARY, UNARY
from .node import OnnxNode
from .values import OnnxValue, Partial

#: results of more elements than this are left to a program for what was found, which may be little: of so many a read
#: and a product take about 40 us more than of a hundredth of them
MOST_ELEMENTS = 1 << 18

#: from the node and its operands to the open dimension of its results; None if it does not follow
_RULES: dict[str, Callable[[OnnxNode, Sequence[Any]], int | None]] = {}


def open_axis(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    """The dimension of the results that is open where some operands are `Partial`, all of the same count; None if the
    operator has to wait for them."""
    found = [x for x in operands if isinstance(x, Partial)]
    rule = None if node.proto.domain not in ("", "ai.onnx") else _RULES.get(node.proto.op_type)
    known = all(x is None or isinstance(x, (OnnxValue, Partial)) for x in operands)
    if rule is None or not known or any(x.count is not found[0].count for x in found):
        return None
    return rule(node, operands)


def _rule(*names: str) -> Callable[[Any], Any]:
    def register(f: Any) -> Any:
        _RULES.update(dict.fromkeys(names, f))
        return f

    return register


def _constants(operands: Sequence[Any]) -> bool:
    return all(x is None or (isinstance(x, OnnxValue) and x.known() is not None) for x in operands)


@_rule(*UNARY, *BINARY, *ACTIVATIONS, "Max", "Min", "Sum", "Mean", "Pow", "Where", "Cast", "Clip", "Identity", "Mod")
def elementwise(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    """All partial operands have the dimension in the same place, counted from the end; others have size 1 there."""
    divides = node.proto.op_type in ("Div", "Mod")
    if node.opset < 7 or (divides and isinstance(operands[1], Partial) and not is_float(operands[1].buffer.dtype)):
        return None  # positions that do not count may be 0
    shapes = [(x.buffer if isinstance(x, Partial) else x).shape for x in operands if x is not None]
    ends = {x.buffer.rank - x.axis for x in operands if isinstance(x, Partial)}
    end = max(ends)
    others = [x.shape for x in operands if isinstance(x, OnnxValue)]
    if len(ends) != 1 or any(len(s) >= end and s[-end] != 1 for s in others):
        return None
    return max(map(len, shapes)) - end


@_rule("Gather")
def gather(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    x, indices = operands
    rank = (x.buffer if isinstance(x, Partial) else x).rank
    axis = node.axis(0, rank)
    if isinstance(x, OnnxValue):
        return axis + indices.axis
    if isinstance(indices, Partial) or x.axis == axis:
        return None
    return x.axis if x.axis < axis else x.axis - 1 + indices.rank


@_rule("GatherND")
def gather_nd(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    x, indices = operands
    if isinstance(x, Partial) or node.attr("batch_dims", 0) or indices.axis == indices.buffer.rank - 1:
        return None
    return indices.axis


@_rule("Transpose")
def transpose(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    (x,) = operands
    permutation = node.attr("perm") or list(reversed(range(x.buffer.rank)))
    return permutation.index(x.axis)


@_rule("Unsqueeze", "Squeeze")
def squeeze(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    x, *rest = operands
    given = node.attr("axes")
    if isinstance(x, OnnxValue) or not _constants(rest) or (given is None and not (rest and rest[0] is not None)):
        return None
    axes = given if given is not None else node.ints(rest[0], "axes")
    if node.proto.op_type == "Squeeze":
        gone = {a % x.buffer.rank for a in axes}
        return None if x.axis in gone else x.axis - sum(a < x.axis for a in gone)
    rank = x.buffer.rank + len(axes)
    new = {a % rank for a in axes}
    return [i for i in range(rank) if i not in new][x.axis]


@_rule("Concat")
def concat(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    axes = {x.axis if isinstance(x, Partial) else None for x in operands}
    if len(axes) != 1:
        return None
    (axis,) = axes
    return None if node.axis(0, operands[0].buffer.rank) == axis else axis


@_rule("Split")
def split(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    x, *rest = operands
    same = isinstance(x, OnnxValue) or not _constants(rest) or node.axis(0, x.buffer.rank) == x.axis
    return None if same else x.axis


@_rule("Slice")
def slice_(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    x, *rest = operands
    if isinstance(x, OnnxValue) or not _constants(rest):
        return None
    if node.opset < 10:
        axes, count = node.attr("axes"), len(node.required("starts"))
    else:
        given = rest[2] if len(rest) > 2 else None
        axes, count = None if given is None else node.ints(given, "axes"), rest[0].type.size
    cut = {a % x.buffer.rank for a in (range(count) if axes is None else axes)}
    return None if x.axis in cut else x.axis


@_rule("Reshape")
def reshape(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    """The first dimension stays, whatever becomes of the others."""
    x, shape = operands
    if isinstance(x, OnnxValue) or x.axis or not _constants([shape]):
        return None
    first, *rest = node.ints(shape, "shape")
    sizes = x.buffer.shape[1:]
    if node.attr("allowzero", 0) or first not in (0, -1) or (first == 0 and -1 in rest):
        return None
    rest = [x.buffer.shape[i] if d == 0 and i < x.buffer.rank else d for i, d in enumerate(rest, 1)]
    return 0 if math.prod(rest) == math.prod(sizes) > 0 else None


@_rule("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ArgMax", "ArgMin", "Softmax")
def reduced(node: OnnxNode, operands: Sequence[Any]) -> int | None:
    """Along other dimensions; those that go have to be known."""
    x, *rest = operands
    if isinstance(x, OnnxValue) or not _constants(rest):
        return None
    rank, given = x.buffer.rank, rest[0] if rest else None
    if node.proto.op_type.startswith("Reduce"):
        axes = node.attr("axes") if given is None else node.ints(given, "axes")
    elif node.proto.op_type == "Softmax":
        if node.opset < 13:  # over all dimensions from `axis` on
            return None
        axes = [node.attr("axis", -1)]
    else:
        axes = [node.attr("axis", 0)]
    gone = {a % rank for a in axes or range(rank)}
    if x.axis in gone:
        return None
    stays = node.proto.op_type == "Softmax" or node.attr("keepdims", 1)
    return x.axis if stays else x.axis - sum(a < x.axis for a in gone)
