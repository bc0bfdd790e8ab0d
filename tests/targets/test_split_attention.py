"""Attention of few queries with its keys in parts, and with its keys in pages: drawn sizes on devices and in the CUDA
emulator against float64, in every form; what NVIDIA's assembler says of a decoder's."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.attention_cases import ALLOWED, KINDS, Case, in_parts
from support.cuda_emulator import needs_compiler, run
from support.gpus import device_of
from support.ptxas import assembled

import tilewright as tw
from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.driver.kernels import fused_kernels
from tilewright.graph.machine_costs import GridCosts
from tilewright.graph.split_attention import best
from tilewright.ir.dialect import OPERATORS
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.targets.base import find
from tilewright.targets.cuda.description import MACHINES, SM_80, SM_90A
from tilewright.targets.gpu.describe import GpuDescription

#: the GPU, a case, and a word of what computes it
FORMS = {
    "threads that share keys": (SM_80, Case(1, 333, 32, 48, batch=2, group=3, mask="bk"), "teams"),
    "halves": (SM_80, Case(1, 500, 64, 64, heads=2, group=4, dtype="bf16"), "teams"),
    "tiles": (SM_80, Case(20, 130, 32, 24, mask="qk", causal=True, offset=100), "tiles"),
    "warps": (SM_80, Case(3, 300, 32, 48, group=4, causal=True, offset=290, dtype="f16"), "warps"),
    "groups": (SM_90A, Case(40, 256, 64, 64, dtype="f16"), "groups"),
}


def emulated(kernels, arrays, machine) -> np.ndarray:
    """The result of kernels that follow each other."""
    for kernel in kernels:
        nest = schedule(kernel, machine).nest
        assert illegal(nest.body, nest.buffers(), lambda: machine) is None
        names = [p.name for p in nest.params if p.name not in nest.outputs]
        found = run(nest, emit(nest, machine), dict(zip(names, arrays, strict=True)))
        arrays = [found[n] for n in nest.outputs]
    return arrays[0]


@needs_compiler
@pytest.mark.parametrize("form", FORMS)
def test_parts_in_every_form(form):
    machine, case, word = FORMS[form]
    kernels = in_parts(case.text, 3)
    made = [schedule(k, machine) for k in kernels]
    assert [m.rule for m in made] == ["block_attention", "attention_join"] and word in made[0].schedule.plan
    inputs = case.inputs()
    case.check(emulated(kernels, inputs, machine), inputs)


@pytest.mark.parametrize("target", ["opencl", "vulkan"])
def test_parts_on_devices(target):
    """The machine's record says how many parts; what follows joins what puts them together."""
    device_of(target)
    case = Case(1, 4096, 32, 32, heads=2, group=2)
    run = tw.compile(case.text, target=target)
    assert "attention_join" in run.explain() and "attention_parts" in run.explain()
    inputs = case.inputs()
    case.check(run(*inputs)[0], inputs)


def test_a_query_that_sees_no_key_of_any_part_gives_zeros():
    device_of("opencl")
    case = Case(2, 4096, 16, 16, mask="qk")
    inputs = case.inputs()
    inputs[3][0, 0, 1] = -np.inf
    found = tw.compile(case.text, target="opencl")(*inputs)[0]
    assert (found[0, 0, 1] == 0).all()
    case.check(found, inputs)


@pytest.mark.parametrize("lengths", [False, True])
def test_references_of_parts_put_together_are_those_of_the_whole(lengths):
    paged = Paged(Case(3, 0, 8, 5, batch=2, heads=2, group=2), 4, 5, lengths)
    inputs = [*paged.inputs(), *[None] * (2 - lengths)]
    own = {"scale": 0.25, "causal": False, "offset": 0}
    parts = OPERATORS["paged_attention_parts"].reference(*inputs, **own, parts=3)
    joined = OPERATORS["attention_join"].reference(*parts, to="f32")
    np.testing.assert_allclose(joined, OPERATORS["paged_attention"].reference(*inputs, **own), rtol=1e-5, atol=1e-6)


def test_parts_are_for_machines_with_idle_processors():
    h100 = SM_90A.grid_costs
    assert best(132 * 8, 8192, 512, 1000, h100) == 1  # enough heads
    assert best(8, 200, 512, 1000, h100) == 1  # too few keys for a second kernel
    few = best(8, 8192, 512, 1000, h100)
    assert few > 8 and 8 * few >= 2 * h100.processors
    assert best(8, 8192, 512, 1000, GridCosts(4, 1, (1, 1, 1), 100, 10, 1, 1)) == 1
    assert GpuDescription().grid_costs is not None


# ---- pages -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paged:
    """A case whose keys are `count` pages of `length` of each sequence, with so many positions as `inputs` draws."""

    case: Case
    length: int
    count: int
    lengths: bool = True

    @property
    def pages(self) -> int:
        return self.case.batch * self.count + 3

    @property
    def text(self) -> str:
        c = self.case
        heads = c.heads * c.group
        q, y = (f"tensor<{c.batch}x{heads}x{c.queries}x{n}x{c.dtype}>" for n in (c.depth, c.width))
        k, v = (f"tensor<{self.pages}x{self.length}x{c.heads}x{n}x{c.dtype}>" for n in (c.depth, c.width))
        kinds = [q, k, v, f"tensor<{c.batch}x{self.count}xi32>", f"tensor<{c.batch}xi32>"][: 4 + self.lengths]
        names = ["%q", "%k", "%v", "%t", "%n"][: len(kinds)]
        params = ", ".join(f"{n}: {t}" for n, t in zip(names, kinds, strict=True))
        given = f"operandSegmentSizes = array<i32: 1, 1, 1, 1, {int(self.lengths)}, 0>"
        return f"""
func.func @main({params}) -> {y} {{
  %0 = "tw.paged_attention"({", ".join(names)}) {{scale = 0.25 : f64, {given}}} : ({", ".join(kinds)}) -> {y}
  return %0 : {y}
}}
"""

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Pages beyond a sequence's length are numbered as it comes."""
        c, g = self.case, np.random.default_rng(seed)
        kind = KINDS[c.dtype]
        q = g.standard_normal((c.batch, c.heads * c.group, c.queries, c.depth)).astype(kind)
        k, v = (g.standard_normal((self.pages, self.length, c.heads, n)).astype(kind) for n in (c.depth, c.width))
        table = g.permutation(self.pages)[: c.batch * self.count].reshape(c.batch, self.count).astype(np.int32)
        keys = self.count * self.length
        lengths = g.integers(c.queries, keys + 1, c.batch).astype(np.int32)
        if self.lengths:
            for row, n in zip(table, lengths, strict=True):
                row[-(-int(n) // self.length) :] = g.choice([-1, 9999, 0])
        return [q, k, v, table, lengths][: 4 + self.lengths]

    def check(self, found: np.ndarray, inputs: list[np.ndarray]) -> None:
        c, (q, k, v, table, *lengths) = self.case, inputs
        rows = [p.astype(np.float64)[np.clip(table, 0, self.pages - 1)] for p in (k, v)]
        keys, values = (
            np.repeat(np.moveaxis(r.reshape(c.batch, self.count * self.length, c.heads, -1), 2, 1), c.group, 1)
            for r in rows
        )
        scores = 0.25 * q.astype(np.float64) @ keys.swapaxes(-1, -2)
        if lengths:
            last = lengths[0].reshape(-1, 1, 1, 1) - c.queries + np.arange(c.queries).reshape(1, 1, -1, 1)
            scores = np.where(np.arange(scores.shape[-1]) <= last, scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        want = e / e.sum(-1, keepdims=True) @ values
        assert np.abs(found.astype(np.float64) - want).max() <= ALLOWED[c.dtype] * np.abs(want).max(), self


def drawn(seed: int) -> Paged:
    r = random.Random(seed)
    depth = r.choice([16, 32, 64])
    case = Case(
        r.choice([1, 1, 2, 17]), 0, depth, r.choice([depth, 48]), batch=r.choice([1, 3]), heads=r.choice([1, 2]),
        group=r.choice([1, 2, 4]), dtype=r.choice(list(KINDS)),
    )  # fmt: skip
    return Paged(case, r.choice([8, 16, 20]), r.choice([3, 8, 11]), r.random() < 0.7)


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_pages_are_read_where_they_lie(seed):
    paged = drawn(seed)
    kernels = in_parts(paged.text, 3 if seed % 2 else 1)
    assert len(kernels) == (2 if seed % 2 else 1)
    assert schedule(kernels[0], SM_80).rule == "block_attention"
    inputs = paged.inputs(seed)
    paged.check(emulated(kernels, inputs, SM_80), inputs)


@pytest.mark.parametrize("target", ["opencl", "vulkan", "cpu"])
def test_pages_on_devices(target):
    if target != "cpu":
        device_of(target)
    paged = Paged(Case(1, 0, 32, 32, batch=2, heads=2, group=2), 16, 6)
    run = tw.compile(paged.text, target=target)
    assert ("block_attention" in run.explain()) == (target != "cpu")
    for seed in range(2):
        inputs = paged.inputs(seed)
        paged.check(run(*inputs)[0], inputs)


@pytest.mark.parametrize("parts", [1, 3])
def test_where_no_rule_takes_them_loops_do(parts):
    """On a machine without a grid, in the interpreter."""
    paged, machine = Paged(Case(2, 0, 4, 3, batch=2), 2, 3), find("cpu").describe()
    arrays = inputs = paged.inputs()
    for kernel in in_parts(paged.text, parts):
        made = schedule(kernel, machine)
        assert made.rule == "opaque"
        names = [p.name for p in made.nest.params if p.name not in made.nest.outputs]
        found = interpret_nest(made.nest, dict(zip(names, arrays, strict=True)), machine)
        arrays = [found[n] for n in made.nest.outputs]
    paged.check(arrays[0], inputs)


def test_keys_that_are_gathered_from_pages_are_found():
    """What a model writes with a gather becomes one kernel, with a mask too."""
    device_of("opencl")
    from onnx import parser

    made = parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        m (float[2, 4, 1, 16] q, float[9, 8, 2, 16] kp, float[9, 8, 2, 16] vp, int64[2, 3] t, float[2, 1, 1, 24] m)
          => (float[2, 4, 1, 16] y) <int64[4] joined = {2, 24, 2, 16}, float scale = {0.25}, int64[1] two = {2},
             int64[5] each = {2, 2, 2, 24, 16}, int64[4] all = {2, 4, 24, 16}> {
            kg = Gather<axis=0>(kp, t) kj = Reshape(kg, joined) kt = Transpose<perm=[0, 2, 1, 3]>(kj)
            vg = Gather<axis=0>(vp, t) vj = Reshape(vg, joined) vt = Transpose<perm=[0, 2, 1, 3]>(vj)
            ku = Unsqueeze(kt, two) ke = Expand(ku, each) kr = Reshape(ke, all)
            vu = Unsqueeze(vt, two) ve = Expand(vu, each) vr = Reshape(ve, all)
            k = Transpose<perm=[0, 1, 3, 2]>(kr) s = MatMul(q, k) x = Mul(s, scale) n = Add(x, m)
            p = Softmax<axis=-1>(n) y = MatMul(p, vr) }""")
    g = np.random.default_rng(0)
    q, kp, vp = (g.standard_normal(s).astype(np.float32) for s in ((2, 4, 1, 16), (9, 8, 2, 16), (9, 8, 2, 16)))
    table = np.array([[3, 8, 1], [0, -2, 5]])
    mask = np.where(np.arange(24) < np.array([[[[20]]], [[[9]]]]), 0, -np.inf).astype(np.float32)
    run = tw.compile(made, target="opencl")
    assert "paged_attention" in run.explain()
    arrays = (q, kp, vp, table, mask)
    np.testing.assert_allclose(run(*arrays)[0], tw.compile(made)(*arrays)[0], rtol=1e-5, atol=1e-6)


# ---- what a decoder runs ---------------------------------------------------------------------------------------------

LARGE = {
    "32 heads": Case(1, 32768, 128, 128, heads=32, dtype="bf16").text,
    "8 heads for 4 each": Case(1, 4096, 128, 128, heads=8, group=4, dtype="bf16").text,
    "8 heads for 8 each": Case(1, 8192, 128, 128, heads=8, group=8, dtype="bf16").text,
    "pages": Paged(Case(1, 0, 128, 128, batch=8, heads=8, group=4, dtype="bf16"), 16, 512).text,
}


@pytest.mark.parametrize(("name", "sm"), [*((n, "sm_90a") for n in LARGE), ("32 heads", "sm_80")])
def test_a_decode_step_reads_keys_once_in_long_accesses(name, sm, tmp_path):
    machine = MACHINES[sm]
    kernels = fused_kernels(LARGE[name], target=f"cuda:sm={sm}")
    for kernel, rule in zip(kernels, ("block_attention", "attention_join"), strict=True):
        made = schedule(kernel, machine)
        assert made.rule == rule
        emitted = emit(made.nest, machine)
        text = ptx(emitted, machine.llvm)
        taken = assembled(text, sm, tmp_path)
        assert (taken.spilled, taken.stack) == (0, 0)
        if rule == "block_attention":
            x, y, z = emitted.launch.grid
            assert x == 1 and y * z >= 1.5 * machine.multiprocessors  # the rows of all heads of a key together
            assert re.search(r"ld\.global\.nc\.v4\.b32|cp\.async\.cg", text) and "ld.global.nc.b16" not in text
            assert "bar.warp.sync" in text or "mma.sync" in text


def test_paged_attention_refuses_what_does_not_fit():
    case = Paged(Case(1, 0, 32, 32), 16, 4)
    for old, new, why in (
        ("tensor<1x4xi32>", "tensor<2x4xi32>", "table"),
        ("tensor<1x4xi32>", "tensor<1x4xf32>", "numbers of pages"),
        ("scale = 0.25", "causal = true, scale = 0.25", "causal and offset are not for it"),
    ):
        with pytest.raises(tw.errors.TilewrightError, match=why):
            tw.compile(case.text.replace(old, new))


def test_replaced_lengths_are_the_only_difference():
    """Without lengths all positions are there."""
    paged = Paged(Case(2, 0, 32, 32, heads=2), 8, 4)
    inputs = paged.inputs()
    inputs[4][:] = 32
    whole = replace(paged, lengths=False)
    # of two queries the first one sees one position less
    np.testing.assert_allclose(
        tw.compile(paged.text)(*inputs)[0][:, :, 1], tw.compile(whole.text)(*inputs[:4])[0][:, :, 1], rtol=1e-5
    )
