"""The RTL of systolic32 under Verilator, at 8x8: what it computes and how many cycles it takes are those of the
simulators, for each instruction, for random programs, and for whole layers as the compiler emits them."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from support import rtl
from support.chip_layers import conv, layer_arguments, product, random_layer
from support.quantized_digits import digits_int8
from support.systolic_programs import BYTES, HALVES, NUMBERS, SHIFTS, STORED, RandomProgram, Writer, arguments

import tilewright as tw
from tilewright.targets.accelerator.binary import ChipProgram, Formats
from tilewright.targets.accelerator.functional import Functional
from tilewright.targets.accelerator.layouts import TilePlan
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import best, planned, plans
from tilewright.targets.accelerator.timing import simulate
from tilewright.targets.accelerator.verilog import package
from tilewright.targets.chips.systolic32 import Systolic32

CHIP = Systolic32(array=8, weight_kb=16, activation_kb=16, accumulator_kb=8, bus=8)
N = CHIP.array


@pytest.fixture(scope="module")
def chip(tmp_path_factory) -> rtl.Rtl:
    """The RTL, built once for all processes of a test run."""
    if rtl.MISSING:
        pytest.skip(rtl.MISSING)
    folder = tmp_path_factory.getbasetemp()
    return rtl.build(CHIP, (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "systolic8")


@pytest.fixture
def writer(chip) -> Writer:
    """A program to write that begins with random params: multipliers, biases, shifts, 32 rows of each."""
    w = Writer(chip.formats)
    w.load("params", arg=NUMBERS, count=32, run=4 * N, host_stride=4 * N, stride=1)
    w.load("params", arg=SHIFTS, at=32, count=32, run=4 * N, host_stride=4 * N, stride=1)
    return w


def check(chip: rtl.Rtl, program: ChipProgram, given: list[np.ndarray]) -> list[np.ndarray]:
    """What a program leaves in its arguments, the same on the RTL as on the simulators and in as many cycles."""
    want, got = [a.copy() for a in given], [a.copy() for a in given]
    Functional(chip.formats).run(program, want)
    timing = simulate(chip.formats, program)
    cycles, finished = chip.run(chip.formats.assemble(program), got)
    assert finished == {e: len(s) for e, s in program.streams.items()}
    for w, g in zip(want, got, strict=True):
        np.testing.assert_array_equal(w, g)
    assert cycles == timing.cycles
    return got


def requantized(w: Writer, rows: int, n: int = N, **fields: int) -> None:
    """Sums of 20 bits to bytes, and out."""
    given = {"bias": 31, "multiplier": 0, "shift": 63, "left": 2, "offset": 5, "low": -128, "high": 127} | fields
    w.requantize(m=rows, n=n, **given)
    w.store(count=rows, run=n, stride=1, host_stride=N)


def test_one_product(chip, writer):
    """x @ w, the sums brought back to bytes."""
    writer.load("activations", arg=BYTES, count=20, run=N, stride=1, host_stride=N)
    writer.load("weights", arg=BYTES, host=1000, count=N, run=N, stride=1, host_stride=N)
    writer.mma(m=20, n=N, k=N, x_stride=1, start=1)
    requantized(writer, 20)
    given = arguments(CHIP, np.random.default_rng(0))
    out = check(chip, writer.program(given), given)[STORED]
    assert len(np.unique(out)) > 10


def test_lanes_beyond_the_product_do_not_count(chip, writer):
    """Rows of weights from k on are there, and other columns of sums stay as they are."""
    writer.load("activations", arg=BYTES, count=64, run=N, stride=1, host_stride=N)
    writer.load("weights", arg=BYTES, host=1000, count=64, run=N, stride=1, host_stride=N)
    writer.mma(m=20, n=N, k=N, x_stride=1, start=1)
    for k, n in ((1, 3), (5, N), (7, 1)):
        writer.mma(m=20, n=n, k=k, x=4 * k, x_stride=1, w=8 * k)
        writer.mma(m=20, n=n, k=k, x=4 * k, x_stride=1, w=8 * k, acc=20, start=1)
    requantized(writer, 20)
    given = arguments(CHIP, np.random.default_rng(1))
    check(chip, writer.program(given), given)


def test_rows_that_follow_each_other_into_one_sum(chip, writer):
    """The last row of a product is the first of the next: sums are used that are not yet written."""
    writer.load("activations", arg=BYTES, count=64, run=N, stride=1, host_stride=N)
    writer.load("weights", arg=BYTES, host=1000, count=64, run=N, stride=1, host_stride=N)
    writer.mma(m=64, n=N, k=N, x_stride=1, start=1)
    for distance in (1, 2, 3, 4):
        for turn in range(3):
            writer.mma(m=N + 2, n=N, k=N, x=turn, x_stride=1, w=8 * turn, acc=10 + turn % 2 * (N + 2 - distance))
    requantized(writer, 64)
    given = arguments(CHIP, np.random.default_rng(2))
    check(chip, writer.program(given), given)


def test_a_weight_for_each_channel(chip, writer):
    """Depthwise behind and before mma: one row of weights, on the diagonal."""
    writer.load("activations", arg=BYTES, count=64, run=N, stride=1, host_stride=N)
    writer.load("weights", arg=BYTES, host=1000, count=64, run=N, stride=1, host_stride=N)
    writer.depthwise(m=(4, 2, 3), n=N, x=9, x_stride=(9, 3, 1), w=5, start=1)
    for turn in range(3):
        writer.mma(m=24, n=N, k=5, x=turn, x_stride=1, w=8 * turn)
        writer.depthwise(m=24, n=N - turn, x=30 + turn, x_stride=1, w=40 + turn)
        writer.depthwise(m=2, n=N, x=turn, x_stride=1, w=63, acc=7)
    requantized(writer, 24)
    given = arguments(CHIP, np.random.default_rng(6))
    out = check(chip, writer.program(given), given)[STORED]
    assert len(np.unique(out)) > 10


def test_rows_of_nested_loops(chip, writer):
    """A window of an image: rows are taken with three strides, some of them negative or zero."""
    writer.load("activations", arg=BYTES, count=200, run=N, stride=1, host_stride=N)
    writer.load("weights", arg=BYTES, host=999, count=N, run=N, stride=1, host_stride=N)
    writer.mma(m=(2, 3, 5), n=N, k=N, x=10, x_stride=(60, 11, 2), start=1)
    writer.mma(m=(3, 2, 5), n=N, k=N, x=150, x_stride=(-50, 0, -3))
    requantized(writer, 30)
    given = arguments(CHIP, np.random.default_rng(3))
    check(chip, writer.program(given), given)


@pytest.mark.parametrize("run", [1, 7, N, N + 3, 4 * N + 1])
def test_copies_cut_runs_into_words(chip, writer, run):
    """Runs that end within a word write only their bytes; three strides on either side; a constant byte beside them."""
    words = -(-run // N)
    writer.load("activations", fill=1, value=0x5A, count=1, run=100 * N)
    writer.load(
        "activations",
        arg=BYTES,
        host=4321,
        count=(2, 2, 3),
        run=run,
        stride=(8 * words, 3 * words, words),
        host_stride=(-700, 500, -3),
    )
    writer.load("weights", fill=1, value=0, count=1, run=N * N)
    for i in range(N):  # the identity: sums are the bytes
        writer.load("weights", fill=1, value=1, at=i, count=1, run=i + 1)
        writer.load("weights", fill=1, value=0, at=i, count=1, run=i) if i else None
    writer.mma(m=100, n=N, k=N, x_stride=1, start=1)
    requantized(writer, 100, left=20, bias=16)
    writer.store(at=10, stride=(9, 4, 1), host=2000, host_stride=(11 * run, 5 * run, run), count=(2, 2, 3), run=run)
    writer.store(fill=1, value=77, host=5000, host_stride=(100, 40, 9), count=(2, 2, 3), run=5)
    given = arguments(CHIP, np.random.default_rng(run))
    check(chip, writer.program(given), given)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9])
def test_requantize_after_requantize(chip, writer, rows):
    """Params of the next instruction come in while rows of this one are under way, and must not reach them."""
    writer.load("activations", arg=BYTES, count=64, run=N, stride=1, host_stride=N)
    writer.load("weights", arg=BYTES, host=1000, count=64, run=N, stride=1, host_stride=N)
    writer.mma(m=64, n=N, k=N, x_stride=1, start=1)
    for turn in range(8):
        where = {"acc": turn * rows % 50, "y": turn * rows, "bias": 31 - turn, "multiplier": turn, "shift": 63 - turn}
        writer.requantize(m=rows, n=N, left=turn, offset=turn * 31 - 99, low=-100 - turn, high=100 + turn, **where)
    writer.store(count=1, run=8 * rows * N)
    given = arguments(CHIP, np.random.default_rng(4))
    check(chip, writer.program(given), given)


def test_exact_halves(chip, writer):
    """With `even` they go to the even neighbour, with other sums beside them; without, they go up."""
    writer.load("activations", arg=BYTES, count=200, run=N, stride=1, host_stride=N)
    writer.load("weights", arg=BYTES, host=1000, count=N, run=N, stride=1, host_stride=N)
    writer.mma(m=200, n=N, k=N, x_stride=1, start=1)
    halves = {"bias": HALVES, "multiplier": HALVES, "shift": 32 + HALVES, "low": -128, "high": 127}
    writer.load("params", fill=1, value=0, at=HALVES, count=1, run=4 * N)
    writer.load("params", arg=NUMBERS, host=4 * N * HALVES, at=20, count=1, run=4 * N)
    for even in (0, 1):
        writer.requantize(m=200, n=N, y=200 * even, offset=1, even=even, **halves | {"multiplier": 20})
    writer.store(count=400, run=N, stride=1, host_stride=N)
    given = arguments(CHIP, np.random.default_rng(5))
    given[BYTES][1000 : 1000 + N * N] = np.eye(N, dtype=np.int8).reshape(-1)
    out = check(chip, writer.program(given), given)[STORED][: 400 * N].reshape(2, 200, N).astype(float)
    bytes_, factor = (
        given[BYTES][: 200 * N].reshape(200, N),
        given[NUMBERS][HALVES] / 2.0 ** (33 + given[SHIFTS][HALVES]),
    )
    np.testing.assert_array_equal(out[0], np.floor(bytes_ * factor + 0.5))
    np.testing.assert_array_equal(out[1], np.rint(bytes_ * factor))
    assert (out[0] != out[1]).any()


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(chip, seed):
    random = RandomProgram(chip.formats, np.random.default_rng(seed), length=200)
    out = check(chip, random.program, random.arguments)[STORED]
    assert len(np.unique(out)) > 2


@pytest.mark.parametrize("seed", range(12))
def test_random_layers(chip, seed):
    """Products and convolutions, from the kernel to the cycles."""
    rng = np.random.default_rng(seed)
    name, kernel = random_layer(rng)
    found = best(select(kernel, chip.formats.listing), chip.formats)
    out = check(chip, found.program, layer_arguments(kernel, found.nest, rng))
    assert out, name


def test_rows_between_words(chip):
    """Taps of a window joined with few channels: rows that begin within words, the last one first."""
    rng = np.random.default_rng(5)
    kernel = conv(12, 9, 3, 20, 3, 1)
    s = select(kernel, chip.formats.listing)
    plan = next(p for p, _ in plans(s, chip.formats.listing) if p.joined)
    found = planned(s, chip.formats, plan)
    check(chip, found.program, layer_arguments(kernel, found.nest, rng))


def test_sums_that_wait(chip):
    """Weights stay while rows come and go: the sums of all rows wait in the accumulators."""
    rng = np.random.default_rng(6)
    kernel = product(40, 24, 20)
    s = select(kernel, chip.formats.listing)
    found = planned(s, chip.formats, TilePlan({"i": 16, "l": 8, "n": 8}, ("l", "n", "i"), depth={"weights": 3}))
    check(chip, found.program, layer_arguments(kernel, found.nest, rng))


def test_the_digits(chip):
    """A whole network: its chip's kernels on the RTL, the rest on the processor, the bits of the processor alone."""
    images, labels, model = digits_int8()
    sizes = f"array={N},bus={N},weight_kb=16,activation_kb=16,accumulator_kb=8"
    run = tw.compile(model, target=f"cpu+systolic32:{sizes}", threads=1)
    run._runner.machine = lambda formats: chip
    alone = tw.compile(model, target="cpu", threads=1)
    got = [run.run({"image": x[None]})[0][0] for x in images[:64]]
    np.testing.assert_array_equal(got, [alone.run({"image": x[None]})[0][0] for x in images[:64]])
    assert np.mean(np.argmax(got, 1) == labels[:64]) > 0.95


def test_what_waits_for_ever_is_said(chip, writer):
    writer.mma(m=4, n=N, k=N, x_stride=1, start=1)
    (mma,) = writer.streams["array"]
    program = ChipProgram("stuck", {"array": (replace(mma, waits={"load": 1}),)})
    with pytest.raises(RuntimeError, match="not done after 1000 cycles"):
        chip.run(program, [], limit=1000)


def test_a_write_outside_of_an_argument_is_said(chip, writer):
    writer.store(fill=1, value=1, host=90, count=1, run=20)
    given = [*arguments(CHIP, np.random.default_rng(0))[:STORED], np.zeros(100, np.int8)]
    with pytest.raises(RuntimeError, match="a write to byte 100 of argument 3"):
        chip.run(writer.program(given), given)


def test_the_package_says_what_the_assembler_does():
    """A struct's members, from the last one on, are the bits of an instruction from the lowest on."""
    formats = Formats(CHIP)
    text = package(CHIP)
    struct = text[: text.index("} array_mma_t;")].rpartition("typedef struct packed {")[2]
    members = [line.split()[-1].rstrip(";") for line in struct.strip().splitlines()][::-1]
    widths = [int(line.split("[")[1].split(":")[0]) + 1 for line in struct.strip().splitlines()][::-1]
    assert sum(widths) == 32 * formats.words("array")
    w = Writer(formats)
    w.mma(m=(2, 3, 5), n=4, k=6, x=10, x_stride=(60, 11, -2), w=99, acc=7, start=1)
    (issue,) = w.streams["array"]
    bits, found = int.from_bytes(formats.encode(issue), "little"), {}
    for member, width in zip(members, widths, strict=True):
        found[member] = bits & ((1 << width) - 1)
        bits >>= width
    assert [found[f"m_{i}"] for i in range(3)] == [2, 3, 5]
    assert (found["n"], found["k"], found["x"], found["w"], found["acc"], found["start"]) == (4, 6, 10, 99, 7, 1)
    assert found["x_stride_2"] == (1 << CHIP.space("activations").words.bit_length()) - 2
