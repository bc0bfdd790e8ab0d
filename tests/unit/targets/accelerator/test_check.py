"""A wrong description ends in one clear error that says where it is wrong."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from support.small_chip import ADD, MULTIPLY, ROWS, small

from tilewright.support.errors import UsageError
from tilewright.targets.accelerator import Chip, ChipMemory, ComputeEngine, CopyEngine, Dim, Field, Operand
from tilewright.targets.accelerator.check import check
from tilewright.targets.accelerator.describe import HOST, WRITE
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32

LOAD, STORE = small().copy_engines()
SPACES = small().spaces()
SCALE = replace(ADD, fields=(Field("by", 4),), body=lambda x, y, *, by: x + y)


def test_right():
    for chip in (small(), Outer4(), Systolic32(), Systolic32(array=4), Systolic32(array=8)):
        check(chip)


def adds(**changed):
    """The small chip, its `add` described otherwise."""
    return {"instructions": (replace(ADD, **changed), MULTIPLY)}


def multiplies(**changed):
    return {"instructions": (ADD, replace(MULTIPLY, **changed))}


def operands(**changed):
    return adds(operands=(replace(ROWS, **changed), *ADD.operands[1:]))


def copies(**changed):
    return {"copies": (replace(LOAD, **changed), STORE)}


WRONG = {
    "overlap": (
        {"spaces": (replace(SPACES[0], at=0x100), replace(SPACES[1], at=0x1000))},
        "memories rows and sums overlap: one ends at 0x1100, the other begins at 0x1000",
    ),
    "no words": (
        {"spaces": (ChipMemory("rows", 4100, word=16), SPACES[1])},
        "its size of 4100 bytes is not a multiple of its word, 16 bytes",
    ),
    "words and elements": ({"spaces": (ChipMemory("rows", 6000, word=6), SPACES[1])}, "elements of 4 bytes"),
    "a word of nests": ({"spaces": (*SPACES, ChipMemory("register", 64))}, "'register' cannot be the name of a memory"),
    "two memories": ({"spaces": (*SPACES, SPACES[0])}, "two memory descriptions called 'rows'"),
    "two engines": ({"computes": (ComputeEngine("alu"), ComputeEngine("mul"), ComputeEngine("alu"))}, "called 'alu'"),
    "two instructions": ({"instructions": (ADD, MULTIPLY, ADD)}, "two instruction descriptions called 'add'"),
    "two of a dimension": (adds(dims=(Dim("m", 16, levels=1), Dim("n", 4), Dim("n", 2))), "called 'n'"),
    "a name": ({"instructions": (replace(ADD, name="Add"), MULTIPLY)}, "'Add' cannot be the name of a instruction"),
    "idle engine": (
        {"computes": (*small().compute_engines(), ComputeEngine("dsp"))},
        "no instruction is of this engine",
    ),
    "host to host": (copies(targets=(HOST,)), "it copies from host to host"),
    "host and chip": (copies(sources=(HOST, "sums")), "it copies from the host and memories of the chip: host, sums"),
    "unknown memory of a copy": (copies(targets=("cache",)), "there is no memory 'cache'"),
    "no levels": (copies(levels=0), "levels is 0; it is at least 1"),
    "unknown engine": (adds(engine="dsp"), "there is no engine 'dsp' that computes"),
    "copy engine": (adds(engine="load"), "there is no engine 'load' that computes"),
    "unknown memory": (operands(memory="cache"), "operand x is in 'cache', which is no memory"),
    "unknown dimension": (operands(dims=("m", "z")), "operand x has a dimension 'z'"),
    "a dimension twice": (operands(dims=("n", "n")), "operand x has a dimension twice"),
    "unknown dtype": (
        operands(dtype="f17"),
        "operand x has elements of type 'f17', which there is not; types of elements: f64, f32",
    ),
    "run with levels": (operands(dims=("n", "m")), "the last dimension of operand x is m, which has levels"),
    "no result": (adds(operands=ADD.operands[:2]), "it writes nothing"),
    "does not fit": (adds(dims=(Dim("m", 300, levels=1), Dim("n", 4))), "and rows has 4096"),
    "run does not fit": (adds(dims=(Dim("m", 16, levels=1), Dim("n", 2000))), "x can have 2000 along n, 8000 bytes"),
    "no steps": (adds(dims=(Dim("m", 0, levels=1), Dim("n", 4))), "dimension m has 0 steps"),
    "field": ({"instructions": (replace(SCALE, fields=(Field("by", 0),)), MULTIPLY)}, "field by has 0 bits"),
    "field of the encoding": (
        multiplies(fields=(Field("start", 1),), body=lambda acc, x, w, *, start: MULTIPLY.body(acc, x, w)),
        "two fields of its encoding are called start",
    ),
    "no cycles": (
        adds(cycles=lambda f: 0),
        "for m = 1, n = 1 its cycles are 0 and its latency 1; cycles are at least 1",
    ),
    "parts of cycles": (adds(cycles=lambda f: f.m / 3), "both are whole numbers: divide by //"),
    "cycles of what is not": (
        adds(cycles=lambda f: f.z),
        "its cycles, latency or energy ask for 'z', which it has not; they are given m, n",
    ),
    "shape": (adds(body=lambda x, y: (x + y).sum(axis=1)), "the body gives (1, m) for sum, which is (m, n)"),
    "dtype": (adds(body=lambda x, y: (x + y).astype(np.int32)), "the body gives i32 for sum, which is f32"),
    "two results": (adds(body=lambda x, y: (x, y)), "the body gives 2 results, not 1 (sum)"),
    "no operand": (adds(body=lambda x: x), "its body takes (x) and is given (x, y)"),
    "unknown function": (adds(body=lambda x, y: np.sin(x) + y), "may not use np.sin"),
    "unknown method": (adds(body=lambda x, y: x.mean() + y), "the body cannot be read"),
    "asks for values": (adds(body=lambda x, y: x if x else y), "may not ask for values"),
    "mixed types": (
        multiplies(body=lambda acc, x, w: acc + x @ w),
        "the body adds i32 and i8; give both one type: x.astype(np.int32)",
    ),
    "no sum": (
        multiplies(body=lambda acc, x, w: acc * (x.astype(np.int32) @ w.astype(np.int32))),
        "adds nothing to acc",
    ),
    "other numbers": (
        adds(body=lambda x, y: x + y if type(x).__name__ == "TracedArray" else x - y),
        "the body gives other numbers for sum",
    ),
    "wraps": (  # the sum of bytes alone would be right for small numbers
        multiplies(body=lambda acc, x, w: acc + (x @ w).astype(np.int32).sum(axis=0, keepdims=True)),
        "NumPy's sum of i32 is i64",
    ),
    "no tuple of memories": ({"spaces": SPACES[0]}, "spaces() is one ChipMemory, not a tuple of ChipMemory"),
    "no tuple of operands": (adds(operands=ADD.operands[2]), "operands is one Operand, not a tuple of Operand"),
    "no tuple of names": (operands(dims="m"), "dims is one str, not a tuple of str; one item needs a comma"),
    "an operand among dimensions": (adds(dims=(*ADD.dims, ROWS)), "in it, not only Dim"),
    "word of text": ({"spaces": (replace(SPACES[0], word="16"), SPACES[1])}, "word is '16' (str), not a whole number"),
    "limit of a float": (
        adds(dims=(Dim("m", 16.0, levels=1), Dim("n", 4))),
        "limit is 16.0 (float), not a whole number",
    ),
    "a body that is none": (adds(body=3), "body is 3, not a function"),
    "cycles that are a number": (adds(cycles=4), "cycles is 4, not a function; cycles=lambda f: 4"),
    "cycles of nothing": (adds(cycles=lambda: 4), "its cycles takes (nothing) and is given (counts)"),
    "cycles that divide by zero": (adds(cycles=lambda f: 8 // (f.m - 1)), "cannot be computed for m = 1, n = 1"),
    "fields that the body does not take": (
        {"instructions": (replace(SCALE, body=lambda x: x), MULTIPLY)},
        "its body takes (x) and is given (x, y, by=)",
    ),
    "access": (operands(access="reads"), "the access of operand x is 'reads'; it is one of 'read', 'write'"),
    "einsum": (
        multiplies(body=lambda acc, x, w: acc + np.einsum("mk,kn->mn", x, w)),
        "may not use np.einsum; a product",
    ),
    "dot": (
        multiplies(body=lambda acc, x, w: acc + np.dot(x, w)),
        "may not use np.dot; a product of matrices is a @ b",
    ),
    "products in another order": (multiplies(body=lambda acc, w, x: acc + x @ w), "multiplies matrices of ("),
    "no way in": ({"copies": (replace(LOAD, targets=("sums",)), STORE)}, "nothing brings what it reads to memory rows"),
    "no way out": ({"copies": (LOAD,)}, "nothing takes its results out of memory"),
    "a wider number": (
        multiplies(
            operands=(MULTIPLY.operands[1], Operand("y", "sums", "i32", ("m", "k"), WRITE)),
            body=lambda x: (x.astype(np.int32) * np.int64(3)).astype(np.int32),
        ),
        "beside i32",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case):
    changed, said = WRONG[case]
    with pytest.raises(UsageError) as raised:
        check(small(**changed))
    assert said in f"{raised.value.message}; {raised.value.hint}"
    assert raised.value.stage == "describe"
    assert "\n" not in raised.value.message


def test_methods_are_missing():
    @dataclass(frozen=True)
    class Half(Chip):
        name: ClassVar[str] = "half"

        def spaces(self):
            return ()

        def copy_engines(self):
            return (CopyEngine("load", sources=(HOST,), targets=("rows",)),)

    with pytest.raises(UsageError, match="Half does not say its compute_engines, instructions"):
        check(Half())


def test_parameters_of_another_type_and_a_missing_decorator():
    """A method that raises is named, with the parameters that it was asked with."""

    class Late(Systolic32):
        lanes: int = 3

    with pytest.raises(UsageError, match="'lanes' is no parameter of Late") as raised:
        check(Late())
    assert "@dataclass(frozen=True) above class Late" in raised.value.hint
    for array, said in (("16", r"raised TypeError|\(str\), not a whole number"), (None, "raised TypeError")):
        with pytest.raises(UsageError, match=said) as raised:
            check(Systolic32(array=array))
        assert f"array={array!r}" in raised.value.hint
