"""Unrolled vectors of mathematical functions, interleaved:

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
from ...schedule.nest import For, Stmt, Store, walk_stmts
from ...tensor.expr import Load, Op, walk
from ...tensor.mathlib import FUNCTIONS
from .part import Part

_NAME = re.compile(r"%v\d+")


class InterleavedVectors(Part):
    """Takes unrolled loops over independent vectors of functions."""

    takes = (For,)

    def wants(self, s: Stmt) -> bool:
        return isinstance(s, For) and s.kind == "unroll" and (s.trip or 0) > 1 and self._independent(s.body)

    def emit(self, s: Stmt) -> bool:
        assert isinstance(s, For) and s.trip is not None
        lines, parts = self.text.lines, []
        for i in range(s.trip):
            self.text.lines = []
            with self.text.bind(s.var, i):
                self.core.stmt(s.body)
            parts.append(self.text.lines)
        self.text.lines = lines
        most = self.core.machine.chains
        for i in range(0, s.trip, most):
            self.text.lines += interleaved(parts[i : i + most])
        return True

    def _independent(self, s: Stmt) -> bool:
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
        return not any(isinstance(x, For) and x.note(ROWS) for x in walk_stmts(self.core.nest.body))


def interleaved(parts: list[list[str]]) -> list[str]:
    """The lines of all parts, each in its order: one of each in turn, but none before what it needs is made.

    A branch is one line: lines are those outside of branches.
    """
    merged: list[str] = []
    rest = [[(line, names := made(line), used(line, names)) for line in outermost(part)][::-1] for part in parts]
    waiting = {name for part in rest for _, names, _ in part for name in names}
    while any(rest):
        for part in rest:
            if part and waiting.isdisjoint(part[-1][2]):
                line, names, _ = part.pop()
                merged.append(line)
                waiting -= names
    return merged


def outermost(lines: list[str]) -> list[str]:
    """Lines, those from an opening brace to its closing one as one.

    >>> outermost(["%v1 = scf.if %v0 -> (f32) {", "  scf.yield %v2 : f32", "} else {", "  scf.yield %v3 : f32", "}"])
    ['%v1 = scf.if %v0 -> (f32) {\\n  scf.yield %v2 : f32\\n} else {\\n  scf.yield %v3 : f32\\n}']
    """
    found: list[str] = []
    depth = 0
    for line in lines:
        if depth:
            found[-1] += "\n" + line
        else:
            found.append(line)
        depth += line.endswith("{") - line.lstrip().startswith("}")
    return found


def made(text: str) -> set[str]:
    """The values that lines make."""
    lines = (line.partition(" = ") for line in text.split("\n"))
    return {name for left, equals, _ in lines if equals and left.lstrip()[0] == "%" for name in _NAME.findall(left)}


def used(text: str, made: set[str]) -> set[str]:
    """The values that lines need, beside those that they make."""
    return set(_NAME.findall(text)) - made
