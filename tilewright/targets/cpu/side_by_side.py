"""Unrolled vectors of mathematical functions, side by side:

for i in unroll(4):                   # the four vectors are loaded, then comes the first operation of all four, the
    for j in vector(16):              # second of all four ... and at last they are stored
        y[i, j] = tanh(x[i, j])

A function is one long chain of operations, each waiting for the one before. One vector after the other, what waits
fills the processor's queues before it gets to a vector that could go on (measured: 10 cycles a vector of gelu instead
of 7).
"""

from __future__ import annotations

import re

from ...schedule.inplace import ROWS
from ...schedule.nest import For, Nest, Stmt, Store, walk_stmts
from ...tensor.expr import Load, Op, walk
from ...tensor.mathlib import FUNCTIONS
from .emit_expr import ExprEmitter

#: vectors that run side by side: more would need more registers than there are
VECTORS = 4
_NAME = re.compile(r"%v\d+")


class SideBySideEmitter(ExprEmitter):
    """Emission of unrolled loops over vectors of functions."""

    nest: Nest

    def stmt(self, s: Stmt) -> None:
        """The part of `emit.Emitter`."""
        raise NotImplementedError

    def side_by_side(self, s: For) -> bool:
        """Emit an unrolled loop if it is one of independent vectors of functions."""
        if not (s.trip and s.trip > 1 and self.independent(s.body)):
            return False
        lines, parts = self.lines, []
        for i in range(s.trip):
            self.lines = []
            with self.bind(s.var, i):
                self.stmt(s.body)
            parts.append(self.lines)
        self.lines = lines
        plain = not any(line.endswith(("{", "}")) for part in parts for line in part)  # no branches
        for i in range(0, s.trip, VECTORS):
            some = parts[i : i + VECTORS]
            self.lines += interleaved(some) if plain else [line for part in some for line in part]
        return True

    def independent(self, s: Stmt) -> bool:
        """Whether a statement is a vector of functions that goes to memory which it does not read elsewhere."""
        if not (isinstance(s, For) and s.kind == "vector" and isinstance(s.body, Store)):
            return False
        store = s.body
        written = {t.buffer: t.indices for t in store.targets}
        inside = [x for t in store.targets for x in walk(t.value)]
        if not any(isinstance(x, Op) and x.op in FUNCTIONS for x in inside):
            return False
        if store.reduction or any(self.buffers[b].scope == "register" for b in written):
            return False
        if any(isinstance(x, Load) and written.get(x.buffer, x.indices) != x.indices for x in inside):
            return False
        # the rows of such loops may be written where others were read
        return not any(isinstance(x, For) and x.note(ROWS) for x in walk_stmts(self.nest.body))


def interleaved(parts: list[list[str]]) -> list[str]:
    """The lines of all parts, each in its order: one of each in turn, but none before what it needs is made."""
    merged: list[str] = []
    waiting = {name for part in parts for line in part for name in made(line)}
    rest = [part[::-1] for part in parts]
    while any(rest):
        for part in rest:
            if part and waiting.isdisjoint(set(_NAME.findall(part[-1])) - made(part[-1])):
                merged.append(part.pop())
                waiting -= made(merged[-1])
    return merged


def made(line: str) -> set[str]:
    """The value that a line makes."""
    return set(_NAME.findall(line.partition(" = ")[0])) if " = " in line and line.lstrip()[0] == "%" else set()
