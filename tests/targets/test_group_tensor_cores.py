"""The rule for groups of warps: products in the emulator against NumPy, and what NVIDIA's assembler says of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.cuda_emulator import needs_compiler, run
from support.cuda_matmul import half
from support.ptxas import assembled

from tilewright import te
from tilewright.codegen.kernel_info import pack_array
from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.schedule.finish import finish
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import group_tensor_cores
from tilewright.targets.cuda.description import SM_80, SM_90A
from tilewright.tensor.evaluate import NUMPY

#: one with so few multiprocessors that small products have tiles enough
SMALL = replace(SM_90A, multiprocessors=1)


def product(m: int, n: int, k: int, dtype: str = "bf16", turned: bool = False):
    """A kernel; a second factor that is `turned` has a row for each column, and else it is a constant."""
    text = half(dtype).format(m=m, n=n, k=k)
    if turned:
        text = text.replace("b[k, j]", "b[j, k]").replace(f"b: {dtype}[{k}, {n}]", f"b: {dtype}[{n}, {k}]")
    return te.from_nest(text, constants=[] if turned else ["b"])


CASES = [
    (product(100, 72, 192, "f16", True), {}),
    (product(128, 136, 128), {"tile": (128, 128, 64, 128, 64, 2)}),
]


@needs_compiler
@pytest.mark.parametrize("kernel, decisions", CASES)
def test_products_are_right_and_spill_nothing(kernel, decisions, tmp_path):
    made = group_tensor_cores.apply(kernel, SMALL, decisions)
    assert not isinstance(made, str), made
    nest = finish(made.nest())
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(p.shape).astype(NUMPY[p.dtype]) for p in kernel.params[:2])
    emitted = emit(nest, SMALL)
    laid = pack_array(b, nest.packs["b"]) if nest.packs else b
    found = run(nest, emitted, {"a": a, "b": laid})["c"]
    want = a.astype(np.float64) @ (b if nest.packs else b.T).astype(np.float64)
    assert np.abs(found - want).max() <= 2e-6 * np.abs(want).max()
    text = ptx(emitted, SMALL.llvm)
    assert "wgmma.mma_async" in text and "cp.async.cg.shared.global" in text and "mma.sync" not in text
    taken = assembled(text, "sm_90a", tmp_path)
    assert (taken.spilled, taken.stack) == (0, 0)


def test_a_large_product_has_two_groups_of_64_rows_by_256_columns(tmp_path):
    made = schedule(product(4096, 4096, 4096), SM_90A)
    assert made.rule == "group_tensor_cores"
    assert made.schedule.plan.startswith("tiles of 128 x 256 on 2 groups of warps, 64 x 256 each")
    taken = assembled(ptx(emit(made.nest, SM_90A), SM_90A.llvm), "sm_90a", tmp_path)
    assert (taken.spilled, taken.stack) == (0, 0) and taken.registers <= 200


def test_why_a_product_is_left_to_warps():
    def refused(kernel, machine=SM_90A) -> str:
        return str(group_tensor_cores.apply(kernel, machine))

    assert refused(product(128, 128, 128), SM_80) == "the machine has no groups of warps"
    assert refused(product(128, 768, 768)) == "its tiles are too few for groups of warps"
    assert "no multiple of 64" in refused(product(4096, 4096, 96))
    variable = te.from_nest(half("bf16").format(m=4096, n=4096, k=64))
    assert refused(variable) == "its factors do not lie along the sum"
    assert refused(product(1, 4096, 4096)) == "one of its factors is a vector"
