"""Matrix products."""

from __future__ import annotations

import string

from ...ir.types import is_float
from .registry import onnx_op


@onnx_op("MatMul", since=1)
def matmul(n, x, y):
    return n("matmul", x, y)


@onnx_op("Gemm", since=1)
def gemm(n, x, y, c=None):
    """alpha * x' y' + beta * c, from the operators that the graph passes know."""
    if x.rank != 2 or y.rank != 2:
        raise n.error(f"takes matrices, got {x.type} and {y.type}")
    x = n.transpose(x, (1, 0)) if n.attr("transA", 0) else x
    y = n.transpose(y, (1, 0)) if n.attr("transB", 0) else y
    out, alpha, beta = n("matmul", x, y), n.attr("alpha", 1.0), n.attr("beta", 1.0)
    if alpha != 1:
        out = n("mul", out, alpha if is_float(x.dtype) else int(alpha))
    if c is None or beta == 0:
        return out
    if beta != 1:
        c = n("mul", c, beta if is_float(x.dtype) else int(beta))
    return n("add", out, c)


@onnx_op("Einsum", since=12)
def einsum(n, *xs):
    return n("einsum", *xs, equation=explicit(n, n.required("equation").replace(" ", ""), [x.rank for x in xs]))


def explicit(n, equation: str, ranks: list[int]) -> str:
    """An equation without ``...`` and with its result: ``"...ij,jk"`` becomes ``"Aij,jk->Aik"`` and so on."""
    left, arrow, out = equation.partition("->")
    names = left.split(",")
    if len(names) != len(ranks):
        raise n.error(f"equation {equation!r} is for {len(names)} operands, got {len(ranks)}")
    free = [c for c in string.ascii_uppercase + string.ascii_lowercase if c not in equation]
    dots = [
        rank - len(name.replace("...", "")) if "..." in name else 0 for name, rank in zip(names, ranks, strict=True)
    ]
    if min(dots, default=0) < 0 or max(dots, default=0) > len(free):
        raise n.error(f"equation {equation!r} does not fit operands of {ranks} dimensions")
    batch = "".join(free[: max(dots, default=0)])
    names = [name.replace("...", batch[len(batch) - d :]) for name, d in zip(names, dots, strict=True)]
    if not arrow:
        letters = "".join(names)
        out = batch + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in batch))
    return f"{','.join(names)}->{out.replace('...', batch)}"


@onnx_op("Det", since=11)
def det(n, x):
    return n("det", x)
