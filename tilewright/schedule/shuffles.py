"""Warp shuffles: memory whose elements the threads of an axis hold in registers (`machine.Memory.held_by`).

Element i of the last dimension is thread i's. The thread alone writes it; others read it by a shuffle, an instruction
that all threads of the axis run together, each asking for an element of any other. Between a write and a read of
another thread stands a barrier, as for any memory that threads share.

    for l in lane(32):
        s0: a[l] = x[l]
    barrier(warp)
    for l in lane(32):
        s1: y[l] = addf(a[l], a[xori(l, 16)])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..tensor.expr import Buffer, Expr, Load, Op, Var, children, variables, walk
from .machine import Axis, Machine, find_axis
from .nest import For, If, Stmt, Store, exprs
from .nest import children as below

#: operations that compute all but their first argument for some threads only
_LAZY = ("guard", "seldom")


def held(buffers: Mapping[str, Buffer], machine: Machine) -> dict[str, Axis]:
    """The buffers whose elements threads hold, with the axis of these."""
    by = {m.name: find_axis(machine, m.held_by) for m in machine.memories if m.held_by}
    return {n: axis for n, b in buffers.items() if (axis := by.get(b.scope)) is not None}


def no_exchange(body: Stmt, buffers: Mapping[str, Buffer], machine: Machine) -> str | None:
    """Why threads cannot hold, or exchange, elements as a nest has it; None if they can."""
    axes = held(buffers, machine)
    for name, axis in axes.items():
        shape = buffers[name].shape
        if not shape or shape[-1] != axis.limit:
            return f"{name} has {shape[-1] if shape else 'no'} elements for the {axis.limit} threads of {axis.name}"
    return _visit(body, (), axes) if axes else None


def _visit(s: Stmt, around: tuple[Stmt, ...], axes: Mapping[str, Axis]) -> str | None:
    touched = [x for e in exprs(s) for x in walk(e) if isinstance(x, Load) and x.buffer in axes]
    if isinstance(s, Store):
        for t in s.targets:
            if t.buffer in axes and not _own(t.indices, (loop := _bound_loop(around, axes[t.buffer]))):
                who = f"for {loop.var} in {loop.kind}" if loop else f"a loop on {axes[t.buffer].name}"
                return f"block {s.block} writes an element of {t.buffer} that another thread than that of {who} holds"
    for x in touched:
        where = f"block {s.block}" if isinstance(s, Store) else "a loop or condition"
        loop = _bound_loop(around, axes[x.buffer])
        if loop is None:
            return f"{where} reads {x.buffer} outside of loops on {axes[x.buffer].name}"
        if _own(x.indices, loop):
            continue
        if loop.trip != axes[x.buffer].limit:
            return (
                f"{where} asks others for {x.buffer}, and not all {axes[x.buffer].limit} threads of {loop.kind} run it"
            )
        if not isinstance(s, Store) or any(isinstance(y, Load) for i in x.indices for y in walk(i)):
            return f"{where} asks others for {x.buffer}, in a place that is none for it"
        if any(f is x for e in exprs(s) for f in _lazily(e)) or _varies(around):
            return f"{where} asks others for {x.buffer} under a condition: all threads must run it together"
    return next((r for c in below(s) if (r := _visit(c, (*around, s), axes))), None)


def _bound_loop(around: tuple[Stmt, ...], axis: Axis) -> For | None:
    """The loop on an axis that a statement stands in."""
    return next((f for f in around if isinstance(f, For) and f.kind in axis.names), None)


def _own(indices: tuple[Expr, ...], loop: For | None) -> bool:
    """Whether it is the element that the thread holds."""
    return loop is not None and indices[-1] == Var(loop.var)


def _lazily(e: Expr) -> Iterator[Expr]:
    """What is computed for some threads only."""
    for x in walk(e):
        if isinstance(x, Op) and x.op in _LAZY:
            for branch in children(x)[1:]:
                yield from walk(branch)


def _varies(around: tuple[Stmt, ...]) -> bool:
    """Whether threads of a team may differ in what of the loops and conditions around they run."""
    own = {f.var for f in around if isinstance(f, For) and f.bound and not f.kind.startswith("grid")}
    return any(
        (variables(e) & own) or any(isinstance(x, Load) for x in walk(e))
        for s in around
        if isinstance(s, If) or (isinstance(s, For) and not s.bound)
        for e in exprs(s)
    )


__all__ = ["held", "no_exchange"]
