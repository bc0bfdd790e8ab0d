"""Chip description of outer4: a 4 x 4 output-stationary float32 array, and a vector engine beside it.

The array multiplies float32 or bfloat16 and keeps 4 x 4 sums in its own registers while columns of one operand and rows
of the other pass (output-stationary). The vector unit adds, takes the maximum with zero, and makes softmax of rows.

    host --load--> scratch --mma--> sums --drain--> scratch --store--> host
                   scratch --add, relu, softmax--> scratch
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..accelerator import Chip, ChipMemory, ComputeEngine, CopyEngine, Dim, Instruction, Operand
from ..accelerator.describe import ACCUMULATE, HOST, WRITE


def _mma(acc: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return acc + x @ w


def _mma_bf16(acc: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return acc + x.astype(np.float32) @ w.astype(np.float32)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Outer4(Chip):
    """`scratch_kb` of memory for operands and results."""

    array: int = 4
    scratch_kb: int = 32
    bus: int = 8

    name: ClassVar[str] = "outer4"
    doc: ClassVar[str] = "a 4 x 4 array for float32 and bfloat16, sums stationary, with a unit for rows"
    clock: ClassVar[float] = 2e8
    host_rate: ClassVar[float] = 5e7

    def spaces(self) -> tuple[ChipMemory, ...]:
        word = 4 * self.array
        return (
            ChipMemory("scratch", self.scratch_kb << 10, word=word, banks=4, energy=0.4),
            ChipMemory("sums", 64 * word * self.array, word=word, energy=0.2),
        )

    def copy_engines(self) -> tuple[CopyEngine, ...]:
        bus: dict[str, Any] = {"bytes_per_cycle": self.bus, "latency": 16, "energy": 15.0}
        return (
            CopyEngine("load", sources=(HOST,), targets=("scratch",), fill=True, **bus),
            CopyEngine("store", sources=("scratch",), targets=(HOST,), fill=True, **bus),
        )

    def compute_engines(self) -> tuple[ComputeEngine, ...]:
        return ComputeEngine("array"), ComputeEngine("vector")

    def instructions(self) -> tuple[Instruction, ...]:
        n, rows = self.array, Dim("m", 512, levels=2)
        deep = Dim("k", 1024)

        def product(name: str, dtype: str, body: Callable[..., np.ndarray]) -> Instruction:
            return Instruction(
                name,
                "array",
                dims=(Dim("m", n, levels=2), Dim("n", n), deep),
                operands=(
                    Operand("acc", "sums", "f32", ("m", "n"), ACCUMULATE, dense=True),
                    Operand("x", "scratch", dtype, ("m", "k")),
                    Operand("w", "scratch", dtype, ("k", "n")),
                ),
                body=body,
                cycles=lambda f: f.k,
                latency=lambda f: 2 * n,
                energy=lambda f: 1.5 * f.m * f.n * f.k,
            )

        def on_rows(
            name: str, inputs: str, body: Callable[..., np.ndarray], cycles: Callable[[Any], int], columns: int
        ) -> Instruction:
            reads = [Operand(x, "scratch", "f32", ("m", "n")) for x in inputs]
            y = Operand("y", "scratch", "f32", ("m", "n"), WRITE)
            return Instruction(
                name, "vector", (rows, Dim("n", columns)), (*reads, y), body, cycles, latency=lambda f: 4
            )

        drain = Instruction(
            "drain",
            "vector",
            dims=(Dim("m", n, levels=2), Dim("n", n)),
            operands=(
                Operand("acc", "sums", "f32", ("m", "n"), dense=True),
                Operand("y", "scratch", "f32", ("m", "n"), WRITE),
            ),
            body=lambda acc: acc,
            cycles=lambda f: f.m,
        )
        return (
            product("mma", "f32", _mma),
            product("mma_bf16", "bf16", _mma_bf16),
            drain,
            on_rows("add", "ab", lambda a, b: a + b, lambda f: f.m * -(-f.n // n), 1024),
            on_rows("relu", "x", lambda x: np.maximum(x, np.float32(0)), lambda f: f.m * -(-f.n // n), 1024),
            on_rows("softmax", "x", _softmax, lambda f: 3 * f.m * -(-f.n // n) + 20, 1024),
        )


CHIP = Outer4
