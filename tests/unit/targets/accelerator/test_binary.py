"""Programs as bits and as text: what is written is read back, and what is damaged is named."""

import random
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from support.chip_kernels import compiled, conv
from support.small_chip import ADD, MULTIPLY, small

from tilewright.support.errors import UsageError
from tilewright.targets.accelerator.binary import MAGIC, ChipProgram, Formats, Issue
from tilewright.targets.accelerator.describe import Listing
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32

CHIPS = [Systolic32(), Systolic32(array=8, weight_kb=64), Outer4()]


def number(rng, f):
    """Of a field: often the ends of what it holds."""
    low, high = (-(1 << f.bits - 1), (1 << f.bits - 1) - 1) if f.signed else (0, (1 << f.bits) - 1)
    return rng.choice([low, high, 0, rng.randint(low, high)])


def program(formats, seed, count=6):
    rng, streams = random.Random(seed), {}
    for engine, forms in formats.forms.items():
        made = []
        for _ in range(count):
            form = rng.choice(forms)
            values = {f.name: tuple(number(rng, f) for _ in range(f.parts)) for f in form.fields}
            others = [e for e in formats.engines if e != engine and rng.random() < 0.5]
            most = (1 << formats.chip.count_bits) - 1
            made.append(Issue(form, values, {e: rng.choice([1, most, rng.randint(1, most)]) for e in others}))
        streams[engine] = tuple(made)
    return ChipProgram("some", streams, (rng.randint(1, 1 << 30), 4))


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_round_trips(chip):
    formats = Formats(chip)
    for seed in range(30):
        p = program(formats, seed)
        assert formats.disassemble(formats.assemble(p)) == p
        assert formats.parse(formats.text(p)) == p


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_every_instruction(chip):
    formats = Formats(chip)
    for engine, forms in formats.forms.items():
        for form in forms:
            rng = random.Random(form.name)
            issue = Issue(form, {f.name: tuple(number(rng, f) for _ in range(f.parts)) for f in form.fields})
            data = formats.encode(issue)
            assert len(data) == 4 * formats.words(engine)
            assert formats.decode(engine, data) == issue


SYSTOLIC = Formats(CHIPS[0])
PROGRAM = compiled(conv(6, 6, 8, 8), Listing.of(CHIPS[0]))[2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("arry: mma m=1", "there is no engine 'arry'"),
        ("array: mmm m=1", "engine array has no 'mmm'"),
        ("array: mma z=1", "mma has no field 'z'"),
        ("array: mma m=1 m=2", "mma has a field twice"),
        ("array: mma m=1,2,3,4", "m has 3 parts, not 4"),
        ("array: mma m=x", "cannot read"),
        ("array: mma m", "cannot read"),
        ("array: mma n=64", "n is 64, it must be 0 to 63"),
        ("array: mma acc=-1", "acc is -1"),
        ("array: mma n=1 wait(lod=3)", "array cannot wait for 'lod'"),
        ("array: mma n=1 wait(array=3)", "array cannot wait for 'array'"),
        ("array: mma n=1 wait(load=9999999)", "load is 9999999"),
        ("array: mma n=1 wait()", "cannot read"),
        ("array: mma wait(load=1) n=1", "cannot read"),
        ("mma n=1", "there is no engine"),
        (".program", "cannot read"),
    ],
)
def test_wrong_text(line, said):
    with pytest.raises(UsageError) as raised:
        SYSTOLIC.parse(f".program some arguments=4\n\narray: mma m=4 n=32 k=32 start=1  # right\n{line}\n")
    assert raised.value.message.startswith("line 4: ") and said in raised.value.message
    assert raised.value.stage == "assemble"


def test_numbers_that_do_not_fit():
    form = SYSTOLIC.form("mma")
    issue = PROGRAM.streams["array"][0]
    with pytest.raises(UsageError, match="array: mma: x is 4096"):
        SYSTOLIC.encode(Issue(form, {**issue.values, "x": (4096,)}))


def test_another_chip():
    data = SYSTOLIC.assemble(PROGRAM)
    with pytest.raises(UsageError, match="the program conv is for systolic32 with") as raised:
        Formats(CHIPS[1]).disassemble(data)
    assert "'array': 8" in raised.value.hint
    with pytest.raises(UsageError, match="is for systolic32"):
        Formats(Outer4()).disassemble(data)


def test_damaged_binaries():
    data = SYSTOLIC.assemble(PROGRAM)
    for end in (len(data) - 1, len(data) // 2, data.index(b"\n", len(MAGIC)) + 1):
        with pytest.raises(UsageError, match="the program conv ends too early"):
            SYSTOLIC.disassemble(data[:end])
    with pytest.raises(UsageError, match="goes on for 3 bytes behind its end"):
        SYSTOLIC.disassemble(data + b"abc")
    for end in (len(MAGIC), len(MAGIC) + 20):
        with pytest.raises(UsageError, match="the first line of the program is damaged"):
            SYSTOLIC.disassemble(data[:end])
    with pytest.raises(UsageError, match="this is no program of a chip"):
        SYSTOLIC.disassemble(b"ELF")


def test_unknown_opcode():
    formats = Formats(small(instructions=(ADD, *[replace(ADD, name=n) for n in "bc"], MULTIPLY)))
    with pytest.raises(UsageError, match="engine alu has no instruction 3"):
        formats.decode("alu", b"\xff" * 4 * formats.words("alu"))


def test_parameters_of_any_kind():
    @dataclass(frozen=True)
    class Listed(Systolic32):
        sizes: tuple[int, ...] = (1, 2)
        name: ClassVar[str] = "listed"

    formats = Formats(Listed())
    p = program(formats, 0)
    assert formats.disassemble(formats.assemble(p)) == p
