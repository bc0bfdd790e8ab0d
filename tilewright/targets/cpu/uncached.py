"""Results that are written past the caches: loops with the note ``uncached``.

Such a store wants its whole vector aligned, which the caller's memory need not be: the loop is there twice, and where
it starts decides. Other threads may see these stores late; the kernel ends with a fence.
"""

from __future__ import annotations

from collections.abc import Callable

from ...schedule.nest import For, Stmt, Store, walk_stmts
from ...tensor.expr import Buffer, Const, Expr, Var, linear, substitute, variables
from .emit_expr import ExprEmitter
from .values import BYTES, Value, element

#: the processors on which such stores were measured, by a feature
FEATURE = "avx512f"


class UncachedEmitter(ExprEmitter):
    """Emission of such loops."""

    features: tuple[str, ...] = ()
    uncached = False
    fenced = False

    def both_forms(self, s: For, emit: Callable[[], None]) -> bool:
        """Emit a loop that `emit` emits in both forms; False if it has just one."""
        aligned = self.aligned_start(s)
        if aligned is None:
            return False
        for head, self.uncached in ((f"scf.if {aligned} {{", True), ("} else {", False)):
            self.line(head)
            with self.scope():
                emit()
        self.line("}")
        return True

    def aligned_start(self, s: For) -> str | None:
        """The condition under which the vectors that a loop writes are aligned; None if it is not to be uncached."""
        if not s.note("uncached") or FEATURE not in self.features or self.vector:
            return None
        found = [(x.targets, lane) for lane in _vectors(s.body) for x in walk_stmts(lane.body) if isinstance(x, Store)]
        if not found or any(len(targets) != 1 for targets, _ in found):
            return None
        (target,), lane = found[0]
        buffer = self.buffers[target.buffer]
        if not self.memory.get(buffer.name, "").startswith("%p"):
            return None
        kind, size = self.memref(buffer), BYTES[element(buffer.dtype)]
        width = (lane.lanes or lane.trip or 1) * size
        loops = [x.var for x in (s, *walk_stmts(s.body)) if isinstance(x, For)]
        begin: dict[str, Expr] = {v: Const(0, "index") for v in loops}
        first = substitute(self.flat(buffer, target.indices), begin)
        for (t,), own in found:
            if t.buffer != target.buffer or (own.lanes or own.trip) != (lane.lanes or lane.trip):
                return None
            flat = self.flat(buffer, t.indices)
            terms, apart = linear(substitute(flat, begin) + first * Const(-1, "index"))
            if terms or apart * size % width or not _in_steps(flat, set(loops) - {own.var}, width // size):
                return None
        base = self.op(f"memref.extract_aligned_pointer_as_index {self.memory[buffer.name]} : {kind} -> index")
        bytes_ = self.op(f"arith.muli {self.index(first).ssa}, {self.const(size, 'index')} : index")
        place = self.op(f"arith.addi {base}, {bytes_} : index")
        rest = self.op(f"arith.andi {place}, {self.const(width - 1, 'index')} : index")
        return self.op(f"arith.cmpi eq, {rest}, {self.const(0, 'index')} : index")

    def store_attributes(self, buffer: Buffer, value: Value) -> str:
        """What a whole vector store to a buffer says about itself."""
        if not self.uncached or not self.memory[buffer.name].startswith("%p"):
            return ""
        self.fenced = True
        return f" {{nontemporal = true, alignment = {value.width * BYTES[value.dtype]} : i64}}"

    def end_uncached(self) -> None:
        """Let everybody see what went past the caches."""
        if self.fenced:
            self.line('llvm.call_intrinsic "llvm.x86.sse.sfence"() : () -> ()')


def _vectors(s: Stmt) -> list[For]:
    return [x for x in walk_stmts(s) if isinstance(x, For) and x.kind == "vector"]


def _in_steps(flat: Expr, loops: set[str], step: int) -> bool:
    """Whether loops move an index by multiples of `step` only."""
    moving = [(t, c) for t, c in linear(flat)[0].items() if variables(t) & loops]
    return all(isinstance(t, Var) and c % step == 0 for t, c in moving)
