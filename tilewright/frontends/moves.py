"""What import functions of every front end need of their nodes: moving elements about without computing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..ir.dialect import GROUPS


class Moves:
    """A base of what is called with the name of an operator of `ops/`, ``n("add", x, y)``, and appends that.

    Tensors are `Typed` and immutable. Where nothing moves, the operand itself is the result.
    """

    def __call__(self, operator: str, *operands: Any, **attributes: Any) -> Any:
        raise NotImplementedError

    def cast(self, x: Any, dtype: str) -> Any:
        """x as `dtype`."""
        return x if x.dtype == dtype else self("cast", x, to=dtype)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """x under a new shape."""
        return x if x.shape == tuple(shape) else self("reshape", x, shape=tuple(int(d) for d in shape))

    def transpose(self, x: Any, permutation: Sequence[int]) -> Any:
        """x with its dimensions permuted."""
        if list(permutation) == list(range(x.rank)):
            return x
        return self("transpose", x, permutation=tuple(permutation))

    def expand(self, x: Any, shape: Sequence[int]) -> Any:
        """x broadcast to `shape`."""
        return x if x.shape == tuple(shape) else self("expand", x, shape=tuple(int(d) for d in shape))

    def unsqueeze(self, x: Any, axis: int) -> Any:
        """x with a dimension of size 1 inserted before `axis`."""
        return self.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))

    def slice(self, x: Any, axis: int, start: int, size: int, step: int = 1) -> Any:
        """`size` elements along an axis, from `start` on."""
        if start == 0 and step == 1 and size == x.shape[axis]:
            return x
        starts = [start if i == axis else 0 for i in range(x.rank)]
        sizes = [size if i == axis else d for i, d in enumerate(x.shape)]
        steps = [step if i == axis else 1 for i in range(x.rank)]
        return self("slice", x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))

    def concat(self, xs: Sequence[Any], axis: int) -> Any:
        """xs joined along `axis`; in several steps where one operator cannot hold so many different types."""
        if len(xs) == 1:
            return xs[0]
        if sum(1 for _ in itertools.groupby(xs, key=lambda x: x.type)) > GROUPS:
            return self.concat([self.concat(xs[i : i + GROUPS], axis) for i in range(0, len(xs), GROUPS)], axis)
        return self("concat", *xs, axis=axis)


__all__ = ["Moves"]
