"""Tactics: the trace of every rule replays to the same nest, whatever was decided."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support import opaque_kernels as ops
from support.attention_cases import Case, in_parts

import tilewright as tw
from tilewright import te
from tilewright.driver.kernels import fused_kernels
from tilewright.schedule import rules
from tilewright.schedule.decisions import freeze
from tilewright.schedule.machine import Machine
from tilewright.schedule.rules import Scheduled, schedule
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.support.errors import UsageError
from tilewright.targets.base import find
from tilewright.tensor.kernel import Kernel

TARGETS = ("cuda:sm_90a", "opencl:kind=gpu")
LOOPS = {
    "a product": """
def f(a: {x}[{m}, {k}], b: {x}[{k}, {n}], y: out(f32[{m}, {n}])):
    for i in serial({m}):
        for j in serial({n}):
            for k in serial({k}):
                s0: y[i, j] = reduce(addf(y[i, j], mulf({e}(a[i, k]), {e}(b[k, j]))), init=f32(0.0), over=(k,))""",
    "rows": """
def f(x: f32[{m}, {n}], y: out(f32[{m}, {n}])):
    t = local(f32[{m}])
    for i in serial({m}):
        for j in serial({n}):
            s0: t[i] = reduce(addf(t[i], exp(x[i, j])), init=f32(0.0), over=(j,))
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: y[i1, j1] = divf(x[i1, j1], t[i1])""",
    "windows": """
def f(x: f32[{m}, {n}], y: out(f32[{m}, {k}])):
    for i in serial({m}):
        for j in serial({k}):
            for k in serial(3):
                s0: y[i, j] = reduce(maxnumf(y[i, j], x[i, j * 3 + k]), init=f32(-inf), over=(k,))""",
    "elements": """
def f(x: f32[{m}, {n}], y: out(f32[{m}, {n}])):
    for i in serial({m}):
        for j in serial({n}):
            s0: y[i, j] = exp(x[i, j])""",
    "a transpose": """
def f(x: f32[{m}, {n}], y: out(f32[{n}, {m}])):
    for i in serial({n}):
        for j in serial({m}):
            s0: y[i, j] = exp(x[j, i])""",
}
BLOCKS = """
func.func @main(%x: tensor<1x512xf32>, %w: tensor<96x16x4xui32>, %s: tensor<96x16xf32>) -> tensor<1x96xf32> {
  %0 = "tw.block_matmul"(%x, %w, %s) {bits = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<1x512xf32>, tensor<96x16x4xui32>, tensor<96x16xf32>) -> tensor<1x96xf32>
  %1 = "tw.relu"(%0) : (tensor<1x96xf32>) -> tensor<1x96xf32>
  return %1 : tensor<1x96xf32>
}"""
BYTES = """
func.func @main(%x: tensor<3x512xi8>, %a: tensor<3x16xf32>, %t: tensor<3x16xi32>, %w: tensor<96x16x4xui32>,
    %s: tensor<96x16xf32>) -> tensor<3x96xf32> {
  %0 = "tw.integer_block_matmul"(%x, %a, %t, %w, %s)
    {bits = 4 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
    : (tensor<3x512xi8>, tensor<3x16xf32>, tensor<3x16xi32>, tensor<96x16x4xui32>, tensor<96x16xf32>)
    -> tensor<3x96xf32>
  return %0 : tensor<3x96xf32>
}"""
PAGES = """
func.func @main(%q: tensor<3x4x32xf32>, %k: tensor<9x16x2x32xf32>, %v: tensor<9x16x2x32xf32>, %t: tensor<2x4xi32>,
    %s: tensor<3xi32>, %l: tensor<2xi32>) -> tensor<3x4x32xf32> {
  %0 = "tw.ragged_attention"(%q, %k, %v, %t, %s, %l)
    {scale = 0.125 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0, 0>}
    : (tensor<3x4x32xf32>, tensor<9x16x2x32xf32>, tensor<9x16x2x32xf32>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>)
    -> tensor<3x4x32xf32>
  return %0 : tensor<3x4x32xf32>
}"""


def loops(name: str, m: int, n: int, k: int, x: str = "f32") -> Kernel:
    text = LOOPS[name].format(m=m, n=n, k=k, x=x, e="extf[f32]" if x != "f32" else "")
    return te.from_nest(text.replace("(a[i, k])", "a[i, k]").replace("(b[k, j])", "b[k, j]") if x == "f32" else text)


def kernels() -> list[Kernel]:
    """Some for every rule for GPUs."""
    return [
        *(loops("a product", 96, 72, 80, x) for x in ("f32", "bf16")),
        loops("a product", 1, 512, 256),
        loops("a product", 4096, 4096, 256, "bf16"),
        loops("rows", 40, 100, 0),
        loops("windows", 40, 96, 32),
        loops("elements", 30, 64, 0),
        loops("a transpose", 64, 96, 0),
        ops.scan((3, 500), "f32", 1, False, True),
        *(ops.top_k((2, n), k, "f32", 1, True) for n, k in ((40, 5), (3000, 20), (600, 300))),
        ops.scatter("scatter_elements", (8, 300), (2, 300), (2, 300), "f32", axis=0, reduction="add"),
        *(ops.scatter("scatter_nd", (300, 40), (9, 1), (9, 40), "f32", reduction=r) for r in ("none", "add")),
        ops.non_zero((20, 30), "f32"),
        *(k for text in (BLOCKS, BYTES, PAGES) for k in fused_kernels(text, target="cuda")),
        Case(1, 300, 32, 32, heads=2, group=2, mask="k").kernel,
        Case(70, 90, 32, 32, causal=True).kernel,
        Case(130, 256, 64, 64, dtype="f16").kernel,
        *in_parts(Case(2, 500, 32, 32).text, 3),
    ]


def replayed(made: Scheduled, machine: Machine) -> None:
    """The trace as text, on the kernel as it was, leads to the nest of a schedule."""
    s = made.schedule
    again, nest = Schedule.replay(s.kernel, str(s.trace), machine).nest(), s.nest()
    assert str(again) == str(nest) and again.packs == nest.packs, str(s.trace)


@pytest.mark.parametrize("target", TARGETS)
def test_every_rule_for_gpus(target):
    """As it decides, and as a tuner may."""
    draw, machine, reached = random.Random(0), find(target).describe(), set()
    for kernel in kernels():
        made = schedule(kernel, machine)
        for i in range(2):
            reached.add(made.rule)
            (last,) = [step for step in made.schedule.trace if step.name == "tactic"]
            assert last is made.schedule.trace[-1] and last.args == (made.rule,)
            assert last.kwargs == {n: d.chosen for n, d in made.schedule.decisions.items()}
            replayed(made, machine)
            if i == 0:
                made = schedule(
                    kernel, machine, {d.name: draw.choice(d.candidates) for d in made.schedule.decisions.values()}
                )
    own = {r.NAME for r in rules.rules(machine) if getattr(r, "__name__", "").startswith(rules.__name__ + ".gpu.")}
    assert len(own) == 17 and reached == (own if "cuda" in target else own - {"tensor_cores", "warpgroup_tensor_cores"})


@pytest.mark.parametrize("target, precision", [(TARGETS[0], "bf16"), (TARGETS[1], "f32"), ("cpu", "f32")])
@pytest.mark.parametrize(
    "name", ["resnet_tiny", "mobilenet_v2_tiny", "vit_tiny", "bert_tiny", "gpt2_tiny", "whisper_encoder_tiny"]
)
def test_kernels_of_models(name, target, precision, case):
    """Rules run with their steps checked together, and replaying checks each: none passes through a nest that is not
    legal."""
    state = tw.compile(case(name).path, target=target, precision=precision, stop_after="schedule", cache=False).state
    for made in state.schedules.values():
        replayed(made, state.description)


@pytest.mark.parametrize("name, rule", [("kws_dscnn", "streaming"), ("gpt2_tiny", "opaque")])
def test_kernels_of_processors(name, rule, case):
    stopped = tw.compile(case(name).path, target="c", stop_after="schedule", cache=False)
    schedules = stopped.state.schedules
    assert rule in {made.rule for made in schedules.values()} and stopped.traces().keys() == schedules.keys()
    for made in schedules.values():
        replayed(made, stopped.state.description)


def test_no_rule_makes_a_nest_without_a_step():
    """A nest stands in a schedule by what tactics write only."""
    for file in Path(rules.__file__).parent.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name != "write":
                for x in ast.walk(function):
                    assert not (isinstance(x, ast.keyword) and x.arg == "body"), (file, x.value.lineno)
                    assert not (isinstance(x, ast.Attribute) and x.attr == "body" and isinstance(x.ctx, ast.Store)
                                and getattr(x.value, "id", "") != "self"), (file, x.lineno)  # fmt: skip


def test_what_a_tactic_refuses():
    kernel, gpu = loops("elements", 30, 64, 0), find(TARGETS[1]).describe()
    for name, decisions, machine, why in (
        ("block_element", {}, gpu, "there is no tactic 'block_element'"),
        ("block_scan", {}, gpu, "it is no running sum"),
        ("block_elementwise", {}, Machine(), "the machine has no grid of blocks"),
        ("block_elementwise", {"threads": 77}, gpu, "block_elementwise cannot have threads=77"),
        ("block_elementwise", {"tile": 8}, gpu, "block_elementwise cannot have tile=8"),
    ):
        s = Schedule(kernel, machine)
        before = s.nest()
        with pytest.raises(ScheduleError, match=why):
            s.tactic(name, **decisions)
        assert s.nest() == before and not s.trace and not s.decisions
    with pytest.raises(UsageError, match="there is a tactic called 'block_scan'"):
        rules.tactic("block_scan", lambda s, machine: s.body)


def test_arguments_of_a_tactic_are_no_names_of_the_kernel():
    """A buffer that is called like a form of top-k is another one in another kernel."""
    kernel, machine = ops.top_k((2, 40), 5, "f32", 1, True), find(TARGETS[1]).describe()
    s = Schedule(kernel, machine)
    s.tactic("block_top_k")
    trace = str(s.trace).replace("# buffers: x,", "# buffers: rank,")
    assert "'rank'" in trace and Schedule.replay(kernel, trace, machine).nest() == s.nest()
    assert freeze(s.decisions["plan"].chosen)[0] == "rank"


def test_another_process_replays_a_trace():
    """Rules for GPUs are imported for them alone."""
    code = """
from tilewright import te, Schedule
x = te.placeholder((999,), "x")
s = Schedule(te.kernel(te.compute((999,), lambda i: -x[i], "y"), name="k"), "cuda")
s.tactic("block_elementwise", vector=1)
print(s.trace[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "s.tactic('block_elementwise', threads=256, vector=1)\n"
