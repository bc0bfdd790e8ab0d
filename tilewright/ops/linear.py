"""Matrix products and Einstein sums. Halves accumulate in f32."""

from __future__ import annotations

import string
from math import prod

import numpy as np

from ..ir.dialect import Operator
from ..support.dtypes import wide
from ..support.errors import OpError
from ..support.sizes import is_open
from .common import broadcast_shapes, in_result, in_wide, need, need_factors, same_dtype

#: how sums of products are kept, of factors that are not as wide
SUMS = {"f16": "f32", "bf16": "f32", "i8": "i32", "ui8": "i32"}


class Matmul(Operator):
    """NumPy matmul over the last two dimensions, leading ones broadcast.

    With `dtype` (``"f32"``) the result of halves is not rounded to their type; one operand may then be f32 itself.

    ``"tw.matmul"(%a, %b) : (tensor<4x2x3xf32>, tensor<3x5xf32>) -> tensor<4x2x5xf32>``
    """

    @staticmethod
    def infer(x, y, *, dtype: str | None = None):
        need("number", x, y)
        need_factors(x, y, dtype)
        if x.rank == 0 or y.rank == 0:
            raise OpError(f"operands need at least one dimension: {x} and {y}")
        k, m = x.shape[-1], y.shape[-2] if y.rank > 1 else y.shape[0]
        if k is not None and m is not None and k != m:
            raise OpError(f"inner dimensions differ: {k} in {x} and {m} in {y}")
        batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
        rows = x.shape[-2:-1] if x.rank > 1 else ()
        columns = y.shape[-1:] if y.rank > 1 else ()
        return x.with_shape((*batch, *rows, *columns)).with_dtype(dtype or x.dtype)

    @staticmethod
    def reference(x, y, *, dtype):
        return in_wide(np.matmul, *in_result(dtype, x, y))

    @staticmethod
    def lower(b, x, y, *, dtype):
        if y.rank == 2 and x.rank > 2 and is_open(*x.shape[:-1]):
            # rows of unknown number in one loop: then only the last tile of all has few
            rows = b.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
            flat = Matmul.lower(b, rows, y, dtype=dtype)
            return b.reshape(flat, (*x.shape[:-1], y.shape[-1]))
        batch = "".join(chr(ord("a") + i) for i in range(max(x.rank, y.rank, 2) - 2))
        left = batch[len(batch) - max(x.rank - 2, 0) :] + ("m" if x.rank > 1 else "") + "k"
        right = batch[len(batch) - max(y.rank - 2, 0) :] + "k" + ("n" if y.rank > 1 else "")
        out = batch + ("m" if x.rank > 1 else "") + ("n" if y.rank > 1 else "")
        return b.cast_tensor(b.contract(f"{left},{right}->{out}", x, y, dtype=wide(x.dtype)), dtype or x.dtype)


class Einsum(Operator):
    """Sum of products in Einstein notation: ``"bij,bjk->bik"``; letters absent from the result are summed.

    The equation is explicit and one letter a dimension (the front ends resolve ``...`` and the implicit form). With
    `dtype` the sums of two operands stay as they are: f32 of halves, i32 of bytes.
    """

    @staticmethod
    def infer(*xs, equation: str, dtype: str | None = None):
        need("number", *xs)
        if dtype is None:
            same_dtype(*xs)
        elif len(xs) != 2 or any(x.dtype != dtype and SUMS.get(x.dtype) != dtype for x in xs):
            raise OpError(f"sums of products of {', '.join(map(str, xs))} are not kept in {dtype}")
        names, out = parse_equation(equation)
        if len(names) != len(xs) or not xs:
            raise OpError(f"equation {equation!r} is for {len(names)} operands, got {len(xs)}")
        size: dict[str, int | None] = {}
        for letters, x in zip(names, xs, strict=True):
            if len(letters) != x.rank:
                raise OpError(f"{letters!r} of equation {equation!r} does not fit {x}")
            for c, d in zip(letters, x.shape, strict=True):
                known = size.get(c)
                if known is not None and d is not None and known != d and 1 not in (known, d):
                    raise OpError(f"dimension {c!r} of equation {equation!r} is both {known} and {d}")
                size[c] = d if known is None or known == 1 else known
        if not set(out) <= set(size) or len(set(out)) < len(out):
            raise OpError(f"result {out!r} of equation {equation!r} names unknown or repeated dimensions")
        return xs[0].with_shape([size[c] for c in out]).with_dtype(dtype or xs[0].dtype)

    @staticmethod
    def reference(*xs, equation, dtype=None):
        if dtype == "i32":
            return np.einsum(equation, *(x.astype(np.float64) for x in xs)).astype(np.int32)
        return in_wide(lambda *v: np.einsum(equation, *v, optimize=len(v) > 2), *in_result(dtype, *xs))

    @staticmethod
    def lower(b, *xs, equation, dtype=None):
        names, out = parse_equation(equation)
        acc, letters = xs[0], names[0]
        for i, (right, y) in enumerate(zip(names[1:], xs[1:], strict=True), 2):
            last = i == len(xs)
            later = set(out).union(*names[i:])
            kept = out if last else "".join(dict.fromkeys(c for c in letters + right if c in later))
            acc = b.contract(f"{letters},{right}->{kept}", acc, y, dtype=dtype or wide(acc.dtype))
            letters = kept
        if len(xs) == 1:
            acc = _sum_out(b, acc, letters, out)
        return b.cast_tensor(acc, dtype or xs[0].dtype)


def parse_equation(equation: str) -> tuple[list[str], str]:
    """Operand letters and result letters of an explicit equation; OpError if it is not one.

    >>> parse_equation("ij,jk->ik")
    (['ij', 'jk'], 'ik')
    """
    left, arrow, out = equation.partition("->")
    names = left.split(",")
    if not arrow or not set("".join(names) + out) <= set(string.ascii_letters):
        raise OpError(f"equation {equation!r} is not of the form 'ij,jk->ik'")
    return names, out


def _sum_out(b, x, letters, out):
    """Diagonals, sums and transposition of a single operand."""
    order = out + "".join(dict.fromkeys(c for c in letters if c not in out))
    size = dict(zip(letters, x.shape, strict=True))
    kinds = "".join("p" if c in out else "r" for c in order)
    t = x.type.with_shape([size[c] for c in out]).with_dtype(wide(x.dtype))
    index = [b.dim(order.index(c)) for c in letters]
    result = [b.dim(i) for i in range(len(out))]
    return b.generic([(x, index)], [(b.fill(0, t), result)], kinds, lambda v, s: s + b.cast(v, t.dtype))[0]


class Det(Operator):
    """The determinant of square matrices, the last two dimensions of x. Opaque: elimination, with a loop nest of its
    own."""

    kind = "opaque"

    @staticmethod
    def infer(x):
        need("float", x)
        if x.rank < 2 or (None not in x.shape[-2:] and x.shape[-1] != x.shape[-2]):
            raise OpError(f"needs square matrices, got {x}")
        return x.with_shape(x.shape[:-2])

    @staticmethod
    def reference(x):
        return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)
