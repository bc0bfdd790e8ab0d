"""Matrix products."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

import numpy as np

from .node import FxNode, FxTensor, Operand
from .reduce import vector_norm
from .registry import aten


@aten("linear")
def linear(n: FxNode, x: FxTensor, weight: FxTensor, bias: FxTensor | None = None) -> FxTensor:
    if weight.rank == 1:
        made = n("matmul", x, weight)
    else:
        made = n("matmul", x, n.transpose(weight, (1, 0)))
    return made if bias is None else n("add", made, bias)


@aten("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner")
def matmul(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    n.need(x.dtype != "i1", "of bools")
    if 0 in x.shape or 0 in y.shape:
        return n.full(n.shape, 0, n.dtype)
    if n.overload.endswith("inner"):
        y = n.transpose(y, [*range(y.rank - 2), y.rank - 1, y.rank - 2]) if y.rank > 1 else y
        n.need(max(x.rank, y.rank) <= 2, "of more than two dimensions")
    return n("matmul", x, y)


@aten("addmm", "baddbmm", "addmv", "addbmm")
def addmm(n: FxNode, c: FxTensor, x: FxTensor, y: FxTensor, *, beta: Operand = 1, alpha: Operand = 1) -> FxTensor:
    if 0 in x.shape or 0 in y.shape:
        made = n.full(n.shape if n.overload != "aten.addbmm" else (x.shape[0], *n.shape), 0, n.dtype)
    else:
        made = n("matmul", x, y)
    if n.overload == "aten.addbmm":
        made = n("reduce_sum", made, axes=(0,))
    made = made if alpha == 1 else n("mul", made, n.tensor(alpha, n.dtype))
    if beta == 0:  # what c has does not count, not even NaN
        return made
    c = n.cast(c, n.dtype)
    return n("add", made, c if beta == 1 else n("mul", c, n.tensor(beta, n.dtype)))


@aten("_cdist_forward", "cdist")
def cdist(n: FxNode, x: FxTensor, y: FxTensor, p: float = 2.0, compute_mode: int | None = None) -> FxTensor:
    """Distances of all rows of x from all rows of y."""
    if 0 in x.shape or 0 in y.shape:
        return n.full(n.shape, 0, n.dtype)
    apart = n("abs", n("sub", n.unsqueeze(x, x.rank - 1), n.unsqueeze(y, y.rank - 2)))
    axes = (apart.rank - 1,)
    if p == 0:
        return n("reduce_sum", n.cast(n("not", n("equal", apart, 0.0)), n.dtype), axes=axes)
    if p in (1, 2):
        return n("reduce_l1" if p == 1 else "reduce_l2", apart, axes=axes)
    if math.isinf(p):
        return n("reduce_max", apart, axes=axes)
    return n("pow", n("reduce_sum", n("pow", apart, float(p)), axes=axes), 1.0 / p)


@aten("_pdist_forward")
def pdist(n: FxNode, x: FxTensor, p: float = 2.0) -> FxTensor:
    """Distances of every row from all later ones."""
    if not math.prod(n.shape) or not x.shape[1]:
        return n.full(n.shape, 0, n.dtype)
    first, second = np.triu_indices(x.shape[0], 1)
    rows = [n("gather", x, n.constant(v.astype(np.int64)), axis=0) for v in (first, second)]
    return vector_norm(n, n("sub", *rows), p, [1])


@aten("_trilinear")
def trilinear(n: FxNode, x: FxTensor, y: FxTensor, z: FxTensor, expand1: Sequence[int], expand2: Sequence[int],
              expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1) -> FxTensor:  # fmt: skip
    """The sum over `sumdim` of the product of three tensors, each with dimensions of size 1 inserted."""
    if not math.prod(n.shape) or any(0 in t.shape for t in (x, y, z)):
        return n.full(n.shape, 0, n.dtype)
    rank = x.rank + len(expand1)
    letters = string.ascii_lowercase[:rank]
    names = ["".join(c for i, c in enumerate(letters) if i not in e) for e in (expand1, expand2, expand3)]
    out = "".join(c for i, c in enumerate(letters) if i not in sumdim)
    return n.reshape(n("einsum", x, y, z, equation=f"{','.join(names)}->{out}"), n.shape)


@aten("dist")
def dist(n: FxNode, x: FxTensor, y: FxTensor, p: float = 2) -> FxTensor:
    apart = n("sub", x, y)
    return vector_norm(n, n.reshape(apart, (math.prod(apart.shape),)), p)


@aten("einsum")
def einsum(n: FxNode, equation: str, tensors: Sequence[FxTensor], *, path: object = None) -> FxTensor:
    n.need(not any(0 in t.shape for t in tensors), "of empty tensors")
    return n("einsum", *tensors, equation=explicit(n, equation.replace(" ", ""), [t.rank for t in tensors]))


def explicit(n: FxNode, equation: str, ranks: Sequence[int]) -> str:
    """An equation without ``...`` and with its result."""
    left, arrow, out = equation.partition("->")
    names = left.split(",")
    n.need(len(names) == len(ranks), f"the equation {equation!r} does not fit")
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in equation]
    dots = [r - len(m.replace("...", "")) if "..." in m else 0 for m, r in zip(names, ranks, strict=True)]
    batch = "".join(free[: max(dots, default=0)])
    names = [m.replace("...", batch[len(batch) - d :]) for m, d in zip(names, dots, strict=True)]
    if not arrow:
        letters = "".join(names)
        out = batch + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in batch))
    return f"{','.join(names)}->{out.replace('...', batch)}"
