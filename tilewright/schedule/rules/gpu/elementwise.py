"""Elementwise operations and data movement: units take neighbouring elements of what is written, a few neighbours each
where the machine has accesses that long."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....tensor.expr import Const, Expr, Target, Var, substitute
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine, lanes
from ...nest import For, Stmt, Store, seq, stores
from ...schedule import Schedule
from ..common import inline_producers, merge_loops, store_stride
from .units import block_sizes, digits, has_blocks, spread_out

NAME = "block_elementwise"
PRIORITY = 9


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not has_blocks(machine):
        return "the machine has no grid of blocks"
    if kernel.opaque or kernel.one_thread:
        return "an operator with a loop nest of its own, or a part of a kernel"
    if any(t.init is not None for x in kernel.stages for t in x.targets):
        return "it contains a reduction"
    s = Schedule(kernel, machine, decisions=decisions)
    inline_producers(s)
    blocks = stores(s.body)
    if s.temporaries or any(x.buffer in kernel.outputs for b in blocks for x in b.loads):
        return "not all of it can be computed where it is read"
    orders = {b.block: _order(s, b) for b in blocks}
    sizes = {b: [s.extent_or_zero(v) for v in order] for b, order in orders.items()}
    if any(n == 0 for found in sizes.values() for n in found):
        return "its extents vary"
    units = s.sample_choice("units", *block_sizes(machine))
    wide = lanes(machine)
    vector = s.sample_choice("vector", (wide, 1), wide) if wide > 1 else 1
    parts = []
    for i, (name, order) in enumerate(orders.items()):
        dims = list(zip(order, sizes[name], strict=True))
        parts.append(_elements(s.store(name), dims, units, vector, i, machine))
    s.body = seq(*parts)
    s.plan = f"blocks of {units} units" + (f", {vector} neighbours each" if vector > 1 else "")
    return s


def _order(s: Schedule, b: Store) -> list[str]:
    """The loops of a block, those that walk as one made one, with that along the rows of the result inside."""
    loops = s.loops(b.block)
    last = next((v for v in reversed(loops) if store_stride(s, b, v) == 1), None)
    order = [v for v in loops if v != last] + ([last] if last is not None else [])
    if order != loops:
        s.reorder(*order)
    return merge_loops(s, b.block, order) if order else []


def _elements(b: Store, dims: list[tuple[str, int]], units: int, vector: int, number: int, machine: Machine) -> Stmt:
    """The elements of a store, `vector` neighbours by each unit."""
    if not dims or dims[-1][1] % vector:
        vector = 1
    inner = [*dims[:-1], (dims[-1][0], dims[-1][1] // vector)] if dims else []
    lane = Var(f"lane_{number}")

    def each(at: Expr) -> Stmt:
        values: dict[str, Expr] = dict(digits(at, inner))
        if vector > 1:
            values[dims[-1][0]] = values[dims[-1][0]] * vector + lane
        places = [tuple(substitute(i, values) for i in t.indices) for t in b.targets]
        made = [substitute(t.value, values) for t in b.targets]
        found = zip(b.targets, places, made, strict=True)
        body = replace(b, targets=tuple(Target(t.buffer, place, value) for t, place, value in found))
        return body if vector == 1 else For(lane.name, Const(vector, "index"), body, "vector", vector)

    return spread_out(prod(n for _, n in inner), units, f"elements_{number}", machine, each)
