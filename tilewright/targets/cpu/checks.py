"""What `tilewright doctor` says of this processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...support import limits
from ..base import Check
from . import amx
from . import description as here


def checks() -> Mapping[str, Callable[[], Check]]:
    """The checks by name; see `tilewright.targets.base.Target`."""
    return {"processor": _processor, "tile registers": _tiles}


def _processor() -> Check:
    cpu = here.host()
    text = (
        f"{cpu.triple}, {limits.usable_cores()} usable cores, vectors of {8 * cpu.vector_bytes} bits, "
        f"L1 {cpu.l1_bytes >> 10} KiB, L2 {cpu.l2_bytes >> 10} KiB; {' '.join(cpu.features)}"
    )
    if cpu.vector_bytes < 32 and cpu.arch == "x86_64":
        return Check("processor", "note", text, "without AVX2 the kernels are several times slower")
    return Check("processor", "ok", text)


def _tiles() -> Check:
    """AMX has to be there, and the system has to let this process use it."""
    found = [f for f, there in here.host_features().items() if f in amx.FEATURES and there]
    if not found:
        return Check("tile registers", "ok", "none (AMX): products of bf16 and of bytes use vectors")
    if not amx.granted():
        detail = f"{' '.join(found)}, but the system does not let this process use them: vectors are used instead"
        return Check(
            "tile registers", "note", detail, "Linux 5.16 and later grant them, unless a sandbox filters arch_prctl"
        )
    return Check("tile registers", "ok", f"{' '.join(found)}, granted by the system")
