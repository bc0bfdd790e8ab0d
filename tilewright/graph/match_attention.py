"""Scaled dot-product attention as exporters decompose it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import broadcast_shapes, type_of
from .matching import affine
from .passes import PassReport, register
from .rewrite import (
    Rewriter,
    Rewritten,
    defined_by,
    definition,
    dtype,
    either_order,
    has_one_use,
    pattern,
    rewrite,
    shape,
    static,
    users,
)
from .simplify_shape import reshape_of_reshape, transpose_of_reshape, transpose_of_transpose

#: a number in a mask that is as good as minus infinity: a score added to it is lost in rounding
MASKED = -1e30


@register("match-attention")
@dataclass(frozen=True)
class MatchAttention:
    """Find softmax(q kT * scale + mask) v.

    The scale may be before or after the product, or split between q and k; the mask may be added, or chosen by
    `where`; a guard against NaN after the softmax is dropped (a query that sees no key gives zeros in `tw.attention`
    as well). k may come transposed. Keys and values repeated for grouped queries lose the repetition. A constant mask
    that is lower triangular becomes ``causal``, one of zeros goes. Run `simplify` and `fold` before.

        %0 = "tw.transpose"(%k) {permutation = array<i64: 0, 1, 3, 2>} : ...
        %1 = "tw.matmul"(%q, %0) : ...
        %2 = "tw.mul"(%1, %scale) : ...
        %3 = "tw.softmax"(%2) : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
        %4 = "tw.matmul"(%3, %v) : ...
    ->  %0 = "tw.attention"(%q, %k, %v) {scale = 1.25e-01} : ...

    Equal for finite inputs: where q or k hold NaN, a guarded softmax gives zeros and `tw.attention` NaN.
    """

    def run(self, graph: Graph) -> PassReport:
        shapes = [transpose_of_transpose, transpose_of_reshape, reshape_of_reshape]
        return rewrite(graph, [attention, grouped_heads, mask_operand, *shapes])


@dataclass
class Scores:
    """What was found around q @ kT: the factors, the masks, and the operations."""

    scale: float = 1.0
    masks: list[tuple[ir.Value, float]] = field(default_factory=list)
    choices: list[tuple[ir.Value, float, bool]] = field(default_factory=list)  # condition, number, True where masked
    matched: list[ir.Operation] = field(default_factory=list)


@pattern("matmul")
def attention(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """matmul(softmax(scale * matmul(q, kT) + mask), v) -> attention(q, k, v, mask)"""
    weights, v = op.operands
    softmax, guards = _softmax_of(rw, weights)
    if softmax is None or len(shape(weights)) not in (3, 4) or not static(op.results[0], weights, v):
        return None
    if dialect.attributes(softmax)["axis"] not in (-1, len(shape(weights)) - 1):
        return None
    found = Scores(matched=[softmax, *guards, op])
    product = _product_of(rw, softmax.operands[0], found)
    if product is None:
        return None
    found.matched.insert(0, product)
    a, q, zero = affine(rw, product.operands[0])
    b, kt, zero2 = affine(rw, product.operands[1])
    if zero or zero2:
        return None
    rw.names_of(*found.matched)
    return _build(rw, op, q, kt, v, found.scale * a * b, found)


def _softmax_of(rw: Rewriter, weights: ir.Value) -> tuple[ir.Operation | None, list[ir.Operation]]:
    """The softmax behind the weights, and the operations of where(is_nan(softmax), 0, softmax) around it."""
    if not has_one_use(weights):
        return None, []
    guard = defined_by(weights, "where")
    if guard is None:
        return defined_by(weights, "softmax"), []
    condition, zero, s = guard.operands
    test = defined_by(condition, "is_nan")
    if test is None or rw.splat(zero) != 0 or test.operands[0] != s:
        return None, []
    if any(u != guard and u != test for u in users(s)) or not has_one_use(condition):
        return None, []
    return defined_by(s, "softmax"), [test, guard]


def _product_of(rw: Rewriter, value: ir.Value, found: Scores) -> ir.Operation | None:
    """The matmul(q, kT) behind the scores; collects factors and masks on the way."""
    factor = 1.0
    while True:
        op = definition(value)
        if op is None or not has_one_use(value):
            return None
        name = dialect.mnemonic(op)
        if name == "matmul":
            found.scale = factor
            return op
        found.matched.insert(0, op)
        if name in ("mul", "div", "neg"):
            a, inner, _ = affine(rw, value)
            if inner == value:
                return None
            factor, value = factor * a, inner
        elif name == "add":
            inner = _side_with_product(op)
            if inner is None:
                return None
            mask = op.operands[0] if inner == op.operands[1] else op.operands[1]
            found.masks.append((mask, factor))
            value = inner
        elif name == "where":
            condition, x, y = op.operands
            masked = rw.splat(x) is not None
            number = rw.splat(x if masked else y)
            if number is None or number * factor > MASKED:
                return None
            found.choices.append((condition, number * factor, masked))
            value = y if masked else x
        else:
            return None


def _side_with_product(op: ir.Operation) -> ir.Value | None:
    """The operand of an add that carries the scores: of full shape, a product behind it."""
    for x, _ in either_order(op):
        step: ir.Value | None = x
        while step is not None and shape(step) == shape(op.results[0]):
            maker = definition(step)
            name = dialect.mnemonic(maker) if maker is not None else None
            if maker is None or name not in ("matmul", "mul", "div", "add", "where", "neg"):
                break
            if name == "matmul":
                return x
            if name == "add":
                step = _side_with_product(maker)
            elif name == "where":
                step = maker.operands[2 if _constant(maker.operands[1]) else 1]
            else:
                step = maker.operands[0]
    return None


def _constant(value: ir.Value) -> bool:
    return defined_by(value, "constant") is not None


def _build(
    rw: Rewriter, op: ir.Operation, q: ir.Value, kt: ir.Value, v: ir.Value, scale: float, found: Scores
) -> Rewritten:
    """The tw.attention, if the shapes allow one; operands of rank 3 get a head dimension of 1."""
    ranks = {len(shape(x)) for x in (q, kt, v)}
    if len(ranks) != 1 or not static(q, kt) or len({dtype(x) for x in (q, kt, v)}) != 1:
        return None
    (n, heads, rows, depth), (kn, shared, kd, columns) = _four(shape(q)), _four(shape(kt))
    vn, vh, vc, _ = _four(shape(v))
    if kd != depth or vc != columns or (vn, vh) != (kn, shared) or kn != n or shared not in (1, heads):
        return None
    scores = (n, heads, rows, columns)
    masks = [m for m, *_ in (*found.masks, *found.choices)]
    if not static(*masks) or any(not _fits(shape(m), len(shape(q)), scores) for m in masks):
        return None
    if any(dtype(m) != dtype(q) for m, _ in found.masks):
        return None
    rank = len(shape(kt))
    k = rw.transpose(kt, [*range(rank - 2), rank - 1, rank - 2])
    q, k, v = (rw.reshape(x, _four(shape(x))) for x in (q, k, v))
    out = rw.create("attention", q, k, v, _mask(rw, q, found, rank), scale=scale)
    return rw.reshape(out, shape(op.results[0]))


def _four(dims: tuple[int, ...]) -> tuple[int, ...]:
    return dims if len(dims) == 4 else (dims[0], 1, *dims[1:])


def _fits(dims: tuple[int, ...], rank: int, scores: tuple[int, ...]) -> bool:
    full = dims if rank == 4 or len(dims) < 3 else _four(dims)
    try:
        return len(full) <= 4 and broadcast_shapes(full, scores) == scores
    except ValueError:
        return False


def _mask(rw: Rewriter, q: ir.Value, found: Scores, rank: int) -> ir.Value | None:
    """One additive mask from all that was found, None if there was nothing."""
    parts = []
    for mask, factor in found.masks:
        parts.append(mask if factor == 1 else rw.create("mul", mask, rw.like(factor, mask)))
    for condition, number, masked in found.choices:
        pair = [rw.like(0, q), rw.like(number, q)]
        parts.append(rw.create("where", condition, *(pair[::-1] if masked else pair)))
    total = None
    for part in parts:
        if rank == 3 and len(shape(part)) == 3:
            part = rw.reshape(part, _four(shape(part)))
        total = part if total is None else rw.create("add", total, part)
    return total


@pattern("attention")
def grouped_heads(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """Keys and values that repeat each head for a group of queries -> the keys and values without the repetition"""
    q, k, v, mask = dialect.arguments(op)[:4]
    k0, v0 = (_without_repeat(x) for x in (k, v))
    if k0 is None or v0 is None or shape(k0)[:2] != shape(v0)[:2]:
        return None
    small = [rw.reshape(x, (d[0], d[1], *d[3:])) for x, d in ((k0, shape(k0)), (v0, shape(v0)))]
    return rw.again(op, [q, *small, mask])[0]


def _without_repeat(x: ir.Value | None) -> ir.Value | None:
    """y [B, Hk, 1, S, D] where x is y expanded to [B, Hk, g, S, D] and reshaped to [B, Hk * g, S, D]."""
    merged = defined_by(x, "reshape")
    repeated = defined_by(merged.operands[0], "expand") if merged is not None else None
    if merged is None or repeated is None or x is None:
        return None
    y, big = repeated.operands[0], shape(repeated.results[0])
    if len(big) != 5 or len(shape(y)) != 5 or None in big:
        return None
    same = [i for i in range(5) if shape(y)[i] == big[i]]
    if same != [0, 1, 3, 4] or shape(y)[2] != 1 or shape(x) != (big[0], big[1] * big[2], *big[3:]):
        return None
    return y


@pattern("attention")
def mask_operand(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """A mask of zeros goes, a constant lower-triangular one becomes `causal`, an expanded one loses the expansion"""
    q, k, v, mask = dialect.arguments(op)[:4]
    if mask is None:
        return None
    inner = defined_by(mask, "expand")
    if inner is not None:
        return rw.again(op, [q, k, v, inner.operands[0]])[0]
    if defined_by(mask, "constant") is None or type_of(mask).size > 1 << 26:
        return None
    array = rw.array(mask)
    assert array is not None  # a constant
    if not array.any():
        return rw.again(op, [q, k, v, None])[0]
    offset = causal_offset(array, (shape(q)[2], shape(k)[2]))
    if offset is None or dialect.attributes(op)["causal"]:
        return None
    return rw.again(op, [q, k, v, None], causal=True, offset=offset)[0]


def causal_offset(mask: np.ndarray | None, size: tuple[int, int]) -> int | None:
    """The offset >= 0 for which query i sees key j exactly if j <= i + offset, if the mask says that and nothing else.

    >>> causal_offset(np.triu(np.full((3, 3), -np.inf), 1), (3, 3))
    0
    """
    if mask is None or mask.shape[-2:] != size:
        return None
    planes = mask.reshape(-1, *size).astype(np.float64)
    visible = planes[0] == 0
    if not (visible | (planes[0] <= MASKED)).all() or (planes != planes[0]).any():
        return None
    offset = int(visible[0].sum()) - 1
    rows, columns = np.indices(size, sparse=True)
    return offset if offset >= 0 and (visible == (columns <= rows + offset)).all() else None
