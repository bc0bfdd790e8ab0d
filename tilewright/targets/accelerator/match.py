"""Instruction selection: finds the accelerator instructions that compute a kernel, by its expressions and not by
operator names.

Stages are taken in runs, the longest first; a run is one expression, and so is an instruction. Where both are the same,
the elements that the kernel reads tell which of its loops are which dimension of the instruction:

    t0[y, x, o] += p0[y*2 + r, x*32 + c] * p1[r, c, o]     acc[m, n] += x[m, k] * w[k, n]
    -> n: o (moves acc and w, not x)    k: c (a run of x)    m: y, x (move acc and x)    r: a loop around

What is not a computation is part of how data comes and goes: a stage that only moves a result says where it is stored,
one that writes a number fills a border.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from ...tensor.analysis import flat, movement
from ...tensor.expr import Const, Expr, Load, Var, linear, variables
from ...tensor.kernel import Kernel, Stage
from .describe import ACCUMULATE, HOST, READ, CopyEngine, Dim, Instruction, Listing, Operand
from .rows import with_rows
from .semantics import Meaning, Reduce, accumulated, below, choices, meaning, parts, with_parts
from .unify import StageWrite, Unification, Unifier, put_in, value_of


@dataclass(frozen=True)
class Element:
    """An element of a kernel's buffer, the indices by loops; `constant`: the buffer is one, and can be packed."""

    buffer: str
    indices: tuple[Expr, ...]
    constant: bool = False

    def renamed(self, names: Mapping[str, Expr]) -> Element:
        return Element(self.buffer, tuple(put_in(i, dict(names)) for i in self.indices), self.constant)


@dataclass(frozen=True)
class MatchedInstruction:
    """An instruction for a run of stages. `dims`: the loops of each dimension, innermost last; `sums`: the loops of the
    sum, which are of a dimension or around the instruction. Operands are elements of buffers: parameters, or what a
    step before wrote. `expr` is what is written, or added up; sums in it run once more (`again`) through loops of the
    result.
    """

    instruction: Instruction
    stages: tuple[str, ...]
    operands: dict[str, Element]
    output: Element
    dims: dict[str, tuple[str, ...]]
    sums: tuple[str, ...]
    expr: Expr
    combiner: str = ""
    again: dict[str, str] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)

    @property
    def result(self) -> Operand:
        """The operand that is written."""
        return self.instruction.outputs[0]

    @property
    def memory(self) -> str:
        """Where the result is."""
        return self.result.memory


@dataclass(frozen=True)
class Fill:
    """Elements of a result that are a number."""

    buffer: str
    indices: tuple[Expr, ...]
    loops: tuple[tuple[str, int], ...]
    value: int


@dataclass(frozen=True)
class InstructionSelection:
    """A kernel as instructions: the steps in order, the loops of its result with all others (`extents`), where the last
    step's result is stored, and borders that are filled."""

    kernel: Kernel
    steps: tuple[MatchedInstruction, ...]
    loops: tuple[str, ...]
    extents: dict[str, int]
    stored: Element
    fills: tuple[Fill, ...] = ()

    @cached_property
    def in_blocks(self) -> frozenset[str]:
        """The loops that stay in one block of a constant's columns, where others step over the blocks."""
        runs = [
            (e, v)
            for s in self.steps
            for o in s.instruction.operands
            if o.dims
            for v in s.dims[o.dims[-1]]
            for e in (s.operands.get(o.name),)
            if e is not None and e.constant
        ]
        return frozenset(v for e, v in runs if (columns_of(e, v, self.extents) or (0, 0))[1])


class NoMatch(Exception):
    """Why a chip cannot do a kernel."""


def select(kernel: Kernel, listing: Listing) -> InstructionSelection:
    """The instructions that do a kernel; `NoMatch` says what there is no instruction for."""
    return _Selector(with_rows(kernel), listing).run()


def matches(m: Meaning, value: StageWrite) -> list[Unification]:
    """The ways in which an instruction computes a value."""
    i = m.instruction
    if len(i.outputs) != 1:
        return []
    out = i.outputs[0]
    like: Expr = m.values[out.name]
    if out.access == ACCUMULATE:
        like_sum = accumulated(like, out.name)
        if like_sum is None or like_sum.combiner != value.combiner:
            return []
        like = like_sum.body
    elif value.combiner:  # the whole sum, maximum or minimum in one instruction
        if not isinstance(like, Reduce) or like.combiner != value.combiner:
            return []
        while isinstance(like, Reduce) and like.combiner == value.combiner:
            like = like.body
    u = Unifier({f.name: f for f in i.fields}, out.dims, value.extents, value.loops)
    return list(u.match(like, value.expr, Unification(fields=dict(m.chosen))))


class _Selector:
    def __init__(self, kernel: Kernel, listing: Listing) -> None:
        self.kernel, self.listing = kernel, listing
        self.meanings = [m for i in listing.instructions.values() for m in choices(meaning(i))]
        self.extents: dict[str, int] = {}
        self.steps: list[MatchedInstruction] = []
        self.fills: list[Fill] = []
        self.stored: Element | None = None
        self.loops: tuple[str, ...] = ()
        self.copies: dict[str, str] = {}  # a result in another memory -> the result

    def run(self) -> InstructionSelection:
        if self.kernel.opaque is not None:
            raise NoMatch(f"{self.kernel.opaque.mnemonic} has a loop nest of its own")
        if len(self.kernel.outputs) != 1:
            raise NoMatch("it has several results")
        stages = list(self.kernel.stages)
        while stages:
            if self.fill(stages[0]) or self.moves(stages[0]):
                stages.pop(0)
                continue
            taken, step = self.longest(tuple(stages))
            self.steps.append(step)
            del stages[:taken]
        if not self.steps:
            raise NoMatch("it only moves numbers")
        last = self.steps[-1]
        if self.stored is None:
            self.stored = last.output
        if self.listing.copy_engine(last.memory, HOST) is None:
            copied = [m for m in self.listing.memories if self.listing.copy_engine(m, HOST) is not None]
            if not any(self.brought(last.output.buffer, m) for m in copied):
                raise NoMatch(f"nothing brings a result out of {last.memory}")
        if self.stored.buffer not in self.kernel.outputs:
            raise NoMatch(f"{self.stored.buffer} is no result")
        return InstructionSelection(
            self.kernel, tuple(self.steps), self.loops, self.extents, self.stored, tuple(self.fills)
        )

    # ---- what is no computation ----

    def fill(self, s: Stage) -> bool:
        t = s.targets[0]
        if not isinstance(t.value, Const) or s.reduction or t.buffer not in self.kernel.outputs:
            return False
        if self.kernel.buffer(t.buffer).dtype not in ("i8", "i1") and t.value.value != 0:
            raise NoMatch(f"it fills {t.buffer} with {t.value}, which is not one byte again and again")
        if not any(isinstance(e, CopyEngine) and e.fill and HOST in e.targets for e in self.listing.engines.values()):
            raise NoMatch(f"it fills {t.buffer} with {t.value}, and no engine writes numbers to the host")
        self.fills.append(Fill(t.buffer, t.indices, s.dims, int(t.value.value) & 0xFF))
        return True

    def moves(self, s: Stage) -> bool:
        """A stage that stores the last result elsewhere."""
        t = s.targets[0]
        if not self.steps or not movement(s) or not isinstance(t.value, Load) or t.buffer not in self.kernel.outputs:
            return False
        last = self.steps[-1].output
        if t.value.buffer != last.buffer:
            return False
        names = self.same_loops(t.value.indices, last.indices)
        self.stored = Element(t.buffer, t.indices).renamed(names)
        return True

    def same_loops(self, at: tuple[Expr, ...], wrote: tuple[Expr, ...]) -> dict[str, Expr]:
        """The loops of a stage that reads element for element -> those of the step that wrote."""
        names: dict[str, Expr] = {}
        for index, there in zip(at, wrote, strict=True):
            if isinstance(index, Var) and names.get(index.name, there) == there:
                names[index.name] = there
            elif index != there:
                raise NoMatch(f"a result is not read element for element ({index} where {there} was written)")
        return names

    # ---- instructions ----

    def longest(self, stages: tuple[Stage, ...]) -> tuple[int, MatchedInstruction]:
        """The longest run of the first stages that is one instruction; of several, the one that does it fastest."""
        reasons, near = [], []  # why runs are no instruction; why those that are one cannot be done
        alone = [n for n, s in enumerate(stages) if isinstance(s.targets[0].value, Const) or movement(s)]
        for n in range(min([n for n in alone if n], default=len(stages)), 0, -1):
            value = value_of(self.kernel, stages[:n])
            if isinstance(value, str):
                reasons.append(value)
                continue
            fitting = []
            for m in self.meanings:
                for found in matches(m, value):
                    other = self.copied()
                    step = other.step(m, value, found, stages[:n])
                    if isinstance(step, MatchedInstruction):
                        fitting.append((other, step))
                    else:
                        near.append(f"{m.instruction.name}: {step}")
            if fitting:
                best, step = max(fitting, key=lambda f: f[0].rate(f[1]))
                vars(self).update(vars(best))
                return n, step
            over = f"{value.combiner} over {', '.join(value.sums)} of " if value.combiner else ""
            reasons.append(f"no instruction computes {over}{_short(value.expr)}")
        raise NoMatch(near[0] if near else reasons[-1])

    def copied(self) -> _Selector:
        """One to try an instruction with, as that may add copies."""
        other = copy(self)
        other.steps, other.copies, other.extents = list(self.steps), dict(self.copies), dict(self.extents)
        return other

    def rate(self, step: MatchedInstruction) -> float:
        """How much of a step its instruction does in a cycle."""
        i = step.instruction
        counts = {d.name: min(prod(self.extents[v] for v in step.dims[d.name]), d.limit) for d in i.dims}
        return prod(counts.values()) / max(*i.busy(counts | step.fields), 1)

    def step(
        self, m: Meaning, value: StageWrite, found: Unification, stages: tuple[Stage, ...]
    ) -> MatchedInstruction | str:
        """The step, or why the operands do not fit."""
        i = m.instruction
        names = self.to_frame(found, value)
        if isinstance(names, str):
            return names
        operands: dict[str, Element] = {}
        read: dict[str, Load] = {}
        for o in i.operands:
            if o.access == READ:
                e = found.operands[o.name]
                if not isinstance(e, Load):
                    return f"{o.name} is the number {e}"
                element = Element(e.buffer, e.indices, e.buffer in self.kernel.constants)
                buffer = self.reachable(e.buffer, o.memory)
                if buffer is None:
                    return f"{e.buffer} cannot be brought to {o.memory}"
                operands[o.name] = replace(element, buffer=buffer).renamed(names)
                read[o.name] = e
        output = Element(value.buffer, value.indices).renamed(names)
        extents = {(names[v].name if v in names else v): n for v, n in value.extents.items()}  # type: ignore[attr-defined]
        loops = tuple(names[v].name if v in names else v for v in value.loops)  # type: ignore[attr-defined]
        dims = self.dimensions(i, operands, output, (*self.in_frame(loops), *value.sums), value.sums, extents, found)
        if isinstance(dims, str):
            return dims
        if value.combiner and not i.accumulates and (why := self.in_parts(i, dims, value.sums, extents)) is not None:
            return why
        if (twice := self.lies_twice(i, operands, output, dims)) is not None:
            return twice
        self.extents |= extents
        self.loops = self.loops or loops
        expr = with_buffers(put_in(value.expr, names), {e.buffer: operands[o].buffer for o, e in read.items()})
        again = {v: loop for loop in found.reduced.values() for v in _sums_in(expr) if extents[v] == extents[loop]}
        ran = tuple(s.name for s in stages)
        return MatchedInstruction(
            i, ran, operands, output, dims, value.sums, expr, value.combiner, again, dict(found.fields)
        )

    @staticmethod
    def in_parts(
        i: Instruction, dims: Mapping[str, tuple[str, ...]], sums: tuple[str, ...], extents: Mapping[str, int]
    ) -> str | None:
        """Why an instruction that does not accumulate cannot take all of a sum at once, None if it can."""
        placed = {v for own in dims.values() for v in own}
        if left := [v for v in sums if v not in placed and extents[v] > 1]:
            return f"it takes all of a sum at once, and has no place for loop {left[0]} of {extents[left[0]]}"
        for d in i.dims:
            own = [v for v in dims[d.name] if v in sums]
            if (n := prod(extents[v] for v in own)) > d.limit:
                return f"{d.name} has at most {d.limit}, here are {n}"
        return None

    def in_frame(self, loops: tuple[str, ...]) -> tuple[str, ...]:
        """Loops in the order of those of the first step, so that rows follow one another alike in all steps."""
        return tuple(sorted(loops, key=self.loops.index)) if self.loops else loops

    def to_frame(self, found: Unification, value: StageWrite) -> dict[str, Expr] | str:
        """The loops of this run -> those of the first step, where it reads what a step before wrote."""
        written = {s.output.buffer: s.output for s in self.steps}
        for e in found.operands.values():
            if isinstance(e, Load) and e.buffer in written:
                try:
                    names = self.same_loops(e.indices, written[e.buffer].indices)
                except NoMatch as why:
                    return str(why)
                if left := [v for v in value.loops if v not in names]:
                    return f"loop {left[0]} is not one of the result before"
                return {k: v for k, v in names.items() if isinstance(v, Var)}
        return "it reads nothing of what is on the chip" if self.steps else {}

    def reachable(self, buffer: str, memory: str) -> str | None:
        """The buffer, or a copy of it, that is in a memory; None if nothing brings it there."""
        wrote = next((s for s in self.steps if s.output.buffer == buffer), None)
        if wrote is not None:
            return buffer if wrote.memory == memory else self.brought(buffer, memory)
        return None if self.listing.copy_engine(HOST, memory) is None else buffer

    def brought(self, buffer: str, memory: str) -> str | None:
        """Add an instruction that moves a result to another memory; the name of the copy, None if there is none."""
        wrote = next(s for s in self.steps if s.output.buffer == buffer)
        name = f"{buffer}_{memory}"
        if name in self.copies:
            return name
        for m in self.meanings:
            i = m.instruction
            plain = len(i.operands) == 2 and isinstance(m.values[i.outputs[0].name], Load)
            if not plain or (i.inputs[0].memory, i.outputs[0].memory) != (wrote.memory, memory):
                continue
            output = replace(wrote.output, buffer=name)
            operands = {i.inputs[0].name: wrote.output}
            self.copies[name] = buffer
            dims = self.dimensions(i, operands, output, self.loops, (), self.extents, Unification())
            if isinstance(dims, dict):
                expr = Load(buffer, wrote.output.indices, i.inputs[0].dtype)
                self.steps.append(MatchedInstruction(i, (), operands, output, dims, (), expr, fields=dict(m.chosen)))
                return name
            del self.copies[name]
        return None

    def dimensions(
        self,
        i: Instruction,
        operands: Mapping[str, Element],
        output: Element,
        loops: tuple[str, ...],
        sums: tuple[str, ...],
        extents: Mapping[str, int],
        found: Unification,
    ) -> dict[str, tuple[str, ...]] | str:
        """The loops of each dimension; a string where a loop that must be in the instruction has no place."""
        elements = {**operands, i.outputs[0].name: output}
        steps = {name: self.strides(e) for name, e in elements.items()}
        if any(s is None for s in steps.values()):
            return "an operand moves unevenly"
        dims: dict[str, list[str]] = {d.name: [] for d in i.dims}
        for loop in reversed(loops):
            if extents[loop] == 1:
                continue
            for d in sorted(i.dims, key=lambda d: d.levels):  # runs of neighbours before what has strides
                if found.reduced.get(d.name, loop) != loop:
                    continue
                if self.fits(i, d, loop, loop in sums, extents, elements, steps, dims[d.name]):
                    dims[d.name].insert(0, loop)
                    break
        for name, loop in found.reduced.items():
            if dims[name] != [loop] and extents[loop] != 1:
                return f"{loop}, which {name} runs through, does not lie as it should"
            if extents[loop] > i.dim(name).limit:
                return f"{name} has at most {i.dim(name).limit}, here are {extents[loop]}"
        return {d: tuple(v) for d, v in dims.items()}

    def uses(self, buffer: str) -> list[tuple[MatchedInstruction, Operand, Element]]:
        """The operands that a buffer is so far."""
        found = []
        for s in self.steps:
            for o in s.instruction.operands:
                e = s.operands.get(o.name, s.output)
                if e.buffer == buffer:
                    found.append((s, o, e))
        return found

    def lies_twice(
        self, i: Instruction, operands: Mapping[str, Element], output: Element, dims: Mapping[str, tuple[str, ...]]
    ) -> str | None:
        """A buffer has one place on the chip: why one would need another as well, None if that is so for none."""
        seen: dict[str, tuple[object, ...]] = {}
        for o in i.operands:
            e = operands.get(o.name, output)
            others = [_lying(e_, o_, s.dims) for s, o_, e_ in self.uses(e.buffer)]
            mine = _lying(e, o, dims)
            if any(x != mine for x in (*others, seen.setdefault(e.buffer, mine))):
                return f"{e.buffer} is read in two ways, but lies on the chip in one"
        return None

    def strides(self, e: Element) -> dict[str, int] | None:
        """Elements by which an access moves with each loop; None if it is not linear."""
        terms, _ = linear(flat(self.kernel.buffer(self.copies.get(e.buffer, e.buffer)), e.indices))
        if any(not isinstance(t, Var) for t in terms):
            return None
        return {t.name: c for t, c in terms.items() if isinstance(t, Var)}

    def fits(
        self,
        i: Instruction,
        d: Dim,
        loop: str,
        summed: bool,
        extents: Mapping[str, int],
        elements: Mapping[str, Element],
        steps: Mapping[str, dict[str, int] | None],
        taken: list[str],
    ) -> bool:
        """Whether a loop can be (one more) of a dimension."""
        dim = d.name
        if len(taken) >= max(d.levels, 1) or summed == (dim in i.outputs[0].dims):
            return False
        temporaries = {*(t.name for t in self.kernel.temporaries), *(s.output.buffer for s in self.steps), *self.copies}
        for o in i.operands:
            e, step = elements[o.name], (steps[o.name] or {}).get(loop, 0)
            if dim not in o.dims:
                if step:
                    return False
            elif not step:
                free = d.levels > 0 and not o.dense and dim != o.dims[-1]
                repeated = dim == o.dims[-1] and e.constant and self.kernel.buffer(e.buffer).size == 1
                if not (free or repeated):
                    return False
            elif not all(_walked_alike(loop, dim == o.dims[-1], s.dims, x) for s, x, _ in self.uses(e.buffer)):
                return False
            elif dim == o.dims[-1] and e.constant:
                if columns_of(e, loop, extents) is None:
                    return False
            elif dim == o.dims[-1] and step != 1 and e.buffer not in temporaries:
                return False
        return True


def columns_of(e: Element, loop: str, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """The dimension of a constant that a loop walks, and into blocks of how many this dimension is to be cut so that
    the loop stays in one of them: 0 for any, the loop's extent where others step over its blocks (``head * 16 + i``).
    None where the loop moves in no such way.

    >>> e = Element("w", (Var("k"), Var("head") * 16 + Var("i")), True)
    >>> columns_of(e, "k", {"k": 64}), columns_of(e, "i", {"i": 16}), columns_of(e, "i", {"i": 12})
    ((0, 0), (1, 16), None)
    """
    moved = [d for d, index in enumerate(e.indices) if loop in variables(index)]
    if len(moved) != 1:
        return None
    terms, constant = linear(e.indices[moved[0]])
    steps = {t: c for t, c in terms.items() if t != Var(loop)}
    if terms.get(Var(loop)) != 1 or any(not isinstance(t, Var) for t in steps):
        return None
    if not steps and not constant:
        return moved[0], 0
    block = extents[loop]
    return None if any(c % block for c in (*steps.values(), constant)) else (moved[0], block)


def _walked_alike(loop: str, as_run: bool, dims: Mapping[str, tuple[str, ...]], o: Operand) -> bool:
    """Whether a loop walks an operand so, as the run or as rows: what lies on the chip, lies there in one way."""
    return loop in dims[o.dims[-1]] if as_run else any(loop in dims[d] for d in o.dims[:-1])


def _lying(e: Element, o: Operand, dims: Mapping[str, tuple[str, ...]]) -> tuple[object, ...]:
    """What the place of an element on the chip depends on: the memory, the indices, the loops of its rows and runs."""
    moved = {v for index in e.indices for v in variables(index)}
    rows = tuple(v for d in o.dims[:-1] for v in dims[d] if v in moved)
    return (o.memory, e.indices, rows, dims[o.dims[-1]] if o.dims else ())


def with_buffers(e: Expr, names: Mapping[str, str]) -> Expr:
    """An expression that reads copies of buffers."""
    if isinstance(e, Load):
        return replace(e, buffer=names.get(e.buffer, e.buffer))
    return with_parts(e, tuple(with_buffers(p, names) for p in parts(e)))


def _sums_in(e: Expr) -> set[str]:
    """The loops of sums within an expression."""
    return {v for x in below(e) if isinstance(x, Reduce) for v in x.over}


def _short(e: Expr) -> str:
    text = str(e)
    return text if len(text) <= 120 else f"{text[:117]}..."
