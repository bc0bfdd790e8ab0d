"""Machines as they are described to the schedule rules, pinned: what a test expects of one holds on every other.

`pytest --machine NAME` takes the machine that runs the tests for one of them, without the features that it does not
have. Tests that look at code only may compile for any of them; those that run code ask `runs_here`."""

from __future__ import annotations

from dataclasses import replace

from tilewright.targets.cpu.host import CpuDescription, describe_x86, host

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

MACHINES: dict[str, CpuDescription] = {
    "avx2": describe_x86(_LINUX, _AVX2, l1_bytes=32 * K, l2_bytes=256 * K, l3_bytes=8 * M, cores=4),
    "zen4": describe_x86(_LINUX, _ZEN4, l1_bytes=32 * K, l2_bytes=1 * M, l3_bytes=32 * M, cores=8),
    "zen5": describe_x86(_LINUX, (*_ZEN4, "avxvnni"), l1_bytes=48 * K, l2_bytes=1 * M, l3_bytes=32 * M, cores=8),
}


def runs_here(machine: CpuDescription) -> bool:
    """Whether code for a machine can run in this process."""
    return machine.arch == host().arch and not machine.missing_on(host())


def here_with_caches_of(name: str) -> CpuDescription:
    """This machine's instructions with another one's caches and cores: code for it runs here."""
    m = MACHINES[name]
    return replace(host(), l1_bytes=m.l1_bytes, l2_bytes=m.l2_bytes, l3_bytes=m.l3_bytes, cores=m.cores)
