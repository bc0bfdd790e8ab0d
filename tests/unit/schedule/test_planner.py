"""The planner for sums of products (`schedule.planner`): plans, their estimated cycles, their text, and that what is
decided is the plan. Code is looked at only, on pinned machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.machines import AVX512F, MACHINES
from support.products import convolution, product

import tilewright as tw
from tilewright.ir.graph_builder import Maker
from tilewright.ir.types import Type
from tilewright.lang import te
from tilewright.schedule.facts import kernel_facts
from tilewright.schedule.machine import Machine, lanes
from tilewright.schedule.planner.candidates import best, best_tile, candidates
from tilewright.schedule.planner.choose import choose
from tilewright.schedule.planner.cycles import cycles
from tilewright.schedule.planner.instructions import Instruction, vectors
from tilewright.schedule.planner.plan import Plan
from tilewright.schedule.planner.product import Product, product_of, sized
from tilewright.schedule.planner.prologue import open_sum
from tilewright.schedule.rules import schedule
from tilewright.targets.base import find
from tilewright.tune.space import Space


def analyzed(kernel, machine) -> Product:
    anchor = next(x for x in kernel.stages if x.targets[0].init is not None)
    found = product_of(open_sum(kernel, anchor, None)[0], anchor, machine)
    assert isinstance(found, Product)
    return found


def untuned(name, options, default):
    return default


def test_what_a_product_is():
    x = analyzed(convolution(14, 20, 64, 24, 3, 2), AVX512F)
    assert (x.n, x.spans, x.steps, x.others, x.batch) == (24, [20, 14], 9 * 64, 1, [])
    assert x.contraction and x.one_weight and not x.transposed and x.window is None
    assert [y.constant for y in x.moved] == [True] and [y.constant for y in x.still] == [False]


@pytest.mark.parametrize(
    "sizes, turned, forms",
    [
        ((64, 256, 64), False, {"tile", "sum_lanes", "lanes"}),
        ((64, 256, 24), False, {"tile", "sum_lanes", "lanes", "halves"}),
        ((64, 256, 18), False, {"tile", "sum_lanes", "lanes", "halves", "cut"}),
        ((64, 8, 64), False, {"tile", "lanes"}),
        ((64, 8, 64), True, {"tile", "lanes"}),
    ],
)
def test_forms(sizes, turned, forms):
    x = analyzed(product(*sizes, turned=turned), AVX512F)
    found = {form.decision: plans for form, plans in candidates(x, AVX512F)}
    assert found.keys() == forms
    assert all(p.vector == "K" for p in found.get("sum_lanes", ()))
    assert all(p.remainder == "share" and p.share in (2, 4) for p in found.get("halves", ()))
    assert all(p.remainder == "peel" for p in found.get("cut", ()))
    assert all(cycles(p, x.compared, AVX512F) > 0 for plans in found.values() for p in plans)


def test_an_operand_that_lies_across_is_transposed_or_gathered():
    """Once for many rows; what is gathered for few costs more."""
    b, r = te.placeholder((64, 256), "b"), te.reduce_axis(256, "r")

    def plan(rows: int) -> Plan:
        a = te.placeholder((rows, 256), "a")
        kernel = te.kernel(te.compute((rows, 64), lambda i, j: te.sum((a[i, r] - b[j, r]) * (a[i, r] - b[j, r]), r)))
        x = analyzed(kernel, AVX512F)
        assert x.transposed
        return choose(x, AVX512F, lambda name, options, default: default if name == "turn" else options[-1])[0]

    assert plan(64).operands == "transposed" and plan(2).operands == "gathered"
    x = analyzed(
        te.kernel(te.compute((2, 64), lambda i, j: te.sum((b[i, r] - b[j, r]) * (b[i, r] - b[j, r]), r))), AVX512F
    )
    tile = Plan(tile=(2, 1, 1))
    costs = [cycles(replace(tile, operands=o), x.compared, AVX512F) for o in ("direct", "transposed", "gathered")]
    assert costs == sorted(costs) and len(set(costs)) == 3


def test_cycles_follow_the_machine():
    """A tile must hide the latency of its sums; more sums than registers hold are no candidates."""
    x = sized([96], 96, 256, vectors(AVX512F, 16))
    few, many = cycles(Plan(tile=(1, 1, 1)), x, AVX512F), cycles(Plan(tile=best_tile(x, AVX512F)), x, AVX512F)
    assert many < few / 2
    assert all(r * q * v + v + 1 <= 32 for r, q, v in x.instruction.tiles([96], 96))
    slow = Instruction(lanes=16, rate=replace(AVX512F.fma, latency=8 * AVX512F.fma.latency), registers=32)
    assert cycles(Plan(tile=(1, 1, 1)), replace(x, instruction=slow), AVX512F) > 4 * few


def test_the_chosen_plan_has_the_fewest_cycles():
    x = analyzed(product(96, 64, 256), AVX512F)
    plan, same = choose(x, AVX512F, untuned)
    tiled = [Plan(tile=t) for t in same.instruction.tiles(same.spans, same.n)]
    assert plan.tile == best(tiled, same, AVX512F)[1].tile and plan.operands == "packed"


def test_decisions_are_the_plan():
    """What a tuner decides is a field of the plan, which the report tells in words."""
    kernel = product(64, 768, 64)
    found = Space(kernel, AVX512F).realize({"k_blocks": 4, "tile": (4, 1, 2), "unroll": 1, "sum_lanes": False})
    assert found is not None and found.decisions["k_blocks"] == 4
    text = "vectorize N with fma, tile 4 x 2 vectors, mask the remainder, packed, 4 blocks of K, rows inside"
    assert found.schedule.plan.startswith(text)
    made = schedule(kernel, AVX512F, found.decisions)
    assert kernel_facts(kernel, made)["plan"] == found.schedule.plan


@pytest.mark.parametrize("name", ["avx2", "zen4"])
def test_each_form_says_so(name):
    def plan(kernel, **decisions) -> str:
        found = Space(kernel, MACHINES[name]).realize(decisions)
        assert found is not None
        return found.schedule.plan

    lanes = MACHINES[name].vector_bytes // 4
    assert "2 rows share the remainder, packed" in plan(product(301, 100, lanes + lanes // 2), halves=True)
    assert "peel the remainder" in plan(product(301, 100, 2 * lanes + 1), halves=False, cut=True)
    assert plan(product(1, 1000, 20), sum_lanes=True).startswith("vectorize K")
    assert plan(product(213, 704, 34), cut=False, sum_lanes=False, lanes="rows").startswith("vectorize M")


def test_a_tile_of_one_number_where_there_are_no_vectors():
    """On a machine without vectors every decision is a schedule, a tile of one result too."""
    target = find("cortex-m4").describe()
    assert isinstance(target, Machine) and target.vector_bytes == 4
    found = Space(product(3, 16, 7), target).realize({"tile": (1, 1, 1), "rows_inside": False})
    assert found is not None and found.decisions["tile"] == (1, 1, 1)


def test_weights_stacked_in_tiles_are_read_as_they_lie():
    """They have a matrix for each step of a loop that rows do not follow: what is ahead in one is not in the next, and
    packing in tiles as wide as theirs would be a copy of the same."""
    weights = np.random.default_rng(0).standard_normal((96, 576, 64)).astype(np.float32)
    make = Maker([("x", Type((None, 576), "f32"))])
    product = make("einsum", make.inputs[0], make.constant(weights, "w"), equation="mk,akb->mab")
    graph = make.finish([("y", product)])
    how = {"inputs": {"x": (tw.Dim("rows", 1, 16), 576)}, "threads": 1}
    (trace,) = tw.compile(graph, stop_after="schedule", **how).traces().values()
    assert "prefetch" not in trace
    run = tw.compile(graph, **how)
    (packed,) = run.package.constants
    if lanes(find("cpu").describe(), "f32") == 16:
        assert packed.shape == weights.shape
    x = np.random.default_rng(1).standard_normal((5, 576)).astype(np.float32)
    np.testing.assert_allclose(run(x)[0], np.einsum("mk,akb->mab", x, weights), atol=1e-3)
