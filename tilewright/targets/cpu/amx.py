"""Intel's AMX: the instructions on tile registers, and whether this process may use them.

`emit_tiles` emits them. Linux lets a process use the registers on request only (`granted`).
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from ...schedule.machine import TileProduct

if TYPE_CHECKING:
    from .description import CpuDescription

TILES = {
    t.name: t
    for t in (
        TileProduct("amx_bf16", "bf16", ("f", "f")),
        TileProduct("amx_us", "i8", ("u", "s")),
        TileProduct("amx_ss", "i8", ("s", "s")),
        TileProduct("amx_su", "i8", ("s", "u")),
        TileProduct("amx_uu", "i8", ("u", "u")),
    )
}
INTRINSICS = {name: "tdpbf16ps" if name == "amx_bf16" else f"tdpb{name[4:]}d" for name in TILES}
FEATURES = ("amx-tile", "amx-bf16", "amx-int8")
#: what Linux calls the request, and the registers
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def tile_products(description: CpuDescription) -> tuple[TileProduct, ...]:
    """Those that a processor has."""
    have = set(description.features)
    if description.arch != "x86_64" or "amx-tile" not in have or description.vector_bytes < 64:
        return ()
    return tuple(t for t in TILES.values() if need(t) in have)


def need(product: TileProduct) -> str:
    """The feature that has an instruction, as LLVM calls it."""
    return {"bf16": "amx-bf16", "i8": "amx-int8"}[product.dtype]


@lru_cache(maxsize=1)
def granted() -> bool:
    """Ask the system for the tile registers, for all threads of this process; whether it grants them.

    Without the request the first instruction ends the process.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return False
    call.restype = ctypes.c_long
    arguments = (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return call(*(ctypes.c_long(a) for a in arguments)) == 0
