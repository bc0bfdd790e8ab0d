"""Asynchronous copies from global to shared memory (``cp.async``), and the number of pending groups a wait may leave
(``cp.async.wait_group``).

A thread's groups of copies end in the order in which it began them, whichever token they have: the GPU can wait for all
but the n last ones. A wait for all but the last `pending` groups of one token is one for all groups up to that.
"""

from __future__ import annotations

from ...schedule.nest import AsyncCopy, For, If, Stmt, Wait, children, walk_stmts
from ...support.errors import CompileError
from ...tensor.expr import Load, Target
from ..gpu.open_launch import BYTES
from ..gpu_llvm.memory import GLOBAL, SHARED, GpuLlvmMemory, Lanes

#: bytes that one instruction copies
SIZES = (16, 8, 4)
#: of a loop, so many iterations show all that a wait can find begun
_ITERATIONS = 12
#: a wait never leaves more
_MOST_GROUPS = 32


def waits(body: Stmt) -> dict[int, int]:
    """The groups that each wait may leave, by its identity: the fewest of all times that it runs."""
    found: dict[int, int] = {}
    _follow(body, [], found)
    return found


def _follow(s: Stmt, begun: list[str], found: dict[int, int]) -> None:
    if isinstance(s, AsyncCopy) and s.bulk:  # no group of a thread: see `rings`
        return
    if isinstance(s, AsyncCopy):
        begun.append(s.token)
    elif isinstance(s, Wait):
        mine = [i for i, token in enumerate(begun) if token == s.token]
        last = mine[-1 - s.pending] if len(mine) > s.pending else None
        left = len(begun) if last is None else len(begun) - 1 - last
        found[id(s)] = min(found.get(id(s), _MOST_GROUPS), left)
    elif isinstance(s, For) and not s.bound:
        touched = any(isinstance(x, (AsyncCopy, Wait)) for x in walk_stmts(s.body))
        for _ in range(min(s.trip if s.trip is not None else _ITERATIONS, _ITERATIONS) if touched else 0):
            _follow(s.body, begun, found)
    else:
        assert not isinstance(s, If) or not any(isinstance(x, (AsyncCopy, Wait)) for x in walk_stmts(s))
        for c in children(s):
            _follow(c, begun, found)


class AsyncCopies:
    """Emits copies as asynchronous ones."""

    def __init__(self, memory: GpuLlvmMemory) -> None:
        self.memory, self.text = memory, memory.text

    def commit(self) -> None:
        self.text.call("llvm.nvvm.cp.async.commit.group", "void", [])

    def wait(self, left: int) -> None:
        self.text.call("llvm.nvvm.cp.async.wait.group", "void", [f"i32 {left}"])

    def copy(self, t: Target, lanes: Lanes | None) -> None:
        """``target = source``, for all lanes."""
        memory, source = self.memory, t.value
        assert isinstance(source, Load)
        into, of = memory.buffers[t.buffer], memory.buffers[source.buffer]
        if (memory.pointers[of.name][1], memory.pointers[into.name][1]) != (GLOBAL, SHARED):
            raise self.refuse(t, f"{of.name} is not in global memory, or {into.name} not in shared memory")
        size, count = BYTES[into.dtype], lanes.count if lanes else 1
        width = 1
        if lanes is not None:
            width = min(memory.run(into, t.indices, lanes), memory.run(of, source.indices, lanes))
        if width * size not in SIZES:
            raise self.refuse(t, f"it copies {width * size} neighbouring bytes at once")
        for i in range(0, count, width):
            if lanes is None:
                self._one(t, source, width * size)
            else:
                with memory.at_lane(lanes, i):
                    self._one(t, source, width * size)

    def _one(self, t: Target, source: Load, size: int) -> None:
        memory = self.memory
        into = memory.address(memory.buffers[t.buffer], t.indices)
        of = memory.address(memory.buffers[source.buffer], source.indices)
        kind = "cg" if size == 16 else "ca"  # 16 bytes pass by the first-level cache
        self.text.call(f"llvm.nvvm.cp.async.{kind}.shared.global.{size}", "void", [into, of])

    def refuse(self, t: Target, why: str) -> CompileError:
        return CompileError(
            f"the copy to {t.buffer} cannot be asynchronous: {why}", stage="emit", operator=self.memory.operator,
            hint="copy 4, 8 or 16 bytes that lie side by side: vectorize the innermost loop of the copy",
        )  # fmt: skip
