"""Level 4 -> 5: lowers a finished loop nest to LLVM IR for AMD GPUs: what they have beyond `gpu_llvm.emitter`.

A warp is what AMD calls a wavefront, of 32 or 64 threads, shared memory is its LDS. Kernels take pointers, 8 bytes
each, one behind the other, and nothing else: no hidden arguments, and no dynamic LDS.
"""

from __future__ import annotations

from ...schedule.machine import Machine
from ...schedule.nest import Barrier, Nest
from ..gpu_llvm import emitter as gpu
from ..gpu_llvm.emitter import GpuLlvmKernel
from ..gpu_llvm.family import Family

_NUMBERS = {f"grid.{d}": f"llvm.amdgcn.workgroup.id.{d}" for d in "xyz"}
_NUMBERS |= {f"block.{d}": f"llvm.amdgcn.workitem.id.{d}" for d in "xyz"}
#: 5 as ROCm has known it from its version 5.3 on
_CODE_OBJECT_VERSION = 500
AMD = Family(
    "AMD GPUs",
    _NUMBERS,
    'define amdgpu_kernel void @{name}({params}) "amdgpu-flat-work-group-size"="{threads},{threads}"'
    ' "amdgpu-implicitarg-num-bytes"="0" !reqd_work_group_size !0 {{',
    f"""
!llvm.module.flags = !{{{{!1}}}}
!0 = !{{{{i32 {{x}}, i32 {{y}}, i32 {{z}}}}}}
!1 = !{{{{i32 1, !"amdhsa_code_object_version", i32 {_CODE_OBJECT_VERSION}}}}}
""",
    own="ptr addrspace(5)",
)
#: lanes that `ds_swizzle` knows: it takes which bits of a lane's number count, and which are another's
_SWIZZLED = 32
#: scopes of barriers: what LLVM calls the threads that meet, and the intrinsic
_BARRIERS = {"block": ("workgroup", "llvm.amdgcn.s.barrier"), "warp": ("wavefront", "llvm.amdgcn.wave.barrier")}


def emit(nest: Nest, machine: Machine) -> GpuLlvmKernel:
    """LLVM IR of a finished nest; CompileError for what its loops and copies cannot be, UnsupportedError for sizes and
    operations that are missing here."""
    return AmdgpuEmitter(nest, machine, AMD).run()


class AmdgpuEmitter(gpu.GpuLlvmEmitter):
    def barrier(self, s: Barrier) -> None:
        """What was written before it is there for all who meet."""
        if s.scope not in _BARRIERS:
            super().barrier(s)
        scope, intrinsic = _BARRIERS[s.scope]
        self.text.line(f'fence syncscope("{scope}") release')
        self.text.call(intrinsic, "void", [])
        self.text.line(f'fence syncscope("{scope}") acquire')

    def shuffle(self, word: str, asked: str | int) -> str:
        """Lanes up to 31 apart exchange words without an address; else each gives the index of its source lane."""
        if isinstance(asked, int) and asked < _SWIZZLED:
            return self.text.call("llvm.amdgcn.ds.swizzle", "i32", [word, f"i32 {asked << 10 | _SWIZZLED - 1}"])
        lane = next(self.names[k] for k in self.launch_axes.kinds if self.launch_axes.is_lane(k))
        other = f"i32 {self.text.integer('xor', lane, str(asked))}" if isinstance(asked, int) else asked
        place = self.text.integer("shl", other.removeprefix("i32 "), "2")
        return self.text.call("llvm.amdgcn.ds.bpermute", "i32", [f"i32 {place}", word])

    def dot_product(self, name: str, signs: str, args: list[str]) -> tuple[str, list[str]]:
        """Of two signed or two unsigned factors, or of any (``sudot4``). A sum that does not fit wraps."""
        if name.startswith("sudot4"):
            x, w = (f"i1 {'true' if sign == 's' else 'false'}" for sign in signs)
            return "llvm.amdgcn.sudot4", [x, args[0], w, args[1], args[2], "i1 false"]
        return f"llvm.amdgcn.{signs[0]}dot4", [*args, "i1 false"]


__all__ = ["GpuLlvmKernel", "AmdgpuEmitter", "emit"]
