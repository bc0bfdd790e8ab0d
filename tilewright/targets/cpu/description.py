"""The machine record of a CPU, and detection of this one's features, caches and cores.

`CpuDescription` is plain data, so that another CPU can be described by hand:

    CpuDescription("aarch64-unknown-linux-gnu", "neoverse-n1", ("neon",), vector_bytes=16, vector_registers=32)
"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...graph.machine_costs import RegionCosts, SumTile
from ...schedule.machine import Axis, PairProduct, TileProduct
from ...support.errors import PackageError, UsageError
from ...support.limits import usable_cores
from ...support.options import ENVIRONMENT, get
from ..processor import Processor
from . import cpuinfo

#: The features that can change the code we emit. Others (virtualization, cryptography, random numbers ...) are left
#: out, so that a package or a cached kernel does not depend on them.
X86_FEATURES = (
    *("cmov", "cx8", "cx16", "sahf", "popcnt", "movbe", "lzcnt", "bmi", "bmi2", "fma", "f16c"),
    *("sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "avxvnni", "gfni"),
    *("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi", "avx512vbmi2"),
    *("avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16", "avx512fp16"),
    *("amx-tile", "amx-int8", "amx-bf16"),
)
ARM_FEATURES = ("neon", "fp-armv8", "fullfp16", "dotprod", "lse", "rdm", "bf16", "i8mm", "sve", "sve2", "sme")

_LEVEL3 = {"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt", "cx16"}
_LEVEL4 = _LEVEL3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


#: what loops may be bound to
AXES = (Axis("thread"), Axis("lanes", kind="vector"))


@dataclass(frozen=True)
class CpuDescription(Processor):
    """A CPU that may be this one."""

    # what was measured with vectors of 32 bytes and more only; the numbers are those of vectors of 64

    @property
    def winograd(self) -> bool:
        return self.vector_bytes >= 32

    @property
    def image_lanes(self) -> int:
        return self.vector_bytes // 4 if self.vector_bytes >= 32 else 0

    @property
    def split_sums(self) -> SumTile | None:
        return SumTile(lanes=16, vectors=32, rows=16, in_flight=8) if self.vector_bytes >= 32 else None

    @property
    def split_windows(self) -> RegionCosts | None:
        costs = RegionCosts(lanes=16, tap=6, padded=16, joined=12, kernel=100_000)
        return costs if self.vector_bytes >= 32 else None

    @property
    def row_chains(self) -> bool:
        return self.vector_bytes >= 32

    @property
    def axes(self) -> tuple[Axis, ...]:
        return AXES

    @property
    def pairs(self) -> PairProduct | None:
        from .bf16 import pair_product

        return pair_product(self)

    @property
    def tiles(self) -> tuple[TileProduct, ...]:
        from .amx import tile_products

        return tile_products(self)

    @property
    def activations(self) -> str:
        return "ui8" if self.dot_products and self.dot_products[0].signs[0] == "u" else "i8"

    def llvm_features(self) -> str:
        """The feature string for LLVM: what is there with ``+``, what an x86 cpu name may imply without its
        being there with ``-``."""
        if self.arch != "x86_64":
            return super().llvm_features()
        parts = [f"{'+' if f in self.features else '-'}{f}" for f in X86_FEATURES]
        if self.vector_bytes == 64:
            parts.append("-prefer-256-bit")  # vector widths are chosen by the schedule, not by LLVM's tuning
        return ",".join(parts)

    def missing_on(self, other: CpuDescription) -> tuple[str, ...]:
        """The features this description has and the other has not."""
        return tuple(f for f in self.features if f not in other.features)


def describe_x86(triple: str, features: tuple[str, ...], **more: Any) -> CpuDescription:
    """An x86-64 CPU from its features. The cpu name is picked by them: the one the processor reports may be wrong."""
    have = set(features)
    wide = have >= _LEVEL4
    if "amx-tile" in have:
        cpu = "sapphirerapids"
    else:
        cpu = "x86-64-v4" if wide else "x86-64-v3" if have >= _LEVEL3 else "x86-64"
    vector = 64 if wide else 32 if "avx2" in have else 16
    return CpuDescription(triple, cpu, features, vector_bytes=vector, vector_registers=32 if wide else 16, **more)


def describe_arm(triple: str, features: tuple[str, ...], **more: Any) -> CpuDescription:
    """An aarch64 CPU; NEON is always there."""
    cpu = "apple-m1" if "apple" in triple else "generic"
    return CpuDescription(triple, cpu, features, vector_bytes=16, vector_registers=32, **more)


def check_runs_here(description: CpuDescription) -> None:
    """PackageError if code for that CPU cannot run in this process; it names the features that are missing."""
    here = host()
    hint = "compile the model again on this machine"
    if description.arch != here.arch or description.triple.split("-")[1:3] != here.triple.split("-")[1:3]:
        raise PackageError(f"made for {description.triple}, this machine is {here.triple}", stage="load", hint=hint)
    missing = description.missing_on(here)
    if missing:
        raise PackageError(f"this machine lacks CPU features: {', '.join(missing)}", stage="load", hint=hint)


@lru_cache(maxsize=1)
def host() -> CpuDescription:
    """The CPU this process runs on, or what TILEWRIGHT_MACHINE says it is to be taken for (`described`).

    >>> host().vector_bytes in (16, 32, 64)
    True
    """
    path = get("TILEWRIGHT_MACHINE")
    return _detected() if path is None else described(path, _detected())


def described(path: Path, here: CpuDescription) -> CpuDescription:
    """A description of `here` with what a JSON file has in place of some of it: what was compiled for another machine's
    caches, or without some of the features, runs here too. UsageError for a file that is none."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        known = {n: v for n, v in asdict(here).items() if n in ("l1_bytes", "l2_bytes", "l3_bytes", "cores")}
        sizes = {n: given.pop(n, v) for n, v in known.items()}
        wanted = given.pop("features", list(here.features))
        if given or not all(type(n) is int and n > 0 for n in sizes.values()) or type(wanted) is not list:
            raise ValueError(f"unknown field {', '.join(given)}" if given else "sizes are positive integers")
    except (OSError, ValueError, AttributeError, TypeError) as e:
        raise UsageError(
            f"cannot read a machine from {str(path)!r}: {e}", hint=ENVIRONMENT["TILEWRIGHT_MACHINE"].doc
        ) from None
    features = tuple(f for f in here.features if f in wanted)
    if here.arch == "x86_64":
        return describe_x86(here.triple, features, **sizes)
    return replace(here, features=features, **sizes)


def _detected() -> CpuDescription:
    triple, found = _triple(), host_features()
    l1, l2, l3 = _caches()
    more: dict[str, Any] = {"l1_bytes": l1, "l2_bytes": l2, "l3_bytes": l3, "cores": usable_cores()}
    arch = triple.split("-")[0]
    if arch in ("x86_64", "amd64"):
        return describe_x86(triple, tuple(f for f in X86_FEATURES if found.get(f) and _usable(f)), **more)
    if arch in ("aarch64", "arm64"):
        return describe_arm(triple, tuple(f for f in ARM_FEATURES if found.get(f)), **more)
    return CpuDescription(triple, "generic", (), **more)


def host_features() -> dict[str, bool]:
    """What this processor and system have, by LLVM's names; from the system if it tells, as LLVM's library is large."""
    told = cpuinfo.features(X86_FEATURES)
    if told is not None:
        return told
    from llvmlite import binding as llvm

    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:  # LLVM knows no way to ask this system
        return {}


def _triple() -> str:
    if cpuinfo.features(()) is not None:
        return cpuinfo.TRIPLE
    from llvmlite import binding as llvm

    return llvm.get_default_triple()


def _usable(feature: str) -> bool:
    """Whether this process may use a feature that the processor has: the registers of AMX have to be asked for."""
    if not feature.startswith("amx-"):
        return True
    from .amx import granted

    return granted()


def _caches() -> tuple[int, int, int]:
    """Bytes of the first-level data cache, the second and the third level of core 0, where the system tells."""
    sizes = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}
    if platform.system() == "Darwin":
        sizes.update(_caches_darwin())
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind = (index / "type").read_text().strip()
            level, size = int((index / "level").read_text()), _bytes((index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified") and level in sizes and size:
            sizes[level] = size
    return sizes[1], sizes[2], sizes[3]


def _bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([KMG]?)B?", text).groups()  # type: ignore[union-attr]
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def _caches_darwin() -> dict[int, int]:
    import ctypes
    import ctypes.util

    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    found = {}
    for level, name in ((1, b"hw.perflevel0.l1dcachesize"), (2, b"hw.perflevel0.l2cachesize")):
        value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
        if libc.sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0) == 0 and value.value > 0:
            found[level] = value.value
    return found
