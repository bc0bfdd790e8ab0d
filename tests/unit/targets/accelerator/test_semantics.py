"""What bodies of instructions are read as, and that what has no one meaning is refused."""

from dataclasses import replace

import numpy as np
import pytest
from support.small_chip import ADD, MULTIPLY

from tilewright.support.errors import UsageError
from tilewright.targets.accelerator.describe import WRITE, Dim, Field, Instruction, Operand
from tilewright.targets.accelerator.semantics import accumulated, choices, meaning, multiply_high
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32


def read(body, instruction=ADD):
    return str(meaning(replace(instruction, body=body)))


def test_sum_of_products():
    assert str(meaning(MULTIPLY)) == (
        "acc[m, n] = (acc[m, n] + addi over k of (extsi(x[m, k]):i32 * extsi(w[k, n]):i32))"
    )


def test_an_instruction_may_add_one_thing_each_time():
    each = meaning(Systolic32().instruction("depthwise")).values["acc"]
    assert str(accumulated(each, "acc")) == "addi over  of (extsi(x[m, n]):i32 * extsi(w[n]):i32)"
    assert accumulated(each, "x") is None


def test_softmax():
    text = str(meaning(Outer4().instruction("softmax")))
    high = "maximumf over n of x[m, n]"
    assert text.startswith("y[m, n] = ") and text.count(high) == 2 and "addf over n of exp(" in text


def test_fields_are_variables():
    text = str(meaning(Systolic32().instruction("requantize")))
    assert all(f in text for f in ("left", "offset", "low", "high", "mulhsi"))


def test_fields_of_one_bit_are_choices():
    up, even = choices(meaning(Systolic32().instruction("requantize")))
    assert (up.chosen, even.chosen) == ({"even": 0}, {"even": 1})
    assert "cmpi" not in str(up) and "subi" not in str(up)
    assert "extui(andi(andi(cmpi.eq(" in str(even)
    assert choices(meaning(MULTIPLY)) == [meaning(MULTIPLY)]


@pytest.mark.parametrize(
    ("body", "off", "on"),
    [
        (lambda a, *, bit: a << bit, "a[m]", "shli(a[m], 1:i32)"),
        (lambda a, *, bit: (a + a * bit) >> bit, "a[m]", "shrsi((a[m] + a[m]), 1:i32)"),
        (lambda a, *, bit: a | bit, "a[m]", "ori(a[m], 1:i32)"),
        (lambda a, *, bit: bit - a, "subi(0:i32, a[m])", "subi(1:i32, a[m])"),
        (lambda a, *, bit: bit << a, "shli(0:i32, a[m])", "shli(1:i32, a[m])"),
    ],
)
def test_what_a_bit_turns_off_is_not_there(body, off, on):
    operands = (Operand("a", "x", "i32", ("m",)), Operand("b", "x", "i32", ("m",), WRITE))
    bit = (Field("bit", 1, signed=False),)
    i = Instruction("i", "unit", (Dim("m", 4),), operands, body, lambda f: f.m, bit)
    assert [str(c.values["b"]) for c in choices(meaning(i))] == [off, on]


def test_comparisons_are_bits():
    assert read(lambda x, y: (x < y).astype(np.float32)) == "sum[m, n] = uitofp(cmpf.olt(x[m, n], y[m, n])):f32"
    assert read(lambda x, y: x.astype(bool).astype(np.float32)).count("cmpf.une(x[m, n], 0.0:f32)") == 1
    with pytest.raises(UsageError, match="gives i1 for sum"):
        read(lambda x, y: x == y)


def test_one_form():
    assert read(lambda x, y: x / y) == read(lambda x, y: x * (np.float32(1) / y))
    assert read(lambda x, y: x + 2 * y) == "sum[m, n] = (x[m, n] +. (2.0:f32 *. y[m, n]))"
    assert read(lambda x, y: x + np.max(y, axis=1, keepdims=True)) == read(lambda x, y: x + y.max(-1, keepdims=True))


def test_sums_say_their_type():
    body = "acc + x.astype(np.int32).sum(axis=1, dtype=np.int32, keepdims=True)"
    assert "addi over k of extsi(x[m, k])" in read(lambda acc, x, w: eval(body), MULTIPLY)
    with pytest.raises(UsageError, match="NumPy's sum of i32 is i64"):
        read(lambda acc, x, w: acc + x.astype(np.int32).sum(axis=1, keepdims=True), MULTIPLY)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda x, y: x + np.arange(4, dtype=np.float32), "of what is no operand"),
        (lambda x, y: np.sum(x), "sum of all dimensions"),
        (lambda x, y: x + np.float64(3), "beside f32"),
        (lambda x, y: x @ y, "multiplies matrices of"),
        (lambda x, y: x & y, "no meaning for floats"),
        (lambda x, y: np.add.reduce(x), "may not use np.add.reduce"),
        (lambda x, y: x.T + y, "cannot be read"),
        (lambda x: x, "cannot be read"),
    ],
)
def test_refused(body, said):
    with pytest.raises(UsageError, match=said) as raised:
        read(body)
    assert raised.value.operator == "instruction add"


def test_multiply_high():
    a, b = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (2, 100)).astype(np.int32)
    assert [int(x) for x in multiply_high(a, b)] == [(int(x) * int(y)) >> 32 for x, y in zip(a, b, strict=True)]
