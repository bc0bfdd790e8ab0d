"""Plans that keep operands on the chip, and have more places for tiles: what small kernels wait for."""

from __future__ import annotations

from support import chip_kernels
from support.chip_kernels import close, computed, inputs, reference

from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.costs import Costs
from tilewright.targets.accelerator.layers import LayerRun, work_of
from tilewright.targets.accelerator.layouts import TilePlan
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import best, laid_out, planned, plans
from tilewright.targets.accelerator.race_check import check_order
from tilewright.targets.chips.systolic32 import Systolic32

FORMATS = Formats(Systolic32())
KERNEL = chip_kernels.matmul(64, 64, 64)
TILES, ORDER = {"i0": 32, "l0": 32, "n0": 32}, ("l0", "i0", "n0")


def test_what_is_kept_comes_once():
    """Rows would come again for each column of tiles, weights for each row."""
    s, arrays = select(KERNEL, FORMATS.listing), inputs(KERNEL)
    assert Costs(s, FORMATS.listing).comes_again(ORDER) == ("p0", "p1")
    cycles, moved = [], []
    for kept in ((), ("p0",), ("p0", "p1")):
        found = planned(s, FORMATS, TilePlan(TILES, ORDER, kept=kept))
        check_order(FORMATS, found.program)
        assert close(computed(found.nest, FORMATS, found.program, arrays), reference(KERNEL, arrays))
        load = LayerRun.of("", (), found, FORMATS, work_of(s)).engine("load")
        cycles.append(found.timing.cycles)
        moved.append(load.moved - load.needed)
    assert moved == [64 * 64 * 2, 64 * 64, 0]
    assert cycles == sorted(cycles, reverse=True)


def test_a_small_product_waits_less():
    """Loading takes 280 cycles, from the first byte to the last result it is 177 more; once it took 753 in all."""
    s = select(KERNEL, FORMATS.listing)
    found = best(s, FORMATS)
    assert found.plan.kept and max(found.plan.slots, *found.plan.depth.values()) > 2
    assert found.timing.cycles <= 640


def test_what_is_offered_fits():
    formats = Formats(Systolic32(array=8, weight_kb=4, activation_kb=4, accumulator_kb=4))
    s = select(chip_kernels.matmul(60, 40, 200), formats.listing)
    costs, found = Costs(s, formats.listing), plans(s, formats.listing)
    assert all(laid_out(costs, p) is not None for p, _ in found)
    assert {b for p, _ in found for b in p.kept} >= {"p0"} and all("p1" not in p.kept for p, _ in found)
