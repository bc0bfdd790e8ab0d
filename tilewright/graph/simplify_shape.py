"""Simplification patterns for operators that only move elements; the pass is in simplify.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.types import broadcast_shapes, type_of
from ..support.sizes import is_open
from .rewrite import Rewriter, Rewritten, defined_by, definition, elementwise, has_one_use, pattern, shape, static


def permutation(op: ir.Operation) -> tuple[int, ...]:
    return tuple(dialect.attributes(op)["permutation"])


# ---- transpose -----------------------------------------------------------------------------------------------------


@pattern("transpose")
def transpose_of_transpose(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """Identity transposes go, two in a row become one, one that moves only dimensions of size 1 becomes a reshape"""
    x, perm = op.operands[0], permutation(op)
    if perm == tuple(range(len(perm))):
        return x
    inner = defined_by(x, "transpose")
    if inner is not None:
        first = permutation(inner)
        rw.names_of(inner, op)
        return rw.transpose(inner.operands[0], [first[p] for p in perm])
    kept = [p for p in perm if shape(x)[p] != 1]
    if kept == sorted(kept) and static(x):
        return rw.reshape(x, shape(op.results[0]))
    return None


@pattern("transpose")
def transpose_of_reshape(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """transpose(reshape(x)) -> reshape(transpose(x)) where the transpose keeps together what the reshape splits

    Transposes gather in front of reshapes, where they meet other transposes: exporters write the transpose of a key in
    attention as reshape, transpose, reshape.
    """
    inner = defined_by(op.operands[0], "reshape")
    if inner is None or not static(inner.operands[0]) or not static(op.results[0]):
        return None
    x = inner.operands[0]
    order = grouped_permutation(shape(x), shape(op.operands[0]), permutation(op))
    if order is None:
        return None
    rw.names_of(inner, op)
    return rw.reshape(rw.transpose(x, order), shape(op.results[0]))


def grouped_permutation(source: Sequence[int], target: Sequence[int], perm: Sequence[int]) -> list[int] | None:
    """How to permute `source` so that a reshape then gives what reshaping to `target` and permuting gives, or None.

    >>> grouped_permutation((1, 12, 128, 64), (12, 128, 64), (0, 2, 1))
    [0, 1, 3, 2]
    """
    if 0 in source:
        return None
    outer = [i for i, d in enumerate(target) if d != 1]
    pairs = reshape_groups([d for d in source if d != 1], [target[i] for i in outer])
    group_of = {outer[j]: g for g, (_, b) in enumerate(pairs) for j in b}
    order = [p for p in perm if target[p] != 1]
    sequence = list(dict.fromkeys(group_of[p] for p in order))
    if order != [outer[j] for g in sequence for j in pairs[g][1]]:
        return None
    # Source dimensions of a group in order; those of size 1 stay with the dimension that follows them.
    members: list[list[int]] = []
    pending: list[int] = []
    for i, d in enumerate(source):
        pending.append(i)
        if d != 1:
            members.append(pending)
            pending = []
    return [i for g in sequence for j in pairs[g][0] for i in members[j]] + pending


def reshape_groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[range, range]]:
    """The finest pairing of runs of dimensions with equal products (no dimension of size 1 or 0).

    >>> [(list(s), list(t)) for s, t in reshape_groups([6, 4, 5], [2, 3, 20])]
    [([0], [0, 1]), ([1, 2], [2])]
    """
    out, i, j = [], 0, 0
    while i < len(a):
        i0, j0, p, q = i, j, a[i], b[j]
        while p != q:
            if p < q:
                i += 1
                p *= a[i]
            else:
                j += 1
                q *= b[j]
        i, j = i + 1, j + 1
        out.append((range(i0, i), range(j0, j)))
    return out


# ---- reshape -------------------------------------------------------------------------------------------------------


@pattern("reshape")
def reshape_of_reshape(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """A reshape to the same shape goes, of two in a row the first goes, -1 is resolved"""
    x, out = op.operands[0], shape(op.results[0])
    if None in out:
        return None
    if shape(x) == out:
        return x
    inner = defined_by(x, "reshape")
    if inner is not None:
        return rw.reshape(inner.operands[0], out)
    return rw.create("reshape", x, shape=out) if tuple(dialect.attributes(op)["shape"]) != out else None


@pattern("reshape")
def reshape_back(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """reshape(f(reshape(x))) -> f(reshape(x)) where f works on the last dimension only

    Exporters flatten batch and sequence around every matrix product; then residual adds do not meet the product.
    """
    out = shape(op.results[0])
    if len(out) < 2 or not static(op.results[0], op.operands[0]) or shape(op.operands[0])[-1:] != out[-1:]:
        return None
    value, chain = op.operands[0], []
    while True:
        maker = definition(value)
        if maker is None or not has_one_use(value):
            return None
        if maker.name == "tw.reshape":
            break
        main = _last_dimension_only(maker)
        if main is None:
            return None
        chain.append((maker, main))
        value = maker.operands[main]
    if not chain or not shape(value):
        return None
    rw.names_of(maker, *[m for m, _ in chain], op)
    new = rw.reshape(maker.operands[0], [*out[:-1], shape(value)[-1]])
    for maker, main in reversed(chain):
        others = [v if i == main else _vector(rw, maker, v) for i, v in enumerate(maker.operands)]
        others[main] = new
        arguments = iter(others)
        operands = [None if a is None else next(arguments) for a in dialect.arguments(maker)]
        # counted from the end, because the rank changes
        last = {"axis": -1} if "axis" in dialect.attributes(maker) else {}
        new = rw.again(maker, operands, **last)[0]
    return new


def _vector(rw: Rewriter, maker: ir.Operation, v: ir.Value) -> ir.Value:
    if maker.name == "tw.matmul" or not shape(v):
        return v
    return rw.reshape(v, shape(v)[-1:])


def _last_dimension_only(op: ir.Operation) -> int | None:
    """Which operand carries the leading dimensions, if `op` treats them all alike; None if it does not."""
    out, shapes = shape(op.results[0]), [shape(v) for v in op.operands]
    if op.name == "tw.matmul":
        return 0 if len(shapes[1]) == 2 and len(shapes[0]) > 1 else None
    if op.name in ("tw.softmax", "tw.layer_norm", "tw.rms_norm"):
        small = all(prod(s[:-1]) == 1 for s in shapes[1:])
        return 0 if small and dialect.attributes(op)["axis"] in (-1, len(out) - 1) else None
    if not elementwise(op):
        return None
    full = [i for i, s in enumerate(shapes) if s == out and prod(s[:-1]) != 1]
    rest = [s for i, s in enumerate(shapes) if i not in full]
    return full[0] if len(full) == 1 and all(prod(s[:-1]) == 1 for s in rest) else None


@pattern("reshape")
def split_and_back(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """reshape(f(reshape(x), y)) -> f(x, reshape(y)) where f works on elements and the result has the shape of x

    Exporters split the windows of a batch of images off their scores to add a mask that is different in each.
    """
    value, chain = op.operands[0], []
    while True:
        maker = definition(value)
        if maker is None or not has_one_use(value) or not static(value, *maker.operands):
            return None
        if maker.name == "tw.reshape":
            break
        full = [i for i, v in enumerate(maker.operands) if shape(v) == shape(value)]
        if not elementwise(maker) or len(full) != 1:
            return None
        chain.append((maker, full[0]))
        value = maker.operands[full[0]]
    x, split = maker.operands[0], shape(value)
    if not chain or shape(x) != shape(op.results[0]) or 0 in split:
        return None
    joined = {v: _joined(shape(v), split, shape(x)) for m, i in chain for j, v in enumerate(m.operands) if j != i}
    if None in joined.values():
        return None
    rw.names_of(maker, *[m for m, _ in chain], op)
    for m, main in reversed(chain):
        operands = [x if i == main else rw.reshape(v, joined[v] or ()) for i, v in enumerate(m.operands)]
        x = rw.again(m, operands)[0]
    return x


def _joined(dims: Sequence[int], split: Sequence[int], whole: Sequence[int]) -> list[int] | None:
    """The shape for what broadcasts to `split`, with which it broadcasts to `whole` as the reshape of both would; None
    if it repeats some of the dimensions that are joined, or split further.

    >>> _joined((64, 1, 49, 49), (1, 64, 3, 49, 49), (64, 3, 49, 49)), _joined((64, 1, 1), (2, 64, 9), (128, 9))
    ([64, 1, 49, 49], None)
    """
    own = (*[1] * (len(split) - len(dims)), *dims)
    source, target = ([i for i, d in enumerate(s) if d != 1] for s in (split, whole))
    found = [1] * len(whole)
    for a, b in reshape_groups([split[i] for i in source], [whole[i] for i in target]):
        mine = [own[source[i]] for i in a]
        if mine == [split[source[i]] for i in a]:
            for i in b:
                found[target[i]] = whole[target[i]]
        elif any(d != 1 for d in mine):
            return None
    return found


# ---- expand --------------------------------------------------------------------------------------------------------


@pattern("expand")
def expand_nothing(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """Expansions that repeat nothing become reshapes, two in a row become one"""
    x, out = op.operands[0], shape(op.results[0])
    if not static(x, op.results[0]):
        return None
    if prod(shape(x)) == prod(out):
        return rw.reshape(x, out)
    inner = defined_by(x, "expand")
    return rw.create("expand", inner.operands[0], shape=out) if inner is not None else None


@pattern("*")
def drop_expand(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """add(expand(x), y) -> add(x, y) where broadcasting gives the same shape; neg(expand(x)) -> expand(neg(x))"""
    if not elementwise(op):
        return None
    operands = list(op.operands)
    inners = [defined_by(v, "expand") for v in operands]
    if all(inner is None for inner in inners) or not static(op.results[0], *operands):
        return None
    out = shape(op.results[0])
    for i, inner in enumerate(inners):
        if inner is None or not static(inner.operands[0]):
            continue
        smaller = [*operands[:i], inner.operands[0], *operands[i + 1 :]]
        reached = broadcast_shapes(*[shape(s) for s in smaller])
        if reached == out:
            return rw.again(op, smaller)[0]
        if len(operands) == 1 or prod(reached) < prod(out):
            return rw.create("expand", rw.again(op, smaller)[0], shape=out)
    return None


# ---- slice, concat, pad, split, gather -----------------------------------------------------------------------------


@pattern("slice")
def slice_simple(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """Slices of everything go, slices of slices become one, a slice within one operand of a concat reads that one"""
    x, a = op.operands[0], dialect.attributes(op)
    starts, sizes, steps = a["starts"], a["sizes"], a["steps"]
    if not static(x) or 0 in sizes:
        return None
    if shape(x) == sizes and all(s == 0 for s in starts):
        return x
    inner = defined_by(x, "slice")
    if inner is not None:
        b = dialect.attributes(inner)
        rw.names_of(inner, op)
        return rw.create(
            "slice",
            inner.operands[0],
            starts=tuple(s0 + p0 * s for s0, p0, s in zip(b["starts"], b["steps"], starts, strict=True)),
            sizes=sizes,
            steps=tuple(p0 * p for p0, p in zip(b["steps"], steps, strict=True)),
        )
    joined = defined_by(x, "concat")
    return _slice_of_concat(rw, joined, starts, sizes, steps) if joined is not None else None


def _slice_of_concat(
    rw: Rewriter, joined: ir.Operation, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]
) -> Rewritten:
    axis = dialect.attributes(joined)["axis"] % len(sizes)
    ends = (starts[axis], starts[axis] + (sizes[axis] - 1) * steps[axis])
    low, high, at = min(ends), max(ends), 0
    for v in joined.operands:
        n = shape(v)[axis] or 0
        if at <= low and high < at + n:
            inside = tuple(s - at if i == axis else s for i, s in enumerate(starts))
            return rw.create("slice", v, starts=inside, sizes=sizes, steps=steps)
        at += n
    return None


@pattern("concat")
def concat_simple(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """A concat of one goes, empty operands go, a concat along the same axis inside is taken apart"""
    operands = list(op.operands)
    axis = dialect.attributes(op)["axis"] % len(shape(op.results[0]))
    new: list[ir.Value] = []
    for v in operands:
        inner = defined_by(v, "concat")
        if inner is not None and has_one_use(v) and dialect.attributes(inner)["axis"] % len(shape(v)) == axis:
            new += inner.operands
        elif shape(v)[axis] != 0:
            new.append(v)
    if len(new) == 1 and type_of(new[0]) == type_of(op.results[0]):
        return new[0]
    if not new or new == operands or len(list(itertools.groupby(new, key=type_of))) > dialect.GROUPS:
        return None
    return rw.create("concat", *new, axis=axis)


@pattern("pad")
def pad_simple(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """A pad of nothing goes, two pads with the same number become one"""
    x, a = op.operands[0], dialect.attributes(op)
    if not any(a["low"]) and not any(a["high"]):
        return x
    inner = defined_by(x, "pad")
    if inner is None or a["mode"] != "constant":
        return None
    b = dialect.attributes(inner)
    if b["mode"] != "constant" or str(b["value"]) != str(a["value"]):  # 0.0 is not -0.0
        return None
    rw.names_of(inner, op)
    low, high = (tuple(p + q for p, q in zip(a[k], b[k], strict=True)) for k in ("low", "high"))
    return rw.create("pad", inner.operands[0], low=low, high=high, value=a["value"])


@pattern("split", "tile")
def keeps_all(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """A split into one piece and a tile of one go"""
    x = op.operands[0]
    return x if len(op.results) == 1 and type_of(x) == type_of(op.results[0]) else None


@pattern("gather")
def gather_range(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """gather with constant, evenly spaced indices -> slice (and reshape)"""
    x, indices = op.operands[0], rw.array(op.operands[1])
    if indices is None or not static(x) or not 0 < indices.size <= 1 << 20:
        return None
    axis = dialect.attributes(op)["axis"] % len(shape(x))
    n = shape(x)[axis]
    given = indices.reshape(-1).astype(np.int64)
    if not is_open(n):
        given = np.where(given < 0, given + n, given)
    elif (given < 0).any() != (given < 0).all():
        return None
    step = int(given[1] - given[0]) if given.size > 1 else 1
    first = int(given[0]) + (n if given[0] < 0 else 0)
    last = first + (given.size - 1) * step
    if step == 0 or (np.diff(given) != step).any() or not all(0 <= i < n for i in (first, last)):
        return None
    rank = range(len(shape(x)))
    piece = rw.create(
        "slice",
        x,
        starts=tuple(first if i == axis else 0 for i in rank),
        sizes=tuple(given.size if i == axis else shape(x)[i] for i in rank),
        steps=tuple(step if i == axis else 1 for i in rank),
    )
    return rw.reshape(piece, shape(op.results[0]))


@pattern("gather_nd")
def gather_everything(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """gather_nd with constant indices that name all of x in order -> reshape"""
    x, indices = op.operands[0], rw.array(op.operands[1])
    if indices is None or not static(x) or dialect.attributes(op)["batch"] != 0 or indices.size > 1 << 20:
        return None
    dims = shape(x)[: indices.shape[-1]]
    if prod(dims) * indices.shape[-1] != indices.size or (indices < 0).any():
        return None
    flat = indices.reshape(-1, indices.shape[-1])
    if (flat >= np.array(dims)).any():
        return None
    linear = np.ravel_multi_index(tuple(flat.T), dims)
    return rw.reshape(x, shape(op.results[0])) if (linear == np.arange(linear.size)).all() else None


# ---- reductions and matrix products --------------------------------------------------------------------------------


@pattern("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all")
def reduce_nothing(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """A reduction over dimensions of size 1 only -> reshape"""
    x = op.operands[0]
    if not static(x) or any(shape(x)[a] != 1 for a in dialect.attributes(op)["axes"]):
        return None
    return rw.reshape(x, shape(op.results[0]))


@pattern("matmul")
def matmul_shapes(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """Vectors become matrices, expanded batch dimensions and those of size 1 on the right operand go"""
    x, y = op.operands
    out = shape(op.results[0])
    if not static(x, y):
        return None
    if len(shape(x)) == 1 or len(shape(y)) == 1:
        a = rw.reshape(x, (1, *shape(x))) if len(shape(x)) == 1 else x
        b = rw.reshape(y, (*shape(y), 1)) if len(shape(y)) == 1 else y
        return rw.reshape(rw.create("matmul", a, b), out)
    if len(shape(y)) > 2 and prod(shape(y)[:-2]) == 1 and len(shape(x)) >= len(shape(y)):
        return rw.create("matmul", x, rw.reshape(y, shape(y)[-2:]))
    for i, v in enumerate((x, y)):
        inner = defined_by(v, "expand")
        if inner is None or shape(inner.operands[0])[-2:] != shape(v)[-2:]:
            continue
        pair = [inner.operands[0], y] if i == 0 else [x, inner.operands[0]]
        if broadcast_shapes(shape(pair[0])[:-2], shape(pair[1])[:-2]) == out[:-2]:
            return rw.create("matmul", *pair)
    return None


PATTERNS = [
    transpose_of_transpose,
    transpose_of_reshape,
    reshape_of_reshape,
    reshape_back,
    split_and_back,
    expand_nothing,
    slice_simple,
    concat_simple,
    pad_simple,
    keeps_all,
    gather_range,
    gather_everything,
    reduce_nothing,
    matmul_shapes,
    drop_expand,
]
