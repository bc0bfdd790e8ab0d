"""The primitive `tensorize`: a block of loops becomes one instruction of the machine.

An instruction is described by a loop nest that means the same. A machine lists those that it has in
`dot_products`; `meaning` makes the nest of one. Those that several threads run together, on matrices of which each
holds a part, are its `warp_products` and `warp_loads` (`schedule/warp.py`). A machine with other instructions compares
loops with them itself (`Tensorizing`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from ...support.errors import CompileError
from ...tensor.analysis import flat
from ...tensor.expr import Buffer, Const, Expr, Load, Op, Var, linear, simplify, variables
from ..machine import DotProduct, WarpLoad, WarpProduct
from ..nest import For, Nest, Stmt, Store
from ..region import all_ranges
from ..text import parse_nest
from ..warp import NOTE, read_copy, read_product
from .state import ScheduleError, State, primitive

Ranges = Mapping[str, tuple[int, int]]
_COMMUTE = ("addi", "muli", "addf", "mulf")


@runtime_checkable
class Tensorizing(Protocol):
    """A machine whose instructions work on its own memories: a chip."""

    @property
    def instruction_names(self) -> Sequence[str]: ...

    def tensorized(self, loop: For, instruction: str, buffers: Mapping[str, Buffer], ranges: Ranges) -> For | str:
        """The loop and those in it with notes that say what they are, or why they are no such instruction. `ranges` are
        those of all loop variables."""


class TensorPrimitives(State):
    """Loops that are one instruction."""

    @primitive
    def tensorize(self, var: str, instruction: str) -> None:
        """Let loop `var` and those in it be one instruction of the target.

        Refused unless the loops are those of the instruction's own nest (`meaning`): as many iterations, the same
        operations, and operands whose elements lie in memory as the instruction takes them. An operand that has a step
        in every lane must be a packed constant, which may be read to the end of its tile. An instruction of a chip takes
        as many iterations along each dimension as there are, up to its limits, from buffers in its own memories; steps
        that come later must leave these loops as they are. An instruction that several threads run together takes blocks
        of matrices, and leaves the loops as they are, with a note.

        >>> from tilewright import Schedule, te
        >>> from tilewright.targets.cpu.description import CpuDescription
        >>> class Board:
        ...     name = "board"
        ...     def describe(self):
        ...         return CpuDescription("x86_64-unknown-linux-gnu", "", ("avx512vnni",), vector_bytes=64)
        >>> s = Schedule(te.from_nest('''
        ... def k(x: i8[8], w: i8[16, 8], y: out(i32[16])):
        ...     for n in serial(16):
        ...         for k in serial(8):
        ...             y: y[n] = reduce(addi(y[n], muli(extui[i32](x[k]), extsi[i32](w[n, k]))), init=i32(0), over=(k,))''',
        ...     constants=["w"]), Board())
        >>> outer, inner = s.split("k", 4)
        >>> s.reorder(outer, "n", inner)
        >>> s.pack("w", ((), (4,)), (1, 0, 2))
        >>> s.tensorize("n", "vnni512_us")
        >>> print("\\n".join(str(s).splitlines()[1:4]))
            for k_o in serial(2):
                for n in vector(16, lanes=16):
                    for k_i in unroll(4, notes={'dot': 'vnni512_us'}):
        """  # noqa: E501 (a nest as it is printed)
        machine, buffers = self.machine(), {**self.params, **self.temporaries}
        together: dict[str, WarpProduct | WarpLoad] = {p.name: p for p in machine.warp_products}
        together |= {p.name: p for p in machine.warp_loads}
        known = {d.name: d for d in machine.dot_products}
        other = machine.instruction_names if isinstance(machine, Tensorizing) else ()
        if instruction not in (*known, *together, *other):
            raise ScheduleError(
                f"the target has no instruction {instruction!r}",
                stage="schedule",
                hint=f"instructions: {', '.join((*known, *together, *other)) or 'none'}",
            )
        if instruction in together:
            self._run_together(self.loop(var), together[instruction], buffers)
            return
        if isinstance(machine, Tensorizing) and instruction in other:
            old = self.loop(var)
            made = machine.tensorized(old, instruction, buffers, all_ranges(self.body))
            if isinstance(made, str):
                raise ScheduleError(f"{var} is no {instruction}: {made}", stage="schedule")
            self._replace(old, made)
            return
        f, nest = self.loop(var), meaning(known[instruction])
        match = _Match(buffers, all_ranges(self.body), {p.name: p for p in nest.params}, nest.outputs)
        new = match.statement(f, nest.body)
        for name in match.spread:
            if name not in self.packs:
                raise ScheduleError(f"{name} is not packed", stage="schedule", hint="pack it: s.pack(...)")
        self._replace(f, new)

    def _run_together(self, f: For, instruction: WarpProduct | WarpLoad, buffers: dict[str, Buffer]) -> None:
        """An instruction of several threads: its loops stay as they are, the innermost one has a note."""
        try:
            if isinstance(instruction, WarpProduct):
                innermost = read_product(f, instruction, buffers).k
            else:
                found = read_copy(f, instruction, buffers)
                innermost = found.column if found.row is f else found.row
        except CompileError as e:
            raise ScheduleError(e.message, stage="schedule") from None
        self._replace(innermost, replace(innermost, notes=((NOTE, instruction.name),)))


def meaning(dot: DotProduct) -> Nest:
    """The loop nest that a dot product is, with the kinds and notes that its loops get.

    >>> print(meaning(DotProduct("vnni512_us", 16, 4, ("u", "s"), 8, 2)))
    def vnni512_us(x: i8[4], w: i8[16, 4], acc: out(i32[16])):
        for l in vector(16, lanes=16):
            for q in unroll(4, notes={'dot': 'vnni512_us'}):
                acc[l] = addi(acc[l], muli(extui[i32](x[q]), extsi[i32](w[l, q])))
    """
    d, n = dot.depth, max(dot.lanes, 1)
    x, w = (f"ext{s}i[i32]" for s in dot.signs)
    lane, head, deep = ("l", f"    for l in vector({n}, lanes={n}):\n", "    ") if dot.lanes else ("0", "", "")
    return parse_nest(
        f"def {dot.name}(x: i8[{d}], w: i8[{n}, {d}], acc: out(i32[{n}])):\n{head}"
        f"    {deep}for q in unroll({d}, notes={{'dot': {dot.name!r}}}):\n"
        f"        {deep}acc[{lane}] = addi(acc[{lane}], muli({x}(x[q]), {w}(w[{lane}, q])))\n"
    )


@dataclass
class _Match:
    """Compares a statement with that of an instruction; `buffers` and `own` are the buffers of both."""

    buffers: dict[str, Buffer]
    ranges: dict[str, tuple[int, int]]
    own: dict[str, Buffer]
    outputs: tuple[str, ...]
    loops: dict[str, str] = field(default_factory=dict)  # the instruction's -> the statement's
    operands: dict[str, str] = field(default_factory=dict)
    spread: set[str] = field(default_factory=set)  # buffers read with a step in the outermost loop

    def statement(self, s: Stmt, like: Stmt) -> Stmt:
        """`s` with the kinds and notes of `like`; ScheduleError if it does something else."""
        if isinstance(like, For) and isinstance(s, For):
            if s.trip != like.trip:
                raise ScheduleError(f"{s.var} has {s.trip or 'varying'} iterations, not {like.trip}", stage="schedule")
            self.loops[like.var] = s.var
            body = self.statement(s.body, like.body)
            return replace(s, body=body, kind=like.kind, lanes=like.lanes, notes=like.notes)
        if isinstance(like, Store) and isinstance(s, Store) and len(s.targets) == len(like.targets) == 1:
            t, want = s.targets[0], like.targets[0]
            self.place(t.buffer, t.indices, self.buffers[t.buffer].dtype, want.buffer, want.indices)
            if not self.value(t.value, want.value):
                raise ScheduleError(f"block {s.block} computes something else: {t.value}", stage="schedule")
            return s
        what = "a loop" if isinstance(like, For) else "one statement"
        raise ScheduleError(f"the instruction has {what} where {_kind(s)} stands", stage="schedule")

    def value(self, e: Expr, like: Expr) -> bool:
        if isinstance(like, Load) and isinstance(e, Load):
            self.place(e.buffer, e.indices, e.dtype, like.buffer, like.indices)
            return True
        if isinstance(like, Op) and isinstance(e, Op) and (e.op, e.dtype) == (like.op, like.dtype):
            if e.op not in _COMMUTE:
                return all(self.value(a, b) for a, b in zip(e.args, like.args, strict=True))
            saved, spread = dict(self.operands), set(self.spread)
            try:
                if all(self.value(a, b) for a, b in zip(e.args, like.args, strict=True)):
                    return True
            except ScheduleError:
                pass
            self.operands, self.spread = saved, spread
            return all(self.value(a, b) for a, b in zip(e.args[::-1], like.args, strict=True))
        return isinstance(like, Const) and e == like

    def place(self, name: str, indices: tuple[Expr, ...], dtype: str, own: str, wanted: tuple[Expr, ...]) -> None:
        """Raise ScheduleError unless an operand is of the right type and moves as the instruction's."""
        if self.operands.setdefault(own, name) != name:
            raise ScheduleError(f"{name} stands where {self.operands[own]} should", stage="schedule")
        if dtype != self.own[own].dtype:
            raise ScheduleError(f"{name} is {dtype}, not {self.own[own].dtype}", stage="schedule")
        here, there = simplify(flat(self.buffers[name], indices), self.ranges), flat(self.own[own], wanted)
        for mine, its in self.loops.items():
            step, right = _step(here, its), _step(there, mine)
            if step != right:
                moves = "unevenly" if step is None else f"by {step}"
                raise ScheduleError(f"{name} moves {moves} along {its}, not by {right}", stage="schedule")
        outermost = next(iter(self.loops))
        if own not in self.outputs and len(self.loops) > 1 and _step(there, outermost):
            self.spread.add(name)


def _step(e: Expr, var: str) -> int | None:
    """How far an index moves when a loop advances; None if that varies."""
    total = 0
    for t, c in linear(e)[0].items():
        if t == Var(var):
            total += c
        elif var in variables(t):
            return None
    return total


def _kind(s: Stmt) -> str:
    return f"loop {s.var}" if isinstance(s, For) else f"block {s.block}" if isinstance(s, Store) else "something else"


__all__ = ["TensorPrimitives", "meaning"]
