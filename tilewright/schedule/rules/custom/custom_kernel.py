"""Custom kernels, whose operator writes its own loop nest (`direct`): operand reads are inlined, elementwise readers of
the result are applied as it is written, and so is padding around it."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

from ....support.sizes import typically
from ....tensor.analysis import reindex
from ....tensor.expr import Expr, Load, Target, Var, const_value, map_loads, simplify, substitute
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine
from ...nest import Stmt, Store, children, reads, replace_loads, seq, transform, with_children, writes
from ...region import all_ranges
from ...schedule import Schedule, ScheduleError, stage_nest
from .. import DIRECT, Direct, tactic
from ..elementwise.elementwise import schedule_block

NAME = "opaque"
PRIORITY = 10


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if kernel.opaque is None:
        return "no operator with a loop nest of its own"
    s = Schedule(kernel, machine, decisions=decisions)
    try:
        s.tactic(NAME)
        for stage in _before(kernel):
            s.inline(stage.name)
    except ScheduleError as e:
        return e.message
    with typically():  # its steps say whether they are right
        for stage in _borders(kernel):
            schedule_block(s, stage.name, machine)
    return s


def write(s: Schedule, machine: Machine) -> Stmt | str:
    """The nest of the operator, between the stages before it and the borders of padded results."""
    kernel, operator = s.kernel, s.kernel.opaque
    build = DIRECT.get(operator.mnemonic) if operator is not None else None
    if operator is None or build is None:
        return f"tw.{operator.mnemonic} has no loop nest" if operator else "no operator with a loop nest of its own"
    made = build(kernel, machine, *((s.sample_choice,) if "choose" in signature(build).parameters else ()))
    made = made if isinstance(made, Direct) else Direct(made)
    body = _without_unread(kernel, made.body)
    for stage in _in_one(kernel):
        body = _write_through(kernel, body, stage)
    s.body = seq(*map(stage_nest, _before(kernel)), body, *map(stage_nest, _borders(kernel)))
    for pack in made.packs:
        s.pack(pack.source, pack.splits, pack.order)
    written = writes(s.body)
    for name in [n for n in s.temporaries if n in operator.results and n not in written]:
        del s.temporaries[name]
    return s.body


tactic(NAME, write)


def _borders(kernel: Kernel) -> list[Stage]:
    """The stages that fill the border of a padded result."""
    return [x for x in kernel.stages if not x.reads and x.buffer in kernel.outputs]


def _before(kernel: Kernel) -> list[Stage]:
    """The stages that make operands."""
    others = [*_in_one(kernel), *_borders(kernel)]
    return [x for x in kernel.stages if x not in others]


def joined(kernel: Kernel, body: Stmt) -> Stmt | str:
    """An operator's loop nest with all other stages of the kernel in it: those before are computed where they are read,
    those after as results are written. Or why that cannot be."""
    chain = _in_one(kernel)
    body = _without_unread(kernel, body)
    try:
        for stage in chain:
            body = _write_through(kernel, body, stage)
        for stage in [x for x in kernel.stages if x not in chain][::-1]:
            body = _read_through(kernel, body, stage)
    except ScheduleError as e:
        return e.message
    return body


def _read_through(kernel: Kernel, body: Stmt, stage: Stage) -> Stmt:
    """Compute an element of a stage where it is read."""
    target, dims = stage.targets[0], {v for v, _ in stage.dims}
    names = [i.name if isinstance(i, Var) else None for i in target.indices]
    plain = all(n is not None or const_value(i) == 0 for n, i in zip(names, target.indices, strict=True))
    if len(stage.targets) != 1 or target.init is not None or not plain or len(dims & set(names)) != len(dims):
        raise ScheduleError(f"{stage.name} does not make one element after the other", stage="schedule")
    if stage.buffer in kernel.outputs:
        raise ScheduleError(f"{stage.name} makes a result of the kernel beside it", stage="schedule")

    def read(x: Load) -> Expr:
        values = {n: i for n, i in zip(names, x.indices, strict=True) if n is not None}
        return simplify(substitute(target.value, values), ranges)

    ranges = all_ranges(body)
    return replace_loads(body, stage.buffer, read)


def _without_unread(kernel: Kernel, body: Stmt) -> Stmt:
    """`body` without the stores of results that nobody asked for."""
    assert kernel.opaque is not None
    wanted = reads(body) | set(kernel.outputs).union(*[s.reads for s in kernel.stages])
    unread = set(kernel.opaque.results) - wanted
    if unread.isdisjoint(writes(body)):
        return body

    def visit(s: Stmt) -> Stmt | None:
        if not isinstance(s, Store):
            return s
        kept = tuple(t for t in s.targets if t.buffer not in unread)
        return replace(s, targets=kept) if kept else None

    return transform(body, visit) or seq()


def _in_one(kernel: Kernel) -> list[Stage]:
    """The elementwise stages after the operator, in order."""
    assert kernel.opaque is not None
    made = set(kernel.opaque.results)
    chain: list[Stage] = []
    for s in kernel.stages:
        if s.reads & made:
            chain.append(s)
            made.add(s.buffer)
    return chain


def _write_through(kernel: Kernel, body: Stmt, stage: Stage) -> Stmt:
    """Replace ``x[i] = v`` by ``y[f(i)] = g(v)`` for an elementwise stage ``y[...] = g(x[...])``."""
    source = next(b for b in stage.reads if b in writes(body))
    buffer = kernel.buffer(source)
    over = reindex(stage, buffer)
    if over is None:
        raise ScheduleError(f"{stage.name} does not read {source} element for element", stage="schedule")
    target = over.targets[0]
    variables = iter(v for v, _ in over.dims)
    names = [None if n == 1 else next(variables) for n in buffer.shape]

    def rewrite(t: Target) -> Target:
        if t.buffer != source:
            return t
        values = {n: i for n, i in zip(names, t.indices, strict=True) if n is not None}

        def read(x: Load) -> Expr:
            return t.value if x.buffer == source else x

        value = map_loads(substitute(target.value, values), read)
        return Target(target.buffer, tuple(substitute(i, values) for i in target.indices), value)

    def visit(s: Stmt) -> Stmt:
        if source not in writes(s):
            return s
        if isinstance(s, Store):
            return replace(s, targets=tuple(map(rewrite, s.targets)))
        return with_children(s, tuple(map(visit, children(s))))

    return visit(body)


__all__ = ["Var", "apply", "joined"]
