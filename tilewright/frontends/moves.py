"""Data movement for the import functions of all front ends: reshape, transpose, slice and the like of a node's
tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..ir.dialect import GROUPS
from ..ir.types import is_float
from ..support.dtypes import INTS
from ..support.sub_byte import FLOATS as NARROW

if TYPE_CHECKING:
    from ..ir.types import Typed


def wrapping(x: Typed, dtype: str) -> dict[str, bool]:
    """The attributes of a cast where floats out of the range of an integer wrap."""
    return {"saturate": False} if dtype in INTS and (is_float(x.dtype) or x.dtype in NARROW) else {}


def fill(dtype: str, number: float) -> float | int:
    """The attribute of `tw.pad` for a number: integers stay such, as floats do not hold each of them.

    >>> fill("i64", 2**53 + 1), fill("ui64", 2**64 - 1), fill("f32", 1)
    (9007199254740993, -1, 1.0)
    """
    if is_float(dtype) or number == 0:
        return float(number)
    return (int(number) + (1 << 63)) % (1 << 64) - (1 << 63)


#: the tensors of a front end
T = TypeVar("T", bound="Typed")


class Moves(Generic[T]):
    """A base of what is called with the name of an operator of `ops/`, ``n("add", x, y)``, and appends that.

    Tensors are `Typed` and immutable. Where nothing moves, the operand itself is the result.
    """

    #: floats out of the range of an integer wrap in a cast, else they become its ends
    wraps = False

    def __call__(self, operator: str, *operands: T | float | None, **attributes: Any) -> Any:
        raise NotImplementedError

    def cast(self, x: T, dtype: str) -> T:
        """x as `dtype`."""
        return x if x.dtype == dtype else self("cast", x, to=dtype, **(wrapping(x, dtype) if self.wraps else {}))

    def reshape(self, x: T, shape: Sequence[int]) -> T:
        """x under a new shape."""
        return x if x.shape == tuple(shape) else self("reshape", x, shape=tuple(int(d) for d in shape))

    def transpose(self, x: T, permutation: Sequence[int]) -> T:
        """x with its dimensions permuted."""
        if list(permutation) == list(range(x.rank)):
            return x
        return self("transpose", x, permutation=tuple(permutation))

    def expand(self, x: T, shape: Sequence[int]) -> T:
        """x broadcast to `shape`."""
        return x if x.shape == tuple(shape) else self("expand", x, shape=tuple(int(d) for d in shape))

    def unsqueeze(self, x: T, axis: int) -> T:
        """x with a dimension of size 1 inserted before `axis`."""
        return self.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))

    def slice(self, x: T, axis: int, start: int, size: int, step: int = 1) -> T:
        """`size` elements along an axis, from `start` on."""
        if start == 0 and step == 1 and size == x.shape[axis]:
            return x
        starts = [start if i == axis else 0 for i in range(x.rank)]
        sizes = [size if i == axis else d for i, d in enumerate(x.shape)]
        steps = [step if i == axis else 1 for i in range(x.rank)]
        return self("slice", x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))

    def pick(self, x: T, axis: int, at: int) -> T:
        """x at one position of an axis, without that dimension."""
        return self.reshape(self.slice(x, axis, at, 1), x.shape[:axis] + x.shape[axis + 1 :])

    def concat(self, xs: Sequence[T], axis: int) -> T:
        """xs joined along `axis`; in several steps where one operator cannot hold so many different types."""
        if len(xs) == 1:
            return xs[0]
        if sum(1 for _ in itertools.groupby(xs, key=lambda x: x.type)) > GROUPS:
            return self.concat([self.concat(xs[i : i + GROUPS], axis) for i in range(0, len(xs), GROUPS)], axis)
        return self("concat", *xs, axis=axis)


__all__ = ["Moves", "fill", "wrapping"]
