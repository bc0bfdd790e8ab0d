"""Tensorization by hand: checks that loops which a user wants to be an instruction compute what it does, and marks
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from ...schedule.nest import For, Store
from ...tensor.analysis import flat
from ...tensor.expr import Buffer, Const, Expr, Load, Target, Var, bounds, linear, simplify, substitute, variables
from ...tensor.kernel import Kernel, Stage
from .describe import Dim, Instruction, Operand
from .match import matches
from .semantics import choices, meaning
from .tiles import CHIP, DIM
from .unify import Unification, value_of

Ranges = Mapping[str, tuple[int, int]]


def tensorized(i: Instruction, loop: For, buffers: Mapping[str, Buffer], ranges: Ranges) -> For | str:
    """A loop and those in it as an instruction, noted on them; a string says why they are none.

    Its operands must lie in the memories that it reads and writes, and move with its dimensions; the last dimension of
    each is a run of neighbours. Where they begin is known when the program is made.
    """
    loops = list(_down(loop))
    s = loops[-1].body
    if not isinstance(s, Store) or len(s.targets) != 1:
        return "there is more than one statement in it"
    extents = {f.var: _most(f, ranges) for f in loops}
    outside: dict[str, Expr] = {v: Const(0, "index") for v in ranges if v not in extents}
    stage = _stage(s, extents, outside)
    t = stage.targets[0]
    kernel = Kernel("region", tuple(buffers.values()), (t.buffer,), (), (stage,))
    value = value_of(kernel, (stage,))
    if isinstance(value, str):
        return value
    reasons = []
    for found in (f for m in choices(meaning(i)) for f in matches(m, value)):
        noted = _noted(i, found, t, stage, buffers)
        if isinstance(noted, dict):
            said = " ".join([i.name, *(f"{k}={v}" for k, v in {**_names(i, found, t), **found.fields}.items())])
            return _with_notes(loop, noted, said)
        reasons.append(noted)
    return reasons[0] if reasons else f"it computes something else: {value.expr}"


def _down(f: For) -> Iterator[For]:
    yield f
    if isinstance(f.body, For):
        yield from _down(f.body)


def _most(f: For, ranges: Ranges) -> int:
    limit = bounds(f.extent, dict(ranges))
    return f.trip or (limit[1] if limit else 1 << 62)


def _stage(s: Store, extents: Mapping[str, int], outside: Mapping[str, Expr]) -> Stage:
    """The statement as it is in the first iteration of the loops around: how it moves is the same in all."""
    fixed = dict(outside)
    (t,) = s.targets
    place = tuple(substitute(x, fixed) for x in t.indices)
    init = None if t.init is None else substitute(t.init, fixed)
    moved = Target(t.buffer, place, substitute(t.value, fixed), init)
    return Stage(s.block, tuple(extents.items()), (moved,), tuple(v for v in s.reduction if v in extents))


def _names(i: Instruction, found: Unification, t: Target) -> dict[str, str]:
    """The buffer of each operand."""
    elements = {o: e.buffer for o, e in found.operands.items() if isinstance(e, Load)}
    return {o.name: t.buffer if o in i.outputs else elements[o.name] for o in i.operands}


def _noted(
    i: Instruction, found: Unification, t: Target, stage: Stage, buffers: Mapping[str, Buffer]
) -> dict[str, str] | str:
    """The dimension of each loop, or why the operands do not fit."""
    if found.reduced and any(v not in stage.extents for v in found.reduced.values()):
        return f"{i.name} has sums of its own, which the planner alone writes"
    steps: dict[str, dict[str, int]] = {}
    for o in i.operands:
        e = t if o in i.outputs else found.operands[o.name]
        if not isinstance(e, (Load, Target)):
            return f"{o.name} is the number {e}"
        b = buffers[e.buffer]
        if (b.scope, b.dtype) != (o.memory, o.dtype):
            return f"{o.name} is {o.dtype} in {o.memory}, and {b.name} is {b.dtype} in {b.scope}"
        position = simplify(flat(b, e.indices), {v: (0, n - 1) for v, n in stage.dims})
        terms, _ = linear(position)
        if any(not isinstance(x, Var) and variables(x) & set(stage.extents) for x in terms):
            return f"{b.name} moves unevenly"
        steps[o.name] = {x.name: c for x, c in terms.items() if isinstance(x, Var)}
    return _dimensions(i, stage, steps)


def _dimensions(i: Instruction, stage: Stage, steps: Mapping[str, Mapping[str, int]]) -> dict[str, str] | str:
    """The dimension of each loop, runs of neighbours first."""
    dims: dict[str, list[str]] = {d.name: [] for d in i.dims}
    for v in reversed(stage.extents):
        place = next((d for d in sorted(i.dims, key=lambda d: d.levels) if _fits(i, d, v, stage, steps, dims)), None)
        if place is None:
            moved = ", ".join(o for o, s in steps.items() if s.get(v)) or "nothing"
            return f"loop {v}, which moves {moved}, is none of its dimensions ({', '.join(dims)})"
        dims[place.name].insert(0, v)
    for d in i.dims:
        if (n := prod(stage.extents[v] for v in dims[d.name])) > d.limit:
            return f"it takes {d.limit} along {d.name}, and loop {', '.join(dims[d.name])} has {n}"
    return {v: d for d, loops in dims.items() for v in loops}


def _fits(
    i: Instruction,
    d: Dim,
    v: str,
    stage: Stage,
    steps: Mapping[str, Mapping[str, int]],
    dims: Mapping[str, list[str]],
) -> bool:
    """Whether a loop can be (one more) of a dimension: it moves those operands that have it, and no others."""
    if len(dims[d.name]) >= max(d.levels, 1) or (v in stage.reduction) == (d.name in i.outputs[0].dims):
        return False
    return all(_moves(d, o, steps[o.name].get(v, 0)) for o in i.operands)


def _moves(d: Dim, o: Operand, step: int) -> bool:
    if d.name not in o.dims:
        return step == 0
    if d.name == o.dims[-1]:
        return step == 1
    return step != 0 or (d.levels > 0 and not o.dense)


def _with_notes(f: For, dims: Mapping[str, str], said: str = "") -> For:
    notes = {**({CHIP: said} if said else {}), DIM: dims[f.var]}
    body = _with_notes(f.body, dims) if isinstance(f.body, For) else f.body
    return replace(f, body=body, notes=tuple(sorted(notes.items())))


__all__ = ["tensorized"]
