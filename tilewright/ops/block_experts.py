"""Products with the weights of experts (`experts.py`) that are kept in blocks of a few bits (`block_quantized.py`):
those of all experts lie below each other, [experts * N, K]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.errors import OpError
from .block_quantized import BlockMatmul, IntegerBlockMatmul, _weights
from .experts import ExpertMatmul

#: N is a multiple of this: tiles of columns do not go from one expert to the next
COLUMNS = 64


def _result(made: Type, starts: Type | None, rows: Type | None) -> Type:
    """The type of the result, where `made` is that of the product of x with all weights."""
    if starts is None:
        raise OpError("needs starts")
    for name, t in (("starts", starts), ("rows", rows)):
        if t is not None and (t.dtype != "i32" or t.rank != 1):
            raise OpError(f"{name} is a list of i32, got {t}")
    (many,), columns = starts.shape, made.shape[1]
    if many is None or columns is None:
        raise OpError(f"the number of experts and of their rows is known, got {starts} for {made}")
    count = many - 1
    if count < 1 or columns % (count * COLUMNS):
        raise OpError(f"{columns} rows of weights are not a multiple of {COLUMNS} for each of {count} experts")
    return Type((made.shape[0] if rows is None else rows.shape[0], columns // count), "f32")


def _by_expert(
    product: Callable[..., np.ndarray], x: list[np.ndarray], weights: list[Any], starts: np.ndarray, rows: Any
) -> np.ndarray:
    """The reference: `product` of the rows of each expert with its weights."""
    x = x if rows is None else [a[rows] for a in x]
    count, total = len(starts) - 1, len(weights[0])
    out = np.zeros((len(x[0]), total // count), np.float64 if x[-1].dtype == np.float64 else np.float32)
    for e in np.flatnonzero(np.diff(starts)):
        part, own = slice(starts[e], starts[e + 1]), slice(e * total // count, (e + 1) * total // count)
        out[part] = product(*[a[part] for a in x], *[None if w is None else w[own] for w in weights])
    return out


class ExpertBlockMatmul(Operator):
    """`ExpertMatmul` of x f32 [M, K] with weights [E * N, K] in blocks, as of `BlockMatmul`: f32 [R, N].

    N is a multiple of 64. Opaque: numbers are unpacked in registers; `decompose` dequantizes all weights.

    ``"tw.expert_block_matmul"(%x, %w, %s, %starts, %rows) {bits = 4} : (tensor<5x64xf32>, tensor<512x2x4xui32>,
    tensor<512x2xf32>, tensor<9xi32>, tensor<10xi32>) -> tensor<10x64xf32>``
    """

    kind = "opaque"

    @staticmethod
    def infer(
        x, w, scale, zero=None, inner=None, minimum=None, inner_minimum=None, starts=None, rows=None,
        *, bits: int, offset: int = -1, table: tuple[int, ...] = (),
    ):  # fmt: skip
        weights = (w, scale, zero, inner, minimum, inner_minimum)
        return _result(BlockMatmul.infer(x, *weights, bits=bits, offset=offset, table=table), starts, rows)

    @staticmethod
    def reference(x, *operands, **attributes):
        *weights, starts, rows = _filled(operands, 8)
        return _by_expert(lambda *a: BlockMatmul.reference(*a, **attributes), [x], weights, starts, rows)

    @staticmethod
    def decompose(b, x, *operands, **attributes):
        *weights, starts, rows = _filled(operands, 8)
        return _product(b, x, weights, starts, rows, attributes)


class ExpertIntegerBlockMatmul(Operator):
    """`ExpertBlockMatmul` of what `QuantizeBlocks` made of x [M, K], as of `IntegerBlockMatmul`: f32 [R, N].

    ``"tw.expert_integer_block_matmul"(%q, %xs, %sums, %w, %s, %starts, %rows) {bits = 4} : (tensor<5x64xi8>, ...)``
    """

    kind = "opaque"

    @staticmethod
    def infer(
        x, xscale, sums, w, scale, zero=None, inner=None, minimum=None, inner_minimum=None, starts=None, rows=None,
        *, bits: int, offset: int = -1, table: tuple[int, ...] = (),
    ):  # fmt: skip
        given = (x, xscale, sums, w, scale, zero, inner, minimum, inner_minimum)
        return _result(IntegerBlockMatmul.infer(*given, bits=bits, offset=offset, table=table), starts, rows)

    @staticmethod
    def reference(x, xscale, sums, *operands, **attributes):
        *weights, starts, rows = _filled(operands, 8)
        given = [x, sums, xscale]
        return _by_expert(
            lambda q, s, d, *a: IntegerBlockMatmul.reference(q, d, s, *a, **attributes), given, weights, starts, rows
        )

    @staticmethod
    def decompose(b, x, xscale, sums, *operands, **attributes):
        *weights, starts, rows = _filled(operands, 8)
        return _product(b, IntegerBlockMatmul.scaled(b, x, xscale), weights, starts, rows, attributes)


def _filled(operands, count: int) -> list[Any]:
    return [*operands, *[None] * (count - len(operands))]


def _product(b, x, weights, starts, rows, attributes):
    count = starts.shape[0] - 1
    made = _weights(b, weights, attributes)
    made = b.reshape(made, (count, made.shape[0] // count, made.shape[1]))
    return ExpertMatmul.decompose(b, x, made, starts, rows)


__all__ = ["COLUMNS", "ExpertBlockMatmul", "ExpertIntegerBlockMatmul"]
