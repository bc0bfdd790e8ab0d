"""What the operator families share: shape rules, dtype checks, and the wider dtype in which halves are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ..ir.builder import Scalar
from ..ir.dialect import Operator
from ..ir.types import Type
from ..ir.types import broadcast_shapes as broadcast_shapes
from ..support.dtypes import FLOATS, HALVES, INTS, NUMPY, wide
from ..support.errors import OpError
from ..support.sizes import is_open
from ..support.sub_byte import NARROW

Shape = tuple[int | None, ...]


# ---- type rules ----------------------------------------------------------------------------------------------------


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front; OpError if it is out of range."""
    if not -rank <= axis < rank:
        raise OpError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """All `axes` counted from the front, in order; OpError if one is out of range or named twice."""
    out = sorted(axis_of(a, rank) for a in axes)
    if len(set(out)) < len(out):
        raise OpError(f"axes {tuple(axes)} name a dimension twice")
    return tuple(out)


KINDS = {
    "float": FLOATS,
    "int": INTS,
    "bool": ("i1",),
    "number": FLOATS + INTS,
    "bits": (*INTS, "i1"),
    "any": (*FLOATS, *INTS, "i1", *NARROW),
    "narrow": NARROW,
    "quantized": (*INTS, *NARROW),
}


def need(kind: str, *xs: Type | None) -> None:
    """OpError unless the dtype of every operand is of this kind (a key of `KINDS`)."""
    for x in xs:
        if x is not None and x.dtype not in KINDS[kind]:
            raise OpError(f"needs {kind} operands, got {x}")


def same_dtype(*xs: Type | None) -> None:
    """OpError unless all operands that are there have one dtype."""
    present = [x for x in xs if x is not None]
    if len({x.dtype for x in present}) > 1:
        raise OpError(f"operands have different dtypes: {' and '.join(map(str, present))}")


def fits(actual: Shape, expected: Shape) -> bool:
    """Whether two shapes can be equal, unknown dimensions matching anything."""
    return len(actual) == len(expected) and all(
        a is None or e is None or a == e for a, e in zip(actual, expected, strict=True)
    )


def need_shape(name: str, x: Type | None, expected: Shape) -> None:
    """OpError unless the operand `name` (if it is there) has this shape."""
    if x is not None and not fits(x.shape, expected):
        raise OpError(f"{name} has type {x}, its shape should be {expected}")


# ---- halves --------------------------------------------------------------------------------------------------------


def widen(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays of halves as f32, others as they are."""
    halves = tuple(NUMPY[n] for n in HALVES)
    return [a.astype(np.float32) if a is not None and a.dtype in halves else a for a in arrays]


def in_wide(f: Callable[..., Any], x: np.ndarray, *others: np.ndarray, **attrs: Any) -> np.ndarray:
    """f(x, *others) computed in f32 where the operands are halves; the result has the dtype of x."""
    with np.errstate(all="ignore"):
        return np.asarray(f(*widen(x, *others), **attrs)).astype(x.dtype, copy=False)


def need_factors(x: Type, y: Type, dtype: str | None) -> None:
    """The type rule of products that may keep the wide dtype of halves: `dtype` is the result's, None: as the factors.

    OpError unless the factors have one dtype, or `dtype` is the wide dtype of both.
    """
    if dtype is None:
        same_dtype(x, y)
    elif wide(x.dtype) != dtype or wide(y.dtype) != dtype:
        raise OpError(f"the product of {x} and {y} cannot have the dtype {dtype}")


def in_result(dtype: str | None, *arrays: np.ndarray) -> list[np.ndarray]:
    """Factors as their reference computes them: in the dtype of the result where that is given."""
    if dtype is None:
        return list(arrays)
    return [a if a is None or a.dtype == np.float64 else a.astype(NUMPY[dtype]) for a in arrays]


def wide_body(b, body: Callable[..., Any]) -> Callable[..., Any]:
    """A linalg body that computes `body` in f32 where its operands are halves; the result has the first one's dtype."""

    def run(*xs):
        return b.cast(body(*[b.cast(x, wide(x.dtype)) for x in xs]), xs[0].dtype)

    return run


# ---- elementwise operators -----------------------------------------------------------------------------------------


class Elementwise(Operator, abstract=True):
    """Base of operators that compute each element of the result from one element of every operand.

    A subclass gives `reference` and `scalar` (the linalg body), and may set ``accepts`` (a key of `KINDS`),
    ``result`` (the dtype of the result, if it is not the operands') and ``widens`` (compute halves in f32).
    """

    accepts = "any"
    result: str | None = None
    widens = False
    scalar: ClassVar[Callable[..., Scalar]]

    @classmethod
    def check(cls, *xs: Type) -> Type:
        """The type rule: operands of one accepted dtype, shapes broadcast."""
        need(cls.accepts, *xs)
        same_dtype(*xs)
        return Type(broadcast_shapes(*[x.shape for x in xs]), cls.result or xs[0].dtype)

    @classmethod
    def lower(cls, b, *xs, **attrs):
        def body(*vs):
            return cls.scalar(b, *vs, **attrs)

        return b.elementwise(wide_body(b, body) if cls.widens else body, *xs, dtype=cls.result)


class Unary(Elementwise, abstract=True):
    """Elementwise on one operand, without attributes."""

    @classmethod
    def infer(cls, x):
        return cls.check(x)


class Binary(Elementwise, abstract=True):
    """Elementwise on two operands, without attributes; shapes broadcast as in NumPy."""

    @classmethod
    def infer(cls, x, y):
        return cls.check(x, y)


# ---- lowering helpers ----------------------------------------------------------------------------------------------


def per_channel(b, body: Callable[..., Any], x, params: Sequence[Any], axis: int, dtype: str | None = None):
    """Elementwise body(x, *params) where every parameter is a vector along dimension `axis` of x."""
    index = [b.dim(i) for i in range(x.rank)]
    inputs = [(x, index), *[(p, [b.dim(axis)]) for p in params]]
    out = b.empty(x.type.with_dtype(dtype or x.dtype))
    return b.generic(inputs, [(out, index)], "p" * x.rank, lambda *a: body(*a[:-1]))[0]


def total(b, x, axes: Sequence[int], *, keepdims: bool = False):
    """Sum over `axes` in the wide dtype of x."""
    acc = wide(x.dtype)
    return b.reduce(lambda v, s: b.cast(v, acc) + s, 0, x, axes, keepdims=keepdims, dtype=acc)


def average(b, x, axes: Sequence[int]):
    """Mean over `axes`, kept as dimensions of size 1, in the wide dtype of x."""
    count = prod(x.shape[a] for a in axes)
    return b.elementwise(lambda v: divided(v, count), total(b, x, axes, keepdims=True))


def divided(v, count: int):
    """A sum divided by how many numbers it is of: multiplied with the inverse, where that is known."""
    return v / count if is_open(count) else v * (1.0 / max(count, 1))
