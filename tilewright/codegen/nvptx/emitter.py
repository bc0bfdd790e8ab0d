"""Level 4 -> 5: a finished loop nest to LLVM IR with NVVM intrinsics: what NVIDIA GPUs have beyond others, added to
`gpu_llvm.emitter`: asynchronous copies, and products and copies that warps and groups of warps make together."""

from __future__ import annotations

from ...schedule.concurrent import is_plain
from ...schedule.machine import Machine
from ...schedule.nest import AsyncCopy, Barrier, Nest, Seq, Stmt, Store, Wait, in_parts
from ...tensor.expr import Buffer
from ..gpu_llvm import emitter as gpu
from ..gpu_llvm.emitter import Emitted
from ..gpu_llvm.family import Family
from ..gpu_llvm.memory import Lanes
from .copies import Copies, waits
from .fragments import LANE, Fragments

_REGISTERS = {f"grid.{d}": f"ctaid.{d}" for d in "xyz"} | {f"block.{d}": f"tid.{d}" for d in "xyz"}
NVIDIA = Family(
    "NVIDIA GPUs",
    {axis: f"llvm.nvvm.read.ptx.sreg.{register}" for axis, register in _REGISTERS.items()},
    'define ptx_kernel void @{name}({params}) "nvvm.maxntid"="{x},{y},{z}" {{',
)


def emit(nest: Nest, machine: Machine) -> Emitted:
    """LLVM IR of a finished nest; CompileError for what its loops and copies cannot be, UnsupportedError for sizes and
    operations that are missing here."""
    return Emitter(nest, machine).run()


class Emitter(gpu.Emitter):
    def __init__(self, nest: Nest, machine: Machine) -> None:
        super().__init__(nest, machine, NVIDIA)
        self.at.ranges[LANE] = (0, self.units.lanes - 1)
        self.copies, self.waits = Copies(self.memory), waits(self.nest.body)
        self.fragments = Fragments(self, self.nest, machine)
        self.copying = False
        self.together = False  # whether the lanes of a warp run what they hold in parts, and the first one all else

    def begin(self) -> None:
        if self.units.lane:
            self.at.names[LANE] = next(self.names[k] for k in self.units.kinds if self.units.is_lane(k))

    # ---- who runs what

    def stmt(self, s: Stmt) -> None:
        if is_plain(s) and not isinstance(s, Seq) and not in_parts(s, self.params):
            self.together = self.fragments.within(s)
            kinds = [k for k in self.units.kinds if not (self.together and self.units.is_lane(k))]
            self.by_first(kinds, s)
            self.together = False
        else:
            super().stmt(s)

    def asynchronous(self, s: AsyncCopy | Wait) -> None:
        if isinstance(s, Wait):
            self.copies.wait(self.waits[id(s)])
        else:
            self.copying = True
            self.stmt(s.body)
            self.copying = False
            self.copies.commit()

    def barrier(self, s: Barrier) -> None:
        if s.scope == "warp":
            self.text.call("llvm.nvvm.bar.warp.sync", "void", ["i32 -1"])
        else:
            self.fragments.groups.before_barrier()
            self.text.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ["i32 0"])

    # ---- statements

    def plain(self, s: Stmt) -> None:
        if self.together and not self.fragments.within(s):
            self.together = False
            self.by_first([k for k in self.units.kinds if self.units.is_lane(k)], s)
            self.together = True
        elif self.fragments.takes(s):
            self.fragments.emit(s)
        else:
            super().plain(s)

    def dot_product(self, name: str, signs: str, args: list[str]) -> tuple[str, list[str]]:
        return f"llvm.nvvm.idp4a.{signs[0]}.{signs[1]}", args

    def alloc(self, b: Buffer) -> None:
        if self.fragments.owns(b.name):
            self.fragments.begin(b)
        else:
            super().alloc(b)

    def shared_align(self, b: Buffer) -> int:
        return self.fragments.groups.align(b.name)

    def store(self, s: Store) -> None:
        if self.copying:
            for t in s.targets:
                self.copies.copy(t, None)
        else:
            super().store(s)

    def vector(self, s: Store, var: str, count: int) -> None:
        if self.copying:
            for t in s.targets:
                self.copies.copy(t, Lanes(var, count))
        else:
            super().vector(s, var, count)


__all__ = ["Emitted", "Emitter", "emit"]
