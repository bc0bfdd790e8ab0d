"""The rule for groups of warps: drawn products with drawn tiles in the emulator and the interpreter of nests against
NumPy, mistakes that the emulator finds, and what NVIDIA's assembler says of them."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pytest
from support.cuda_emulator import EmulationError, needs_compiler, run
from support.cuda_matmul import half
from support.ptxas import assembled

from tilewright import te
from tilewright.codegen.kernel_info import pack_array
from tilewright.codegen.nvptx.assemble import optimized, ptx, shared_at_launch
from tilewright.codegen.nvptx.emitter import NvptxKernel, emit
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import Nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import warpgroup_tensor_cores
from tilewright.schedule.rules.gpu.tile_order import TileOrder, far, orders
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.description import SM_80, SM_90A
from tilewright.tensor.evaluate import NUMPY
from tilewright.tensor.expr import Const

#: with so few multiprocessors that small products have tiles enough
FEW = {n: replace(SM_90A, multiprocessors=n) for n in (1, 2, 3)}

PRODUCT = """
def f(a: {x}[{sa}], b: {x}[{sb}], z: f32[{n}], r: {x}[{h}, {m}, {n}], y: out({x}[{h}, {m}, {n}])):
    c = local(f32[{h}, {m}, {n}])
    for g in serial({h}):
        for i in serial({m}):
            for j in serial({n}):
                for k in serial({k}):
                    s0: c[g, i, j] = reduce(addf(c[g, i, j], mulf(extf[f32](a[{ia}]), extf[f32](b[{ib}]))), init=f32(0.0), over=(k,))
    for g1 in serial({h}):
        for i1 in serial({m}):
            for j1 in serial({n}):
                s1: y[g1, i1, j1] = truncf[{x}](addf(maximumf(addf(c[g1, i1, j1], z[j1]), f32(0.0)), extf[f32](r[g1, i1, j1])))
"""  # noqa: E501


@dataclass(frozen=True)
class Case:
    """A product with a bias, an activation and a residual. Rows of a factor that is `turned` are places of the sum (a),
    or columns (b); b may be `shared` by a batch, and a constant."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    batch: int = 1
    turned: tuple[bool, bool] = (False, False)
    shared: bool = False
    constant: bool = False

    @property
    def kernel(self):
        m, n, k, h = self.m, self.n, self.k, self.batch
        sa, ia = (f"{h}, {k}, {m}", "g, k, i") if self.turned[0] else (f"{h}, {m}, {k}", "g, i, k")
        sb, ib = (f"{n}, {k}", "j, k") if self.turned[1] else (f"{k}, {n}", "k, j")
        if not self.shared:
            sb, ib = f"{h}, {sb}", f"g, {ib}"
        text = PRODUCT.format(m=m, n=n, k=k, h=h, x=self.dtype, sa=sa, sb=sb, ia=ia, ib=ib)
        return te.from_nest(text, constants=["b"] if self.constant else [])

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.m + self.n + self.k)
        return {p.name: rng.standard_normal(p.shape).astype(NUMPY[p.dtype]) for p in self.kernel.params[:4]}

    def right(self, found: np.ndarray) -> None:
        arrays = {n: x.astype(np.float64) for n, x in self.arrays().items()}
        a, b = (np.swapaxes(arrays[x], -1, -2) if t else arrays[x] for x, t in zip("ab", self.turned, strict=True))
        want = np.maximum(a @ b + arrays["z"], 0) + arrays["r"]
        error = np.abs(found.astype(np.float64) - want).max() / np.abs(want).max()
        assert error <= {"bf16": 2**-8, "f16": 2**-11}[self.dtype], error


def ruled(case: Case, machine=FEW[1], decisions=None) -> Schedule:
    made = warpgroup_tensor_cores.apply(case.kernel, machine, decisions)
    assert not isinstance(made, str), made
    return made


def given(case: Case, nest: Nest) -> dict[str, np.ndarray]:
    arrays = case.arrays()
    return {n: pack_array(x, nest.packs[n]) if n in nest.packs else x for n, x in arrays.items()}


def drawn(seed: int) -> tuple[Case, int, dict]:
    """A product of a drawn kind and size, multiprocessors, and drawn decisions; the rule's own for the first ones."""
    rng = random.Random(seed)
    m, n = (rng.choice((8, 16, 56, 72, 136)) for _ in range(2))
    turned = rng.random() < 0.5, rng.random() < 0.5
    m, n = m if turned[0] else m - rng.randint(0, 5), n - rng.randint(0, 5) if turned[1] else n
    shared = rng.random() < 0.5 and not (turned[0] and m < 40)  # rows of each part of a batch are tiles of their own
    dtype, k = rng.choice(("bf16", "f16")), rng.choice((24, 64, 72, 128, 200))
    case = Case(m, n, k, dtype, rng.choice((1, 1, 2, 3)), turned, shared, shared and rng.random() < 0.5)
    count = rng.choice((1, 1, 2))
    made = ruled(case, FEW[count])
    picked = {d.name: rng.choice(d.candidates) for d in made.decisions.values() if d.name != "engine"}
    return case, count, {} if seed < 2 else picked


@needs_compiler
@pytest.mark.parametrize("seed", range(8))
def test_drawn_products_are_right_with_drawn_tiles(seed):
    case, count, decisions = drawn(seed)
    made = ruled(case, FEW[count], decisions)
    print(case, made.plan)
    assert "copied by the engine" in made.plan
    nest = finish(made.nest())
    emitted = emit(nest, FEW[count])
    assert "cp.async.bulk.tensor" in emitted.text and "wgmma.mma_async" in emitted.text
    case.right(run(nest, emitted, given(case, nest), backwards=seed % 2 == 1)["y"])


def test_units_of_several_turns_do_not_meet_in_memory():
    case = Case(128, 64, 72, turned=(True, False), shared=True)
    machine = replace(FEW[1], shared_bytes=40 << 10)
    made = ruled(case, machine)
    assert made.plan.endswith("copied by the engine, 2 for each of 1 blocks, 1 rows of them at once")
    nest = made.nest()
    assert illegal(nest.body, nest.buffers(), lambda: machine) is None
    case.right(interpret_nest(nest, given(case, nest), machine)["y"])


def test_every_tile_is_made_once():
    for rows, columns, batch, at_once in ((5, 3, 1, 4), (7, 7, 2, 9), (33, 2, 1, 8), (1, 10, 3, 4), (6, 4, 1, 5)):
        for order in orders(rows, columns, batch, at_once, largest=8):
            rows = order.rows
            numbers = [
                order.number(Const(b, "index"), Const(t, "index"))
                for t in range(order.turns)
                for b in range(order.blocks)
            ]
            places = [tuple(e.value for e in order.place(x)) for x in dict.fromkeys(numbers)]
            every = {(b, r, c) for b in range(batch) for r in range(rows) for c in range(columns)}
            assert len(places) == len(every) and set(places) == every, order


def test_tiles_at_the_same_time_lie_close_to_each_other():
    shapes = {n: far(TileOrder(32, 16, 1, 4, n), 132, 128, 256) for n in (1, 4, 16, 32)}
    assert min(shapes, key=lambda n: shapes[n]) == 16 and shapes[16] * 2 < shapes[1]
    assert far(TileOrder(16, 16, 1, 4, 8, cluster=2), 132, 128, 256) == shapes[16]


@pytest.mark.parametrize(
    "m, n, k, decisions",
    [(4096, 4096, 4096, {}), (8192, 8192, 8192, {}), (4000, 4088, 4096, {}), (4096, 4096, 4096, {"order": (1, 8, 1)})],
)
def test_a_large_product_is_pipelined(m, n, k, decisions, tmp_path):
    """Both factors in rows, as a model has them."""
    kernel = te.from_nest(half("bf16").format(m=m, n=n, k=k))
    made = schedule(kernel, SM_90A, decisions)
    assert made.rule == "warpgroup_tensor_cores"
    plan = "tiles of 128 x 256 on 2 groups of warps, 64 x 256 each, 64 steps of the sum in shared memory, 4 at once"
    assert made.schedule.plan.startswith(f"{plan}, copied by the engine")
    emitted = emit(made.nest, SM_90A)
    text = ptx(emitted, SM_90A.llvm)
    assert emitted.launch.block == (384, 1, 1) and emitted.launch.grid == (512 if decisions else 128, 1, 1)
    assert shared_at_launch(emitted) <= SM_90A.shared_bytes
    assert text.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16") == 4
    assert sorted(re.findall(r"wgmma.wait_group.sync.aligned\s+(\d);", text)) == ["0", "1"]
    assert re.findall(r"setmaxnreg.(\w+).sync.aligned.u32\s+(\d+);", text) == [("dec", "40"), ("inc", "232")]
    assert "cp.async.bulk.tensor.2d" in text and "cp.async.cg" not in text
    clustered = made.schedule.decisions["order"].chosen[2] == 2
    assert (".reqnctapercluster 2, 1, 1" in text) == ("multicast::cluster" in text) == clustered == (not decisions)
    taken = assembled(text, "sm_90a", tmp_path)
    assert (taken.spilled, taken.stack, taken.serialized) == (0, 0, False)
    assert taken.registers == SM_90A.register_trade.each(384) == 168  # all that there are, for 40 and 232 later


def test_the_assembler_says_if_products_are_serialized(tmp_path):
    """Sums that are read while their products run."""
    made = ruled(Case(128, 128, 256, shared=True), decisions={"tile": (128, 128, 64, 128, 64, 3)})
    text = ptx(emit(finish(made.nest()), FEW[1]), SM_90A.llvm)
    assert not assembled(text, "sm_90a", tmp_path).serialized
    assert assembled(text.replace("wgmma.wait_group.sync.aligned", "// "), "sm_90a", tmp_path).serialized


@needs_compiler
def test_units_bring_what_an_engine_cannot(tmp_path):
    """As was decided, or for windows of a convolution."""
    case = Case(100, 72, 192, "f16", turned=(False, True))
    made = ruled(case, decisions={"engine": False})
    assert made.plan.endswith("loaded by its threads: as was decided")
    nest = finish(made.nest())
    emitted = emit(nest, FEW[1])
    case.right(run(nest, emitted, given(case, nest))["y"])
    text = ptx(emitted, SM_90A.llvm)
    assert "wgmma.mma_async" in text and "cp.async.cg.shared.global" in text and "mma.sync" not in text
    taken = assembled(text, "sm_90a", tmp_path)
    assert (taken.spilled, taken.stack, taken.serialized) == (0, 0, False)


@needs_compiler
@pytest.mark.parametrize("rows, seen", [(32, (160, 64)), (64, (5, 64, 64))])
def test_rows_of_several_loops_are_in_one_box(rows, seen):
    """Of a batch whose second factor is one: tiles go over the ends of its parts."""
    case = Case(rows, 72, 64, batch=5, shared=True)
    nest = finish(ruled(case, FEW[2], {"tile": (64, 128, 64, 128, 64, 2)}).nest())
    emitted = emit(nest, FEW[2])
    assert emitted.maps[0].shape == seen
    case.right(run(nest, emitted, given(case, nest))["y"])


CONVOLUTION = """
def f(x: bf16[{b}, {h}, {h}, {c}], w: bf16[{p}, {p}, {c}, 72], y: out(f32[{b}, {o}, {o}, 72])):
    for a in serial({b}):
        for i in serial({o}):
            for j in serial({o}):
                for n in serial(72):
                    for p in serial({p}):
                        for q in serial({p}):
                            for d in serial({c}):
                                s0: y[a, i, j, n] = reduce(addf(y[a, i, j, n], mulf(extf[f32](x[a, i + p, j + q, d]), extf[f32](w[p, q, d, n]))), init=f32(0.0), over=(p, q, d))
"""  # noqa: E501


@needs_compiler
@pytest.mark.parametrize(
    "size, channels, way", [(1, 72, "copied by the engine"), (2, 64, "loaded by its threads: block bring_a_first")]
)
def test_convolutions_are_products(size, channels, way):
    b, h = 2, 7
    o = h + 1 - size
    kernel = te.from_nest(CONVOLUTION.format(b=b, h=h, o=o, p=size, c=channels), constants=["w"])
    made = warpgroup_tensor_cores.apply(kernel, FEW[1])
    assert not isinstance(made, str) and way in made.plan, made
    nest = finish(made.nest())
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(p.shape).astype(NUMPY["bf16"]) for p in kernel.params[:2])
    found = run(nest, emit(nest, FEW[1]), {"x": x, "w": pack_array(w, nest.packs["w"])})["y"]
    wide, want = x.astype(np.float64), np.zeros(found.shape)
    for p in range(size):
        for q in range(size):
            want += wide[:, p : p + o, q : q + o] @ w[p, q].astype(np.float64)
    assert np.abs(found - want).max() <= 3e-6 * np.abs(want).max()


def test_why_a_product_is_left_to_warps():
    def refused(case: Case, machine=SM_90A) -> str:
        return str(warpgroup_tensor_cores.apply(case.kernel, machine))

    assert refused(Case(128, 128, 128), SM_80) == "the machine has no groups of warps"
    assert "its tiles are too few for groups of warps" in refused(Case(128, 768, 768, turned=(False, True)))
    assert "a step along dimension 1 of a is 4100 bytes, no multiple of 16" in refused(Case(4096, 4096, 2050))
    assert refused(Case(1, 4096, 4096)) == "one of its factors is a vector"
    apart = Case(16, 4096, 4096, batch=64, turned=(True, True), shared=True)
    assert "does not run along one dimension of a" in refused(apart)


# ---- mistakes --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def clustered() -> tuple[Case, Nest, NvptxKernel, dict[str, np.ndarray]]:
    """Two tiles for each of two blocks, which share columns."""
    case, machine = Case(256, 64, 72, shared=True), replace(SM_90A, multiprocessors=2, shared_bytes=40 << 10)
    made = ruled(case, machine)
    assert made.plan.endswith("2 for each of 1 clusters of 2 blocks, 2 rows of them at once")
    nest = finish(made.nest())
    emitted = emit(nest, machine)
    assert emitted.launch.grid == (2, 1, 1) and "i16 3, i64 0, i1 true" in emitted.text
    return case, nest, emitted, given(case, nest)


@lru_cache(maxsize=1)
def several_turns() -> tuple[Case, Nest, NvptxKernel, dict[str, np.ndarray]]:
    case = Case(264, 64, 72, turned=(True, False), shared=True)
    made = ruled(case, FEW[1], {"tile": (128, 64, 64, 64, 64, 2), "order": (2, 2, 1)})
    assert made.plan.endswith("2 for each of 2 blocks, 2 rows of them at once")
    nest = finish(made.nest())
    return case, nest, emit(nest, SM_90A), given(case, nest)


def wrong(pattern: str, new: str, which: int = 0, of=several_turns) -> str:
    """What the emulator says of three tiles in two turns of two blocks, or of others, if one of the lines that match is
    another one, in both orders of the threads."""
    _, nest, emitted, arrays = of()
    lines = emitted.text.splitlines()
    found = [i for i, line in enumerate(lines) if re.search(pattern, line) and not line.startswith(("declare", "@"))]
    lines[found[which]] = re.sub(pattern, new, lines[found[which]])
    messages = []
    for backwards in (False, True):
        with pytest.raises(EmulationError) as e:
            run(nest, emitted, arrays, text="\n".join(lines), backwards=backwards)
        messages.append(str(e.value))
    return " | ".join(messages)


@needs_compiler
@pytest.mark.parametrize("of", [several_turns, clustered])
def test_several_turns_are_right(of):
    case, nest, emitted, arrays = of()
    for backwards in (False, True):
        case.right(run(nest, emitted, arrays, backwards=backwards)["y"])


@needs_compiler
def test_what_llvm_makes_of_clusters_is_right_too():
    case, nest, emitted, arrays = clustered()
    assert shared_at_launch(emitted) == 0
    module, _ = optimized(emitted, SM_90A.llvm)
    for backwards in (False, True):
        case.right(run(nest, emitted, arrays, text=str(module), backwards=backwards)["y"])


@needs_compiler
def test_the_producer_runs_into_the_next_tile_without_waiting():
    said = wrong(r"call i1 @llvm.nvvm.mbarrier.try.wait.parity.*", "icmp eq i32 0, 0")
    assert "mbarrier" in said or "has not been waited for" in said


@needs_compiler
def test_the_last_step_of_a_tile_is_not_said_to_be_done():
    said = wrong(r"%\w+ = call i64 @llvm.nvvm.mbarrier.arrive.scope.*", "", -1)
    assert "waits for a phase of an mbarrier that does not end" in said


@needs_compiler
def test_sums_are_read_before_their_products_have_ended():
    said = wrong(r"(wgmma.wait_group.*\(i64) 0\)", r"\1 1)")
    assert "is not waited for" in said or "which others read without a barrier between" in said


@needs_compiler
def test_those_that_compute_meet_with_others_than_they_are():
    said = wrong(r"(barrier.cta.sync.aligned.count.*i32) 256\)", r"\1 384)")
    assert "do not come to the same barrier" in said or "does not end" in said


# ---- mistakes of clusters


@needs_compiler
def test_a_block_begins_before_the_barriers_of_the_other_are_there():
    said = wrong(r"call void @llvm.nvvm.barrier.cluster.wait.*", "", of=clustered)
    assert "an mbarrier is used" in said


@needs_compiler
def test_a_block_does_not_say_to_the_other_that_a_step_is_done():
    said = wrong(r"(icmp slt i32 %\w+), 2$", r"\1, 1", of=clustered)
    assert "waits for a phase of an mbarrier that does not end" in said


@needs_compiler
def test_a_block_copies_over_what_the_other_still_reads():
    """The barrier of a step counts the warps of one block."""
    said = wrong(r"(mbarrier.init.*), i32 8\)", r"\1, i32 4)", of=clustered)
    assert "mbarrier" in said or "which others read without a barrier between" in said


@needs_compiler
@pytest.mark.parametrize("blocks, error", [(1, "does not end"), (7, "blocks that the cluster has not")])
def test_a_copy_goes_to_other_blocks(blocks, error):
    assert re.search(error, wrong(r"i16 3, i64 0, i1 true", f"i16 {blocks}, i64 0, i1 true", of=clustered))


@needs_compiler
def test_both_blocks_copy_the_same_part():
    """The box of the second factor begins at the same place in both."""
    nest, emitted, arrays = clustered()[1:]
    lines = emitted.text.splitlines()
    at = next(i for i, line in enumerate(lines) if "i16 3, i64 0" in line)
    begins = re.search(r"ptr %m\d, i32 (%?\w+), i32 (%?\w+), i16 3", lines[at])
    lines[at] = lines[at].replace(f", i32 {begins[2]}, i16 3", ", i32 0, i16 3")
    case = clustered()[0]
    found = run(nest, emitted, arrays, text="\n".join(lines))["y"]
    with pytest.raises(AssertionError):
        case.right(found)


def test_clusters_are_units_to_a_nest():
    """To the interpreter, and to what shows that there are no races; the text form has them too."""
    case, machine = Case(128, 64, 64, shared=True), replace(SM_90A, multiprocessors=2, shared_bytes=40 << 10)
    made = ruled(case, machine)
    assert made.plan.endswith("1 for each of 1 clusters of 2 blocks, 2 rows of them at once")
    nest = made.nest()
    assert parse_nest(format_nest(nest), machine) == nest
    assert illegal(nest.body, nest.buffers(), lambda: machine) is None
    case.right(interpret_nest(nest, given(case, nest), machine)["y"])
    with pytest.raises(CompileError, match="there is no axis cluster"):
        emit(nest, SM_80)


def test_blocks_that_are_no_one_loop_copy_for_themselves():
    """A barrier behind which memory is used again: nobody has said to other blocks that it is free."""
    nest = finish(clustered()[1])
    text = re.sub("( +)for turn in", r"\1barrier(block)\n\1for turn in", format_nest(nest))
    emitted = emit(parse_nest(text, SM_90A), SM_90A)
    assert "i64 0, i1 true" not in emitted.text and "mapa" not in emitted.text
