"""Tensor memory accelerator (TMA): bulk copies of boxes (``cp.async.bulk.tensor``) that complete on an ``mbarrier``.

An array is described to the copy engine by a tensor map, one more parameter of the kernel, which the host encodes
(`TensorMap`). The first thread of a block begins a group of copies: it sets how many bytes the group's barrier expects,
and all threads wait for the phase of that barrier (`rings`). `producers` has warps that only issue copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ...schedule.bulk import Box, read_copies
from ...schedule.machine import Machine
from ...schedule.nest import THREAD, AsyncCopy, Nest, Wait, walk_stmts
from ...support.errors import CompileError
from ...tensor.expr import Const, Expr, Op, simplify
from ..gpu.open_launch import BYTES
from ..gpu_llvm.memory import ALIGN_BYTES
from .clusters import Clusters
from .producers import DONE
from .rings import Rings

if TYPE_CHECKING:
    from .emitter import NvptxEmitter

#: bytes of a tensor map, and what it begins at a multiple of
MAP_BYTES, MAP_ALIGN_BYTES = 128, 64
#: kept from moving over a barrier: what memory accesses are to LLVM
_FENCE = 'call void asm sideeffect "", "~{memory}"()'
_ARRIVE = "llvm.nvvm.mbarrier.arrive.scope.cta.space.cta"
_EXPECT = "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta"
_TRY = "llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta"


@dataclass(frozen=True)
class TensorMap:
    """What the host encodes in the tensor map of an array: the number of the kernel's parameter, its dtype and shape,
    sides of boxes, and bytes of the rows that are swizzled (0: none)."""

    parameter: int
    dtype: str
    shape: tuple[int, ...]
    sides: tuple[int, ...]
    swizzle: int

    @property
    def steps(self) -> tuple[int, ...]:
        """Bytes between neighbours along each dimension but the last."""
        return tuple(prod(self.shape[d:]) * BYTES[self.dtype] for d in range(1, len(self.shape)))

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TensorMap:
        """The inverse of `dataclasses.asdict`."""
        shape, sides = tuple(data["shape"]), tuple(data["sides"])
        return TensorMap(data["parameter"], data["dtype"], shape, sides, data["swizzle"])


class Bulk:
    """Emits bulk copies and waits for them. `core` is the emitter whose part this is."""

    def __init__(self, core: NvptxEmitter, nest: Nest, machine: Machine) -> None:
        self.core, self.nest, self.text, self.at = core, nest, core.text, core.at
        self.rings = Rings.of(nest.body, nest.name)
        self.memory = machine.bulk.memory if machine.bulk else ""
        self.bytes = next((m.bytes for m in machine.memories if m.name == self.memory), 0)
        self.boxes: dict[int, list[Box]] = {}
        self.maps: list[TensorMap] = []
        self.aligned: dict[str, int] = {}
        self.places: dict[str, int] = {}
        self.clusters = Clusters.of(nest, core.launch_axes)
        self.parts: dict[Box, Box] = {}  # of boxes that the blocks of a cluster copy together
        for s in walk_stmts(nest.body):
            if isinstance(s, AsyncCopy) and s.bulk and machine.bulk is not None:
                self.boxes[id(s)] = read_copies(s, machine.bulk, core.buffers, self.at.ranges)
                for box in self.boxes[id(s)]:
                    pattern = ALIGN_BYTES * max(box.swizzle // machine.bulk.unit, 1)
                    if (part := self.clusters.part(box, pattern)) is not None:
                        self.parts[box] = part
                    self.map_of(self.parts.get(box, box))
                    self.aligned[box.target.name] = max(pattern, self.aligned.get(box.target.name, 0))
        if self.boxes and THREAD in core.launch_axes.count:
            raise self.refuse(
                "bulk copies are begun for a block, and loops on thread have none", "bind them to block.x"
            )

    #: keeps memory accesses where they are
    fence = _FENCE

    def refuse(self, why: str, hint: str | None = None) -> CompileError:
        return CompileError(why, stage="emit", operator=self.nest.name, hint=hint)

    def map_of(self, box: Box) -> int:
        """The number of the tensor map of a box."""
        parameter = next(i for i, p in enumerate(self.nest.params) if p.name == box.source.name)
        made = TensorMap(parameter, box.source.dtype, box.shape, box.sides, box.swizzle)
        if made not in self.maps:
            self.maps.append(made)
        return self.maps.index(made)

    def takes(self, s: object) -> bool:
        """Whether a wait is one for bulk copies."""
        return isinstance(s, Wait) and s.token in self.rings.size

    @property
    def params(self) -> list[str]:
        return [
            f'ptr byval([{MAP_BYTES} x i8]) align {MAP_ALIGN_BYTES} "nvvm.grid_constant" %m{i}'
            for i in range(len(self.maps))
        ]

    # ---- barriers

    def begin(self, arrivals_of_steps: int) -> None:
        """Make all barriers, before anything else; at that of a producer's step so many arrive."""
        if not self.rings.size:
            return
        arrivals = dict.fromkeys(sorted(self.rings.size), 1)
        if self.rings.steps:
            arrivals[DONE] = arrivals_of_steps * self.clusters.count
            self.rings.size[DONE] = max(self.rings.size.values())
        total = 0
        for name in arrivals:
            self.places[name], total = total, total + self.rings.size[name]
        self.array = f"@{self.nest.name}.mbarriers"
        self.text.globals_.append(f"{self.array} = internal addrspace(3) global [{total} x i64] undef, align 8")
        self.core.shared["mbarriers"] = total * 8
        with self.core.by_first_of_block():
            for name, count in arrivals.items():
                for i in range(self.rings.size[name]):
                    where = self.barrier(name, Const(i, "index"))
                    self.text.call("llvm.nvvm.mbarrier.init.shared", "void", [where, f"i32 {count}"])
            self.text.call("llvm.nvvm.fence.mbarrier_init.release.cluster", "void", [])
            self.text.call("llvm.nvvm.fence.proxy.async.shared_cta", "void", [])
        if self.clusters.count > 1:
            self.clusters.meet(self.text)
        else:
            self.core.block_barrier()

    def end(self) -> None:
        """Behind all else: no block ends while others may copy to it, or arrive at its barriers."""
        if self.clusters.count > 1:
            self.clusters.meet(self.text)

    def arrive_at(self, lane: str, barrier: str) -> None:
        """Arrive once at a barrier, in all blocks that copy for each other: some lanes of a warp do."""
        if self.clusters.count > 1:
            self.clusters.arrive(self.text, lane, barrier)
            return
        with self.text.where(self.text.op(f"icmp eq i32 {lane}, 0"), "arrives"):
            self.text.call(_ARRIVE, "i64", [barrier, "i32 1"])

    def check(self, shared: dict[str, int]) -> None:
        """CompileError if buffers leave no room for the barriers."""
        needed = sum(shared.values())
        if self.rings.size and needed > self.bytes:
            raise self.refuse(
                f"buffers in {self.memory} and the barriers of bulk copies need {needed} bytes; the machine has "
                f"{self.bytes}",
                hint="fewer stages, or smaller tiles",
            )

    def barrier(self, ring: str, number: Expr) -> str:
        """The address of the barrier of a group."""
        place = number % self.rings.size[ring] + self.places[ring]
        index = self.at.index(simplify(place, self.at.ranges))
        return f"ptr addrspace(3) {self.text.op(f'getelementptr i64, ptr addrspace(3) {self.array}, i32 {index}')}"

    def wait_for(self, ring: str, number: Expr) -> None:
        """Until the phase of a group's barrier is over."""
        where = self.barrier(ring, number)
        parity = self.at.index(simplify(number // self.rings.size[ring] % 2, self.at.ranges))
        again, after = self.text.new_label("asking"), self.text.new_label("there")
        self.text.line(f"br label %{again}")
        self.text.begin(again)
        over = self.text.call(_TRY, "i1", [where, f"i32 {parity}"])
        self.text.line(f"br i1 {over}, label %{after}, label %{again}")
        self.text.begin(after)
        self.text.line(_FENCE)

    def wait(self, s: Wait) -> None:
        for i in range(self.rings.count.get(id(s), 0)):
            self.wait_for(s.token, self.rings.number[id(s)] + i)

    # ---- copies

    def copy(self, s: AsyncCopy) -> None:
        """Begin a group: one thread of the block does."""
        with self.core.by_first_of_block():
            self.group(s)

    def group(self, s: AsyncCopy) -> None:
        """One thread sets the bytes that the barrier expects, and begins the copy."""
        where = self.barrier(s.token, self.rings.number[id(s)])
        self.text.line(_FENCE)
        parts: dict[str, list[Box]] = {}
        for box in self.boxes[id(s)]:
            parts.setdefault(self.holds(box), []).append(box)
        total = str(sum(box.nbytes for box in parts.get("", ())))
        for cond in (c for c in parts if c):
            size = sum(box.nbytes for box in parts[cond])
            total = self.text.op(f"add i32 {total}, {self.text.op(f'select i1 {cond}, i32 {size}, i32 0')}")
        self.text.call(_EXPECT, "i64", [where, f"i32 {total}"])
        for cond, boxes in parts.items():
            with self.text.where(cond, "copies") if cond else nullcontext():
                for box in boxes:
                    self.box(box, where)

    def holds(self, box: Box) -> str:
        """The condition under which a box is copied, empty if it always is."""
        cond = None
        for c in box.conditions:
            cond = c if cond is None else Op("andi", (cond, c), "i1")
        return "" if cond is None else self.core.expressions.expr(cond).ssa

    def box(self, box: Box, barrier: str) -> None:
        others, box = box in self.parts, self.parts.get(box, box)
        pointer, _ = self.core.memory.pointers[box.target.name]
        if (place := self.at.index(box.place)) != "0":
            kind = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[BYTES[box.target.dtype]]
            pointer = self.text.op(f"getelementptr {kind}, ptr addrspace(3) {pointer}, i32 {place}")
        to = self.text.op(f"addrspacecast ptr addrspace(3) {pointer} to ptr addrspace(7)")
        start = [f"i32 {self.at.index(e)}" for e in reversed(box.start)]
        name = f"llvm.nvvm.cp.async.bulk.tensor.g2s.tile.{len(start)}d"
        who = [f"i16 {self.clusters.everybody if others else 0}", "i64 0", f"i1 {'true' if others else 'false'}"]
        rest = ["i1 false", "i32 0"]  # no hint for caches
        args = [f"ptr addrspace(7) {to}", barrier, f"ptr %m{self.map_of(box)}", *start, *who, *rest]
        self.text.call(name, "void", args)


__all__ = ["Bulk", "TensorMap"]
