"""Level 4 -> 5: lowers a finished loop nest to LLVM IR with NVVM intrinsics: `gpu_llvm.emitter` plus what only NVIDIA
GPUs have: asynchronous and bulk copies, and tensor core instructions of warps and warpgroups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...schedule.concurrency import is_plain
from ...schedule.machine import Machine
from ...schedule.nest import AsyncCopy, Barrier, For, Nest, Seq, Stmt, Store, Wait, in_parts, stores, transform
from ...schedule.producers import PRODUCER
from ...tensor.expr import Buffer
from ..gpu.open_launch import Launch, OpenLaunch
from ..gpu_llvm import emitter as gpu
from ..gpu_llvm.family import Family
from ..gpu_llvm.memory import Lanes
from .bulk import Bulk, TensorMap
from .copies import AsyncCopies, waits
from .fragments import LANE, Fragments
from .functions import FUNCTIONS, INSTRUCTIONS
from .producers import Producers
from .redundant_barriers import needless_barriers

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

#: the barrier of all threads of a block
BLOCK = "block"
#: numbers of a thread that the assembler is to leave all registers for
MANY_NUMBERS = 24
_REGISTERS = {f"grid.{d}": f"ctaid.{d}" for d in "xyz"} | {f"block.{d}": f"tid.{d}" for d in "xyz"}
NVIDIA = Family(
    "NVIDIA GPUs",
    {axis: f"llvm.nvvm.read.ptx.sreg.{register}" for axis, register in _REGISTERS.items()},
    'define ptx_kernel void @{name}({params}) "nvvm.maxntid"="{x},{y},{z}"{more} {{',
    functions=FUNCTIONS,
    instructions=INSTRUCTIONS,
)


@dataclass(frozen=True)
class NvptxKernel(gpu.GpuLlvmKernel):
    """Also: behind the parameters of the nest come tensor maps of some of them (`bulk`)."""

    maps: tuple[TensorMap, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        launch = Launch.from_json(data["launch"])
        maps = tuple(map(TensorMap.from_json, data["maps"]))
        return cls(data["name"], data["text"], launch, data["shared"], OpenLaunch.from_json(data["open"]), maps)


def emit(nest: Nest, machine: Machine) -> NvptxKernel:
    """LLVM IR of a finished nest; CompileError for what its loops and copies cannot be, UnsupportedError for sizes and
    operations that are missing here."""
    return NvptxEmitter(nest, machine).run()


class NvptxEmitter(gpu.GpuLlvmEmitter):
    def __init__(self, nest: Nest, machine: Machine) -> None:
        super().__init__(nest, machine, NVIDIA)
        self.at.ranges[LANE] = (0, self.launch_axes.lanes - 1)
        self.copies, self.waits = AsyncCopies(self.memory), waits(self.nest.body)
        self.bulk = Bulk(self, self.nest, machine)
        self.fragments = Fragments(self, self.nest, machine)
        self.trade = machine.register_trade
        self.copying = False
        self.kept = 0  # numbers that a thread has in buffers of its own
        self.consuming = False  # whether the team that begins copies is elsewhere
        #: what threads write themselves
        self.plainly = frozenset(t.buffer for s in stores(_without_bulk(self.nest.body)) for t in s.targets)
        self.needless = needless_barriers(self.nest, "warp", machine)
        self.together = False  # whether the lanes of a warp run what they hold in parts, and the first one all else

    def run(self) -> NvptxKernel:
        made = super().run()
        return NvptxKernel(made.name, made.text, made.launch, made.shared, made.open, tuple(self.bulk.maps))

    def more_params(self) -> list[str]:
        return list(self.bulk.params)

    def begin(self) -> None:
        if self.launch_axes.lane:
            self.at.names[LANE] = next(self.names[k] for k in self.launch_axes.kinds if self.launch_axes.is_lane(k))
        self.producers = Producers(self, self.bulk, self.fragments.groups, self.trade)
        self.bulk.begin(self.producers.arrivals if self.bulk.rings.steps else 0)

    def end(self) -> None:
        self.bulk.check(self.shared)
        self.bulk.end()

    def attributes(self) -> str:
        """That one block has all registers, without which the assembler spills some for the sake of more, waits for one
        access after the other, or leaves out some that teams hand to each other; and blocks of a cluster."""
        many = self.fragments.folds_rows or self.producers.traded or self.kept >= MANY_NUMBERS
        alone = ' "nvvm.minctasm"="1"' if many else ""
        blocks = self.launch_axes.clustered
        return alone + (f' "nvvm.cluster_dim"="{blocks},1,1"' if blocks > 1 else "")

    # ---- who runs what

    def stmt(self, s: Stmt) -> None:
        if is_plain(s) and not isinstance(s, Seq) and not in_parts(s, self.params):
            self.together = self.fragments.within(s)
            kinds = [k for k in self.launch_axes.kinds if not (self.together and self.launch_axes.is_lane(k))]
            self.by_first(kinds, s)
            self.together = False
        elif isinstance(s, For) and not s.bound and s.note(PRODUCER):
            self.producers.loop(s)
        elif self.producers.takes(s):
            self.producers.again(s)
        else:
            super().stmt(s)

    def asynchronous(self, s: AsyncCopy | Wait) -> None:
        if isinstance(s, AsyncCopy) and s.bulk:
            self.bulk.copy(s)
        elif isinstance(s, Wait) and self.bulk.takes(s):
            self.bulk.wait(s)
        elif isinstance(s, Wait):
            self.copies.wait(self.waits[id(s)])
        else:
            self.copying = True
            self.stmt(s.body)
            self.copying = False
            self.copies.commit()

    @contextmanager
    def by_first_of_block(self) -> Iterator[None]:
        with self.only_first(
            [k for k in self.launch_axes.kinds if BLOCK in self.launch_axes.nest_axes.axes[k].barriers]
        ):
            yield

    def here(self, kind: str) -> int:
        return self.launch_axes.count[kind] - (self.consuming and self.launch_axes.is_team(kind))

    def written_out(self, body: Stmt) -> AbstractContextManager[None]:
        return self.fragments.groups.run_of(body)

    def barrier(self, s: Barrier) -> None:
        if id(s) in self.needless:
            return
        if s.scope == "warp":
            self.text.call("llvm.nvvm.bar.warp.sync", "void", ["i32 -1"])
        elif self.consuming:
            self.producers.meet()
        else:
            self.block_barrier()

    def block_barrier(self) -> None:
        self.fragments.groups.before_barrier()
        self.text.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ["i32 0"])

    # ---- statements

    def plain(self, s: Stmt) -> None:
        if self.together and not self.fragments.within(s):
            self.together = False
            self.by_first([k for k in self.launch_axes.kinds if self.launch_axes.is_lane(k)], s)
            self.together = True
        elif self.fragments.takes(s):
            self.fragments.emit(s)
        else:
            super().plain(s)

    def dot_product(self, name: str, signs: str, args: list[str]) -> tuple[str, list[str]]:
        return f"llvm.nvvm.idp4a.{signs[0]}.{signs[1]}", args

    def shuffle(self, word: str, asked: str | int) -> str:
        how, lane = ("bfly", f"i32 {asked}") if isinstance(asked, int) else ("idx", asked)
        args = ["i32 -1", word, lane, f"i32 {self.launch_axes.warp - 1}"]
        return self.text.call(f"llvm.nvvm.shfl.sync.{how}.i32", "i32", args)

    def alloc(self, b: Buffer) -> None:
        if self.fragments.owns(b.name):
            self.fragments.begin(b)
        else:
            self.kept += b.size if b.scope == "register" else 0
            super().alloc(b)

    def shared_align(self, b: Buffer) -> int:
        return max(self.fragments.groups.align(b.name), self.bulk.aligned.get(b.name, 0))

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


def _without_bulk(s: Stmt) -> Stmt:
    """A statement without what an engine copies."""
    return transform(s, lambda x: None if isinstance(x, AsyncCopy) and x.bulk else x) or Seq(())


__all__ = ["NvptxKernel", "NvptxEmitter", "emit"]
