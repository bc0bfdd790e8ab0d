"""Kernels scheduled by hand for a chip: accepted, right, and as fast as what is planned; or refused with a reason."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import chip_kernels
from support.chip_kernels import inputs, packed, reference

import tilewright as tw
from tilewright import Schedule
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.schedule import ScheduleError
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError, InputError, UsageError
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.layouts import TilePlan
from tilewright.targets.accelerator.manual_schedule import by_hand
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import planned
from tilewright.targets.accelerator.target import ChipTarget
from tilewright.targets.base import register
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32

#: an array that small tests fill
CHIP = Systolic32(array=4)
N = CHIP.array
ORDERS = {"output": "iok", "weight": "oki", "input": "iko"}


def factors(kernel):
    """The constants that bring sums back to bytes."""
    return [p.name for p in kernel.inputs[2:]]


def stationary(kernel, order, rows=6, count=2, chip=CHIP):
    """The product of chip_kernels.matmul in tiles of `rows` x N x N, in an order of their loops: i (rows), o (columns),
    k (sums)."""
    s = Schedule(kernel, chip)
    s.pack("p1", ((), (N,)), (1, 0, 2))
    for p in factors(kernel):
        s.pack(p, ((N,),), (0, 1))
    stored = s.cache_write("s1", scope="outputs")
    loops = {"i": s.split("i0", rows), "o": s.split("l0", N), "k": s.split("n0", N)}
    outer = [loops[v][0] for v in order]
    s.reorder(*outer, *(inner for _, inner in loops.values()))
    around = outer[order.index("k") - 1]
    at, columns = s.reverse_compute_at("s1", around)
    stored_at, stored_columns = s.reverse_compute_at(stored, around)
    s.set_scope("t0", "accumulators")
    for b in ("t0", "p7_c"):
        s.split_dimension(b, 1, N)
        s.set_order(b, (1, 0, 2))
        s.multi_buffer(b, around, count)
    for rows_, run in ((at, columns), (stored_at, stored_columns)):
        q, r = s.split(run, N)
        s.reorder(q, rows_, r)
    for p in factors(kernel):
        s.cache_read("s1", p, around, scope="params", asynchronous=True)
    for p, scope, moves in (("p0", "activations", "ik"), ("p1", "weights", "ok")):
        last = next(loops[v][0] for v in reversed(order) if v in moves)
        s.cache_read("s0", p, last, scope=scope, asynchronous=True)
        s.multi_buffer(f"{p}_c", last, count)
    s.tensorize(loops["i"][1], "mma")
    s.tensorize(at, "requantize")
    return s


def right(s, kernel):
    """The program of a schedule; nest, its text and program compute what the kernel does."""
    made, arrays = by_hand(s), inputs(kernel)
    want = reference(kernel, arrays)
    chip = s.machine()
    assert np.array_equal(made(*arrays.values()), want)
    nest = parse_nest(str(s.nest()), chip)
    assert np.array_equal(interpret_nest(nest, packed(nest, arrays), chip)[kernel.outputs[0]], want)
    return made


# ---- what is accepted is right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_what_stays_on_the_chip_is_the_order_of_loops(order):
    kernel = chip_kernels.matmul(12, 12, 8)
    made = right(stationary(kernel, ORDERS[order]), kernel)
    sizes = {"p0": 12 * 12, "p1": 12 * 8}
    times = {"output": (2, 2), "weight": (2, 1), "input": (1, 2)}[order]
    rest = made.timing.moved["host"] - times[0] * sizes["p0"] - times[1] * sizes["p1"] - 12 * 8
    assert rest == 4 * 8 * len(factors(kernel)) * (1 if order == "weight" else 2)


@pytest.mark.parametrize("sizes", [(7, 12, 8), (12, 12, 6), (12, 10, 8), (13, 11, 7)])
@pytest.mark.parametrize("order", ORDERS)
def test_tiles_that_do_not_divide(sizes, order):
    kernel = chip_kernels.matmul(*sizes)
    right(stationary(kernel, ORDERS[order]), kernel)


def test_the_program_of_a_plan_can_be_written_by_hand():
    """The same instructions for the array and behind it, and no more cycles."""
    kernel, chip = chip_kernels.matmul(64, 96, 64), Systolic32()
    plan = TilePlan({"n0": 32}, ("n0",))
    made_of_plan = planned(select(kernel, Formats(chip).listing), Formats(chip), plan)
    s, n = Schedule(kernel, chip), chip.array
    s.pack("p1", ((), (n,)), (1, 0, 2))
    for p in factors(kernel):
        s.pack(p, ((n,),), (0, 1))
    stored = s.cache_write("s1", scope="outputs")
    (o, o1), (k, k1) = s.split("l0", n), s.split("n0", plan.tiles["n0"])
    s.reorder(k, o, "i0", o1, k1)
    s.set_scope("t0", "accumulators")
    for b in ("t0", "p7_c"):
        s.split_dimension(b, 1, n)
        s.set_order(b, (1, 0, 2))
    for run, rows in (("l1", "i1"), s.loops(stored)[::-1]):
        q, r = s.split(run, n)
        s.reorder(q, rows, r)
    for p in factors(kernel):
        s.cache_read("s1", p, scope="params", asynchronous=True)
    for p, scope in (("p1", "weights"), ("p0", "activations")):
        s.cache_read("s0", p, k, scope=scope, asynchronous=True)
        s.multi_buffer(f"{p}_c", k)
    s.tensorize("i0", "mma")
    s.tensorize("i1", "requantize")
    made, arrays = by_hand(s), list(inputs(kernel).values())
    assert np.array_equal(made(*arrays), replace(made, program=made_of_plan.program, nest=made_of_plan.nest)(*arrays))

    def work(program):
        """Instructions without what they wait for, which copies in another order change."""
        return {e: [i.values for i in program.streams[e]] for e in ("array", "store")}

    assert work(made.program) == work(made_of_plan.program)
    assert made.cycles <= made_of_plan.timing.cycles


def test_copies_that_run_ahead_have_conditions():
    """`pipeline` begins the copy of the next tile, if there is one."""
    kernel = chip_kernels.matmul(12, 8, 4)
    s = Schedule(kernel, CHIP)
    stored = s.cache_write("s1", scope="outputs")
    i, i1 = s.split("i0", 4)
    k, k1 = s.split("n0", 4)
    s.reorder(i, k, i1, "l0", k1)
    at, _ = s.reverse_compute_at("s1", i)
    s.reverse_compute_at(stored, i)
    s.set_scope("t0", "accumulators")
    copy = s.cache_read("s0", "p0", i, scope="activations", asynchronous=True)
    s.pipeline(i, copy)
    for p in factors(kernel):
        s.cache_read("s1", p, i, scope="params")
    s.cache_read("s0", "p1", i, scope="weights")
    s.tensorize(i1, "mma")
    s.tensorize(at, "requantize")
    assert "if i0_o + 1 < 3:" in str(s)
    right(s, kernel)


def product_of_floats(kernel, chip):
    """A product on outer4: sums are drained to the scratch memory, from where they are stored."""
    s = Schedule(kernel, chip)
    (block,) = (x.name for x in kernel.stages)
    drained = s.cache_write(block, scope="sums")
    stored = s.cache_write(drained, scope="scratch")
    rows, columns, depth = s.loops(block)
    (i, i1), (o, o1) = s.split(rows, 4), s.split(columns, 4)
    s.reorder(i, o, i1, o1, depth)
    at, _ = s.reverse_compute_at(drained, o)
    s.reverse_compute_at(stored, o)
    for p, around in ((kernel.params[0].name, i), (kernel.params[1].name, o)):
        s.cache_read(block, p, around, scope="scratch", asynchronous=True)
        s.multi_buffer(f"{p}_c", around)
    s.tensorize(i1, "mma")
    s.tensorize(at, "drain")
    return s


def test_a_chip_of_floats():
    kernel = chip_kernels.float_matmul(8, 12, 8)
    s = product_of_floats(kernel, "outer4")
    arrays = inputs(kernel)
    want = arrays["p0"].astype(np.float64) @ arrays["p1"]
    assert np.abs(by_hand(s)(*arrays.values()) - want).max() < 1e-5
    assert "'chip': 'drain acc=p7_c y=p7_c1'" in str(s)
    other = Schedule(kernel, Outer4())
    refused("i0 is no relu: it computes something else", lambda: other.tensorize("i0", "relu"))


# ---- in a model ------------------------------------------------------------------------------------------------------


class Small(Outer4):
    """A name of its own, for this test's registry."""

    name = "outer4_by_hand"


def test_schedules_of_a_model():
    """A trace in the option `schedules` takes the place of a plan; one that cannot be a program is an error."""
    register(ChipTarget(Small))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((12, 8)).astype(np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 8])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    trace = str(product_of_floats(chip_kernels.float_matmul(8, 12, 8), Outer4()).trace)
    run = tw.compile(model, target="outer4_by_hand", schedules={"matmul": trace}, verify=True)
    array = rng.standard_normal((8, 12)).astype(np.float32)
    assert np.abs(run(array)[0] - array @ w).max() < 1e-5
    (program,) = run._runner.programs.values()
    planned = tw.compile(model, target="outer4_by_hand")
    assert program != next(iter(planned._runner.programs.values()))
    assert "scheduled by hand" in str([k["plan"] for k in run.facts()["kernels"].values()])
    with pytest.raises(CompileError) as e:
        tw.compile(model, target="outer4_by_hand", schedules={"matmul": 's.split("i0", 4)'})
    assert e.value.operator.startswith("kernel matmul_")


# ---- what is refused -------------------------------------------------------------------------------------------------


def ready(sizes=(12, 12, 8)):
    kernel = chip_kernels.matmul(*sizes)
    s = stationary(kernel, "oki")
    return s, kernel


def refused(message, step):
    with pytest.raises(ScheduleError, match=re.escape(message)):
        step()


def test_refusals_of_tensorize():
    s = Schedule(chip_kernels.matmul(12, 12, 8), CHIP)
    refused("no instruction 'dance'", lambda: s.tensorize("i0", "dance"))
    refused("i0 is no mma: acc is i32 in accumulators, and t0 is i32 in local", lambda: s.tensorize("i0", "mma"))
    s.set_scope("t0", "accumulators")
    refused("x is i8 in activations, and p0 is i8 in param", lambda: s.tensorize("i0", "mma"))
    refused("i0 is no requantize: it computes something else", lambda: s.tensorize("i0", "requantize"))
    s.cache_read("s0", "p0", scope="activations")
    s.cache_read("s0", "p1", scope="weights")
    refused("it takes 4 along n, and loop l0 has 8", lambda: s.tensorize("i0", "mma"))
    o, _ = s.split("l0", N)
    s.reorder(o, "i0")
    refused("it takes 4 along k, and loop n0 has 12", lambda: s.tensorize("i0", "mma"))
    k, _ = s.split("n0", N)
    s.reorder(k, "i0", "l0_i")
    s.tensorize("i0", "mma")
    refused("it computes something else: p0", lambda: s.tensorize(s.loops()[0], "mma"))


def test_loops_that_are_an_instruction_stay_as_they_are():
    s, _ = ready()
    before = by_hand(s)
    assert before.cycles > 0
    inner = next(v for v in s.loops("s0") if s.loop(v).note("dim") == "m")
    s.split(inner, 2)
    with pytest.raises(CompileError, match="is no mma any more") as e:
        by_hand(s)
    assert "tensorize after all other steps" in e.value.hint


def test_refusals_of_programs():
    with pytest.raises(UsageError, match="for no chip"):
        by_hand(Schedule(chip_kernels.matmul(4, 4, 4)))
    with pytest.raises(CompileError, match="outside of copies and instructions"):
        by_hand(Schedule(chip_kernels.matmul(4, 4, 4), CHIP))
    s, kernel = ready()
    with pytest.raises(InputError, match="takes 5 arrays"):
        by_hand(s)(*list(inputs(kernel).values())[:2])


def test_refusals_of_buffers_in_turns_and_blocks():
    s = Schedule(chip_kernels.matmul(12, 12, 8), CHIP)
    i, _ = s.split("i0", 4)
    refused("p0 is no temporary", lambda: s.multi_buffer("p0", i))
    refused("t0 does not live inside i0_o", lambda: s.multi_buffer("t0", i))
    refused("1 copies of t0 are no turns", lambda: s.multi_buffer("t0", i, 1))
    refused("p0 is no temporary with a dimension 0", lambda: s.split_dimension("p0", 0, 2))
    refused("t0 is no temporary with a dimension 2", lambda: s.split_dimension("t0", 2, 2))
    refused("factor 0 of t0 is not positive", lambda: s.split_dimension("t0", 0, 0))
    s.reverse_compute_at("s1", i)
    k, _ = s.split("n0", 4)
    refused("t0 does not live inside n0_o", lambda: s.multi_buffer("t0", k))
    s.multi_buffer("t0", i)
