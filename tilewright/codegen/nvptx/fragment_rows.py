"""Numbers for the rows of matrices that lanes hold in parts: sums or largest numbers of rows, and what follows of them.

Of sums a lane holds two neighbouring columns of every 8, of rows g and g + 8 of 16 (`fragments`). A buffer of one
dimension in the same memory has a number for each row, and a lane those of its two rows of 16: four lanes have the same
ones. To fold rows a lane takes its own columns first, and then asks the three others (``shfl``).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ...schedule.nest import For, Store
from ...schedule.warp import FoldLoops
from ...tensor.expr import Buffer, Expr, Load, Var, linear
from .builder import Value
from .launch import WARP
from .memory import OWN

if TYPE_CHECKING:
    from .fragments import Fragments

#: columns of which a lane has two; rows of a warp, of which it has two; what its rows are apart
_COLUMNS, _ROWS, _APART = 8, 16, 8
_F32 = "f32"


class Rows:
    """A part of `fragments.Fragments`, which has the matrices."""

    def __init__(self, owner: Fragments) -> None:
        self.owner = owner

    @property
    def together(self) -> int:
        """Rows of the warps that run instructions together."""
        return self.owner.core.units.lanes // WARP * _ROWS

    @property
    def first(self) -> Expr:
        """A lane's first row."""
        lane = Var("%lane")
        return lane // WARP * _ROWS + lane % WARP // 4

    def begin(self, b: Buffer) -> None:
        if b.size % self.together or b.dtype != _F32:
            raise self.owner.refuse(f"{b.name} has no f32 for each of whole blocks of {self.together} rows")
        owner = self.owner
        owner.memory.pointers[b.name] = (owner.text.stack("float", b.size // self.together * 2, 4), OWN)
        owner.memory.special[b.name] = self.element

    def element(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        """``pointer-type name`` of the number of a row that the lane at hand has."""
        owner = self.owner
        terms, constant = linear(owner.at.known(owner.at.known(indices[0]) + self.first * -1))
        if any(terms.values()) or constant % self.together not in (0, _APART):
            raise owner.refuse(
                f"it is not known which lane has {b.name}[{indices[0]}]", hint="unroll the loops over its blocks"
            )
        pointer, kind = owner.memory.pointers[b.name]
        word = constant // self.together * 2 + constant % self.together // _APART
        return f"{kind} {owner.text.op(f'getelementptr float, {kind} {pointer}, i32 {word}')}"

    def own(self, f: For) -> list[Expr]:
        """The rows of a loop that a lane has."""
        if f.trip is None or f.trip % self.together:
            raise self.owner.refuse(f"loop {f.var} does not run over whole blocks of {self.together} rows")
        return [self.first + (i + j) for i in range(0, f.trip, self.together) for j in (0, _APART)]

    def each(self, loops: list[For], conditions: list[Expr], body: list[Store]) -> None:
        """Statements on numbers of rows alone."""
        if len(loops) != 1 or conditions:
            raise self.owner.refuse(f"block {body[0].block} is no single loop over rows")
        for row in self.own(loops[0]):
            with self.owner.at.bind(loops[0].var, row):
                for s in body:
                    self.owner.core.store(s)

    def fold(self, loops: FoldLoops) -> None:
        owner, text = self.owner, self.owner.text
        columns = loops.column.trip
        if columns is None or columns % _COLUMNS:
            raise owner.refuse(f"loop {loops.column.var} does not run over whole blocks of {_COLUMNS} columns")
        for row in self.own(loops.row):
            with ExitStack() as stack:
                stack.enter_context(owner.at.bind(loops.row.var, row))
                parts = []
                for i in range(columns // _COLUMNS * 2):
                    place = Var("%lane") % 4 * 2 + (i // 2 * _COLUMNS + i % 2)
                    with owner.at.bind(loops.column.var, place):
                        parts.append(owner.core.expr(loops.value))
                found = self.folded(loops.operation, parts)
                for apart in (1, 2):
                    args = ["i32 -1", found.typed, f"i32 {apart}", f"i32 {WARP - 1}"]
                    other = Value(text.call("llvm.nvvm.shfl.sync.bfly.f32", "float", args), _F32)
                    found = self.folded(loops.operation, [found, other])
                t = loops.target
                old = owner.memory.load(Load(t.buffer, t.indices, _F32))
                owner.memory.store(t, self.folded(loops.operation, [old, found]))

    def folded(self, operation: str, values: list[Value]) -> Value:
        """All of them by an operation, in a tree."""
        text = self.owner.text
        while len(values) > 1:
            pairs, rest = list(zip(values[::2], values[1::2], strict=False)), values[len(values) // 2 * 2 :]
            if operation == "addf":
                made = [Value(text.op(f"fadd {a.typed}, {b.ssa}"), _F32) for a, b in pairs]
            else:
                call = self.owner.core.expressions.intrinsic
                made = [call("maxnum", list(pair), _F32) for pair in pairs]
            values = made + rest
        return values[0]


__all__ = ["Rows"]
