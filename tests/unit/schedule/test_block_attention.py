"""Attention for grids of blocks: free of races with any tile, and what is left to other rules."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.attention_cases import Case, drawn

from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.machine import Machine
from tilewright.schedule.nest import Barrier, Nest, Stmt, transform, walk_stmts
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import attention
from tilewright.schedule.text import parse_nest
from tilewright.targets.cuda.description import SM_80, SM_90A
from tilewright.targets.gpu.describe import GpuDescription

GPU = GpuDescription()
#: the fewest threads there are, so that the interpreter is done soon
SMALL = {
    "tiles": (
        Case(3, 35, 9, 3, causal=True, offset=31),
        {"share_keys": False, "form": "threads", "tile": (8, 16, 4, 8, 8, 8, 1)},
    ),
    "keys": (Case(1, 20, 3, 2, mask="k"), {"share_keys": True, "share": (64, 8, 1, 1, 1, 1, 1)}),
}


def made(case: Case, machine: Machine, decisions=None) -> tuple[Nest, dict]:
    """The finished nest of a case by the rule, which must be free of races, and what could be decided."""
    s = attention.apply(case.kernel, machine, decisions)
    assert not isinstance(s, str), s
    nest = finish(s.nest())
    assert illegal(nest.body, nest.buffers(), lambda: machine) is None
    return nest, s.decisions


def run(nest: Nest, case: Case, machine: Machine) -> None:
    inputs = case.inputs()
    names = [p.name for p in nest.params if p.name not in nest.outputs]
    found = interpret_nest(nest, dict(zip(names, inputs, strict=True)), machine)
    case.check(found[nest.outputs[0]], inputs)


@pytest.mark.parametrize("form", SMALL)
def test_the_interpreter_runs_it(form):
    case, decisions = SMALL[form]
    nest, chosen = made(case, GPU, decisions)
    assert {n: d.chosen for n, d in chosen.items()} == decisions
    run(nest, case, GPU)


@pytest.mark.parametrize("form", SMALL)
def test_without_any_of_its_barriers_it_races(form):
    case, decisions = SMALL[form]
    if form == "keys":  # the last barrier is for the next query
        case, decisions = replace(case, group=2), {**decisions, "share": (64, 8, 2, 1, 1, 1, 1)}
    nest, _ = made(case, GPU, decisions)
    stops = [s for s in walk_stmts(nest.body) if isinstance(s, Barrier)]
    assert len(stops) >= 5
    missed = 0
    for stop in stops:

        def without(s: Stmt, stop: Stmt = stop) -> Stmt | None:
            return None if s is stop else s

        body = transform(nest.body, without)
        assert body is not None
        missed += illegal(body, nest.buffers(), lambda: GPU) is None
    assert missed == 0


@pytest.mark.parametrize("seed", range(6))
def test_drawn_sizes_and_decisions_are_free_of_races(seed):
    case = drawn(seed, few=seed % 2 == 0)
    _, decisions = made(case, GPU)
    name = next(n for n in decisions if n != "share_keys")
    other = random.Random(seed).choice(decisions[name].candidates)
    made(case, GPU, {name: other})


@pytest.mark.parametrize(("machine", "form"), [(SM_80, "warps"), (SM_90A, "groups")])
def test_matrices_that_lanes_hold_are_free_of_races(machine, form):
    case = Case(70, 150, 64, 64, causal=True, offset=80, dtype="bf16")
    nest, decisions = made(case, machine)
    assert decisions["form"].chosen == form
    text = str(nest)
    assert "'warp': 'fold" in text and f"with {'async' if form == 'warps' else 'bulk'}_copy(keys_come)" in text
    broken = parse_nest(text.replace("wait(keys_come, pending=1)", "wait(keys_come, pending=2)"), machine)
    assert "while copy keys_come" in (illegal(broken.body, broken.buffers(), lambda: machine) or "")


def test_tiles_fit_the_machine():
    for case in (Case(512, 512, 64, 64), Case(64, 64, 512, 512), Case(1, 4096, 128, 128)):
        _, decisions = made(case, GPU)
        nest, _ = made(case, replace(GPU, shared_bytes=8 << 10))
        used = sum(b.size * 4 for b in nest.buffers().values() if b.scope == "shared")
        assert used <= 8 << 10, decisions


def test_processors_and_other_kernels_are_left_to_other_rules():
    case = Case(16, 16)
    assert attention.apply(case.kernel, Machine()) == "the machine has no grid of blocks"
    assert schedule(case.kernel, GPU).rule == "block_attention"
    f64 = replace(case, dtype="f64").kernel
    assert attention.apply(f64, GPU) == "it may have no elements, or computes in f64"
    many = attention.apply(replace(case, batch=70_000).kernel, GPU)
    assert many == "it has more heads or batches than a grid has blocks"
