"""CPU features from Linux's ``/proc/cpuinfo``, under LLVM's names, without loading LLVM."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

TRIPLE = "x86_64-unknown-linux-gnu"

#: LLVM's name -> the kernel's (Documentation/arch/x86/cpuinfo.rst), where they differ
_NAMES = {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sahf": "lahf_lm",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "avxvnni": "avx_vnni",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}


def features(wanted: tuple[str, ...], path: Path = Path("/proc/cpuinfo")) -> dict[str, bool] | None:
    """Which of the features (LLVM's names) processor and system have; None where the kernel does not tell.

    The kernel lists only what it has enabled, the registers of AVX-512 among others.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        line = next(line for line in path.read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        return None
    flags = set(line.partition(":")[2].split())
    return {name: _NAMES.get(name, name) in flags for name in wanted}
