"""Machines as they are described to the schedule rules, pinned: what a test expects of one holds on every other.

`pytest --machine NAME` takes the machine that runs the tests for one of them, without the features that it does not
have. Tests that look at code only may compile for any of them; those that run code ask `runs_here`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.schedule.machine import Axis, Machine, Memory
from tilewright.targets.cpu.description import CpuDescription, describe_arm, describe_x86, host

_AVX2 = (
    *("cmov", "cx8", "cx16", "sahf", "popcnt", "movbe", "lzcnt", "bmi", "bmi2", "fma", "f16c"),
    *("sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2"),
)
_ZEN4 = (
    *_AVX2,
    *("gfni", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi", "avx512vbmi2"),
    *("avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16"),
)
_LINUX = "x86_64-unknown-linux-gnu"
K, M = 1 << 10, 1 << 20
#: what rules look for in the features of a processor with vectors of 32 bytes, and of one with vectors of 64
RULES_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt", "cx16")
RULES_AVX512 = (*RULES_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
#: the least that a description with vectors of 64 bytes can say
AVX512F = CpuDescription(_LINUX, "x86-64-v4", ("avx512f",), vector_bytes=64, vector_registers=32, cores=2)
#: an aarch64 processor with vectors of 16 bytes and products of bytes (Neoverse N1, Cortex-A76): for code that is only
#: looked at, as `--machine` takes this machine for another of its own kind
NEON = describe_arm(
    "aarch64-unknown-linux-gnu",
    ("neon", "fp-armv8", "fullfp16", "dotprod", "lse", "rdm"),
    l1_bytes=64 * K,
    l2_bytes=1 * M,
    l3_bytes=32 * M,
    cores=8,
)
#: vectors of so many lanes, and no instruction of their own
LANES16, LANES4 = (CpuDescription(_LINUX, "x86-64", (), vector_bytes=4 * n) for n in (16, 4))

MACHINES: dict[str, CpuDescription] = {
    "avx2": describe_x86(_LINUX, _AVX2, l1_bytes=32 * K, l2_bytes=256 * K, l3_bytes=8 * M, cores=4),
    "zen4": describe_x86(_LINUX, _ZEN4, l1_bytes=32 * K, l2_bytes=1 * M, l3_bytes=32 * M, cores=8),
    "zen5": describe_x86(_LINUX, (*_ZEN4, "avxvnni"), l1_bytes=48 * K, l2_bytes=1 * M, l3_bytes=32 * M, cores=8),
}


class GpuLike(Machine):
    """Blocks of a grid; their threads in two dimensions, or warps of 32 lanes."""

    axes = (
        Axis("grid", (1 << 31) - 1, dims=("x", "y")),
        Axis("block", 1024, inside="grid", barriers=("block",), dims=("x", "y")),
        Axis("warp", 32, inside="grid", barriers=("block",)),
        Axis("lane", 32, inside="warp", barriers=("warp", "block")),
    )
    memories = (
        Memory("register", 1020, align=4),
        Memory("local", 512 * K, align=4),
        Memory("shared", 48 * K, ("block", "warp", "lane"), align=16),
        Memory("device", shared_by=("grid", "block", "warp", "lane"), align=16),
    )


class AcceleratorLike(Machine):
    """Engines, each with an array of multipliers and a memory for what they read; each multiplier has its own sums."""

    axes = (
        Axis("engine", 4, barriers=("all",)),
        Axis("array", 256, inside="engine", barriers=("array", "all"), dims=("row", "column")),
    )
    memories = (
        Memory("sram", 64 * K, ("engine", "array"), align=64),
        Memory("weights", 4 * K, ("array",), align=64),
        Memory("accumulator", 64),
    )


GPU, ACCELERATOR = GpuLike(), AcceleratorLike()


def runs_here(machine: CpuDescription) -> bool:
    """Whether code for a machine can run in this process."""
    return machine.arch == host().arch and not machine.missing_on(host())


def here_with_caches_of(name: str) -> CpuDescription:
    """This machine's instructions with another one's caches and cores: code for it runs here."""
    m = MACHINES[name]
    return replace(host(), l1_bytes=m.l1_bytes, l2_bytes=m.l2_bytes, l3_bytes=m.l3_bytes, cores=m.cores)


#: Schedules as for vectors of 64 bytes and of 32, in this machine's instructions: code for them runs here. LLVM makes
#: two of a vector that is too wide.
WIDE = replace(here_with_caches_of("zen4"), vector_bytes=64, vector_registers=32, cores=2)
NARROW = replace(
    here_with_caches_of("avx2"),
    cpu="x86-64-v3",
    features=tuple(f for f in host().features if not f.startswith(("avx512", "amx"))),
    vector_bytes=32,
    vector_registers=16,
    cores=2,
)
has_avx2 = pytest.mark.skipif("avx2" not in host().features, reason="needs AVX2")
has_avx512 = pytest.mark.skipif("avx512f" not in host().features, reason="needs AVX-512")
