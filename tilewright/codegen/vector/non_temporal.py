"""Non-temporal stores, past the caches: loops with the note ``uncached``.

Such a store wants its whole vector aligned, which the caller's memory need not be: the loop is there twice, and where
it starts decides. Other threads may see these stores late; the kernel ends with a fence.
"""

from __future__ import annotations

from collections.abc import Callable

from ...schedule.nest import For, Store, walk_stmts
from ...tensor.expr import Buffer, Const, Expr, Var, linear, substitute, variables
from .part import Part
from .values import BYTES, Value, element


class NonTemporal(Part):
    """Says which stores are written so; see `Core.counted`."""

    _now = _fenced = False

    def in_both_forms(self, s: For, carries: bool, emit: Callable[[], None]) -> bool:
        """Emit a loop, as `emit` does, in both forms; False if it has just one. `carries`: it has sums in registers."""
        if not s.note("uncached"):
            return False
        found = "it carries sums in registers" if carries else self._written(s)
        if isinstance(found, str):
            self.core.refuse(s, "uncached", found)
            return False
        aligned = self._aligned(*found)
        for head, now in ((f"scf.if {aligned} {{", True), ("} else {", False)):
            self._now = now
            self.text.line(head)
            with self.text.scope():
                emit()
        self.text.line("}")
        return True

    def _written(self, s: For) -> tuple[Buffer, Expr, int] | str:
        """The buffer that a loop writes in whole vectors, the first index and the bytes of a vector; else why not."""
        if not self.core.machine.fence or self.text.vector:
            return "it is inside a vector" if self.text.vector else "the machine has no stores past the caches that pay"
        vectors = [x for x in walk_stmts(s.body) if isinstance(x, For) and x.kind == "vector"]
        found = [(x.targets, lane) for lane in vectors for x in walk_stmts(lane.body) if isinstance(x, Store)]
        if not found or any(len(targets) != 1 for targets, _ in found):
            return "it does not write vectors of one buffer"
        (target,), lane = found[0]
        buffer = self.buffers[target.buffer]
        if not self.text.memory.get(buffer.name, "").startswith("%p"):
            return f"{buffer.name} is not a result"
        size = BYTES[element(buffer.dtype)]
        width = (lane.lanes or lane.trip or 1) * size
        loops = [x.var for x in (s, *walk_stmts(s.body)) if isinstance(x, For)]
        begin: dict[str, Expr] = {v: Const(0, "index") for v in loops}
        first = substitute(self.at.flat(buffer, target.indices), begin)
        for (t,), own in found:
            if t.buffer != target.buffer or (own.lanes or own.trip) != (lane.lanes or lane.trip):
                return "it does not write vectors of one buffer"
            flat = self.at.flat(buffer, t.indices)
            terms, apart = linear(substitute(flat, begin) + first * Const(-1, "index"))
            if terms or apart * size % width or not _in_steps(flat, set(loops) - {own.var}, width // size):
                return "its vectors are not aligned together"
        return buffer, first, width

    def _aligned(self, buffer: Buffer, first: Expr, width: int) -> str:
        """The condition under which vectors from an index on are aligned."""
        text, size = self.text, BYTES[element(buffer.dtype)]
        base = text.start(buffer)
        bytes_ = text.op(f"arith.muli {self.at.index(first).ssa}, {text.const(size, 'index')} : index")
        place = text.op(f"arith.addi {base}, {bytes_} : index")
        rest = text.op(f"arith.andi {place}, {text.const(width - 1, 'index')} : index")
        return text.op(f"arith.cmpi eq, {rest}, {text.const(0, 'index')} : index")

    def attributes(self, buffer: Buffer, value: Value) -> str:
        """What a whole vector store to a buffer says about itself."""
        if not self._now or not self.text.memory[buffer.name].startswith("%p"):
            return ""
        self._fenced = True
        return f" {{nontemporal = true, alignment = {value.width * BYTES[value.dtype]} : i64}}"

    def end(self) -> None:
        """Let everybody see what went past the caches."""
        if self._fenced:
            self.text.line(f'llvm.call_intrinsic "{self.core.machine.fence}"() : () -> ()')


def _in_steps(flat: Expr, loops: set[str], step: int) -> bool:
    """Whether loops move an index by multiples of `step` only."""
    moving = [(t, c) for t, c in linear(flat)[0].items() if variables(t) & loops]
    return all(isinstance(t, Var) and c % step == 0 for t, c in moving)
