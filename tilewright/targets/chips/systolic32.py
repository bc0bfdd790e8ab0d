"""Chip description of systolic32: a 32 x 32 weight-stationary int8 systolic array (like Gemmini's), with requantization
and depthwise convolution.

Weights wait in the array while rows of activations stream through; sums of 32 bits gather in accumulators, from where
`requantize` brings them back to bytes (bias, scale, ReLU and ReLU6 by the limits). The array holds the weights of two
instructions, so that those of the next one arrive while rows still stream. `depthwise` uses the array's diagonal only:
each channel has a weight of its own.

    host --load--> weights, activations, params      outputs --store--> host
    weights, activations --mma, depthwise--> accumulators --requantize (with params)--> outputs

The RTL in rtl/ runs the same programs in the same number of cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..accelerator import Chip, ChipMemory, ComputeEngine, CopyEngine, Dim, Field, Instruction, Operand
from ..accelerator.describe import ACCUMULATE, HOST, WRITE
from ..accelerator.semantics import multiply_high


def _mma(acc: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return acc + x.astype(np.int32) @ w.astype(np.int32)


def _depthwise(acc: np.ndarray, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return acc + x.astype(np.int32) * w.astype(np.int32)


def _requantize(
    acc: np.ndarray,
    bias: np.ndarray,
    multiplier: np.ndarray,
    shift: np.ndarray,
    *,
    left: int,
    offset: int,
    even: int,
    low: np.ndarray,
    high: int,
) -> np.ndarray:
    """``clip(round((acc + bias) * multiplier / 2**(33 + shift)) + zero)`` with ``offset = 2 * zero + 1``.

    A shift is 0 to 31. Exact halves go up, or with `even` to the even neighbour: `scaled` is twice the quotient, so a
    half above an even number ends in 01, and nothing was cut off below it.
    """
    value = (acc + bias) << left
    upper = multiply_high(value, multiplier)
    scaled = upper >> shift
    exact = (value * multiplier == 0) & (scaled << shift == upper)
    down = (exact & (scaled & 3 == 1)).astype(np.int32) * even
    return np.minimum(np.maximum((scaled + offset - down) >> 1, low), high).astype(np.int8)


@dataclass(frozen=True)
class Systolic32(Chip):
    """The array's size, kilobytes of its memories, and bytes that the bus brings in a cycle are open to exploration."""

    array: int = 32
    weight_kb: int = 128
    activation_kb: int = 64
    accumulator_kb: int = 64
    bus: int = 32
    bus_latency: int = 32

    name: ClassVar[str] = "systolic32"
    doc: ClassVar[str] = "a 32 x 32 array for bytes, weights stationary, 128 KB for them, 64 KB for activations"
    clock: ClassVar[float] = 5e8

    def spaces(self) -> tuple[ChipMemory, ...]:
        n = self.array
        return (
            ChipMemory("weights", self.weight_kb << 10, word=n, energy=0.6),
            ChipMemory("activations", self.activation_kb << 10, word=n, energy=0.5),
            ChipMemory("accumulators", self.accumulator_kb << 10, word=4 * n, banks=2, energy=0.9),
            ChipMemory("params", 256 * n, word=4 * n, energy=0.3),
            ChipMemory("outputs", 512 * n, word=n, energy=0.3),
        )

    def copy_engines(self) -> tuple[CopyEngine, ...]:
        bus: dict[str, Any] = {"bytes_per_cycle": self.bus, "setup": 0, "queue": 64, "fill": True, "energy": 20.0}
        loaded, delay = ("weights", "activations", "params"), self.bus_latency
        return (
            CopyEngine("load", sources=(HOST,), targets=loaded, latency=delay + 1, **bus),
            CopyEngine("store", sources=("outputs",), targets=(HOST,), latency=delay + 2, **bus),
        )

    def compute_engines(self) -> tuple[ComputeEngine, ...]:
        return ComputeEngine("array", queue=8), ComputeEngine("post")

    def instructions(self) -> tuple[Instruction, ...]:
        rows = Dim("m", min(512, (self.accumulator_kb << 10) // (4 * self.array)), levels=3)
        return *self._products(rows), self._to_bytes(rows)

    def _products(self, rows: Dim) -> tuple[Instruction, Instruction]:
        n = self.array

        def product(
            name: str,
            dims: tuple[Dim, ...],
            x: str,
            w: tuple[str, ...],
            body: Callable[..., np.ndarray],
            energy: Callable[[Any], float],
        ) -> Instruction:
            return Instruction(
                name,
                "array",
                dims=(rows, *dims),
                operands=(
                    Operand("acc", "accumulators", "i32", ("m", "n"), ACCUMULATE, dense=True),
                    Operand("x", "activations", "i8", ("m", x)),
                    Operand("w", "weights", "i8", w),
                ),
                body=body,
                cycles=lambda f: (n, f.m),  # weights in (one row, to the diagonal, takes as long), then rows
                latency=lambda f: 2 * n + 4,  # through the array, and out of it
                energy=energy,
            )

        return (
            product("mma", (Dim("n", n), Dim("k", n)), "k", ("k", "n"), _mma, lambda f: 0.2 * f.m * f.n * f.k),
            product("depthwise", (Dim("n", n),), "n", ("n",), _depthwise, lambda f: 0.2 * f.m * f.n),
        )

    def _to_bytes(self, rows: Dim) -> Instruction:
        return Instruction(
            "requantize",
            "post",
            dims=(rows, Dim("n", self.array)),
            operands=(
                Operand("acc", "accumulators", "i32", ("m", "n"), dense=True),
                Operand("bias", "params", "i32", ("n",)),
                Operand("multiplier", "params", "i32", ("n",)),
                Operand("shift", "params", "i32", ("n",)),
                Operand("y", "outputs", "i8", ("m", "n"), WRITE, dense=True),
            ),
            fields=(
                Field("left", 5, signed=False),
                Field("offset", 10),
                Field("even", 1, signed=False),
                Field("low", 8),
                Field("high", 8),
            ),
            body=_requantize,
            cycles=lambda f: max(f.m, 4),  # params come in beside the rows before
            latency=lambda f: 10,
            energy=lambda f: 3.0 * f.m * f.n,
        )

    def area(self) -> float:
        """Rough numbers of a 16 nm process: 600 um2 a multiplier with its registers, 0.9 mm2 a megabyte."""
        kilobytes = self.weight_kb + self.activation_kb + self.accumulator_kb
        return 600e-6 * self.array**2 + 0.9 / 1024 * kilobytes + 0.05


CHIP = Systolic32
