"""This machine, and the same one with vectors of 32 bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.targets.cpu.host import host

HERE = host()
NARROW = replace(
    HERE,
    cpu="x86-64-v3",
    features=tuple(f for f in HERE.features if not f.startswith(("avx512", "amx"))),
    vector_bytes=32,
    vector_registers=16,
)
has_avx2 = pytest.mark.skipif("avx2" not in HERE.features, reason="needs AVX2")
