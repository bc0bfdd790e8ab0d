"""Loops over all pixels that are rows and columns again."""

import pytest
from support.chip_kernels import compiled, computed, inputs, reference, requantized

from tilewright.lang import te
from tilewright.schedule.schedule import Schedule
from tilewright.targets.accelerator.describe import Listing
from tilewright.targets.accelerator.match import NoMatch, select
from tilewright.targets.accelerator.rows import with_rows
from tilewright.targets.chips.systolic32 import Systolic32


def pointwise(index: str = "y * 7 + x", rows: int = 6, place: str = "y, x", shape: str = "6, 7", more: str = ""):
    """A product with a row for each of 6 x 7 pixels, requantized as an image."""
    product = "muli(extsi[i32](p0[i, c]), extsi[i32](p1[c, o]))"
    return te.from_nest(
        f"""
def pointwise(p0: i8[42, 12], p1: i8[12, 20], p2: i32[20], p3: i32[20], p4: i32[20], p7: out(i8[{shape}, 20])):
    t = local(i32[42, 20])
    for i in serial(42):
        for o in serial(20):
            for c in serial(12):
                s0: t[i, o] = reduce(addi(t[i, o], {product}), init=i32(0), over=(c,))
    for y in serial({rows}):
        for x in serial(7):
            for o1 in serial(20):
                s1: p7[{place}, o1] = {requantized(f"t[{index}, o1]", "o1")}
{more}""",
        constants=["p1", "p2", "p3", "p4"],
    )


def test_a_loop_over_pixels_is_split():
    text = str(Schedule(with_rows(pointwise())))
    assert "t = local(i32[6, 7, 20])" in text
    assert "s0: t[i_0, i_1, o] = reduce(addi(t[i_0, i_1, o], muli(extsi[i32](p0[i_0 * 7 + i_1, c])," in text
    assert "t[y, x, o1]" in text


@pytest.mark.parametrize(("place", "shape"), [("y, x", "6, 7"), ("5 - y, x", "6, 7"), ("x, y", "7, 6")])
def test_pixels_on_a_chip(place, shape):
    """The numbers are those of the kernel, wherever the result is stored."""
    kernel = pointwise(place=place, shape=shape)
    listing = Listing.of(Systolic32(array=8))
    assert [s.instruction.name for s in select(kernel, listing).steps] == ["mma", "requantize"]
    arrays = inputs(kernel)
    assert (computed(*compiled(kernel, listing), arrays) == reference(kernel, arrays)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"index": "y * 6 + x"},
        {"index": "y * 7 + x + 1", "rows": 5},
        {"index": "y * 7 + 6 - x"},
        {"rows": 5},
        {"more": "    for j in serial(42):\n        s2: p7[0, 0, 0] = trunci[i8](t[j, 0])\n"},
    ],
)
def test_what_is_counted_otherwise_stays(options):
    kernel = pointwise(**options)
    assert with_rows(kernel) is kernel
    with pytest.raises(NoMatch):
        select(kernel, Listing.of(Systolic32(array=8)))
