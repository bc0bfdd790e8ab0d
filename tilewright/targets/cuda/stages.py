"""The part of the pipeline that is this target's: loop nests to LLVM IR to PTX with how it is launched."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...codegen.kernel_info import call_names, kernel_info
from ...codegen.llvm.machine import LlvmMachine
from ...codegen.llvm.pool import Job, compile_many
from ...codegen.nvptx.assemble import ptx, shared_at_launch
from ...codegen.nvptx.bulk import TensorMap
from ...codegen.nvptx.emitter import Emitted, emit
from ...support.errors import UsageError

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

ALONE = "all of its work is done by one thread: no loop is bound to grid, block, warp or lane"


@dataclass(frozen=True)
class Launched:
    """A kernel as a package has it: its name in the PTX, blocks, threads of a block, bytes of shared memory beside
    those that the PTX declares, and the tensor maps that it takes behind its arguments."""

    name: str
    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    maps: tuple[TensorMap, ...] = ()

    @property
    def scratch_bytes(self) -> int:
        """Local memory is the driver's."""
        return 0

    def to_json(self) -> dict[str, Any]:
        """All but the PTX."""
        maps = {"maps": [asdict(m) for m in self.maps]} if self.maps else {}
        return {"grid": self.grid, "block": self.block, "shared": self.shared, **maps}

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = json.loads(data)
        maps = tuple(map(TensorMap.from_json, found["maps"]))
        return cls(found["name"], found["ptx"], tuple(found["grid"]), tuple(found["block"]), found["shared"], maps)


def job(name: str, emitted: Emitted, nodes: tuple[str, ...] = ()) -> Job:
    """The work of a process that makes PTX of a kernel."""
    return Job(name, json.dumps(asdict(emitted)), nodes, f"{__name__}:make")


def make(text: str, machine: LlvmMachine) -> tuple[Launched, bytes, dict[str, Any]]:
    """What such a process does; see `codegen.llvm.pool.Job`."""
    start = time.perf_counter()
    emitted = Emitted.from_json(json.loads(text))
    launch = emitted.launch
    shared = shared_at_launch(emitted)
    made = Launched(emitted.name, ptx(emitted, machine), launch.grid, launch.block, shared, emitted.maps)
    data = made.to_bytes()
    return made, data, {"llvm_seconds": time.perf_counter() - start, "bytes": len(data)}


def emit_kernels(state: Any) -> None:
    """Nests -> LLVM IR, with what the program needs to know of each kernel."""
    if state.nests and not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    for name, nest in state.nests.items():
        made = emit(nest, state.description)
        unmet = (ALONE,) if made.launch.threads == 1 and made.launch.grid == (1, 1, 1) else ()
        state.emitted[name] = made.text
        state.infos[name] = replace(kernel_info(nest, 0, unmet), parallel=False, pieces=False)
        state.objects[name] = json.dumps(asdict(made)).encode()  # until it is assembled


def emitted_text(state: Any) -> str:
    return "\n".join(state.emitted.values())


def assemble_kernels(state: Any) -> None:
    """LLVM IR -> PTX, in processes that LLVM may end."""
    names = call_names(state.module)
    jobs = [job(k, Emitted.from_json(json.loads(data)), names.get(k, ())) for k, data in state.objects.items()]
    workers = state.options.job_count
    for done in compile_many(jobs, state.description.llvm, workers=workers, progress=state.kernel_done):
        state.objects[done.symbol] = done.data
        state.stats[done.symbol] = {k: v for k, v in done.stats.items() if k.endswith("seconds")}
    state.names = names


def ptx_text(state: Any) -> str:
    return "\n".join(Launched.from_bytes(data).ptx for data in state.objects.values())
