"""Unification for instruction selection: matches a kernel's expression with an instruction's, binding operands, fields
and dimensions to buffers, numbers and loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ...tensor.expr import Const, Expr, Load, Op, Var, substitute, walk
from ...tensor.kernel import Kernel, Stage
from .describe import Field
from .semantics import SAME, Reduce, below, canonical, parts, with_parts

_COMMUTE = {"addi", "muli", "addf", "mulf", "maximumf", "minimumf", "maxsi", "minsi", "andi", "ori"}
#: what leaves the other operand as it is
_IDENTITY = {"shli": 0, "shrsi": 0, "addi": 0, "muli": 1}


@dataclass(frozen=True)
class Unification:
    """What stands for what: operands -> elements of the kernel's buffers (or numbers), fields -> numbers, dimensions
    that are summed over -> loops."""

    operands: dict[str, Expr] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    reduced: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unifier:
    """`fields` are those of the instruction, `dims` the dimensions of its result; `extents` those of the kernel's
    loops, `parallel` the loops of its result."""

    fields: dict[str, Field]
    dims: tuple[str, ...]
    extents: dict[str, int]
    parallel: tuple[str, ...]

    def match(self, like: Expr, e: Expr, found: Unification) -> Iterator[Unification]:
        """All ways in which `e` is what `like` says."""
        if isinstance(like, Load):
            if like.buffer in found.operands:
                if found.operands[like.buffer] == e:
                    yield found
            elif isinstance(e, (Load, Const)) and e.dtype == like.dtype:
                yield replace(found, operands={**found.operands, like.buffer: e})
        elif isinstance(like, Var) and like.name in self.fields:
            yield from self.number(like.name, e, found)
        elif isinstance(like, Const):
            if isinstance(e, Const) and (e.value, e.dtype) == (like.value, like.dtype):
                yield found
        elif isinstance(like, Reduce):
            if isinstance(e, Reduce) and e.combiner == like.combiner and len(e.over) == len(like.over) == 1:
                yield from self.reduction(like, e, found)
        elif isinstance(like, Op):
            yield from self.operation(like, e, found)

    def number(self, name: str, e: Expr, found: Unification) -> Iterator[Unification]:
        own = self.fields[name]
        low, high = own.range
        if not isinstance(e, Const) or e.dtype != own.dtype or not low <= e.value <= high:
            return
        if found.fields.get(name, e.value) == e.value:
            yield replace(found, fields={**found.fields, name: e.value})

    def operation(self, like: Op, e: Expr, found: Unification) -> Iterator[Unification]:
        if isinstance(e, Op) and (e.op, e.dtype) == (like.op, like.dtype) and len(e.args) == len(like.args):
            yield from self.arguments(like.args, e.args, found)
            if like.op in _COMMUTE:
                yield from self.arguments(like.args, e.args[::-1], found)
        last = like.args[-1]
        if isinstance(last, Var) and last.name in self.fields and like.op in _IDENTITY:
            for done in self.number(last.name, Const(_IDENTITY[like.op], last.dtype), found):
                yield from self.match(like.args[0], e, done)

    def arguments(self, likes: tuple[Expr, ...], es: tuple[Expr, ...], found: Unification) -> Iterator[Unification]:
        if not likes:
            yield found
            return
        for done in self.match(likes[0], es[0], found):
            yield from self.arguments(likes[1:], es[1:], done)

    def reduction(self, like: Reduce, e: Reduce, found: Unification) -> Iterator[Unification]:
        """Over a dimension of the result: the kernel's loop is one of the result's, run through once more."""
        (dim,), (var,) = like.over, e.over
        if dim not in self.dims:
            if found.reduced.get(dim, var) == var:
                yield from self.match(like.body, e.body, replace(found, reduced={**found.reduced, dim: var}))
            return
        for loop in self.parallel:
            if self.extents[loop] == self.extents[var] and found.reduced.get(dim, loop) == loop:
                body = put_in(e.body, {var: Var(loop)})
                yield from self.match(like.body, body, replace(found, reduced={**found.reduced, dim: loop}))


def put_in(e: Expr, values: dict[str, Expr]) -> Expr:
    """`substitute` for expressions with sums in them."""
    if not any(isinstance(x, Reduce) for x in below(e)):
        return substitute(e, values)
    if isinstance(e, Reduce):
        return Reduce(e.combiner, e.over, put_in(e.body, {k: v for k, v in values.items() if k not in e.over}))
    return with_parts(e, tuple(put_in(p, values) for p in parts(e)))


# ---- kernels as expressions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageWrite:
    """What a run of stages writes: ``buffer[indices] = expr`` for all values of `loops`; `sums` are the loops of a sum
    that an accumulating instruction may take in parts. `extents` are those of all loops."""

    buffer: str
    indices: tuple[Expr, ...]
    expr: Expr
    loops: tuple[str, ...]
    sums: tuple[str, ...]
    combiner: str
    extents: dict[str, int]


def value_of(kernel: Kernel, stages: tuple[Stage, ...]) -> StageWrite | str:
    """The result of consecutive stages as one expression of what they read; a string says why there is none."""
    inlined: dict[str, Stage] = {}
    extents: dict[str, int] = {}
    for s in stages:
        if len(s.targets) != 1:
            return f"stage {s.name} has several results"
        extents |= s.extents
        inlined[s.buffer] = s
    last = stages[-1]
    del inlined[last.buffer]
    for name in inlined:
        if name in kernel.outputs or any(name in s.reads for s in kernel.stages if s not in stages):
            return f"{name} is needed elsewhere"
    made = _Inliner(inlined, extents)
    try:
        body, combiner = made.body(last)
    except _NotOne as e:
        return str(e)
    t = last.targets[0]
    loops = tuple(v for v, _ in last.parallel)
    return StageWrite(t.buffer, t.indices, canonical(body), loops, last.reduction, combiner, made.extents)


class _NotOne(Exception):
    """Stages that are not one expression."""


class _Inliner:
    def __init__(self, inlined: dict[str, Stage], extents: dict[str, int]) -> None:
        self.inlined, self.extents, self.count = inlined, dict(extents), 0

    def body(self, s: Stage) -> tuple[Expr, str]:
        """What a stage adds up (or writes), and the combiner of its sum."""
        t = s.targets[0]
        if not s.reduction:
            if any(isinstance(x, Load) and x.buffer == t.buffer for x in walk(t.value)):
                raise _NotOne(f"stage {s.name} goes on from what it wrote, without a loop")
            return self.loaded(t.value), ""
        if isinstance(t.value, Op) and len(t.value.args) == 2:
            own = [isinstance(a, Load) and a.buffer == t.buffer for a in t.value.args]
            if sum(own) == 1:
                return self.loaded(t.value.args[own.index(False)]), SAME.get(t.value.op, t.value.op)
        raise _NotOne(f"stage {s.name} is no sum or the like")

    def loaded(self, e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in self.inlined:
            return self.stage(self.inlined[e.buffer], e.indices)
        return with_parts(e, tuple(map(self.loaded, parts(e)))) if not isinstance(e, Load) else e

    def stage(self, s: Stage, at: tuple[Expr, ...]) -> Expr:
        """An element of what a stage writes."""
        values: dict[str, Expr] = {}
        for index, there in zip(s.targets[0].indices, at, strict=True):
            if isinstance(index, Var):
                values[index.name] = there
            elif index != there:
                raise _NotOne(f"stage {s.name} does not write element for element")
        body, combiner = self.body(s)
        over = []
        for v in s.reduction:  # every use has loops of its own
            self.count += 1
            fresh = f"{v}_{self.count}"
            self.extents[fresh] = self.extents[v]
            values[v] = Var(fresh)
            over.append(fresh)
        body = put_in(body, values)
        return Reduce(combiner, tuple(over), body) if over else body
