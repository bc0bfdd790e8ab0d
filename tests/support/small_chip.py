"""A chip of two memories and three engines, small enough to count its cycles by hand and to describe it wrongly."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from tilewright.targets.accelerator import Chip, ChipMemory, ComputeEngine, CopyEngine, Dim, Instruction, Operand
from tilewright.targets.accelerator.describe import ACCUMULATE, HOST, WRITE

ROWS = Operand("x", "rows", "f32", ("m", "n"))
ADD = Instruction(
    "add",
    "alu",
    (Dim("m", 16, levels=1), Dim("n", 4)),
    (ROWS, replace(ROWS, name="y"), replace(ROWS, name="sum", access=WRITE)),
    body=lambda x, y: x + y,
    cycles=lambda f: f.m,
)
MULTIPLY = Instruction(
    "mma",
    "mul",
    (Dim("m", 16, levels=1), Dim("n", 4), Dim("k", 4)),
    (
        Operand("acc", "sums", "i32", ("m", "n"), ACCUMULATE, dense=True),
        Operand("x", "rows", "i8", ("m", "k")),
        Operand("w", "rows", "i8", ("k", "n")),
    ),
    body=lambda acc, x, w: acc + x.astype(np.int32) @ w.astype(np.int32),
    cycles=lambda f: (4, f.m),
    latency=lambda f: 3,
)


@dataclass(frozen=True)
class Small(Chip):
    """`changed` replaces what a method gives."""

    changed: dict[str, Any] = field(default_factory=dict)

    name: ClassVar[str] = "small"

    def spaces(self):
        return self.changed.get("spaces", (ChipMemory("rows", 4096, word=16), ChipMemory("sums", 1024, word=16)))

    def copy_engines(self):
        load = CopyEngine("load", sources=(HOST,), targets=("rows",), latency=10, fill=True)
        store = CopyEngine("store", sources=("rows", "sums"), targets=(HOST,), latency=5)
        return self.changed.get("copies", (load, store))

    def compute_engines(self):
        return self.changed.get("computes", (ComputeEngine("alu"), ComputeEngine("mul", queue=2)))

    def instructions(self):
        return self.changed.get("instructions", (ADD, MULTIPLY))


def small(**changed):
    return Small(changed)
