"""Two chips of one file, as a designer who uses the package would write them: an array like Gemmini's, a vector DSP."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.targets.accelerator import Chip, ChipMemory, ComputeEngine, CopyEngine, Dim, Field, Instruction, Operand
from tilewright.targets.accelerator.describe import ACCUMULATE, HOST, WRITE
from tilewright.targets.accelerator.semantics import multiply_high

i32 = np.int32


def mma(acc, x, w):
    return acc + x.astype(i32) @ w.astype(i32)


def depthwise(acc, x, w):
    return acc + x.astype(i32) * w.astype(i32)


def requantize(acc, bias, multiplier, shift, *, left, offset, even, low, high):
    value = (acc + bias) << left
    upper = multiply_high(value, multiplier)
    scaled = upper >> shift
    exact = (value * multiplier == 0) & (scaled << shift == upper)
    down = (exact & (scaled & 3 == 1)).astype(i32) * even
    return np.minimum(np.maximum((scaled + offset - down) >> 1, low), high).astype(np.int8)


def add(a, b, *, ma, mb, bias, half, shift, zero, low, high):
    s = a.astype(i32) * ma + b.astype(i32) * mb + bias
    return np.minimum(np.maximum(((s + half + ((s >> shift) & 1)) >> shift) + zero, low), high).astype(np.int8)


ADD = (
    Field("ma", 24),
    Field("mb", 24),
    Field("bias", 32),
    Field("half", 31, signed=False),
    Field("shift", 5, signed=False),
    Field("zero", 9),
    Field("low", 8),
    Field("high", 8),
)
REQ = (
    Field("left", 5, signed=False),
    Field("offset", 10),
    Field("even", 1, signed=False),
    Field("low", 8),
    Field("high", 8),
)


def to_bytes(engine, rows, n, acc, params, out, cycles, latency=8):
    return Instruction(
        "requantize",
        engine,
        dims=(rows, Dim("n", n)),
        operands=(
            Operand("acc", acc, "i32", ("m", "n"), dense=True),
            *(Operand(p, params, "i32", ("n",)) for p in ("bias", "multiplier", "shift")),
            Operand("y", out, "i8", ("m", "n"), WRITE),
        ),
        fields=REQ,
        body=requantize,
        cycles=cycles,
        latency=lambda f: latency,
    )


@dataclass(frozen=True)
class Gem(Chip):
    array: int = 16
    spad_kb: int = 256
    acc_kb: int = 64
    bus: int = 16

    name: ClassVar[str] = "gem"
    doc: ClassVar[str] = "a Gemmini-like array of 16 x 16"
    clock: ClassVar[float] = 1e9

    def spaces(self):
        n = self.array
        return (
            ChipMemory("spad", self.spad_kb << 10, word=n, banks=4, energy=0.5),
            ChipMemory("accs", self.acc_kb << 10, word=4 * n, banks=2, energy=0.9),
            ChipMemory("params", 256 * n, word=4 * n, energy=0.3),
        )

    def copy_engines(self):
        bus = {"bytes_per_cycle": self.bus, "latency": 40, "energy": 20.0, "fill": True}
        return (
            CopyEngine("mvin", sources=(HOST,), targets=("spad", "params"), **bus),
            CopyEngine("mvout", sources=("spad",), targets=(HOST,), **bus),
        )

    def compute_engines(self):
        return ComputeEngine("array", queue=8), ComputeEngine("post"), ComputeEngine("pooler")

    def instructions(self):
        n = self.array
        rows = Dim("m", 512, levels=3)

        def product(name, dims, x, w, body):
            return Instruction(
                name,
                "array",
                dims=(rows, *dims),
                operands=(
                    Operand("acc", "accs", "i32", ("m", "n"), ACCUMULATE, dense=True),
                    Operand("x", "spad", "i8", ("m", x)),
                    Operand("w", "spad", "i8", w),
                ),
                body=body,
                cycles=lambda f: (n, f.m),
                latency=lambda f: 2 * n + 2,
            )

        pool = Instruction(
            "max_pool",
            "pooler",
            dims=(rows, Dim("r", 4, levels=1), Dim("s", 4, levels=1), Dim("n", n)),
            operands=(Operand("x", "spad", "i8", ("m", "r", "s", "n")), Operand("y", "spad", "i8", ("m", "n"), WRITE)),
            body=lambda x: x.max(axis=2).max(axis=1),
            cycles=lambda f: f.m * f.r * f.s,
        )
        plus = Instruction(
            "add",
            "post",
            dims=(rows, Dim("n", n)),
            operands=(
                Operand("a", "spad", "i8", ("m", "n")),
                Operand("b", "spad", "i8", ("m", "n")),
                Operand("y", "spad", "i8", ("m", "n"), WRITE),
            ),
            fields=ADD,
            body=add,
            cycles=lambda f: 2 * f.m,
        )
        mean = Instruction(
            "colsum",
            "array",
            dims=(Dim("r", 512, levels=2), Dim("n", n)),
            operands=(Operand("acc", "accs", "i32", ("n",), ACCUMULATE), Operand("x", "spad", "i8", ("r", "n"))),
            body=lambda acc, x: acc + x.astype(i32).sum(axis=0, dtype=i32),
            cycles=lambda f: f.r,
        )
        return (
            product("mma", (Dim("n", n), Dim("k", n)), "k", ("k", "n"), mma),
            product("depthwise", (Dim("n", n),), "n", ("n",), depthwise),
            to_bytes("post", rows, n, "accs", "params", "spad", lambda f: max(f.m, 4)),
            plus,
            pool,
            mean,
        )


@dataclass(frozen=True)
class Dsp(Chip):
    lanes: int = 64
    local_kb: int = 32
    bus: int = 8

    name: ClassVar[str] = "dsp"
    doc: ClassVar[str] = "a vector DSP with dot products of 64 bytes"
    clock: ClassVar[float] = 4e8
    host_rate: ClassVar[float] = 2e8

    def spaces(self):
        return (
            ChipMemory("local", self.local_kb << 10, word=4, energy=0.3),
            ChipMemory("vregs", 32 * 4 * self.lanes, word=self.lanes, energy=0.1),
        )

    def copy_engines(self):
        return (
            CopyEngine("dma", sources=(HOST,), targets=("local",), bytes_per_cycle=self.bus, latency=30, fill=True),
            CopyEngine("out", sources=("local",), targets=(HOST,), bytes_per_cycle=self.bus, latency=30, fill=True),
        )

    def compute_engines(self):
        return ComputeEngine("mac"), ComputeEngine("alu")

    def instructions(self):
        n = self.lanes // 4
        rows = Dim("m", 32, levels=2)
        dot = Instruction(
            "vdot",
            "mac",
            dims=(rows, Dim("n", n), Dim("k", 4)),
            operands=(
                Operand("acc", "vregs", "i32", ("m", "n"), ACCUMULATE, dense=True),
                Operand("x", "local", "i8", ("m", "k")),
                Operand("w", "local", "i8", ("k", "n")),
            ),
            body=mma,
            cycles=lambda f: f.m,
        )
        plus = Instruction(
            "add",
            "alu",
            dims=(Dim("m", 64, levels=2), Dim("n", self.lanes)),
            operands=(
                Operand("a", "local", "i8", ("m", "n")),
                Operand("b", "local", "i8", ("m", "n")),
                Operand("y", "local", "i8", ("m", "n"), WRITE),
            ),
            fields=ADD,
            body=add,
            cycles=lambda f: 6 * f.m,
        )
        dw = Instruction(
            "vmac",
            "mac",
            dims=(rows, Dim("n", n)),
            operands=(
                Operand("acc", "vregs", "i32", ("m", "n"), ACCUMULATE, dense=True),
                Operand("x", "local", "i8", ("m", "n")),
                Operand("w", "local", "i8", ("n",)),
            ),
            body=depthwise,
            cycles=lambda f: f.m,
        )
        return dot, dw, to_bytes("alu", rows, n, "vregs", "local", "local", lambda f: 3 * f.m), plus
