"""Products of few rows with weights in blocks of a few bits on GPUs: drawn sizes in the CUDA emulator and on a device
against NumPy, and what NVIDIA's assembler says of a decoder's."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
from support.cuda_emulator import needs_compiler, run
from support.gpus import device_of
from support.ptxas import assembled

import tilewright as tw
from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.driver.kernels import fused_kernels
from tilewright.ops.block_quantized import BlockMatmul
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.rules import schedule
from tilewright.targets.cuda.description import SM_80, SM_90A


@dataclass(frozen=True)
class Case:
    """`zero`: the dtype of zero points, "" for none."""

    rows: int
    columns: int
    blocks: int
    block: int = 32
    bits: int = 4
    zero: str = ""

    @property
    def text(self) -> str:
        k, words = self.blocks * self.block, self.block * self.bits // 32
        shapes = [f"{self.rows}x{k}xf32", f"{self.columns}x{self.blocks}x{words}xui32"]
        shapes += [f"{self.columns}x{self.blocks}x{t}" for t in ("f32", self.zero) if t]
        kinds, y = [f"tensor<{s}>" for s in shapes], f"tensor<{self.rows}x{self.columns}xf32>"
        names = ["%x", "%w", "%s", "%z"][: len(kinds)]
        params = ", ".join(f"{n}: {t}" for n, t in zip(names, kinds, strict=True))
        given = ", ".join(names)
        segments = f"operandSegmentSizes = array<i32: 1, 1, 1, {len(names) - 3}, 0, 0, 0>"
        return f"""func.func @main({params}) -> {y} {{
  %0 = "tw.block_matmul"({given}) {{bits = {self.bits} : i64, {segments}}} : ({", ".join(kinds)}) -> {y}
  %1 = "tw.relu"(%0) : ({y}) -> {y}
  return %1 : {y}
}}"""

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        g, words = np.random.default_rng(seed), self.block * self.bits // 32
        x = g.standard_normal((self.rows, self.blocks * self.block)).astype(np.float32)
        w = g.integers(0, 1 << 32, (self.columns, self.blocks, words), dtype=np.uint32)
        scale = g.uniform(0.01, 0.1, (self.columns, self.blocks)).astype(np.float32)
        zero = g.integers(0, 1 << self.bits, (self.columns, self.blocks))
        return [x, w, scale, *([zero.astype({"ui8": np.uint8, "f32": np.float32}[self.zero])] if self.zero else [])]

    def check(self, found: np.ndarray, inputs: list[np.ndarray]) -> None:
        x, *rest = inputs
        want = np.maximum(BlockMatmul.reference(x.astype(np.float64), *rest, bits=self.bits), 0)
        assert np.abs(found - want).max() <= 4e-6 * np.abs(want).max(), self


def drawn(seed: int) -> Case:
    r = random.Random(seed)
    bits = r.choice([2, 4, 4, 8])
    return Case(
        r.choice([1, 1, 2, 4]), r.choice([24, 65, 130]), r.choice([3, 8, 17, 40]), r.choice([16, 32, 128]), bits,
        r.choice(["", "ui8", "f32"]),
    )  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_cuda(seed):
    case = drawn(seed)
    (kernel,) = fused_kernels(case.text, target="cuda")
    made = schedule(kernel, SM_80)
    assert made.rule == "block_product"
    nest, inputs = made.nest, case.inputs(seed)
    assert illegal(nest.body, nest.buffers(), lambda: SM_80) is None
    names = [p.name for p in nest.params if p.name not in nest.outputs]
    signed = {np.dtype(np.uint32): np.int32, np.dtype(np.uint8): np.int8}
    given = [a.view(signed.get(a.dtype, a.dtype)) for a in inputs]
    case.check(run(nest, emit(nest, SM_80), dict(zip(names, given, strict=True)))[nest.outputs[0]], inputs)


@pytest.mark.parametrize("target", ["opencl", "vulkan"])
def test_devices(target):
    device_of(target)
    case = Case(1, 70, 9, zero="ui8")
    run = tw.compile(case.text, target=target)
    assert "block_product" in run.explain()
    inputs = case.inputs()
    case.check(run(*inputs)[0], inputs)


@pytest.mark.parametrize("bits", [4, 8])
def test_words_are_read_in_long_accesses_by_all_processors(bits, tmp_path):
    case = Case(1, 4096, 128, bits=bits)
    (kernel,) = fused_kernels(case.text, target="cuda:sm_90a")
    made = schedule(kernel, SM_90A)
    emitted = emit(made.nest, SM_90A)
    text = ptx(emitted, SM_90A.llvm)
    taken = assembled(text, "sm_90a", tmp_path)
    assert (taken.spilled, taken.stack) == (0, 0) and taken.registers <= 128
    assert re.search(r"ld\.global\.nc\.v4\.b32", text)
    assert emitted.launch.grid[0] >= 0.9 * SM_90A.multiprocessors
