"""Kernels and nests with dynamic sizes at concrete sizes: for estimates, the interpreter and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..support.sizes import Size, current, is_open, value_at
from ..tensor.expr import Buffer, Const, Expr, Target, rebuild, transform
from ..tensor.kernel import Kernel, Stage
from .nest import Alloc, For, Nest, Seq, Stmt, map_exprs
from .nest import transform as transform_stmt


def typical_sizes() -> dict[str, int]:
    """Sizes in the middle of their ranges, by name; none where all sizes are known."""
    known = current()
    return {} if known is None else {d.name: d.typical for d in known.dims}


def kernel_at(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """The kernel for these sizes of the symbols."""
    return replace(
        kernel,
        params=tuple(buffer_at(b, sizes) for b in kernel.params),
        temporaries=tuple(buffer_at(b, sizes) for b in kernel.temporaries),
        stages=tuple(_stage_at(s, sizes) for s in kernel.stages),
    )


def nest_at(nest: Nest, sizes: Mapping[str, int]) -> Nest:
    """The nest for these sizes of the symbols.

    for i in serial(batch): ...   ->   for i in serial(3): ...
    """

    def visit(s: Stmt) -> Stmt:
        s = map_exprs(s, lambda e: expr_at(e, sizes))
        if isinstance(s, For):
            return replace(s, lanes=s.lanes)
        return replace(s, buffer=buffer_at(s.buffer, sizes)) if isinstance(s, Alloc) else s

    body = transform_stmt(nest.body, visit) or Seq(())  # of a kernel whose results nobody reads nothing is left
    return replace(nest, params=tuple(buffer_at(b, sizes) for b in nest.params), body=body)


def expr_at(e: Expr, sizes: Mapping[str, int]) -> Expr:
    """An expression for these sizes of the symbols."""

    def visit(x: Expr, args: tuple[Expr, ...]) -> Expr:
        if isinstance(x, Const):
            return Const(value_at(x.value, sizes), x.dtype) if isinstance(x.value, Size) else x
        return rebuild(x, args)

    return transform(e, visit)


def buffer_at(b: Buffer, sizes: Mapping[str, int]) -> Buffer:
    """A buffer for these sizes of the symbols."""
    return Buffer(b.name, tuple(value_at(d, sizes) for d in b.shape), b.dtype, b.scope) if is_open(*b.shape) else b


def _stage_at(s: Stage, sizes: Mapping[str, int]) -> Stage:
    def at(t: Target) -> Target:
        init = None if t.init is None else expr_at(t.init, sizes)
        return Target(t.buffer, tuple(expr_at(i, sizes) for i in t.indices), expr_at(t.value, sizes), init)

    return Stage(s.name, tuple((v, value_at(n, sizes)) for v, n in s.dims), tuple(map(at, s.targets)), s.reduction)
