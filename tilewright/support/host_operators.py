"""Host operators: NumPy functions that run between the native subgraphs of a model (`staged`), and why each does:

- the size of the result depends on the data, in a way no buffer and count express: Unique;
- its numbers change from call to call while shapes stay, so that a program for each would be wasteful: Slice;
- they handle lists of arrays, not numbers: the Sequence and Optional operators.

All are NumPy on whole arrays; none is used where the operands are known when a program is compiled. NonZero, Compress
and NonMaxSuppression are native (`ops/compact.py`); what is here is their meaning, used where a body cannot be cut.
Free of MLIR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from .errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

F = TypeVar("F", bound="Callable[..., Sequence[Entry]]")
#: a value at run time: an array, a sequence of arrays, an empty optional
Entry: TypeAlias = "np.ndarray | list[Entry] | None"
Numbers: TypeAlias = "np.ndarray | Sequence[int]"
#: operator -> function(node name, arguments, attributes), which gives a list of outputs
OPERATORS: dict[str, Callable[..., Sequence[Entry]]] = {}


def operator(name: str) -> Callable[[F], F]:
    def register(function: F) -> F:
        OPERATORS[name] = function
        return function

    return register


def error(node: str, message: str) -> InputError:
    return InputError(message, stage="run", operator=node)


def call(kind: str, node: str, arguments: Sequence[Entry], attributes: Mapping[str, Any], outputs: int) -> list[Entry]:
    """Run an operator; InputError names the node if its operands do not fit."""
    try:
        results = OPERATORS[kind](node, *arguments, **attributes)
    except (ValueError, IndexError, TypeError) as e:
        raise error(f'{kind} "{node}"', f"cannot be computed: {e}") from None
    return [np.ascontiguousarray(r) if isinstance(r, np.ndarray) and r.ndim else r for r in results[:outputs]]


# ---- sizes that depend on the data ---------------------------------------------------------------------------------


@operator("NonZero")
def non_zero(node: str, x: np.ndarray) -> list[np.ndarray]:
    """
    >>> non_zero("", np.array([[1, 0], [0, 2]]))
    [array([[0, 1],
           [0, 1]])]
    """
    x = np.atleast_1d(x)  # as ONNX Runtime has it: a number counts as a row
    return [np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)]


@operator("Compress")
def compress(node: str, x: np.ndarray, condition: np.ndarray, axis: int | None = None) -> list[np.ndarray]:
    """
    >>> compress("", np.array([[1, 2], [3, 4], [5, 6]]), np.array([False, True]), axis=0)
    [array([[3, 4]])]
    """
    return [np.compress(condition, x, axis)]


@operator("Unique")
def unique(node: str, x: np.ndarray, axis: int | None = None, sorted: int = 1) -> list[np.ndarray]:
    """Values, first positions, which of the values each element is, counts.

    >>> [a.tolist() for a in unique("", np.array([3, 1, 3]), sorted=0)]
    [[3, 1], [0, 1], [0, 1, 0], [2, 1]]
    """
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:  # in order of appearance
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return [values, *(a.astype(np.int64) for a in (first, inverse, counts))]


@operator("NonMaxSuppression")
def non_max_suppression(
    node: str,
    boxes: np.ndarray,
    scores: np.ndarray,
    most: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    threshold: np.ndarray | None = None,
    center_point_box: int = 0,
) -> list[np.ndarray]:
    """[batch, class, box] of the boxes that are kept; boxes [batch, n, 4], scores [batch, class, n]."""
    limit = 0 if most is None else int(most.reshape(()))
    iou = 0.0 if overlap is None else float(overlap.reshape(()))
    least = -np.inf if threshold is None else float(threshold.reshape(()))
    kept = []
    for b in range(scores.shape[0]):
        low, high = _corners(boxes[b], center_point_box)
        for c in range(scores.shape[1]):
            chosen = _suppress(low, high, scores[b, c], limit, iou, least)
            kept += [(b, c, i) for i in chosen]
    return [np.array(kept, np.int64).reshape(-1, 3)]


def _corners(boxes: np.ndarray, center: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corners, [n, 2] each."""
    if center:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return middle - half, middle + half
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _suppress(low: np.ndarray, high: np.ndarray, scores: np.ndarray, limit: int, iou: float, least: float) -> list[int]:
    """Greedily the best box that overlaps none of the chosen ones too much."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > least] if np.isfinite(least) else order
    area = np.prod(high - low, -1)
    chosen: list[int] = []
    while len(order) and len(chosen) < limit:
        best, order = order[0], order[1:]
        chosen.append(int(best))
        size = np.maximum(np.minimum(high[best], high[order]) - np.maximum(low[best], low[order]), 0)
        shared = np.prod(size, -1)
        union = area[best] + area[order] - shared
        share = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        order = order[share <= iou]
    return chosen


# ---- numbers that change while shapes stay -------------------------------------------------------------------------


@operator("Slice")
def slice_(
    node: str, x: np.ndarray, starts: Numbers, ends: Numbers, axes: Numbers | None = None, steps: Numbers | None = None
) -> list[np.ndarray]:
    """
    >>> slice_("", np.arange(5), np.array([-1]), np.array([-9]), None, np.array([-2]))
    [array([4, 2, 0])]
    """
    chosen = [slice(None)] * x.ndim
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not -x.ndim <= axis < x.ndim or step == 0:
            raise ValueError("an axis is out of range" if step else "a step is 0")
        chosen[axis] = slice(int(start), int(end), int(step))
        if step < 0 and end < -x.shape[axis]:  # beyond the front
            chosen[axis] = slice(int(start), None, int(step))
    return [x[tuple(chosen)]]


# ---- sequences and optionals: lists and None -----------------------------------------------------------------------


def _items(node: str, items: object) -> list[Entry]:
    if not isinstance(items, list):
        raise error(node, "it takes a sequence")
    return items


def _position(node: str, items: list[Entry], at: npt.ArrayLike, limit: int) -> int:
    i = int(np.asarray(at).reshape(()))
    if not -len(items) <= i < limit:
        raise error(node, f"position {i} is outside of a sequence of {len(items)}")
    return i + len(items) if i < 0 else i


@operator("SequenceConstruct")
def sequence_construct(node: str, *items: Entry) -> list[Entry]:
    return [list(items)]


@operator("SequenceEmpty")
def sequence_empty(node: str, dtype: int = 1) -> list[Entry]:
    return [[]]


@operator("SequenceLength")
def sequence_length(node: str, items: object) -> list[Entry]:
    return [np.array(len(_items(node, items)), np.int64)]


@operator("SequenceAt")
def sequence_at(node: str, items: list[Entry], at: npt.ArrayLike) -> list[Entry]:
    return [items[_position(node, _items(node, items), at, len(items))]]


@operator("SequenceInsert")
def sequence_insert(node: str, items: list[Entry], item: Entry, at: npt.ArrayLike | None = None) -> list[Entry]:
    i = len(_items(node, items)) if at is None else _position(node, items, at, len(items) + 1)
    return [[*items[:i], item, *items[i:]]]


@operator("SequenceErase")
def sequence_erase(node: str, items: list[Entry], at: npt.ArrayLike | None = None) -> list[Entry]:
    i = len(_items(node, items)) - 1 if at is None else _position(node, items, at, len(items))
    return [[*items[:i], *items[i + 1 :]]]


@operator("ConcatFromSequence")
def concat_from_sequence(node: str, items: list[np.ndarray], axis: int, new_axis: int = 0) -> list[Entry]:
    if not _items(node, items):
        raise error(node, "the sequence is empty")
    return [np.stack(items, axis) if new_axis else np.concatenate(items, axis)]


@operator("SplitToSequence")
def split_to_sequence(
    node: str, x: np.ndarray, split: np.ndarray | None = None, axis: int = 0, keepdims: int = 1
) -> list[Entry]:
    """
    >>> split_to_sequence("", np.arange(5), np.array(2))
    [[array([0, 1]), array([2, 3]), array([4])]]
    """
    size = x.shape[axis]
    if split is None:
        parts = [np.take(x, [i], axis) if keepdims else np.take(x, i, axis) for i in range(size)]
        return [parts]
    cuts = list(range(int(split), size, int(split))) if split.ndim == 0 else np.cumsum(split)[:-1]
    return [[np.ascontiguousarray(p) for p in np.split(x, cuts, axis)]]


@operator("Identity")
@operator("Optional")
@operator("OptionalGetElement")
def same(node: str, item: Entry = None, **attributes: object) -> list[Entry]:
    return [item]


@operator("OptionalHasElement")
def optional_has_element(node: str, item: Entry = None) -> list[Entry]:
    return [np.array(item is not None)]
