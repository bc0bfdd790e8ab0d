"""Which kernels are instructions of a chip, and what is said of those that are none."""

from dataclasses import replace

import numpy as np
import pytest
from support.chip_kernels import (
    add_relu,
    close,
    compiled,
    computed,
    conv,
    depthwise,
    float_matmul,
    inputs,
    matmul,
    reference,
    softmax,
)
from support.small_chip import ADD, MULTIPLY, small

from tilewright.lang import te
from tilewright.support.errors import CompileError
from tilewright.targets.accelerator.describe import ChipMemory, CopyEngine, Listing
from tilewright.targets.accelerator.match import NoMatch, select
from tilewright.targets.accelerator.plan import plans
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32

SYSTOLIC, OUTER = Listing.of(Systolic32()), Listing.of(Outer4())


def steps(kernel, listing):
    return [(s.instruction.name, s.dims) for s in select(kernel, listing).steps]


def names(kernel, listing):
    return [name for name, _ in steps(kernel, listing)]


def test_convolution():
    (mma, dims), (post, again) = steps(conv(10, 12, 32, 64), SYSTOLIC)
    assert (mma, dims) == ("mma", {"m": ("j0", "k0"), "n": ("l0",), "k": ("n0",)})
    assert (post, again) == ("requantize", {"m": ("j0", "k0"), "n": ("l0",)})
    fields = select(conv(10, 12, 32, 64), SYSTOLIC).steps[1].fields
    assert fields == {"left": 0, "offset": -9, "even": 0, "low": -128, "high": 127}


@pytest.mark.parametrize("even", [False, True])
def test_a_field_of_one_bit_is_a_choice(even):
    """Exact halves up or to the even neighbour, as the kernel says, bit for bit."""
    kernel = matmul(40, 9, 40, even=even)
    assert select(kernel, SYSTOLIC).steps[1].fields["even"] == even
    arrays = {**inputs(kernel), "p4": np.full(40, 4, np.int32)}
    want, other = (reference(matmul(40, 9, 40, even=e), arrays) for e in (even, not even))
    assert np.array_equal(computed(*compiled(kernel, SYSTOLIC), arrays), want)
    assert not np.array_equal(want, other)


@pytest.mark.parametrize("sizes", [(11, 9, 16, 8, 3, 3, 2), (9, 9, 3, 8), (7, 7, 8, 8, 1, 1), (8, 8, 4, 1, 3, 2)])
def test_other_convolutions(sizes):
    assert names(conv(*sizes), SYSTOLIC) == ["mma", "requantize"]


def test_one_channel_lies_as_the_sums_do():
    """Of requantize, pixels could be neighbours; the sums before it are rows."""
    (_, dims), (_, again) = steps(matmul(50, 4, 1), SYSTOLIC)
    assert dims["m"] == again["m"] == ("i0",) and dims["n"] == again["n"] == ()


@pytest.mark.parametrize(("channels", "instruction"), [(64, "depthwise"), (40, "depthwise"), (1, "mma")])
def test_channels_apart(channels, instruction):
    """Both instructions of the array can do it, one of them channel by channel; the faster one is taken."""
    first, last = select(depthwise(9, 9, channels, s=2), SYSTOLIC).steps
    assert (first.instruction.name, last.instruction.name) == (instruction, "requantize")
    assert first.sums == ("m0", "n0") and first.dims["m"] == ("j0", "k0")


def test_borders():
    s = select(conv(6, 6, 8, 8, pad=2), SYSTOLIC)
    assert len(s.fills) == 8 and {f.value for f in s.fills} == {251}
    assert s.stored.buffer == "p7" and [str(i) for i in s.stored.indices] == ["0", "(j0 + 2)", "(k0 + 2)", "l0"]


def test_floats():
    assert names(softmax(10, 9), OUTER) == ["softmax"]
    assert names(softmax(10, 1), OUTER) == ["softmax"]
    assert names(add_relu(8, 9), OUTER) == ["add", "relu"]
    assert names(float_matmul(8, 9, 10), OUTER) == ["mma", "drain"]
    assert names(float_matmul(8, 9, 10, dtype="bf16"), OUTER) == ["mma_bf16", "drain"]
    assert names(float_matmul(8, 9, 10, relu=True), OUTER) == ["mma", "drain", "relu"]


@pytest.mark.parametrize("make", [lambda: conv(6, 6, 8, 40, scalar=True), lambda: matmul(9, 8, 40, scalar=True)])
def test_one_number_for_all_channels(make):
    kernel = make()
    for array in (4, 32):
        listing = Listing.of(Systolic32(array=array))
        nest, formats, program = compiled(kernel, listing)
        assert nest.packs["p3"].repeats == (array - 1,)
        arrays = inputs(kernel)
        assert close(computed(nest, formats, program, arrays), reference(kernel, arrays))


def elementwise(value, shape="8, 8", extra="p1: f32[8, 8], ", constants=()):
    return te.from_nest(
        f"""
def kernel(p0: f32[{shape}], {extra}p7: out(f32[8, 8])):
    for i in serial(8):
        for j in serial(8):
            s0: p7[i, j] = {value}
""",
        constants=constants,
    )


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ("addf(p0[i, j], p0[i, j])", {"extra": ""}),
        ("addf(p0[i, j], p1[j, i])", {}),
        ("addf(p0[i, j], p1[j, i])", {"constants": ("p1",)}),
        ("addf(p0[7 - i, j], p1[i, j])", {}),
        ("addf(p0[i, j * 2], p1[i, j])", {"shape": "8, 16"}),
        ("addf(p0[i, j * 2], p1[i, j])", {"shape": "8, 16", "constants": ("p0",)}),
        ("addf(p0[i, j], p1[i])", {"extra": "p1: f32[8], ", "constants": ("p1",)}),
        ("addf(p0[i, j], p1[j])", {"extra": "p1: f32[8], "}),
        ("addf(p0[i, j], p1[()])", {"extra": "p1: f32[()], ", "constants": ("p1",)}),
        ("addf(p0[i, j], p1[0, 0])", {"extra": "p1: f32[1, 1], ", "constants": ("p1",)}),
        ("addf(p0[i, j], p1[()])", {"extra": "p1: f32[()], "}),
    ],
)
def test_accesses(value, options):
    """Whatever is read along loops in another way ends in the same numbers."""
    kernel = elementwise(value, **options)
    arrays = inputs(kernel)
    assert close(computed(*compiled(kernel, OUTER), arrays), reference(kernel, arrays))


def two_stages(last, shape="8, 8"):
    return te.from_nest(f"""
def kernel(p0: f32[8, 8], p7: out(f32[{shape}])):
    t = local(f32[8, 8])
    for i in serial(8):
        for j in serial(8):
            s0: t[i, j] = maximumf(p0[i, j], f32(0.0))
    for i1 in serial(8):
        for j1 in serial(8):
            s1: p7[i1, j1] = {last}
""")


WITHOUT = {
    "no instruction": (lambda: elementwise("mulf(p0[i, j], p1[i, j])"), OUTER, "no instruction computes (p0[i, j] *. "),
    "integers": (lambda: conv(6, 6, 8, 8), OUTER, "no instruction computes"),
    "two places": (
        lambda: elementwise("addf(p0[i, j], p0[i + 1, j])", "9, 8", ""),
        OUTER,
        "add: p0 is read in two ways, but lies on the chip in one",
    ),
    "transposed result": (lambda: two_stages("addf(t[i1, j1], t[j1, i1])"), OUTER, "t is read in two ways"),
    "only moves": (lambda: elementwise("p0[j, i]", extra=""), OUTER, "drain: p0 cannot be brought to sums"),
    "long rows": (lambda: softmax(4, 1025), OUTER, "n has at most 1024, here are 1025"),
    "no way out": (lambda: matmul(4, 4, 4), Listing.of(small()), "no instruction computes"),
    "no engine fills": (
        lambda: conv(6, 6, 8, 8, pad=1),
        Listing.of(
            type(
                "NoFill",
                (Systolic32,),
                {"copy_engines": lambda self: tuple(replace(e, fill=False) for e in Systolic32().copy_engines())},
            )()
        ),
        "no engine writes numbers to the host",
    ),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_without(case):
    make, listing, said = WITHOUT[case]
    with pytest.raises(NoMatch) as raised:
        select(make(), listing)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_results_that_cannot_leave():
    store = CopyEngine("store", sources=("sums",), targets=("host",))
    chip = small(copies=(small().copy_engines()[0], store), instructions=(ADD, MULTIPLY))
    with pytest.raises(NoMatch, match="nothing brings a result out of rows"):
        select(elementwise("addf(p0[i, j], p1[i, j])"), Listing.of(chip))


def test_no_tile_fits():
    listing = Listing.of(small(spaces=(ChipMemory("rows", 32, word=16), small().spaces()[1])))
    with pytest.raises(CompileError) as raised:
        plans(select(elementwise("addf(p0[i, j], p1[i, j])"), listing), listing)
    assert raised.value.message == "no tile of it fits the memories of the chip"
    assert raised.value.operator == "kernel"
    assert raised.value.hint == "the smallest tiles take 48 bytes of rows, which has 32"
