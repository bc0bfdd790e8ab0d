"""Numbers of layers on a chip: cycles, floors, what is waited for."""

from __future__ import annotations

import pytest
from support.chip_programs import bordered, float_matmul, on_chip, quantized_matmul

from tilewright import te
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.layers import END, PIPELINE, LayerRun, Totals, peak, rate, table, work_of
from tilewright.targets.accelerator.match import select
from tilewright.targets.chips import outer4, systolic32

SYSTOLIC, OUTER = Formats(systolic32.CHIP()), Formats(outer4.CHIP())
RELU = te.from_nest("""
def relu(x: f32[8, 16], y: out(f32[8, 16])):
    for i in serial(8):
        for j in serial(16):
            s: y[i, j] = maximumf(x[i, j], f32(0.0))
""")


def layer(kernel, formats, tiles, order, name="layer"):
    work = work_of(select(kernel, formats.listing))
    return LayerRun.of(name, [f"/{name}"], on_chip(kernel, formats, tiles, order), formats, work)


@pytest.fixture(scope="module")
def relu():
    """One load of 512 bytes, one instruction, one store."""
    return layer(RELU, OUTER, {}, ())


def test_one_after_the_other(relu):
    """Copies: 1 cycle and 512 bytes of 8 a cycle, 16 later all is there. Four elements a cycle, 4 later."""
    loaded = 1 + 64 + 16
    computed = loaded + 8 * 4 + 4
    assert relu.cycles == computed + 1 + 64 + 16 == 198
    load, store, array, vector = relu.engines
    assert (load.busy, dict(load.stalls)) == (65, {PIPELINE: 16, END: 198 - loaded})
    assert (vector.busy, dict(vector.stalls)) == (32, {"load": loaded, PIPELINE: 4, END: 198 - computed})
    assert (store.busy, dict(store.stalls)) == (65, {"vector": computed, PIPELINE: 16})
    assert (array.busy, array.instructions, array.floor, dict(array.stalls)) == (0, 0, 0, {END: 198})


def test_floors_and_rates(relu):
    assert relu.array == "vector" and relu.work == 128 and relu.peak == 4
    assert [(e.floor, e.moved, e.needed) for e in relu.engines] == [
        (64, 512, 512),
        (64, 512, 512),
        (0, 0, 0),
        (32, 0, 0),
    ]
    assert relu.floor == 64
    assert relu.utilization == 32 / 198 and relu.speed == 128 / 198 and relu.intensity == 128 / 1024
    assert relu.energy == pytest.approx(1024 * 15 + 2048 * 0.4)  # each byte twice on the host, four times on the chip
    assert relu.bound == "load, then others" and relu.bounding == "load"


def test_what_is_brought_again_is_needed_once():
    """The second operand is brought for every tile of rows."""
    tiles = {"i0": 16, "j0": 32, "k0": 32}
    run = layer(float_matmul(32, 32, 32), OUTER, {**tiles, "j0": 4, "k0": 8}, ("i0", "j0", "k0"))
    load, store = run.engine("load"), run.engine("store")
    assert load.needed == 2 * 32 * 32 * 4 and load.floor == load.needed // 8
    assert load.moved == 2 * 32 * 32 * 4 // 2 * (8 + 2)  # one eight times, the other twice
    assert (store.moved, store.needed, store.floor) == (4096, 4096, 512)
    assert run.engine("array").floor == 32**3 // 16 and run.array == "array"


def test_borders_are_stored_too():
    run = layer(bordered(8, 8, 32), SYSTOLIC, {"i0": 3}, ("i0",))
    load, store, array, post = run.engines
    assert run.work == 8 * 8 * 32 * 32 and array.floor == array.busy == 64
    assert load.needed == load.moved == 2048 + 1024 + 3 * 128 and load.floor == 108
    assert store.needed == store.moved == 10 * 8 * 32 and store.floor == 80
    assert post.floor == 0 and post.busy == 64


def test_peaks():
    assert peak(SYSTOLIC.listing) == ("array", 1024) and peak(OUTER.listing) == ("array", 16)
    assert rate(OUTER.listing.instructions["add"]) == 4


def test_table_and_totals(relu):
    other = layer(float_matmul(32, 32, 32), OUTER, {"i0": 4, "j0": 32, "k0": 32}, ("i0",), "product")
    total = Totals.of([relu, other], OUTER.listing)
    assert total.cycles == relu.cycles + other.cycles and total.work == 128 + 32**3
    assert total.utilization == total.work / (16 * total.cycles) and total.floor == relu.floor + other.floor
    head, first, second, last = table([relu, other], OUTER).splitlines()
    columns = ["layer", "operations", "cycles", "use", "floor:", "array", "load", "store", "nJ", "bound", "from"]
    assert head.split() == columns
    assert first.split()[:7] == ["layer", "128", "198", "16.2%", "32", "64", "64"] and "load, then others" in first
    assert second.startswith("product") and last.endswith("ms at 200 MHz")
    assert last.split()[2] == f"{total.cycles:,}"


def test_weights_that_wait_for_memory():
    """One row: every weight is loaded for one multiplication."""
    run = layer(quantized_matmul(1, 256, 1024), SYSTOLIC, {"j0": 64, "k0": 256}, ("j0",))
    assert run.bound == run.bounding == "load" and run.utilization < 0.05
    assert run.floor == run.engine("load").floor == -(-(256 * 1024 + 256 + 3 * 1024 * 4) // 32)
