"""Row reductions of tensor core fragments, as softmax needs them: the sum or maximum of each row, by shuffles.

Of sums a lane holds two neighbouring columns of every 8, of rows g and g + 8 of 16 (`fragments`). A buffer of one
dimension in the same memory has a number for each row, and a lane those of its two rows of 16: four lanes have the same
ones. To reduce rows a lane takes its own columns first, and then exchanges with the three others (``shfl``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

from ...schedule.nest import For, Store
from ...schedule.warp import FoldLoops
from ...support.errors import CompileError
from ...tensor.expr import Buffer, Const, Expr, Load, Op, Var, linear
from ..gpu_llvm.builder import GpuLlvmValue
from ..gpu_llvm.expressions import GpuLlvmExpressions
from ..gpu_llvm.memory import OWN

#: columns of which a lane has two; rows of a warp, of which it has two; what its rows are apart
_COLUMNS, _ROWS, _APART = 8, 16, 8
_F32 = "f32"
#: threads that run one instruction together
WARP = 32


class FragmentRows:
    """A part of `fragments.Fragments`, which has the matrices. `lanes` run instructions together; `refuse` makes an
    error of a reason."""

    def __init__(self, expressions: GpuLlvmExpressions, lanes: int, refuse: Callable[..., CompileError]) -> None:
        self.expressions, self.refuse = expressions, refuse
        self.text, self.at, self.memory = expressions.text, expressions.at, expressions.memory
        self.together = lanes // WARP * _ROWS

    @property
    def first(self) -> Expr:
        """A lane's first row."""
        lane = Var("%lane")
        return lane // WARP * _ROWS + lane % WARP // 4

    def begin(self, b: Buffer) -> None:
        if b.size % self.together or b.dtype != _F32:
            raise self.refuse(f"{b.name} has no f32 for each of whole blocks of {self.together} rows")
        self.memory.pointers[b.name] = (self.text.stack("float", b.size // self.together * 2, 4), OWN)
        self.memory.special[b.name] = self.element

    def element(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        """``pointer-type name`` of the number of a row that the lane at hand has."""
        terms, constant = linear(self.at.known(self.at.known(indices[0]) + self.first * -1))
        if any(terms.values()) or constant % self.together not in (0, _APART):
            raise self.refuse(
                f"it is not known which lane has {b.name}[{indices[0]}]", hint="unroll the loops over its blocks"
            )
        pointer, kind = self.memory.pointers[b.name]
        word = constant // self.together * 2 + constant % self.together // _APART
        return f"{kind} {self.text.op(f'getelementptr float, {kind} {pointer}, i32 {word}')}"

    def own(self, f: For) -> list[Expr]:
        """The rows of a loop that a lane has."""
        if f.trip is None or f.trip % self.together:
            raise self.refuse(f"loop {f.var} does not run over whole blocks of {self.together} rows")
        return [self.first + (i + j) for i in range(0, f.trip, self.together) for j in (0, _APART)]

    def each(self, loops: list[For], conditions: list[Expr], body: list[Store]) -> None:
        """Statements on numbers of rows alone. What others see is written by one of the lanes that have a row."""
        if len(loops) != 1:
            raise self.refuse(f"block {body[0].block} is no single loop over rows")
        one = Op("cmpi.eq", (Var("%lane") % 4, Const(0, "index")), "i1")
        for row in self.own(loops[0]):
            with self.at.bind(loops[0].var, row):
                for s in body:
                    for target in s.targets:
                        own = target.buffer in self.memory.special
                        with self.where(conditions if own else [*conditions, one]):
                            self.memory.store(target, self.expressions.expr(target.value))

    def where(self, conditions: list[Expr]) -> AbstractContextManager[None]:
        """Inside: all of some conditions hold."""
        if not conditions:
            return nullcontext()
        first, *others = (self.expressions.expr(c).ssa for c in conditions)
        for c in others:
            first = self.text.op(f"and i1 {first}, {c}")
        return self.text.where(first, "inside")

    def fold(self, loops: FoldLoops) -> None:
        text = self.text
        columns = loops.column.trip
        if columns is None or columns % _COLUMNS:
            raise self.refuse(f"loop {loops.column.var} does not run over whole blocks of {_COLUMNS} columns")
        for row in self.own(loops.row):
            with ExitStack() as stack:
                stack.enter_context(self.at.bind(loops.row.var, row))
                parts = []
                for i in range(columns // _COLUMNS * 2):
                    place = Var("%lane") % 4 * 2 + (i // 2 * _COLUMNS + i % 2)
                    with self.at.bind(loops.column.var, place):
                        parts.append(self.expressions.expr(loops.value))
                found = self.folded(loops.operation, parts)
                for apart in (1, 2):
                    args = ["i32 -1", found.typed, f"i32 {apart}", f"i32 {WARP - 1}"]
                    other = GpuLlvmValue(text.call("llvm.nvvm.shfl.sync.bfly.f32", "float", args), _F32)
                    found = self.folded(loops.operation, [found, other])
                t = loops.target
                old = self.memory.load(Load(t.buffer, t.indices, _F32))
                self.memory.store(t, self.folded(loops.operation, [old, found]))

    def folded(self, operation: str, values: list[GpuLlvmValue]) -> GpuLlvmValue:
        """All of them by an operation, in a tree."""
        text = self.text
        while len(values) > 1:
            pairs, rest = list(zip(values[::2], values[1::2], strict=False)), values[len(values) // 2 * 2 :]
            if operation == "addf":
                made = [GpuLlvmValue(text.op(f"fadd {a.typed}, {b.ssa}"), _F32) for a, b in pairs]
            else:
                call = self.expressions.intrinsic
                made = [call("maxnum", list(pair), _F32) for pair in pairs]
            values = made + rest
        return values[0]


__all__ = ["FragmentRows"]
