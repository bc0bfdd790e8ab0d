"""Thread block clusters: TMA multicast of boxes that all blocks of a cluster need.
What all blocks of a cluster copy alike (a box whose place depends on nothing of a block), each of them copies a part
of, to the same place in the shared memory of all. The barrier of a group of copies counts the bytes of all parts. That
a place is free is what the teams of all blocks say: at the barrier of a step (`producers`) those of each block arrive
in all blocks. No block begins before the barriers of all are there, and none ends while others may use its memory: all
threads of a cluster meet at the beginning and at the end.

That is done for a kernel which is one loop with a producer, and copies before it to what has not been used. In others
each block copies for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ...schedule.bulk import Box
from ...schedule.nest import Barrier, For, Nest, Stmt, Wait, children, walk_stmts
from ...schedule.producers import PRODUCER
from ...tensor.expr import Expr, Var, variables
from ..gpu.launch import CLUSTER, LaunchAxes
from ..gpu.open_launch import BYTES
from ..gpu_llvm.builder import GpuLlvmBuilder
from .producers import last

_MAP = "llvm.nvvm.mapa.shared.cluster"
_ARRIVE = "llvm.nvvm.mbarrier.arrive.scope.cluster.space.cluster"


@dataclass(frozen=True)
class Clusters:
    """Of a nest: blocks of a cluster that copy for each other, and the variable of their loop; 1 and none if none
    do."""

    count: int = 1
    rank: str = ""

    @staticmethod
    def of(nest: Nest, launch_axes: LaunchAxes) -> Clusters:
        loops = [s for s in walk_stmts(nest.body) if isinstance(s, For)]
        ranks = [s.var for s in loops if s.kind == CLUSTER]
        produced = [s for s in loops if s.note(PRODUCER)]
        if launch_axes.clustered == 1 or len(ranks) != 1 or len(produced) != 1:
            return Clusters()
        simple = last(nest.body, produced[0]) and not _waits(nest.body, produced[0])
        return Clusters(launch_axes.clustered, ranks[0]) if simple else Clusters()

    def part(self, box: Box, align: int) -> Box | None:
        """What a block copies of a box, for all; None if each copies the whole box for itself. Parts begin at multiples
        of so many bytes."""
        used = {v for e in (*box.start, box.place, *box.conditions) for v in variables(e)}
        if self.count == 1 or self.rank in used:
            return None
        d = next((d for d, n in enumerate(box.sides) if n > 1), 0)
        side, rest = divmod(box.sides[d], self.count)
        step = side * prod(box.sides[d + 1 :])
        if rest or d == len(box.sides) - 1 or step * BYTES[box.target.dtype] % align:
            return None
        sides = (*box.sides[:d], side, *box.sides[d + 1 :])
        start: tuple[Expr, ...] = (*box.start[:d], box.start[d] + Var(self.rank) * side, *box.start[d + 1 :])
        return replace(box, start=start, sides=sides, place=box.place + Var(self.rank) * step)

    @property
    def everybody(self) -> int:
        """A bit for each block."""
        return (1 << self.count) - 1

    def meet(self, text: GpuLlvmBuilder) -> None:
        """The barrier of all threads of a cluster."""
        text.call("llvm.nvvm.barrier.cluster.arrive", "void", [])
        text.call("llvm.nvvm.barrier.cluster.wait", "void", [])

    def arrive(self, text: GpuLlvmBuilder, lane: str, barrier: str) -> None:
        """At a barrier in all blocks: a lane of the warp for each. The address is one for any lane."""
        rank = text.op(f"urem i32 {lane}, {self.count}")
        with text.where(text.op(f"icmp slt i32 {lane}, {self.count}"), "arrives"):
            there = text.call(_MAP, "ptr addrspace(7)", [barrier, f"i32 {rank}"])
            text.call(_ARRIVE, "void", [f"ptr addrspace(7) {there}", "i32 1"])


def _waits(s: Stmt, but: Stmt) -> bool:
    """Whether there is a barrier or a wait outside of a loop."""
    return s is not but and (isinstance(s, (Barrier, Wait)) or any(_waits(c, but) for c in children(s)))


__all__ = ["Clusters"]
