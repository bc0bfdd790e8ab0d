"""Products of four warps together (``wgmma``): factors stay in shared memory, sums are in registers.

A factor is a matrix whose rows go along the sum: 64 numbers of 16 bits, 128 bytes, in pieces of 16 bytes that are
swizzled by the row (`schedule.primitives.swizzle`: pieces of 8, every row). The instruction gets a descriptor: where
the matrix begins, how far 8 rows are from the next 8, and that it is swizzled so. Whether the nest has its elements
there is checked by number before anything is emitted.

The instruction reads through another way to memory than stores do: a thread that wrote tells so (``fence.proxy.async``)
before the barrier at which the others wait.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ...schedule.warp import ProductLoops
from ...tensor.analysis import flat
from ...tensor.evaluate import evaluate
from ...tensor.expr import Load, variables
from ..gpu_llvm.memory import ALIGN_BYTES

if TYPE_CHECKING:
    from .fragments import Fragments

#: bytes of a row, and of 8 rows, which the swizzle repeats after
_ROW_BYTES, _REPEATS_BYTES = 128, 1024
#: of a descriptor: 8 rows are so far from the next 8 (in 16 bytes); the swizzle of rows of 128 bytes
_DESCRIPTOR = (1 << 16) | (_REPEATS_BYTES >> 4 << 32) | (1 << 62)
#: combinations of loop variables for which places are checked
_MOST_PLACES = 1 << 12


class Groups:
    """A part of `fragments.Fragments`, which has the sums."""

    def __init__(self, owner: Fragments) -> None:
        self.owner = owner
        self.read: set[str] = set()

    def reads(self, loops: ProductLoops) -> None:
        self.read |= {loops.x.load.buffer, loops.w.load.buffer}

    def align(self, buffer: str) -> int:
        """What an array in shared memory begins at a multiple of."""
        return _REPEATS_BYTES if buffer in self.read else ALIGN_BYTES

    def before_barrier(self) -> None:
        if self.read:
            self.owner.text.line('call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()')

    def product(self, loops: ProductLoops) -> None:
        """One instruction, and the wait for it."""
        text, p = self.owner.text, loops.product
        factors = [self.descriptor(load, f.var, loops.k.var, f.trip or 0, p.depth) for load, f in (
            (loops.x.load, loops.m), (loops.w.load, loops.n))]  # fmt: skip
        with ExitStack() as stack:
            for f in (loops.m, loops.n):
                stack.enter_context(self.owner.at.bind(f.var, 0))
            places = self.owner.words(loops.acc.load)
        count = len(places)
        sums = [text.result(f"load float, {where}, align 4") for where in places]
        kinds = f"{{{', '.join(['float'] * count)}}}"
        outputs = ", ".join(f"${i}" for i in range(count))
        name = f"wgmma.mma_async.sync.aligned.m{p.rows}n{p.columns}k{p.depth}.f32.{p.dtype}.{p.dtype}"
        code = f"{{ .reg .pred p; setp.ne.b32 p, 1, 0; {name} {{{outputs}}}, ${count}, ${count + 1}, p, 1, 1, 0, 0; }}"
        constraints = ",".join(["=f"] * count + ["l", "l"] + [str(i) for i in range(count)])
        args = ", ".join([*(f"i64 {d}" for d in factors), *(f"float {s}" for s in sums)])
        text.call("llvm.nvvm.wgmma.fence.sync.aligned", "void", [])
        result = text.result(f'call {kinds} asm sideeffect "{code}", "{constraints}"({args})')
        text.call("llvm.nvvm.wgmma.commit_group.sync.aligned", "void", [])
        text.call("llvm.nvvm.wgmma.wait_group.sync.aligned", "void", ["i64 0"])
        for i, where in enumerate(places):
            part = text.op(f"extractvalue {kinds} {result}, {i}")
            text.line(f"store float {part}, {where}, align 4")

    def descriptor(self, x: Load, line: str, deep: str, lines: int, depth: int) -> str:
        """Of the matrix whose rows a variable selects, and whose places in a row another one does."""
        owner, text = self.owner, self.owner.text
        b = owner.core.buffers[x.buffer]
        if not self._lies(x, line, deep, lines, depth):
            raise owner.refuse(
                f"rows of {x.buffer} do not lie as the instruction takes them",
                hint="rows of 64 numbers along the sum, swizzled: s.swizzle(buffer, 8)",
            )
        with owner.at.bind(line, 0), owner.at.bind(deep, 0):
            pointer = owner.memory.address(b, x.indices)
        number = text.op(f"ptrtoint {pointer} to i64")
        start = text.op(f"lshr i64 {text.op(f'and i64 {number}, 262143')}, 4")
        return text.op(f"or i64 {start}, {_DESCRIPTOR}")

    def _lies(self, x: Load, line: str, deep: str, lines: int, depth: int) -> bool:
        """Whether all elements are where the instruction looks for them, whatever the other variables are."""
        at = self.owner.at
        place = at.known(flat(self.owner.core.buffers[x.buffer], x.indices))
        others = sorted(variables(place) - {line, deep})
        ranges = [range(at.ranges[v][0], at.ranges[v][1] + 1) for v in others]
        if np.prod([len(r) for r in ranges]) > _MOST_PLACES:
            return False
        row, column = np.meshgrid(np.arange(lines), np.arange(depth), indexing="ij")
        for values in product(*ranges):
            env = {line: row, deep: column, **{v: np.asarray(n) for v, n in zip(others, values, strict=True)}}
            where = 2 * np.broadcast_to(evaluate(place, env), row.shape)
            plain = where ^ ((where >> 7 & 7) << 4)
            begin = int(where[0, 0])
            if begin % _REPEATS_BYTES >= _ROW_BYTES or (plain != begin + row * _ROW_BYTES + column * 2).any():
                return False
        return True
